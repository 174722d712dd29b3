//! Small readers that the cells of several kinds share.

use serde_json::Value;

/// Cells of text.
pub(super) fn texts<const N: usize>(texts: [&str; N]) -> Vec<Value> {
    texts.into_iter().map(Value::from).collect()
}

pub(super) fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}
