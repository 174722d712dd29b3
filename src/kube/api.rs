//! Owns the verbs: what is asked of the API server, and the paths, limits and time-outs of it.
//! Decides nothing: an answer other than success is handed on as a `Refusal`.

use std::io::Read;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use crate::core::machines::lease::Record;
use crate::core::model::ids::{Uid, Version};
use crate::core::model::input::PodAnswer;
use crate::core::model::pod::Pod;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::http::{Http, Method, Request, Response, Stream, StreamHandle, TransportError};
use crate::wire::labels::{FIELD_MANAGER, Selection};
use crate::wire::lease::LeaseObject;
use crate::wire::list::{Page, parse_page};
use crate::wire::log::{LOG_BYTES_MAX, last_lines};
use crate::wire::review::{self, Access, Verdict};
use crate::wire::status::{Verb, refusal, unreadable};
use crate::wire::{lease, pod};

/// How long one request may take: longer than a server lets its webhooks take (30 s).
pub const CALL_TIMEOUT: Duration = Duration::from_secs(35);
/// The same for a page of a LIST; a server gives up after 60 s itself.
pub(super) const LIST_PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for a Lease: a write that lands after the lease ran out would be worse than none.
const LEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// A watch ends after so long without a byte: bookmarks come every minute.
pub const WATCH_IDLE: Duration = Duration::from_secs(120);

/// The largest answer about one object, in bytes; etcd keeps none above 1.5 MiB.
pub(super) const OBJECT_BYTES_MAX: u64 = 8 << 20;
/// The largest page, or whole LIST where paging fails, in bytes.
pub(super) const LIST_BYTES_MAX: u64 = 256 << 20;
/// How much of a refused watch's body is read, in bytes.
pub(super) const REFUSAL_BYTES_MAX: u64 = 64 << 10;

/// Pods asked for in one page.
pub(super) const PAGE_ITEMS: u32 = 500;
/// Pages of one LIST; a server that has more is going round in circles.
pub(super) const PAGES_MAX: usize = 2_000;
/// How often a LIST whose pages expired under way begins again before it asks for all in one.
pub(super) const LIST_RESTARTS_MAX: usize = 3;

/// What is left as it is in a path component or a query value (RFC 3986, unreserved).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const JSON: &str = "application/json";
pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";

/// A whole LIST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    pub pods: Vec<Pod>,
    /// The list's own version, where it compares.
    pub version: Option<Version>,
    /// The same as it is written: what a watch goes on from.
    pub version_text: String,
}

/// The pods of one instance in one namespace.
#[derive(Clone, Debug)]
pub struct Pods {
    http: Http,
    namespace: String,
    selection: Selection,
    watch_idle: Duration,
    /// Lists run over streams, too, so that they can be ended from outside.
    lists_stream: bool,
}

/// The leases of one namespace.
#[derive(Clone, Debug)]
pub struct Leases {
    http: Http,
    namespace: String,
}

/// A body for DELETE.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions {
    api_version: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    grace_period_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preconditions: Option<Preconditions>,
    propagation_policy: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Preconditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resource_version: Option<String>,
}

impl Pods {
    /// The pods of `selection`.
    #[must_use]
    pub fn new(http: Http, namespace: impl Into<String>, selection: Selection) -> Self {
        Self {
            http,
            namespace: namespace.into(),
            selection,
            watch_idle: WATCH_IDLE,
            lists_stream: false,
        }
    }

    /// Whose pods these are.
    #[must_use]
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The same pods with watches and lists of their own, and what ends those: a thread that is
    /// reading one must not hold up a stop.
    #[must_use]
    pub fn with_own_streams(&self) -> (Self, StreamHandle) {
        let http = self.http.with_own_streams();
        let handle = http.interrupter();
        (Self { http, lists_stream: true, ..self.clone() }, handle)
    }

    /// The same pods; a watch ends after `idle` without a byte instead of `WATCH_IDLE`.
    #[must_use]
    pub fn with_watch_idle(self, idle: Duration) -> Self {
        Self { watch_idle: idle, ..self }
    }

    /// Creates a pod, or has it checked only.
    ///
    /// # Errors
    /// The server's refusal, or `Unknown` where the answer is lost or cannot be read.
    pub fn create(&self, body: &[u8], dry_run: bool) -> Result<PodAnswer, Refusal> {
        let (status, answer) = self.post(body, dry_run)?;
        self.seen(status, &answer)
    }

    /// As `create`, with the server's own text for an answer.
    ///
    /// # Errors
    /// As `create`.
    pub fn create_raw(&self, body: &[u8], dry_run: bool) -> Result<Vec<u8>, Refusal> {
        self.post(body, dry_run).map(|(_, answer)| answer)
    }

    /// Reads one pod.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn get(&self, name: &str) -> Result<PodAnswer, Refusal> {
        let request = get(self.path(Some(name)), CALL_TIMEOUT, OBJECT_BYTES_MAX);
        let (status, answer) = call(&self.http, &request, Verb::Get)?;
        self.seen(status, &answer)
    }

    /// Looks whether a node is there. It takes a right on the whole cluster, which few have.
    ///
    /// # Errors
    /// The server's refusal: `NotFound` where the node object is gone.
    pub fn get_node(&self, name: &str) -> Result<(), Refusal> {
        let path = format!("/api/v1/nodes/{}", encoded(name));
        call(&self.http, &get(path, CALL_TIMEOUT, OBJECT_BYTES_MAX), Verb::Get).map(drop)
    }

    /// Reads the last `n_lines` lines of a container's log; of the only container where none is
    /// named.
    ///
    /// # Errors
    /// The server's refusal, or that there was no whole answer within `timeout`.
    pub fn log(
        &self,
        name: &str,
        container: Option<&str>,
        n_lines: u32,
        timeout: Duration,
    ) -> Result<Vec<String>, Refusal> {
        let container =
            container.map_or_else(String::new, |c| format!("&container={}", encoded(c)));
        let path = format!(
            "{}/log?tailLines={n_lines}&limitBytes={LOG_BYTES_MAX}{container}",
            self.path(Some(name))
        );
        let request = get(path, timeout, 2 * LOG_BYTES_MAX);
        call(&self.http, &request, Verb::Get).map(|(_, bytes)| last_lines(&bytes, n_lines))
    }

    /// Reads all of them, consistently. Pages that expire under way are begun again, then asked for
    /// in one; pages of different lists are never mixed.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn list(&self) -> Result<Listed, Refusal> {
        for _ in 0..=LIST_RESTARTS_MAX {
            match self.list_paged() {
                Err(refusal) if refusal.class == RefusalClass::Expired => {
                    log::debug!("a page of the list expired, beginning again: {refusal}");
                }
                result => return result,
            }
        }
        let page = self.page(&format!("{}?{}", self.path(None), self.selector(None)))?;
        Ok(Listed { pods: page.pods, version: page.version, version_text: page.version_text })
    }

    /// Opens a watch that goes on from `version_text` and that the server ends after `timeout_s`.
    ///
    /// # Errors
    /// The server's refusal, or why there is no connection.
    pub fn open_watch(&self, version_text: &str, timeout_s: u32) -> Result<Stream, Refusal> {
        let path = format!(
            "{}?watch=1&{}&resourceVersion={}&allowWatchBookmarks=true&timeoutSeconds={timeout_s}",
            self.path(None),
            self.selector(None),
            encoded(version_text),
        );
        let mut stream = self.http.open_stream(&path, self.watch_idle).map_err(lost)?;
        if stream.status == 200 {
            return Ok(stream);
        }
        let answer = whole(&mut stream, REFUSAL_BYTES_MAX)?;
        Err(refused(&answer, Verb::Watch))
    }

    /// Deletes one pod; with a uid that pod and no other of its name. The pod as it is on its way
    /// out, or none where the server says only that it is done.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn delete(
        &self,
        name: &str,
        uid: Option<&Uid>,
        grace_s: Option<u32>,
    ) -> Result<Option<Pod>, Refusal> {
        let body = delete_options(grace_s, uid.map(only_this));
        let request =
            write(Method::Delete, written(&self.path(Some(name))), &body, OBJECT_BYTES_MAX);
        let (_, answer) = call(&self.http, &request, Verb::Delete)?;
        Ok(match pod::parse(&answer, &self.selection) {
            Ok(PodAnswer::Ours(pod)) => Some(pod),
            // A Status says that it is done; so does a 200 with whatever else.
            Ok(PodAnswer::Foreign(_)) | Err(_) => None,
        })
    }

    /// Deletes all of them, or those that `extra_selector` matches as well.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn delete_collection(
        &self,
        grace_s: Option<u32>,
        extra_selector: Option<&str>,
    ) -> Result<(), Refusal> {
        let body = delete_options(grace_s, None);
        let path = written(&self.path(None));
        let path = format!("{path}&{}", self.selector(extra_selector));
        let request = write(Method::Delete, path, &body, LIST_BYTES_MAX);
        call(&self.http, &request, Verb::Delete).map(drop)
    }

    /// Changes one pod by a JSON merge patch.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn patch(&self, name: &str, merge_patch: &[u8]) -> Result<PodAnswer, Refusal> {
        let path = written(&self.path(Some(name)));
        let mut request = write(Method::Patch, path, merge_patch, OBJECT_BYTES_MAX);
        request.content_type = MERGE_PATCH;
        let (status, answer) = call(&self.http, &request, Verb::Patch)?;
        self.seen(status, &answer)
    }

    fn post(&self, body: &[u8], dry_run: bool) -> Result<(u16, Vec<u8>), Refusal> {
        let dry_run = if dry_run { "&dryRun=All" } else { "" };
        let path = format!("{}{dry_run}", written(&self.path(None)));
        let request = write(Method::Post, path, body, OBJECT_BYTES_MAX);
        call(&self.http, &request, Verb::Create)
    }

    fn list_paged(&self) -> Result<Listed, Refusal> {
        let first = format!("{}?{}&limit={PAGE_ITEMS}", self.path(None), self.selector(None));
        let mut page = self.page(&first)?;
        let mut listed =
            Listed { pods: page.pods, version: page.version, version_text: page.version_text };
        for _ in 1..PAGES_MAX {
            let Some(token) = page.next else { return Ok(listed) };
            page = self.page(&format!("{first}&continue={}", encoded(&token)))?;
            if page.version_text != listed.version_text {
                return Err(Refusal {
                    class: RefusalClass::Expired,
                    code: 410,
                    reason: String::new(),
                    message: "the pages of the list are of different versions".to_owned(),
                    retry_after_ms: None,
                });
            }
            listed.pods.append(&mut page.pods);
        }
        Err(unreadable(200, &format!("the list has more than {PAGES_MAX} pages")))
    }

    fn page(&self, path: &str) -> Result<Page, Refusal> {
        log::debug!("list {path}");
        let (status, answer) = if self.lists_stream {
            let mut stream = self.http.open_stream(path, LIST_PAGE_TIMEOUT).map_err(lost)?;
            succeeded(whole(&mut stream, LIST_BYTES_MAX)?, Verb::List)?
        } else {
            let request = get(path.to_owned(), LIST_PAGE_TIMEOUT, LIST_BYTES_MAX);
            call(&self.http, &request, Verb::List)?
        };
        let page = parse_page(&answer, &self.selection)
            .map_err(|problem| unreadable(status, &problem.to_string()))?;
        if page.n_foreign > 0 {
            log::warn!("{} pods match our selector but carry no id of ours", page.n_foreign);
        }
        Ok(page)
    }

    fn seen(&self, status: u16, answer: &[u8]) -> Result<PodAnswer, Refusal> {
        pod::parse(answer, &self.selection)
            .map_err(|problem| unreadable(status, &problem.to_string()))
    }

    fn path(&self, name: Option<&str>) -> String {
        object_path("/api/v1", &self.namespace, "pods", name)
    }

    fn selector(&self, extra: Option<&str>) -> String {
        let ours = self.selection.selector();
        let all = extra.map_or_else(|| ours.clone(), |extra| format!("{ours},{extra}"));
        format!("labelSelector={}", encoded(&all))
    }
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

    /// Where all of them are.
    pub(super) fn collection(&self) -> (&Http, String) {
        (&self.http, self.path(None))
    }

    fn path(&self, name: Option<&str>) -> String {
        object_path("/apis/coordination.k8s.io/v1", &self.namespace, "leases", name)
    }
}

/// Deletes the pod of this name and uid, of whatever instance.
pub(super) fn delete_pod(
    http: &Http,
    namespace: &str,
    name: &str,
    uid: &Uid,
) -> Result<(), Refusal> {
    let body = delete_options(None, Some(only_this(uid)));
    let path = written(&object_path("/api/v1", namespace, "pods", Some(name)));
    call(http, &write(Method::Delete, path, &body, OBJECT_BYTES_MAX), Verb::Delete).map(drop)
}

/// Asks whether we may do `access`.
///
/// # Errors
/// The server's refusal.
pub fn access_review(http: &Http, access: Access<'_>) -> Result<Verdict, Refusal> {
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let body = review::question(access);
    let request = write(Method::Post, written(path), &body, OBJECT_BYTES_MAX);
    let (status, answer) = call(http, &request, Verb::Create)?;
    review::verdict(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
}

/// Asks the server for its version, in its own words.
///
/// # Errors
/// The server's refusal.
pub fn version(http: &Http) -> Result<String, Refusal> {
    let request = get("/version".to_owned(), CALL_TIMEOUT, OBJECT_BYTES_MAX);
    let (status, answer) = call(http, &request, Verb::Get)?;
    review::git_version(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
}

/// What a failure of the transport means.
#[must_use]
pub fn lost(error: TransportError) -> Refusal {
    let (class, message) = match error {
        TransportError::Credentials(message) => (RefusalClass::Unauthorized, message),
        TransportError::NotSent(message) | TransportError::Tls(message) => {
            (RefusalClass::Transient, message)
        }
        TransportError::Unknown(message) => (RefusalClass::OutcomeUnknown, message),
    };
    Refusal { class, code: 0, reason: String::new(), message, retry_after_ms: None }
}

pub(super) fn call(
    http: &Http,
    request: &Request<'_>,
    verb: Verb,
) -> Result<(u16, Vec<u8>), Refusal> {
    succeeded(http.call(request).map_err(lost)?, verb)
}

fn succeeded(answer: Response, verb: Verb) -> Result<(u16, Vec<u8>), Refusal> {
    if (200..300).contains(&answer.status) {
        return Ok((answer.status, answer.body));
    }
    Err(refused(&answer, verb))
}

pub(super) fn refused(answer: &Response, verb: Verb) -> Refusal {
    refusal(answer.status, answer.retry_after, answer.json, &answer.body, verb)
}

/// Reads a stream that ends to its end.
pub(super) fn whole(stream: &mut Stream, bytes_max: u64) -> Result<Response, Refusal> {
    let mut body = Vec::new();
    let read = stream.reader().take(bytes_max + 1).read_to_end(&mut body);
    let problem = match read {
        Ok(_) if body.len() as u64 > bytes_max => format!("it is longer than {bytes_max} bytes"),
        Ok(_) => {
            let Stream { status, retry_after, json, .. } = *stream;
            return Ok(Response { status, retry_after, json, date: None, body });
        }
        Err(e) => e.to_string(),
    };
    Err(unreadable(stream.status, &problem))
}

fn record(status: u16, answer: &[u8]) -> Result<Record, Refusal> {
    lease::parse(answer).map_err(|problem| unreadable(status, &problem.to_string()))
}

pub(super) fn get(path: String, timeout: Duration, body_bytes_max: u64) -> Request<'static> {
    Request { method: Method::Get, path, content_type: JSON, body: None, timeout, body_bytes_max }
}

pub(super) fn write(method: Method, path: String, body: &[u8], body_bytes_max: u64) -> Request<'_> {
    Request {
        method,
        path,
        content_type: JSON,
        body: Some(body),
        timeout: CALL_TIMEOUT,
        body_bytes_max,
    }
}

/// The path of a write: it says who writes.
pub(super) fn written(path: &str) -> String {
    format!("{path}?fieldManager={FIELD_MANAGER}")
}

pub(super) fn object_path(
    root: &str,
    namespace: &str,
    resource: &str,
    name: Option<&str>,
) -> String {
    let collection = format!("{root}/namespaces/{}/{resource}", encoded(namespace));
    match name {
        Some(name) => format!("{collection}/{}", encoded(name)),
        None => collection,
    }
}

fn only_this(uid: &Uid) -> Preconditions {
    Preconditions { uid: Some(uid.to_string()), resource_version: None }
}

pub(super) fn delete_options(
    grace_s: Option<u32>,
    preconditions: Option<Preconditions>,
) -> Vec<u8> {
    let options = DeleteOptions {
        api_version: "v1",
        kind: "DeleteOptions",
        grace_period_seconds: grace_s,
        preconditions,
        propagation_policy: "Background",
    };
    serde_json::to_vec(&options).expect("strings and numbers serialize")
}

pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

#[cfg(test)]
mod tests;
