//! One stored object: its JSON as text, and the few fields that selectors need. Text, because ten
//! thousand parsed trees would take gigabytes.

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
    /// The object without `kind` and `apiVersion`, which lists leave out.
    json: Box<str>,
}

impl Object {
    /// `value` must have complete metadata; `version` is written into it.
    pub(crate) fn new(kind: Kind, mut value: Value, version: u64) -> Self {
        if let Some(fields) = value.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        let metadata = metadata_mut(&mut value);
        metadata.insert("resourceVersion".to_owned(), version.to_string().into());
        Self {
            key: key_of(kind, &value),
            uid: text_at(&value, "/metadata/uid").into(),
            version,
            owners: owners_of(&value),
            deleting: value.pointer("/metadata/deletionTimestamp").is_some(),
            labels: labels_of(&value),
            node: text_at(&value, "/spec/nodeName").into(),
            phase: text_at(&value, "/status/phase").into(),
            json: value.to_string().into(),
        }
    }

    /// The object as JSON, with `kind` and `apiVersion`.
    pub(crate) fn value(&self) -> Value {
        let mut value: Value =
            serde_json::from_str(&self.json).expect("it was written from a tree");
        set_type(&mut value, self.key.kind);
        value
    }

    /// The text as an item of a list, also for searches.
    pub(crate) fn item_json(&self) -> &str {
        &self.json
    }

    /// The text as a whole body.
    pub(crate) fn body(&self) -> Vec<u8> {
        let (kind, version) = (self.key.kind.name(), self.key.kind.api_version());
        let rest = self.json.get(1..).unwrap_or("}");
        format!(r#"{{"kind":"{kind}","apiVersion":"{version}",{rest}"#).into_bytes()
    }

    /// The same object under another version: a watch shows an object like this when it leaves the
    /// selection.
    pub(crate) fn at_version(&self, version: u64) -> Self {
        Self::new(self.key.kind, self.value(), version)
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
            other => match self.value().pointer(&format!("/{}", other.replace('.', "/"))) {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Null) | None if other == "spec.unschedulable" => "false".to_owned(),
                Some(Value::Null) | None => String::new(),
                Some(other) => other.to_string(),
            },
        }
    }
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

/// The member `name` as an array; it is created if it is absent or of another type.
pub(crate) fn array_mut<'a>(value: &'a mut Value, name: &str) -> &'a mut Vec<Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let member = &mut value[name];
    if !member.is_array() {
        *member = Value::Array(Vec::new());
    }
    member.as_array_mut().expect("it was made one above")
}

pub(crate) fn metadata_mut(value: &mut Value) -> &mut Map<String, Value> {
    object_mut(value, "metadata")
}

/// The array at a JSON pointer; empty if there is none.
pub(crate) fn array_at<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The status of the condition of that type; empty where there is none.
pub(crate) fn condition_of<'a>(object: &'a Value, name: &str) -> &'a str {
    let conditions = array_at(object, "/status/conditions");
    let found = conditions.iter().find(|condition| text_at(condition, "/type") == name);
    found.map(|condition| text_at(condition, "/status")).unwrap_or_default()
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

pub(crate) fn labels_of(value: &Value) -> Box<[(Box<str>, Box<str>)]> {
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
