//! Owns the requests that are not about one instance: all executors of an application, their end,
//! and the pods that own them. Decides nothing.

use super::{
    CALL_TIMEOUT, LIST_BYTES_MAX, LIST_PAGE_TIMEOUT, LIST_RESTARTS_MAX, OBJECT_BYTES_MAX,
    PAGE_ITEMS, PAGES_MAX, call, delete_options, encoded, get, object_path, only_this, selector,
    write, written,
};
use crate::core::model::ids::Uid;
use crate::core::model::pod::OwnerPod;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::core::policy::orphans::{OrphanCandidate, OwnerState};
use crate::kube::http::{Http, Method};
use crate::wire::labels::{COMPONENT, INSTANCE};
use crate::wire::leftover;
use crate::wire::status::{Verb, unreadable};

/// The executors of one application in one namespace, or of all, of whatever instance.
#[derive(Clone, Debug)]
pub struct AppExecutors {
    http: Http,
    namespace: String,
    app: Option<String>,
}

impl AppExecutors {
    /// Those of `app`; of every application where none is named.
    #[must_use]
    pub fn new(http: Http, namespace: &str, app: Option<&str>) -> Self {
        Self { http, namespace: namespace.to_owned(), app: app.map(str::to_owned) }
    }

    /// Reads all of them. Pages that expire under way are begun again.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn list(&self) -> Result<Vec<OrphanCandidate>, Refusal> {
        self.list_those(&self.selector())
    }

    /// Reads those of every instance but `ours`.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn list_others(&self, ours: &str) -> Result<Vec<OrphanCandidate>, Refusal> {
        self.list_those(&format!("{},{INSTANCE}!={ours}", self.selector()))
    }

    /// Deletes this pod and no other of its name.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn delete(&self, pod: &OrphanCandidate) -> Result<(), Refusal> {
        delete_pod(&self.http, &self.namespace, &pod.name, &pod.uid)
    }

    /// What became of a pod that executors name as their owner.
    #[must_use]
    pub fn owner(&self, named: &OwnerPod) -> OwnerState {
        let path = object_path("/api/v1", &self.namespace, "pods", Some(&named.name));
        match call(&self.http, &get(path, CALL_TIMEOUT, OBJECT_BYTES_MAX), Verb::Get) {
            Ok((_, answer)) => match leftover::parse_owner(&answer) {
                Ok((uid, phase)) if uid == named.uid => OwnerState::Found(phase),
                Ok(_) => OwnerState::Replaced,
                Err(problem) => OwnerState::Unknown(problem.to_string()),
            },
            Err(refusal) if refusal.class == RefusalClass::NotFound => OwnerState::Absent,
            Err(refusal) => OwnerState::Unknown(refusal.to_string()),
        }
    }

    fn selector(&self) -> String {
        format!("{},{}={}", selector(self.app.as_deref()), COMPONENT.0, COMPONENT.1)
    }

    fn list_those(&self, selector: &str) -> Result<Vec<OrphanCandidate>, Refusal> {
        for _ in 0..LIST_RESTARTS_MAX {
            match self.list_once(selector) {
                Err(refusal) if refusal.class == RefusalClass::Expired => {
                    log::debug!("a page of the list expired, beginning again: {refusal}");
                }
                result => return result,
            }
        }
        self.list_once(selector)
    }

    fn list_once(&self, selector: &str) -> Result<Vec<OrphanCandidate>, Refusal> {
        let pods = object_path("/api/v1", &self.namespace, "pods", None);
        let first = format!("{pods}?labelSelector={}&limit={PAGE_ITEMS}", encoded(selector));
        let mut path = first.clone();
        let mut all = Vec::new();
        for _ in 0..PAGES_MAX {
            let request = get(path, LIST_PAGE_TIMEOUT, LIST_BYTES_MAX);
            let (status, answer) = call(&self.http, &request, Verb::List)?;
            let mut page = leftover::parse_page(&answer)
                .map_err(|problem| unreadable(status, &problem.to_string()))?;
            all.append(&mut page.pods);
            let Some(token) = page.next else { return Ok(all) };
            path = format!("{first}&continue={}", encoded(&token));
        }
        Err(unreadable(200, &format!("the list has more than {PAGES_MAX} pages")))
    }
}

/// Deletes the pod of this name and uid, of whatever instance.
fn delete_pod(http: &Http, namespace: &str, name: &str, uid: &Uid) -> Result<(), Refusal> {
    let body = delete_options(None, Some(only_this(uid)));
    let path = written(&object_path("/api/v1", namespace, "pods", Some(name)));
    call(http, &write(Method::Delete, path, &body, OBJECT_BYTES_MAX), Verb::Delete).map(drop)
}
