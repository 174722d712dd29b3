//! The HTTP side of the API server: sends answers, watches and logs, injects the faults of the
//! transport, and closes the port while connections are refused.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustls::ServerConfig;

use crate::apiserver::answer::Answer;
use crate::apiserver::api::Api;
use crate::apiserver::authn;
use crate::apiserver::codec;
use crate::apiserver::dispatch;
use crate::apiserver::fault_endpoint;
use crate::apiserver::route::{self, Route};
use crate::faults::{self, Body, Fault, Struck};
use crate::schema::status::StatusError;
use crate::time;
use posse_base::system::new_socket;
use posse_serve::origin::{refuse_foreign_host, refuse_pages};
use posse_serve::{Handler, Limits, Listen, Plain, Request, Responder, Server};

/// Each watch holds a connection. Enough for a dozen clients with 32 writers and a few watches
/// each.
const CONNECTIONS_MAX: usize = 512;
/// kube-apiserver's limit.
const BODY_BYTES_MAX: usize = 3 << 20;
/// The default of Go's HTTP server, which kube-apiserver uses: selectors may be long.
const HEADER_BYTES_MAX: usize = 1 << 20;
/// The number of pieces of a slow body.
const SLOW_PIECES: u32 = 20;
/// The queue of the thread that holds the port; more orders are dropped.
const ORDERS_MAX: usize = 4;
/// The pause between two attempts to bind the port again.
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// The kernel's queue of connections that are not accepted yet.
const BACKLOG: i32 = 128;

struct Endpoint {
    api: Arc<Api>,
    /// The DNS names of this server.
    names: &'static [&'static str],
    orders: Sender<PortOrder>,
}

impl Handler for Endpoint {
    /// The doors in front of everything, `/posse/faults` included.
    fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        refuse_pages(request)
            .or_else(|| refuse_foreign_host(request, self.names))
            .or_else(|| {
                authn::authenticate(&self.api, request).err().map(|_| (401, "Unauthorized"))
            })
            .or_else(|| {
                // No page can send a token. Clients that have one may leave the type out: kubectl
                // 1.20 and Python's `kubernetes` do, and a real server reads their bodies as JSON.
                let has_token =
                    self.api.admin_token.is_some() && request.header("authorization").is_some();
                let is_untyped =
                    request.announces_body() && request.header("content-type").is_none();
                (is_untyped && !has_token)
                    .then_some((415, "a body without a token needs the header Content-Type"))
            })
    }

    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        log::debug!("{} {}", request.method, request.path);
        if let Err(error) = codec::prepare(&request) {
            return self.send(&Answer::error(&error), responder);
        }
        if request.path == faults::PATH {
            return self.switch(&request, responder);
        }
        let faults = &self.api.faults;
        if faults.number(Fault::StaleLists).is_some() {
            let version = self.api.lock().store.version();
            faults.remember(Instant::now(), version);
        }
        if let Some(latency) = faults.time(Fault::Latency) {
            // The fault `latency`.
            thread::sleep(latency);
        }
        if let Some(struck) = faults::before(faults, &request) {
            return self.strike(&struck, responder);
        }
        match dispatch::answer(&self.api, &request) {
            Answer::Exec(exec) => exec.serve(&self.api, &request, responder),
            Answer::Log(log) => log.serve(&self.api, responder),
            Answer::Watch(_) if faults.counts_down(Fault::GoneStatus) => {
                let asked = request.query("resourceVersion").unwrap_or_default();
                let message = format!("too old resource version: {asked}");
                self.send(&Answer::error(&StatusError::expired(message)), responder)
            }
            Answer::Watch(watch) => watch.serve(&self.api, &request, responder),
            whole @ Answer::Whole { code, .. } => match faults::after(faults, &request, code) {
                Some(struck) => self.strike(&struck, responder),
                None if is_list(&request) => self.send_list(&request, &whole, responder),
                None => self.send(&whole, responder),
            },
        }
    }
}

impl Endpoint {
    /// Handles `/posse/faults`; faults do not apply to it.
    fn switch(&self, request: &Request, responder: Responder<'_>) -> io::Result<()> {
        let switched = dispatch::authorize(&self.api, request)
            .and_then(|_| fault_endpoint::answer(&self.api, request));
        let (answer, refuse) = match switched {
            Ok((body, refuse)) => (Answer::json(200, &body), refuse),
            Err(error) => (Answer::error(&error), None),
        };
        let sent = self.send(&answer, responder);
        send_order(&self.orders, refuse);
        sent
    }

    fn strike(&self, struck: &Struck, responder: Responder<'_>) -> io::Result<()> {
        match struck {
            Struck::Cut => {
                responder.cut();
                Ok(())
            }
            Struck::Refused(error) => self.send(&Answer::error(error), responder),
        }
    }

    fn send_list(
        &self,
        request: &Request,
        answer: &Answer,
        responder: Responder<'_>,
    ) -> io::Result<()> {
        let faults = &self.api.faults;
        let consistent = request.query("resourceVersion").is_none_or(str::is_empty);
        if let Some(age) = faults.time(Fault::StaleLists).filter(|_| consistent) {
            // The list was read before the pause, so that it is stale.
            thread::sleep(age);
        }
        let Answer::Whole { code: 200, content_type, body, .. } = answer else {
            return self.send(answer, responder);
        };
        let half = body.get(..body.len() / 2).unwrap_or_default();
        let date = time::http_date(self.api.wall());
        let headers = [("content-type", *content_type), ("date", date.as_str())];
        match Body::of_list(faults) {
            Body::Whole => self.send(answer, responder),
            Body::Truncated => responder.send(200, &headers, half),
            Body::Cut => {
                let mut writer = responder.stream(200, &headers)?;
                writer.write_all(half)?;
                // Dropped without the last chunk: the client sees a cut connection.
                writer.flush()
            }
            Body::Slow(time) => {
                let mut writer = responder.stream(200, &headers)?;
                for piece in body.chunks(body.len() / SLOW_PIECES as usize + 1) {
                    writer.write_all(piece)?;
                    writer.flush()?;
                    thread::sleep(time / SLOW_PIECES);
                }
                writer.finish()
            }
        }
    }

    fn send(&self, answer: &Answer, responder: Responder<'_>) -> io::Result<()> {
        let Answer::Whole { code, content_type, body, retry_after } = answer else {
            return Ok(());
        };
        let date = time::http_date(self.api.wall());
        let seconds = retry_after.map(|seconds| seconds.to_string());
        let mut headers = vec![("content-type", *content_type), ("date", date.as_str())];
        if let Some(seconds) = &seconds {
            headers.push(("retry-after", seconds));
        }
        responder.send(*code, &headers, body)
    }
}

fn is_list(request: &Request) -> bool {
    let parsed = route::parse(&request.path);
    request.method == "GET"
        && matches!(parsed, Ok(Route::Resource(target)) if target.name.is_none())
}

/// An order to the thread that holds the port.
#[derive(Debug)]
enum PortOrder {
    Refuse(Duration),
    Stop,
}

fn send_order(orders: &Sender<PortOrder>, refuse_ms: Option<u64>) {
    // The queue is full of the same orders.
    if let Some(ms) = refuse_ms
        && orders.try_send(PortOrder::Refuse(Duration::from_millis(ms))).is_err()
    {
        log::warn!("connections are already refused; the new order is dropped");
    }
}

/// The running server. A fault can close its port for a while.
#[derive(Debug)]
pub(crate) struct RunningServer {
    orders: Sender<PortOrder>,
    thread: Option<JoinHandle<()>>,
}

impl RunningServer {
    /// Refuses connections for this many milliseconds.
    pub(crate) fn refuse(&self, ms: Option<u64>) {
        send_order(&self.orders, ms);
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // An error means that the thread has ended already.
        let _ = self.orders.send(PortOrder::Stop);
        if thread.join().is_err() {
            log::error!("the embedded API server's thread panicked");
        }
    }
}

/// Serves the API on a bound listener, to clients that call it by a loopback address or one of `names`.
pub(crate) fn start(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    names: &'static [&'static str],
    api: Arc<Api>,
) -> io::Result<RunningServer> {
    let address = listener.local_addr()?;
    let (orders, receiver) = bounded(ORDERS_MAX);
    let endpoint = Endpoint { api, names, orders: orders.clone() };
    let handler: Arc<dyn Handler> = Arc::new(endpoint);
    let factory = ServerFactory { handler, tls };
    let server = factory.serve(listener)?;
    let builder = thread::Builder::new().name("dev-door".to_owned());
    let thread = builder.spawn(move || hold_port(server, address, &factory, &receiver))?;
    Ok(RunningServer { orders, thread: Some(thread) })
}

/// Starts the server again each time that the port is opened.
struct ServerFactory {
    handler: Arc<dyn Handler>,
    tls: Arc<ServerConfig>,
}

impl ServerFactory {
    fn serve(&self, listener: TcpListener) -> io::Result<Server> {
        let limits = Limits {
            connections_max: CONNECTIONS_MAX,
            body_bytes_max: BODY_BYTES_MAX,
            write_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(90),
            header_bytes_max: HEADER_BYTES_MAX,
            refusal: |status, why| {
                StatusError::limit(status, why, BODY_BYTES_MAX).body().to_string()
            },
            ..Limits::default()
        };
        let listen = Listen::Tls(listener, Arc::clone(&self.tls), Plain::Served);
        Server::start(listen, limits, "dev-api", Arc::clone(&self.handler))
    }
}

/// Serves until `Stop`. While connections are refused the port stays bound, so that no other
/// process takes it.
fn hold_port(
    server: Server,
    address: SocketAddr,
    factory: &ServerFactory,
    orders: &Receiver<PortOrder>,
) {
    let mut open = Some(server);
    let mut until = Instant::now();
    loop {
        let order = match &open {
            Some(_) => orders.recv().unwrap_or(PortOrder::Stop),
            None => PortOrder::Refuse(Duration::ZERO),
        };
        match order {
            PortOrder::Stop => return,
            PortOrder::Refuse(time) => until = until.max(Instant::now() + time),
        }
        if let Some(server) = open.take() {
            server.stop();
        }
        let bound = bind(address);
        if bound.is_err() {
            until = until.max(Instant::now() + BIND_PAUSE);
        }
        if let Ok(PortOrder::Stop) = orders.recv_deadline(until) {
            return;
        }
        let opened = bound.and_then(|socket| {
            rustix::net::listen(&socket, BACKLOG)?;
            factory.serve(TcpListener::from(socket))
        });
        match opened {
            Ok(server) => open = Some(server),
            Err(error) => log::warn!("cannot listen on {address} again, will retry: {error}"),
        }
    }
}

/// Binds the port without listening on it, so that connections are refused.
fn bind(address: SocketAddr) -> io::Result<std::os::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = new_socket(family, SocketType::STREAM)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}
