//! Owns the requests of `posse cleanup` that are not about one instance: all executors of an
//! application, and the pods that own them. Decides nothing.

use crate::core::leftover::{Leftover, Owner, OwnerPod};
use crate::core::refusal::{Class, Refusal};
use crate::kube::api::{CALL_TIMEOUT, OBJECT_BYTES_MAX, call, get, object_path};
use crate::kube::http::Http;
use crate::kube::pages;
use crate::wire::labels::{APP, COMPONENT};
use crate::wire::leftover;
use crate::wire::status::Verb;

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
        let selector = format!("{APP}={},{}={}", self.app, COMPONENT.0, COMPONENT.1);
        let pods = object_path("/api/v1", &self.namespace, "pods", None);
        pages::list(&self.http, &pods, &selector, |bytes, all: &mut Vec<Leftover>| {
            let mut page = leftover::parse_page(bytes)?;
            all.append(&mut page.pods);
            Ok(page.next)
        })
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
}
