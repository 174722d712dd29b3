//! The page: shows a run in a browser, on a listener of its own that only reads.

pub mod files;
pub mod history;
pub(super) mod view;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::address::listen;
use crate::answer::Answer;
use crate::door::Door;
use crate::event_stream::EventStream;
use crate::served_run::ServedRun;
use posse_serve::token::Token;
use posse_serve::{Handler, Limits, Listen, Request, Responder, Server};
use posse_wire::config::listen_addr::ListenAddr;

/// The running listener. Dropping this stops it without waiting for readers of events.
#[derive(Debug)]
pub struct PageServer {
    server: Server,
    address: SocketAddr,
    reader: Arc<Reader>,
}

impl PageServer {
    /// Starts the listener's threads. Without a token whoever reaches the address may read.
    ///
    /// # Errors
    /// The system refuses the address or a thread.
    pub fn start(at: ListenAddr, token: Option<Token>, subject: ServedRun) -> io::Result<Self> {
        let listener = listen(at)?;
        let address = listener.local_addr()?;
        let reader = Arc::new(Reader {
            events: EventStream::new(subject.clone(), FOLLOWERS_MAX),
            subject,
            door: Door { token, read_token: None, is_loopback: address.ip().is_loopback() },
        });
        let handler = Arc::clone(&reader) as Arc<dyn Handler>;
        let limits =
            Limits { connections_max: CONNECTIONS_MAX, body_bytes_max: 0, ..Limits::default() };
        let server = Server::start(Listen::Tcp(listener), limits, "page", handler)?;
        Ok(Self { server, address, reader })
    }

    /// The address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the listener. If the event log has ended, readers have a second to read the last events.
    pub fn stop(self) {
        self.reader.events.wait_for_readers();
        self.server.stop();
    }
}

/// Handles requests.
#[derive(Debug)]
struct Reader {
    subject: ServedRun,
    door: Door,
    events: EventStream,
}

impl Handler for Reader {
    fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        self.door.refuse(request)
    }

    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return Answer::wrong_method("GET, HEAD").send(responder);
        }
        if let Some(file) = files::find(&request) {
            return file.send(responder);
        }
        match request.path.as_str() {
            "/v1/events" => self.events.serve(&request, responder),
            "/v1/history" => {
                let answer = view::history(&self.subject, &request);
                answer.unwrap_or_else(|refusal| refusal).send(responder)
            }
            _ => Answer::error(404, "there is no such call", None).send(responder),
        }
    }
}

/// Concurrent connections: a browser opens up to six.
const CONNECTIONS_MAX: usize = 64;

/// Concurrent readers of events, included in `CONNECTIONS_MAX`: one for each open page.
const FOLLOWERS_MAX: usize = 16;
