//! Validates metadata, which all objects have.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, NameRule, push_invalid, shown};
use crate::schema::kind::Kind;
use crate::schema::names;
use crate::schema::status::{Cause, go_quoted};
use crate::storage::object::{array_at, text_at};

const IMMUTABLE: &str = "field is immutable";
const FINALIZERS: &str = "/metadata/finalizers";

/// All rules; Leases have no standard finalizers.
pub(super) fn check(kind: Kind, value: &Value, name: NameRule, causes: &mut Causes) {
    check_common(kind, value, name, causes);
    if kind != Kind::Lease {
        standard_finalizers(value, causes);
    }
}

pub(super) fn check_common(kind: Kind, value: &Value, rule: NameRule, causes: &mut Causes) {
    let base = text_at(value, "/metadata/generateName");
    if !base.is_empty() {
        // As the real server's maskTrailingDash: a letter replaces the dash and the character
        // before it.
        let whole = base.strip_suffix('-').filter(|base| !base.is_empty()).map(|base| {
            let kept = base.char_indices().next_back().map_or(0, |(at, _)| at);
            format!("{}a", &base[..kept])
        });
        let wrong = rule(whole.as_deref().unwrap_or(base));
        push_invalid(causes, "metadata.generateName", base, wrong);
    }
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
    owners(value, causes);
    finalizers(value, causes);
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

fn owners(value: &Value, causes: &mut Causes) {
    const FIELD: &str = "metadata.ownerReferences";
    let mut controllers: Vec<&str> = Vec::new();
    for owner in array_at(value, "/metadata/ownerReferences") {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text_at(owner, &format!("/{field}")).is_empty() {
                let detail = match field {
                    "apiVersion" => "version must not be empty",
                    _ => "must not be empty",
                };
                causes.push(Cause::invalid(format!("{FIELD}.{field}"), "", detail));
            }
        }
        if (text_at(owner, "/apiVersion"), text_at(owner, "/kind")) == ("v1", "Event") {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            causes.push(Cause::invalid_raw(FIELD, owner, detail));
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            controllers.push(text_at(owner, "/name"));
        }
    }
    if let [first, second, ..] = controllers.as_slice() {
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references \
             for {first} and {second}"
        );
        causes.push(Cause::invalid_raw(FIELD, &"[]v1.OwnerReference", &detail));
    }
}

fn finalizers(value: &Value, causes: &mut Causes) {
    let list = array_at(value, FINALIZERS);
    for finalizer in list.iter().filter_map(Value::as_str) {
        push_invalid(causes, "metadata.finalizers", finalizer, names::qualified_name(finalizer));
    }
    if list.iter().any(|f| f == "orphan") && list.iter().any(|f| f == "foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        causes.push(Cause::invalid_raw("metadata.finalizers", &shown(list), detail));
    }
}

/// A finalizer without a domain must be a standard one.
pub(super) fn standard_finalizers(value: &Value, causes: &mut Causes) {
    const STANDARD: [&str; 3] = ["foregroundDeletion", "kubernetes", "orphan"];
    for (i, finalizer) in array_at(value, FINALIZERS).iter().filter_map(Value::as_str).enumerate() {
        if !finalizer.contains('/') && !STANDARD.contains(&finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            causes.push(Cause::invalid(format!("metadata.finalizers[{i}]"), finalizer, detail));
        }
    }
}

pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Causes) {
    if !text_at(old, "/metadata/deletionTimestamp").is_empty() {
        no_new_finalizers(old, new, causes);
    }
    let uid = text_at(new, "/metadata/uid");
    if uid != text_at(old, "/metadata/uid") {
        causes.push(Cause::invalid("metadata.uid", uid, IMMUTABLE));
    }
    let moment = |of| text_at(of, "/metadata/deletionTimestamp");
    if moment(old) != moment(new) {
        causes.push(Cause::invalid("metadata.deletionTimestamp", moment(new), IMMUTABLE));
    }
    let grace = |of: &Value| of.pointer("/metadata/deletionGracePeriodSeconds").cloned();
    if grace(old) != grace(new) {
        let shown = grace(new).unwrap_or_default();
        let field = "metadata.deletionGracePeriodSeconds";
        causes.push(Cause::invalid_raw(field, &shown, IMMUTABLE));
    }
    labels(&new["metadata"]["labels"], "metadata.labels", causes);
    annotations(&new["metadata"]["annotations"], "metadata.annotations", causes);
    owners(new, causes);
}

fn no_new_finalizers(old: &Value, new: &Value, causes: &mut Causes) {
    let set = |value| -> BTreeSet<String> {
        array_at(value, "/metadata/finalizers")
            .iter()
            .filter_map(|finalizer| finalizer.as_str().map(str::to_owned))
            .collect()
    };
    let added: Vec<String> = set(new).difference(&set(old)).map(|f| go_quoted(f)).collect();
    if !added.is_empty() {
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers \
             []string{{{}}}",
            added.join(", ")
        );
        causes.push(Cause::forbidden("metadata.finalizers", &detail));
    }
}
