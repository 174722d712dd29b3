//! A small HTTP/1.1 server with limits, on TCP, TLS or a unix socket. `control`, `dev` and `stage`
//! use it.
//!
//! Each connection has its own thread; there are at most `Limits::connections_max`. A `Handler`
//! gets a whole request and answers through a `Responder`. A body that is too large for memory is
//! read by a `Receiver` and sent with `Responder::send_from`.

mod connection;
mod deadline;
mod listener;
pub mod origin;
mod pace;
mod request;
mod response;
mod slots;
mod socket;
#[cfg(test)]
mod tests;
mod tls;
pub mod token;
mod upgrade;

pub use listener::{Listen, Server};
pub use request::{Body, Client, Request};
pub use response::{ChunkWriter, Responder};
pub use tls::Plain;
pub use upgrade::Upgraded;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// The limits of one server. Clients cannot change them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections with an admitted request. If all are in use, a new one replaces the connection whose
    /// client is furthest behind its pace, or is refused with `full_status` and `Retry-After`; probes are
    /// answered. As many others may be at the door, where their first request is awaited: a new one
    /// replaces the slowest one of the source (user of this machine, or address) that has the most there.
    pub connections_max: usize,
    /// Spare slots, for new connections without a place at the door, where any client that lets the server
    /// wait is replaced, and for those that wait for the permission to upload. A connection without even a
    /// spare slot is closed.
    pub spare_max: usize,
    /// The status code for a request without a slot.
    pub full_status: u16,
    /// Request line and headers together. A larger head is answered with 431.
    pub header_bytes_max: usize,
    /// A request body that is read into memory. A larger one is answered with 413.
    pub body_bytes_max: usize,
    /// How far a client may be behind the slowest pace (64 KiB a second) from its connection, or
    /// from the first byte of a later request, to the end of the headers; again for the body.
    pub read_timeout: Duration,
    /// The same for a response; for a stream, for each chunk.
    pub write_timeout: Duration,
    /// Time from the end of a response to the first byte of the next request.
    pub idle_timeout: Duration,
    /// How far a client must be behind its pace before a new connection can replace it.
    pub patience: Duration,
    /// The same at the door, for a new connection of the same source: longer than a head takes on a fast
    /// network, and so short that fast clients find room beside thousands of slow ones a second.
    pub door_patience: Duration,
    /// Makes the JSON body of an error response from the status code and the message.
    pub refusal: fn(u16, &'static str) -> String,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 64,
            spare_max: 8,
            full_status: 429,
            header_bytes_max: 16 << 10,
            body_bytes_max: 1 << 20,
            read_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            patience: Duration::from_secs(1),
            door_patience: Duration::from_millis(50),
            // All messages are string literals of this module that need no escapes.
            refusal: |_, why| format!("{{\"error\":\"{why}\"}}"),
        }
    }
}

/// Answers requests. Called on the connection's own thread, which has a small stack
/// (`STACK_BYTES`), so an implementation must not recurse deeply.
pub trait Handler: Send + Sync {
    /// Answers one request through `responder`. An error closes the connection; if no response was
    /// started, the client gets a 500 first.
    ///
    /// A handler that waits, for example for events, must check `ChunkWriter::is_open` at least
    /// once a second. It is false after `Server::stop` and when the client has disconnected.
    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()>;

    /// Checks a request before its body is read. `Some` with a status code and a message refuses
    /// it.
    fn refuse(&self, _request: &Request) -> Option<(u16, &'static str)> {
        None
    }

    /// True for a request that is answered at once, also if all regular slots are taken: a liveness
    /// or readiness probe.
    fn is_probe(&self, _request: &Request) -> bool {
        false
    }

    /// The receiver that reads the body of this request in pieces. `None` reads it into memory.
    fn receiver(&self, _request: &Request) -> Option<&dyn Receiver> {
        None
    }
}

/// The client of a connection, as far as the system tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user of a client on this machine.
    pub user: Option<u32>,
    /// None at a unix socket.
    pub address: Option<IpAddr>,
}

/// Answers requests whose bodies are too large for memory.
pub trait Receiver: Send + Sync {
    /// True if `authorize` may wait for another server. Meanwhile the connection holds a spare slot.
    fn authorize_waits(&self) -> bool {
        false
    }

    /// Decides whether this request may send its body. `source`: the client's address, `None` for a
    /// unix socket.
    ///
    /// # Errors
    /// The response to a request that may not.
    fn authorize(&self, _request: &Request, _source: Option<IpAddr>) -> Result<(), Rejection> {
        Ok(())
    }

    /// Answers one request, whose `Request::body` is empty. The connection is closed after the
    /// response. If the client expects `100 Continue`, the first read of `body` sends it.
    fn receive(
        &self,
        request: Request,
        body: &mut Body<'_, '_>,
        responder: Responder<'_>,
    ) -> io::Result<()>;
}

/// The response to a request that may not send its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// With 429 and 503 the client is asked to try again.
    pub status: u16,
    /// JSON.
    pub body: Vec<u8>,
}

/// Stack size of a connection's thread.
const STACK_BYTES: usize = 256 << 10;
