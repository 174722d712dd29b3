//! What `posse check` and `posse explain` read of Kueue's own objects.

use serde_json::{Map, Value};

use crate::error::WireError;
use crate::k8s::preflight::text;
use crate::k8s::selector::selects;

/// Reads the first of a list of Workloads.
pub fn first_workload(bytes: &[u8]) -> Result<Option<Value>, WireError> {
    let mut list: Value = serde_json::from_slice(bytes)?;
    let first = list.pointer_mut("/items/0").map(Value::take);
    Ok(first)
}

/// A LocalQueue, as far as `posse check` reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalQueue {
    /// The name of its ClusterQueue.
    pub cluster_queue: String,
    /// Why it admits nothing now, in Kueue's words.
    pub problem: Option<String>,
}

/// Reads a LocalQueue.
pub fn local_queue(bytes: &[u8]) -> Result<LocalQueue, WireError> {
    let queue: Value = serde_json::from_slice(bytes)?;
    let cluster_queue = text(&queue, "/spec/clusterQueue").unwrap_or_default();
    Ok(LocalQueue { problem: stopped(&queue).or_else(|| inactive(&queue)), cluster_queue })
}

/// Reads why a ClusterQueue admits nothing of a namespace that has these labels.
pub fn closed(bytes: &[u8], labels: &Map<String, Value>) -> Result<Option<String>, WireError> {
    let queue: Value = serde_json::from_slice(bytes)?;
    let selector = queue.pointer("/spec/namespaceSelector");
    let is_open = selector.is_some_and(|all| all.is_object() && selects(all, labels));
    let closed = || "its namespaceSelector does not select this namespace".to_owned();
    Ok(stopped(&queue).or_else(|| inactive(&queue)).or_else(|| (!is_open).then(closed)))
}

fn stopped(queue: &Value) -> Option<String> {
    let policy = text(queue, "/spec/stopPolicy").filter(|policy| *policy != "None")?;
    Some(format!("it is stopped (stopPolicy: {policy})"))
}

fn inactive(queue: &Value) -> Option<String> {
    let conditions = queue.pointer("/status/conditions")?.as_array()?;
    let is_inactive = |one: &&Value| one["type"] == "Active" && one["status"] == "False";
    let said = conditions.iter().find(is_inactive)?;
    let [reason, message] = ["/reason", "/message"].map(|at| text(said, at).unwrap_or_default());
    Some(format!("it is not active: {reason}, {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_queue_says_why_it_admits_nothing() {
        let read = |spec: Value, conditions: Value| {
            let queue = json!({"spec": spec, "status": {"conditions": conditions}});
            local_queue(&serde_json::to_vec(&queue).unwrap()).unwrap()
        };
        let active = |status: &str| {
            json!([{"type": "Active", "status": status, "reason": "ClusterQueueDoesNotExist",
                    "message": "Can't submit new workloads to clusterQueue"}])
        };
        let open = read(json!({"clusterQueue": "team"}), active("True"));
        assert_eq!(open, LocalQueue { cluster_queue: "team".to_owned(), problem: None });
        for (spec, conditions, want) in [
            (json!({"stopPolicy": "None"}), json!([]), None),
            (json!({"stopPolicy": "Hold"}), json!([]), Some("it is stopped (stopPolicy: Hold)")),
            (
                json!({}),
                active("False"),
                Some(
                    "it is not active: ClusterQueueDoesNotExist, Can't submit new workloads to \
                     clusterQueue",
                ),
            ),
            (json!({}), Value::Null, None),
        ] {
            assert_eq!(read(spec, conditions).problem.as_deref(), want);
        }
        assert!(local_queue(b"{").is_err());
    }

    #[test]
    fn a_cluster_queue_is_open_to_the_namespaces_that_it_selects() {
        let namespace = json!({"kubernetes.io/metadata.name": "a", "team": "x"});
        let labels = namespace.as_object().unwrap();
        let key = |operator: &str, key: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (selector, is_open) in [
            (json!({}), true),
            // So the field's documentation says: null selects nothing.
            (Value::Null, false),
            (json!({"matchLabels": {"team": "x"}}), true),
            (json!({"matchLabels": {"team": "y"}}), false),
            (key("In", "team", json!(["x"])), true),
            (key("In", "team", json!(["y"])), false),
            (key("NotIn", "team", json!(["y"])), true),
            (key("NotIn", "other", json!(["y"])), true),
            (key("Exists", "team", Value::Null), true),
            (key("DoesNotExist", "team", Value::Null), false),
            (key("Like", "team", json!(["x"])), false),
        ] {
            let queue = json!({"spec": {"namespaceSelector": selector}});
            let found = closed(&serde_json::to_vec(&queue).unwrap(), labels).unwrap();
            assert_eq!(found.is_none(), is_open, "{selector}: {found:?}");
        }
    }
}
