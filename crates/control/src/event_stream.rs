//! `GET /v1/events`: sends the events of a run to readers, also while they happen.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use crate::Read;
use crate::answer::{Answer, NO_SNIFFING};
use crate::semaphore::Semaphore;
use crate::served_run::ServedRun;
use posse_serve::{ChunkWriter, Request, Responder};

/// The events of a run and their readers.
#[derive(Debug)]
pub(super) struct EventStream {
    subject: ServedRun,
    followers: Semaphore,
}

impl EventStream {
    /// At most `followers_max` readers at once.
    pub(super) fn new(subject: ServedRun, followers_max: usize) -> Self {
        Self { subject, followers: Semaphore::new(followers_max) }
    }

    /// Answers a GET or HEAD.
    pub(super) fn serve(&self, request: &Request, responder: Responder<'_>) -> io::Result<()> {
        let (after, follow) = match self.check_query(request) {
            Ok(query) => query,
            Err(refusal) => return refusal.send(responder),
        };
        let Some(_permit) = self.followers.try_acquire() else {
            let what = "too many readers of events, try again";
            return Answer::error(429, what, None).send(responder);
        };
        let head_only = request.method == "HEAD";
        let headers = [("content-type", "application/x-ndjson"), NO_SNIFFING];
        let writer = responder.stream(200, &headers)?;
        if head_only {
            return writer.finish();
        }
        self.send(writer, after, follow)
    }

    /// If the event log has ended, readers have up to `LAST_EVENTS_WAIT` to read the last events.
    pub(super) fn wait_for_readers(&self) {
        self.followers.wait_until_free(LAST_EVENTS_WAIT);
    }

    /// The number to start after, and whether to follow.
    fn check_query(&self, request: &Request) -> Result<(u64, bool), Answer> {
        let after = number(request, "after")?;
        let follow = flag(request, "follow")?;
        check_run(request, &self.subject.identity.run)?;
        let newest = self.subject.events.newest();
        if after > newest {
            let what = format!("the newest event is {newest}: start again from event 0");
            return Err(Answer::error(409, &what, Some("after")));
        }
        Ok((after, follow))
    }

    fn send(&self, mut writer: ChunkWriter<'_>, mut after: u64, follow: bool) -> io::Result<()> {
        let mut written_at = Instant::now();
        loop {
            let wait = if follow { CONNECTION_CHECK_INTERVAL } else { Duration::ZERO };
            match self.subject.events.read(after, wait) {
                Read::Ended => return writer.finish(),
                Read::Lines { lines, last } => {
                    for line in lines {
                        writer.write_all(line.as_bytes())?;
                    }
                    after = last;
                }
                Read::Nothing if !follow => return writer.finish(),
                Read::Nothing if !writer.is_open() => return Ok(()),
                Read::Nothing if written_at.elapsed() < HEARTBEAT_INTERVAL => continue,
                Read::Nothing => writer.write_all(b"\n")?,
            }
            // Events are sent at once; the buffer only joins those that arrived together.
            writer.flush()?;
            written_at = Instant::now();
        }
    }
}

/// A parameter of the query that is true or false; false if it is absent.
pub(super) fn flag(request: &Request, name: &str) -> Result<bool, Answer> {
    match request.query(name) {
        Some("true") => Ok(true),
        Some("false") | None => Ok(false),
        Some(_) => Err(Answer::error(400, "must be true or false", Some(name))),
    }
}

/// A whole number of the query; 0 if it is absent.
pub(super) fn number(request: &Request, name: &str) -> Result<u64, Answer> {
    let bad = |_| Answer::error(400, "must be a whole number", Some(name));
    request.query(name).map_or(Ok(0), |text| text.parse().map_err(bad))
}

/// Refuses a request that goes on with what an earlier run has said.
pub(super) fn check_run(request: &Request, ours: &str) -> Result<(), Answer> {
    if request.query("run").is_none_or(|run| run == ours) {
        return Ok(());
    }
    let what = format!(
        "this is run {ours}, and events of earlier runs are gone: start again from event 0"
    );
    Err(Answer::error(409, &what, Some("run")))
}

/// How long readers have to read the last events at the end of the run.
const LAST_EVENTS_WAIT: Duration = Duration::from_secs(1);

/// How often an idle reader's connection is checked.
const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// An idle reader gets an empty line at this interval.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
