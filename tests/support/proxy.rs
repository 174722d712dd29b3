//! A proxy between posse and a server, with which a test simulates the network, a webhook or a
//! broken server. Plain HTTP on loopback for posse; the server sees the user `Who::Posse`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::access::Access;
use super::http::{Answer, Client};
use super::wait::{PATIENCE, wait_for, wait_value};

/// How often a silenced watch checks whether it may continue.
const STEP: Duration = Duration::from_millis(10);

/// A request that passes the proxy.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// With its query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn is_watch(&self) -> bool {
        self.path.contains("watch=1") || self.path.contains("watch=true")
    }

    /// A log that ends with its container.
    fn is_followed_log(&self) -> bool {
        self.path.contains("/log?") && self.path.contains("follow=true")
    }

    /// The create of a pod, but not a dry run.
    pub fn is_create(&self) -> bool {
        self.is_create_or_dry_run() && !self.path.contains("dryRun")
    }

    /// What a webhook for the create of a pod sees.
    pub fn is_create_or_dry_run(&self) -> bool {
        let path = self.path.split('?').next().unwrap_or_default();
        self.method == "POST" && path.ends_with("/pods")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// What the proxy does with a request.
#[derive(Debug)]
pub enum ProxyAction {
    /// Closes the connection without an answer.
    Cut,
    /// Forwards the request, with the changes of the rule.
    Pass,
    /// Answers with this status and body.
    Reply(u16, Value),
    /// Like the one before, and then calls this, once the answer was sent; for a watch, its
    /// beginning.
    Then(Box<Self>, Hook),
}

/// What a test does at a moment of a request.
pub struct Hook(pub Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// The connection to the server.
#[derive(Debug)]
pub struct Upstream {
    client: Client,
}

impl Upstream {
    /// Forwards a request and returns its answer, which is JSON even if posse accepts more.
    #[track_caller]
    pub fn send(&self, request: &Request) -> Answer {
        let mut headers = request.headers.clone();
        headers.retain(|(name, _)| name != "accept");
        headers.push(("accept".to_owned(), "application/json".to_owned()));
        let answer = self
            .client
            .raw(&request.method, &request.path, &headers, &request.body, Some(PATIENCE))
            .expect("the server behind the proxy answers");
        let code = answer.status().as_u16();
        let body = answer.into_body().read_to_vec().expect("an answer ends");
        Answer { code, body: serde_json::from_slice(&body).unwrap_or(Value::Null) }
    }
}

type Rule = dyn Fn(&mut Request, &Upstream) -> ProxyAction + Send + Sync;

struct Shared {
    upstream: Upstream,
    rule: Box<Rule>,
    closed: AtomicBool,
    silent: AtomicBool,
    next_id: AtomicU64,
    /// The client's port of the connection that was accepted last.
    last_port: AtomicU16,
    connections: Mutex<BTreeMap<u64, TcpStream>>,
    watches: Mutex<Vec<u64>>,
    log: Mutex<Vec<String>>,
}

/// A running proxy. Ends when dropped.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// `rule` is called for every request on a separate thread, so it may block.
    pub fn start(
        upstream: &Access,
        rule: impl Fn(&mut Request, &Upstream) -> ProxyAction + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let shared = Arc::new(Shared {
            upstream: Upstream { client: Client::new(upstream, "test-proxy") },
            rule: Box::new(rule),
            closed: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            next_id: AtomicU64::new(0),
            last_port: AtomicU16::new(0),
            connections: Mutex::default(),
            watches: Mutex::default(),
            log: Mutex::default(),
        });
        let acceptor = Mutex::new(Some(accept_on(listener, &shared)));
        Self { port, shared, acceptor }
    }

    /// The access to the server through the proxy.
    pub fn access(&self) -> Access {
        Access { url: format!("http://127.0.0.1:{}", self.port), ..Access::default() }
    }

    /// Cuts the open watches, perhaps in the middle of an event.
    pub fn cut_watches(&self) {
        let watches = std::mem::take(&mut *self.shared.watches.lock().expect("no panic in here"));
        let connections = self.shared.connections.lock().expect("no panic in here");
        for stream in watches.iter().filter_map(|id| connections.get(id)) {
            // If the other side has closed it already, it is cut as well.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// While silent, watches send nothing; the missed events follow afterwards.
    pub fn silence_watches(&self, silent: bool) {
        self.shared.silent.store(silent, Ordering::SeqCst);
    }

    /// From now on connections are cut and refused.
    pub fn down(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then closes its socket.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(acceptor) = self.acceptor.lock().expect("no panic in here").take() {
            acceptor.join().expect("the acceptor does not panic");
        }
        for stream in self.shared.connections.lock().expect("no panic in here").values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections again, at the same port.
    pub fn up(&self) {
        let listener = wait_value(PATIENCE, "the proxy's port to be free again", || {
            TcpListener::bind(("127.0.0.1", self.port))
        });
        self.shared.closed.store(false, Ordering::SeqCst);
        let acceptor = accept_on(listener, &self.shared);
        *self.acceptor.lock().expect("no panic in here") = Some(acceptor);
    }

    /// Waits until all sent requests have ended and their clients have disconnected: only
    /// connections of watches are left. The clients must have ended before.
    pub fn wait_until_quiet(&self) {
        // A client that was killed may have sent its request before its connection was accepted.
        // Connections are accepted in turn, so after this one all of them are on the list.
        let last = TcpStream::connect(("127.0.0.1", self.port)).expect("the proxy accepts");
        let last_port = last.local_addr().expect("a connected socket has an address").port();
        wait_for(PATIENCE, "the proxy to accept all connections", || {
            self.shared.last_port.load(Ordering::SeqCst) == last_port
        });
        drop(last);
        wait_for(PATIENCE, "the last requests to be dealt with", || {
            let watches = self.shared.watches.lock().expect("no panic in here").clone();
            let connections = self.shared.connections.lock().expect("no panic in here");
            connections.keys().all(|id| watches.contains(id))
        });
    }

    /// The connection to the server, for a test that sends something later than posse did.
    pub fn upstream(&self) -> &Upstream {
        &self.shared.upstream
    }

    /// `METHOD path` of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.shared.log.lock().expect("no panic in here").clone()
    }

    /// The number of creates so far.
    pub fn n_creates(&self) -> usize {
        let is_create = |line: &&String| {
            let path = line.split('?').next().unwrap_or_default();
            path.starts_with("POST ") && path.ends_with("/pods")
        };
        self.requests().iter().filter(is_create).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.down();
        // Ends the open watches at the server.
        self.shared.upstream.client.shutdown();
    }
}

fn accept_on(listener: TcpListener, shared: &Arc<Shared>) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        for stream in listener.incoming() {
            if shared.closed.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            let (Ok(clone), Ok(peer)) = (stream.try_clone(), stream.peer_addr()) else { continue };
            let id = shared.next_id.fetch_add(1, Ordering::SeqCst);
            shared.connections.lock().expect("no panic in here").insert(id, clone);
            shared.last_port.store(peer.port(), Ordering::SeqCst);
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                // An error ends this connection only.
                let _ = serve(&shared, id, &stream);
                let _ = stream.shutdown(Shutdown::Both);
                shared.connections.lock().expect("no panic in here").remove(&id);
            });
        }
    })
}

fn serve(shared: &Shared, id: u64, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some(mut request) = read_request(&mut reader)? {
        let line = format!("{} {}", request.method, request.path);
        shared.log.lock().expect("no panic in here").push(line);
        let mut hooks = Vec::new();
        let mut verdict = (shared.rule)(&mut request, &shared.upstream);
        while let ProxyAction::Then(first, hook) = verdict {
            hooks.push(hook);
            verdict = *first;
        }
        let mut then = || hooks.drain(..).for_each(|Hook(hook)| hook());
        match verdict {
            ProxyAction::Cut | ProxyAction::Then(..) => return Ok(()),
            ProxyAction::Reply(code, body) => {
                reply(stream, code, &[], format!("{body}\n").as_bytes())?
            }
            ProxyAction::Pass => pass(shared, id, stream, &request, &mut then)?,
        }
        then();
    }
    Ok(())
}

fn pass(
    shared: &Shared,
    id: u64,
    stream: &TcpStream,
    request: &Request,
    then: &mut dyn FnMut(),
) -> io::Result<()> {
    let answer = shared
        .upstream
        .client
        .raw(&request.method, &request.path, &request.headers, &request.body, None)
        .map_err(io::Error::other)?;
    let code = answer.status().as_u16();
    let mut headers = Vec::new();
    for name in ["content-type", "retry-after"] {
        if let Some(value) = answer.headers().get(name).and_then(|value| value.to_str().ok()) {
            headers.push((name, value.to_owned()));
        }
    }
    if code == 200 && request.is_watch() {
        shared.watches.lock().expect("no panic in here").push(id);
    }
    if code == 200 && (request.is_watch() || request.is_followed_log()) {
        return pass_stream(shared, stream, &headers, answer.into_body().into_reader(), then);
    }
    let body = answer.into_body().with_config().limit(256 << 20).read_to_vec();
    reply(stream, code, &headers, &body.map_err(io::Error::other)?)
}

/// Each part as it arrives, so that a test can delay them.
fn pass_stream(
    shared: &Shared,
    mut stream: &TcpStream,
    headers: &[(&str, String)],
    body: impl io::Read,
    then: &mut dyn FnMut(),
) -> io::Result<()> {
    let mut head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n".to_owned();
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    then();
    let mut reader = BufReader::new(body);
    loop {
        let part = reader.fill_buf()?;
        let n_bytes = part.len();
        if n_bytes == 0 {
            break;
        }
        let mut chunk = format!("{n_bytes:x}\r\n").into_bytes();
        chunk.extend_from_slice(part);
        chunk.extend_from_slice(b"\r\n");
        reader.consume(n_bytes);
        while shared.silent.load(Ordering::SeqCst) && !shared.closed.load(Ordering::SeqCst) {
            thread::sleep(STEP);
        }
        stream.write_all(&chunk)?;
    }
    stream.write_all(b"0\r\n\r\n")
}

fn reply(
    mut stream: &TcpStream,
    code: u16,
    headers: &[(&str, String)],
    body: &[u8],
) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {code} Test\r\ncontent-length: {}\r\n", body.len());
    if headers.is_empty() {
        head.push_str("content-type: application/json\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(&[head.as_bytes(), body].concat())
}

/// The next request of a connection; none at its end.
fn read_request(reader: &mut BufReader<&TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (method, path) = (method.to_owned(), path.to_owned());
    let (mut headers, mut n_body) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        let (name, value) = (name.to_lowercase(), value.trim().to_owned());
        match name.as_str() {
            "content-length" => n_body = value.parse().map_err(io::Error::other)?,
            // These headers belong to one connection, or to the identity of the other side.
            "accept-encoding" | "authorization" | "connection" | "host" => {}
            "transfer-encoding" => return Err(io::Error::other("no posse sends in chunks")),
            _ => headers.push((name, value)),
        }
    }
    let mut body = vec![0; n_body];
    reader.read_exact(&mut body)?;
    Ok(Some(Request { method, path, headers, body }))
}

/// A `Status` as a server returns it.
pub fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
           "reason": reason, "message": message, "code": code})
}
