//! The events of a run: numbered, the last ones kept for readers, and written to a file. Adding an event
//! never waits for a reader, a file or a pipe. Each reader encodes what it reads, on its own thread.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::worker::Worker;
use posse_base::clock::Clock;
use posse_base::files;
use posse_base::sync::lock;
use posse_base::time::Millis;
use posse_control::{Events, Read};
use posse_core::model::event::{Event, RunEvent};
use posse_wire::control::event;
use posse_wire::time::Epoch;

/// The events of this run. One thread adds events, many threads read them.
#[derive(Debug)]
pub struct EventLog {
    run: String,
    clock: Clock,
    state: Mutex<Log>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Log {
    /// The latest events; the first of them has the number `n_dropped + 1`.
    entries: VecDeque<Arc<Entry>>,
    n_bytes: usize,
    n_dropped: u64,
    is_ended: bool,
    /// The last event in the file of `--events`. None if there is no file, or nobody should wait for it now.
    written: Option<u64>,
    /// Threads that wait for a change. Each notification is a system call, and often nobody waits.
    n_waiting: usize,
}

/// An event, when it happened, and by which wall clock.
#[derive(Debug)]
pub struct Entry {
    pub at: Millis,
    pub epoch: Epoch,
    pub event: Event,
}

/// The result of reading entries.
#[derive(Debug)]
pub enum EntriesRead {
    /// The log has ended.
    Ended,
    /// `last`: the number of the last entry. `n_missed`: how many were dropped before the first one
    /// could be read.
    Entries { entries: Vec<Arc<Entry>>, last: u64, n_missed: u64 },
    /// No event within the wait.
    Nothing,
}

impl Entry {
    /// About how much memory it takes.
    fn n_bytes(&self) -> usize {
        ENTRY_BYTES_USUAL + self.event.long_text_bytes()
    }
}

impl Log {
    fn newest(&self) -> u64 {
        self.n_dropped + self.entries.len() as u64
    }

    fn drop_oldest(&mut self) {
        while self.entries.len() > EVENTS_KEPT || self.n_bytes > EVENT_BYTES_KEPT {
            let Some(entry) = self.entries.pop_front() else { return };
            self.n_bytes -= entry.n_bytes();
            self.n_dropped += 1;
        }
    }
}

impl EventLog {
    /// An empty log for the run with id `run`.
    pub fn new(run: &str, clock: Clock) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { run: run.to_owned(), clock, state, changed }
    }

    /// Adds an event. Ignored after `end`.
    pub fn push(&self, event: Event) {
        let entry = Entry { at: self.clock.now(), epoch: self.epoch(), event };
        let mut log = lock(&self.state);
        if log.is_ended {
            return;
        }
        log.n_bytes += entry.n_bytes();
        log.entries.push_back(Arc::new(entry));
        log.drop_oldest();
        let is_awaited = log.n_waiting > 0;
        drop(log);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    /// The events after number `after`, at most `BATCH_LINES_MAX`. If there are none, waits up to `wait`
    /// for the next one.
    pub fn read_entries(&self, after: u64, wait: Duration) -> EntriesRead {
        let log = self.wait_while(wait, |log| log.newest() <= after && !log.is_ended);
        if log.newest() <= after {
            return if log.is_ended { EntriesRead::Ended } else { EntriesRead::Nothing };
        }
        let n_dropped = log.n_dropped;
        let first = after.max(n_dropped);
        // The difference fits: it is at most the number of events in memory.
        let skip = usize::try_from(first - n_dropped).unwrap_or(usize::MAX);
        let batch = log.entries.iter().skip(skip).take(BATCH_LINES_MAX).cloned();
        let entries: Vec<Arc<Entry>> = batch.collect();
        let last = first + entries.len() as u64;
        EntriesRead::Entries { entries, last, n_missed: first - after }
    }

    /// Waits until the file has all events so far, at most for `wait`. Returns at once if there is none, if
    /// it cannot be written, and after a wait in vain until something was written again: a pipe that
    /// nobody reads costs one wait.
    pub fn wait_written(&self, wait: Duration) {
        let newest = self.newest();
        let is_behind = |log: &Log| log.written.is_some_and(|written| written < newest);
        let mut log = self.wait_while(wait, is_behind);
        if is_behind(&log) {
            log.written = None;
        }
    }

    fn set_written(&self, written: Option<u64>) {
        let mut log = lock(&self.state);
        log.written = written;
        let is_awaited = log.n_waiting > 0;
        drop(log);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    /// Ends the log: readers end after the last event.
    pub fn end(&self) {
        lock(&self.state).is_ended = true;
        self.changed.notify_all();
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.clock.wall(Millis::ZERO))
    }

    /// Waits while `is_early`, at most for `wait`.
    fn wait_while(&self, wait: Duration, is_early: impl Fn(&Log) -> bool) -> MutexGuard<'_, Log> {
        let mut log = lock(&self.state);
        log.n_waiting += 1;
        let waited = self.changed.wait_timeout_while(log, wait, |log| is_early(log));
        let (mut log, _) = waited.unwrap_or_else(PoisonError::into_inner);
        log.n_waiting -= 1;
        log
    }

    /// Waits until the log ends, at most for `wait`. True if the log has ended.
    fn wait_for_end(&self, wait: Duration) -> bool {
        self.wait_while(wait, |log| !log.is_ended).is_ended
    }

    /// Calls `apply` with every event, while they happen, until the log ends. Events that were dropped
    /// meanwhile are left out. Before each wait `pause` says how long to wait for the next event.
    pub fn for_each(
        &self,
        mut apply: impl FnMut(Millis, &Event),
        mut pause: impl FnMut() -> Duration,
    ) {
        let mut after = 0;
        loop {
            match self.read_entries(after, pause()) {
                EntriesRead::Ended => return,
                EntriesRead::Nothing => {}
                EntriesRead::Entries { entries, last, .. } => {
                    entries.iter().for_each(|entry| apply(entry.at, &entry.event));
                    after = last;
                }
            }
        }
    }

    fn line(&self, seq: u64, entry: &Entry) -> String {
        event::line(&self.run, seq, entry.at, &entry.event, entry.epoch)
    }

    /// The line for a slow reader that replaces `count` dropped events, the last of them `seq`.
    fn missed_line(&self, seq: u64, count: u64) -> String {
        let event = Event::Run(RunEvent::Missed { count });
        self.line(seq, &Entry { at: self.clock.now(), epoch: self.epoch(), event })
    }
}

impl Events for EventLog {
    fn newest(&self) -> u64 {
        lock(&self.state).newest()
    }

    fn read(&self, after: u64, wait: Duration) -> Read {
        match self.read_entries(after, wait) {
            EntriesRead::Ended => Read::Ended,
            EntriesRead::Nothing => Read::Nothing,
            EntriesRead::Entries { entries, last, n_missed } => {
                let first = last - entries.len() as u64;
                let missed = (n_missed > 0).then(|| self.missed_line(first, n_missed));
                let lines = (first + 1..).zip(&entries).map(|(seq, entry)| self.line(seq, entry));
                Read::Lines { lines: missed.into_iter().chain(lines).collect(), last }
            }
        }
    }
}

/// The target of `--events`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventTarget {
    /// Appended to. May be a FIFO, even one without a reader.
    File(PathBuf),
    Stdout,
}

/// The thread that writes the events to a file. Only this thread waits for slow disks and full pipes.
/// If the log drops events meanwhile, the thread writes a `missed` event.
#[derive(Debug)]
pub struct EventWriter(Worker);

impl EventWriter {
    /// Opens the target and starts the thread.
    ///
    /// # Errors
    /// The file cannot be opened for appending, or the system cannot start a thread.
    pub fn start(target: EventTarget, log: Arc<EventLog>) -> io::Result<Self> {
        let sink = open(&target)?;
        log.set_written(sink.is_some().then_some(0));
        let mut writer = Writer { target, log, sink, has_warned: false };
        Worker::start("events", STACK_BYTES, move || writer.run()).map(Self)
    }

    /// Waits until everything is written, at most until `deadline`. False: some events were not written.
    /// Call `EventLog::end` first.
    #[must_use]
    pub fn finish(self, deadline: Instant) -> bool {
        self.0.join_by(deadline)
    }
}

struct Writer {
    target: EventTarget,
    log: Arc<EventLog>,
    /// `None` while a FIFO has no reader, and after an error.
    sink: Option<File>,
    has_warned: bool,
}

impl Writer {
    fn run(&mut self) {
        let mut after = 0;
        loop {
            match self.log.read(after, READ_WAIT) {
                Read::Ended => return,
                Read::Nothing => {}
                Read::Lines { lines, last } => {
                    let bytes = lines.concat().into_bytes();
                    if !self.write_all(&bytes) {
                        return;
                    }
                    after = last;
                    self.log.set_written(Some(after));
                }
            }
        }
    }

    /// Writes whole lines. False if the log has ended and the target cannot be opened.
    fn write_all(&mut self, bytes: &[u8]) -> bool {
        let mut n_written = 0;
        while n_written < bytes.len() {
            let Some(sink) = &mut self.sink else {
                if !self.reopen() {
                    return false;
                }
                // The rest of a line follows its begin, which a full disk has kept. Another file has no begin, nor has
                // the next reader of a pipe.
                if !self.sink.as_ref().is_some_and(ends_within_line) {
                    let whole = bytes[..n_written].iter().rposition(|&c| c == b'\n');
                    n_written = whole.map_or(0, |end| end + 1);
                }
                continue;
            };
            match sink.write(&bytes[n_written..]) {
                Ok(n) => n_written += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.warn(&error);
                    self.sink = None;
                }
            }
        }
        true
    }

    /// Opens the target again, with retries. False if the log has ended before that succeeded.
    fn reopen(&mut self) -> bool {
        self.log.set_written(None);
        loop {
            let ended = self.log.wait_for_end(REOPEN_PAUSE);
            match open(&self.target) {
                Ok(Some(sink)) => {
                    self.sink = Some(sink);
                    return true;
                }
                Ok(None) => {}
                Err(error) => self.warn(&error),
            }
            if ended {
                return false;
            }
        }
    }

    /// Logs only the first error, so that a full disk does not fill the log.
    fn warn(&mut self, error: &io::Error) {
        if !self.has_warned {
            self.has_warned = true;
            log::warn!("cannot write events to {}, retrying: {error}", self.name());
        }
    }

    fn name(&self) -> std::borrow::Cow<'_, str> {
        match &self.target {
            EventTarget::File(path) => path.to_string_lossy(),
            EventTarget::Stdout => "stdout".into(),
        }
    }
}

/// False for what is empty, and for what is no regular file.
fn ends_within_line(sink: &File) -> bool {
    let last = || {
        let mut file = File::open(format!("/dev/fd/{}", sink.as_raw_fd()))?;
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last).map(|()| last)
    };
    last().is_ok_and(|last| last != *b"\n")
}

/// `None` for a FIFO without a reader.
fn open(target: &EventTarget) -> io::Result<Option<File>> {
    match target {
        EventTarget::File(path) => files::append(path),
        EventTarget::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from).map(Some),
    }
}

/// The writer thread's stack, bytes.
const STACK_BYTES: usize = 256 << 10;

/// Events kept in memory for readers.
pub const EVENTS_KEPT: usize = 10_000;

/// Bytes of events kept in memory: about 1,600 for each, several times their usual size.
const EVENT_BYTES_KEPT: usize = 16 << 20;

/// An event with its names, without its long texts, in bytes.
const ENTRY_BYTES_USUAL: usize = 320;

/// The most lines that one read returns.
const BATCH_LINES_MAX: usize = 256;

/// How long one read of the writer thread waits for events.
const READ_WAIT: Duration = Duration::from_secs(60);

/// Interval between attempts to open the target.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
