//! Owns the verbs that write: the order in which the real server checks, admits and stores. In
//! here: what they share, and the binding of pods.

mod create;
mod patch;
mod update;

pub(crate) use create::create;
pub(crate) use patch::patch;
pub(crate) use update::put;

use serde_json::Value;

use crate::dev::apiserver::answer::{Answer, success};
use crate::dev::apiserver::api::Api;
use crate::dev::apiserver::codec::decode;
use crate::dev::schema::kind::{Key, Kind};
use crate::dev::schema::status::{Cause, Refused};
use crate::dev::storage::object::{Object, metadata_mut, text_at};
use crate::dev::storage::pods::bind_to;
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
