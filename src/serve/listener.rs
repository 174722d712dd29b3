//! Owns the listening socket, the set of open connections and the end of both.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::ServerConfig;

use crate::serve::connection::{self, Waiting};
use crate::serve::response::Output;
use crate::serve::socket::Socket;
use crate::serve::tls::TlsSocket;
use crate::serve::{Handler, Limits, STACK_BYTES};

/// Where to listen.
#[derive(Debug)]
pub enum Listen {
    Tcp(TcpListener),
    /// TLS; what those get who begin otherwise stands beside it.
    Tls(TcpListener, Arc<ServerConfig>, Plain),
    Unix(UnixListener),
}

/// What a client gets who speaks no TLS where it is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// The same answers, in plain bytes.
    Served,
    /// One answer, that it has to be TLS.
    Refused,
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
    // Answers are written whole: waiting for more would only delay them.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A running server; dropped without `stop`, it is stopped all the same.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `listen` on threads of its own until `stop`.
    ///
    /// # Errors
    /// The system gave no thread.
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
            gone: Condvar::new(),
        });
        let acceptor = Acceptor { shared: Arc::clone(&shared), handler, name: name.to_owned() };
        let builder = thread::Builder::new().name(format!("{name}-accept"));
        let accepting = builder.stack_size(STACK_BYTES).spawn(move || acceptor.run())?;
        Ok(Self { shared, accepting: Some(accepting) })
    }

    /// The TCP address that is listened on.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.shared.listen {
            Listen::Tcp(listener) | Listen::Tls(listener, ..) => listener.local_addr().ok(),
            Listen::Unix(_) => None,
        }
    }

    /// Ends the listening and every connection, and waits for their threads, but not for ever: a
    /// handler that never looks at its connection is left behind with a warning.
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
        // On Linux this wakes a blocked accept, for TCP and for unix sockets.
        let _ = rustix::net::shutdown(self.shared.listen.fd(), rustix::net::Shutdown::Both);
        accepting.thread().unpark();
        for socket in open {
            socket.shutdown(Shutdown::Both);
        }
        if accepting.join().is_err() {
            log::error!("a server's accept thread panicked");
        }
        self.shared.await_end();
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
    gone: Condvar,
}

/// One open connection.
#[derive(Clone, Debug)]
struct Peer {
    socket: Arc<Socket>,
    waiting: Arc<Waiting>,
}

/// The open connections by number, and those that were refused.
#[derive(Debug, Default)]
struct Connections {
    open: BTreeMap<u64, Peer>,
    n_accepted: u64,
    /// Answered with 429 and half closed; kept a little so that the client can read it.
    refused: VecDeque<Arc<Socket>>,
    stopping: bool,
}

impl Connections {
    /// Ends the connection that has kept us waiting longest, where that is long enough.
    fn make_room(&mut self, patience: Duration) -> bool {
        let waiting = |(number, peer): (&u64, &Peer)| Some((peer.waiting.time()?, *number));
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
        // What is held is whole between any two statements, so a panic elsewhere spoils nothing.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in; none where there is no room or the server ends.
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
        self.gone.notify_all();
    }

    /// Tells a client that there is no room for it, without waiting for it.
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

    fn await_end(&self) {
        let deadline = Instant::now() + STOP_WAIT_MAX;
        let mut connections = self.lock();
        while !connections.open.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                log::warn!("{} requests did not end with their server", connections.open.len());
                return;
            }
            let waited = self.gone.wait_timeout(connections, left);
            connections = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The thread that accepts.
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
                Ok(socket) => self.take(Arc::new(socket)),
                Err(error) => {
                    // A client that went before it was accepted, or no descriptor is free: the
                    // next one may do better, but not at once.
                    log::debug!("{}: accept: {error}", self.name);
                    thread::park_timeout(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn take(&self, socket: Arc<Socket>) {
        let peer = Peer { socket: Arc::clone(&socket), waiting: Arc::default() };
        let Some(number) = self.shared.admit(&peer) else {
            self.shared.refuse(socket);
            return;
        };
        let connection = Connection { shared: Arc::clone(&self.shared), number };
        let handler = Arc::clone(&self.handler);
        let builder = thread::Builder::new().name(format!("{}-conn", self.name));
        let spawned = builder.stack_size(STACK_BYTES).spawn(move || {
            let limits = &connection.shared.limits;
            connection::serve(&peer.socket, limits, handler.as_ref(), &peer.waiting);
        });
        // Where there is no thread to be had, the closure is gone and with it the registration.
        if let Err(error) = spawned {
            log::warn!("{}: no thread for a connection: {error}", self.name);
            self.shared.refuse(socket);
        }
    }
}

/// A registered connection; its end is noted whatever ended it.
struct Connection {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.forget(self.number);
    }
}

/// How long one refused client may hold up the accepting.
const REFUSE_TIMEOUT: Duration = Duration::from_millis(100);

/// Refused connections that are kept until they have read their answer.
const REFUSED_MAX: usize = 16;

/// Between two tries to accept after one failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What `stop` waits for handlers that are still at work.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);
