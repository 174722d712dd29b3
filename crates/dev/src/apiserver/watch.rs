//! One watch: its events, bookmarks and end, and its faults. It waits for tokens of the store and
//! does not hold the lock while it writes.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use serde_json::{Value, json};

use crate::apiserver::api::Api;
use crate::apiserver::codec::versions;
use crate::apiserver::logs::LogSink;
use crate::apiserver::options::{ListOptions, VersionMatch};
use crate::apiserver::table::Form;
use crate::apiserver::web_socket::{self, Socket};
use crate::faults::Fault;
use crate::schema::kind::Kind;
use crate::schema::status::StatusError;
use crate::storage::State;
use crate::storage::store::{Change, Unavailable};
use crate::time;
use posse_serve::{Request, Responder};

const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The last bookmark is sent this long before the end.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// The timeout without `timeoutSeconds`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1800);
/// How often a watch checks that its client is connected and the server runs. `serve` asks for at
/// most 1 s.
const CLIENT_CHECK_EVERY: Duration = Duration::from_millis(500);
/// The changes that are read under one lock.
const BATCH_EVENTS_MAX: usize = 500;

/// The annotation of the bookmark after the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// A requested watch.
#[derive(Debug)]
pub(crate) struct Watch {
    kind: Kind,
    namespace: String,
    options: ListOptions,
    /// A Table has its column definitions in the first event only.
    columns_sent: Cell<bool>,
    /// The version of the objects, if it is not the stored version.
    pub(crate) api_version: Option<&'static str>,
}

/// Where a watch begins.
struct WatchStart {
    tokens: Receiver<()>,
    epoch: u64,
    version: u64,
    /// The initial events.
    first: Vec<u8>,
}

/// The result of reading the history.
enum HistoryRead {
    /// The history does not contain the watch's position.
    Refused(StatusError),
    /// The events as bytes, and the new position.
    Events { bytes: Vec<u8>, version: u64, more: bool },
}

/// The times of a watch.
struct Deadlines {
    end: Instant,
    bookmark: Option<Instant>,
    cut: Option<Instant>,
    silence: Option<Instant>,
}

impl Watch {
    pub(crate) fn new(kind: Kind, namespace: &str, options: ListOptions) -> Self {
        Self {
            kind,
            namespace: namespace.to_owned(),
            options,
            columns_sent: Cell::new(false),
            api_version: None,
        }
    }

    /// Sends events until the timeout, a fault, or the client disconnects: in the body, or as messages
    /// of a web socket.
    pub(crate) fn serve(
        &self,
        api: &Api,
        request: &Request,
        responder: Responder<'_>,
    ) -> io::Result<()> {
        // Before the headers: a client that has them misses no change.
        let start = self.begin(api);
        if web_socket::is_wanted(request) {
            let mut socket = Socket::accept(request, "", responder)?;
            return match self.copy(api, start, &mut socket)? {
                true => socket.close(),
                false => Ok(()),
            };
        }
        let date = time::http_date(api.wall());
        let headers = [("content-type", "application/json"), ("date", date.as_str())];
        let mut writer = responder.stream(200, &headers)?;
        match self.copy(api, start, &mut writer)? {
            true => writer.finish(),
            // Dropped without the last chunk: the client sees a cut connection.
            false => Ok(()),
        }
    }

    /// Sends events; false if the end is a cut, or the client has left.
    fn copy(&self, api: &Api, start: WatchStart, sink: &mut dyn LogSink) -> io::Result<bool> {
        let WatchStart { tokens, epoch, mut version, first } = start;
        if api.faults.counts_down(Fault::Gone) {
            let error = StatusError::expired(format!("too old resource version: {version}"));
            sink.send(&event("ERROR", error.body().to_string().as_bytes()))?;
            return Ok(true);
        }
        let begun = Instant::now();
        let mut due = self.deadlines(begun);
        if due.end > begun {
            sink.send(&first)?;
        }
        let mut looked = false;
        loop {
            let now = Instant::now();
            due.cut = api.faults.time(Fault::DropWatch).map(|after| begun + after);
            due.silence = api.faults.time(Fault::SilentWatch).map(|after| begun + after);
            if due.cut.is_some_and(|at| at <= now) {
                return Ok(false);
            }
            if due.end <= now {
                return Ok(true);
            }
            let silent = due.silence.is_some_and(|at| at <= now);
            let mut more = false;
            if !silent {
                let read = {
                    let state = api.lock();
                    match state.store.epoch() == epoch {
                        true => self.read_history(&state, version),
                        // The store was restored to an older version: the connection is cut.
                        false => return Ok(false),
                    }
                };
                match read {
                    // The real server ends the watch of a client that is too slow; the client
                    // resumes and gets a 410.
                    HistoryRead::Refused(_) if looked => return Ok(true),
                    HistoryRead::Refused(error) => {
                        sink.send(&event("ERROR", error.body().to_string().as_bytes()))?;
                        return Ok(true);
                    }
                    HistoryRead::Events { bytes, version: reached, more: left } => {
                        sink.send(&bytes)?;
                        looked = true;
                        version = reached;
                        more = left;
                    }
                }
                if due.bookmark.is_some_and(|at| at <= now) {
                    let told_at = api.lock().now.clone();
                    sink.send(&self.bookmark(version, &told_at, None))?;
                    due.set_bookmark(now);
                }
            }
            if !more {
                // A change has come, or the time is over. The channel lives as long as the server.
                let _ = tokens.recv_deadline(due.next(silent).min(now + CLIENT_CHECK_EVERY));
            }
            if !sink.is_open() {
                return Ok(false);
            }
        }
    }

    fn begin(&self, api: &Api) -> WatchStart {
        let mut state = api.lock();
        let tokens = state.store.subscribe([self.kind]);
        let from_now = match self.options.at {
            VersionMatch::Now | VersionMatch::NotOlderThan(0) => true,
            VersionMatch::Exact(_) | VersionMatch::NotOlderThan(_) => false,
        };
        let mut first = Vec::new();
        if self.options.initial_events.unwrap_or(from_now) {
            for object in state.store.objects(self.kind, &self.namespace) {
                if self.options.matches(object) {
                    let shaped = self.shaped(object.body(), &state.now);
                    first.extend_from_slice(&event("ADDED", &shaped));
                }
            }
        }
        let version = match self.options.at {
            VersionMatch::Exact(version) | VersionMatch::NotOlderThan(version)
                if !from_now && self.options.initial_events != Some(true) =>
            {
                version
            }
            VersionMatch::Exact(_) | VersionMatch::NotOlderThan(_) | VersionMatch::Now => {
                state.store.version()
            }
        };
        if self.options.initial_events == Some(true) && self.options.bookmarks {
            let annotations = json!({ INITIAL_EVENTS_END: "true" });
            first.extend_from_slice(&self.bookmark(version, &state.now, Some(annotations)));
        }
        WatchStart { tokens, epoch: state.store.epoch(), version, first }
    }

    fn deadlines(&self, now: Instant) -> Deadlines {
        let end = self.options.timeout.and_then(|timeout| now.checked_add(timeout));
        let end = end.unwrap_or(now + TIMEOUT_DEFAULT);
        let mut due = Deadlines { end, bookmark: None, cut: None, silence: None };
        if self.options.bookmarks {
            due.set_bookmark(now);
        }
        due
    }

    /// The next changes that match this watch.
    fn read_history(&self, state: &State, after: u64) -> HistoryRead {
        let store = &state.store;
        let changes = match store.changes_after(after) {
            Ok(changes) => changes,
            Err(Unavailable::Compacted(oldest)) => {
                let message = format!("too old resource version: {after} ({oldest})");
                return HistoryRead::Refused(StatusError::expired(message));
            }
            // kube-apiserver 1.20 stays silent, perhaps forever; a list gets this error.
            Err(Unavailable::Future) => {
                let error = StatusError::too_large_version(after, store.version());
                return HistoryRead::Refused(error);
            }
        };
        let mut bytes = Vec::new();
        let mut n_events = 0;
        for change in changes {
            if n_events == BATCH_EVENTS_MAX {
                return HistoryRead::Events { bytes, version: change.version - 1, more: true };
            }
            let event = self.event_for(change, &state.now);
            n_events += usize::from(!event.is_empty());
            bytes.extend_from_slice(&event);
        }
        HistoryRead::Events { bytes, version: store.version(), more: false }
    }

    /// The event for one change; empty if it does not match.
    fn event_for(&self, change: &Change, now: &str) -> Vec<u8> {
        let key = &change.now.key;
        let here = self.namespace.is_empty() || key.namespace == self.namespace;
        if key.kind != self.kind || !here {
            return Vec::new();
        }
        let matched = change.before.as_ref().is_some_and(|before| self.options.matches(before));
        let matches = !change.gone && self.options.matches(&change.now);
        let word = match (matched, matches) {
            (false, false) => return Vec::new(),
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        let json = match (&change.before, change.gone || matches) {
            // An object that leaves the selection is shown in its last matching state.
            (Some(before), false) => before.at_version(change.version).body(),
            (Some(_) | None, _) => change.now.body(),
        };
        event(word, &self.shaped(json, now))
    }

    /// Converts an object's JSON to the requested version and form.
    fn shaped(&self, json: Vec<u8>, now: &str) -> Vec<u8> {
        let form = self.options.form;
        if form == Form::Plain {
            return match self.api_version {
                Some(version) => versions::convert_body(self.kind, version, json),
                None => json,
            };
        }
        let Ok(object) = serde_json::from_slice(&json) else { return json };
        let columns = !self.columns_sent.replace(true);
        form.object(self.kind, object, now, columns).to_string().into_bytes()
    }

    fn bookmark(&self, version: u64, now: &str, annotations: Option<Value>) -> Vec<u8> {
        let mut object = json!({
            "kind": self.kind.name(),
            "apiVersion": self.kind.api_version(),
            "metadata": { "resourceVersion": version.to_string(), "creationTimestamp": null },
        });
        if let Some(annotations) = annotations {
            object["metadata"]["annotations"] = annotations;
        }
        event("BOOKMARK", &self.shaped(object.to_string().into_bytes(), now))
    }
}

impl Deadlines {
    /// Sets the next bookmark: in a minute, or shortly before the end.
    fn set_bookmark(&mut self, now: Instant) {
        let last = self.end.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(self.end);
        self.bookmark = match last > now {
            true => Some(last.min(now + BOOKMARK_EVERY)),
            false => None,
        };
    }

    fn next(&self, silent: bool) -> Instant {
        let speaking = [self.bookmark, self.silence].into_iter().flatten();
        let speaking = speaking.filter(|_| !silent);
        speaking.chain(self.cut).fold(self.end, Instant::min)
    }
}

fn event(word: &str, object: &[u8]) -> Vec<u8> {
    let mut line = format!(r#"{{"type":"{word}","object":"#).into_bytes();
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    line
}

/// Each event is a text message, as kube-apiserver sends them.
impl LogSink for Socket {
    fn send(&mut self, events: &[u8]) -> io::Result<()> {
        events.split_inclusive(|byte| *byte == b'\n').try_for_each(|event| self.send_text(event))
    }

    fn is_open(&mut self) -> bool {
        Self::is_open(self)
    }
}
