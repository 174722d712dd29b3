//! Owns the log of events: numbers them, keeps the last ones for readers, writes them to a file.
//! The one who pushes never waits for a reader, a file or a pipe.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::clock::Clock;
use crate::control::{Events, Read};
use crate::core::model::event::Event;
use crate::core::model::time::Millis;
use crate::runtime::worker::Worker;
use crate::wire::event;
use crate::wire::time::Epoch;

/// The events of this run. Pushed by one thread, read by many.
#[derive(Debug)]
pub struct EventLog {
    run: String,
    clock: Clock,
    state: Mutex<Log>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Log {
    /// The last ones; the first of them has the number `n_dropped + 1`.
    lines: VecDeque<Arc<str>>,
    n_bytes: usize,
    n_dropped: u64,
    ended: bool,
}

impl Log {
    fn newest(&self) -> u64 {
        self.n_dropped + self.lines.len() as u64
    }

    fn drop_oldest(&mut self) {
        while self.lines.len() > EVENTS_KEPT || self.n_bytes > EVENT_BYTES_KEPT {
            let Some(line) = self.lines.pop_front() else { return };
            self.n_bytes -= line.len();
            self.n_dropped += 1;
        }
    }
}

impl EventLog {
    /// An empty log of the run that is called `run`.
    #[must_use]
    pub fn new(run: &str, clock: Clock) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { run: run.to_owned(), clock, state, changed }
    }

    /// Adds an event. After `end` there is nobody to tell.
    pub fn push(&self, event: &Event) {
        let at = self.clock.now();
        {
            let mut log = self.lock();
            if log.ended {
                return;
            }
            let line = event::line(&self.run, log.newest() + 1, at, event, self.epoch());
            log.n_bytes += line.len();
            log.lines.push_back(Arc::from(line));
            log.drop_oldest();
        }
        self.changed.notify_all();
    }

    /// There will be no more: readers end when they have read what there is.
    pub fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.clock.wall(Millis::ZERO))
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        // The log is whole between any two statements that hold it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `wait`, or less where the log ends meanwhile; true where it has ended.
    fn wait_for_end(&self, wait: Duration) -> bool {
        let log = self.lock();
        let waited = self.changed.wait_timeout_while(log, wait, |log| !log.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// What a reader that was too slow gets in place of `count` events, up to number `seq`.
    fn missed_line(&self, seq: u64, count: u64) -> Arc<str> {
        let event = Event::Missed { count };
        Arc::from(event::line(&self.run, seq, self.clock.now(), &event, self.epoch()))
    }
}

impl Events for EventLog {
    fn newest(&self) -> u64 {
        self.lock().newest()
    }

    fn read(&self, after: u64, wait: Duration) -> Read {
        let log = self.lock();
        let quiet = |log: &mut Log| log.newest() <= after && !log.ended;
        let waited = self.changed.wait_timeout_while(log, wait, quiet);
        let (log, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if log.newest() <= after {
            return if log.ended { Read::Ended } else { Read::Nothing };
        }
        let mut lines = Vec::new();
        if after < log.n_dropped {
            lines.push(self.missed_line(log.n_dropped, log.n_dropped - after));
        }
        let first = after.max(log.n_dropped);
        // What does not fit into memory was dropped long before.
        let skip = usize::try_from(first - log.n_dropped).unwrap_or(usize::MAX);
        let batch = log.lines.iter().skip(skip).take(BATCH_LINES_MAX).cloned();
        let n_before = lines.len();
        lines.extend(batch);
        let last = first + (lines.len() - n_before) as u64;
        Read::Lines { lines, last }
    }
}

/// Where `--events` goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventTarget {
    /// Appended; may be a FIFO, also one that nobody reads (yet).
    File(PathBuf),
    Stdout,
}

/// The thread that writes the log to a file. It alone waits for slow disks and full pipes; what
/// the log cannot keep meanwhile it tells as `missed`.
#[derive(Debug)]
pub struct EventWriter(Worker);

impl EventWriter {
    /// Begins to write.
    ///
    /// # Errors
    /// The file cannot be opened for appending, or no thread is to be had.
    pub fn start(target: EventTarget, log: Arc<EventLog>) -> io::Result<Self> {
        let sink = open(&target)?;
        let mut writer = Writer { target, log, sink, warned: false };
        Worker::start("events", STACK_BYTES, move || writer.run()).map(Self)
    }

    /// Waits until everything is written, at most until `deadline`; false where it was not. The log
    /// must have been ended before. A writer that hangs in a full pipe is left to the process's end.
    #[must_use]
    pub fn finish(self, deadline: Instant) -> bool {
        self.0.join_by(deadline)
    }
}

struct Writer {
    target: EventTarget,
    log: Arc<EventLog>,
    /// None while a FIFO has no reader, or after an error.
    sink: Option<Sink>,
    warned: bool,
}

enum Sink {
    File(File),
    Stdout(io::Stdout),
}

impl Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Stdout(stdout) => {
                let n_bytes = stdout.write(bytes)?;
                stdout.flush()?;
                Ok(n_bytes)
            }
        }
    }
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
                }
            }
        }
    }

    /// Writes whole lines; false where the log has ended and nobody takes them.
    fn write_all(&mut self, bytes: &[u8]) -> bool {
        let mut n_written = 0;
        while n_written < bytes.len() {
            let written = match &mut self.sink {
                Some(sink) => sink.write(&bytes[n_written..]),
                None => match self.reopen() {
                    true => continue,
                    false => return false,
                },
            };
            match written {
                Ok(n) => n_written += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.warn(&error);
                    self.sink = None;
                    // Whoever reads next begins with a whole line.
                    let whole = bytes[..n_written].iter().rposition(|&c| c == b'\n');
                    n_written = whole.map_or(0, |end| end + 1);
                }
            }
        }
        true
    }

    /// Tries now and again until there is a sink; false where the log ended before.
    fn reopen(&mut self) -> bool {
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

    /// Once: a full disk would else fill the log too.
    fn warn(&mut self, error: &io::Error) {
        if !self.warned {
            self.warned = true;
            log::warn!("events to {}: {error}; tried again until it works", self.name());
        }
    }

    fn name(&self) -> std::borrow::Cow<'_, str> {
        match &self.target {
            EventTarget::File(path) => path.to_string_lossy(),
            EventTarget::Stdout => "stdout".into(),
        }
    }
}

/// None for a FIFO that nobody reads now.
fn open(target: &EventTarget) -> io::Result<Option<Sink>> {
    match target {
        EventTarget::File(path) => open_file(path).map(|file| file.map(Sink::File)),
        EventTarget::Stdout => Ok(Some(Sink::Stdout(io::stdout()))),
    }
}

fn open_file(path: &Path) -> io::Result<Option<File>> {
    // A FIFO without a reader would hold up the opening itself; with NONBLOCK it is an error.
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    match rustix::fs::open(path, flags, mode) {
        Ok(file) => {
            // From here on this thread may wait; nobody else does.
            rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
            Ok(Some(File::from(file)))
        }
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The writer's stack, bytes: it copies lines.
const STACK_BYTES: usize = 256 << 10;

/// Events that are kept for readers.
pub const EVENTS_KEPT: usize = 10_000;

/// And their bytes: 1,600 for each, several times what they have unless losses bring long logs.
const EVENT_BYTES_KEPT: usize = 16 << 20;

/// Lines that one read hands out.
const BATCH_LINES_MAX: usize = 256;

/// How long the writer waits for news before it looks again.
const READ_WAIT: Duration = Duration::from_secs(60);

/// Between two tries to open the file.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::process::Command;
    use std::thread;

    use serde_json::Value;

    use super::*;
    use crate::control::tests::Folder;

    fn log() -> Arc<EventLog> {
        Arc::new(EventLog::new("k3f9", Clock::start()))
    }

    fn target(n: u32) -> Event {
        Event::TargetChanged { group: "g".into(), target: n }
    }

    fn seq(line: &str) -> u64 {
        let line: Value = serde_json::from_str(line).unwrap();
        line["seq"].as_u64().unwrap()
    }

    /// Reads the numbers of all there is after `after`.
    fn read_on(log: &EventLog, mut after: u64) -> Vec<u64> {
        let mut got = Vec::new();
        while let Read::Lines { lines, last } = log.read(after, Duration::ZERO) {
            got.extend(lines.iter().map(|line| seq(line)));
            after = last;
        }
        got
    }

    #[test]
    fn numbers_from_one_and_reads_from_anywhere() {
        let log = log();
        assert_eq!((log.newest(), log.read(0, Duration::ZERO)), (0, Read::Nothing));
        for n in 0..600 {
            log.push(&target(n));
        }
        assert_eq!(log.newest(), 600);
        assert_eq!(read_on(&log, 0), (1..=600).collect::<Vec<_>>());
        assert_eq!(read_on(&log, 598), [599, 600]);
        assert_eq!(log.read(600, Duration::ZERO), Read::Nothing);
        log.end();
        log.push(&target(1));
        assert_eq!(log.newest(), 600);
        assert_eq!(read_on(&log, 599), [600]);
        assert_eq!(log.read(600, PATIENCE), Read::Ended);
    }

    #[test]
    fn a_slow_reader_is_told_how_many_it_missed() {
        let log = log();
        for n in 0..10_100 {
            log.push(&target(n));
        }
        let Read::Lines { lines, .. } = log.read(40, Duration::ZERO) else { panic!("lines") };
        let newest = log.newest();
        let (first, n_kept) = (seq(&lines[0]), log.lock().lines.len() as u64);
        assert!(n_kept <= EVENTS_KEPT as u64);
        assert_eq!(first, newest - n_kept);
        let missed: Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(
            (missed["event"].as_str(), missed["count"].as_u64()),
            (Some("missed"), Some(first - 40))
        );
        // Numbers rise by one from the `missed` on: whoever goes on after any of them misses nothing.
        assert_eq!(read_on(&log, 40), (first..=newest).collect::<Vec<_>>());
        assert_eq!(read_on(&log, first), (first + 1..=newest).collect::<Vec<_>>());
    }

    #[test]
    fn large_events_are_bounded_by_their_bytes() {
        let log = log();
        for _ in 0..100 {
            log.push(&Event::WatchRestarted { cause: "x".repeat(100_000) });
        }
        let state = log.lock();
        assert!(state.n_bytes <= EVENT_BYTES_KEPT);
        assert_eq!(state.n_bytes, state.lines.iter().map(|line| line.len()).sum::<usize>());
        assert_eq!(state.newest(), 100);
    }

    #[test]
    fn a_waiting_reader_is_woken() {
        let log = log();
        let reader = Arc::clone(&log);
        let thread = thread::spawn(move || (reader.read(0, PATIENCE), reader.read(1, PATIENCE)));
        log.push(&Event::Started);
        // Whether the second read waits already or comes later: it ends at once.
        log.end();
        let begun = Instant::now();
        let (first, second) = thread.join().unwrap();
        assert!(matches!(first, Read::Lines { last: 1, .. }), "{first:?}");
        assert_eq!(second, Read::Ended);
        assert!(begun.elapsed() < PATIENCE / 2);
    }

    #[test]
    fn appends_to_a_file_and_finishes_in_time() {
        let folder = Folder::new();
        let path = folder.path().join("events");
        fs::write(&path, "before\n").unwrap();
        let log = log();
        let writer = EventWriter::start(EventTarget::File(path.clone()), Arc::clone(&log)).unwrap();
        for n in 0..1000 {
            log.push(&target(n));
        }
        log.end();
        assert!(writer.finish(Instant::now() + PATIENCE));
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0], seq(lines[1000])), (1001, "before", 1000));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error_at_once() {
        let folder = Folder::new();
        let path = folder.path().join("missing").join("events");
        assert!(EventWriter::start(EventTarget::File(path), log()).is_err());
    }

    fn fifo(folder: &Folder) -> PathBuf {
        let path = folder.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    #[test]
    fn a_fifo_without_a_reader_holds_up_nothing() {
        let folder = Folder::new();
        let log = log();
        let target_file = EventTarget::File(fifo(&folder));
        let writer = EventWriter::start(target_file, Arc::clone(&log)).unwrap();
        for n in 0..1000 {
            log.push(&target(n));
        }
        log.end();
        let begun = Instant::now();
        assert!(writer.finish(begun + PATIENCE));
        assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    }

    #[test]
    fn readers_of_a_fifo_may_come_late_go_and_come_again() {
        let folder = Folder::new();
        let path = fifo(&folder);
        let log = log();
        let writer = EventWriter::start(EventTarget::File(path.clone()), Arc::clone(&log)).unwrap();
        log.push(&Event::Started);
        let mut line = String::new();
        // Opening waits for the writer, the writer for a reader: here they meet.
        BufReader::new(File::open(&path).unwrap()).read_line(&mut line).unwrap();
        assert_eq!(seq(&line), 1);
        // That reader has gone. The next write fails, and is made again for the next reader.
        log.push(&Event::Stopping);
        line.clear();
        // One that opens it between the failed write and its closing reads an end, and comes again.
        let deadline = Instant::now() + PATIENCE;
        while line.is_empty() {
            assert!(Instant::now() < deadline, "the second reader gets nothing");
            BufReader::new(File::open(&path).unwrap()).read_line(&mut line).unwrap();
        }
        assert_eq!(seq(&line), 2);
        log.end();
        assert!(writer.finish(Instant::now() + PATIENCE));
    }

    #[test]
    fn a_full_pipe_holds_up_nobody_and_is_left_at_the_deadline() {
        let folder = Folder::new();
        let path = fifo(&folder);
        let log = log();
        let writer = EventWriter::start(EventTarget::File(path.clone()), Arc::clone(&log)).unwrap();
        log.push(&Event::Started);
        let mut reader = BufReader::new(File::open(&path).unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        // Far more than a pipe holds, and more than the log keeps.
        let begun = Instant::now();
        for n in 0..40_000 {
            log.push(&target(n));
        }
        log.end();
        assert!(!writer.finish(Instant::now() + Duration::from_millis(50)));
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        // Once somebody reads, the rest comes, and says how much is missing.
        let rest: Vec<String> = reader.lines().map(Result::unwrap).collect();
        assert_eq!(seq(rest.last().unwrap()), 40_001);
        assert!(rest.iter().any(|line| line.contains("\"missed\"")), "{} lines", rest.len());
    }

    const PATIENCE: Duration = Duration::from_secs(20);
}
