//! Node affinity: makes a pod avoid nodes by a `matchFields` requirement in every term of its
//! required node affinity, and prefer nodes by further terms of its preferred one. `core` decides which nodes.

use serde_json::{Value, json};

/// The part of an affinity that must hold. A node has to match one of its terms.
pub(super) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
pub(super) const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const TERMS: &str = "nodeSelectorTerms";
const FIELDS: &str = "matchFields";

/// The list or map at this path of the node affinity, `empty` where there is none yet. None for a pod with
/// `spec.nodeName`, and where a field is malformed: the server reports it.
fn part<'p>(pod: &'p mut Value, kind: &str, empty: Value) -> Option<&'p mut Value> {
    if pod.pointer("/spec/nodeName").is_some_and(Value::is_string) {
        return None;
    }
    let mut at = pod;
    for key in ["spec", "affinity", "nodeAffinity", kind] {
        let next = at.as_object_mut()?.entry(key).or_insert(Value::Null);
        if next.is_null() {
            *next = if key == kind { empty.clone() } else { json!({}) };
        }
        at = next;
    }
    Some(at)
}

/// Leaves a gap in every term, and adds a term if there is none.
pub fn leave_gaps(pod: &mut Value) {
    // An empty term would match no node, but this one gets the gap below.
    let required = part(pod, REQUIRED, json!({ TERMS: [{ FIELDS: [] }] }));
    let terms = required.and_then(|required| required.get_mut(TERMS)?.as_array_mut());
    let Some(terms) = terms else { return };
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

/// Leaves a gap for the nodes that the pod prefers, behind those of the template.
pub fn leave_preferred_gap(pod: &mut Value) {
    if let Some(terms) = part(pod, PREFERRED, json!([])).and_then(Value::as_array_mut) {
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
