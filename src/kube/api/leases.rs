//! The leases of one namespace.

use std::time::Duration;

use super::{
    LIST_BYTES_MAX, LIST_PAGE_TIMEOUT, OBJECT_BYTES_MAX, Preconditions, call, delete_options,
    encoded, get, object_path, selector, write, written,
};
use crate::core::machines::lease::Record;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::http::{Http, Method};
use crate::wire::lease::{self, LeaseObject, NamedLease};
use crate::wire::status::{Verb, unreadable};

/// The same for a Lease: a write that lands after the lease ran out would be worse than none.
const LEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// The leases of one namespace.
#[derive(Clone, Debug)]
pub struct Leases {
    http: Http,
    namespace: String,
}

impl Leases {
    /// The leases of `namespace`.
    #[must_use]
    pub fn new(http: Http, namespace: impl Into<String>) -> Self {
        Self { http, namespace: namespace.into() }
    }

    /// Reads one; none where there is none.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn get(&self, name: &str) -> Result<Option<Record>, Refusal> {
        let request = get(self.path(Some(name)), LEASE_TIMEOUT, OBJECT_BYTES_MAX);
        match call(&self.http, &request, Verb::Get) {
            Ok((status, answer)) => record(status, &answer).map(Some),
            Err(refusal) if refusal.class == RefusalClass::NotFound => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Creates one.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn create(&self, object: &LeaseObject<'_>) -> Result<Record, Refusal> {
        self.put(Method::Post, self.path(None), object, Verb::Create)
    }

    /// Replaces one; with the version in `object`, that state of it and no other.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn update(&self, object: &LeaseObject<'_>) -> Result<Record, Refusal> {
        self.put(Method::Put, self.path(Some(object.name)), object, Verb::Update)
    }

    /// Deletes one in exactly the state that `record` tells.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn delete(&self, name: &str, record: &Record) -> Result<(), Refusal> {
        let preconditions = Preconditions {
            uid: Some(record.uid.to_string()),
            resource_version: Some(record.version_text.clone()),
        };
        let body = delete_options(None, Some(preconditions));
        let path = written(&self.path(Some(name)));
        let mut request = write(Method::Delete, path, &body, OBJECT_BYTES_MAX);
        request.timeout = LEASE_TIMEOUT;
        call(&self.http, &request, Verb::Delete).map(drop)
    }

    /// Reads those that posse made for `app`, or for every application.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn list(&self, app: Option<&str>) -> Result<Vec<NamedLease>, Refusal> {
        let path = format!("{}?labelSelector={}", self.path(None), encoded(&selector(app)));
        let (status, answer) =
            call(&self.http, &get(path, LIST_PAGE_TIMEOUT, LIST_BYTES_MAX), Verb::List)?;
        lease::parse_list(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
    }

    fn put(
        &self,
        method: Method,
        path: String,
        object: &LeaseObject<'_>,
        verb: Verb,
    ) -> Result<Record, Refusal> {
        let body = object.to_json();
        let mut request = write(method, written(&path), &body, OBJECT_BYTES_MAX);
        request.timeout = LEASE_TIMEOUT;
        let (status, answer) = call(&self.http, &request, verb)?;
        record(status, &answer)
    }

    fn path(&self, name: Option<&str>) -> String {
        object_path("/apis/coordination.k8s.io/v1", &self.namespace, "leases", name)
    }
}

fn record(status: u16, answer: &[u8]) -> Result<Record, Refusal> {
    lease::parse(answer).map_err(|problem| unreadable(status, &problem.to_string()))
}
