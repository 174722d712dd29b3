//! Small readers that the cells of several kinds share.

use serde_json::Value;

use crate::storage::object::{array_at, text_at};

/// Cells of text.
pub(super) fn texts<const N: usize>(texts: [&str; N]) -> Vec<Value> {
    texts.into_iter().map(Value::from).collect()
}

pub(super) fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// The status of the condition of that type; empty where there is none.
pub(super) fn condition<'a>(object: &'a Value, name: &str) -> &'a str {
    let conditions = array_at(object, "/status/conditions");
    let found = conditions.iter().find(|condition| text_at(condition, "/type") == name);
    found.map(|condition| text_at(condition, "/status")).unwrap_or_default()
}
