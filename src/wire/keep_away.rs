//! Owns how a pod is kept away from nodes: a requirement for each in every term of its required node
//! affinity. Which nodes is `core/`'s.

use serde_json::{Value, json};

/// The way to the terms that a node has to match one of.
const WAY: [&str; 4] =
    ["spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
const TERMS: &str = "nodeSelectorTerms";
const FIELDS: &str = "matchFields";

/// Leaves a gap in every term, and makes one where there is none. A pod that its template binds, and
/// what is not as it should be, stays as it is: that is the server's to judge.
pub fn leave_gaps(pod: &mut Value) {
    if pod.pointer("/spec/nodeName").is_some_and(Value::is_string) {
        return;
    }
    let mut at = pod;
    for key in WAY {
        let Some(map) = at.as_object_mut() else { return };
        let next = map.entry(key).or_insert(Value::Null);
        if next.is_null() {
            *next = match key {
                // An empty term matches no node; this one does not stay empty.
                key if key == WAY[3] => json!({ TERMS: [{ FIELDS: [] }] }),
                _ => json!({}),
            };
        }
        at = next;
    }
    let Some(terms) = at.get_mut(TERMS).and_then(Value::as_array_mut) else { return };
    for term in terms.iter_mut().filter_map(Value::as_object_mut).filter(|term| !term.is_empty()) {
        let fields = term.entry(FIELDS).or_insert(Value::Null);
        if fields.is_null() {
            *fields = json!([]);
        }
        if let Some(fields) = fields.as_array_mut() {
            fields.retain(|field| !field.is_null());
            fields.push(Value::Null);
        }
    }
}

/// True for a gap that `leave_gaps` left in the list `field`.
#[must_use]
pub fn is_gap(field: &str, item: &Value) -> bool {
    item.is_null() && field.ends_with(FIELDS)
}
