//! Requests for Kubernetes objects: paths, limits, timeouts, and answers as values or refusals.

pub mod driver_job;
pub mod driver_pod;
mod field_check;
pub mod leases;
pub mod objects;
pub mod orphans;
pub mod pod_exec;
pub mod pod_groups;
pub mod pods;
pub mod preflight;
pub mod queues;
pub mod retry;
pub mod reviews;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::Read;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;

use crate::http::{Http, JSON, Method, Request, Response, Stream, TransportError};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::k8s::labels::{APP, FIELD_MANAGER, MANAGED_BY};
use posse_wire::k8s::status::{Verb, check_size, refusal, unreadable};

/// Timeout of one request. Longer than the longest timeout of an admission webhook (30 s).
pub const CALL_TIMEOUT: Duration = Duration::from_secs(35);
/// Timeout of one page of a LIST. The API server ends every request but a watch after 60 s.
const LIST_PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The largest answer about a single object, in bytes. etcd stores objects of up to 1.5 MiB.
const OBJECT_BYTES_MAX: u64 = 8 << 20;
/// The largest page of a LIST, or the largest LIST without pages, in bytes.
const LIST_BYTES_MAX: u64 = 256 << 20;
/// How much of the body is read if a stream is refused, in bytes.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;

/// Items per page of a LIST.
const PAGE_ITEMS: u32 = 500;
/// Pages per LIST. More pages than this mean that the server repeats itself.
const PAGES_MAX: usize = 2_000;
/// How often a LIST is restarted because the token of its next page has expired (410).
const LIST_RESTARTS_MAX: usize = 3;

/// The characters that need no escape in a path segment or a query value (RFC 3986, unreserved).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Pods are read from protobuf, for which the server and posse need less time and bytes than for JSON. A server
/// that knows only JSON, as the embedded one, answers in JSON.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf, application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
/// A merge patch that can also change an item of a list. For kinds that every server knows.
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";

/// The class of a refusal for a request that got no answer.
fn transport_refusal(error: TransportError) -> Refusal {
    let (class, message) = match error {
        TransportError::Credentials(message) => (RefusalClass::Unauthorized, message),
        TransportError::NotSent(message) => (RefusalClass::Transient, message),
        error @ TransportError::Tls { .. } => (RefusalClass::Transient, error.to_string()),
        TransportError::Unknown(message) => (RefusalClass::OutcomeUnknown, message),
    };
    Refusal::local(class, message)
}

/// Sends a request, unless etcd would not take its object; gives the status and body of a 2xx answer.
fn call(http: &Http, request: &Request<'_>, verb: Verb) -> Result<(u16, Vec<u8>), Refusal> {
    if let (Method::Post | Method::Put, Some(object)) = (request.method, request.body) {
        check_size(object)?;
    }
    require_success(http.call(request).map_err(transport_refusal)?, verb)
}

/// Sends a request, and reads the body of a 2xx answer.
///
/// # Errors
/// The server's refusal; to a write the class is `OutcomeUnknown` if the answer is lost or cannot be read.
fn read<T, E: fmt::Display>(
    http: &Http,
    request: &Request<'_>,
    verb: Verb,
    parse: impl FnOnce(&[u8]) -> Result<T, E>,
) -> Result<T, Refusal> {
    let (status, answer) = call(http, request, verb)?;
    parse(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
}

fn require_success(answer: Response, verb: Verb) -> Result<(u16, Vec<u8>), Refusal> {
    if (200..300).contains(&answer.status) {
        return Ok((answer.status, answer.body));
    }
    Err(refusal_of(&answer, verb))
}

fn refusal_of(answer: &Response, verb: Verb) -> Refusal {
    refusal(answer.status, answer.retry_after, answer.json, &answer.body, verb)
}

/// Opens a stream; a status other than 200 is a refusal.
fn open_stream(
    http: &Http,
    path: &str,
    head_timeout: Duration,
    idle_timeout: Duration,
    verb: Verb,
) -> Result<Stream, Refusal> {
    let mut stream =
        http.open_stream(path, head_timeout, idle_timeout).map_err(transport_refusal)?;
    if stream.status == 200 {
        return Ok(stream);
    }
    let answer = read_to_end(&mut stream, REFUSAL_BYTES_MAX)?;
    Err(refusal_of(&answer, verb))
}

/// Reads the whole body of a stream.
fn read_to_end(stream: &mut Stream, bytes_max: u64) -> Result<Response, Refusal> {
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

/// Runs a LIST again if the token of its next page has expired.
fn restart_expired<T>(mut list: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
    for _ in 0..LIST_RESTARTS_MAX {
        match list() {
            Err(refusal) if refusal.class == RefusalClass::Expired => {
                log::debug!("the token of the next page expired, restarting the LIST: {refusal}");
            }
            result => return result,
        }
    }
    list()
}

/// Calls `read_page` for every page of the LIST whose first page is `first`. `read_page` gets a
/// path and returns the token of the next page, `None` after the last one.
fn read_pages(
    first: &str,
    mut read_page: impl FnMut(String) -> Result<Option<String>, Refusal>,
) -> Result<(), Refusal> {
    let mut path = first.to_owned();
    for _ in 0..PAGES_MAX {
        match read_page(path)? {
            Some(token) => path = format!("{first}&continue={}", percent_encode(&token)),
            None => return Ok(()),
        }
    }
    Err(unreadable(200, &format!("the list has more than {PAGES_MAX} pages")))
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

/// The path of a write request, with our field manager.
fn write_path(path: &str) -> String {
    format!("{path}?fieldManager={FIELD_MANAGER}")
}

fn object_path(root: &str, namespace: &str, resource: &str, name: Option<&str>) -> String {
    let collection = format!("{root}/namespaces/{}/{resource}", percent_encode(namespace));
    match name {
        Some(name) => format!("{collection}/{}", percent_encode(name)),
        None => collection,
    }
}

/// The label selector of everything that posse created for `app`, or for all applications.
fn managed_selector(app: Option<&str>) -> String {
    let all = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    app.map_or_else(|| all.clone(), |app| format!("{all},{APP}={app}"))
}

/// The body of a DELETE request. The server deletes only what has this uid and version.
fn delete_options(grace_s: Option<u32>, uid: Option<&str>, version: Option<&str>) -> Vec<u8> {
    let mut options = json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
    });
    if let Some(grace_s) = grace_s {
        options["gracePeriodSeconds"] = json!(grace_s);
    }
    for (key, value) in [("uid", uid), ("resourceVersion", version)] {
        if let Some(value) = value {
            options["preconditions"][key] = json!(value);
        }
    }
    options.to_string().into_bytes()
}

fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}
