//! Streamed answers: reading one, and ending streams from another thread.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rustls::ClientConfig;
use ureq::http::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use ureq::{Agent, Body, BodyReader, Timeout, http};

use super::agent::{OUTPUT_BYTES, stream_agent};
use super::date;
use crate::config::Cluster;
use posse_base::sync::lock;
use posse_wire::time::http_date_ms;

/// How long the server may take to send the headers of a stream, if nothing holds it up.
pub const STREAM_HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Read buffer of a stream, in bytes.
const READ_AHEAD_BYTES: usize = 64 << 10;

/// Agents that are kept for one handle. A new agent is made when the certificates change.
const AGENTS_MAX: usize = 4;

/// An answer whose body is read while it arrives.
pub struct Stream {
    /// The HTTP status, of success or failure.
    pub status: u16,
    /// The `Retry-After` header.
    pub retry_after: Option<Duration>,
    /// Whether the content type is JSON.
    pub json: bool,
    reader: BufReader<StreamBody>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(response: http::Response<Body>, idle_timeout: Duration) -> Self {
        let (head, body) = response.into_parts();
        let body = StreamBody { body: body.into_reader(), idle_timeout };
        Self {
            status: head.status.as_u16(),
            retry_after: retry_after(&head.headers),
            json: is_json(&head.headers),
            reader: BufReader::with_capacity(READ_AHEAD_BYTES, body),
        }
    }

    /// The body. Reading gives `UnexpectedEof` if the connection is lost before the end of the
    /// body, and `TimedOut` if no byte arrives within the idle timeout.
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

/// Ends streams from any thread. After `shutdown`, streams that are being opened or are opened later
/// fail too, so no stream can escape a shutdown that happens at the same time.
#[derive(Clone, Debug, Default)]
pub struct StreamHandle {
    state: Arc<Mutex<HandleState>>,
}

#[derive(Debug, Default)]
struct HandleState {
    is_shut_down: bool,
    /// Oldest first, each with the generation of the certificates that it uses.
    agents: Vec<(u64, Agent)>,
}

impl StreamHandle {
    /// Ends the streams: a blocked read returns at once. A name lookup or connect in progress ends
    /// by its own timeout, with an error.
    pub fn shutdown(&self) {
        let agents = {
            let mut state = lock(&self.state);
            state.is_shut_down = true;
            std::mem::take(&mut state.agents)
        };
        for (_, agent) in agents {
            agent.shutdown();
        }
    }

    /// The agent to open a stream with; `None` after `shutdown`.
    pub(super) fn agent(
        &self,
        cluster: &Cluster,
        tls_config: Option<&Arc<ClientConfig>>,
        generation: u64,
    ) -> Option<Agent> {
        let mut state = lock(&self.state);
        if state.is_shut_down {
            return None;
        }
        if let Some((_, agent)) = state.agents.iter().find(|(of, _)| *of == generation) {
            return Some(agent.clone());
        }
        if state.agents.len() == AGENTS_MAX {
            // Its streams are older than several certificate changes. They must be opened again.
            state.agents.remove(0).1.shutdown();
        }
        let agent = stream_agent(cluster, tls_config.cloned(), OUTPUT_BYTES);
        state.agents.push((generation, agent.clone()));
        Some(agent)
    }
}

/// A number of seconds, or a date (RFC 9110, section 10.2.3), which is compared with the clock of who sent it. A date that
/// is over means now.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let after = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = after.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = http_date_ms(after)?;
    let sent = date(headers).and_then(|text| http_date_ms(&text));
    let now = sent.unwrap_or_else(|| Timestamp::now().as_millisecond());
    Some(Duration::from_millis(u64::try_from(at.saturating_sub(now)).unwrap_or(0)))
}

pub(super) fn is_json(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
}
