//! TLS on a connection: one rustls session over its socket. The first byte tells whether the client
//! speaks TLS.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, recv};
use rustls::{ServerConfig, ServerConnection};

use crate::deadline::set_deadline;
use posse_base::sync::lock;

/// The first byte of a TLS connection: the record type `handshake` (RFC 8446, 5.1). No HTTP method
/// begins with it.
const HANDSHAKE: u8 = 0x16;

/// How long the alert at the end of a connection may take.
const ALERT_TIMEOUT: Duration = Duration::from_secs(1);

/// The response to a plain HTTP client on a port that requires TLS.
const TLS_ONLY: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n\
    {\"error\":\"this port requires TLS: use https://, also from an Ingress to the Service\"}\n";

/// How a client that does not speak TLS is handled on a TLS port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// It is served over plain HTTP.
    Served,
    /// It gets an error response that says that TLS is required.
    Refused,
}

/// A connection that speaks TLS or, if `plain` allows it, plain HTTP.
pub(super) struct TlsSocket {
    stream: TcpStream,
    session: Mutex<Session>,
    plain: Plain,
}

enum Session {
    /// The first byte was not read yet.
    Unknown(Arc<ServerConfig>),
    Plain,
    Tls(Box<ServerConnection>),
}

impl fmt::Debug for TlsSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSocket").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl TlsSocket {
    pub(super) fn new(stream: TcpStream, settings: Arc<ServerConfig>, plain: Plain) -> Self {
        Self { stream, session: Mutex::new(Session::Unknown(settings)), plain }
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads once, until the deadline, however many TLS records that takes.
    pub(super) fn read(&self, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
        let mut session = lock(&self.session);
        if let Session::Unknown(settings) = &*session {
            let mut first = [0];
            set_deadline(&self.stream, Timeout::Recv, deadline)?;
            let (_, n) = recv(&self.stream, &mut first, RecvFlags::PEEK)?;
            *session = match (n, first) {
                (0, _) => return Ok(0),
                (_, [HANDSHAKE]) => {
                    let session = ServerConnection::new(Arc::clone(settings));
                    Session::Tls(Box::new(session.map_err(io::Error::other)?))
                }
                _ if self.plain == Plain::Served => Session::Plain,
                _ => {
                    // Read first: closing a socket with unread bytes could discard the response.
                    let _ = (&self.stream).read(buffer)?;
                    set_deadline(&self.stream, Timeout::Send, deadline)?;
                    (&self.stream).write_all(TLS_ONLY)?;
                    return Err(io::ErrorKind::InvalidData.into());
                }
            };
        }
        match &mut *session {
            Session::Tls(tls) => self.decrypt(tls, buffer, deadline),
            Session::Plain | Session::Unknown(_) => {
                set_deadline(&self.stream, Timeout::Recv, deadline)?;
                (&self.stream).read(buffer)
            }
        }
    }

    pub(super) fn write(&self, bytes: &[u8], deadline: Instant) -> io::Result<usize> {
        match &mut *lock(&self.session) {
            Session::Tls(tls) => {
                let n = tls.writer().write(bytes)?;
                self.flush(tls, deadline)?;
                Ok(n)
            }
            Session::Plain | Session::Unknown(_) => {
                set_deadline(&self.stream, Timeout::Send, deadline)?;
                (&self.stream).write(bytes)
            }
        }
    }

    /// Sends the TLS alert `close_notify`. Skipped if another thread holds the session in a read.
    pub(super) fn send_close_notify(&self) {
        if let Ok(mut session) = self.session.try_lock()
            && let Session::Tls(tls) = &mut *session
        {
            tls.send_close_notify();
            // An error means that the client has disconnected.
            let _ = self.flush(tls, Instant::now() + ALERT_TIMEOUT);
        }
    }

    /// Reads what has arrived, without waiting: `WouldBlock` if there is nothing.
    pub(super) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut session = lock(&self.session);
        let Session::Tls(tls) = &mut *session else {
            let (_, n) = recv(&self.stream, buffer, RecvFlags::DONTWAIT)?;
            return Ok(n);
        };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            if !self.receive_now(tls)? {
                // The last bytes may have come with the end.
                return Ok(tls.reader().read(buffer).unwrap_or(0));
            }
        }
    }

    /// Reads what has arrived and checks for `close_notify`. `None` if the session is not TLS. Does
    /// not wait for the socket.
    pub(super) fn peer_has_closed(&self) -> Option<bool> {
        let Session::Tls(tls) = &mut *lock(&self.session) else { return None };
        match self.receive_now(tls) {
            Ok(is_open) => Some(!is_open),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Some(false),
            Err(_) => Some(true),
        }
    }

    /// Gives the session the bytes that have arrived; `WouldBlock` if there are none. False if the
    /// peer has closed.
    fn receive_now(&self, tls: &mut ServerConnection) -> io::Result<bool> {
        // The session takes what it has room for; the rest stays in the kernel.
        let n = tls.read_tls(&mut Arrived(&self.stream))?;
        let state = tls.process_new_packets();
        let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(n > 0 && !state.peer_has_closed())
    }

    fn decrypt(
        &self,
        tls: &mut ServerConnection,
        buffer: &mut [u8],
        deadline: Instant,
    ) -> io::Result<usize> {
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The peer closed without `close_notify`. HTTP framing shows whether a message is
                // complete.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.flush(tls, deadline)?;
            set_deadline(&self.stream, Timeout::Recv, deadline)?;
            if tls.read_tls(&mut &self.stream)? == 0 {
                return Ok(0);
            }
            if let Err(error) = tls.process_new_packets() {
                // Send the alert that names the error.
                let _ = self.flush(tls, deadline);
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }

    fn flush(&self, tls: &mut ServerConnection, deadline: Instant) -> io::Result<()> {
        while tls.wants_write() {
            set_deadline(&self.stream, Timeout::Send, deadline)?;
            match tls.write_tls(&mut &self.stream) {
                // Repeat only the write: the caller's bytes are already in the session.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(())
    }
}

/// Reads what has arrived at a socket: `WouldBlock` if there is nothing.
struct Arrived<'a>(&'a TcpStream);

impl Read for Arrived<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (_, n) = recv(self.0, buffer, RecvFlags::DONTWAIT)?;
        Ok(n)
    }
}

impl AsFd for TlsSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
