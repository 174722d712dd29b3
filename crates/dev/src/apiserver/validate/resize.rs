//! Validates changes of a running pod by its subresource `resize` (KEP-1287).

use serde_json::Value;

use super::{Causes, amounts};
use crate::apiserver::defaults::quality_of_service;
use crate::schema::status::Cause;
use crate::storage::object::array_at;

/// Only amounts of processors and memory may change, and not the QoS class.
pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Causes) {
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
