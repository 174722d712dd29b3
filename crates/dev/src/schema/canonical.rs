//! Converts objects to the form in which kube-apiserver stores and returns them: it drops unknown
//! fields, and omits or normalizes empty values as Go's JSON encoder does.

use serde_json::{Map, Value};

use crate::schema::{Empty, Shape, Type};
use crate::time;
use posse_encoding::quantity::Quantity;

/// Converts an object that `check` has accepted; returns the paths of unknown fields.
pub(crate) fn canonical(of: &Type, value: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    if let Value::Object(members) = value {
        fields(of, members, "", &mut unknown);
    }
    unknown
}

fn fields(of: &Type, members: &mut Map<String, Value>, path: &str, unknown: &mut Vec<String>) {
    let is_type = |name: &str| !of.versions.is_empty() && matches!(name, "apiVersion" | "kind");
    members.retain(|name, value| {
        let known = of.field(name).is_some() || is_type(name);
        if !known {
            unknown.push(format!("{path}{name}"));
        }
        known && !value.is_null()
    });
    for field in &of.fields {
        let Some(value) = members.get_mut(field.name) else {
            if field.empty == Empty::Written {
                members.insert(field.name.to_owned(), zero(&field.shape));
            }
            continue;
        };
        shaped(&field.shape, value, &format!("{path}{}", field.name), unknown);
        if field.empty == Empty::Dropped && is_empty(value) && field.shape != Shape::Any {
            members.remove(field.name);
        } else if field.empty == Empty::Written
            && matches!(field.shape, Shape::List(_))
            && is_empty(value)
        {
            // The stored form does not distinguish an empty list from an absent one.
            *value = Value::Null;
        }
    }
}

fn shaped(shape: &Shape, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
    match (shape, &mut *value) {
        // A `null` item of a list or of a map becomes the zero value.
        (shape, Value::Null) => *value = zero(shape),
        (Shape::List(item), Value::Array(items)) => {
            for (i, value) in items.iter_mut().enumerate() {
                shaped(item, value, &format!("{path}[{i}]"), unknown);
            }
        }
        (Shape::Map(item), Value::Object(members)) => {
            for (key, value) in members {
                shaped(item, value, &format!("{path}.{key}"), unknown);
            }
        }
        (Shape::Object(inner), Value::Object(members)) => {
            fields(inner.get(), members, &format!("{path}."), unknown);
        }
        (Shape::Quantity, value) => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if let Some(amount) = Quantity::parse(&text) {
                *value = amount.canonical().into();
            }
        }
        (Shape::Time, Value::String(text)) => *text = time::shifted(text, 0),
        (Shape::MicroTime, Value::String(text)) => *text = time::micros(text),
        (
            Shape::Any
            | Shape::Boolean
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
        ) => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

/// Go's zero value of a shape.
fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::Boolean => false.into(),
        Shape::Double | Shape::Int32 | Shape::Int64 | Shape::IntOrString => 0.into(),
        Shape::Quantity => "0".into(),
        Shape::Text => "".into(),
        Shape::Object(inner) => {
            let mut members = Map::new();
            fields(inner.get(), &mut members, "", &mut Vec::new());
            members.into()
        }
        Shape::Any
        | Shape::Bytes
        | Shape::List(_)
        | Shape::Map(_)
        | Shape::MicroTime
        | Shape::Time => Value::Null,
    }
}
