//! Patches: JSON patch and strategic merge patch, on JSON values.

pub(crate) mod json;
pub(crate) mod strategic;

use serde_json::Value;

use crate::schema::{Shape, Type};

/// A value as Go's `%v` prints it.
pub(crate) fn go_shown(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_shown).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(members) => {
            let members: Vec<String> =
                members.iter().map(|(key, value)| format!("{key}:{}", go_shown(value))).collect();
            format!("map[{}]", members.join(" "))
        }
    }
}

/// Why a patched value does not fit its type, in the words of a strategic merge patch.
pub(crate) fn unrestorable(of: &Type, value: &Value) -> Option<String> {
    let members = value.as_object()?;
    members.iter().find_map(|(name, value)| unrestorable_as(&of.field(name)?.shape, value))
}

fn unrestorable_as(shape: &Shape, value: &Value) -> Option<String> {
    let kind = match value {
        Value::Null => return None,
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    };
    match (shape, value) {
        (Shape::Map(item), Value::Object(members)) => {
            members.values().find_map(|value| unrestorable_as(item, value))
        }
        (Shape::List(item), Value::Array(items)) => {
            items.iter().find_map(|value| unrestorable_as(item, value))
        }
        (Shape::Object(inner), Value::Object(_)) => unrestorable(inner.get(), value),
        (Shape::Map(_), _) => Some(format!("cannot restore map from {kind}")),
        (Shape::List(_), _) => Some(format!("cannot restore slice from {kind}")),
        (Shape::Object(_), _) => Some(format!("cannot restore struct from: {kind}")),
        (Shape::Text, Value::Number(number)) if !number.is_f64() => {
            Some("cannot convert int64 to string".to_owned())
        }
        (Shape::Text, Value::String(_))
        | (Shape::Boolean, Value::Bool(_))
        | (Shape::Int32 | Shape::Int64, Value::Number(_)) => None,
        (Shape::Text, _) => Some("unrecognized type: string".to_owned()),
        (Shape::Boolean, _) => Some("unrecognized type: bool".to_owned()),
        (Shape::Int32, _) => Some("unrecognized type: int32".to_owned()),
        (Shape::Int64, _) => Some("unrecognized type: int64".to_owned()),
        (
            Shape::Any
            | Shape::Bytes
            | Shape::Double
            | Shape::IntOrString
            | Shape::MicroTime
            | Shape::Quantity
            | Shape::Time,
            _,
        ) => None,
    }
}
