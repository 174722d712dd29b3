//! Owns one watch: which changes it tells and how, bookmarks, its end, and the faults that befall
//! it. Waits for tokens of the store, never in a loop of sleeps, and holds no lock while it writes.

use std::cell::Cell;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use serde_json::{Value, json};

use crate::dev::apiserver::api::Api;
use crate::dev::apiserver::codec::versions;
use crate::dev::apiserver::options::{At, ListOptions};
use crate::dev::faults::Fault;
use crate::dev::schema::kind::Kind;
use crate::dev::schema::status::Refused;
use crate::dev::storage::State;
use crate::dev::storage::store::{Change, Unavailable};
use crate::dev::time;
use crate::serve::{ChunkWriter, Responder};

const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A last bookmark goes out so long before the end.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Without `timeoutSeconds`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1800);
/// How long a gone client, or the server's stop, stays unseen. The server asks for at most 1 s.
const CLIENT_CHECK_EVERY: Duration = Duration::from_millis(500);
/// Changes told under one hold of the lock.
const BATCH_EVENTS_MAX: usize = 500;

/// Marks the bookmark after which only news follow.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// A watch that was asked for.
#[derive(Debug)]
pub(crate) struct Watch {
    kind: Kind,
    namespace: String,
    options: ListOptions,
    /// A Table names its columns in the first event, and not again.
    columns_told: Cell<bool>,
    /// Of the objects that it tells of, where that is not the stored one.
    pub(crate) api_version: Option<&'static str>,
}

/// Where a watch begins.
struct Start {
    tokens: Receiver<()>,
    epoch: u64,
    version: u64,
    /// What is told at once.
    first: Vec<u8>,
}

/// What a look at the store gave.
enum Look {
    /// The history no longer reaches back to where the watch stands.
    Behind(Refused),
    /// These bytes, and up to here.
    Told { bytes: Vec<u8>, version: u64, more: bool },
}

/// When what is due.
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
            columns_told: Cell::new(false),
            api_version: None,
        }
    }

    /// Tells changes until the time is up, the client has gone or a fault strikes.
    pub(crate) fn serve(&self, api: &Api, responder: Responder<'_>) -> io::Result<()> {
        let Start { tokens, epoch, mut version, first } = self.begin(api);
        let date = time::http_date(api.wall());
        let headers = [("content-type", "application/json"), ("date", date.as_str())];
        let mut writer = responder.stream(200, &headers)?;
        if api.faults.counts_down(Fault::Gone) {
            let refused = Refused::expired(format!("too old resource version: {version}"));
            send(&mut writer, &event("ERROR", refused.body().to_string().as_bytes()))?;
            return writer.finish();
        }
        let begun = Instant::now();
        let mut due = self.deadlines(begun);
        send(&mut writer, &first)?;
        let mut looked = false;
        loop {
            let now = Instant::now();
            due.cut = api.faults.time(Fault::DropWatch).map(|after| begun + after);
            due.silence = api.faults.time(Fault::SilentWatch).map(|after| begun + after);
            if due.cut.is_some_and(|at| at <= now) {
                // Dropped without an end: the client sees a cut connection.
                return Ok(());
            }
            if due.end <= now {
                return writer.finish();
            }
            let silent = due.silence.is_some_and(|at| at <= now);
            let mut more = false;
            if !silent {
                let look = {
                    let state = api.lock();
                    match state.store.epoch() == epoch {
                        true => self.look(&state, version),
                        // A server whose store is put back loses its clients.
                        false => return Ok(()),
                    }
                };
                match look {
                    // The real server drops those who cannot keep up; they resume, and learn.
                    Look::Behind(_) if looked => return writer.finish(),
                    Look::Behind(refused) => {
                        send(&mut writer, &event("ERROR", refused.body().to_string().as_bytes()))?;
                        return writer.finish();
                    }
                    Look::Told { bytes, version: reached, more: left } => {
                        send(&mut writer, &bytes)?;
                        looked = true;
                        version = reached;
                        more = left;
                    }
                }
                if due.bookmark.is_some_and(|at| at <= now) {
                    let told_at = api.lock().now.clone();
                    send(&mut writer, &self.bookmark(version, &told_at, None))?;
                    due.set_bookmark(now);
                }
            }
            if !more {
                wait(&tokens, due.next(silent).min(now + CLIENT_CHECK_EVERY));
            }
            if !writer.is_open() {
                return Ok(());
            }
        }
    }

    /// Subscribes, then reads where to start: nothing in between can be missed.
    fn begin(&self, api: &Api) -> Start {
        let tokens = api.subscribe(self.kind);
        let state = api.lock();
        let from_now = match self.options.at {
            At::Now | At::NotOlderThan(0) => true,
            At::Exact(_) | At::NotOlderThan(_) => false,
        };
        let mut first = Vec::new();
        if self.options.initial_events.unwrap_or(from_now) {
            for object in state.store.objects(self.kind, &self.namespace) {
                if self.options.matches(object) {
                    let mut json = Vec::new();
                    object.write_json(&mut json);
                    first.extend_from_slice(&event("ADDED", &self.shaped(json, &state.now)));
                }
            }
        }
        let version = match self.options.at {
            At::Exact(version) | At::NotOlderThan(version)
                if !from_now && self.options.initial_events != Some(true) =>
            {
                version
            }
            At::Exact(_) | At::NotOlderThan(_) | At::Now => state.store.version(),
        };
        if self.options.initial_events == Some(true) && self.options.bookmarks {
            let told = json!({ INITIAL_EVENTS_END: "true" });
            first.extend_from_slice(&self.bookmark(version, &state.now, Some(told)));
        }
        Start { tokens, epoch: state.store.epoch(), version, first }
    }

    fn deadlines(&self, now: Instant) -> Deadlines {
        let end = now + self.options.timeout.unwrap_or(TIMEOUT_DEFAULT);
        let mut due = Deadlines { end, bookmark: None, cut: None, silence: None };
        if self.options.bookmarks {
            due.set_bookmark(now);
        }
        due
    }

    /// The next changes that concern this watch.
    fn look(&self, state: &State, after: u64) -> Look {
        let store = &state.store;
        let changes = match store.changes_after(after) {
            Ok(changes) => changes,
            Err(Unavailable::Compacted(oldest)) => {
                let message = format!("too old resource version: {after} ({oldest})");
                return Look::Behind(Refused::expired(message));
            }
            // A version from the future is no error: there is nothing to tell, perhaps ever.
            Err(Unavailable::Future) => {
                return Look::Told { bytes: Vec::new(), version: after, more: false };
            }
        };
        let mut bytes = Vec::new();
        let mut n_told = 0;
        for change in changes {
            if n_told == BATCH_EVENTS_MAX {
                return Look::Told { bytes, version: change.version - 1, more: true };
            }
            let told = self.tell(change, &state.now);
            n_told += usize::from(!told.is_empty());
            bytes.extend_from_slice(&told);
        }
        Look::Told { bytes, version: store.version(), more: false }
    }

    /// One change as this watch sees it; empty where it does not concern it.
    fn tell(&self, change: &Change, now: &str) -> Vec<u8> {
        let key = &change.now.key;
        let here = self.namespace.is_empty() || key.namespace == self.namespace;
        if key.kind != self.kind || !here {
            return Vec::new();
        }
        let matched = change.before.as_ref().is_some_and(|before| self.options.matches(before));
        let matches = !change.gone && self.options.matches(&change.now);
        let mut json = Vec::new();
        let word = match (matched, matches) {
            (false, false) => return Vec::new(),
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        match (&change.before, change.gone || matches) {
            // One that left the selection is shown as it last was in it.
            (Some(before), false) => before.at_version(change.version).write_json(&mut json),
            (Some(_) | None, _) => change.now.write_json(&mut json),
        }
        event(word, &self.shaped(json, now))
    }

    /// An object's text in the form that was asked for.
    fn shaped(&self, json: Vec<u8>, now: &str) -> Vec<u8> {
        let form = &self.options.form;
        if form.is_plain() {
            return match self.api_version {
                Some(version) => versions::shown(self.kind, version, json),
                None => json,
            };
        }
        let Ok(object) = serde_json::from_slice(&json) else { return json };
        let columns = !self.columns_told.replace(true);
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
    /// The next bookmark: in a minute, or shortly before the end.
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

fn send(writer: &mut ChunkWriter<'_>, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    writer.write_all(bytes)?;
    writer.flush()
}

/// Waits for a change, at most until `deadline`.
fn wait(tokens: &Receiver<()>, deadline: Instant) {
    match tokens.recv_deadline(deadline) {
        Ok(()) | Err(RecvTimeoutError::Timeout) => {}
        // The store lives as long as the server that runs this.
        Err(RecvTimeoutError::Disconnected) => {}
    }
}
