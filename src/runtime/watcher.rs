//! Owns the watcher's thread: it lists, watches and hands on what it read. It decides nothing (when
//! to do which is `core::watch`'s) and never waits for the reconciler: a server drops slow watchers.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TrySendError, bounded};

use crate::clock::Clock;
use crate::core::machines::watch::{WatchEnd, WatchMachine, WatchStep};
use crate::core::model::ids::{Uid, Version};
use crate::core::model::input::{Input, List, ListSource, PodEvent, Watermark};
use crate::core::model::pod::Pod;
use crate::core::model::refusal::Refusal;
use crate::core::model::rng::Rng;
use crate::core::model::time::Millis;
use crate::kube::api::pods::{PodList, Pods};
use crate::kube::http::{Stream, StreamHandle};
use crate::wire::watch::{LineEvent, parse_line};

/// A line is not longer than this, in bytes; etcd keeps no object above 1.5 MiB.
pub const LINE_BYTES_MAX: usize = 8 << 20;
/// Events in one message; what is read ahead of us is shorter than that as a rule.
pub const WATCH_BATCH_MAX: usize = 256;
/// What a long line leaves behind is given back above this, in bytes.
const LINE_BYTES_KEPT: usize = 64 << 10;
/// How often a LIST that waits for room looks whether it still should.
const ROOM_LOOK: Duration = Duration::from_millis(50);

/// What the other threads hold of a lister: they stop it, or ask it for a LIST.
#[derive(Clone, Debug)]
pub struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    n_overruns: AtomicU64,
    wake: Sender<()>,
    woken: Receiver<()>,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    asked: Option<ListSource>,
    /// Ends what the thread is reading.
    streams: Option<StreamHandle>,
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

impl Control {
    /// A control whose thread has not begun.
    #[must_use]
    pub fn new() -> Self {
        let (wake, woken) = bounded(1);
        let shared = Shared { state: Mutex::default(), n_overruns: AtomicU64::new(0), wake, woken };
        Self { shared: Arc::new(shared) }
    }

    /// Ends the thread, whatever it is reading.
    pub fn stop(&self) {
        let streams = {
            let mut state = self.lock();
            state.stopped = true;
            state.streams.take()
        };
        self.interrupt(streams);
    }

    /// Has the watcher list anew at once: what it is reading is of a history that is no more.
    pub fn relist(&self) {
        let streams = {
            let mut state = self.lock();
            state.asked = Some(ListSource::Watch);
            state.streams.take()
        };
        self.interrupt(streams);
    }

    /// Asks the poller for a LIST now; what it is reading it reads to the end.
    pub fn ask(&self, source: ListSource) {
        let mut state = self.lock();
        // Whoever waits for the stop's lists waits for them only.
        if state.asked != Some(ListSource::Stop) {
            state.asked = Some(source);
        }
        drop(state);
        self.interrupt(None);
    }

    /// How often the inbox had no room for what was read.
    #[must_use]
    pub fn n_overruns(&self) -> u64 {
        self.shared.n_overruns.load(Ordering::Relaxed)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    pub(super) fn take_asked(&self) -> Option<ListSource> {
        self.lock().asked.take()
    }

    /// Lets `streams` be ended from outside from here on; false where it is too late to begin.
    pub(super) fn arm(&self, streams: StreamHandle) -> bool {
        let mut state = self.lock();
        state.streams = Some(streams);
        !state.stopped
    }

    pub(super) fn disarm(&self) {
        self.lock().streams = None;
    }

    /// Waits until `at` (none: for ever), a stop, or a request.
    pub(super) fn wait(&self, at: Option<Instant>) {
        // Woken, late or disconnected: in each case the caller looks at the state again.
        let _ = match at {
            Some(at) => self.shared.woken.recv_deadline(at).is_ok(),
            None => self.shared.woken.recv().is_ok(),
        };
    }

    fn interrupt(&self, streams: Option<StreamHandle>) {
        if let Some(streams) = streams {
            streams.shutdown();
        }
        // Full: it is being woken already.
        let _ = self.shared.wake.try_send(());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a lister works with, be it the watcher or the poller.
pub struct Lister<M, F> {
    pub pods: Pods,
    /// Takes what is read.
    pub inbox: Sender<M>,
    /// What the reconciler has applied so far.
    pub mark: F,
    pub clock: Clock,
    pub rng: Rng,
    pub control: Control,
}

impl<M, F> std::fmt::Debug for Lister<M, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lister").field("pods", &self.pods).finish_non_exhaustive()
    }
}

impl<M: From<Input> + From<Refusal>, F: Fn() -> Watermark> Lister<M, F> {
    /// Lists and delivers: the list's version as text, or none where a stop came between.
    pub(super) fn list(&self, source: ListSource) -> Option<Result<(String, Watermark), Refusal>> {
        let watermark = (self.mark)();
        let (pods, streams) = self.pods.with_own_streams();
        if !self.control.arm(streams) {
            return None;
        }
        let listed = pods.list();
        self.control.disarm();
        if self.control.is_stopped() {
            return None;
        }
        let PodList { pods, version, version_text } = match listed {
            Ok(listed) => listed,
            Err(refusal) => {
                // It only informs: without room it is lost, and the log has it.
                let _ = self.inbox.try_send(M::from(refusal.clone()));
                return Some(Err(refusal));
            }
        };
        log::debug!("listed {} pods at version {version_text:?} ({source:?})", pods.len());
        let list = List { source, pods, version, watermark };
        self.deliver(M::from(Input::List(list))).then_some(Ok((version_text, watermark)))
    }

    /// Waits for room in the inbox; false where a stop came first.
    fn deliver(&self, message: M) -> bool {
        let mut message = message;
        while !self.control.is_stopped() {
            message = match self.inbox.send_timeout(message, ROOM_LOOK) {
                Ok(()) => return true,
                Err(SendTimeoutError::Timeout(message)) => message,
                Err(SendTimeoutError::Disconnected(_)) => return false,
            };
        }
        false
    }
}

/// The body of the watcher's thread; returns when it is stopped or nobody listens any more.
pub fn watch<M: From<Input> + From<Refusal>, F: Fn() -> Watermark>(lister: &Lister<M, F>) {
    let mut watcher =
        Watcher { lister, machine: WatchMachine::new(lister.rng.clone()), epoch: 0, gone: false };
    while !lister.control.is_stopped() && !watcher.gone {
        watcher.turn();
    }
    log::debug!("the watcher ends; the inbox was full {} times", lister.control.n_overruns());
}

struct Watcher<'a, M, F> {
    lister: &'a Lister<M, F>,
    machine: WatchMachine,
    /// Of the LIST that the watch goes on from.
    epoch: u32,
    /// The inbox is gone.
    gone: bool,
}

impl<M: From<Input> + From<Refusal>, F: Fn() -> Watermark> Watcher<'_, M, F> {
    fn turn(&mut self) {
        if self.lister.control.take_asked().is_some() {
            self.machine.relist(self.now());
        }
        match self.machine.next(self.now()) {
            WatchStep::List => self.list(),
            WatchStep::Wait { until } => self.lister.control.wait(self.lister.clock.instant(until)),
            WatchStep::Watch { version_text, timeout_s } => self.watch(&version_text, timeout_s),
        }
    }

    fn list(&mut self) {
        let problem = match self.lister.list(ListSource::Watch) {
            None => return self.gone = true,
            Some(Ok((version_text, watermark))) => {
                self.epoch = watermark.epoch;
                match self.machine.on_listed(&version_text, self.now()) {
                    Ok(()) => return,
                    Err(problem) => problem,
                }
            }
            Some(Err(refusal)) => {
                self.machine.on_list_failed(&refusal, self.now());
                refusal.to_string()
            }
        };
        log::warn!("the list of pods failed and is tried again: {problem}");
        self.tell_restarted(format!("the list failed: {problem}"));
    }

    fn watch(&mut self, version_text: &str, timeout_s: u32) {
        log::debug!("watch from version {version_text:?} for {timeout_s} s");
        let (pods, streams) = self.lister.pods.with_own_streams();
        if !self.lister.control.arm(streams) {
            return;
        }
        let mut end = match pods.open_watch(version_text, timeout_s) {
            Err(refusal) => WatchEnd::Refused(refusal),
            Ok(mut stream) => {
                self.machine.on_opened(self.now());
                self.read(&mut stream)
            }
        };
        self.lister.control.disarm();
        if self.lister.control.is_stopped() {
            return;
        }
        if self.lister.control.take_asked().is_some() {
            end = WatchEnd::RelistRequested;
        }
        let Some(cause) = self.machine.on_ended(&end, self.now()) else {
            return log::debug!("the watch ended in good order");
        };
        log::info!("the watch begins anew: {cause}");
        self.tell_restarted(cause);
    }

    /// Reads to the end, whichever it is.
    fn read(&mut self, stream: &mut Stream) -> WatchEnd {
        let mut lines = Lines::default();
        loop {
            let mut batch = Batch::default();
            let end = lines.fill(stream.reader(), |line| {
                self.on_line(line, &mut batch)?;
                if batch.is_full() { self.flush(std::mem::take(&mut batch)) } else { Ok(()) }
            });
            // What was read before the end counts, unless there is no room for it.
            if let Err(end) = self.flush(batch).and(end) {
                return end;
            }
        }
    }

    fn on_line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), WatchEnd> {
        let line = parse_line(line, self.lister.pods.selection())
            .map_err(|problem| WatchEnd::Undecodable(problem.to_string()))?;
        self.machine.on_line(line.version_text.as_deref());
        match line.event {
            LineEvent::Applied(pod) => {
                log::trace!("applied {} {:?} {:?}", pod.name, pod.phase, pod.version);
                batch.pod(pod, PodEvent::Applied);
            }
            LineEvent::Deleted(pod) => {
                log::trace!("deleted {} {:?} {:?}", pod.name, pod.phase, pod.version);
                batch.pod(pod, PodEvent::Deleted);
            }
            LineEvent::Bookmark(version) => {
                log::trace!("bookmark {version:?}");
                batch.bookmark = batch.bookmark.max(version);
            }
            LineEvent::Error(refusal) => return Err(WatchEnd::ErrorEvent(refusal)),
            LineEvent::Ignored => log::trace!("a line that says nothing to us"),
        }
        Ok(())
    }

    fn flush(&mut self, batch: Batch) -> Result<(), WatchEnd> {
        let events = batch.into_events();
        if events.is_empty() {
            return Ok(());
        }
        match self.lister.inbox.try_send(M::from(Input::Watch { epoch: self.epoch, events })) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                self.lister.control.shared.n_overruns.fetch_add(1, Ordering::Relaxed);
                Err(WatchEnd::Overrun)
            }
            Err(TrySendError::Disconnected(_)) => {
                self.gone = true;
                Err(WatchEnd::Overrun)
            }
        }
    }

    fn tell_restarted(&mut self, cause: String) {
        let message = M::from(Input::WatchRestarted { cause });
        // Without room it is lost: it only informs, and the log has it.
        if let Err(TrySendError::Disconnected(_)) = self.lister.inbox.try_send(message) {
            self.gone = true;
        }
    }

    fn now(&self) -> Millis {
        self.lister.clock.now()
    }
}

/// Cuts what comes into lines.
#[derive(Debug, Default)]
struct Lines {
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
}

impl Lines {
    /// Waits for bytes, takes all that are there, and hands on the lines that are complete.
    fn fill(
        &mut self,
        reader: &mut dyn BufRead,
        mut on_line: impl FnMut(&[u8]) -> Result<(), WatchEnd>,
    ) -> Result<(), WatchEnd> {
        let buffer = match reader.fill_buf() {
            Ok(buffer) => buffer,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Err(WatchEnd::Idle),
            Err(e) => return Err(WatchEnd::Cut(e.to_string())),
        };
        let n_bytes = buffer.len();
        if n_bytes == 0 {
            return Err(self.end());
        }
        let taken = self.take(buffer, &mut on_line);
        reader.consume(n_bytes);
        taken
    }

    fn take(
        &mut self,
        mut bytes: &[u8],
        on_line: &mut impl FnMut(&[u8]) -> Result<(), WatchEnd>,
    ) -> Result<(), WatchEnd> {
        while !bytes.is_empty() {
            let mut rest = bytes;
            // On a slice it cannot fail; it is the fastest search that std has.
            let n_bytes = rest.skip_until(b'\n').unwrap_or(bytes.len());
            let (piece, complete) = match bytes[..n_bytes].strip_suffix(b"\n") {
                Some(piece) => (piece, true),
                None => (bytes, false),
            };
            bytes = rest;
            if self.begun.len() + piece.len() > LINE_BYTES_MAX {
                return Err(WatchEnd::Undecodable(format!(
                    "it is longer than {LINE_BYTES_MAX} bytes"
                )));
            }
            if complete && self.begun.is_empty() {
                if !piece.trim_ascii().is_empty() {
                    on_line(piece)?;
                }
            } else {
                self.begun.extend_from_slice(piece);
                if complete {
                    on_line(&self.begun)?;
                    self.begun.clear();
                    self.begun.shrink_to(LINE_BYTES_KEPT);
                }
            }
        }
        Ok(())
    }

    fn end(&self) -> WatchEnd {
        if self.begun.is_empty() {
            WatchEnd::Clean
        } else {
            WatchEnd::Cut("it ended in the middle of a line".to_owned())
        }
    }
}

/// Events on their way: the last word on each pod, in the order of the last words.
#[derive(Debug, Default)]
struct Batch {
    events: Vec<Option<PodEvent>>,
    by_uid: BTreeMap<Uid, usize>,
    bookmark: Option<Version>,
}

impl Batch {
    fn pod(&mut self, pod: Pod, event: impl FnOnce(Pod) -> PodEvent) {
        if let Some(before) = self.by_uid.insert(pod.uid.clone(), self.events.len()) {
            self.events[before] = None;
        }
        self.events.push(Some(event(pod)));
    }

    fn is_full(&self) -> bool {
        self.events.len() >= WATCH_BATCH_MAX
    }

    fn into_events(self) -> Vec<PodEvent> {
        let bookmark = self.bookmark.map(PodEvent::Bookmark);
        self.events.into_iter().flatten().chain(bookmark).collect()
    }
}

#[cfg(test)]
mod tests;
