//! Checks that each value has its field's type. Unknown fields are not checked.

use serde_json::Value;

use crate::schema::base64;
use crate::schema::{Shape, Type};
use posse_encoding::quantity::{self, Quantity};

/// Checks a whole object; the error is the decoder's message.
pub(crate) fn check(of: &Type, value: &Value) -> Result<(), String> {
    check_fields(of, value, "")
}

fn check_fields(of: &Type, value: &Value, path: &str) -> Result<(), String> {
    let Value::Object(members) = value else { return Ok(()) };
    members.iter().try_for_each(|(key, value)| {
        let Some(field) = of.field(key) else { return Ok(()) };
        let dot = if path.is_empty() { "" } else { "." };
        check_shape(&field.shape, value, of, &format!("{path}{dot}{key}"))
    })
}

fn check_shape(shape: &Shape, value: &Value, owner: &Type, path: &str) -> Result<(), String> {
    let wrong = || {
        Err(format!(
            "json: cannot unmarshal {} into Go struct field {}.{path}",
            type_word(value),
            owner.kind()
        ))
    };
    match (shape, value) {
        (_, Value::Null)
        | (Shape::Any, _)
        | (Shape::Boolean, Value::Bool(_))
        | (Shape::Double, Value::Number(_))
        | (Shape::IntOrString | Shape::Text, Value::String(_)) => Ok(()),
        (Shape::Int32 | Shape::IntOrString, Value::Number(number)) => {
            match number.as_i64().map(i32::try_from) {
                Some(Ok(_)) => Ok(()),
                Some(Err(_)) | None => wrong(),
            }
        }
        (Shape::Int64, Value::Number(number)) if number.is_i64() => Ok(()),
        (Shape::Bytes, Value::String(text)) => check_base64(text),
        (Shape::List(item), Value::Array(items)) => {
            items.iter().try_for_each(|value| check_shape(item, value, owner, path))
        }
        (Shape::Map(item), Value::Object(members)) => {
            members.values().try_for_each(|value| check_shape(item, value, owner, path))
        }
        (Shape::Object(inner), Value::Object(_)) => check_fields(inner.get(), value, path),
        (Shape::Quantity, value) => check_quantity(value),
        (Shape::MicroTime | Shape::Time, Value::String(text)) => check_time(text),
        (
            Shape::Boolean
            | Shape::Bytes
            | Shape::Double
            | Shape::Int32
            | Shape::Int64
            | Shape::IntOrString
            | Shape::List(_)
            | Shape::Map(_)
            | Shape::MicroTime
            | Shape::Object(_)
            | Shape::Text
            | Shape::Time,
            _,
        ) => wrong(),
    }
}

fn check_base64(text: &str) -> Result<(), String> {
    base64::decode(text).map(|_| ()).map_err(|at| format!("illegal base64 data at input byte {at}"))
}

fn check_time(text: &str) -> Result<(), String> {
    let parsed = text.parse::<jiff::Timestamp>();
    parsed.map(|_| ()).map_err(|_| format!("parsing time {text:?}: not a time as in RFC 3339"))
}

/// A quantity is a string or a number.
fn check_quantity(value: &Value) -> Result<(), String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    };
    match Quantity::parse(&text) {
        Some(_) => Ok(()),
        None => Err(quantity::SYNTAX.to_owned()),
    }
}

pub(crate) fn type_word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
