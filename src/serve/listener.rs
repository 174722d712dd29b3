//! The listening socket and the set of open connections: accepting, limiting and stopping them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::ServerConfig;

use crate::serve::connection::{self, ClientWait};
use crate::serve::response::Output;
use crate::serve::socket::Socket;
use crate::serve::tls::{Plain, TlsSocket};
use crate::serve::{Handler, Limits, STACK_BYTES};

/// Where to listen.
#[derive(Debug)]
pub enum Listen {
    Tcp(TcpListener),
    /// TLS, and how clients that do not speak TLS are handled.
    Tls(TcpListener, Arc<ServerConfig>, Plain),
    Unix(UnixListener),
}

impl Listen {
    fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => accept_tcp(listener).map(Socket::Tcp),
            Self::Tls(listener, settings, plain) => {
                let stream = accept_tcp(listener)?;
                Ok(Socket::Tls(TlsSocket::new(stream, Arc::clone(settings), *plain)))
            }
            Self::Unix(listener) => listener.accept().map(|(stream, _)| Socket::Unix(stream)),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, ..) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

fn accept_tcp(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    // Responses are written in whole blocks, so Nagle's algorithm would only delay them.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `listen` on its own threads until `stop`.
    pub fn start(
        listen: Listen,
        limits: Limits,
        name: &str,
        handler: Arc<dyn Handler>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            listen,
            limits,
            connections: Mutex::default(),
            closed: Condvar::new(),
        });
        let acceptor = Acceptor { shared: Arc::clone(&shared), handler, name: name.to_owned() };
        let builder = thread::Builder::new().name(format!("{name}-accept"));
        let accepting = builder.stack_size(STACK_BYTES).spawn(move || acceptor.run())?;
        Ok(Self { shared, accepting: Some(accepting) })
    }

    /// The TCP address of the listener. `None` for a unix socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.shared.listen {
            Listen::Tcp(listener) | Listen::Tls(listener, ..) => listener.local_addr().ok(),
            Listen::Unix(_) => None,
        }
    }

    /// Stops listening, ends all connections and waits up to `STOP_WAIT_MAX` for their threads. If
    /// a handler does not end in this time, its thread is left running, with a warning.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        let open = {
            let mut connections = self.shared.lock();
            connections.stopping = true;
            std::mem::take(&mut connections.refused);
            connections.open.values().map(|peer| Arc::clone(&peer.socket)).collect::<Vec<_>>()
        };
        // On Linux this ends a blocked accept, for TCP and for unix sockets.
        let _ = rustix::net::shutdown(self.shared.listen.fd(), rustix::net::Shutdown::Both);
        accepting.thread().unpark();
        for socket in open {
            socket.shutdown(Shutdown::Both);
        }
        if accepting.join().is_err() {
            log::error!("a server's accept thread panicked");
        }
        self.shared.wait_for_connections();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug)]
struct Shared {
    listen: Listen,
    limits: Limits,
    connections: Mutex<Connections>,
    closed: Condvar,
}

/// One open connection.
#[derive(Clone, Debug)]
struct Peer {
    socket: Arc<Socket>,
    client_wait: Arc<ClientWait>,
}

/// The open connections by number, and the last refused ones.
#[derive(Debug, Default)]
struct Connections {
    open: BTreeMap<u64, Peer>,
    n_accepted: u64,
    /// Connections answered with 429 and half closed. Closing them at once could lose the response.
    refused: VecDeque<Arc<Socket>>,
    stopping: bool,
}

impl Connections {
    /// Closes the connection that has been waiting for its client longest, if that is at least
    /// `patience`. True if it closed one.
    fn make_room(&mut self, patience: Duration) -> bool {
        let waiting = |(number, peer): (&u64, &Peer)| Some((peer.client_wait.time()?, *number));
        let longest = self.open.iter().filter_map(waiting).max();
        let Some((_, number)) = longest.filter(|(time, _)| *time >= patience) else {
            return false;
        };
        if let Some(peer) = self.open.remove(&number) {
            peer.socket.shutdown(Shutdown::Both);
        }
        true
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        // Every statement leaves the maps consistent, so a poisoned lock is safe to use.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection. `None` if there are too many or the server is stopping.
    fn admit(&self, peer: &Peer) -> Option<u64> {
        let mut connections = self.lock();
        let is_full = connections.open.len() >= self.limits.connections_max;
        if connections.stopping || (is_full && !connections.make_room(self.limits.patience)) {
            return None;
        }
        connections.n_accepted += 1;
        let number = connections.n_accepted;
        connections.open.insert(number, peer.clone());
        Some(number)
    }

    fn forget(&self, number: u64) {
        self.lock().open.remove(&number);
        self.closed.notify_all();
    }

    /// Answers with 429, without waiting for the request.
    fn refuse(&self, socket: Arc<Socket>) {
        let mut output = Output::new(Arc::clone(&socket), REFUSE_TIMEOUT);
        let body = (self.limits.refusal)(429, "too many connections");
        let headers = [("content-type", "application/json"), ("retry-after", "1")];
        let sent = socket
            .set_write_timeout(REFUSE_TIMEOUT)
            .and_then(|()| output.send(429, &headers, body.as_bytes()));
        if sent.is_err() {
            return;
        }
        socket.shutdown(Shutdown::Write);
        let mut connections = self.lock();
        if connections.refused.len() >= REFUSED_MAX {
            connections.refused.pop_front();
        }
        connections.refused.push_back(socket);
    }

    fn wait_for_connections(&self) {
        let deadline = Instant::now() + STOP_WAIT_MAX;
        let mut connections = self.lock();
        while !connections.open.is_empty() {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                log::warn!(
                    "{} connections are still open {} s after the stop of their server; leaving them",
                    connections.open.len(),
                    STOP_WAIT_MAX.as_secs()
                );
                return;
            }
            let waited = self.closed.wait_timeout(connections, remaining);
            connections = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The thread that accepts connections.
struct Acceptor {
    shared: Arc<Shared>,
    handler: Arc<dyn Handler>,
    name: String,
}

impl Acceptor {
    fn run(&self) {
        loop {
            let accepted = self.shared.listen.accept();
            if self.shared.lock().stopping {
                return;
            }
            match accepted {
                Ok(socket) => self.start_connection(Arc::new(socket)),
                Err(error) => {
                    // The client disconnected early, or no file descriptor is free. Pause, so that
                    // the second case does not become a busy loop.
                    log::debug!("{}: cannot accept a connection: {error}", self.name);
                    thread::park_timeout(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn start_connection(&self, socket: Arc<Socket>) {
        let peer = Peer { socket: Arc::clone(&socket), client_wait: Arc::default() };
        let Some(number) = self.shared.admit(&peer) else {
            self.shared.refuse(socket);
            return;
        };
        let connection = Connection { shared: Arc::clone(&self.shared), number };
        let handler = Arc::clone(&self.handler);
        let builder = thread::Builder::new().name(format!("{}-conn", self.name));
        let spawned = builder.stack_size(STACK_BYTES).spawn(move || {
            let limits = &connection.shared.limits;
            connection::serve(&peer.socket, limits, handler.as_ref(), &peer.client_wait);
        });
        // If the spawn failed, dropping the closure has removed the registration.
        if let Err(error) = spawned {
            log::warn!("{}: refused a connection: cannot start a thread: {error}", self.name);
            self.shared.refuse(socket);
        }
    }
}

/// A registered connection. Dropping it removes the registration.
struct Connection {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.forget(self.number);
    }
}

/// Time limit for writing a 429, which blocks the accept thread.
const REFUSE_TIMEOUT: Duration = Duration::from_millis(100);

/// The most refused connections that are kept open so that the client can read the 429.
const REFUSED_MAX: usize = 16;

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long `stop` waits for handlers.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);
