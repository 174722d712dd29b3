//! The pages: show a run, or all applications, in a browser, on a listener of their own that only reads.

pub mod apps;
pub mod files;
pub mod history;
pub(super) mod view;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use crate::access::Door;
use crate::address::listen;
use crate::answer::Answer;
use crate::event_stream::EventStream;
use crate::page::files::File;
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
        let open = Opened::at(at, token, &files::RUN)?;
        let address = open.address;
        let reader = Arc::new(Reader {
            events: EventStream::new(subject.clone(), FOLLOWERS_MAX),
            subject,
            door: open.door,
        });
        let server = serve(open.listener, Arc::clone(&reader) as Arc<dyn Handler>)?;
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

/// A page's address, and whom it admits.
struct Opened {
    listener: TcpListener,
    address: SocketAddr,
    door: Door,
}

impl Opened {
    fn at(at: ListenAddr, token: Option<Token>, files: &'static [File]) -> io::Result<Self> {
        let listener = listen(at)?;
        let address = listener.local_addr()?;
        let is_loopback = address.ip().is_loopback();
        let door = Door { token, read_token: None, is_loopback, files };
        Ok(Self { listener, address, door })
    }
}

fn serve(listener: TcpListener, handler: Arc<dyn Handler>) -> io::Result<Server> {
    let limits =
        Limits { connections_max: CONNECTIONS_MAX, body_bytes_max: 0, ..Limits::default() };
    Server::start(Listen::Tcp(listener), limits, "page", handler)
}

/// Answers a request that only reads a file of the page, and refuses one that does not read. Gives the
/// responder back for all others.
fn begin<'a>(
    door: &Door,
    request: &Request,
    responder: Responder<'a>,
) -> io::Result<Option<Responder<'a>>> {
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        return Answer::wrong_method("GET, HEAD").send(responder).map(|()| None);
    }
    match files::find(door.files, request) {
        Some(file) => file.send(responder).map(|()| None),
        None => Ok(Some(responder)),
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
        let Some(responder) = begin(&self.door, &request, responder)? else { return Ok(()) };
        let answer = match request.path.as_str() {
            "/v1/events" => return self.events.serve(&request, responder),
            "/v1/history" => view::history(&self.subject, &request),
            path => view::tasks(&self.subject, path, self.door.token.is_some()),
        };
        answer.unwrap_or_else(|refusal| refusal).send(responder)
    }
}

/// Concurrent connections: a browser opens up to six.
const CONNECTIONS_MAX: usize = 64;

/// Concurrent readers of events, included in `CONNECTIONS_MAX`: one for each open page.
const FOLLOWERS_MAX: usize = 16;
