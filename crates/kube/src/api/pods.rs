//! The pods of one instance: create, get, list, watch, patch and delete.

use std::io::Read;
use std::time::{Duration, Instant};

use super::{
    CALL_TIMEOUT, LIST_BYTES_MAX, LIST_PAGE_TIMEOUT, OBJECT_BYTES_MAX, PAGE_ITEMS, PROTOBUF,
    STRATEGIC_MERGE_PATCH, call, delete_options, get, object_path, open_stream, percent_encode,
    read, read_pages, restart_expired, write, write_path,
};
use crate::api::field_check::{DRY_RUN, STRICT, check_answer, check_fields};
use crate::http::{Http, Method, Request, STREAM_HEAD_TIMEOUT, Stream, StreamHandle, WriteLimit};
use posse_core::model::ids::Uid;
use posse_core::model::input::{ListPage, PodAnswer};
use posse_core::model::pod::Pod;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::k8s::labels::Selection;
use posse_wire::k8s::list::{Page, read_page};
use posse_wire::k8s::log::{LOG_BYTES_MAX, last_lines};
use posse_wire::k8s::status::{Verb, unreadable};
use posse_wire::k8s::usage::{PodUsage, pod_usage};
use posse_wire::pod;

/// A watch ends if no byte arrives for this long. The server sends a bookmark about every minute.
pub const WATCH_IDLE: Duration = Duration::from_secs(120);

/// What pods use is told by another server than theirs, if there is one.
const METRICS_API: &str = "/apis/metrics.k8s.io/v1beta1";
/// Somebody who looks at a page waits for it.
const USAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes of a log that are read for its end.
const LOG_READ_BYTES_MAX: usize = 64 << 20;
/// The lines that are asked for of a longer one.
const LOG_END_LINES: u32 = 10_000;
/// How long a log may take to be read, and how long a pause in it may be.
const LOG_READ_TIME_MAX: Duration = Duration::from_secs(30);
const LOG_IDLE: Duration = Duration::from_secs(5);

/// The pods of one instance in one namespace.
#[derive(Clone, Debug)]
pub struct Pods {
    http: Http,
    namespace: String,
    selection: Selection,
    /// Use a stream for LIST requests too, so that a `StreamHandle` can end them.
    lists_stream: bool,
}

impl Pods {
    /// The pods that `selection` matches.
    pub fn new(http: Http, namespace: impl Into<String>, selection: Selection) -> Self {
        Self { http, namespace: namespace.into(), selection, lists_stream: false }
    }

    /// The labels by which these pods are found.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The same pods, and a handle that ends their watches and lists. A thread that is blocked in
    /// one of them must not delay the shutdown.
    #[must_use]
    pub fn with_own_streams(&self) -> (Self, StreamHandle) {
        let (http, handle) = self.http.with_own_streams();
        (Self { http, lists_stream: true, ..self.clone() }, handle)
    }

    /// The same pods, with a latest time for writes.
    #[must_use]
    pub fn with_write_limit(self, limit: Option<WriteLimit>) -> Self {
        Self { http: self.http.with_write_limit(limit), ..self }
    }

    /// Creates a pod.
    ///
    /// # Errors
    /// The server's refusal. The class is `OutcomeUnknown` if the answer is lost or cannot be read.
    pub fn create(&self, body: &[u8]) -> Result<PodAnswer, Refusal> {
        self.send(&self.post(body, ""), Verb::Create)
    }

    /// Asks the server whether it would create this pod, and returns the JSON of the pod that it would create.
    ///
    /// # Errors
    /// The server's refusal. The class is `Invalid` too if the server would create a pod that posse could not work
    /// with.
    pub fn dry_run(&self, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.check_fields(body)?;
        let (status, answer) = call(&self.http, &self.post(body, DRY_RUN), Verb::Create)?;
        check_answer(body, status, &answer)?;
        Ok(answer)
    }

    /// Reads one pod.
    pub fn get(&self, name: &str) -> Result<PodAnswer, Refusal> {
        let request = get(self.path(Some(name)), CALL_TIMEOUT, OBJECT_BYTES_MAX);
        self.send(&request, Verb::Get)
    }

    /// What these pods use, as far as the metrics API has it.
    ///
    /// # Errors
    /// The server's refusal; `NotFound` if it has no metrics API.
    pub fn usage(&self) -> Result<Vec<PodUsage>, Refusal> {
        let path = object_path(METRICS_API, &self.namespace, "pods", None);
        let path = format!("{path}?{}", self.selector());
        read(&self.http, &get(path, USAGE_TIMEOUT, LIST_BYTES_MAX), Verb::List, pod_usage)
    }

    /// Checks whether a node exists. Needs a permission on cluster scope, which few service
    /// accounts have.
    ///
    /// # Errors
    /// The server's refusal; `NotFound` if the node does not exist.
    pub fn get_node(&self, name: &str) -> Result<(), Refusal> {
        let path = format!("/api/v1/nodes/{}", percent_encode(name));
        call(&self.http, &get(path, CALL_TIMEOUT, OBJECT_BYTES_MAX), Verb::Get).map(drop)
    }

    /// Reads the last `n_lines` lines of a container's log. `container` may be `None` if the pod
    /// has only one container.
    ///
    /// # Errors
    /// The server's refusal, or no complete answer within `timeout`.
    pub fn log(
        &self,
        name: &str,
        container: Option<&str>,
        n_lines: u32,
        timeout: Duration,
    ) -> Result<Vec<String>, Refusal> {
        let container =
            container.map_or_else(String::new, |c| format!("&container={}", percent_encode(c)));
        let path = format!(
            "{}/log?tailLines={n_lines}&limitBytes={LOG_BYTES_MAX}{container}",
            self.path(Some(name))
        );
        let request = get(path, timeout, 2 * LOG_BYTES_MAX);
        call(&self.http, &request, Verb::Get).map(|(_, bytes)| last_lines(&bytes, n_lines))
    }

    /// Reads the last `bytes_max` bytes of a container's log, from the begin of a line. The server can cut a log at its
    /// end alone, so all of it is read.
    ///
    /// # Errors
    /// The server's refusal, or why the log ended early.
    pub fn log_end(
        &self,
        name: &str,
        container: Option<&str>,
        bytes_max: usize,
    ) -> Result<Vec<u8>, Refusal> {
        let container =
            container.map_or_else(String::new, |c| format!("container={}", percent_encode(c)));
        let path = format!("{}/log?{container}", self.path(Some(name)));
        match self.read_log_end(&path, bytes_max)? {
            Some(bytes) => Ok(bytes),
            // The kubelet rotates logs long before, by default.
            None => {
                let last = format!("{path}&tailLines={LOG_END_LINES}");
                let bytes = self.read_log_end(&last, bytes_max)?;
                let what = format!(
                    "its last {LOG_END_LINES} lines are longer than {LOG_READ_BYTES_MAX} bytes"
                );
                bytes.ok_or_else(|| Refusal::local(RefusalClass::Invalid, what))
            }
        }
    }

    /// `None`: it is too long to be read.
    fn read_log_end(&self, path: &str, bytes_max: usize) -> Result<Option<Vec<u8>>, Refusal> {
        let (began, mut n_read) = (Instant::now(), 0);
        let mut stream = open_stream(&self.http, path, STREAM_HEAD_TIMEOUT, LOG_IDLE, Verb::Get)?;
        let status = stream.status;
        let failed = |what: &str| unreadable(status, what);
        let (mut last, mut is_cut) = (Vec::new(), false);
        loop {
            let piece = stream.reader().fill_buf().map_err(|error| failed(&error.to_string()))?;
            let n_bytes = piece.len();
            if n_bytes == 0 {
                break;
            }
            last.extend_from_slice(piece);
            stream.reader().consume(n_bytes);
            n_read += n_bytes;
            if n_read > LOG_READ_BYTES_MAX {
                return Ok(None);
            }
            if began.elapsed() > LOG_READ_TIME_MAX {
                return Err(failed(&format!(
                    "it takes longer than {} s",
                    LOG_READ_TIME_MAX.as_secs()
                )));
            }
            // Only now and then, because all bytes that stay are moved.
            if last.len() > 2 * bytes_max {
                last.drain(..last.len() - bytes_max);
                is_cut = true;
            }
        }
        if last.len() > bytes_max || is_cut {
            let first = last.len().saturating_sub(bytes_max);
            let begin = last[first..].iter().position(|byte| *byte == b'\n');
            last.drain(..begin.map_or(first, |begin| first + begin + 1));
        }
        Ok(Some(last))
    }

    /// Reads all pods from a single, consistent state of the cluster. If the page tokens keep
    /// expiring, it asks for all pods in one answer. Pages of different versions are never mixed.
    pub fn list(&self) -> Result<Page, Refusal> {
        let mut all = Page::default();
        self.list_each(|mut page, ListPage { number, .. }| {
            if number == 0 {
                all.pods.clear();
            }
            all.pods.append(&mut page.pods);
            (all.version, all.version_text) = (page.version, page.version_text);
            true
        })?;
        Ok(all)
    }

    /// Like `list`, and gives each page to `take` before it asks for the next one. After an expired token the
    /// first page comes again. If `take` gives false, the rest is not read.
    pub fn list_each(&self, mut take: impl FnMut(Page, ListPage) -> bool) -> Result<(), Refusal> {
        match restart_expired(|| self.list_pages(&mut take)) {
            Err(refusal) if refusal.class == RefusalClass::Expired => {
                let page = self.page(format!("{}?{}", self.path(None), self.selector()))?;
                take(page, ListPage::WHOLE);
                Ok(())
            }
            result => result,
        }
    }

    /// Opens a watch that starts after `version_text`. The server ends it after `timeout_s`, and it ends if no byte
    /// arrives for `idle`.
    ///
    /// # Errors
    /// The server's refusal, or why no connection was made.
    pub fn open_watch(
        &self,
        version_text: &str,
        timeout_s: u32,
        idle: Duration,
    ) -> Result<Stream, Refusal> {
        let path = format!(
            "{}?watch=1&{}&resourceVersion={}&allowWatchBookmarks=true&timeoutSeconds={timeout_s}",
            self.path(None),
            self.selector(),
            percent_encode(version_text),
        );
        open_stream(&self.protobuf(), &path, STREAM_HEAD_TIMEOUT, idle, Verb::Watch)
    }

    /// Deletes one pod; with `uid` only if the pod still has this uid. Returns the terminating pod,
    /// or `None` if the server answers without it.
    pub fn delete(
        &self,
        name: &str,
        uid: Option<&Uid>,
        grace_s: Option<u32>,
    ) -> Result<Option<Pod>, Refusal> {
        let body = delete_options(grace_s, uid.map(Uid::to_string).as_deref(), None);
        let request =
            write(Method::Delete, write_path(&self.path(Some(name))), &body, OBJECT_BYTES_MAX);
        let (_, answer) = call(&self.protobuf(), &request, Verb::Delete)?;
        Ok(match pod::parse(&answer, &self.selection) {
            Ok(PodAnswer::Ours(pod)) => Some(pod),
            // A 2xx answer with any other body, for example a Status, also means success.
            Ok(PodAnswer::Foreign(_)) | Err(_) => None,
        })
    }

    /// Changes one pod with a strategic merge patch.
    pub fn patch(&self, name: &str, patch: &[u8]) -> Result<PodAnswer, Refusal> {
        self.patch_at(&self.path(Some(name)), patch)
    }

    /// Changes the resources of a pod in place (KEP-1287), by a patch of the same kind.
    ///
    /// # Errors
    /// The server's refusal; `NotFound` also if it cannot do that.
    pub fn resize(&self, name: &str, patch: &[u8]) -> Result<PodAnswer, Refusal> {
        self.patch_at(&format!("{}/resize", self.path(Some(name))), patch)
    }

    fn patch_at(&self, path: &str, patch: &[u8]) -> Result<PodAnswer, Refusal> {
        let mut request = write(Method::Patch, write_path(path), patch, OBJECT_BYTES_MAX);
        request.content_type = STRATEGIC_MERGE_PATCH;
        self.send(&request, Verb::Patch)
    }

    /// Refuses a pod that is too large for etcd, and one with misspelt fields if the server would drop them silently.
    /// Newer servers refuse the latter themselves when it is created.
    pub fn check_fields(&self, body: &[u8]) -> Result<(), Refusal> {
        check_fields(&self.http, &write_path(&self.path(None)), body)
    }

    fn post<'a>(&self, body: &'a [u8], options: &str) -> Request<'a> {
        let path = format!("{}{STRICT}{options}", write_path(&self.path(None)));
        write(Method::Post, path, body, OBJECT_BYTES_MAX)
    }

    fn list_pages(&self, take: &mut impl FnMut(Page, ListPage) -> bool) -> Result<(), Refusal> {
        let first = format!("{}?{}&limit={PAGE_ITEMS}", self.path(None), self.selector());
        let mut first_version = None;
        let mut number = 0;
        read_pages(&first, |path| {
            let mut page = self.page(path)?;
            if first_version.get_or_insert_with(|| page.version_text.clone()) != &page.version_text
            {
                let message = "the pages of the list are of different versions";
                let refusal = Refusal::local(RefusalClass::Expired, message);
                return Err(Refusal { code: 410, ..refusal });
            }
            let next = page.next.take();
            let is_wanted = take(page, ListPage { number, is_last: next.is_none() });
            number += 1;
            Ok(next.filter(|_| is_wanted))
        })
    }

    fn page(&self, path: String) -> Result<Page, Refusal> {
        log::debug!("list {path}");
        if !self.lists_stream {
            let request = get(path, LIST_PAGE_TIMEOUT, LIST_BYTES_MAX);
            let page = |mut page: &[u8]| read_page(&mut page, &self.selection);
            return read(&self.protobuf(), &request, Verb::List, page);
        }
        let limit = LIST_PAGE_TIMEOUT;
        let mut stream = open_stream(&self.protobuf(), &path, limit, limit, Verb::List)?;
        let status = stream.status;
        let mut body = stream.reader().take(LIST_BYTES_MAX);
        read_page(&mut body, &self.selection).map_err(|problem| match body.limit() {
            0 => unreadable(status, &format!("it is longer than {LIST_BYTES_MAX} bytes")),
            _ => unreadable(status, &problem.to_string()),
        })
    }

    /// Sends a request about one pod.
    fn send(&self, request: &Request<'_>, verb: Verb) -> Result<PodAnswer, Refusal> {
        read(&self.protobuf(), request, verb, |answer| pod::parse(answer, &self.selection))
    }

    fn protobuf(&self) -> Http {
        self.http.with_accept(PROTOBUF)
    }

    fn path(&self, name: Option<&str>) -> String {
        object_path("/api/v1", &self.namespace, "pods", name)
    }

    fn selector(&self) -> String {
        format!("labelSelector={}", percent_encode(&self.selection.selector()))
    }
}
