//! What the API server, the scheduler, the kubelet and the controllers do with pods alike: binding,
//! conditions, readiness, taints and tolerations.

use serde_json::{Value, json};

use super::State;
use super::object::{array_at, array_mut, object_mut, text_at};
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;

/// The message of a pod with scheduling gates in its condition PodScheduled.
pub(crate) const GATED: &str = "Scheduling is blocked due to non-empty scheduling gates";

/// Binds a pod to a node. Fails if the pod is bound already or has scheduling gates.
pub(crate) fn bind_to(state: &mut State, key: &Key, node: &str) -> Result<(), StatusError> {
    let Some(object) = state.store.get(key).cloned() else {
        return Err(StatusError::not_found(key.kind, &key.name));
    };
    let refuse = |detail: &str| Err(StatusError::conflict("pods/binding", "", &key.name, detail));
    if !object.node().is_empty() {
        let name = &key.name;
        return refuse(&format!("pod {name} is already assigned to node \"{}\"", object.node()));
    }
    if object.deleting {
        return refuse(&format!("pod {} is being deleted, cannot be assigned to a host", key.name));
    }
    let mut value = object.value();
    if !array_at(&value, "/spec/schedulingGates").is_empty() {
        return refuse(&format!("pod {} has non-empty .spec.schedulingGates", key.name));
    }
    object_mut(&mut value, "spec").insert("nodeName".to_owned(), node.into());
    let now = state.now.clone();
    set_condition(&mut value, "PodScheduled", "True", "", "", &now);
    state.replace(Kind::Pod, value);
    Ok(())
}

/// Sets one condition of a pod. Its lastTransitionTime changes only with its status.
pub(crate) fn set_condition(
    pod: &mut Value,
    name: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) {
    let list = array_mut(&mut pod["status"], "conditions");
    let at = list.iter().position(|condition| text_at(condition, "/type") == name);
    let since = at
        .and_then(|at| list.get(at))
        .filter(|present| text_at(present, "/status") == status)
        .and_then(|present| present.get("lastTransitionTime").cloned())
        .unwrap_or_else(|| now.into());
    let mut condition = json!({
        "type": name, "status": status, "lastProbeTime": null, "lastTransitionTime": since,
    });
    for (field, text) in [("reason", reason), ("message", message)] {
        if !text.is_empty() {
            condition[field] = text.into();
        }
    }
    match at {
        Some(at) => list[at] = condition,
        None => list.push(condition),
    }
}

/// True if the toleration matches the taint.
pub(crate) fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let same = |field: &str| text_at(toleration, field) == text_at(taint, field);
    let is_unset = |field: &str| text_at(toleration, field).is_empty();
    let exists = text_at(toleration, "/operator") == "Exists";
    (is_unset("/effect") || same("/effect"))
        && ((exists && is_unset("/key")) || same("/key"))
        && (exists || same("/value"))
}

/// Adds or removes a taint of a node. True if that changed the node.
pub(crate) fn set_taint(
    node: &mut Value,
    key: &str,
    effect: &str,
    wanted: bool,
    now: &str,
) -> bool {
    let is_same =
        |taint: &Value| text_at(taint, "/key") == key && text_at(taint, "/effect") == effect;
    if array_at(node, "/spec/taints").iter().any(is_same) == wanted {
        return false;
    }
    let list = array_mut(&mut node["spec"], "taints");
    if wanted {
        list.push(json!({ "key": key, "effect": effect, "timeAdded": now }));
        return true;
    }
    list.retain(|taint| !is_same(taint));
    if list.is_empty() {
        object_mut(node, "spec").remove("taints");
    }
    true
}
