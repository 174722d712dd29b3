//! Label selectors, as the server evaluates them.

use serde_json::{Map, Value};

/// Whether a label selector selects an object with these labels. Operators that are not known select nothing.
pub(crate) fn selects(selector: &Value, labels: &Map<String, Value>) -> bool {
    let pairs = selector.get("matchLabels").and_then(Value::as_object);
    let rules = selector.get("matchExpressions").and_then(Value::as_array);
    let has_pairs = pairs.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let fulfils = |rule: &Value| {
        let found = rule["key"].as_str().and_then(|key| labels.get(key));
        let values = rule.get("values").and_then(Value::as_array);
        let is_listed = found.is_some_and(|label| values.is_some_and(|all| all.contains(label)));
        match rule["operator"].as_str().unwrap_or_default() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            _ => false,
        }
    };
    has_pairs && rules.into_iter().flatten().all(fulfils)
}
