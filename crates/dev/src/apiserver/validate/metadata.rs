//! Validates metadata, which all objects have.

use serde_json::Value;

use super::{Causes, NameRule, push_invalid};
use crate::schema::kind::Kind;
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::text_at;

pub(super) fn check(kind: Kind, value: &Value, rule: NameRule, causes: &mut Causes) {
    let name = text_at(value, "/metadata/name");
    if name.is_empty() {
        let detail = "name or generateName is required";
        causes.push(Cause::required("metadata.name", detail));
    } else {
        push_invalid(causes, "metadata.name", name, rule(name));
    }
    if kind.is_namespaced() {
        let namespace = text_at(value, "/metadata/namespace");
        push_invalid(causes, "metadata.namespace", namespace, names::dns_label(namespace));
    }
    labels(&value["metadata"]["labels"], "metadata.labels", causes);
    annotations(&value["metadata"]["annotations"], "metadata.annotations", causes);
}

pub(super) fn labels(labels: &Value, field: &str, causes: &mut Causes) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        push_invalid(causes, field, key, names::qualified_name(key));
        push_invalid(causes, field, value, names::label_value(value));
    }
}

pub(super) fn annotations(annotations: &Value, field: &str, causes: &mut Causes) {
    const BYTES_MAX: usize = 256 << 10;
    let mut n_bytes = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        push_invalid(causes, field, key, names::qualified_name(&key.to_lowercase()));
        n_bytes += key.len() + value.as_str().unwrap_or_default().len();
    }
    if n_bytes > BYTES_MAX {
        causes.push(Cause::too_long(field, BYTES_MAX));
    }
}

pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Causes) {
    let uid = text_at(new, "/metadata/uid");
    if uid != text_at(old, "/metadata/uid") {
        causes.push(Cause::invalid("metadata.uid", uid, "field is immutable"));
    }
}
