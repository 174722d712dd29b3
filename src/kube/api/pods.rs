//! The pods of one instance: create, read, list, watch, patch, delete.

use std::time::Duration;

use super::{
    CALL_TIMEOUT, LIST_BYTES_MAX, LIST_PAGE_TIMEOUT, LIST_RESTARTS_MAX, MERGE_PATCH,
    OBJECT_BYTES_MAX, PAGE_ITEMS, PAGES_MAX, REFUSAL_BYTES_MAX, call, delete_options, encoded, get,
    lost, object_path, only_this, refused, succeeded, whole, write, written,
};
use crate::core::model::ids::{Uid, Version};
use crate::core::model::input::PodAnswer;
use crate::core::model::pod::Pod;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::http::{Http, Method, Stream, StreamHandle};
use crate::wire::labels::Selection;
use crate::wire::list::{Page, parse_page};
use crate::wire::log::{LOG_BYTES_MAX, last_lines};
use crate::wire::pod;
use crate::wire::status::{Verb, unreadable};

/// A watch ends after so long without a byte: bookmarks come every minute.
pub const WATCH_IDLE: Duration = Duration::from_secs(120);

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
