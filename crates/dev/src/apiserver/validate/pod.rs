//! Validates pods and pod templates, and the updates of pods.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, container, join, push_invalid, rules, volume};
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};

const DEADLINE: &str = "spec.activeDeadlineSeconds";
const MUST_HAVE_VALUES: &str = "must be specified when `operator` is 'In' or 'NotIn'";
const MUST_NOT_HAVE_VALUES: &str =
    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
const NO_OPERATOR: &str = "not a valid selector operator";

/// Validates a new or changed pod without its metadata.
pub(super) fn check(pod: &Value, causes: &mut Causes) {
    let spec = &pod["spec"];
    check_spec(spec, "spec", causes);
    gates(spec, causes);
    for list in ["containers", "initContainers"] {
        for (i, container) in array_at(spec, &format!("/{list}")).iter().enumerate() {
            let image = text_at(container, "/image");
            if image.trim() != image {
                let field = format!("spec.{list}[{i}].image");
                let detail = "must not have leading or trailing whitespace";
                causes.push(Cause::invalid(field, image, detail));
            }
        }
    }
}

/// A pod with scheduling gates has no node (KEP-3521).
fn gates(spec: &Value, causes: &mut Causes) {
    let gates = array_at(spec, "/schedulingGates");
    let mut taken = BTreeSet::new();
    for (i, gate) in gates.iter().enumerate() {
        let (field, name) = (format!("spec.schedulingGates[{i}]"), text_at(gate, "/name"));
        push_invalid(causes, &field, name, names::qualified_name(name));
        if !taken.insert(name) {
            causes.push(Cause::duplicate(field, name));
        }
    }
    if !gates.is_empty() && !text_at(spec, "/nodeName").is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        causes.push(Cause::forbidden("spec.nodeName", detail));
    }
}

/// Validates the template of a workload.
pub(super) fn check_template(template: &Value, path: &str, causes: &mut Causes) {
    // The real server's path does not contain `metadata`.
    let metadata = &template["metadata"];
    super::metadata::labels(&metadata["labels"], &join(path, "labels"), causes);
    let at = join(path, "annotations");
    super::metadata::annotations(&metadata["annotations"], &at, causes);
    check_spec(&template["spec"], &join(path, "spec"), causes);
}

fn check_spec(spec: &Value, path: &str, causes: &mut Causes) {
    let volumes = volume::check_all(spec, &join(path, "volumes"), causes);
    let containers = array_at(spec, "/containers");
    let field = join(path, "containers");
    if containers.is_empty() {
        causes.push(Cause::required(&field, ""));
    }
    container::check_list(containers, &field, &volumes, causes);
    let init = array_at(spec, "/initContainers");
    let field = join(path, "initContainers");
    container::check_list(init, &field, &volumes, causes);
    let others = containers.iter().map(|container| text_at(container, "/name")).collect();
    container::check_init(init, &field, others, causes);
    rules::check("PodSpecTail", spec, path, causes);
}

pub(super) fn deadline(seconds: &Value, field: &str, causes: &mut Causes) {
    let seconds = seconds.as_i64().unwrap_or_default();
    if !(1..=i64::from(i32::MAX)).contains(&seconds) {
        let detail = "must be between 1 and 2147483647, inclusive";
        causes.push(Cause::invalid_raw(field, &seconds, detail));
    }
}

/// A requirement of a label selector.
pub(super) fn requirement(requirement: &Value, path: &str, causes: &mut Causes) {
    let n_values = array_at(requirement, "/values").len();
    let values = join(path, "values");
    match text_at(requirement, "/operator") {
        "In" | "NotIn" if n_values == 0 => causes.push(Cause::required(values, MUST_HAVE_VALUES)),
        "Exists" | "DoesNotExist" if n_values > 0 => {
            causes.push(Cause::forbidden(values, MUST_NOT_HAVE_VALUES));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        operator => causes.push(Cause::invalid(join(path, "operator"), operator, NO_OPERATOR)),
    }
}

/// A requirement on a node's labels, with the operators Gt and Lt.
pub(super) fn node_requirement(of: &Value, path: &str, causes: &mut Causes) {
    if !matches!(text_at(of, "/operator"), "Gt" | "Lt") {
        requirement(of, path, causes);
    } else if array_at(of, "/values").len() != 1 {
        let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
        causes.push(Cause::required(join(path, "values"), detail));
    }
}

pub(super) fn toleration(toleration: &Value, path: &str, causes: &mut Causes) {
    let text = |field: &str| text_at(toleration, &format!("/{field}"));
    let (key, operator, value, effect) =
        (text("key"), text("operator"), text("value"), text("effect"));
    let field = join(path, "operator");
    let seconds = toleration.get("tolerationSeconds");
    if key.is_empty() && operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values \
                      and all keys\"";
        causes.push(Cause::invalid(&field, operator, detail));
    }
    if seconds.is_some() && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        causes.push(Cause::invalid(join(path, "effect"), effect, detail));
    }
    match operator {
        "" | "Equal" => {
            let wrong = names::label_value(value);
            if !wrong.is_empty() {
                causes.push(Cause::invalid(&field, value, &wrong.join(";")));
            }
        }
        "Exists" if value.is_empty() => {}
        "Exists" => {
            let detail = "value must be empty when `operator` is 'Exists'";
            causes.push(Cause::invalid(&field, value, detail));
        }
        // Their feature gate is off, but the message names them.
        "Gt" | "Lt" => {
            let known = ["Equal", "Exists", "Lt", "Gt"];
            causes.push(Cause::not_supported(&field, operator, &known));
        }
        other => causes.push(Cause::not_supported(&field, other, &["Equal", "Exists"])),
    }
}

/// In a pod's spec only images, the deadline (downwards) and added tolerations may change.
pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Causes) {
    for list in ["containers", "initContainers"] {
        let of = |pod| array_at(pod, &format!("/spec/{list}"));
        if of(old).len() != of(new).len() {
            let detail = "pod updates may not add or remove containers";
            causes.push(Cause::forbidden(format!("spec.{list}"), detail));
            return;
        }
        for (i, container) in of(new).iter().enumerate() {
            let field = format!("spec.{list}[{i}].image");
            let image = text_at(container, "/image");
            if image.is_empty() {
                causes.push(Cause::required(field, ""));
            } else if image.trim() != image {
                let detail = "must not have leading or trailing whitespace";
                causes.push(Cause::invalid(field, image, detail));
            }
        }
    }
    let deadline = |pod: &Value| pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64);
    match (deadline(old), deadline(new)) {
        (Some(_), None) => {
            let detail = "must not update from a positive integer to nil value";
            causes.push(Cause::invalid_raw(DEADLINE, &"null", detail));
        }
        (_, Some(is)) if !(0..=i64::from(i32::MAX)).contains(&is) => {
            let detail = "must be between 0 and 2147483647, inclusive";
            causes.push(Cause::invalid_raw(DEADLINE, &is, detail));
            return;
        }
        (Some(was), Some(is)) if is > was => {
            let detail = "must be less than or equal to previous value";
            causes.push(Cause::invalid_raw(DEADLINE, &is, detail));
            return;
        }
        (Some(_) | None, Some(_)) | (None, None) => {}
    }
    tolerations_kept(old, new, causes);
    let gates = |pod| array_at(pod, "/spec/schedulingGates");
    if let Some(gate) = gates(new).iter().find(|gate| !gates(old).contains(gate)) {
        let detail = format!(
            "only deletion is allowed, but found new scheduling gate '{}'",
            text_at(gate, "/name")
        );
        causes.push(Cause::forbidden("spec.schedulingGates", &detail));
    }
    if frozen(old) != frozen(new) {
        let detail = "pod updates may not change fields other than \
                      `spec.containers[*].image`,`spec.initContainers[*].image`,\
                      `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
                      tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 \
                      if it was previously negative)";
        causes.push(Cause::forbidden("spec", detail));
    }
}

/// Old tolerations must stay, but their seconds may change.
fn tolerations_kept(old: &Value, new: &Value, causes: &mut Causes) {
    let all = |pod: &Value| -> Vec<Value> {
        let mut list = array_at(pod, "/spec/tolerations").to_vec();
        for fields in list.iter_mut().filter_map(Value::as_object_mut) {
            fields.remove("tolerationSeconds");
        }
        list
    };
    let (old, kept) = (all(old), all(new));
    let field = "spec.tolerations";
    if old.iter().all(|toleration| kept.contains(toleration)) {
        for (i, one) in array_at(new, "/spec/tolerations").iter().enumerate() {
            rules::check("Toleration", one, &format!("{field}[{i}]"), causes);
        }
    } else {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        causes.push(Cause::forbidden(field, detail));
    }
}

/// The spec without the mutable fields.
fn frozen(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("activeDeadlineSeconds");
        fields.remove("schedulingGates");
        fields.remove("tolerations");
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(fields) = container.as_object_mut() {
                fields.remove("image");
            }
        }
    }
    spec
}
