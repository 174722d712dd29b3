//! Node affinity: makes a pod avoid nodes by a `matchFields` requirement in every term of its
//! required node affinity, and prefer nodes by further terms of its preferred one. `core` decides which nodes.

use serde_json::{Value, json};

/// Path of the required node affinity. A node has to match one of its terms.
const WAY: [&str; 4] =
    ["spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const TERMS: &str = "nodeSelectorTerms";
const FIELDS: &str = "matchFields";

/// Leaves a gap in every term, and adds a term if there is none. A pod with `spec.nodeName` and
/// malformed fields stay as they are: the server reports those.
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
                // An empty term would match no node, but this one gets the gap below.
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

/// A gap in a list.
#[derive(Clone, Copy, Debug)]
pub enum Gap {
    /// For the expressions of avoided nodes.
    Avoided,
    /// For the terms of preferred nodes.
    Preferred,
}

/// Leaves a gap for the nodes that the pod prefers, behind those of the template. As `leave_gaps`.
pub fn leave_preferred_gap(pod: &mut Value) {
    if pod.pointer("/spec/nodeName").is_some_and(Value::is_string) {
        return;
    }
    let mut at = pod;
    for key in [WAY[0], WAY[1], WAY[2], PREFERRED] {
        let Some(map) = at.as_object_mut() else { return };
        let next = map.entry(key).or_insert(Value::Null);
        if next.is_null() {
            *next = if key == PREFERRED { json!([]) } else { json!({}) };
        }
        at = next;
    }
    if let Some(terms) = at.as_array_mut() {
        terms.retain(|term| !term.is_null());
        terms.push(Value::Null);
    }
}

/// The gap that `leave_gaps` or `leave_preferred_gap` left in the list `field`, if the item is one.
pub fn gap(field: &str, item: &Value) -> Option<Gap> {
    if !item.is_null() {
        return None;
    }
    if field.ends_with(FIELDS) {
        return Some(Gap::Avoided);
    }
    field.ends_with(PREFERRED).then_some(Gap::Preferred)
}
