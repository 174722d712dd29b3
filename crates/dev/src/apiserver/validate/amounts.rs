//! Validates the resource amounts of containers.

use serde_json::Value;

use super::{Causes, join, members};
use crate::schema::status::Cause;
use posse_encoding::quantity::Quantity;

/// Extended resources, such as GPUs, cannot be overcommitted.
fn may_overcommit(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn amount(amount: &Value, field: &str, causes: &mut Causes) {
    if let Some(negative) = Quantity::of(amount).filter(|amount| amount.is_negative()) {
        let detail = "must be greater than or equal to 0";
        causes.push(Cause::invalid(field, &negative.canonical(), detail));
    }
}

/// The requests and limits of a container.
pub(super) fn requirements(resources: &Value, path: &str, causes: &mut Causes) {
    for (name, quantity) in members(resources, "limits") {
        amount(quantity, &format!("{path}.limits[{name}]"), causes);
    }
    let requests = join(path, "requests");
    for (name, quantity) in members(resources, "requests") {
        amount(quantity, &format!("{requests}[{name}]"), causes);
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
}
