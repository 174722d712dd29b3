//! The writing verbs, in the order in which kube-apiserver checks, admits and stores. This file has
//! what they share, and the binding of pods.

mod create;
mod patch;
mod update;

pub(crate) use create::create;
pub(crate) use patch::patch;
pub(crate) use update::put;

use serde_json::Value;

use crate::apiserver::answer::{Answer, success};
use crate::apiserver::api::Api;
use crate::apiserver::codec::decode;
use crate::schema::kind::{Key, Kind};
use crate::schema::status::{Cause, StatusError};
use crate::storage::object::text_at;
use crate::storage::pods::bind_to;
use posse_serve::Request;

fn refuse_invalid(kind: Kind, name: &str, causes: &[Cause]) -> Result<(), StatusError> {
    match causes {
        [] => Ok(()),
        causes => Err(StatusError::invalid(kind, name, causes)),
    }
}

/// etcd's limit for a request, in bytes.
const STORED_BYTES_MAX: usize = 3 << 19;

/// Refuses objects above the limit in the words of etcd.
fn check_size(value: &Value) -> Result<(), StatusError> {
    match value.to_string().len() > STORED_BYTES_MAX {
        true => Err(StatusError::internal("etcdserver: request is too large")),
        false => Ok(()),
    }
}

/// The namespace in the body must be the namespace in the path.
fn check_namespace(value: &Value, namespace: &str) -> Result<(), StatusError> {
    match text_at(value, "/metadata/namespace") {
        given if given.is_empty() || given == namespace => Ok(()),
        _ => Err(StatusError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}

/// The name in the body must be the name in the path.
fn check_name(value: &Value, key: &Key) -> Result<(), StatusError> {
    match text_at(value, "/metadata/name") {
        name if name == key.name => Ok(()),
        "" => Err(name_missing(key)),
        name => Err(StatusError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.name
        ))),
    }
}

fn name_missing(key: &Key) -> StatusError {
    StatusError::bad_request(format!(
        "the name of the object ({} based on URL) was undeterminable: name must be provided",
        key.name
    ))
}

/// Answers `POST pods/NAME/binding`.
pub(crate) fn bind(api: &Api, request: &Request, key: &Key) -> Result<Answer, StatusError> {
    let body = decode::value(&request.body).map_err(StatusError::bad_request)?;
    if text_at(&body, "/metadata/name") != key.name {
        let message = "name in URL does not match name in Binding object";
        return Err(StatusError::bad_request(message));
    }
    let node = text_at(&body, "/target/name");
    if node.is_empty() {
        return Err(StatusError::internal("target.name: Required value"));
    }
    bind_to(&mut api.lock(), key, node)?;
    Ok(Answer::json(201, &success(201)))
}
