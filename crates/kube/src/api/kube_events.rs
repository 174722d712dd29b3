//! Requests for Events of `events.k8s.io/v1`.

use std::time::Duration;

use serde_json::Value;

use super::{MERGE_PATCH, OBJECT_BYTES_MAX, call, object_path, write, write_path};
use crate::http::{Http, Method};
use posse_core::model::refusal::Refusal;
use posse_wire::k8s::status::Verb;

/// Nobody waits for an Event.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The Events of one namespace.
#[derive(Clone, Debug)]
pub struct KubeEvents {
    http: Http,
    namespace: String,
}

impl KubeEvents {
    /// The Events in `namespace`.
    pub fn new(http: Http, namespace: &str) -> Self {
        Self { http, namespace: namespace.to_owned() }
    }

    /// Creates an Event.
    ///
    /// # Errors
    /// The server's refusal; `Exists` if an Event has the name already.
    pub fn create(&self, event: &Value) -> Result<(), Refusal> {
        self.send(Method::Post, None, event, Verb::Create)
    }

    /// Changes an Event by a merge patch.
    ///
    /// # Errors
    /// The server's refusal; `NotFound` if the Event is gone.
    pub fn patch(&self, name: &str, patch: &Value) -> Result<(), Refusal> {
        self.send(Method::Patch, Some(name), patch, Verb::Patch)
    }

    fn send(
        &self,
        method: Method,
        name: Option<&str>,
        body: &Value,
        verb: Verb,
    ) -> Result<(), Refusal> {
        let body = body.to_string();
        let path = object_path("/apis/events.k8s.io/v1", &self.namespace, "events", name);
        let mut request = write(method, write_path(&path), body.as_bytes(), OBJECT_BYTES_MAX);
        request.timeout = TIMEOUT;
        if method == Method::Patch {
            request.content_type = MERGE_PATCH;
        }
        call(&self.http, &request, verb).map(drop)
    }
}
