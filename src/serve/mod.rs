//! One small HTTP/1.1 server on TCP or a unix socket, with limits, for control, dev and stage.
//!
//! One thread per connection, at most `Limits::connections_max` of them. Knows HTTP and nothing of
//! what is served: a `Handler` gets a whole request and answers through its `Responder`; what is too
//! large for memory goes in by a `Receiver` and out by `Responder::send_from`.

mod connection;
mod listener;
mod request;
mod response;
mod socket;
#[cfg(test)]
mod tests;
mod tls;
pub mod token;

pub use listener::{Listen, Plain, Server};
pub use request::{Body, Request};
pub use response::{ChunkWriter, Responder};

use std::io;
use std::time::Duration;

/// What one server gives its clients at most. None of them is ever exceeded on a client's word.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections. One more takes the place of the one that keeps us waiting longest, or is
    /// answered with 429.
    pub connections_max: usize,
    /// Request line and headers together; more is answered with 431.
    pub header_bytes_max: usize,
    /// A request's body that is read whole; more is answered with 413.
    pub body_bytes_max: usize,
    /// From the first byte of a request to the end of its headers, in total; then again for the
    /// body, which gets a second more for each `PACE_BYTES` that arrived.
    pub read_timeout: Duration,
    /// For each write of an answer or a chunk, with the same allowance.
    pub write_timeout: Duration,
    /// From the end of an answer to the first byte of the next request.
    pub idle_timeout: Duration,
    /// How long a connection may keep us waiting when others want its place.
    pub patience: Duration,
    /// The JSON in which a client is told of one of these limits: the code, and why.
    pub refusal: fn(u16, &'static str) -> String,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 64,
            header_bytes_max: 16 << 10,
            body_bytes_max: 1 << 20,
            read_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            patience: Duration::from_secs(1),
            // It is our own text and needs no escapes.
            refusal: |_, why| format!("{{\"error\":\"{why}\"}}"),
        }
    }
}

/// What a server serves. Called on the connection's own thread, which has a small stack
/// (`STACK_BYTES`): no deep recursion in here.
pub trait Handler: Send + Sync {
    /// Answers one request through `responder`. An error closes the connection; where nothing has
    /// been answered yet the client gets a 500.
    ///
    /// A handler that waits (for events, say) must look at `ChunkWriter::is_open` at least once a
    /// second: `Server::stop` and a gone client show there.
    ///
    /// # Errors
    /// Whatever writing to the client gave.
    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()>;

    /// Looks at a request whose body has not been read: with a code and a reason it never is.
    fn refuse(&self, _request: &Request) -> Option<(u16, &'static str)> {
        None
    }

    /// Who takes the body of this request bit by bit; none where it is to be read whole.
    fn receiver(&self, _request: &Request) -> Option<&dyn Receiver> {
        None
    }
}

/// What takes requests whose bodies are too large for memory.
pub trait Receiver: Send + Sync {
    /// Answers one request, whose own body is empty; the connection ends with the answer. A client
    /// that waits to be asked for `body` is asked by the first read of it.
    ///
    /// # Errors
    /// As `Handler::handle`.
    fn receive(
        &self,
        request: Request,
        body: &mut Body<'_, '_>,
        responder: Responder<'_>,
    ) -> io::Result<()>;
}

/// A slow but honest client gets one second more for each of these many bytes that went through.
const PACE_BYTES: u64 = 64 << 10;

/// The stack of a connection's thread.
const STACK_BYTES: usize = 256 << 10;
