//! Patches: JSON patch and strategic merge patch, on JSON values.

pub(crate) mod json;
pub(crate) mod strategic;

use serde_json::Value;

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
