//! The listening socket: accepting connections and stopping the server.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::ServerConfig;

use crate::connection;
use crate::slots::Slots;
use crate::socket::{Socket, Stream};
use crate::tls::{Plain, TlsSocket};
use crate::{Handler, Limits, STACK_BYTES};

/// Where to listen.
#[derive(Debug)]
pub enum Listen {
    Tcp(TcpListener),
    /// TLS, and how clients that do not speak TLS are handled.
    Tls(TcpListener, Arc<ServerConfig>, Plain),
    Unix(UnixListener),
}

impl Listen {
    fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => accept_tcp(listener).map(Stream::Tcp),
            Self::Tls(listener, settings, plain) => {
                let stream = accept_tcp(listener)?;
                Ok(Stream::Tls(TlsSocket::new(stream, Arc::clone(settings), *plain)))
            }
            Self::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
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
    listen: Arc<Listen>,
    slots: Arc<Slots>,
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
        let (listen, slots) = (Arc::new(listen), Slots::new(limits));
        let acceptor = Acceptor {
            listen: Arc::clone(&listen),
            slots: Arc::clone(&slots),
            handler,
            name: name.to_owned(),
        };
        let builder = thread::Builder::new().name(format!("{name}-accept"));
        let accepting = builder.stack_size(STACK_BYTES).spawn(move || acceptor.run())?;
        Ok(Self { listen, slots, accepting: Some(accepting) })
    }

    /// The TCP address of the listener. `None` for a unix socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &*self.listen {
            Listen::Tcp(listener) | Listen::Tls(listener, ..) => listener.local_addr().ok(),
            Listen::Unix(_) => None,
        }
    }

    /// Stops listening, ends all connections and waits up to 5 s for their threads. If a handler
    /// does not end in this time, its thread is left running, with a warning.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        self.slots.stop();
        // On Linux this ends a blocked accept, for TCP and for unix sockets.
        let _ = rustix::net::shutdown(self.listen.fd(), rustix::net::Shutdown::Both);
        accepting.thread().unpark();
        if accepting.join().is_err() {
            log::error!("a server's accept thread panicked");
        }
        self.slots.wait_until_empty();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread that accepts connections.
struct Acceptor {
    listen: Arc<Listen>,
    slots: Arc<Slots>,
    handler: Arc<dyn Handler>,
    name: String,
}

impl Acceptor {
    fn run(&self) {
        loop {
            let accepted = self.listen.accept();
            if self.slots.is_stopping() {
                return;
            }
            match accepted {
                Ok(stream) => self.start_connection(stream),
                Err(error) => {
                    // The client disconnected early, or no file descriptor is free. Pause, so that
                    // the second case does not become a busy loop.
                    log::debug!("{}: cannot accept a connection: {error}", self.name);
                    thread::park_timeout(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn start_connection(&self, stream: Stream) {
        let socket = Arc::new(Socket::new(stream, self.slots.limits.read_timeout));
        let Some(slot) = self.slots.admit(socket) else {
            log::debug!("{}: closed a connection: there is no slot for it", self.name);
            return;
        };
        let handler = Arc::clone(&self.handler);
        let builder = thread::Builder::new().name(format!("{}-conn", self.name));
        let spawned = builder
            .stack_size(STACK_BYTES)
            .spawn(move || connection::serve(&slot, handler.as_ref()));
        if let Err(error) = spawned {
            log::warn!("{}: closed a connection: cannot start a thread: {error}", self.name);
        }
    }
}

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
