//! Validates nodes, roles and bindings, disruption budgets, events, leases and namespaces.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, amounts, join, push_invalid, rules};
use crate::schema::names;
use crate::schema::status::{Cause, go_quoted};
use crate::storage::object::{array_at, text_at};

const RBAC: &str = "rbac.authorization.k8s.io";

/// The spec and the amounts of a Node.
pub(super) fn node(node: &Value, causes: &mut Causes) {
    taints(node, causes);
    node_amounts(node, causes);
}

pub(super) fn node_amounts(node: &Value, causes: &mut Causes) {
    for list in ["capacity", "allocatable"] {
        let path = format!("status.{list}");
        let members = node.pointer(&format!("/status/{list}")).and_then(Value::as_object);
        for (name, amount) in members.into_iter().flatten() {
            amounts::amount(name, amount, &join(&path, name), causes);
        }
    }
}

fn taints(node: &Value, causes: &mut Causes) {
    let mut taken = BTreeSet::new();
    for (i, taint) in array_at(node, "/spec/taints").iter().enumerate() {
        // The path of the real server's message is below metadata too.
        let path = format!("metadata.taints[{i}]");
        rules::check("Taint", taint, &path, causes);
        let (key, effect) = (text_at(taint, "/key"), text_at(taint, "/effect"));
        if !taken.insert((key, effect)) {
            // In the order of Go's fields.
            let shown = format!(
                "{{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":null}}",
                go_quoted(key),
                go_quoted(text_at(taint, "/value")),
                go_quoted(effect)
            );
            let mut cause = Cause::duplicate(path, "");
            let detail = "taints must be unique by key and effect pair";
            cause.message = format!("Duplicate value: {shown}: {detail}");
            causes.push(cause);
        }
    }
}

/// In a node's spec only taints and `unschedulable` may change, and the pod CIDR and provider id
/// may be set once.
pub(super) fn node_update(old: &Value, new: &Value, causes: &mut Causes) {
    let set_once = |field: &str, shown: &str, causes: &mut Causes| {
        let of = |node: &Value| node.pointer(&format!("/spec/{field}")).cloned();
        if of(old).is_some() && of(old) != of(new) {
            let detail = format!("node updates may not change {shown} except from \"\" to valid");
            causes.push(Cause::forbidden(format!("spec.{field}"), &detail));
        }
    };
    node_amounts(new, causes);
    set_once("podCIDRs", "podCIDR", causes);
    set_once("providerID", "providerID", causes);
    taints(new, causes);
    let frozen = |node: &Value| {
        let mut spec = node["spec"].clone();
        if let Some(fields) = spec.as_object_mut() {
            for field in ["configSource", "taints", "unschedulable"] {
                fields.remove(field);
            }
            for field in ["podCIDR", "podCIDRs", "providerID"] {
                if old.pointer(&format!("/spec/{field}")).is_none() {
                    fields.remove(field);
                }
            }
        }
        spec
    };
    if causes.is_empty() && frozen(old) != frozen(new) {
        let detail = "node updates may only change labels, taints, or capacity";
        causes.push(Cause::forbidden("spec", detail));
    }
}

/// The rules of a Role or ClusterRole; the path in messages depends on which.
pub(super) fn rules_of_role(role: &Value, namespaced: bool, causes: &mut Causes) {
    for (i, rule) in array_at(role, "/rules").iter().enumerate() {
        let path = format!("rules[{i}]");
        let urls = array_at(rule, "/nonResourceURLs");
        if namespaced && !urls.is_empty() {
            if array_at(rule, "/verbs").is_empty() {
                let detail = "verbs must contain at least one value";
                causes.push(Cause::required(join(&path, "verbs"), detail));
            }
            let detail = "namespaced rules cannot apply to non-resource URLs";
            let field = join(&path, "nonResourceURLs");
            causes.push(Cause::invalid_raw(field, &super::shown(urls), detail));
            policy_rule(rule, &path, causes);
        } else {
            rules::check("PolicyRule", rule, &path, causes);
        }
    }
}

pub(super) fn policy_rule(rule: &Value, path: &str, causes: &mut Causes) {
    let given = |field: &str| !array_at(rule, &format!("/{field}")).is_empty();
    let urls = array_at(rule, "/nonResourceURLs");
    if !urls.is_empty() {
        if given("apiGroups") || given("resources") || given("resourceNames") {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            let field = join(path, "nonResourceURLs");
            causes.push(Cause::invalid_raw(field, &super::shown(urls), detail));
        }
        return;
    }
    for (field, detail) in [
        ("apiGroups", "resource rules must supply at least one api group"),
        ("resources", "resource rules must supply at least one resource"),
    ] {
        if !given(field) {
            causes.push(Cause::required(join(path, field), detail));
        }
    }
}

/// A binding. A ClusterRoleBinding may only refer to ClusterRoles.
pub(super) fn binding(binding: &Value, namespaced: bool, causes: &mut Causes) {
    let of = if namespaced { "RoleRef" } else { "ClusterRoleRef" };
    rules::check(of, &binding["roleRef"], "roleRef", causes);
    for (i, subject) in array_at(binding, "/subjects").iter().enumerate() {
        let path = format!("subjects[{i}]");
        rules::check("Subject", subject, &path, causes);
        let account = text_at(subject, "/kind") == "ServiceAccount";
        if !namespaced && account && text_at(subject, "/namespace").is_empty() {
            causes.push(Cause::required(join(&path, "namespace"), ""));
        }
    }
}

pub(super) fn subject(subject: &Value, path: &str, causes: &mut Causes) {
    let (kind, name) = (text_at(subject, "/kind"), text_at(subject, "/name"));
    let group = text_at(subject, "/apiGroup");
    let field = join(path, "apiGroup");
    match kind {
        "ServiceAccount" => {
            if !name.is_empty() {
                push_invalid(causes, &join(path, "name"), name, names::dns_subdomain(name));
            }
            if !group.is_empty() {
                causes.push(Cause::not_supported(field, group, &[""]));
            }
        }
        "User" | "Group" if group != RBAC => {
            causes.push(Cause::not_supported(field, group, &[RBAC]));
        }
        "User" | "Group" => {}
        kind => {
            let known = ["ServiceAccount", "User", "Group"];
            causes.push(Cause::not_supported(join(path, "kind"), kind, &known));
        }
    }
}

pub(super) fn binding_update(old: &Value, new: &Value, causes: &mut Causes) {
    if old["roleRef"] == new["roleRef"] {
        return;
    }
    let text = |field: &str| text_at(new, &format!("/roleRef/{field}"));
    let shown = serde_json::json!({
        "APIGroup": text("apiGroup"), "Kind": text("kind"), "Name": text("name"),
    });
    causes.push(Cause::invalid_raw("roleRef", &shown, "cannot change roleRef"));
}

/// A budget has one of two bounds, each a number or a percentage.
pub(super) fn budget(spec: &Value, path: &str, causes: &mut Causes) {
    let fields = ["minAvailable", "maxUnavailable"];
    if fields.iter().all(|field| spec.get(field).is_some()) {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        causes.push(Cause::invalid_raw(path, spec, detail));
    }
    for field in fields {
        let at = join(path, field);
        let Some(value) = spec.get(field) else { continue };
        if let Some(number) = value.as_i64() {
            if number < 0 {
                let detail = "must be greater than or equal to 0";
                causes.push(Cause::invalid_raw(at, &number, detail));
            }
            continue;
        }
        let text = value.as_str().unwrap_or_default();
        let shown = go_quoted(text);
        let percent = text.strip_suffix('%');
        let digits = |text: &&str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        let detail = match percent.filter(digits) {
            None => {
                "a valid percent string must be a numeric string followed by an ending '%' (e.g. \
                 '1%',  or '93%', regex used for validation is '[0-9]+%')"
            }
            Some(number) if number.parse().is_ok_and(|number: u32| number <= 100) => continue,
            Some(_) => "must not be greater than 100%",
        };
        causes.push(Cause::invalid_raw(at, &shown, detail));
    }
}

/// An Event must be in the namespace of its object. `reporter` is the name of the field in messages.
pub(super) fn event(event: &Value, reporter: &str, causes: &mut Causes) {
    const CHARS_MAX: usize = 128;
    const MESSAGE_CHARS_MAX: usize = 1024;
    let namespace = text_at(event, "/metadata/namespace");
    let about = text_at(event, "/involvedObject/namespace");
    let timed = !text_at(event, "/eventTime").is_empty();
    let wrong = match about.is_empty() {
        true if timed => namespace != "kube-system",
        true => !namespace.is_empty() && namespace != "default",
        false => !timed && about != namespace,
    };
    if wrong {
        let detail = "does not match event.namespace";
        causes.push(Cause::invalid("involvedObject.namespace", about, detail));
    }
    if !timed {
        return;
    }
    let controller = text_at(event, "/reportingComponent");
    if controller.is_empty() {
        causes.push(Cause::required(reporter, ""));
    }
    push_invalid(causes, reporter, controller, names::qualified_name(controller));
    for field in ["reportingInstance", "action", "reason"] {
        let text = text_at(event, &format!("/{field}"));
        if text.is_empty() {
            causes.push(Cause::required(field, ""));
        }
        if text.len() > CHARS_MAX {
            causes.push(Cause::invalid(field, "", "can have at most 128 characters"));
        }
    }
    if text_at(event, "/message").len() > MESSAGE_CHARS_MAX {
        causes.push(Cause::invalid("message", "", "can have at most 1024 characters"));
    }
}

pub(super) fn event_series(series: &Value, path: &str, causes: &mut Causes) {
    if series["count"].as_i64().unwrap_or_default() < 2 {
        causes.push(Cause::invalid(join(path, "count"), "", "should be at least 2"));
    }
    if text_at(series, "/lastObservedTime").is_empty() {
        causes.push(Cause::required(join(path, "lastObservedTime"), ""));
    }
}

pub(super) fn event_type(of: &Value, path: &str, causes: &mut Causes) {
    let of = of.as_str().unwrap_or_default();
    if !matches!(of, "Normal" | "Warning") {
        causes.push(Cause::invalid(path, "", &format!("has invalid value: {of}")));
    }
}

/// The spec of a Lease.
pub(super) fn lease(lease: &Value, causes: &mut Causes) {
    let number = |field: &str| lease.pointer(&format!("/spec/{field}")).and_then(Value::as_i64);
    if let Some(seconds) = number("leaseDurationSeconds")
        && seconds <= 0
    {
        let field = "spec.leaseDurationSeconds";
        causes.push(Cause::invalid_raw(field, &seconds, "must be greater than 0"));
    }
    if let Some(transitions) = number("leaseTransitions")
        && transitions < 0
    {
        let field = "spec.leaseTransitions";
        let detail = "must be greater than or equal to 0";
        causes.push(Cause::invalid_raw(field, &transitions, detail));
    }
}

/// The phase of a namespace is Active until its deletion.
pub(super) fn namespace_status(namespace: &Value, causes: &mut Causes) {
    let phase = text_at(namespace, "/status/phase");
    let deleted = !text_at(namespace, "/metadata/deletionTimestamp").is_empty();
    let (only, when) = match deleted {
        true => ("Terminating", "not empty"),
        false => ("Active", "empty"),
    };
    if phase != only {
        let detail = format!("may only be '{only}' if `deletionTimestamp` is {when}");
        causes.push(Cause::invalid("status.Phase", phase, &detail));
    }
}
