//! The watch thread: LIST, then WATCH, then LIST again when needed. `core` decides when to do which.
//! The thread never waits for the reconciler, because an API server closes slow watches.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::TrySendError;

use crate::inbox::Message;
use crate::watch::lines::{Batch, Lines};
use crate::watch::lister::Lister;
use posse_base::time::Millis;
use posse_core::machines::watch::{WatchEnd, WatchMachine, WatchStep};
use posse_core::model::event::RestartKind;
use posse_core::model::input::{Input, ListSource, PodEvent};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::http::Stream;
use posse_wire::k8s::watch::{Encoded, LineEvent, parse_event};

/// While reads follow each other quickly there is a pause between them, so that many small events share a
/// wake-up and a message: a millisecond for each event since the pause before, within these limits. The more
/// events there are, the less it matters when each one is seen.
const READ_PAUSE_MIN: Duration = Duration::from_millis(4);
const READ_PAUSE_MAX: Duration = Duration::from_millis(12);
/// A read that returns so soon after the pause, or within the shortest one, follows quickly.
const READ_WAIT_SHORT: Duration = Duration::from_millis(1);
/// A read of so many bytes is followed by the next at once: a server drops a slow watcher.
const READ_BYTES_LARGE: usize = 32 << 10;

/// If the next try is later than this after the end of a watch, posse tells that it does not see its pods.
const BLIND_TOLD_MS: u64 = 1_500;

/// Runs the watch until it is stopped or the inbox is closed.
pub fn watch(lister: &Lister) {
    let mut watcher = Watcher {
        lister,
        machine: WatchMachine::new(lister.rng.clone()),
        epoch: 0,
        is_inbox_closed: false,
        is_refused: false,
    };
    while !lister.control.is_stopped() && !watcher.is_inbox_closed {
        watcher.turn();
    }
    log::debug!("the watch thread ends; the inbox was full {} times", lister.control.n_overruns());
}

struct Watcher<'a> {
    lister: &'a Lister,
    machine: WatchMachine,
    /// The watermark's epoch when the last LIST was sent.
    epoch: u32,
    is_inbox_closed: bool,
    /// The last watch was refused or failed, and this was reported.
    is_refused: bool,
}

impl Watcher<'_> {
    fn turn(&mut self) {
        if self.lister.control.take_request() {
            self.machine.relist(self.now());
        }
        match self.machine.next(self.now()) {
            WatchStep::List => self.list(),
            WatchStep::Wait { until } => self.lister.control.wait(self.lister.clock.instant(until)),
            WatchStep::Watch { version_text, timeout_s } => self.watch(&version_text, timeout_s),
        }
    }

    fn list(&mut self) {
        match self.lister.list(ListSource::Watch) {
            None => self.is_inbox_closed = true,
            Some(Ok((version_text, watermark))) => {
                self.epoch = watermark.epoch;
                self.machine.on_listed(&version_text, self.now());
            }
            Some(Err(refusal)) => {
                self.machine.on_list_failed(&refusal, self.now());
                log::warn!("cannot list pods, retrying: {refusal}");
                self.report_restart(RestartKind::ListFailed, format!("the list failed: {refusal}"));
            }
        }
    }

    fn watch(&mut self, version_text: &str, timeout_s: u32) {
        log::debug!("watch from version {version_text:?} for {timeout_s} s");
        let (pods, streams) = self.lister.pods.with_own_streams();
        if !self.lister.control.arm(streams) {
            return;
        }
        let mut end = match pods.open_watch(version_text, timeout_s, self.lister.watch_idle) {
            Err(refusal) => {
                // That a version is too old is a normal answer.
                if refusal.class != RefusalClass::Expired && !self.lister.control.is_interrupted() {
                    self.is_refused = true;
                    self.report(Message::ReadRefused(refusal.clone()));
                }
                WatchEnd::Refused(refusal)
            }
            Ok(mut stream) => {
                self.machine.on_opened(self.now());
                if std::mem::take(&mut self.is_refused) {
                    self.report(Message::Input(Input::WatchOpened));
                }
                self.read(&mut stream)
            }
        };
        self.lister.control.disarm();
        // Behind the end of the run nothing is restarted.
        if self.lister.control.is_stopped() || self.is_inbox_closed {
            return;
        }
        if self.lister.control.take_request() {
            end = WatchEnd::RelistRequested;
        }
        let Some(cause) = self.machine.on_ended(&end, self.now()) else {
            return log::debug!("the server ended the watch regularly");
        };
        log::info!("watch restarted: {cause}");
        let blind_ms = self.machine.blind_ms(self.now());
        if blind_ms > BLIND_TOLD_MS && !matches!(end, WatchEnd::Refused(_)) {
            self.is_refused = true;
            let what = format!("{cause}; posse does not see its pods for {} s", blind_ms / 1_000);
            self.report(Message::ReadRefused(Refusal::local(RefusalClass::Transient, what)));
        }
        self.report_restart(end.kind(), cause);
    }

    /// Reads the stream to its end.
    fn read(&mut self, stream: &mut Stream) -> WatchEnd {
        let mut lines = Lines::default();
        let (mut read_at, mut pause, mut n_events) = (None::<Instant>, READ_PAUSE_MIN, 0);
        loop {
            let mut batch = Batch::default();
            let mut n_bytes = 0;
            let end = lines.fill(stream.reader(), |event| {
                (n_bytes, n_events) = (n_bytes + event.n_bytes(), n_events + 1);
                self.on_event(event, &mut batch)?;
                if batch.is_full() { self.flush(std::mem::take(&mut batch)) } else { Ok(()) }
            });
            // Events from before the end are delivered unless the inbox is full.
            if let Err(end) = self.flush(batch).and(end) {
                return end;
            }
            let before = read_at.replace(Instant::now());
            let is_busy = before.is_some_and(|before| before.elapsed() < pause + READ_WAIT_SHORT);
            pause = READ_PAUSE_MIN;
            if is_busy && n_bytes < READ_BYTES_LARGE {
                pause = Duration::from_millis(n_events).clamp(READ_PAUSE_MIN, READ_PAUSE_MAX);
                thread::sleep(pause);
            }
            if !is_busy || n_bytes < READ_BYTES_LARGE {
                n_events = 0;
            }
        }
    }

    fn on_event(&mut self, event: Encoded<'_>, batch: &mut Batch) -> Result<(), WatchEnd> {
        let line = parse_event(event, self.lister.pods.selection())
            .map_err(|problem| WatchEnd::Undecodable(problem.to_string()))?;
        self.machine.on_line(line.version_text.as_deref());
        match line.event {
            LineEvent::Applied(pod) => {
                log::debug!("applied {} {:?} {:?}", pod.name, pod.phase, pod.version);
                batch.add_pod(pod, PodEvent::Applied);
            }
            LineEvent::Deleted(pod) => {
                log::debug!("deleted {} {:?} {:?}", pod.name, pod.phase, pod.version);
                batch.add_pod(pod, PodEvent::Deleted);
            }
            LineEvent::Bookmark(version) => {
                log::debug!("bookmark {version:?}");
                batch.add_bookmark(version);
            }
            LineEvent::Error(refusal) => return Err(WatchEnd::ErrorEvent(refusal)),
            LineEvent::Ignored => log::debug!("ignored a watch line of an unknown type"),
        }
        Ok(())
    }

    fn flush(&mut self, batch: Batch) -> Result<(), WatchEnd> {
        let events = batch.into_events();
        if events.is_empty() {
            return Ok(());
        }
        let message = Message::Input(Input::Watch { epoch: self.epoch, events });
        match self.lister.inbox.try_send(message) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                self.lister.control.count_overrun();
                Err(WatchEnd::Overrun)
            }
            Err(TrySendError::Disconnected(_)) => {
                self.is_inbox_closed = true;
                Err(WatchEnd::Overrun)
            }
        }
    }

    fn report_restart(&mut self, kind: RestartKind, cause: String) {
        self.report(Message::Input(Input::WatchRestarted { kind, cause }));
    }

    /// Sends what is informational and may be lost if the inbox is full.
    fn report(&mut self, message: Message) {
        if let Err(TrySendError::Disconnected(_)) = self.lister.inbox.try_send(message) {
            self.is_inbox_closed = true;
        }
    }

    fn now(&self) -> Millis {
        self.lister.clock.now()
    }
}
