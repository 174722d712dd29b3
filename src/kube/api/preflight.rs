//! Owns the requests of `posse check` that no run sends: how the server answers at all, who it takes
//! us for, and what a namespace has besides pods. Decides nothing.

use std::time::{Duration, Instant};

use super::{CALL_TIMEOUT, OBJECT_BYTES_MAX, call, encoded, get, object_path, write, written};
use crate::core::model::refusal::Refusal;
use crate::kube::http::{Http, Method, TransportError};
use crate::wire::pod::WireError;
use crate::wire::preflight::{self, Namespace, Quota};
use crate::wire::review;
use crate::wire::status::{Verb, unreadable};

/// How long each of them may take: somebody is waiting for the answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The server's answer to the plainest request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The HTTP status, whatever it is.
    pub status: u16,
    /// The server's version in its own words, where it tells us.
    pub version: Option<String>,
    /// Its clock, as it writes it.
    pub date: Option<String>,
    /// How long the answer took, the connection included.
    pub elapsed: Duration,
}

/// Asks for /version.
///
/// # Errors
/// There is no answer.
pub fn reach(http: &Http) -> Result<Reached, TransportError> {
    let mut request = get("/version".to_owned(), TIMEOUT, OBJECT_BYTES_MAX);
    request.content_type = "";
    let asked_at = Instant::now();
    let answer = http.call(&request)?;
    Ok(Reached {
        status: answer.status,
        version: review::git_version(&answer.body).ok(),
        date: answer.date,
        elapsed: asked_at.elapsed(),
    })
}

/// Asks who we are (SelfSubjectReview, Kubernetes 1.28).
///
/// # Errors
/// The server's refusal: `NotFound` where it is older.
pub fn whoami(http: &Http) -> Result<String, Refusal> {
    let body = br#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    let path = written("/apis/authentication.k8s.io/v1/selfsubjectreviews");
    let mut request = write(Method::Post, path, body, OBJECT_BYTES_MAX);
    request.timeout = TIMEOUT;
    let (status, answer) = call(http, &request, Verb::Create)?;
    preflight::user(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
}

/// Reads a namespace.
///
/// # Errors
/// The server's refusal.
pub fn namespace(http: &Http, name: &str) -> Result<Namespace, Refusal> {
    let path = format!("/api/v1/namespaces/{}", encoded(name));
    read(http, path, Verb::Get, preflight::namespace)
}

/// Reads the quotas of a namespace.
///
/// # Errors
/// The server's refusal.
pub fn quotas(http: &Http, namespace: &str) -> Result<Vec<Quota>, Refusal> {
    let path = object_path("/api/v1", namespace, "resourcequotas", None);
    read(http, path, Verb::List, preflight::quotas)
}

/// Reads the limit ranges of a namespace, a line each.
///
/// # Errors
/// The server's refusal.
pub fn limit_ranges(http: &Http, namespace: &str) -> Result<Vec<String>, Refusal> {
    let path = object_path("/api/v1", namespace, "limitranges", None);
    read(http, path, Verb::List, preflight::limit_ranges)
}

fn read<T>(
    http: &Http,
    path: String,
    verb: Verb,
    parse: impl Fn(&[u8]) -> Result<T, WireError>,
) -> Result<T, Refusal> {
    let (status, answer) = call(http, &get(path, TIMEOUT, OBJECT_BYTES_MAX), verb)?;
    parse(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
}

/// Asks the server for its version, in its own words.
///
/// # Errors
/// The server's refusal.
pub fn version(http: &Http) -> Result<String, Refusal> {
    let request = get("/version".to_owned(), CALL_TIMEOUT, OBJECT_BYTES_MAX);
    let (status, answer) = call(http, &request, Verb::Get)?;
    review::git_version(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
}
