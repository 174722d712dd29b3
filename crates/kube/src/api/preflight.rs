//! What `posse check` reads and a run does not: the server's version, our user, the namespace and
//! its quotas and limits.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::{
    CALL_TIMEOUT, OBJECT_BYTES_MAX, get, object_path, percent_encode, read, write, write_path,
};
use crate::http::{Http, Method, TransportError};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::error::WireError;
use posse_wire::k8s::discovery;
use posse_wire::k8s::preflight::{self, ClosedBudget, Namespace, Quota};
use posse_wire::k8s::review;
use posse_wire::k8s::status::Verb;

/// Shorter than the timeout of a run's requests, because a person waits for the answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The server's answer to GET /version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerProbe {
    /// The HTTP status.
    pub status: u16,
    /// The server's version, for example `v1.36.2`; `None` if it does not tell us.
    pub version: Option<String>,
    /// The `Date` header.
    pub date: Option<String>,
    /// The time from the request to the answer, including the connection setup.
    pub elapsed: Duration,
}

/// Sends GET /version and accepts any status.
pub fn probe_server(http: &Http) -> Result<ServerProbe, TransportError> {
    let mut request = get("/version".to_owned(), TIMEOUT, OBJECT_BYTES_MAX);
    request.content_type = "";
    let sent_at = Instant::now();
    let answer = http.call(&request)?;
    Ok(ServerProbe {
        status: answer.status,
        version: review::git_version(&answer.body).ok(),
        date: answer.date,
        elapsed: sent_at.elapsed(),
    })
}

/// The server's version, for example `v1.36.2`.
pub fn version(http: &Http) -> Result<String, Refusal> {
    let request = get("/version".to_owned(), CALL_TIMEOUT, OBJECT_BYTES_MAX);
    read(http, &request, Verb::Get, review::git_version)
}

/// Our user name (SelfSubjectReview).
///
/// # Errors
/// The server's refusal; `NotFound` if it is older than Kubernetes 1.28.
pub fn whoami(http: &Http) -> Result<String, Refusal> {
    let body = br#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    let path = write_path("/apis/authentication.k8s.io/v1/selfsubjectreviews");
    let mut request = write(Method::Post, path, body, OBJECT_BYTES_MAX);
    request.timeout = TIMEOUT;
    if_served(read(http, &request, Verb::Create, preflight::user))?.ok_or_else(|| {
        Refusal::local(RefusalClass::NotFound, "the server has no SelfSubjectReview")
    })
}

pub fn namespace(http: &Http, name: &str) -> Result<Namespace, Refusal> {
    let path = format!("/api/v1/namespaces/{}", percent_encode(name));
    read_at(http, path, Verb::Get, preflight::namespace)
}

pub fn quotas(http: &Http, namespace: &str) -> Result<Vec<Quota>, Refusal> {
    let path = object_path("/api/v1", namespace, "resourcequotas", None);
    read_at(http, path, Verb::List, preflight::quotas)
}

/// The limit ranges of a namespace, one line of text for each.
pub fn limit_ranges(http: &Http, namespace: &str) -> Result<Vec<String>, Refusal> {
    let path = object_path("/api/v1", namespace, "limitranges", None);
    read_at(http, path, Verb::List, preflight::limit_ranges)
}

/// The PodDisruptionBudgets that would let nobody evict an executor with one of these sets of labels.
pub fn closed_budgets(
    http: &Http,
    namespace: &str,
    executors: &[Map<String, Value>],
) -> Result<Vec<ClosedBudget>, Refusal> {
    let api = group_path(http, "/apis/policy")?;
    let path = object_path(&api, namespace, "poddisruptionbudgets", None);
    read_at(http, path, Verb::List, |bytes| preflight::closed_budgets(bytes, executors))
}

/// The controllers of a namespace that would take pods with one of these sets of labels for their own, as kinds and
/// names. Those that may not be listed are left out.
pub fn adopters(http: &Http, namespace: &str, executors: &[Map<String, Value>]) -> Vec<String> {
    let of_kind = |(root, resource, kind): &(&str, &str, &str)| {
        let path = object_path(root, namespace, resource, None);
        let names = read_at(http, path, Verb::List, |bytes| preflight::adopters(bytes, executors));
        let names = names.unwrap_or_default().into_iter();
        names.map(|name| format!("{kind} {name}")).collect::<Vec<String>>()
    };
    ADOPTERS.iter().flat_map(of_kind).collect()
}

/// The controllers of Kubernetes that take pods by their labels.
const ADOPTERS: [(&str, &str, &str); 5] = [
    ("/apis/apps/v1", "replicasets", "ReplicaSet"),
    ("/apis/apps/v1", "statefulsets", "StatefulSet"),
    ("/apis/apps/v1", "daemonsets", "DaemonSet"),
    ("/api/v1", "replicationcontrollers", "ReplicationController"),
    ("/apis/batch/v1", "jobs", "Job"),
];

/// The root of the paths of an API group, in the version that the server prefers. `group`: its path, with `/apis`.
///
/// # Errors
/// The server's refusal; `NotFound` if it does not have the group.
pub(super) fn group_path(http: &Http, group: &str) -> Result<String, Refusal> {
    let versions = if_served(read_at(http, group.to_owned(), Verb::Get, discovery::versions))?;
    let version = versions.and_then(|all| all.into_iter().next()).ok_or_else(|| {
        Refusal::local(RefusalClass::NotFound, format!("the server has no {group}"))
    })?;
    Ok(format!("{group}/{}", percent_encode(&version)))
}

/// The answer at a path that not every server has; none if this one has not. It says so without a Status, which would
/// prove nothing if the path were an object's.
pub(super) fn if_served<T>(answer: Result<T, Refusal>) -> Result<Option<T>, Refusal> {
    match answer {
        Err(refusal) if refusal.code == 404 => Ok(None),
        answer => answer.map(Some),
    }
}

pub(super) fn read_at<T>(
    http: &Http,
    path: String,
    verb: Verb,
    parse: impl Fn(&[u8]) -> Result<T, WireError>,
) -> Result<T, Refusal> {
    read(http, &get(path, TIMEOUT, OBJECT_BYTES_MAX), verb, parse)
}
