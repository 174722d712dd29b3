//! Tests of the event log: its numbers, its limits, and the files and pipes that it is written to.

use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;
use std::thread;

use serde_json::Value;

use super::*;
use posse_core::model::event::{ClusterEvent, GroupEvent, RestartKind};
use posse_testing::{Folder, PATIENCE, Wait};

fn log() -> Arc<EventLog> {
    Arc::new(EventLog::new("k3f9", Clock::start()))
}

fn target(n: u32) -> Event {
    Event::Group("g".into(), GroupEvent::TargetChanged { target: n })
}

fn seq(line: &str) -> u64 {
    let line: Value = serde_json::from_str(line).unwrap();
    line["seq"].as_u64().unwrap()
}

/// The numbers of all events after `after`.
fn read_on(log: &EventLog, mut after: u64) -> Vec<u64> {
    let mut got = Vec::new();
    while let Read::Lines { lines, last } = log.read(after, Duration::ZERO) {
        got.extend(lines.iter().map(|line| seq(line)));
        after = last;
    }
    got
}

#[test]
fn a_wait_ends_when_the_file_has_the_events() {
    let (log, folder) = (log(), Folder::new());
    log.push(target(1));
    log.wait_written(PATIENCE);
    let begun = Instant::now();
    log.set_written(Some(0));
    log.wait_written(Duration::from_millis(20));
    assert!(begun.elapsed() >= Duration::from_millis(20), "a writer that is too slow");
    log.wait_written(PATIENCE);
    let file = folder.path().join("events");
    let writer = EventWriter::start(EventTarget::File(file.clone()), Arc::clone(&log)).unwrap();
    for n in 2..50 {
        log.push(target(n));
        log.wait_written(PATIENCE);
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), n as usize);
    }
    log.end();
    assert!(writer.finish(Instant::now() + PATIENCE));
}

#[test]
fn events_are_numbered_from_one() {
    let log = log();
    assert_eq!((log.newest(), log.read(0, Duration::ZERO)), (0, Read::Nothing));
    for n in 0..600 {
        log.push(target(n));
    }
    assert_eq!(log.newest(), 600);
    assert_eq!(read_on(&log, 0), (1..=600).collect::<Vec<_>>());
    assert_eq!(read_on(&log, 598), [599, 600]);
    assert_eq!(log.read(600, Duration::ZERO), Read::Nothing);
    log.end();
    log.push(target(1));
    assert_eq!(log.newest(), 600);
    assert_eq!(read_on(&log, 599), [600]);
    assert_eq!(log.read(600, PATIENCE), Read::Ended);
}

#[test]
fn a_slow_reader_gets_the_number_of_missed_events() {
    let log = log();
    for n in 0..10_100 {
        log.push(target(n));
    }
    let Read::Lines { lines, .. } = log.read(40, Duration::ZERO) else { panic!("lines") };
    let newest = log.newest();
    let (first, n_kept) = (seq(&lines[0]), lock(&log.state).entries.len() as u64);
    assert!(n_kept <= EVENTS_KEPT as u64);
    assert_eq!(first, newest - n_kept);
    let missed: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(
        (missed["event"].as_str(), missed["count"].as_u64()),
        (Some("missed"), Some(first - 40))
    );
    // After the `missed` event the numbers have no gaps.
    assert_eq!(read_on(&log, 40), (first..=newest).collect::<Vec<_>>());
    assert_eq!(read_on(&log, first), (first + 1..=newest).collect::<Vec<_>>());
}

#[test]
fn the_log_is_limited_in_bytes() {
    let log = log();
    for _ in 0..400 {
        let cause = "x".repeat(100_000);
        log.push(Event::Cluster(ClusterEvent::WatchRestarted { kind: RestartKind::Cut, cause }));
    }
    let state = lock(&log.state);
    let n_bytes = state.entries.iter().map(|entry| entry.n_bytes()).sum::<usize>();
    assert_eq!(state.n_bytes, n_bytes);
    assert!((EVENT_BYTES_KEPT - 200_000..=EVENT_BYTES_KEPT).contains(&n_bytes), "{n_bytes}");
    assert_eq!(state.newest(), 400);
}

/// A line is written when it is read, and says when its event happened.
#[test]
fn lines_have_the_time_of_their_events() {
    let log = log();
    log.push(Event::Run(RunEvent::Started));
    let at = lock(&log.state).entries[0].at;
    while log.clock.now() == at {
        thread::sleep(Duration::from_millis(1));
    }
    let Read::Lines { lines, .. } = log.read(0, Duration::ZERO) else { panic!("lines") };
    let line: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(line["time"], lock(&log.state).entries[0].epoch.rfc3339(at));
}

#[test]
fn a_waiting_reader_is_woken() {
    let log = log();
    let reader = Arc::clone(&log);
    let thread = thread::spawn(move || (reader.read(0, PATIENCE), reader.read(1, PATIENCE)));
    log.push(Event::Run(RunEvent::Started));
    // The second read ends at once, whether it waits already or starts later.
    log.end();
    let start = Instant::now();
    let (first, second) = thread.join().unwrap();
    assert!(matches!(first, Read::Lines { last: 1, .. }), "{first:?}");
    assert_eq!(second, Read::Ended);
    assert!(start.elapsed() < PATIENCE / 2);
}

#[test]
fn events_are_appended_to_a_file() {
    let folder = Folder::new();
    let path = folder.path().join("events");
    fs::write(&path, "before\n").unwrap();
    let log = log();
    let writer = EventWriter::start(EventTarget::File(path.clone()), Arc::clone(&log)).unwrap();
    for n in 0..1000 {
        log.push(target(n));
    }
    log.end();
    assert!(writer.finish(Instant::now() + PATIENCE));
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[0], seq(lines[1000])), (1001, "before", 1000));
}

#[test]
fn only_this_user_may_read_a_new_events_file() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = Folder::new();
    let path = folder.path().join("events");
    let log = log();
    let writer = EventWriter::start(EventTarget::File(path.clone()), Arc::clone(&log)).unwrap();
    log.end();
    assert!(writer.finish(Instant::now() + PATIENCE));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
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
fn a_fifo_without_a_reader_delays_nothing() {
    let folder = Folder::new();
    let log = log();
    let target_file = EventTarget::File(fifo(&folder));
    let writer = EventWriter::start(target_file, Arc::clone(&log)).unwrap();
    for n in 0..1000 {
        log.push(target(n));
    }
    log.end();
    let start = Instant::now();
    assert!(writer.finish(start + PATIENCE));
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

#[test]
fn readers_of_a_fifo_may_come_late_and_change() {
    let folder = Folder::new();
    let path = fifo(&folder);
    let log = log();
    let writer = EventWriter::start(EventTarget::File(path.clone()), Arc::clone(&log)).unwrap();
    log.push(Event::Run(RunEvent::Started));
    let mut line = String::new();
    // Opening for reading blocks until the writer has opened the FIFO, too.
    BufReader::new(File::open(&path).unwrap()).read_line(&mut line).unwrap();
    assert_eq!(seq(&line), 1);
    // The reader is closed. The next write fails and is repeated for the next reader.
    log.push(Event::Run(RunEvent::Stopping));
    line.clear();
    // A reader that opens the FIFO just before the writer closes it reads nothing and retries.
    let mut wait = Wait::new("a line for the second reader", PATIENCE);
    while line.is_empty() {
        assert!(wait.goes_on(), "the second reader gets nothing");
        BufReader::new(File::open(&path).unwrap()).read_line(&mut line).unwrap();
    }
    assert_eq!(seq(&line), 2);
    log.end();
    assert!(writer.finish(Instant::now() + PATIENCE));
}

#[test]
fn a_line_that_a_full_disk_has_cut_off_is_finished_where_it_began() {
    let folder = Folder::new();
    let pipe = fifo(&folder);
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap();
    let open = |options: &mut fs::OpenOptions| options.custom_flags(flags).open(&pipe).unwrap();
    let bytes = b"line\n".repeat(100_000);
    // The begin of a line, a file that was emptied or moved away, and one that another process writes to.
    for (n, there, is_finished) in [(1, "li", true), (2, "", false), (3, "other\n", false)] {
        let path = folder.path().join(format!("events-{n}"));
        fs::write(&path, there).unwrap();
        let mut reader = open(fs::OpenOptions::new().read(true));
        // As a full disk, it takes a part and then fails.
        let sink = Some(open(fs::OpenOptions::new().write(true)));
        let target = EventTarget::File(path.clone());
        let mut writer = Writer { target, log: log(), sink, has_warned: false };
        assert!(writer.write_all(&bytes));
        drop(writer);
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        assert!(!got.is_empty() && !got.ends_with(b"\n"));
        if !is_finished {
            got.truncate(got.len() / 5 * 5);
        }
        got.extend(&fs::read(&path).unwrap()[there.len()..]);
        assert!(got == bytes, "{there}: {} bytes, and {} were written", got.len(), bytes.len());
    }
}

#[test]
fn a_full_pipe_blocks_only_the_writer_thread() {
    let folder = Folder::new();
    let path = fifo(&folder);
    let log = log();
    let writer = EventWriter::start(EventTarget::File(path.clone()), Arc::clone(&log)).unwrap();
    log.push(Event::Run(RunEvent::Started));
    let mut reader = BufReader::new(File::open(&path).unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    // Far more than a pipe holds, and more than the log keeps.
    let start = Instant::now();
    for n in 0..40_000 {
        log.push(target(n));
    }
    log.end();
    assert!(!writer.finish(Instant::now() + Duration::from_millis(50)));
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    // When a reader continues, it gets the rest and the number of missed events.
    let rest: Vec<String> = reader.lines().map(Result::unwrap).collect();
    assert_eq!(seq(rest.last().unwrap()), 40_001);
    assert!(rest.iter().any(|line| line.contains("\"missed\"")), "{} lines", rest.len());
}
