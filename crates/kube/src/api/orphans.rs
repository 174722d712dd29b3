//! All executors of an application, whichever instance created them, and the pods that own them.
//! The orphan cleanup decides which of these executors are orphans.

use super::objects::{Kind, Objects};
use super::{
    OBJECT_BYTES_MAX, STRATEGIC_MERGE_PATCH, call, delete_options, managed_selector, write,
    write_path,
};
use serde_json::json;

use crate::http::{Http, Method};
use posse_core::model::owner::{Owner, OwnerKind};
use posse_core::model::refusal::Refusal;
use posse_core::policy::orphans::{OrphanCandidate, OwnerState};
use posse_wire::k8s::kueue;
use posse_wire::k8s::labels::{COMPONENT, INSTANCE};
use posse_wire::k8s::orphan;
use posse_wire::k8s::status::Verb;

/// The executors of one application, or of all applications, in one namespace.
#[derive(Clone, Debug)]
pub struct AppExecutors {
    objects: Objects,
    app: Option<String>,
}

impl AppExecutors {
    /// The executors of `app`, or of every application if `app` is `None`.
    pub fn new(http: Http, namespace: &str, app: Option<&str>) -> Self {
        Self { objects: Objects::new(http, Some(namespace)), app: app.map(str::to_owned) }
    }

    /// The executors of `app`, where these objects are.
    pub fn of(objects: &Objects, app: &str) -> Self {
        Self { objects: objects.clone(), app: Some(app.to_owned()) }
    }

    /// Reads the executors of all instances.
    pub fn list(&self) -> Result<Vec<OrphanCandidate>, Refusal> {
        self.objects.list(Kind::Pod, &self.selector(), &orphan::parse).map(|(pods, _)| pods)
    }

    /// Reads the executors of every instance but `ours`.
    pub fn list_others(&self, ours: &str) -> Result<Vec<OrphanCandidate>, Refusal> {
        let selector = format!("{},{INSTANCE}!={ours}", self.selector());
        self.objects.list(Kind::Pod, &selector, &orphan::parse).map(|(pods, _)| pods)
    }

    /// Deletes this pod, if it still has the same uid. It leaves its group in a queue before.
    pub fn delete(&self, pod: &OrphanCandidate) -> Result<(), Refusal> {
        let (http, uid) = (self.objects.http(), pod.uid.to_string());
        let path = write_path(&self.objects.path(Kind::Pod, Some(&pod.name)));
        if pod.is_held_by_queue {
            let patch = json!({"metadata": kueue::left_group(&uid, true)}).to_string();
            let mut request =
                write(Method::Patch, path.clone(), patch.as_bytes(), OBJECT_BYTES_MAX);
            request.content_type = STRATEGIC_MERGE_PATCH;
            call(http, &request, Verb::Patch)?;
        }
        let body = delete_options(None, Some(&uid), None);
        let request = write(Method::Delete, path, &body, OBJECT_BYTES_MAX);
        call(http, &request, Verb::Delete).map(drop)
    }

    /// The state of what executors name as their owner.
    pub fn owner(&self, named: &Owner) -> OwnerState {
        let (kind, parse): (_, fn(&[u8]) -> _) = match named.kind {
            OwnerKind::Pod => (Kind::Pod, orphan::parse_owner),
            OwnerKind::Job => (Kind::Job, orphan::parse_job),
        };
        match self.objects.read_one(kind, &named.name, &parse) {
            Ok(Some(owner)) if owner.uid != named.uid => OwnerState::Replaced,
            Ok(Some(owner)) if owner.is_deleting && !owner.phase.is_final() => {
                OwnerState::Terminating
            }
            Ok(Some(owner)) => OwnerState::Found(owner.phase),
            Ok(None) => OwnerState::Absent,
            Err(refusal) => OwnerState::Unknown(refusal.to_string()),
        }
    }

    fn selector(&self) -> String {
        format!("{},{}={}", managed_selector(self.app.as_deref()), COMPONENT.0, COMPONENT.1)
    }
}
