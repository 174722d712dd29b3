//! Validates resource amounts: of containers, nodes and quotas.

use serde_json::{Map, Value};

use super::{Causes, join, push_invalid};
use crate::apiserver::defaults::requests_of_containers;
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::array_at;
use posse_encoding::quantity::Quantity;

const CONTAINER: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];
/// A quota counts objects of these kinds, in integers.
const COUNTED: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
const QUOTA: [&str; 8] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "",
];

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Huge pages and extended resources cannot be overcommitted.
fn may_overcommit(name: &str) -> bool {
    is_native(name) && !name.starts_with("hugepages-")
}

fn is_quota(name: &str) -> bool {
    CONTAINER.contains(&name)
        || COUNTED.contains(&name)
        || QUOTA.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// A resource name that is valid in any list.
fn resource_name(name: &str, field: &str, causes: &mut Causes) {
    let wrong = names::qualified_name(name);
    if wrong.is_empty() && !name.contains('/') && name != "storage" && !is_quota(name) {
        let detail = "must be a standard resource type or fully qualified";
        causes.push(Cause::invalid(field, name, detail));
    }
    push_invalid(causes, field, name, wrong);
}

fn container_name(name: &str, field: &str, causes: &mut Causes) {
    resource_name(name, field, causes);
    if !name.contains('/') {
        if !CONTAINER.contains(&name) && !name.starts_with("hugepages-") {
            let detail = "must be a standard resource for containers";
            causes.push(Cause::invalid(field, name, detail));
        }
    } else if !is_native(name) && !is_extended(name) {
        let detail = "doesn't follow extended resource name standard";
        causes.push(Cause::invalid(field, name, detail));
    }
}

/// An amount must not be negative; of some resources it must be an integer.
pub(super) fn amount(name: &str, amount: &Value, field: &str, causes: &mut Causes) {
    let Some(quantity) = Quantity::of(amount) else { return };
    if quantity.is_negative() {
        let detail = "must be greater than or equal to 0";
        causes.push(Cause::invalid(field, &quantity.canonical(), detail));
    }
    if (COUNTED.contains(&name) || is_extended(name)) && !quantity.is_whole() {
        causes.push(Cause::invalid(field, &quantity.canonical(), "must be an integer"));
    }
}

fn members<'a>(of: &'a Value, list: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    of.get(list).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

/// The amounts of a pod's overhead.
pub(super) fn list(list: &Value, path: &str, causes: &mut Causes) {
    for (name, quantity) in list.as_object().into_iter().flat_map(Map::iter) {
        let field = format!("{path}[{name}]");
        container_name(name, &field, causes);
        amount(name, quantity, &field, causes);
    }
}

/// The requests and limits of a container.
pub(super) fn requirements(resources: &Value, path: &str, causes: &mut Causes) {
    list(&resources["limits"], &join(path, "limits"), causes);
    let requests = join(path, "requests");
    for (name, quantity) in members(resources, "requests") {
        let field = format!("{requests}[{name}]");
        container_name(name, &field, causes);
        amount(name, quantity, &field, causes);
        let shared = may_overcommit(name);
        let limit = resources.get("limits").and_then(|limits| limits.get(name));
        match (limit.and_then(Quantity::of), Quantity::of(quantity)) {
            (Some(limit), Some(request)) => {
                let over = request.exceeds(limit);
                let of = format!("{name} limit of {}", limit.canonical());
                let detail = match over || limit.exceeds(request) {
                    true if !shared => format!("must be equal to {of}"),
                    true if over => format!("must be less than or equal to {of}"),
                    true | false => continue,
                };
                causes.push(Cause::invalid(&requests, &request.canonical(), &detail));
            }
            (None, _) if !shared => {
                let detail = "Limit must be set for non overcommitable resources";
                causes.push(Cause::required(join(path, "limits"), detail));
            }
            (Some(_) | None, _) => {}
        }
    }
    let has = |what: fn(&str) -> bool| {
        ["limits", "requests"]
            .iter()
            .any(|list| members(resources, list).any(|(name, _)| what(name)))
    };
    if has(|name| name.starts_with("hugepages-")) && !has(|name| matches!(name, "cpu" | "memory")) {
        causes.push(Cause::forbidden(path, "HugePages require cpu or memory"));
    }
}

/// The resources of a whole pod (KEP-2837): of three kinds, and not less than its containers need.
pub(super) fn of_pod(pod: &Value, causes: &mut Causes) {
    const KINDS: [&str; 3] = ["cpu", "hugepages-", "memory"];
    const FIELD: &str = "spec.resources";
    let Some(own) = pod.pointer("/spec/resources") else { return };
    let mut wrong = Causes::new();
    for list in ["limits", "requests"] {
        for (name, _) in members(own, list) {
            let is_known = matches!(name.as_str(), "cpu" | "memory") || name.starts_with(KINDS[1]);
            if !is_known {
                let field = format!("{FIELD}.{list}[{name}]");
                wrong.push(Cause::not_supported(field, name, &KINDS));
            }
        }
    }
    if !wrong.is_empty() {
        causes.append(&mut wrong);
        return;
    }
    requirements(own, FIELD, causes);
    for (name, sum) in requests_of_containers(pod).0 {
        let own = Quantity::of(&own["requests"][&name]);
        if let Some(own) = own.filter(|own| sum.exceeds(*own)) {
            let field = format!("{FIELD}.requests[{name}]");
            let sum = sum.canonical();
            let detail =
                format!("must be greater than or equal to aggregate container requests of {sum}");
            causes.push(Cause::invalid(field, &own.canonical(), &detail));
        }
    }
    for (i, container) in array_at(pod, "/spec/containers").iter().enumerate() {
        for (name, limit) in members(&container["resources"], "limits") {
            let own = Quantity::of(&own["limits"][name]);
            let over = Quantity::of(limit).zip(own).filter(|(limit, own)| limit.exceeds(*own));
            if let Some((limit, own)) = over {
                let field = format!("{FIELD}.containers[{i}][{name}].limits");
                let detail =
                    format!("must be less than or equal to pod limits of {}", own.canonical());
                causes.push(Cause::invalid(field, &limit.canonical(), &detail));
            }
        }
    }
}

fn quota_amounts(of: &Value, list: &str, path: &str, causes: &mut Causes) {
    for (name, quantity) in members(of, list) {
        let field = format!("{path}.{list}[{name}]");
        resource_name(name, &field, causes);
        if !name.contains('/') && !is_quota(name) {
            causes.push(Cause::invalid(&field, name, "must be a standard resource for quota"));
        }
        amount(name, quantity, &field, causes);
    }
}

/// The spec of a ResourceQuota.
pub(super) fn quota(spec: &Value, causes: &mut Causes) {
    quota_amounts(spec, "hard", "spec", causes);
    for field in ["scopes", "scopeSelector"] {
        if spec.get(field).is_some() {
            let detail = "quotas of the embedded cluster count all pods and have no scopes";
            causes.push(Cause::forbidden(join("spec", field), detail));
        }
    }
}

/// The status of a ResourceQuota.
pub(super) fn quota_status(status: &Value, causes: &mut Causes) {
    quota_amounts(status, "hard", "status", causes);
    quota_amounts(status, "used", "status", causes);
}
