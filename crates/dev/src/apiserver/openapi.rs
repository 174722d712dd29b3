//! The OpenAPI document `/openapi/v2`, in JSON and in protobuf: all types, but only the paths whose
//! parameters clients look up.

use serde_json::{Map, Value, json};

use crate::apiserver::answer::Answer;
use crate::apiserver::codec::protobuf::Message;
use crate::schema::kind::Kind;
use crate::schema::{self, Field, List, Shape, Type};
use posse_serve::Request;

/// The media types of the protobuf document; the second is its form without the characters that
/// MIME forbids.
const PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];
const BYTES: &str = "application/octet-stream";
const GVK: &str = "x-kubernetes-group-version-kind";
/// The query parameters of a patch; clients look here whether the server supports one.
const PATCH_PARAMETERS: [&str; 4] = ["dryRun", "fieldManager", "fieldValidation", "force"];

/// Answers a request for the document.
pub(crate) fn answer(request: &Request) -> Answer {
    let accept = request.header("accept").unwrap_or_default();
    let bare = |clause: &str| clause.split(';').next().unwrap_or_default().trim().to_owned();
    let wanted = accept.split(',').map(bare).find_map(|word| match word.as_str() {
        "" | "*/*" | "application/*" | "application/json" => Some("application/json"),
        other => PROTOBUF.contains(&other).then_some(BYTES),
    });
    let (code, content_type, body) = match wanted {
        Some(BYTES) => (200, BYTES, encoded(&document()).0),
        Some(json) => (200, json, document().to_string().into_bytes()),
        None => (406, "text/plain", Vec::new()),
    };
    Answer::Whole { code, content_type, body, retry_after: None }
}

fn document() -> Value {
    let (major, minor) = schema::VERSION;
    let definitions = schema::table().iter().map(|of| (of.definition.clone(), definition(of)));
    let paths = Kind::all().flat_map(|kind| schema::versions(kind).map(move |v| path(kind, v)));
    json!({
        "swagger": "2.0",
        "info": { "title": "Kubernetes", "version": format!("v{major}.{minor}.0") },
        "paths": paths.collect::<Map<_, _>>(),
        "definitions": definitions.collect::<Map<_, _>>(),
    })
}

fn gvk(api_version: &str, kind: &str) -> Value {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    json!({ "group": group, "version": version, "kind": kind })
}

fn path(kind: Kind, api_version: &str) -> (String, Value) {
    let root = if api_version.contains('/') { "apis" } else { "api" };
    let namespace = if kind.is_namespaced() { "namespaces/{namespace}/" } else { "" };
    let parameter = |name: &str| {
        let shape = if name == "force" { "boolean" } else { "string" };
        json!({ "in": "query", "name": name, "type": shape, "uniqueItems": true })
    };
    let patch = json!({
        "consumes": [
            "application/json-patch+json", "application/merge-patch+json",
            "application/strategic-merge-patch+json", "application/apply-patch+yaml",
        ],
        "parameters": PATCH_PARAMETERS.map(parameter),
        "produces": ["application/json"],
        "responses": { "200": { "description": "OK" } },
        "x-kubernetes-action": "patch",
        GVK: gvk(api_version, kind.name()),
    });
    let path = format!("/{root}/{api_version}/{namespace}{}/{{name}}", kind.plural());
    (path, json!({ "patch": patch }))
}

fn definition(of: &Type) -> Value {
    let mut properties = Map::new();
    if !of.versions.is_empty() {
        for name in ["apiVersion", "kind"] {
            properties.insert(name.to_owned(), json!({ "type": "string" }));
        }
    }
    properties.extend(of.fields.iter().map(|field| (field.name.to_owned(), property(field))));
    let mut schema = json!({ "type": "object", "properties": properties });
    let required = of.fields.iter().filter(|field| field.required).map(|field| field.name);
    let required: Vec<&str> = required.collect();
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    if !of.versions.is_empty() {
        schema[GVK] = of.versions.iter().map(|version| gvk(version, of.kind())).collect();
    }
    if of.atomic {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
    schema
}

fn property(field: &Field) -> Value {
    let mut schema = shape(&field.shape);
    let strategies = [("merge", field.merge.is_some()), ("retainKeys", field.retain_keys)];
    let strategies = strategies.into_iter().filter(|(_, given)| *given).map(|(word, _)| word);
    let strategies: Vec<&str> = strategies.collect();
    if !strategies.is_empty() {
        schema["x-kubernetes-patch-strategy"] = strategies.join(",").into();
    }
    if let Some(key) = field.merge.filter(|key| !key.is_empty()) {
        schema["x-kubernetes-patch-merge-key"] = key.into();
    }
    match &field.list {
        List::Map(keys) if field.merge.is_none_or(|key| keys.len() > 1 || keys[0] != key) => {
            schema["x-kubernetes-list-type"] = "map".into();
            schema["x-kubernetes-list-map-keys"] = keys.clone().into();
        }
        List::Set if field.merge.is_none() => schema["x-kubernetes-list-type"] = "set".into(),
        List::Atomic | List::Map(_) | List::Set => {}
    }
    if field.atomic && matches!(field.shape, Shape::Map(_)) {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
    schema
}

fn shape(of: &Shape) -> Value {
    let scalar = |name: &str, format: &str| match format {
        "" => json!({ "type": name }),
        format => json!({ "type": name, "format": format }),
    };
    match of {
        Shape::Any => scalar("object", ""),
        Shape::Boolean => scalar("boolean", ""),
        Shape::Bytes => scalar("string", "byte"),
        Shape::Double => scalar("number", "double"),
        Shape::Int32 => scalar("integer", "int32"),
        Shape::Int64 => scalar("integer", "int64"),
        Shape::IntOrString => scalar("string", "int-or-string"),
        Shape::List(item) => json!({ "type": "array", "items": shape(item) }),
        Shape::Map(item) => json!({ "type": "object", "additionalProperties": shape(item) }),
        Shape::MicroTime | Shape::Time => scalar("string", "date-time"),
        Shape::Object(inner) => {
            json!({ "$ref": format!("#/definitions/{}", inner.get().definition) })
        }
        Shape::Quantity | Shape::Text => scalar("string", ""),
    }
}

/// The document in protobuf, with the field numbers of gnostic's `OpenAPIv2.proto`.
fn encoded(document: &Value) -> Message {
    let info = Message::default()
        .text(1, text(&document["info"], "title"))
        .text(2, text(&document["info"], "version"));
    let paths = named(&document["paths"], 2, |item| {
        Message::default().message(8, &operation(&item["patch"]))
    });
    Message::default()
        .text(1, text(document, "swagger"))
        .message(2, &info)
        .message(8, &paths)
        .message(9, &named(&document["definitions"], 1, encoded_schema))
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A message whose only field is a list of named values.
fn named(members: &Value, tag: u32, encode: impl Fn(&Value) -> Message) -> Message {
    let members = members.as_object().into_iter().flatten();
    members.fold(Message::default(), |message, (name, value)| {
        message.message(tag, &Message::default().text(1, name).message(2, &encode(value)))
    })
}

fn operation(patch: &Value) -> Message {
    let parameters = patch["parameters"].as_array().into_iter().flatten();
    let message = parameters.fold(Message::default(), |message, parameter| {
        let query = Message::default()
            .text(2, text(parameter, "in"))
            .text(4, text(parameter, "name"))
            .text(6, text(parameter, "type"));
        let inner = Message::default().message(3, &query);
        let inner = Message::default().message(2, &inner);
        message.message(8, &Message::default().message(1, &inner))
    });
    extensions(message, patch, 13)
}

fn encoded_schema(schema: &Value) -> Message {
    let mut message = Message::default();
    for (name, tag) in [("$ref", 1), ("format", 2)] {
        if let Some(text) = schema[name].as_str() {
            message = message.text(tag, text);
        }
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        message = message.text(19, name.as_str().unwrap_or_default());
    }
    for (name, tag) in [("additionalProperties", 21), ("items", 23)] {
        if let Some(inner) = schema.get(name) {
            let inner = Message::default().message(1, &encoded_schema(inner));
            message = message.message(tag, &inner);
        }
    }
    if let Some(name) = schema["type"].as_str() {
        message = message.message(22, &Message::default().text(1, name));
    }
    if let Some(properties) = schema.get("properties") {
        message = message.message(25, &named(properties, 1, encoded_schema));
    }
    extensions(message, schema, 31)
}

/// The `x-` extensions as YAML, of which JSON is a subset.
fn extensions(message: Message, of: &Value, tag: u32) -> Message {
    let members = of.as_object().into_iter().flatten();
    members.filter(|(name, _)| name.starts_with("x-")).fold(message, |message, (name, value)| {
        let any = Message::default().text(2, &value.to_string());
        message.message(tag, &Message::default().text(1, name).message(2, &any))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_kind_and_all_referenced_types() {
        let document = document();
        let text = document.to_string();
        for part in text.split("\"#/definitions/").skip(1) {
            let name = part.split('"').next().expect("a name");
            assert!(document["definitions"].get(name).is_some(), "{name}");
        }
        for kind in Kind::all() {
            assert!(text.contains(&gvk(&kind.api_version(), kind.name()).to_string()), "{kind:?}");
        }
        let pods = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
        assert_eq!(pods["parameters"][0]["name"], "dryRun");
        let volumes =
            &document["definitions"]["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"];
        assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
        assert_eq!(volumes["x-kubernetes-patch-merge-key"], "name");
    }
}
