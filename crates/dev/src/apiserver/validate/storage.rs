//! Validates claims, config maps and secrets.

use serde_json::Value;

use super::{Causes, push_invalid};
use crate::schema::base64;
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::text_at;
use posse_encoding::quantity::Quantity;

const DATA_BYTES_MAX: usize = 1 << 20;
const IMMUTABLE: &str = "field is immutable when `immutable` is set";

/// The size that a claim requests.
pub(super) fn requested(resources: &Value, path: &str, causes: &mut Causes) {
    let field = format!("{path}[storage]");
    match resources.pointer("/requests/storage").and_then(Quantity::of) {
        None => causes.push(Cause::required(field, "")),
        Some(size) if size.is_negative() || size.is_zero() => {
            causes.push(Cause::invalid(field, &size.canonical(), "must be greater than zero"));
        }
        Some(_) => {}
    }
}

fn members<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    of.get(name).and_then(Value::as_object).into_iter().flatten()
}

fn decoded_bytes(value: &Value) -> usize {
    base64::decode(value.as_str().unwrap_or_default()).map_or(0, |bytes| bytes.len())
}

/// The data of a ConfigMap.
pub(super) fn config_map(map: &Value, causes: &mut Causes) {
    let mut n_bytes = 0;
    for (key, value) in members(map, "data") {
        let field = format!("data[{key}]");
        push_invalid(causes, &field, key, names::config_key(key));
        if map.pointer("/binaryData").is_some_and(|data| data.get(key).is_some()) {
            let detail = "duplicate of key present in binaryData";
            causes.push(Cause::invalid(field, key, detail));
        }
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

/// The data of an immutable object must not change.
pub(super) fn data_update(old: &Value, new: &Value, causes: &mut Causes) {
    let is_set = |of: &Value| of.get("immutable") == Some(&Value::Bool(true));
    if !is_set(old) {
        return;
    }
    if !is_set(new) {
        causes.push(Cause::forbidden("immutable", IMMUTABLE));
    }
    for field in ["data", "binaryData"] {
        if old.get(field) != new.get(field) {
            causes.push(Cause::forbidden(field, IMMUTABLE));
        }
    }
}

pub(super) fn secret_update(old: &Value, new: &Value, causes: &mut Causes) {
    if old["type"] != new["type"] {
        let kind = text_at(new, "/type");
        causes.push(Cause::invalid("type", kind, "field is immutable"));
    }
    data_update(old, new, causes);
}
