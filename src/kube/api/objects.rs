//! Owns the requests about objects of any kind, as JSON: what `posse submit` and its like make, look
//! at and remove. Decides nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::executor_lookup::ExecutorLookup;
use super::{
    CALL_TIMEOUT, LIST_BYTES_MAX, LIST_PAGE_TIMEOUT, LIST_RESTARTS_MAX, MERGE_PATCH,
    OBJECT_BYTES_MAX, PAGE_ITEMS, PAGES_MAX, Preconditions, REFUSAL_BYTES_MAX, call,
    delete_options, encoded, get, lost, object_path, refused, whole, write, written,
};
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::http::{Http, Method, Request, Stream, StreamHandle};
use crate::wire::labels::APP;
use crate::wire::status::{Verb, unreadable};

/// A log that says nothing for so long is asked for anew.
const LOG_IDLE: Duration = Duration::from_secs(600);

/// The kinds that are dealt with here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ConfigMap,
    Job,
    Pod,
    Role,
    RoleBinding,
    Secret,
    Service,
    ServiceAccount,
}

impl Kind {
    const ALL: [(Self, &'static str, &'static str, &'static str); 8] = [
        (Self::ConfigMap, "ConfigMap", "/api/v1", "configmaps"),
        (Self::Job, "Job", "/apis/batch/v1", "jobs"),
        (Self::Pod, "Pod", "/api/v1", "pods"),
        (Self::Role, "Role", "/apis/rbac.authorization.k8s.io/v1", "roles"),
        (Self::RoleBinding, "RoleBinding", "/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
        (Self::Secret, "Secret", "/api/v1", "secrets"),
        (Self::Service, "Service", "/api/v1", "services"),
        (Self::ServiceAccount, "ServiceAccount", "/api/v1", "serviceaccounts"),
    ];

    /// The kind that an object says to be.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        let kind = object["kind"].as_str()?;
        Self::ALL.iter().find(|(_, name, _, _)| *name == kind).map(|(kind, ..)| *kind)
    }

    /// Its name in manifests.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Its name in the server's own messages.
    #[must_use]
    pub fn word(self) -> String {
        self.name().to_ascii_lowercase()
    }

    fn row(self) -> &'static (Self, &'static str, &'static str, &'static str) {
        let found = Self::ALL.iter().find(|(kind, ..)| *kind == self);
        found.expect("every kind has a line in ALL")
    }
}

/// The objects of one namespace, or of all.
#[derive(Clone, Debug)]
pub struct Objects {
    http: Http,
    /// None: of all namespaces; for lists alone.
    namespace: Option<String>,
}

/// What of a log is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// None: the only one.
    pub container: Option<String>,
    /// Go on until the container ends.
    pub follow: bool,
    /// Only the last so many lines.
    pub tail: Option<u32>,
    /// Only lines from then on, RFC 3339 in whole seconds.
    pub since: Option<String>,
    /// Each line begins with its time.
    pub timestamps: bool,
}

impl Objects {
    /// Those of `namespace`; none: of all of them.
    #[must_use]
    pub fn new(http: Http, namespace: Option<&str>) -> Self {
        Self { http, namespace: namespace.map(str::to_owned) }
    }

    /// The same with streams of their own, and what ends those.
    #[must_use]
    pub fn with_own_streams(&self) -> (Self, StreamHandle) {
        let http = self.http.with_own_streams();
        let handle = http.interrupter();
        (Self { http, namespace: self.namespace.clone() }, handle)
    }

    /// Creates an object of the kind that it says to be, or has it checked only.
    ///
    /// # Errors
    /// The server's refusal, or `Unknown` where the answer is lost or cannot be read.
    pub fn create(&self, kind: Kind, object: &Value, dry_run: bool) -> Result<Value, Refusal> {
        let dry_run = if dry_run { "&dryRun=All" } else { "" };
        let path = format!("{}{dry_run}", written(&self.path(kind, None)));
        let body = object.to_string();
        read(
            &self.http,
            &write(Method::Post, path, body.as_bytes(), OBJECT_BYTES_MAX),
            Verb::Create,
        )
    }

    /// Reads one; none where there is none.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn get(&self, kind: Kind, name: &str) -> Result<Option<Value>, Refusal> {
        let request = get(self.path(kind, Some(name)), CALL_TIMEOUT, OBJECT_BYTES_MAX);
        match read(&self.http, &request, Verb::Get) {
            Err(refusal) if refusal.class == RefusalClass::NotFound => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Changes one by a JSON merge patch, where it still has that uid.
    ///
    /// # Errors
    /// The server's refusal; `Conflict` where another object has its name.
    pub fn patch(&self, kind: Kind, name: &str, patch: &Value) -> Result<Value, Refusal> {
        let path = written(&self.path(kind, Some(name)));
        let body = patch.to_string();
        let mut request = write(Method::Patch, path, body.as_bytes(), OBJECT_BYTES_MAX);
        request.content_type = MERGE_PATCH;
        read(&self.http, &request, Verb::Patch)
    }

    /// Deletes that object and no other of its name; one that is gone is deleted.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn delete(
        &self,
        kind: Kind,
        name: &str,
        uid: &str,
        grace_s: Option<u32>,
    ) -> Result<(), Refusal> {
        let uid = Some(uid.to_owned());
        let body = delete_options(grace_s, Some(Preconditions { uid, resource_version: None }));
        let path = written(&self.path(kind, Some(name)));
        let request = write(Method::Delete, path, &body, OBJECT_BYTES_MAX);
        match call(&self.http, &request, Verb::Delete) {
            // A conflict says that another object has its name.
            Err(refusal)
                if matches!(refusal.class, RefusalClass::Conflict | RefusalClass::NotFound) =>
            {
                Ok(())
            }
            answer => answer.map(drop),
        }
    }

    /// All that the label selector matches, each as `keep` leaves it, and the list's version. Pages
    /// that expire under way are begun again.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn list(
        &self,
        kind: Kind,
        selector: &str,
        keep: &dyn Fn(Value) -> Value,
    ) -> Result<(Vec<Value>, String), Refusal> {
        for _ in 0..LIST_RESTARTS_MAX {
            match self.list_once(kind, selector, keep) {
                Err(refusal) if refusal.class == RefusalClass::Expired => {
                    log::debug!("a page of the list expired, beginning again: {refusal}");
                }
                result => return result,
            }
        }
        self.list_once(kind, selector, keep)
    }

    fn list_once(
        &self,
        kind: Kind,
        selector: &str,
        keep: &dyn Fn(Value) -> Value,
    ) -> Result<(Vec<Value>, String), Refusal> {
        let first = format!("{}&limit={PAGE_ITEMS}", self.selected(kind, selector));
        let (mut path, mut kept) = (first.clone(), Vec::new());
        for _ in 0..PAGES_MAX {
            let request = get(path, LIST_PAGE_TIMEOUT, LIST_BYTES_MAX);
            let mut page = read(&self.http, &request, Verb::List)?;
            let items = page["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
            kept.extend(items.into_iter().map(keep));
            match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
                Some(token) => path = format!("{first}&continue={}", encoded(token)),
                None => {
                    let version = page["metadata"]["resourceVersion"].as_str();
                    return Ok((kept, version.unwrap_or_default().to_owned()));
                }
            }
        }
        Err(unreadable(200, &format!("the list has more than {PAGES_MAX} pages")))
    }

    /// Opens a watch that goes on from `version` and that the server ends after `timeout_s`.
    ///
    /// # Errors
    /// The server's refusal, or why there is no connection.
    pub fn watch(
        &self,
        kind: Kind,
        selector: &str,
        version: &str,
        timeout_s: u32,
    ) -> Result<Stream, Refusal> {
        let path = format!(
            "{}&watch=1&resourceVersion={}&timeoutSeconds={timeout_s}",
            self.selected(kind, selector),
            encoded(version)
        );
        let idle = Duration::from_secs(u64::from(timeout_s).saturating_add(5));
        opened(self.http.open_stream(&path, idle).map_err(lost)?, Verb::Watch)
    }

    /// Opens a container's log.
    ///
    /// # Errors
    /// The server's refusal, or why there is no connection.
    pub fn log(&self, pod: &str, query: &LogQuery) -> Result<Stream, Refusal> {
        let LogQuery { container, follow, tail, since, timestamps } = query;
        let mut path = format!(
            "{}/log?follow={follow}&timestamps={timestamps}",
            self.path(Kind::Pod, Some(pod))
        );
        let texts = [("container", container.clone()), ("sinceTime", since.clone())];
        let tail = [("tailLines", tail.map(|n| n.to_string()))];
        for (key, value) in texts.into_iter().chain(tail) {
            if let Some(value) = value {
                path.push_str(&format!("&{key}={}", encoded(&value)));
            }
        }
        opened(self.http.open_stream(&path, LOG_IDLE).map_err(lost)?, Verb::Get)
    }

    /// What was recorded about the object of that uid, the newest last.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn events(&self, uid: &str) -> Result<Vec<Value>, Refusal> {
        let Some(namespace) = &self.namespace else { return Ok(Vec::new()) };
        ExecutorLookup::new(self.http.clone(), namespace.as_str()).events(uid)
    }

    fn selected(&self, kind: Kind, selector: &str) -> String {
        format!("{}?labelSelector={}", self.path(kind, None), encoded(selector))
    }

    fn path(&self, kind: Kind, name: Option<&str>) -> String {
        let (_, _, root, plural) = kind.row();
        match &self.namespace {
            Some(namespace) => object_path(root, namespace, plural, name),
            None => format!("{root}/{plural}"),
        }
    }
}

/// The patch that has the object of that uid belong to `owner`, which was read, and go with it.
#[must_use]
pub fn owned_by(owner: &Value, uid: &str) -> Value {
    let meta = &owner["metadata"];
    let reference = json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"],
        "uid": meta["uid"], "controller": false, "blockOwnerDeletion": false,
    });
    // With the uid another object of the name is refused.
    json!({ "metadata": { "uid": uid, "ownerReferences": [reference] } })
}

fn opened(mut stream: Stream, verb: Verb) -> Result<Stream, Refusal> {
    if stream.status == 200 {
        return Ok(stream);
    }
    let answer = whole(&mut stream, REFUSAL_BYTES_MAX)?;
    Err(refused(&answer, verb))
}

fn read(http: &Http, request: &Request<'_>, verb: Verb) -> Result<Value, Refusal> {
    let (status, answer) = call(http, request, verb)?;
    serde_json::from_slice(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
}

/// The applications that have pods in a namespace, drivers or executors, in whatever phase.
///
/// # Errors
/// The server's refusal.
pub fn apps_with_pods(http: &Http, namespace: &str) -> Result<BTreeSet<String>, Refusal> {
    let objects = Objects::new(http.clone(), Some(namespace));
    let (apps, version) =
        objects.list(Kind::Pod, APP, &|mut pod| pod["metadata"]["labels"][APP].take())?;
    if version.is_empty() {
        // Whatever it is that answers so: it must not count as "there are none".
        return Err(unreadable(200, "the list has no version"));
    }
    Ok(apps.iter().filter_map(|app| app.as_str().map(str::to_owned)).collect())
}
