//! All executors of an application, whichever instance created them, and the pods that own them.
//! The orphan cleanup decides which of these executors are orphans.

use super::objects::Objects;
use super::{
    CALL_TIMEOUT, OBJECT_BYTES_MAX, STRATEGIC_MERGE_PATCH, call, delete_options, get,
    managed_selector, object_path, uid_precondition, write, write_path,
};
use serde_json::json;

use crate::http::{Http, Method};
use posse_core::model::owner::{Owner, OwnerKind};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::policy::orphans::{OrphanCandidate, OwnerState};
use posse_wire::k8s::kueue;
use posse_wire::k8s::labels::{COMPONENT, INSTANCE};
use posse_wire::k8s::orphan;
use posse_wire::k8s::status::Verb;

/// The executors of one application, or of all applications, in one namespace.
#[derive(Clone, Debug)]
pub struct AppExecutors {
    http: Http,
    namespace: String,
    app: Option<String>,
}

impl AppExecutors {
    /// The executors of `app`, or of every application if `app` is `None`.
    pub fn new(http: Http, namespace: &str, app: Option<&str>) -> Self {
        Self { http, namespace: namespace.to_owned(), app: app.map(str::to_owned) }
    }

    /// Reads the executors of all instances.
    pub fn list(&self) -> Result<Vec<OrphanCandidate>, Refusal> {
        self.list_matching(&self.selector())
    }

    /// Reads the executors of every instance but `ours`.
    pub fn list_others(&self, ours: &str) -> Result<Vec<OrphanCandidate>, Refusal> {
        self.list_matching(&format!("{},{INSTANCE}!={ours}", self.selector()))
    }

    /// Deletes this pod, if it still has the same uid. It leaves its group in a queue before.
    pub fn delete(&self, pod: &OrphanCandidate) -> Result<(), Refusal> {
        let path = write_path(&object_path("/api/v1", &self.namespace, "pods", Some(&pod.name)));
        if pod.is_held_by_queue {
            let patch =
                json!({"metadata": kueue::left_group(&pod.uid.to_string(), true)}).to_string();
            let mut request =
                write(Method::Patch, path.clone(), patch.as_bytes(), OBJECT_BYTES_MAX);
            request.content_type = STRATEGIC_MERGE_PATCH;
            call(&self.http, &request, Verb::Patch)?;
        }
        let body = delete_options(None, Some(uid_precondition(&pod.uid)));
        let request = write(Method::Delete, path, &body, OBJECT_BYTES_MAX);
        call(&self.http, &request, Verb::Delete).map(drop)
    }

    /// The state of what executors name as their owner.
    pub fn owner(&self, named: &Owner) -> OwnerState {
        let (root, resource) = match named.kind {
            OwnerKind::Pod => ("/api/v1", "pods"),
            OwnerKind::Job => ("/apis/batch/v1", "jobs"),
        };
        let parse = |answer: &[u8]| match named.kind {
            OwnerKind::Pod => orphan::parse_owner(answer),
            OwnerKind::Job => orphan::parse_job(answer),
        };
        let path = object_path(root, &self.namespace, resource, Some(&named.name));
        match call(&self.http, &get(path, CALL_TIMEOUT, OBJECT_BYTES_MAX), Verb::Get) {
            Ok((_, answer)) => match parse(&answer) {
                Ok(owner) if owner.uid != named.uid => OwnerState::Replaced,
                Ok(owner) if owner.is_deleting && !owner.phase.is_final() => {
                    OwnerState::Terminating
                }
                Ok(owner) => OwnerState::Found(owner.phase),
                Err(problem) => OwnerState::Unknown(problem.to_string()),
            },
            Err(refusal) if refusal.class == RefusalClass::NotFound => OwnerState::Absent,
            Err(refusal) => OwnerState::Unknown(refusal.to_string()),
        }
    }

    fn selector(&self) -> String {
        format!("{},{}={}", managed_selector(self.app.as_deref()), COMPONENT.0, COMPONENT.1)
    }

    fn list_matching(&self, selector: &str) -> Result<Vec<OrphanCandidate>, Refusal> {
        let objects = Objects::new(self.http.clone(), Some(&self.namespace));
        objects.all_pods(selector, &orphan::parse)
    }
}
