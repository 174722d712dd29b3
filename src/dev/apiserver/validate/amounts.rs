//! Validates resource amounts: of containers, quotas and limit ranges.

use serde_json::{Map, Value};

use super::{Causes, go_texts, join, push_invalid};
use crate::dev::schema::names;
use crate::dev::schema::status::Cause;
use crate::dev::storage::object::{array_at, text_at};
use crate::wire::quantity::Quantity;

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
const SCOPES: [&str; 5] =
    ["BestEffort", "NotBestEffort", "NotTerminating", "PriorityClass", "Terminating"];

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
        causes.push(Cause::invalid_raw(field, &quantity.go_struct(), "must be an integer"));
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
                let detail = match over || limit.exceeds(request) {
                    true if !shared => format!("must be equal to {name} limit"),
                    true if over => format!("must be less than or equal to {name} limit"),
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
    let hard: Vec<&String> = members(spec, "hard").map(|(name, _)| name).collect();
    let scopes = array_at(spec, "/scopes");
    let shown = go_scopes(scopes);
    let names: Vec<&str> = scopes.iter().filter_map(Value::as_str).collect();
    for scope in &names {
        if !SCOPES.contains(scope) {
            causes.push(Cause::invalid_raw("spec.scopes", &shown, "unsupported scope"));
        }
        for _ in hard.iter().filter(|name| is_quota(name) && !scope_takes(scope, name)) {
            let detail = "unsupported scope applied to resource";
            causes.push(Cause::invalid_raw("spec.scopes", &shown, detail));
        }
    }
    conflicting(&names, "spec.scopes", &shown, causes);
    let path = "spec.scopeSelector.matchExpressions";
    let mut selected = Vec::new();
    for requirement in array_at(spec, "/scopeSelector/matchExpressions") {
        let scope = text_at(requirement, "/scopeName");
        scope_requirement(requirement, path, causes);
        for _ in hard.iter().filter(|name| is_quota(name) && !scope_takes(scope, name)) {
            let detail = "unsupported scope applied to resource";
            causes.push(Cause::invalid_raw(path, &spec["scopeSelector"], detail));
        }
        selected.push(scope);
    }
    conflicting(&selected, path, &shown, causes);
}

fn go_scopes(scopes: &[Value]) -> String {
    go_texts(scopes).replacen("[]string", "[]core.ResourceQuotaScope", 1)
}

fn conflicting(scopes: &[&str], field: &str, shown: &str, causes: &mut Causes) {
    for pair in [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]] {
        if pair.iter().all(|scope| scopes.contains(scope)) {
            causes.push(Cause::invalid_raw(field, &shown, "conflicting scopes"));
        }
    }
}

fn scope_takes(scope: &str, resource: &str) -> bool {
    const COMPUTE: [&str; 6] =
        ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];
    let counted = resource == "pods";
    match scope {
        "BestEffort" => counted,
        scope if SCOPES.contains(&scope) => counted || COMPUTE.contains(&resource),
        _ => true,
    }
}

fn scope_requirement(requirement: &Value, path: &str, causes: &mut Causes) {
    let (scope, operator) = (text_at(requirement, "/scopeName"), text_at(requirement, "/operator"));
    if !SCOPES.contains(&scope) {
        causes.push(Cause::invalid(join(path, "scopeName"), scope, "unsupported scope"));
    } else if scope != "PriorityClass" && operator != "Exists" {
        let detail = "must be 'Exist' only operator when scope is any of \
                      ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
                      ResourceQuotaScopeBestEffort and ResourceQuotaScopeNotBestEffort";
        causes.push(Cause::invalid(join(path, "operator"), operator, detail));
    }
    let values = array_at(requirement, "/values");
    let field = join(path, "values");
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            let detail =
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
            causes.push(Cause::required(field, detail));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope \
                          selector";
            causes.push(Cause::invalid_raw(field, &go_texts(values), detail));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        operator => {
            let detail = "not a valid selector operator";
            causes.push(Cause::invalid(join(path, "operator"), operator, detail));
        }
    }
}

/// The status of a ResourceQuota.
pub(super) fn quota_status(status: &Value, causes: &mut Causes) {
    quota_amounts(status, "hard", "status", causes);
    quota_amounts(status, "used", "status", causes);
}

/// The scopes of a quota are immutable.
pub(super) fn quota_update(old: &Value, new: &Value, causes: &mut Causes) {
    let scopes = |quota: &Value| -> Vec<String> {
        let mut all: Vec<String> =
            array_at(quota, "/spec/scopes").iter().map(ToString::to_string).collect();
        all.sort();
        all.dedup();
        all
    };
    if scopes(old) != scopes(new) {
        let shown = go_scopes(array_at(new, "/spec/scopes"));
        causes.push(Cause::invalid_raw("spec.scopes", &shown, "field is immutable"));
    }
}

/// A LimitRange.
pub(super) fn limit_range(range: &Value, causes: &mut Causes) {
    let mut types = Vec::new();
    for (i, limit) in array_at(range, "/spec/limits").iter().enumerate() {
        let path = format!("spec.limits[{i}]");
        let of = text_at(limit, "/type");
        let field = join(&path, "type");
        let wrong = names::qualified_name(of);
        let standard = ["Container", "PersistentVolumeClaim", "Pod"].contains(&of);
        if wrong.is_empty() && !standard && !of.contains('/') {
            let detail = "must be a standard limit type or fully qualified";
            causes.push(Cause::invalid(&field, of, detail));
        }
        push_invalid(causes, &field, of, wrong);
        if types.contains(&of) {
            causes.push(Cause::duplicate(field, of));
        }
        types.push(of);
        limit_lists(limit, of, &path, causes);
        limit_order(limit, &path, causes);
    }
}

fn limit_lists(limit: &Value, of: &str, path: &str, causes: &mut Causes) {
    for list in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        if of == "Pod" && list.starts_with("default") {
            if members(limit, list).next().is_some() {
                let detail = "may not be specified when `type` is 'Pod'";
                causes.push(Cause::forbidden(join(path, list), detail));
            }
            continue;
        }
        if of == "PersistentVolumeClaim"
            && list == "maxLimitRequestRatio"
            && !["max", "min"]
                .iter()
                .any(|list| limit.pointer(&format!("/{list}/storage")).is_some())
        {
            let detail =
                "either minimum or maximum storage value is required, but neither was provided";
            causes.push(Cause::required(join(path, "limits"), detail));
        }
        for (name, _) in members(limit, list) {
            let field = format!("{path}.{list}[{name}]");
            match of {
                "Container" | "Pod" => container_name(name, &field, causes),
                _ => resource_name(name, &field, causes),
            }
        }
    }
}

/// The lists of one limit must be consistent.
fn limit_order(limit: &Value, path: &str, causes: &mut Causes) {
    // The reported list and its value, the other list and value, the word, and whether the first
    // must not be greater (else not less).
    const ORDER: [(&str, &str, &str, &str, &str, bool); 6] = [
        ("min", "min", "max", "min value", "max value", true),
        ("defaultRequest", "defaultRequest", "min", "min value", "default request value", false),
        ("defaultRequest", "defaultRequest", "max", "default request value", "max value", true),
        (
            "defaultRequest",
            "defaultRequest",
            "default",
            "default request value",
            "default limit value",
            true,
        ),
        ("default", "min", "default", "min value", "default value", true),
        ("default", "default", "max", "default value", "max value", true),
    ];
    let lists = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
    let mut names: Vec<&String> =
        lists.iter().flat_map(|list| members(limit, list)).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    for name in names {
        let of = |list: &str| limit.get(list).and_then(|l| l.get(name)).and_then(Quantity::of);
        for (reported, left, right, left_word, right_word, first) in ORDER {
            let (Some(l), Some(r)) = (of(left), of(right)) else { continue };
            let (low, high) = if first { (l, r) } else { (r, l) };
            if low.exceeds(high) {
                let shown = if (reported, right) == ("default", "max") { r } else { l };
                let detail = format!(
                    "{left_word} {} is greater than {right_word} {}",
                    low.canonical(),
                    high.canonical()
                );
                let field = format!("{path}.{reported}[{name}]");
                causes.push(Cause::invalid_raw(field, &shown.go_struct(), &detail));
            }
        }
        if let Some(ratio) = of("maxLimitRequestRatio")
            && Quantity::parse("1").is_some_and(|one| one.exceeds(ratio))
        {
            let detail = format!("ratio {} is less than 1", ratio.canonical());
            let field = format!("{path}.maxLimitRequestRatio[{name}]");
            causes.push(Cause::invalid_raw(field, &ratio.go_struct(), &detail));
        }
        if let (Some(ratio), Some(max), Some(min)) =
            (of("maxLimitRequestRatio"), of("max"), of("min"))
            && let (Some(value), Some(limit)) = (ratio.ratio(Quantity::whole(1)), max.ratio(min))
            && value > limit
        {
            let detail =
                format!("ratio {} is greater than max/min = {limit:.6}", ratio.canonical());
            let field = format!("{path}.maxLimitRequestRatio[{name}]");
            causes.push(Cause::invalid_raw(field, &ratio.go_struct(), &detail));
        }
        if let (Some(limit), Some(request)) = (of("default"), of("defaultRequest"))
            && !may_overcommit(name)
            && (limit.exceeds(request) || request.exceeds(limit))
        {
            let detail = format!(
                "default value {} must equal to defaultRequest value {} in {name}",
                limit.canonical(),
                request.canonical()
            );
            let field = format!("{path}.defaultRequest[{name}]");
            causes.push(Cause::invalid_raw(field, &request.go_struct(), &detail));
        }
    }
}
