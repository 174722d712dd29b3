//! Objects of any kind in JSON, for what is no run: `posse submit`, `apps`, `logs`, `stop`, `explain`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{
    CALL_TIMEOUT, LIST_BYTES_MAX, LIST_PAGE_TIMEOUT, MERGE_PATCH, OBJECT_BYTES_MAX, PAGE_ITEMS,
    call, delete_options, get, object_path, open_stream, percent_encode, read, read_pages,
    restart_expired, write, write_path,
};
use crate::api::field_check::{DRY_RUN, STRICT, check_answer, check_fields, check_job_answer};
use crate::http::{Http, Method, STREAM_HEAD_TIMEOUT, Stream, StreamHandle};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::error::WireError;
use posse_wire::k8s::job::Job;
use posse_wire::k8s::labels::{APP, EXECUTOR_ID, INSTANCE, Selection, executor_selector};
use posse_wire::k8s::list::parse_items;
use posse_wire::k8s::object::Meta;
use posse_wire::k8s::seen_event::SeenEvent;
use posse_wire::k8s::status::{Verb, unreadable};
use posse_wire::names;
use posse_wire::pod::details::PodDetails;

/// How many Events of one object are read. A person reads them, so one page is enough.
const EVENTS_MAX: u32 = 500;
/// A log stream without a byte for this long is closed; the caller opens it again.
const LOG_IDLE: Duration = Duration::from_secs(600);

/// What a server before 1.15 does not know, it sends whole.
const METADATA: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json";

/// The kinds of objects that posse creates or reads as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ConfigMap,
    Event,
    Job,
    Namespace,
    PersistentVolumeClaim,
    Pod,
    Role,
    RoleBinding,
    Secret,
    Service,
    ServiceAccount,
}

impl Kind {
    /// Kind, its name in manifests, the root of its path, and its resource name.
    const ALL: [(Self, &'static str, &'static str, &'static str); 11] = [
        (Self::ConfigMap, "ConfigMap", "/api/v1", "configmaps"),
        (Self::Event, "Event", "/apis/events.k8s.io/v1", "events"),
        (Self::Job, "Job", "/apis/batch/v1", "jobs"),
        (Self::Namespace, "Namespace", "/api/v1", "namespaces"),
        (Self::PersistentVolumeClaim, "PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims"),
        (Self::Pod, "Pod", "/api/v1", "pods"),
        (Self::Role, "Role", "/apis/rbac.authorization.k8s.io/v1", "roles"),
        (Self::RoleBinding, "RoleBinding", "/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
        (Self::Secret, "Secret", "/api/v1", "secrets"),
        (Self::Service, "Service", "/api/v1", "services"),
        (Self::ServiceAccount, "ServiceAccount", "/api/v1", "serviceaccounts"),
    ];

    /// The kind in the object's `kind` field.
    pub fn of(object: &Value) -> Option<Self> {
        let kind = object["kind"].as_str()?;
        Self::ALL.iter().find(|(_, name, _, _)| *name == kind).map(|(kind, ..)| *kind)
    }

    /// The name in manifests, for example `ConfigMap`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Kind and name for messages, for example `job wordcount-driver`.
    pub fn with_name(self, name: &str) -> String {
        format!("{} {name}", self.word())
    }

    /// The name in messages, for example `configmap`.
    pub fn word(self) -> String {
        self.name().to_ascii_lowercase()
    }

    /// For example `batch/v1`.
    fn api_version(self) -> &'static str {
        let (_, _, root, _) = self.row();
        root.strip_prefix("/apis/").or_else(|| root.strip_prefix("/api/")).unwrap_or(root)
    }

    fn row(self) -> &'static (Self, &'static str, &'static str, &'static str) {
        let found = Self::ALL.iter().find(|(kind, ..)| *kind == self);
        found.expect("every kind has a line in ALL")
    }
}

/// The objects of one namespace, or of all namespaces.
#[derive(Clone, Debug)]
pub struct Objects {
    http: Http,
    /// `None` means all namespaces; only lists work then.
    namespace: Option<String>,
}

/// Which part of a container's log to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// May be `None` if the pod has only one container.
    pub container: Option<String>,
    /// Wait for new lines until the container ends.
    pub follow: bool,
    /// Only this many lines from the end.
    pub tail: Option<u32>,
    /// Only lines since this time (RFC 3339, whole seconds).
    pub since: Option<String>,
    /// Put the time in front of each line.
    pub timestamps: bool,
}

impl Objects {
    /// The objects of `namespace`, or of all namespaces if it is `None`.
    pub fn new(http: Http, namespace: Option<&str>) -> Self {
        Self { http, namespace: namespace.map(str::to_owned) }
    }

    pub(super) fn http(&self) -> &Http {
        &self.http
    }

    /// The same objects, and a handle that ends their streams.
    #[must_use]
    pub fn with_own_streams(&self) -> (Self, StreamHandle) {
        let (http, handle) = self.http.with_own_streams();
        (Self { http, namespace: self.namespace.clone() }, handle)
    }

    /// Creates an object; with `dry_run` the server only checks it.
    ///
    /// # Errors
    /// The server's refusal. The class is `OutcomeUnknown` if the answer is lost or cannot be read.
    pub fn create(&self, kind: Kind, object: &Value) -> Result<Meta, Refusal> {
        let body = object.to_string();
        let (status, answer) = self.post(kind, body.as_bytes(), "")?;
        Meta::parse(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
    }

    /// Asks the server whether it would create this object.
    ///
    /// # Errors
    /// The server's refusal. The class is `Invalid` too if the server would create a pod that posse could not work
    /// with.
    pub fn dry_run(&self, kind: Kind, object: &Value) -> Result<(), Refusal> {
        let body = object.to_string();
        let body = body.as_bytes();
        if kind == Kind::Pod {
            check_fields(&self.http, &write_path(&self.path(kind, None)), body)?;
        }
        let (status, answer) = self.post(kind, body, DRY_RUN)?;
        if kind == Kind::Pod {
            check_answer(body, status, &answer)?;
        }
        if kind == Kind::Job {
            check_job_answer(object, status, &answer)?;
        }
        Ok(())
    }

    fn post(&self, kind: Kind, body: &[u8], options: &str) -> Result<(u16, Vec<u8>), Refusal> {
        // Not for Jobs: posse gives them fields that older servers may ignore.
        let strict = if kind == Kind::Pod { STRICT } else { "" };
        let path = format!("{}{strict}{options}", write_path(&self.path(kind, None)));
        call(&self.http, &write(Method::Post, path, body, OBJECT_BYTES_MAX), Verb::Create)
    }

    /// Reads an object whole; `None` if it does not exist.
    pub fn get(&self, kind: Kind, name: &str) -> Result<Option<Value>, Refusal> {
        self.read_one(kind, name, &|bytes| Ok(serde_json::from_slice(bytes)?))
    }

    /// Reads the metadata of an object; `None` if it does not exist.
    pub fn meta(&self, kind: Kind, name: &str) -> Result<Option<Meta>, Refusal> {
        self.read_one(kind, name, &Meta::parse)
    }

    /// Reads a pod; `None` if it does not exist.
    pub fn pod(&self, name: &str) -> Result<Option<PodDetails>, Refusal> {
        self.read_one(Kind::Pod, name, &PodDetails::parse)
    }

    /// Reads a Job; `None` if it does not exist.
    pub fn job(&self, name: &str) -> Result<Option<Job>, Refusal> {
        self.read_one(Kind::Job, name, &Job::parse)
    }

    pub(super) fn read_one<T>(
        &self,
        kind: Kind,
        name: &str,
        parse: &dyn Fn(&[u8]) -> Result<T, WireError>,
    ) -> Result<Option<T>, Refusal> {
        let request = get(self.path(kind, Some(name)), CALL_TIMEOUT, OBJECT_BYTES_MAX);
        match read(&self.http, &request, Verb::Get, parse) {
            Err(refusal) if refusal.class == RefusalClass::NotFound => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Changes an object with a JSON merge patch (RFC 7386).
    ///
    /// # Errors
    /// The server's refusal; `Conflict` if the patch names a uid and the object has another one.
    pub fn patch(&self, kind: Kind, name: &str, patch: &Value) -> Result<(), Refusal> {
        let path = write_path(&self.path(kind, Some(name)));
        let body = patch.to_string();
        let mut request = write(Method::Patch, path, body.as_bytes(), OBJECT_BYTES_MAX);
        request.content_type = MERGE_PATCH;
        call(&self.http, &request, Verb::Patch).map(drop)
    }

    /// Replaces an object. If `object` has a resourceVersion, the server replaces this version only.
    ///
    /// # Errors
    /// The server's refusal; `Conflict` if the object has changed.
    pub fn replace(&self, kind: Kind, name: &str, object: &Value) -> Result<Meta, Refusal> {
        let path = write_path(&self.path(kind, Some(name)));
        let body = object.to_string();
        let request = write(Method::Put, path, body.as_bytes(), OBJECT_BYTES_MAX);
        read(&self.http, &request, Verb::Update, Meta::parse)
    }

    /// Deletes the object with this name and uid. Succeeds if the object no longer exists.
    pub fn delete(
        &self,
        kind: Kind,
        name: &str,
        uid: &str,
        grace_s: Option<u32>,
    ) -> Result<(), Refusal> {
        self.delete_if(kind, name, &delete_options(grace_s, Some(uid), None))
    }

    /// Deletes this version of the object. Succeeds if it has changed or no longer exists.
    pub fn delete_version(
        &self,
        kind: Kind,
        name: &str,
        uid: &str,
        version: &str,
    ) -> Result<(), Refusal> {
        self.delete_if(kind, name, &delete_options(None, Some(uid), Some(version)))
    }

    fn delete_if(&self, kind: Kind, name: &str, options: &[u8]) -> Result<(), Refusal> {
        let path = write_path(&self.path(kind, Some(name)));
        let request = write(Method::Delete, path, options, OBJECT_BYTES_MAX);
        match call(&self.http, &request, Verb::Delete) {
            // A conflict means that another object has the name now, or another version.
            Err(refusal)
                if matches!(refusal.class, RefusalClass::Conflict | RefusalClass::NotFound) =>
            {
                Ok(())
            }
            answer => answer.map(drop),
        }
    }

    /// The pods that the label selector matches, and the resourceVersion of the list.
    pub fn pods(&self, selector: &str) -> Result<(Vec<PodDetails>, String), Refusal> {
        self.list(Kind::Pod, selector, &PodDetails::parse)
    }

    /// The executors of an application, of all instances; with `id` only those with this id.
    pub fn executors(&self, app: &str, id: Option<u64>) -> Result<Vec<PodDetails>, Refusal> {
        let id = id.map_or_else(String::new, |id| format!(",{EXECUTOR_ID}={id}"));
        self.pods(&(executor_selector(app) + &id)).map(|(pods, _)| pods)
    }

    /// Lists the objects that the label selector matches. `parse` reads what the caller needs of each of
    /// them. Also returns the resourceVersion of the list.
    pub fn list<T>(
        &self,
        kind: Kind,
        selector: &str,
        parse: &dyn Fn(&[u8]) -> Result<T, WireError>,
    ) -> Result<(Vec<T>, String), Refusal> {
        self.list_by(kind, selector, PAGE_ITEMS, parse)
    }

    /// The same, with so many objects in a page: large ones are in memory one page at a time.
    pub fn list_by<T>(
        &self,
        kind: Kind,
        selector: &str,
        page_items: u32,
        parse: &dyn Fn(&[u8]) -> Result<T, WireError>,
    ) -> Result<(Vec<T>, String), Refusal> {
        let first = format!("{}&limit={page_items}", self.list_path(kind, selector));
        restart_expired(|| {
            let (mut objects, mut version) = (Vec::new(), String::new());
            read_pages(&first, |path| {
                let request = get(path, LIST_PAGE_TIMEOUT, LIST_BYTES_MAX);
                let items = |page: &[u8]| parse_items(page, kind.name(), parse);
                let page = read(&self.http, &request, Verb::List, items)?;
                objects.extend(page.items);
                version = page.version_text;
                Ok(page.next)
            })?;
            Ok((objects, version))
        })
    }

    /// The metadata of the objects that the label selector matches: the server sends nothing else.
    pub fn list_meta(&self, kind: Kind, selector: &str) -> Result<Vec<Meta>, Refusal> {
        let (http, namespace) = (self.http.with_accept(METADATA), self.namespace.clone());
        Self { http, namespace }.list(kind, selector, &Meta::parse).map(|(all, _)| all)
    }

    /// Opens a watch that starts after `version`. The server ends it after `timeout_s`.
    ///
    /// # Errors
    /// The server's refusal, or why no connection was made.
    pub fn watch(
        &self,
        kind: Kind,
        selector: &str,
        version: &str,
        timeout_s: u32,
    ) -> Result<Stream, Refusal> {
        let path = format!(
            "{}&watch=1&resourceVersion={}&timeoutSeconds={timeout_s}",
            self.list_path(kind, selector),
            percent_encode(version)
        );
        let idle = Duration::from_secs(u64::from(timeout_s).saturating_add(5));
        open_stream(&self.http, &path, STREAM_HEAD_TIMEOUT, idle, Verb::Watch)
    }

    /// Opens a container's log.
    ///
    /// # Errors
    /// The server's refusal, or why no connection was made.
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
                path.push_str(&format!("&{key}={}", percent_encode(&value)));
            }
        }
        // The kubelet sends no head before the first line.
        let head = if *follow { LOG_IDLE } else { STREAM_HEAD_TIMEOUT };
        open_stream(&self.http, &path, head, LOG_IDLE, Verb::Get)
    }

    /// The Events about the object with this uid.
    pub fn events(&self, uid: &str) -> Result<Vec<SeenEvent>, Refusal> {
        let Some(namespace) = &self.namespace else { return Ok(Vec::new()) };
        let path = object_path("/api/v1", namespace, "events", None);
        let by = percent_encode(&format!("involvedObject.uid={uid}"));
        let path = format!("{path}?fieldSelector={by}&limit={EVENTS_MAX}");
        let request = get(path, CALL_TIMEOUT, LIST_BYTES_MAX);
        let items = |page: &[u8]| parse_items(page, Kind::Event.name(), &SeenEvent::parse);
        read(&self.http, &request, Verb::List, items).map(|page| page.items)
    }

    fn list_path(&self, kind: Kind, selector: &str) -> String {
        format!("{}?labelSelector={}", self.path(kind, None), percent_encode(selector))
    }

    pub(super) fn path(&self, kind: Kind, name: Option<&str>) -> String {
        let (_, _, root, plural) = kind.row();
        match &self.namespace {
            Some(namespace) => object_path(root, namespace, plural, name),
            None => format!("{root}/{plural}"),
        }
    }
}

/// A merge patch that makes `owner` the owner of the object with this uid, so that the garbage
/// collector deletes the object with its owner.
pub fn owned_by(kind: Kind, owner: &Meta, uid: &str) -> Value {
    let reference = json!({
        "apiVersion": kind.api_version(), "kind": kind.name(), "name": owner.name,
        "uid": owner.uid, "controller": false, "blockOwnerDeletion": false,
    });
    // The server refuses the patch if another object has the name now: its uid differs.
    json!({ "metadata": { "uid": uid, "ownerReferences": [reference] } })
}

/// The applications that have pods in a namespace, drivers or executors.
///
/// # Errors
/// The server's refusal, or an answer that is no list.
pub fn apps_with_pods(http: &Http, namespace: &str) -> Result<BTreeSet<String>, Refusal> {
    pods_of_posse(&Objects::new(http.clone(), Some(namespace)), |bytes| {
        Ok(Meta::parse(bytes)?.label(APP).map(str::to_owned).into_iter().collect())
    })
}

/// The runs that have a pod that has not ended, a driver or an executor, in any namespace.
///
/// # Errors
/// The server's refusal, or an answer that is no list.
pub fn unfinished_runs(http: &Http) -> Result<BTreeSet<Selection>, Refusal> {
    pods_of_posse(&Objects::new(http.clone(), None), |bytes| {
        let pod = PodDetails::parse(bytes)?;
        let Some(app) = pod.meta.label(APP).filter(|_| !pod.has_ended()) else {
            return Ok(Vec::new());
        };
        let instances = match pod.meta.label(INSTANCE) {
            Some(instance) => vec![instance.to_owned()],
            // A driver's pod gives its run a name by its uid, or by that of its Job.
            None => {
                let owners = pod.meta.owner_references.iter().map(|owner| &owner.uid);
                [&pod.meta.uid]
                    .into_iter()
                    .chain(owners)
                    .map(|uid| names::instance_from_uid(uid))
                    .collect()
            }
        };
        let of = |instance| Selection { app: app.to_owned(), instance };
        Ok(instances.into_iter().map(of).collect())
    })
}

/// What `parse` reads of each pod that is of an application.
fn pods_of_posse<T: Ord>(
    objects: &Objects,
    parse: impl Fn(&[u8]) -> Result<Vec<T>, WireError>,
) -> Result<BTreeSet<T>, Refusal> {
    Ok(objects.list(Kind::Pod, APP, &parse)?.0.into_iter().flatten().collect())
}
