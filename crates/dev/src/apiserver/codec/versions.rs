//! Conversion between the stored version of a kind and the other versions that the server offers.

use serde_json::Value;

use crate::apiserver::route::Target;
use crate::schema::kind::Kind;

/// The fields with another name in `events.k8s.io`: the name there, the stored name.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("deprecatedCount", "count"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedSource", "source"),
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
];

/// Converts the JSON of an object or a list to another version.
pub(crate) fn convert_body(kind: Kind, api_version: &'static str, body: Vec<u8>) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(&body) else { return body };
    let given = value["kind"].as_str().unwrap_or_default();
    if given == "Status" && kind == Kind::Event && value["details"]["kind"].is_string() {
        value["details"]["group"] = group_of(api_version).into();
        return value.to_string().into_bytes();
    }
    if given != kind.name() && given.strip_suffix("List") != Some(kind.name()) {
        return body;
    }
    if let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(|item| convert_object(kind, item));
    }
    convert_object(kind, &mut value);
    value["apiVersion"] = api_version.into();
    value.to_string().into_bytes()
}

pub(crate) fn is_stored(target: &Target) -> bool {
    target.api_version == target.kind.api_version()
}

type Names = (&'static str, &'static str);

/// Only events have fields with two names. The other versions do not differ from the stored ones.
pub(crate) fn rename_fields(kind: Kind, value: &mut Value, from_to: impl Fn(Names) -> Names) {
    let Some(members) = value.as_object_mut().filter(|_| kind == Kind::Event) else { return };
    for (from, to) in EVENT_FIELDS.into_iter().map(from_to) {
        if let Some(moved) = members.remove(from) {
            members.insert(to.to_owned(), moved);
        }
    }
}

/// Renames the fields to another version's names and removes empty ones.
pub(crate) fn convert_object(kind: Kind, value: &mut Value) {
    rename_fields(kind, value, |(there, here)| (here, there));
    if let Some(members) = value.as_object_mut().filter(|_| kind == Kind::Event) {
        let given = |name: &str, value: &Value| !name.starts_with("reporting") || *value != "";
        members.retain(|name, value| given(name, value));
    }
}

pub(crate) fn group_of(api_version: &str) -> &str {
    api_version.split('/').next().unwrap_or_default()
}
