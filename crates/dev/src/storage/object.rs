//! One stored object: its JSON as text, and the few fields that selectors need. Text, because ten
//! thousand parsed trees would take gigabytes.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::schema::kind::{Key, Kind};

/// One version of one object. Immutable; a change stores a new one.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) key: Key,
    pub(crate) uid: Box<str>,
    pub(crate) version: u64,
    /// The uids of its owners; empty if one of them is of a kind that is not stored here.
    pub(crate) owners: Box<[Box<str>]>,
    /// `metadata.deletionTimestamp` is set.
    pub(crate) deleting: bool,
    labels: Box<[(Box<str>, Box<str>)]>,
    node: Box<str>,
    phase: Box<str>,
    managed: Box<[ManagedEntry]>,
    /// The object without `kind` and `apiVersion`, which lists leave out, and without
    /// `managedFields`. The metadata come first.
    json: Box<str>,
}

/// An entry of `managedFields`. Thousands of objects of one template have the same entries except
/// for the time, so the rest is shared.
#[derive(Clone, Debug)]
struct ManagedEntry {
    /// The entry up to its time.
    text: Arc<str>,
    time: Box<str>,
}

const METADATA: &str = r#"{"metadata":{"#;

impl Object {
    /// `value` must have complete metadata; `version` is written into it. Without `managedFields`
    /// in `value` those of `before` are kept.
    pub(crate) fn new(kind: Kind, mut value: Value, version: u64, before: Option<&Self>) -> Self {
        if let Some(fields) = value.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        let metadata = metadata_mut(&mut value);
        metadata.insert("resourceVersion".to_owned(), version.to_string().into());
        let managed = match metadata.remove("managedFields") {
            Some(entries) => array_at(&entries, "").iter().map(ManagedEntry::new).collect(),
            None => before.map(|before| before.managed.clone()).unwrap_or_default(),
        };
        Self {
            key: key_of(kind, &value),
            uid: text_at(&value, "/metadata/uid").into(),
            version,
            owners: owners_of(&value),
            deleting: value.pointer("/metadata/deletionTimestamp").is_some(),
            labels: labels_of(&value),
            node: text_at(&value, "/spec/nodeName").into(),
            phase: text_at(&value, "/status/phase").into(),
            managed,
            json: text_of(value),
        }
    }

    /// The object as JSON, with `kind` and `apiVersion`, without `managedFields`.
    pub(crate) fn value(&self) -> Value {
        let mut value: Value =
            serde_json::from_str(&self.json).expect("it was written from a tree");
        set_type(&mut value, self.key.kind);
        value
    }

    /// True if the object has `managedFields`.
    pub(crate) fn is_managed(&self) -> bool {
        !self.managed.is_empty()
    }

    /// The `managedFields`.
    pub(crate) fn managed(&self) -> Value {
        serde_json::from_str(&self.managed_json()).expect("it was written from a tree")
    }

    fn managed_json(&self) -> String {
        let entries: Vec<String> = self.managed.iter().map(ManagedEntry::written).collect();
        format!("[{}]", entries.join(","))
    }

    /// Replaces texts that are in `shared` by the shared ones, and adds the others to it.
    pub(crate) fn share(&mut self, shared: &mut BTreeSet<Arc<str>>) {
        /// More texts than this do not come from templates, so that sharing would gain nothing.
        const TEXTS_MAX: usize = 1024;
        for owner in &mut self.managed {
            if let Some(known) = shared.get(&owner.text) {
                owner.text = Arc::clone(known);
                continue;
            }
            if shared.len() >= TEXTS_MAX {
                shared.retain(|text| Arc::strong_count(text) > 1);
            }
            if shared.len() < TEXTS_MAX {
                shared.insert(Arc::clone(&owner.text));
            }
        }
    }

    /// The text without `managedFields`, for searches.
    pub(crate) fn item_json(&self) -> &str {
        &self.json
    }

    /// Writes the object as an item of a list.
    pub(crate) fn write_item(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        self.write_members(out);
    }

    /// Writes the object as a whole body.
    pub(crate) fn write_json(&self, out: &mut Vec<u8>) {
        let kind = self.key.kind;
        let head = format!(r#"{{"kind":"{}","apiVersion":"{}","#, kind.name(), kind.api_version());
        out.extend_from_slice(head.as_bytes());
        self.write_members(out);
    }

    /// Writes the members after the opening brace.
    fn write_members(&self, out: &mut Vec<u8>) {
        let rest = match self.managed.is_empty() {
            true => self.json.get(1..),
            false => {
                let head = METADATA.get(1..).unwrap_or_default();
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(br#""managedFields":"#);
                out.extend_from_slice(self.managed_json().as_bytes());
                out.push(b',');
                self.json.get(METADATA.len()..)
            }
        };
        out.extend_from_slice(rest.unwrap_or("}").as_bytes());
    }

    /// The same object under another version: a watch shows an object like this when it leaves the
    /// selection.
    pub(crate) fn at_version(&self, version: u64) -> Self {
        Self::new(self.key.kind, self.value(), version, Some(self))
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(key, _)| &**key == name).map(|(_, value)| &**value)
    }

    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// True if the pod is Failed or Succeeded: it runs no more and no quota counts it.
    pub(crate) fn is_terminal(&self) -> bool {
        is_terminal(&self.phase)
    }

    /// A field by its name in field selectors; empty if absent.
    pub(crate) fn field(&self, name: &str) -> String {
        match name {
            "metadata.name" => self.key.name.clone(),
            "metadata.namespace" => self.key.namespace.clone(),
            "spec.nodeName" => self.node.to_string(),
            "status.phase" => self.phase.to_string(),
            "source" => match self.field("source.component") {
                none if none.is_empty() => self.field("reportingComponent"),
                component => component,
            },
            "status.successful" => match self.field("status.succeeded") {
                none if none.is_empty() => "0".to_owned(),
                succeeded => succeeded,
            },
            other => match self.value().pointer(&format!("/{}", other.replace('.', "/"))) {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Null) | None if other == "spec.unschedulable" => "false".to_owned(),
                Some(Value::Null) | None => String::new(),
                Some(other) => other.to_string(),
            },
        }
    }
}

impl ManagedEntry {
    fn new(entry: &Value) -> Self {
        let time = text_at(entry, "/time").into();
        let mut entry = entry.clone();
        if let Some(members) = entry.as_object_mut() {
            members.remove("time");
        }
        let text = entry.to_string();
        Self { text: text.get(..text.len() - 1).unwrap_or_default().into(), time }
    }

    fn written(&self) -> String {
        format!("{},\"time\":{}}}", self.text, Value::from(&*self.time))
    }
}

/// The metadata come first, so that `managedFields` can be inserted without parsing.
fn text_of(mut value: Value) -> Box<str> {
    let metadata = value.as_object_mut().and_then(|members| members.remove("metadata"));
    let rest = value.to_string();
    let comma = if rest == "{}" { "" } else { "," };
    let rest = rest.get(1..).unwrap_or_default();
    let metadata = metadata.unwrap_or_default();
    format!("{{\"metadata\":{metadata}{comma}{rest}").into()
}

/// True for the phases that a pod never leaves.
pub(crate) fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Failed" | "Succeeded")
}

/// Sets `kind` and `apiVersion`.
pub(crate) fn set_type(value: &mut Value, kind: Kind) {
    if let Some(fields) = value.as_object_mut() {
        fields.insert("kind".to_owned(), kind.name().into());
        fields.insert("apiVersion".to_owned(), kind.api_version().into());
    }
}

/// The text at a JSON pointer; empty if there is none.
pub(crate) fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The member `name` as an object; it is created if it is absent or of another type.
pub(crate) fn object_mut<'a>(value: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let member = &mut value[name];
    if !member.is_object() {
        *member = Value::Object(Map::new());
    }
    member.as_object_mut().expect("it was made one above")
}

pub(crate) fn metadata_mut(value: &mut Value) -> &mut Map<String, Value> {
    object_mut(value, "metadata")
}

/// The array at a JSON pointer; empty if there is none.
pub(crate) fn array_at<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Increments `metadata.generation`, for a change of the spec or a deletion.
pub(crate) fn next_generation(value: &mut Value) {
    let generation = value.pointer("/metadata/generation").and_then(Value::as_i64);
    if let Some(generation) = generation {
        metadata_mut(value).insert("generation".to_owned(), (generation + 1).into());
    }
}

pub(crate) fn key_of(kind: Kind, value: &Value) -> Key {
    let namespace = match kind.is_namespaced() {
        true => text_at(value, "/metadata/namespace"),
        false => "",
    };
    Key::new(kind, namespace, text_at(value, "/metadata/name"))
}

fn labels_of(value: &Value) -> Box<[(Box<str>, Box<str>)]> {
    let Some(labels) = value.pointer("/metadata/labels").and_then(Value::as_object) else {
        return Box::default();
    };
    labels
        .iter()
        .map(|(key, value)| (key.as_str().into(), value.as_str().unwrap_or_default().into()))
        .collect()
}

/// An owner of a kind that is not stored here cannot be looked up. An object with such an owner is
/// never garbage collected.
fn owners_of(value: &Value) -> Box<[Box<str>]> {
    let references = array_at(value, "/metadata/ownerReferences");
    let known = references.iter().all(|reference| {
        Kind::of_reference(text_at(reference, "/apiVersion"), text_at(reference, "/kind")).is_some()
    });
    match known {
        true => references.iter().map(|reference| text_at(reference, "/uid").into()).collect(),
        false => Box::default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(managed: Value) -> Value {
        json!({
            "metadata": { "name": "a", "namespace": "n", "uid": "u", "managedFields": managed },
            "spec": { "nodeName": "x" },
        })
    }

    fn entry(manager: &str, time: &str) -> Value {
        json!({
            "manager": manager, "operation": "Update", "apiVersion": "v1", "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": {} },
        })
    }

    fn read(object: &Object) -> Value {
        let mut text = Vec::new();
        object.write_json(&mut text);
        let mut item = Vec::new();
        object.write_item(&mut item);
        let value: Value = serde_json::from_slice(&text).expect("JSON");
        let item: Value = serde_json::from_slice(&item).expect("JSON");
        assert_eq!(item["metadata"], value["metadata"]);
        value
    }

    #[test]
    fn managed_fields_are_stored_apart_and_inserted_into_bodies() {
        let managed = json!([entry("a", "t1"), entry("b", "t2")]);
        let first = Object::new(Kind::Pod, pod(managed.clone()), 1, None);
        assert_eq!(first.managed(), managed);
        assert!(first.value().pointer("/metadata/managedFields").is_none());
        assert_eq!(read(&first)["metadata"]["managedFields"], managed);
        let next = Object::new(Kind::Pod, first.value(), 2, Some(&first));
        assert_eq!(read(&next)["metadata"]["managedFields"], managed);
        let reset = Object::new(Kind::Pod, pod(json!([])), 3, Some(&next));
        assert!(read(&reset).pointer("/metadata/managedFields").is_none());
    }

    #[test]
    fn equal_managed_fields_share_their_text() {
        let mut shared = BTreeSet::new();
        let mut object = |time: &str| {
            let mut object = Object::new(Kind::Pod, pod(json!([entry("a", time)])), 1, None);
            object.share(&mut shared);
            object
        };
        let (one, other) = (object("t1"), object("t2"));
        assert!(Arc::ptr_eq(&one.managed[0].text, &other.managed[0].text));
        assert_eq!(other.managed(), json!([entry("a", "t2")]));
    }
}
