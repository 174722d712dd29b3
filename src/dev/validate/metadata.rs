//! Owns the checks of metadata, which all objects share.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::push_invalid;
use crate::dev::kind::Kind;
use crate::dev::names;
use crate::dev::object::{array_at, text_at};
use crate::dev::refused::{Cause, go_quoted};

const IMMUTABLE: &str = "field is immutable";

pub(super) fn check(kind: Kind, value: &Value, causes: &mut Vec<Cause>) {
    let name = text_at(value, "/metadata/name");
    if name.is_empty() {
        let detail = "name or generateName is required";
        causes.push(Cause::required("metadata.name", detail));
    } else {
        let wrong = match kind == Kind::Namespace {
            true => names::dns_label(name),
            false => names::dns_subdomain(name),
        };
        push_invalid(causes, "metadata.name", name, wrong);
    }
    labels(value.pointer("/metadata/labels"), causes);
    for key in keys(value.pointer("/metadata/annotations")) {
        push_invalid(causes, "metadata.annotations", key, names::qualified_name(key));
    }
    owners(value, causes);
    finalizers(value, causes);
}

fn members(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

fn keys(value: Option<&Value>) -> impl Iterator<Item = &String> {
    members(value).map(|(key, _)| key)
}

fn labels(labels: Option<&Value>, causes: &mut Vec<Cause>) {
    for (key, value) in members(labels) {
        let value = value.as_str().unwrap_or_default();
        push_invalid(causes, "metadata.labels", key, names::qualified_name(key));
        push_invalid(causes, "metadata.labels", value, names::label_value(value));
    }
}

fn owners(value: &Value, causes: &mut Vec<Cause>) {
    const FIELD: &str = "metadata.ownerReferences";
    let mut controllers: Vec<&str> = Vec::new();
    for owner in array_at(value, "/metadata/ownerReferences") {
        for (field, word) in
            [("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid")]
        {
            if text_at(owner, &format!("/{field}")).is_empty() {
                let detail = format!("{word} must not be empty");
                causes.push(Cause::invalid(format!("{FIELD}.{field}"), "", &detail));
            }
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

fn finalizers(value: &Value, causes: &mut Vec<Cause>) {
    const FIELD: &str = "metadata.finalizers";
    const STANDARD: [&str; 3] = ["foregroundDeletion", "kubernetes", "orphan"];
    let finalizers =
        || array_at(value, "/metadata/finalizers").iter().map(|f| f.as_str().unwrap_or_default());
    for finalizer in finalizers() {
        push_invalid(causes, FIELD, finalizer, names::qualified_name(finalizer));
    }
    for (i, finalizer) in finalizers().enumerate() {
        if !finalizer.contains('/') && !STANDARD.contains(&finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            causes.push(Cause::invalid(format!("{FIELD}[{i}]"), finalizer, detail));
        }
    }
}

pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let uid = text_at(new, "/metadata/uid");
    if uid != text_at(old, "/metadata/uid") {
        causes.push(Cause::invalid("metadata.uid", uid, IMMUTABLE));
    }
    let (was, is) =
        (text_at(old, "/metadata/deletionTimestamp"), text_at(new, "/metadata/deletionTimestamp"));
    if was != is {
        // Go's way to print a moment.
        let shown = format!("{} +0000 UTC", is.trim_end_matches('Z').replace('T', " "));
        causes.push(Cause::invalid_raw("metadata.deletionTimestamp", &shown, IMMUTABLE));
    }
    if !was.is_empty() {
        no_new_finalizers(old, new, causes);
    }
}

fn no_new_finalizers(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
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
