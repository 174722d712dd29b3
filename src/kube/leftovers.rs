//! Owns the requests of `posse cleanup` that are not about one instance: all executors of an
//! application, and the pods that own them. Decides nothing.

use crate::core::leftover::{Leftover, Owner, OwnerPod};
use crate::core::refusal::{Class, Refusal};
use crate::kube::api::{
    CALL_TIMEOUT, LIST_BYTES_MAX, LIST_PAGE_TIMEOUT, LIST_RESTARTS_MAX, OBJECT_BYTES_MAX,
    PAGE_ITEMS, PAGES_MAX, call, encoded, get, object_path,
};
use crate::kube::http::Http;
use crate::wire::labels::{APP, COMPONENT};
use crate::wire::leftover;
use crate::wire::status::{Verb, unreadable};

/// The executors of one application in one namespace, of whatever instance.
#[derive(Clone, Debug)]
pub struct Leftovers {
    http: Http,
    namespace: String,
    app: String,
}

impl Leftovers {
    /// Those of `app`.
    #[must_use]
    pub fn new(http: Http, namespace: impl Into<String>, app: impl Into<String>) -> Self {
        Self { http, namespace: namespace.into(), app: app.into() }
    }

    /// Reads all of them. Pages that expire under way are begun again.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn list(&self) -> Result<Vec<Leftover>, Refusal> {
        for _ in 0..LIST_RESTARTS_MAX {
            match self.list_once() {
                Err(refusal) if refusal.class == Class::Expired => {
                    log::debug!("a page of the list expired, beginning again: {refusal}");
                }
                result => return result,
            }
        }
        self.list_once()
    }

    /// What became of a pod that executors name as their owner.
    #[must_use]
    pub fn owner(&self, named: &OwnerPod) -> Owner {
        let path = object_path("/api/v1", &self.namespace, "pods", Some(&named.name));
        match call(&self.http, &get(path, CALL_TIMEOUT, OBJECT_BYTES_MAX), Verb::Get) {
            Ok((_, answer)) => match leftover::parse_owner(&answer) {
                Ok((uid, phase)) if uid == named.uid => Owner::Found(phase),
                Ok(_) => Owner::Replaced,
                Err(problem) => Owner::Unknown(problem.to_string()),
            },
            Err(refusal) if refusal.class == Class::NotFound => Owner::Absent,
            Err(refusal) => Owner::Unknown(refusal.to_string()),
        }
    }

    fn list_once(&self) -> Result<Vec<Leftover>, Refusal> {
        let selector = format!("{APP}={},{}={}", self.app, COMPONENT.0, COMPONENT.1);
        let pods = object_path("/api/v1", &self.namespace, "pods", None);
        let first = format!("{pods}?labelSelector={}&limit={PAGE_ITEMS}", encoded(&selector));
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
