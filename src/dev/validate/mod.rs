//! Owns what may be stored: the checks of metadata, pods and leases, in the real server's order and
//! words. Takes objects whose fields have the right types; changes nothing.

mod container;
mod lease;
mod metadata;
mod pod;

pub(crate) use container::subscript;

use serde_json::Value;

use crate::dev::kind::Kind;
use crate::dev::refused::Cause;

/// Everything that is wrong with a new object.
pub(crate) fn create(kind: Kind, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    metadata::check(kind, value, &mut causes);
    if kind == Kind::Lease {
        lease::check(value, &mut causes);
    } else if kind == Kind::Pod {
        pod::check(value, &mut causes);
    }
    causes
}

/// Everything that is wrong with a change from `old` to `new`.
pub(crate) fn update(kind: Kind, old: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = create(kind, new);
    metadata::check_update(old, new, &mut causes);
    if kind == Kind::Pod && causes.is_empty() {
        pod::check_update(old, new, &mut causes);
    }
    causes
}

/// `path.name`, or `name` where there is no path.
fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Adds one `Invalid value` for each thing that is wrong with a text.
fn push_invalid(causes: &mut Vec<Cause>, field: &str, value: &str, wrong: Vec<String>) {
    causes.extend(wrong.into_iter().map(|wrong| Cause::invalid(field, value, &wrong)));
}
