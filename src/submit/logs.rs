//! Owns reading a container's log to its end, whatever becomes of the connection: each line once,
//! in order, by the times that the server puts before them.

use std::io::{BufRead as _, Read as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;

use crate::core::model::refusal::RefusalClass;
use crate::kube::api::objects::{Kind, LogQuery, Objects};
use crate::submit::listener::{FollowEvent, Listener};
use crate::submit::state::{driver_status, main_container};

/// The longest line that is read in one piece, bytes; the rest of it is the next piece.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// How long to wait before a log is asked for again.
const AGAIN: Duration = Duration::from_secs(1);
/// So often in a row may a log be refused.
const REFUSED_MAX: u32 = 30;

/// Reads the logs of drivers' pods.
#[expect(missing_debug_implementations, reason = "a closure has nothing to show")]
pub struct LogFollower<'a> {
    pub objects: Objects,
    pub say: Listener<'a>,
    /// Only the last so many lines.
    pub tail: Option<u32>,
    /// Set where no more of it is wanted.
    pub is_ended: &'a AtomicBool,
}

/// How far a log has been read.
#[derive(Debug, Default)]
struct Read {
    /// The time of the last line.
    last: Option<Timestamp>,
    /// How many lines of that time there were.
    n_at_last: u32,
    /// How many of them have come again since the log was opened anew.
    n_again: u32,
}

impl LogFollower<'_> {
    /// Reads a pod's log until its driver's container has ended and all was read.
    pub fn follow(&self, pod: &str) {
        let mut read = Read::default();
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
                tail: self.tail.filter(|_| read.last.is_none()),
                since: read.last.map(since),
            };
            let was_over = seen.is_ok_and(|pod| {
                pod.is_some_and(|pod| !driver_status(&pod)["state"]["terminated"].is_null())
            });
            match self.objects.log(pod, &query) {
                Err(refusal) if refusal.class == RefusalClass::NotFound => return,
                Err(refusal) => {
                    log::debug!("the log of {pod}: {refusal}");
                    n_refused += 1;
                }
                Ok(mut stream) => {
                    n_refused = 0;
                    read.n_again = 0;
                    let is_whole = self.copy(stream.reader(), &mut read);
                    match is_whole {
                        None => return,
                        // It ended before, so that was all of it.
                        Some(true) if was_over => return,
                        Some(_) => {}
                    }
                }
            }
            thread::park_timeout(AGAIN);
        }
        log::warn!("the log of {pod} could not be read to its end");
    }

    /// Copies what is new; whether it came to a clean end, or none where nobody listens.
    fn copy(&self, reader: &mut dyn std::io::BufRead, read: &mut Read) -> Option<bool> {
        // The rest of a long line carries no time, and goes where its beginning went.
        let (mut is_new, mut begins) = (true, true);
        loop {
            let mut piece = Vec::new();
            match reader.take(PIECE_BYTES_MAX).read_until(b'\n', &mut piece) {
                Ok(0) => return Some(true),
                Ok(_) => {}
                Err(error) => {
                    log::debug!("a log was cut: {error}");
                    return Some(false);
                }
            }
            let text = match begins {
                true => {
                    let (time, text) = split_time(&piece);
                    is_new = time.is_none_or(|time| read.is_new(time));
                    text
                }
                false => piece.as_slice(),
            };
            begins = piece.ends_with(b"\n");
            if is_new && !(self.say)(FollowEvent::Log(text.to_vec())) {
                return None;
            }
        }
    }
}

impl Read {
    /// True for a line of that time that has not been read yet.
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

/// The whole second of a time, as `sinceTime` has it.
fn since(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// The time before a line, and the line.
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
        // Cut after every line, and opened again with what the whole second holds.
        for cut in 0..=log.len() {
            let mut read = Read::default();
            let mut got = String::new();
            let mut copy = |lines: &[(&str, &str)], read: &mut Read| {
                read.n_again = 0;
                for (time, text) in lines {
                    if read.is_new(time.parse().unwrap()) {
                        got.push_str(text);
                    }
                }
            };
            copy(&log[..cut], &mut read);
            let from = match read.last.map(since) {
                Some(since) if since == "2026-01-01T00:00:02Z" => 4,
                Some(_) | None => 0,
            };
            copy(&log[from..], &mut read);
            copy(&log[from..], &mut read);
            assert_eq!(got, "abcdef", "cut after {cut}");
        }
    }

    #[test]
    fn times_are_taken_off() {
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
