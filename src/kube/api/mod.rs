//! Owns the verbs: what is asked of the API server, and the paths, limits and time-outs of it.
//! Decides nothing: an answer other than success is handed on as a `Refusal`.

pub mod driver_pod;
pub mod executor_lookup;
pub mod leases;
pub mod objects;
pub mod orphans;
pub mod pods;
pub mod preflight;
pub mod reviews;

#[cfg(test)]
mod tests;

use std::io::Read;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use crate::core::model::ids::Uid;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::http::{Http, Method, Request, Response, Stream, TransportError};
use crate::wire::labels::{APP, FIELD_MANAGER, MANAGED_BY};
use crate::wire::status::{Verb, refusal, unreadable};

/// How long one request may take: longer than a server lets its webhooks take (30 s).
pub const CALL_TIMEOUT: Duration = Duration::from_secs(35);
/// The same for a page of a LIST; a server gives up after 60 s itself.
const LIST_PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The largest answer about one object, in bytes; etcd keeps none above 1.5 MiB.
const OBJECT_BYTES_MAX: u64 = 8 << 20;
/// The largest page, or whole LIST where paging fails, in bytes.
const LIST_BYTES_MAX: u64 = 256 << 20;
/// How much of a refused watch's body is read, in bytes.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;

/// Pods asked for in one page.
const PAGE_ITEMS: u32 = 500;
/// Pages of one LIST; a server that has more is going round in circles.
const PAGES_MAX: usize = 2_000;
/// How often a LIST whose pages expired under way begins again before it asks for all in one.
const LIST_RESTARTS_MAX: usize = 3;

/// What is left as it is in a path component or a query value (RFC 3986, unreserved).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// A body for DELETE.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions {
    api_version: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    grace_period_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preconditions: Option<Preconditions>,
    propagation_policy: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Preconditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
}

/// What a failure of the transport means.
#[must_use]
pub fn lost(error: TransportError) -> Refusal {
    let (class, message) = match error {
        TransportError::Credentials(message) => (RefusalClass::Unauthorized, message),
        TransportError::NotSent(message) | TransportError::Tls(message) => {
            (RefusalClass::Transient, message)
        }
        TransportError::Unknown(message) => (RefusalClass::OutcomeUnknown, message),
    };
    Refusal { class, code: 0, reason: String::new(), message, retry_after_ms: None }
}

fn call(http: &Http, request: &Request<'_>, verb: Verb) -> Result<(u16, Vec<u8>), Refusal> {
    succeeded(http.call(request).map_err(lost)?, verb)
}

fn succeeded(answer: Response, verb: Verb) -> Result<(u16, Vec<u8>), Refusal> {
    if (200..300).contains(&answer.status) {
        return Ok((answer.status, answer.body));
    }
    Err(refused(&answer, verb))
}

fn refused(answer: &Response, verb: Verb) -> Refusal {
    refusal(answer.status, answer.retry_after, answer.json, &answer.body, verb)
}

/// Reads a stream that ends to its end.
fn whole(stream: &mut Stream, bytes_max: u64) -> Result<Response, Refusal> {
    let mut body = Vec::new();
    let read = stream.reader().take(bytes_max + 1).read_to_end(&mut body);
    let problem = match read {
        Ok(_) if body.len() as u64 > bytes_max => format!("it is longer than {bytes_max} bytes"),
        Ok(_) => {
            let Stream { status, retry_after, json, .. } = *stream;
            return Ok(Response { status, retry_after, json, date: None, body });
        }
        Err(e) => e.to_string(),
    };
    Err(unreadable(stream.status, &problem))
}

fn get(path: String, timeout: Duration, body_bytes_max: u64) -> Request<'static> {
    Request { method: Method::Get, path, content_type: JSON, body: None, timeout, body_bytes_max }
}

fn write(method: Method, path: String, body: &[u8], body_bytes_max: u64) -> Request<'_> {
    Request {
        method,
        path,
        content_type: JSON,
        body: Some(body),
        timeout: CALL_TIMEOUT,
        body_bytes_max,
    }
}

/// The path of a write: it says who writes.
fn written(path: &str) -> String {
    format!("{path}?fieldManager={FIELD_MANAGER}")
}

fn object_path(root: &str, namespace: &str, resource: &str, name: Option<&str>) -> String {
    let collection = format!("{root}/namespaces/{}/{resource}", encoded(namespace));
    match name {
        Some(name) => format!("{collection}/{}", encoded(name)),
        None => collection,
    }
}

fn delete_options(grace_s: Option<u32>, preconditions: Option<Preconditions>) -> Vec<u8> {
    let options = DeleteOptions {
        api_version: "v1",
        kind: "DeleteOptions",
        grace_period_seconds: grace_s,
        preconditions,
        propagation_policy: "Background",
    };
    serde_json::to_vec(&options).expect("strings and numbers serialize")
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

fn only_this(uid: &Uid) -> Preconditions {
    Preconditions { uid: Some(uid.to_string()), resource_version: None }
}

/// What posse made for this application, or for all.
fn selector(app: Option<&str>) -> String {
    let all = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    app.map_or_else(|| all.clone(), |app| format!("{all},{APP}={app}"))
}
