//! Owns one stored object: its JSON as text, and the few facts that selecting needs. Text, because
//! ten thousand parsed trees would take gigabytes.

use serde_json::{Map, Value};

use crate::dev::kind::{Key, Kind};

/// One version of one object; never changed, only replaced.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) key: Key,
    pub(crate) uid: Box<str>,
    pub(crate) version: u64,
    /// The uids of its owners that are of a kind stored here.
    pub(crate) owners: Box<[Box<str>]>,
    /// A `metadata.deletionTimestamp` is set.
    pub(crate) deleting: bool,
    labels: Box<[(Box<str>, Box<str>)]>,
    node: Box<str>,
    phase: Box<str>,
    /// The object without `kind` and `apiVersion`, which lists leave out.
    json: Box<str>,
}

impl Object {
    /// Takes an object whose metadata is complete; `version` is written into it.
    pub(crate) fn new(kind: Kind, mut value: Value, version: u64) -> Self {
        if let Some(fields) = value.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        metadata_mut(&mut value).insert("resourceVersion".to_owned(), version.to_string().into());
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

    /// The object as a tree, with `kind` and `apiVersion`.
    pub(crate) fn value(&self) -> Value {
        let mut value: Value =
            serde_json::from_str(&self.json).expect("it was written from a tree");
        set_type(&mut value, self.key.kind);
        value
    }

    /// A list's item.
    pub(crate) fn item_json(&self) -> &str {
        &self.json
    }

    /// A whole body.
    pub(crate) fn write_json(&self, out: &mut Vec<u8>) {
        let kind = self.key.kind;
        let head = format!(r#"{{"kind":"{}","apiVersion":"{}","#, kind.name(), kind.api_version());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(self.json.get(1..).unwrap_or("}").as_bytes());
    }

    /// The same object under another version: how a watch shows one that left its selection.
    pub(crate) fn at_version(&self, version: u64) -> Self {
        Self::new(self.key.kind, self.value(), version)
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(key, _)| &**key == name).map(|(_, value)| &**value)
    }

    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// True where the pod ended by itself: it runs no more and no quota counts it.
    pub(crate) fn is_terminal(&self) -> bool {
        is_terminal(&self.phase)
    }

    /// A field as field selectors name it; empty where absent.
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

/// True for the phases that a pod never leaves.
pub(crate) fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Failed" | "Succeeded")
}

/// Puts `kind` and `apiVersion` on a tree.
pub(crate) fn set_type(value: &mut Value, kind: Kind) {
    if let Some(fields) = value.as_object_mut() {
        fields.insert("kind".to_owned(), kind.name().into());
        fields.insert("apiVersion".to_owned(), kind.api_version().into());
    }
}

/// The text at a JSON pointer; empty where there is none.
pub(crate) fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The member `name` of an object as an object itself, made where it is absent or another type.
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

/// The array at a JSON pointer; empty where there is none.
pub(crate) fn array_at<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn key_of(kind: Kind, value: &Value) -> Key {
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

/// Owners of kinds that are not stored here cannot be looked up, and so never count as absent:
/// an object that has one is nobody's dependent.
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
