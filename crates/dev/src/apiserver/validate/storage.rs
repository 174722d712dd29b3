//! Validates claims, config maps and secrets.

use serde_json::Value;

use super::{Causes, members, push_invalid};
use crate::schema::base64;
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::array_at;
use posse_encoding::quantity::Quantity;

const DATA_BYTES_MAX: usize = 1 << 20;

/// The access modes and the size that a claim requests.
pub(super) fn claim(claim: &Value, causes: &mut Causes) {
    if array_at(claim, "/spec/accessModes").is_empty() {
        let detail = "at least 1 access mode is required";
        causes.push(Cause::required("spec.accessModes", detail));
    }
    let field = "spec.resources[storage]";
    match claim.pointer("/spec/resources/requests/storage").and_then(Quantity::of) {
        None => causes.push(Cause::required(field, "")),
        Some(size) if size.is_negative() || size.is_zero() => {
            causes.push(Cause::invalid(field, &size.canonical(), "must be greater than zero"));
        }
        Some(_) => {}
    }
}

fn decoded_bytes(value: &Value) -> usize {
    base64::decode(value.as_str().unwrap_or_default()).map_or(0, |bytes| bytes.len())
}

/// The data of a ConfigMap.
pub(super) fn config_map(map: &Value, causes: &mut Causes) {
    let mut n_bytes = 0;
    for (key, value) in members(map, "data") {
        push_invalid(causes, &format!("data[{key}]"), key, names::config_key(key));
        n_bytes += value.as_str().unwrap_or_default().len();
    }
    for (key, value) in members(map, "binaryData") {
        push_invalid(causes, &format!("binaryData[{key}]"), key, names::config_key(key));
        n_bytes += decoded_bytes(value);
    }
    if n_bytes > DATA_BYTES_MAX {
        causes.push(Cause::too_long("[]", DATA_BYTES_MAX));
    }
}

/// The data of a Secret.
pub(super) fn secret(secret: &Value, causes: &mut Causes) {
    let mut n_bytes = 0;
    for (key, value) in members(secret, "data") {
        push_invalid(causes, &format!("data[{key}]"), key, names::config_key(key));
        n_bytes += decoded_bytes(value);
    }
    if n_bytes > DATA_BYTES_MAX {
        causes.push(Cause::too_long("data", DATA_BYTES_MAX));
    }
}
