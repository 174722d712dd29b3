//! Owns the checks of a pod's spec, and of what may change in it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{container, push_invalid};
use crate::dev::names;
use crate::dev::object::{array_at, text_at};
use crate::dev::refused::{Cause, go_quoted};

const DEADLINE: &str = "spec.activeDeadlineSeconds";

pub(super) fn check(pod: &Value, causes: &mut Vec<Cause>) {
    let volumes = volumes(pod, causes);
    let mut taken = BTreeSet::new();
    let containers = array_at(pod, "/spec/containers");
    if containers.is_empty() {
        causes.push(Cause::required("spec.containers", ""));
    }
    container::check_list(containers, "spec.containers", &volumes, &mut taken, causes);
    let init = array_at(pod, "/spec/initContainers");
    container::check_list(init, "spec.initContainers", &volumes, &mut taken, causes);
    policies(pod, causes);
    node_selector(pod, causes);
    named_fields(pod, causes);
    for (i, toleration) in array_at(pod, "/spec/tolerations").iter().enumerate() {
        check_toleration(toleration, &format!("spec.tolerations[{i}]"), causes);
    }
}

fn volumes<'a>(pod: &'a Value, causes: &mut Vec<Cause>) -> BTreeSet<&'a str> {
    let mut taken = BTreeSet::new();
    for (i, volume) in array_at(pod, "/spec/volumes").iter().enumerate() {
        let field = format!("spec.volumes[{i}].name");
        let name = text_at(volume, "/name");
        if name.is_empty() {
            causes.push(Cause::required(field, ""));
            continue;
        }
        let wrong = names::dns_label(name);
        if wrong.is_empty() && !taken.insert(name) {
            causes.push(Cause::duplicate(field, name));
        } else {
            push_invalid(causes, &field, name, wrong);
        }
    }
    taken
}

fn policies(pod: &Value, causes: &mut Vec<Cause>) {
    let restart = text_at(pod, "/spec/restartPolicy");
    let known = ["Always", "OnFailure", "Never"];
    if !known.contains(&restart) {
        causes.push(Cause::not_supported("spec.restartPolicy", restart, &known));
    }
    let dns = text_at(pod, "/spec/dnsPolicy");
    let known = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    if !known.contains(&dns) {
        causes.push(Cause::not_supported("spec.dnsPolicy", dns, &known));
    }
    if dns == "None" && pod.pointer("/spec/dnsConfig").is_none() {
        let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
        causes.push(Cause::required("spec.dnsConfig", detail));
    }
}

fn node_selector(pod: &Value, causes: &mut Vec<Cause>) {
    let selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
    for (key, value) in selector.into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        push_invalid(causes, "spec.nodeSelector", key, names::qualified_name(key));
        push_invalid(causes, "spec.nodeSelector", value, names::label_value(value));
    }
}

fn named_fields(pod: &Value, causes: &mut Vec<Cause>) {
    let mut named = |field: &str, rule: fn(&str) -> Vec<String>| {
        let text = text_at(pod, &format!("/spec/{field}"));
        if !text.is_empty() {
            push_invalid(causes, &format!("spec.{field}"), text, rule(text));
        }
    };
    named("serviceAccountName", names::dns_subdomain);
    named("nodeName", names::dns_subdomain);
    named("hostname", names::dns_label);
    named("subdomain", names::dns_label);
    if let Some(seconds) = deadline(pod)
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let detail = "must be between 1 and 2147483647, inclusive";
        causes.push(Cause::invalid_raw(DEADLINE, &seconds, detail));
    }
}

fn deadline(pod: &Value) -> Option<i64> {
    pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64)
}

fn check_toleration(toleration: &Value, path: &str, causes: &mut Vec<Cause>) {
    let text = |field: &str| text_at(toleration, &format!("/{field}"));
    let (key, operator, value, effect) =
        (text("key"), text("operator"), text("value"), text("effect"));
    let field = format!("{path}.operator");
    if !key.is_empty() {
        push_invalid(causes, &format!("{path}.key"), key, names::qualified_name(key));
    } else if operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all \
             keys\"";
        causes.push(Cause::invalid(&field, operator, detail));
    }
    match operator {
        "" | "Equal" => {
            push_invalid(causes, &field, value, names::label_value(value));
        }
        "Exists" if value.is_empty() => {}
        "Exists" => {
            let shown = format!(
                "core.Toleration{{Key:{}, Operator:\"Exists\", Value:{}, Effect:{}, \
                 TolerationSeconds:(*int64)(nil)}}",
                go_quoted(key),
                go_quoted(value),
                go_quoted(effect)
            );
            let detail = "value must be empty when `operator` is 'Exists'";
            causes.push(Cause::invalid_raw(&field, &shown, detail));
        }
        other => causes.push(Cause::not_supported(&field, other, &["Equal", "Exists"])),
    }
    let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if !effect.is_empty() && !known.contains(&effect) {
        causes.push(Cause::not_supported(format!("{path}.effect"), effect, &known));
    }
}

/// Of a pod's spec only images, the deadline (downwards) and more tolerations may change.
pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    match (deadline(old), deadline(new)) {
        (Some(_), None) => {
            let detail = "must not update from a positive integer to nil value";
            causes.push(Cause::invalid(DEADLINE, "null", detail));
            return;
        }
        (Some(was), Some(is)) if is > was => {
            let detail = format!("must be less than or equal to previous value '{was}'");
            causes.push(Cause::invalid_raw(DEADLINE, &is, &detail));
            return;
        }
        (Some(_) | None, Some(_)) | (None, None) => {}
    }
    let kept = array_at(old, "/spec/tolerations")
        .iter()
        .all(|toleration| array_at(new, "/spec/tolerations").contains(toleration));
    let gates = |pod| array_at(pod, "/spec/schedulingGates");
    if let Some(gate) = gates(new).iter().find(|gate| !gates(old).contains(gate)) {
        let detail = format!(
            "only deletion is allowed, but found new scheduling gate '{}'",
            text_at(gate, "/name")
        );
        causes.push(Cause::forbidden("spec.schedulingGates", &detail));
    }
    if !kept || frozen(old) != frozen(new) {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`, \
                      `spec.initContainers[*].image`, `spec.activeDeadlineSeconds` or \
                      `spec.tolerations` (only additions to existing tolerations)";
        causes.push(Cause::forbidden("spec", detail));
    }
}

/// The spec without what may change.
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
