//! Checks that each value has its field's type; the errors are those of Go's JSON decoder. Unknown
//! fields are not checked.

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
            "json: cannot unmarshal {} into Go struct field {}.{path} of type {}",
            type_word(value),
            owner.kind(),
            go_type(shape)
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
                Some(Err(_)) | None => {
                    wrong().map_err(|text| text.replacen("number", &format!("number {number}"), 1))
                }
            }
        }
        (Shape::Int64, Value::Number(number)) if number.is_i64() => Ok(()),
        (Shape::Int64, Value::Number(number)) => {
            wrong().map_err(|text| text.replacen("number", &format!("number {number}"), 1))
        }
        (Shape::Bytes, Value::String(text)) => check_base64(text),
        (Shape::List(item), Value::Array(items)) => {
            items.iter().try_for_each(|value| check_shape(item, value, owner, path))
        }
        (Shape::Map(item), Value::Object(members)) => {
            members.values().try_for_each(|value| check_shape(item, value, owner, path))
        }
        (Shape::Object(inner), Value::Object(_)) => check_fields(inner.get(), value, path),
        (Shape::Quantity, value) => check_quantity(value),
        (Shape::MicroTime, Value::String(text)) => check_micro_time(text),
        (Shape::Time, Value::String(text)) => check_time(text),
        (Shape::MicroTime | Shape::Time, _) => {
            Err(format!("json: cannot unmarshal {} into Go value of type string", type_word(value)))
        }
        (Shape::IntOrString, _) => {
            Err(format!("json: cannot unmarshal {} into Go value of type int32", type_word(value)))
        }
        (
            Shape::Boolean
            | Shape::Bytes
            | Shape::Double
            | Shape::Int32
            | Shape::Int64
            | Shape::List(_)
            | Shape::Map(_)
            | Shape::Object(_)
            | Shape::Text,
            _,
        ) => wrong(),
    }
}

fn go_type(shape: &Shape) -> String {
    match shape {
        Shape::Any => "runtime.RawExtension".to_owned(),
        Shape::Boolean => "bool".to_owned(),
        Shape::Bytes => "[]uint8".to_owned(),
        Shape::Double => "float64".to_owned(),
        Shape::Int32 => "int32".to_owned(),
        Shape::Int64 => "int64".to_owned(),
        Shape::IntOrString => "intstr.IntOrString".to_owned(),
        Shape::List(item) => format!("[]{}", go_type(item)),
        Shape::Map(item) if **item == Shape::Quantity => "v1.ResourceList".to_owned(),
        Shape::Map(item) => format!("map[string]{}", go_type(item)),
        Shape::MicroTime => "v1.MicroTime".to_owned(),
        Shape::Object(inner) => format!("v1.{}", inner.get().kind()),
        Shape::Quantity => "resource.Quantity".to_owned(),
        Shape::Text => "string".to_owned(),
        Shape::Time => "v1.Time".to_owned(),
    }
}

fn check_base64(text: &str) -> Result<(), String> {
    base64::decode(text).map(|_| ()).map_err(|at| format!("illegal base64 data at input byte {at}"))
}

fn check_time(text: &str) -> Result<(), String> {
    match text.parse::<jiff::Timestamp>() {
        Ok(_) => Ok(()),
        Err(_) => Err(format!(
            "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \
             \"2006\""
        )),
    }
}

/// Exactly six digits after the point: more, fewer or none are an error.
fn check_micro_time(text: &str) -> Result<(), String> {
    const DIGITS: usize = 6;
    const SECONDS_CHARS: usize = "2006-01-02T15:04:05".len();
    let rest = text.get(SECONDS_CHARS..).unwrap_or_default();
    let n_digits =
        rest.strip_prefix('.').map_or(0, |f| f.bytes().take_while(u8::is_ascii_digit).count());
    let (found, wanted) = match text.parse::<jiff::Timestamp>() {
        Ok(_) if n_digits == DIGITS => return Ok(()),
        Ok(_) => (rest, ".000000"),
        Err(_) => (text, "2006"),
    };
    Err(format!(
        "parsing time {text:?} as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse {found:?} as \
         {wanted:?}"
    ))
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
