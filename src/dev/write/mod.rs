//! Owns the verbs that write: the order in which the real server checks, admits and stores. In
//! here: what they share, and the binding of pods.

mod create;
mod patch;
mod update;

pub(crate) use create::create;
pub(crate) use patch::patch;
pub(crate) use update::put;

use serde_json::{Value, json};

use crate::dev::api::{Answer, Api, success};
use crate::dev::decode;
use crate::dev::kind::{Key, Kind};
use crate::dev::object::{Object, metadata_mut, object_mut, text_at};
use crate::dev::refused::{Cause, Refused};
use crate::dev::state::State;
use crate::serve::Request;

fn whole(code: u16, object: &Object) -> Answer {
    let mut body = Vec::new();
    object.write_json(&mut body);
    Answer::body(code, body)
}

/// Bodies are JSON.
pub(crate) fn check_media_type(request: &Request) -> Result<(), Refused> {
    let given = request.header("content-type").unwrap_or_default();
    match given.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" => Ok(()),
        _ => Err(Refused::unsupported_media_type()),
    }
}

fn refuse_invalid(kind: Kind, name: &str, causes: &[Cause]) -> Result<(), Refused> {
    match causes {
        [] => Ok(()),
        causes => Err(Refused::invalid(kind, name, causes)),
    }
}

/// What etcd takes in one request, in bytes, and what the client library to it sends at most.
const STORED_BYTES_MAX: usize = 3 << 19;
const SENT_BYTES_MAX: usize = 2 << 20;

/// Objects that etcd would not take are refused in its words.
fn check_size(value: &Value) -> Result<(), Refused> {
    let length = value.to_string().len();
    if length > SENT_BYTES_MAX {
        return Err(Refused::internal(format!(
            "rpc error: code = ResourceExhausted desc = trying to send message larger than max \
             ({length} vs. {SENT_BYTES_MAX})"
        )));
    }
    match length > STORED_BYTES_MAX {
        true => Err(Refused::internal("etcdserver: request is too large")),
        false => Ok(()),
    }
}

/// Writes who manages an object into it; no list where nobody does.
fn set_managed(value: &mut Value, managed: Value) {
    metadata_mut(value).insert("managedFields".to_owned(), managed);
}

/// One more change of the spec, or the mark of deletion.
pub(crate) fn next_generation(value: &mut Value) {
    let generation = value.pointer("/metadata/generation").and_then(Value::as_i64);
    if let Some(generation) = generation {
        metadata_mut(value).insert("generation".to_owned(), (generation + 1).into());
    }
}

/// The name in a body has to be that of the path.
fn check_name(value: &Value, key: &Key) -> Result<(), Refused> {
    match text_at(value, "/metadata/name") {
        name if name == key.name => Ok(()),
        "" => Err(nameless(key)),
        name => Err(Refused::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.name
        ))),
    }
}

fn nameless(key: &Key) -> Refused {
    Refused::bad_request(format!(
        "the name of the object ({} based on URL) was undeterminable: name must be provided",
        key.name
    ))
}

/// Binds a pod to a node, as a scheduler does.
pub(crate) fn bind(api: &Api, request: &Request, key: &Key) -> Result<Answer, Refused> {
    let body = decode::value(&request.body).map_err(Refused::bad_request)?;
    let node = text_at(&body, "/target/name");
    if node.is_empty() {
        return Err(Refused::internal("target.name: Required value"));
    }
    bind_to(&mut api.lock(), key, node)?;
    Ok(Answer::json(201, &success(201)))
}

/// Binds a pod that is bound to no node yet.
pub(crate) fn bind_to(state: &mut State, key: &Key, node: &str) -> Result<(), Refused> {
    let Some(object) = state.store.get(key).cloned() else {
        return Err(Refused::not_found(key.kind, &key.name));
    };
    let refuse = |detail: &str| Err(Refused::conflict("pods/binding", "", &key.name, detail));
    if !object.node().is_empty() {
        let name = &key.name;
        return refuse(&format!("pod {name} is already assigned to node \"{}\"", object.node()));
    }
    if object.deleting {
        return refuse(&format!("pod {} is being deleted, cannot be assigned to a host", key.name));
    }
    let mut value = object.value();
    object_mut(&mut value, "spec").insert("nodeName".to_owned(), node.into());
    let now = state.now.clone();
    set_condition(&mut value, "PodScheduled", "True", "", "", &now);
    state.replace(Kind::Pod, value);
    Ok(())
}

/// Sets one condition of a pod; its moment moves only when its status does.
pub(crate) fn set_condition(
    pod: &mut Value,
    name: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) {
    let list = object_mut(pod, "status").entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return };
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
