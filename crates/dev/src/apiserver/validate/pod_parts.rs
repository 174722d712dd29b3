//! Validates changes of a running pod by its subresources `ephemeralcontainers` (KEP-277) and `resize`
//! (KEP-1287).

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, amounts, join, rules};
use crate::apiserver::defaults::quality_of_service;
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};

const EPHEMERAL: &str = "spec.ephemeralContainers";
/// What an ephemeral container cannot have.
const NOT_EPHEMERAL: [&str; 6] =
    ["lifecycle", "livenessProbe", "ports", "readinessProbe", "resources", "startupProbe"];

/// Ephemeral containers may be added, but neither changed nor removed.
pub(super) fn ephemeral_containers(old: &Value, new: &Value, causes: &mut Causes) {
    let lists = ["/spec/initContainers", "/spec/containers"];
    let others: BTreeSet<&str> = lists
        .into_iter()
        .flat_map(|list| array_at(new, list))
        .map(|container| text_at(container, "/name"))
        .collect();
    let mut taken = others.clone();
    let list = array_at(new, "/spec/ephemeralContainers");
    for (i, container) in list.iter().enumerate() {
        let path = format!("{EPHEMERAL}[{i}]");
        let (name, target) =
            (text_at(container, "/name"), text_at(container, "/targetContainerName"));
        rules::check("NamedItem", container, &path, causes);
        if !taken.insert(name) {
            causes.push(Cause::duplicate(join(&path, "name"), name));
        }
        if !target.is_empty() && !others.contains(target) {
            causes.push(Cause::not_found(join(&path, "targetContainerName"), target));
        }
        rules::check("ContainerHead", container, &path, causes);
        for field in NOT_EPHEMERAL {
            if container.get(field).is_some_and(|value| *value != serde_json::json!({})) {
                let detail = "cannot be set for an Ephemeral Container";
                causes.push(Cause::forbidden(join(&path, field), detail));
            }
        }
    }
    for was in array_at(old, "/spec/ephemeralContainers") {
        let name = text_at(was, "/name");
        let what = match list.iter().find(|is| text_at(is, "/name") == name) {
            Some(is) if is == was => continue,
            Some(_) => "changed",
            None => "removed",
        };
        let detail = format!("existing ephemeral containers \"{name}\" may not be {what}");
        causes.push(Cause::forbidden(EPHEMERAL, &detail));
    }
}

/// Only amounts of processors and memory may change, and not the QoS class.
pub(super) fn resize(old: &Value, new: &Value, causes: &mut Causes) {
    for list in ["initContainers", "containers"] {
        let of = |pod| array_at(pod, &format!("/spec/{list}"));
        for (i, (was, is)) in of(old).iter().zip(of(new)).enumerate() {
            let path = format!("spec.{list}[{i}].resources");
            amounts::requirements(&is["resources"], &path, causes);
            if other_resources(was) != other_resources(is) {
                let detail = "only cpu and memory resources are mutable";
                causes.push(Cause::forbidden(path, detail));
            }
        }
    }
    let quality = quality_of_service(old);
    if quality != quality_of_service(new) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        causes.push(Cause::invalid("spec", quality, detail));
    }
}

/// The resources of a container without processors and memory.
fn other_resources(container: &Value) -> Value {
    let mut resources = container["resources"].clone();
    for list in ["limits", "requests"] {
        if let Some(amounts) = resources.get_mut(list).and_then(Value::as_object_mut) {
            amounts.retain(|name, _| name != "cpu" && name != "memory");
        }
    }
    if let Some(lists) = resources.as_object_mut() {
        lists.retain(|_, list| list.as_object().is_none_or(|amounts| !amounts.is_empty()));
    }
    resources
}
