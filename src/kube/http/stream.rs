//! Owns answers that go on: reading one, and ending them from another thread. Parses nothing.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use ureq::http::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use ureq::{Agent, Body, BodyReader, Timeout, http};

use super::agent::{OUTPUT_BYTES, stream_agent};
use crate::kube::config::Cluster;

/// How long a stream may take to begin.
pub(super) const STREAM_HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// What is read ahead of the consumer, in bytes.
const READ_AHEAD_BYTES: usize = 64 << 10;

/// Agents kept for streams that were opened before the certificates changed.
const AGENTS_MAX: usize = 4;

/// An answer that goes on for as long as the server likes.
pub struct Stream {
    /// The HTTP status, whatever it is.
    pub status: u16,
    /// What the server asks to wait.
    pub retry_after: Option<Duration>,
    /// Whether the body says to be JSON.
    pub json: bool,
    reader: BufReader<StreamBody>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(
        status: u16,
        retry_after: Option<Duration>,
        json: bool,
        body: Body,
        idle_timeout: Duration,
    ) -> Self {
        let body = StreamBody { body: body.into_reader(), idle_timeout };
        let reader = BufReader::with_capacity(READ_AHEAD_BYTES, body);
        Self { status, retry_after, json, reader }
    }

    /// The body. Its end is a clean end; a cut connection is `UnexpectedEof`, silence for longer
    /// than the idle time-out `TimedOut`.
    pub fn reader(&mut self) -> &mut dyn BufRead {
        &mut self.reader
    }
}

struct StreamBody {
    body: BodyReader<'static>,
    idle_timeout: Duration,
}

impl Read for StreamBody {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.body.read(buf).map_err(|e| {
            let error = ureq::Error::from(e);
            if matches!(error, ureq::Error::Timeout(Timeout::PerRead)) {
                let problem = format!("no byte for {} s", self.idle_timeout.as_secs_f32());
                return io::Error::new(io::ErrorKind::TimedOut, problem);
            }
            error.into_io()
        })
    }
}

/// Ends a family of streams. Once used, the family is over for good: a stream that is being opened
/// or would be opened later fails too, so that no order of events leaves one behind.
#[derive(Clone, Debug, Default)]
pub struct StreamHandle {
    family: Arc<Mutex<Family>>,
}

#[derive(Debug, Default)]
struct Family {
    ended: bool,
    /// The newest last, each with the generation of the certificates that it was made with.
    agents: Vec<(u64, Agent)>,
}

impl StreamHandle {
    /// Ends the streams: a read blocked on one returns at once. Name resolution and a connect in
    /// progress end by their own time-outs, with an error.
    pub fn shutdown(&self) {
        let agents = {
            let mut family = self.lock();
            family.ended = true;
            std::mem::take(&mut family.agents)
        };
        for (_, agent) in agents {
            agent.shutdown();
        }
    }

    /// The agent to open a stream with; none once the family was shut down.
    pub(super) fn agent(
        &self,
        cluster: &Cluster,
        settings: Option<&Arc<ClientConfig>>,
        generation: u64,
    ) -> Option<Agent> {
        let mut family = self.lock();
        if family.ended {
            return None;
        }
        if let Some((_, agent)) = family.agents.iter().find(|(of, _)| *of == generation) {
            return Some(agent.clone());
        }
        if family.agents.len() == AGENTS_MAX {
            // Its streams have outlived several certificates: they are due to be opened again.
            family.agents.remove(0).1.shutdown();
        }
        let agent = stream_agent(cluster, settings.cloned(), OUTPUT_BYTES);
        family.agents.push((generation, agent.clone()));
        Some(agent)
    }

    fn lock(&self) -> MutexGuard<'_, Family> {
        self.family.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer whose body is read as it comes.
pub(super) fn opened(response: http::Response<Body>, idle_timeout: Duration) -> Stream {
    let (head, body) = response.into_parts();
    let (retry_after, json) = (retry_after(&head.headers), is_json(&head.headers));
    Stream::new(head.status.as_u16(), retry_after, json, body, idle_timeout)
}

pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

pub(super) fn is_json(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
}
