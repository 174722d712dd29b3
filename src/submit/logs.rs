//! Follows a container's log to its end and reconnects if the connection is lost. The timestamps that
//! the server puts in front of the lines show which lines were read already.

use std::io::{BufRead as _, Read as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;

use crate::core::model::refusal::RefusalClass;
use crate::kube::api::objects::{Kind, LogQuery, Objects};
use crate::submit::listener::{FollowEvent, Listener};
use crate::submit::state::{driver_status, main_container};

/// The longest line that is read in one piece, in bytes. A longer line is read in several pieces.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// How long to wait before the log is opened again.
const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// How often in a row the server may refuse the log.
const REFUSED_MAX: u32 = 30;

/// Reads the logs of drivers' pods.
#[expect(missing_debug_implementations, reason = "a closure has nothing to show")]
pub struct LogFollower<'a> {
    pub objects: Objects,
    pub listener: Listener<'a>,
    /// Only this many lines from the end of the log.
    pub tail: Option<u32>,
    /// Set to end the follower.
    pub is_ended: &'a AtomicBool,
}

/// The position up to which a log has been read.
#[derive(Debug, Default)]
struct ReadPosition {
    /// The time of the last line.
    last: Option<Timestamp>,
    /// How many lines of that time there were.
    n_at_last: u32,
    /// How many of these lines have been read again since the last reconnect.
    n_again: u32,
}

impl LogFollower<'_> {
    /// Reads a pod's log until the driver's container has terminated and everything is read.
    pub fn follow(&self, pod: &str) {
        let mut position = ReadPosition::default();
        let mut n_refused = 0;
        while n_refused < REFUSED_MAX && !self.is_ended.load(Ordering::Acquire) {
            let seen = self.objects.get(Kind::Pod, pod);
            let container = match &seen {
                Ok(Some(pod)) => Some(main_container(pod).to_owned()),
                Ok(None) => return,
                Err(_) => None,
            };
            let query = LogQuery {
                container,
                follow: true,
                timestamps: true,
                tail: self.tail.filter(|_| position.last.is_none()),
                since: position.last.map(since),
            };
            let had_terminated = seen.is_ok_and(|pod| {
                pod.is_some_and(|pod| !driver_status(&pod)["state"]["terminated"].is_null())
            });
            match self.objects.log(pod, &query) {
                Err(refusal) if refusal.class == RefusalClass::NotFound => return,
                Err(refusal) => {
                    log::debug!("the log of {pod} cannot be read: {refusal}");
                    n_refused += 1;
                }
                Ok(mut stream) => {
                    n_refused = 0;
                    position.n_again = 0;
                    let is_whole = self.copy(stream.reader(), &mut position);
                    match is_whole {
                        None => return,
                        // The container had terminated before the log was opened: this is all.
                        Some(true) if had_terminated => return,
                        Some(_) => {}
                    }
                }
            }
            thread::park_timeout(RECONNECT_WAIT);
        }
        if !self.is_ended.load(Ordering::Acquire) {
            log::warn!("the log of {pod} could not be read to its end");
        }
    }

    /// Reads what a pod's log has now.
    pub fn read_once(&self, pod: &str) {
        let container = match self.objects.get(Kind::Pod, pod) {
            Ok(Some(pod)) => Some(main_container(&pod).to_owned()),
            Ok(None) | Err(_) => None,
        };
        let query =
            LogQuery { container, timestamps: true, tail: self.tail, ..LogQuery::default() };
        match self.objects.log(pod, &query) {
            Ok(mut stream) => drop(self.copy(stream.reader(), &mut ReadPosition::default())),
            Err(refusal) => log::warn!("the log of {pod} cannot be read: {refusal}"),
        }
    }

    /// Reports new lines. Returns whether the log ended without an error; `None` if the listener wants
    /// no more.
    fn copy(&self, reader: &mut dyn std::io::BufRead, position: &mut ReadPosition) -> Option<bool> {
        // The later pieces of a long line have no timestamp. They are treated like its first piece.
        let (mut is_new, mut is_line_start) = (true, true);
        loop {
            let mut piece = Vec::new();
            match reader.take(PIECE_BYTES_MAX).read_until(b'\n', &mut piece) {
                Ok(0) => return Some(true),
                Ok(_) => {}
                Err(error) => {
                    log::debug!("the connection of a log was lost: {error}");
                    return Some(false);
                }
            }
            let text = match is_line_start {
                true => {
                    let (time, text) = split_time(&piece);
                    is_new = time.is_none_or(|time| position.is_new(time));
                    text
                }
                false => piece.as_slice(),
            };
            is_line_start = piece.ends_with(b"\n");
            if is_new && !(self.listener)(FollowEvent::Log(text.to_vec())) {
                return None;
            }
        }
    }
}

impl ReadPosition {
    /// True if a line with this time has not been read yet.
    fn is_new(&mut self, time: Timestamp) -> bool {
        match self.last {
            Some(last) if time < last => false,
            Some(last) if time == last => {
                self.n_again += 1;
                let is_new = self.n_again > self.n_at_last;
                self.n_at_last = self.n_at_last.max(self.n_again);
                is_new
            }
            Some(_) | None => {
                (self.last, self.n_at_last, self.n_again) = (Some(time), 1, 1);
                true
            }
        }
    }
}

/// The time in whole seconds, as `sinceTime` requires.
fn since(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
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
    use super::*;

    #[test]
    fn each_line_is_read_once() {
        let log = [
            ("2026-01-01T00:00:01.1Z", "a"),
            ("2026-01-01T00:00:01.12Z", "b"),
            ("2026-01-01T00:00:01.12Z", "c"),
            ("2026-01-01T00:00:01.12Z", "d"),
            ("2026-01-01T00:00:02Z", "e"),
            ("2026-01-01T00:00:02Z", "f"),
        ];
        // The connection is lost after line `cut`; the next log starts at the whole second.
        for cut in 0..=log.len() {
            let mut position = ReadPosition::default();
            let mut got = String::new();
            let mut copy = |lines: &[(&str, &str)], position: &mut ReadPosition| {
                position.n_again = 0;
                for (time, text) in lines {
                    if position.is_new(time.parse().unwrap()) {
                        got.push_str(text);
                    }
                }
            };
            copy(&log[..cut], &mut position);
            let from = match position.last.map(since) {
                Some(since) if since == "2026-01-01T00:00:02Z" => 4,
                Some(_) | None => 0,
            };
            copy(&log[from..], &mut position);
            copy(&log[from..], &mut position);
            assert_eq!(got, "abcdef", "cut after {cut}");
        }
    }

    #[test]
    fn timestamps_are_removed() {
        let (time, text) = split_time(b"2026-01-01T00:00:01.123456789Z hello  world\n");
        assert_eq!(
            (time.map(since).as_deref(), text),
            (Some("2026-01-01T00:00:01Z"), &b"hello  world\n"[..])
        );
        for line in [&b"no time\n"[..], b"word", b"", b"2026-01-01T00:00:01Z"] {
            assert_eq!(split_time(line), (None, line));
        }
    }
}
