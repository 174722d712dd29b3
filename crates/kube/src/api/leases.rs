//! The Leases of one namespace.

use std::time::Duration;

use super::{
    LIST_BYTES_MAX, LIST_PAGE_TIMEOUT, OBJECT_BYTES_MAX, call, delete_options, get,
    managed_selector, object_path, open_stream, percent_encode, read, require_success,
    transport_refusal, unreadable, write, write_path,
};
use crate::http::{Http, Method, STREAM_HEAD_TIMEOUT, Stream};
use posse_core::model::lease::Record;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::k8s::lease::{self, LeaseObject, NamedLease};
use posse_wire::k8s::status::Verb;

const ROOT: &str = "/apis/coordination.k8s.io/v1";
/// Shorter than the timeout of other requests: a renewal must not arrive after the Lease has expired.
const LEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// The Leases of one namespace.
#[derive(Clone, Debug)]
pub struct Leases {
    http: Http,
    namespace: String,
}

impl Leases {
    pub fn new(http: Http, namespace: impl Into<String>) -> Self {
        Self { http, namespace: namespace.into() }
    }

    /// Reads a Lease; `None` if it does not exist.
    pub fn get(&self, name: &str) -> Result<Option<Record>, Refusal> {
        let request = get(self.path(Some(name)), LEASE_TIMEOUT, OBJECT_BYTES_MAX);
        let answer = self.http.call(&request).map_err(transport_refusal)?;
        let date = answer.date.clone();
        match require_success(answer, Verb::Get) {
            Err(refusal) if refusal.class == RefusalClass::NotFound => Ok(None),
            Err(refusal) => Err(refusal),
            Ok((status, body)) => match lease::parse_sent(&body, date.as_deref()) {
                Ok(record) => Ok(Some(record)),
                Err(problem) => Err(unreadable(status, &problem.to_string())),
            },
        }
    }

    /// Creates a Lease.
    pub fn create(&self, object: &LeaseObject<'_>) -> Result<Record, Refusal> {
        self.send(Method::Post, self.path(None), object, Verb::Create)
    }

    /// Replaces a Lease. If `object` has a resourceVersion, the server replaces this version only.
    pub fn update(&self, object: &LeaseObject<'_>) -> Result<Record, Refusal> {
        self.send(Method::Put, self.path(Some(object.name)), object, Verb::Update)
    }

    /// Deletes a Lease if its uid and resourceVersion are still those of `record`.
    pub fn delete(&self, name: &str, record: &Record) -> Result<(), Refusal> {
        let uid = record.uid.to_string();
        let body = delete_options(None, Some(&uid), Some(&record.version_text));
        let path = write_path(&self.path(Some(name)));
        let mut request = write(Method::Delete, path, &body, OBJECT_BYTES_MAX);
        request.timeout = LEASE_TIMEOUT;
        call(&self.http, &request, Verb::Delete).map(drop)
    }

    /// Reads the Leases that posse created for `app`, or for all applications.
    pub fn list(&self, app: Option<&str>) -> Result<Vec<NamedLease>, Refusal> {
        self.list_at(&self.path(None), app)
    }

    /// The same in all namespaces.
    pub fn list_everywhere(&self, app: Option<&str>) -> Result<Vec<NamedLease>, Refusal> {
        self.list_at(&format!("{ROOT}/leases"), app)
    }

    /// Opens a watch of posse's Leases in all namespaces. It begins with those that are there, and the server ends it
    /// after `timeout_s`.
    ///
    /// # Errors
    /// The server's refusal, or why no connection was made.
    pub fn watch_everywhere(&self, timeout_s: u32) -> Result<Stream, Refusal> {
        let selector = percent_encode(&managed_selector(None));
        let path =
            format!("{ROOT}/leases?watch=1&labelSelector={selector}&timeoutSeconds={timeout_s}");
        // Without a live run no byte comes before the end.
        let idle = Duration::from_secs(u64::from(timeout_s).saturating_add(5));
        open_stream(&self.http, &path, STREAM_HEAD_TIMEOUT, idle, Verb::Watch)
    }

    fn list_at(&self, path: &str, app: Option<&str>) -> Result<Vec<NamedLease>, Refusal> {
        let selector = percent_encode(&managed_selector(app));
        let path = format!("{path}?labelSelector={selector}");
        let request = get(path, LIST_PAGE_TIMEOUT, LIST_BYTES_MAX);
        read(&self.http, &request, Verb::List, lease::parse_list)
    }

    fn send(
        &self,
        method: Method,
        path: String,
        object: &LeaseObject<'_>,
        verb: Verb,
    ) -> Result<Record, Refusal> {
        let body = object.to_json();
        let mut request = write(method, write_path(&path), &body, OBJECT_BYTES_MAX);
        request.timeout = LEASE_TIMEOUT;
        read(&self.http, &request, verb, lease::parse)
    }

    fn path(&self, name: Option<&str>) -> String {
        object_path(ROOT, &self.namespace, "leases", name)
    }
}
