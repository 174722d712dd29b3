//! Validates the resource amounts of containers.

use serde_json::{Map, Value};

use super::{Causes, join, push_invalid};
use crate::schema::names;
use crate::schema::status::Cause;
use posse_encoding::quantity::Quantity;

const CONTAINER: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

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

fn container_name(name: &str, field: &str, causes: &mut Causes) {
    let wrong = names::qualified_name(name);
    if !name.contains('/') {
        let is_known = CONTAINER.contains(&name) || name.starts_with("hugepages-");
        if !is_known && wrong.is_empty() {
            let detail = "must be a standard resource type or fully qualified";
            causes.push(Cause::invalid(field, name, detail));
        }
        push_invalid(causes, field, name, wrong);
        if !is_known {
            let detail = "must be a standard resource for containers";
            causes.push(Cause::invalid(field, name, detail));
        }
    } else if !is_native(name) && !is_extended(name) {
        let detail = "doesn't follow extended resource name standard";
        causes.push(Cause::invalid(field, name, detail));
    }
}

/// An amount must not be negative; of some resources it must be an integer.
fn amount(name: &str, amount: &Value, field: &str, causes: &mut Causes) {
    let Some(quantity) = Quantity::of(amount) else { return };
    if quantity.is_negative() {
        let detail = "must be greater than or equal to 0";
        causes.push(Cause::invalid(field, &quantity.canonical(), detail));
    }
    if is_extended(name) && !quantity.is_whole() {
        causes.push(Cause::invalid(field, &quantity.canonical(), "must be an integer"));
    }
}

fn members<'a>(of: &'a Value, list: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    of.get(list).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

/// The limits of a container.
fn list(list: &Value, path: &str, causes: &mut Causes) {
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
