//! Follows a container's log to its end and reconnects if the connection is lost. The timestamps that
//! the server puts in front of the lines show which lines were read already.

use std::collections::BTreeMap;
use std::io::{BufRead as _, Read as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::listener::{FollowEvent, Listener};
use crate::state::has_begun;
use posse_core::model::pod::ContainerState;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::{LogQuery, Objects};
use posse_kube::http::STREAM_HEAD_TIMEOUT;

/// The longest line that is read in one piece, in bytes. A longer line is read in several pieces.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// How long to wait before the log is opened again.
const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// The longest such wait, while the node cannot read the log: shorter than the rest of a log may take.
const UNREADABLE_WAIT_MAX: Duration = Duration::from_secs(8);
/// How often in a row the server may refuse the log.
const REFUSED_MAX: u32 = 30;
/// How often in a row it may not answer, one second apart: a server may restart, or a laptop sleep.
const UNANSWERED_MAX: u32 = 600;
/// The code of a proxy whose server has sent nothing for too long.
const GATEWAY_TIMEOUT: u16 = 504;
/// What the kubelet writes into the answer, without a line's end, if it cannot read the log of a container
/// (`ReadLogs` of its package kuberuntime, which has sent the code 200 by then).
const KUBELET_ERRORS: [&str; 4] = [
    "unable to retrieve container logs for ",
    "failed to create fsnotify watcher: ",
    "failed to try resolving symlinks in path ",
    "failed to watch directory ",
];

/// Reads the logs of drivers' pods.
#[expect(missing_debug_implementations, reason = "a closure has nothing to show")]
pub struct LogFollower<'a> {
    pub objects: Objects,
    pub listener: Listener<'a>,
    /// Only this many lines from the end of the log.
    pub tail: Option<u32>,
    /// Set to end the follower.
    pub is_ended: &'a AtomicBool,
    /// The run is over, so a server that does not answer has ended with it.
    pub is_over: &'a (dyn Fn() -> bool + Sync),
}

/// How the reading of a log ended.
#[derive(Debug, PartialEq, Eq)]
enum Copied {
    Whole,
    /// The connection was lost.
    Cut,
    /// The node cannot read the log, or not follow it: its words.
    Unreadable(String),
    /// The listener wants no more.
    Unwanted,
}

/// How often in a row the log could not be opened.
#[derive(Debug, Default)]
struct Failures {
    n_refused: u32,
    n_unanswered: u32,
}

impl Failures {
    /// While a container says nothing, the node sends no head, and a proxy on the way may have had enough. What has ended
    /// is sent at once, and a server that cannot reach the node says so with another code.
    fn note(&mut self, refusal: &Refusal, took: Duration, follows: bool) {
        let is_silence = refusal.is_no_answer() || refusal.code == GATEWAY_TIMEOUT;
        match refusal.is_no_answer() {
            _ if follows && is_silence && took >= STREAM_HEAD_TIMEOUT => {}
            true => self.n_unanswered += 1,
            false => self.n_refused += 1,
        }
    }

    fn are_too_many(&self) -> bool {
        self.n_refused >= REFUSED_MAX || self.n_unanswered >= UNANSWERED_MAX
    }
}

/// Which lines of a log have been read.
///
/// A line's time tells which it is, but not its place: a container runtime reads stdout and stderr side by
/// side and takes the time before it writes the line, so a line may be older than the one before it.
#[derive(Debug, Default)]
struct ReadPosition {
    /// The time of the first line. With `tail` there are older lines, which are not for us.
    first: Option<Timestamp>,
    /// The second of the newest line, and how many lines of each second have been read. Only the seconds
    /// that are read again after a reconnect are kept: this one and the one before it.
    newest: i64,
    seconds: BTreeMap<i64, SecondRead>,
    is_again: bool,
}

/// The lines whose times are in one second.
#[derive(Debug, Default)]
struct SecondRead {
    n: u64,
    /// How many of them have been read again since the last reconnect.
    n_again: u64,
}

impl LogFollower<'_> {
    /// Reads a pod's log until the driver's container has terminated and everything is read. False if it could not be read
    /// to its end.
    pub fn follow(&self, pod: &str) -> bool {
        let mut position = ReadPosition::default();
        let mut failures = Failures::default();
        let (mut told, mut wait) = (String::new(), RECONNECT_WAIT);
        while !failures.are_too_many() && !self.is_ended.load(Ordering::Acquire) {
            let seen = self.objects.pod(pod);
            let container = match &seen {
                // It has no log before it begins, which may take as long as its image.
                Ok(Some(pod)) if pod.is_live() && !has_begun(pod) && pod.restarts() == 0 => {
                    thread::park_timeout(RECONNECT_WAIT);
                    continue;
                }
                Ok(Some(pod)) => Some(pod.main.clone()),
                Ok(None) => return true,
                Err(_) if (self.is_over)() => return true,
                Err(_) => None,
            };
            let had_terminated = seen.is_ok_and(|pod| {
                pod.is_some_and(|pod| pod.facts.container == ContainerState::Ended)
            });
            let query = LogQuery {
                container,
                // A node that has no watcher left for it has all the same what there is.
                follow: !had_terminated,
                timestamps: true,
                tail: self.tail.filter(|_| position.first.is_none()),
                since: position.since(),
            };
            let asked_at = Instant::now();
            match self.objects.log(pod, &query) {
                Err(refusal) if refusal.class == RefusalClass::NotFound => return true,
                Err(refusal) if refusal.class == RefusalClass::Forbidden => {
                    log::warn!("the log of {pod} cannot be read: {refusal}");
                    return false;
                }
                Err(refusal) => {
                    log::debug!("the log of {pod} cannot be read: {refusal}");
                    failures.note(&refusal, asked_at.elapsed(), query.follow);
                }
                Ok(mut stream) => {
                    failures = Failures::default();
                    match self.copy(stream.reader(), Some(&mut position)) {
                        Copied::Unwanted => return true,
                        // The container had terminated before the log was opened: this is all.
                        Copied::Whole if had_terminated => return true,
                        Copied::Whole | Copied::Cut => wait = RECONNECT_WAIT,
                        Copied::Unreadable(words) => {
                            if words != told {
                                log::warn!("the node cannot read the log of {pod}: {words}");
                            }
                            if had_terminated {
                                return false;
                            }
                            (told, wait) = (words, UNREADABLE_WAIT_MAX.min(2 * wait));
                        }
                    }
                    position.reconnect();
                }
            }
            thread::park_timeout(wait);
        }
        let is_ended = self.is_ended.load(Ordering::Acquire);
        if !is_ended {
            log::warn!("the log of {pod} could not be read to its end");
        }
        is_ended
    }

    /// Reads what a pod's log has now. False if it could not be read to its end.
    pub fn read_once(&self, pod: &str) -> bool {
        let container = self.objects.pod(pod).ok().flatten().map(|pod| pod.main);
        // Without timestamps: nothing is read again, and nodes put them also into the middle of long lines.
        let query = LogQuery { container, tail: self.tail, ..LogQuery::default() };
        match self.objects.log(pod, &query) {
            Ok(mut stream) => match self.copy(stream.reader(), None) {
                Copied::Whole => true,
                Copied::Cut | Copied::Unwanted => false,
                Copied::Unreadable(words) => {
                    log::warn!("the node cannot read the log of {pod}: {words}");
                    false
                }
            },
            Err(refusal) => {
                log::warn!("the log of {pod} cannot be read: {refusal}");
                false
            }
        }
    }

    /// Reports new lines. With a position, each line begins with its time.
    fn copy(
        &self,
        reader: &mut dyn std::io::BufRead,
        mut position: Option<&mut ReadPosition>,
    ) -> Copied {
        // The later pieces of a long line have no timestamp. They are treated like its first piece.
        let (mut is_new, mut is_line_start) = (true, true);
        loop {
            let mut piece = Vec::new();
            match reader.take(PIECE_BYTES_MAX).read_until(b'\n', &mut piece) {
                Ok(0) => return Copied::Whole,
                Ok(_) => {}
                Err(error) => {
                    log::debug!("the connection of a log was lost: {error}");
                    return Copied::Cut;
                }
            }
            if is_line_start && let Some(words) = kubelet_error(&piece) {
                return Copied::Unreadable(words.to_owned());
            }
            let text = match &mut position {
                Some(position) if is_line_start => {
                    let (time, text) = split_time(&piece);
                    is_new = time.is_none_or(|time| position.is_new(time));
                    text
                }
                Some(_) | None => piece.as_slice(),
            };
            is_line_start = piece.ends_with(b"\n");
            if is_new && !(self.listener)(FollowEvent::Log(text.to_vec())) {
                return Copied::Unwanted;
            }
        }
    }
}

impl ReadPosition {
    /// True if a line with this time has not been read yet.
    fn is_new(&mut self, time: Timestamp) -> bool {
        let first = *self.first.get_or_insert(time);
        let second = time.as_second();
        if self.is_again {
            if time < first || second < self.newest - 1 {
                return false;
            }
            if let Some(read) = self.seconds.get_mut(&second).filter(|read| read.n_again < read.n) {
                read.n_again += 1;
                return false;
            }
        }
        self.newest = self.newest.max(second);
        if second >= self.newest - 1 {
            let read = self.seconds.entry(second).or_default();
            read.n += 1;
            read.n_again += 1;
        }
        self.seconds.retain(|second, _| *second >= self.newest - 1);
        true
    }

    /// The next lines come from the time `since` again.
    fn reconnect(&mut self) {
        self.is_again = true;
        self.seconds.values_mut().for_each(|read| read.n_again = 0);
    }

    /// From when on the log has to be read again, as `sinceTime` requires it: in whole seconds.
    fn since(&self) -> Option<String> {
        self.first?;
        Some(Timestamp::from_second(self.newest - 1).unwrap_or(Timestamp::UNIX_EPOCH).to_string())
    }
}

/// The kubelet's own words at the end of a log. They are no output of the container: its lines end, and
/// begin with a time if we asked for that.
fn kubelet_error(piece: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(piece).ok().filter(|text| !text.ends_with('\n'))?;
    KUBELET_ERRORS.iter().any(|error| text.starts_with(error)).then_some(text)
}

/// Splits a line into its timestamp and the rest.
fn split_time(line: &[u8]) -> (Option<Timestamp>, &[u8]) {
    let Some(at) = line.iter().position(|c| *c == b' ') else { return (None, line) };
    let (time, rest) = line.split_at(at);
    let time = std::str::from_utf8(time).ok().and_then(|text| text.parse().ok());
    match time {
        Some(_) => (time, &rest[1..]),
        None => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::{Arc, Mutex};

    use posse_testing::{Answer, TestServer, plain_client};
    use serde_json::json;

    use super::*;

    /// Reads lines as from one connection: those from `since` on.
    fn read(log: &[(&str, &str)], position: &mut ReadPosition) -> String {
        let since = position.since().map(|since| since.parse().unwrap());
        let lines = log.iter().map(|(time, text)| (time.parse::<Timestamp>().unwrap(), *text));
        lines
            .filter(|(time, _)| since.is_none_or(|since| *time >= since))
            .filter(|(time, _)| position.is_new(*time))
            .map(|(_, text)| text)
            .collect()
    }

    #[test]
    fn each_line_is_read_once() {
        let log = [
            ("2026-01-01T00:00:01.1Z", "a"),
            ("2026-01-01T00:00:01.12Z", "b"),
            ("2026-01-01T00:00:01.12Z", "c"),
            ("2026-01-01T00:00:01.12Z", "d"),
            ("2026-01-01T00:00:02Z", "e"),
            // Older than the line before it: stdout and stderr are read side by side.
            ("2026-01-01T00:00:01.99Z", "f"),
            ("2026-01-01T00:00:02Z", "g"),
            ("2026-01-01T00:00:07Z", "h"),
            ("2026-01-01T00:00:06.5Z", "i"),
        ];
        // The connection is lost after line `cut`, and once more at the end.
        for cut in 0..=log.len() {
            let mut position = ReadPosition::default();
            let mut got = read(&log[..cut], &mut position);
            for _ in 0..2 {
                position.reconnect();
                got.push_str(&read(&log, &mut position));
            }
            assert_eq!(got, "abcdefghi", "cut after {cut}");
        }
    }

    #[test]
    fn lines_before_the_tail_are_not_read_after_a_reconnect() {
        let log = [
            ("2026-01-01T00:00:01.1Z", "a"),
            ("2026-01-01T00:00:01.2Z", "b"),
            ("2026-01-01T00:00:01.3Z", "c"),
            ("2026-01-01T00:00:01.4Z", "d"),
        ];
        let mut position = ReadPosition::default();
        assert_eq!(read(&log[2..3], &mut position), "c");
        position.reconnect();
        assert_eq!(read(&log, &mut position), "d");
    }

    #[test]
    fn the_words_of_the_kubelet_are_not_the_containers() {
        for (piece, is_error) in [
            ("unable to retrieve container logs for containerd://0a1b", true),
            (
                "failed to try resolving symlinks in path \"/var/log/pods/a/c/0.log\": lstat: no",
                true,
            ),
            ("failed to create fsnotify watcher: too many open files", true),
            // A driver that prints them.
            ("unable to retrieve container logs for containerd://0a1b\n", false),
            ("2026-01-01T00:00:01Z unable to retrieve container logs for containerd://0a1b", false),
            ("no end of a line", false),
            ("", false),
        ] {
            assert_eq!(kubelet_error(piece.as_bytes()).is_some(), is_error, "{piece}");
        }
    }

    /// The node has no more inotify instances: it sends what there is, and its own words.
    #[test]
    fn a_log_that_the_node_cannot_follow_is_read_again() {
        let (n_logs, is_broken) = (AtomicU32::new(0), Arc::new(AtomicBool::new(false)));
        let breaks = Arc::clone(&is_broken);
        let server = TestServer::start(None, move |asked| {
            if asked.line().contains("/log?") {
                n_logs.fetch_add(1, Ordering::AcqRel);
                // Only who follows a log needs a watcher.
                let words = match (breaks.load(Ordering::Acquire), asked.line()) {
                    (true, _) => "unable to retrieve container logs for containerd://0a1b",
                    (false, line) if line.contains("follow=true") => {
                        "2026-01-01T00:00:01Z line\nfailed to create fsnotify watcher: none left"
                    }
                    (false, _) => "2026-01-01T00:00:01Z line\n",
                };
                return Answer::Reply(200, "", words.into());
            }
            let state = match n_logs.load(Ordering::Acquire) {
                0 | 1 => json!({"running": {}}),
                _ => json!({"terminated": {"exitCode": 0}}),
            };
            let pod = json!({"kind": "Pod", "metadata": {"name": "p", "uid": "u"},
                "spec": {"containers": [{"name": "main"}]},
                "status": {"phase": "Running",
                    "containerStatuses": [{"name": "main", "state": state}]}});
            Answer::json(200, pod.to_string())
        });
        let lines = Mutex::new(String::new());
        let listener = |event| {
            if let FollowEvent::Log(line) = event {
                lines.lock().unwrap().push_str(&String::from_utf8(line).unwrap());
            }
            true
        };
        let follower = LogFollower {
            objects: Objects::new(plain_client(server.address), Some("ns")),
            listener: &listener,
            tail: None,
            is_ended: &AtomicBool::new(false),
            is_over: &|| false,
        };
        assert!(follower.follow("p"), "it is whole");
        assert_eq!(*lines.lock().unwrap(), "line\n");
        is_broken.store(true, Ordering::Release);
        assert!(!follower.follow("p") && !follower.read_once("p"), "it is not whole");
    }

    #[test]
    fn silence_does_not_count_as_a_failure() {
        for (code, seconds, follows, want) in [
            (504, 60, true, (0, 0)),
            (504, 1, true, (1, 0)),
            (503, 1, true, (1, 0)),
            // The server cannot reach the node.
            (500, 31, true, (1, 0)),
            (0, 60, true, (0, 0)),
            (0, 1, true, (0, 1)),
            (0, 60, false, (0, 1)),
            (504, 60, false, (1, 0)),
        ] {
            let refusal = Refusal { code, ..Refusal::local(RefusalClass::Transient, "") };
            let mut failures = Failures::default();
            failures.note(&refusal, Duration::from_secs(seconds), follows);
            let got = (failures.n_refused, failures.n_unanswered);
            assert_eq!(got, want, "{code} {seconds} {follows}");
        }
    }

    #[test]
    fn timestamps_are_removed() {
        let (time, text) = split_time(b"2026-01-01T00:00:01.123456789Z hello  world\n");
        assert_eq!(
            (time.map(|time| time.to_string()).as_deref(), text),
            (Some("2026-01-01T00:00:01.123456789Z"), &b"hello  world\n"[..])
        );
        for line in [&b"no time\n"[..], b"word", b"", b"2026-01-01T00:00:01Z"] {
            assert_eq!(split_time(line), (None, line));
        }
    }
}
