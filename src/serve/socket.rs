//! The stream of a connection (TCP, TLS or unix) with time limits for reads and writes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, recv};

use crate::serve::PACE_BYTES;
use crate::serve::tls::TlsSocket;

/// One accepted connection.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Tls(TlsSocket),
    Unix(UnixStream),
}

impl Socket {
    /// Reads once; 0 is the end of the stream. Interrupted reads are repeated.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match self {
                Self::Tcp(stream) => (&*stream).read(buffer),
                Self::Tls(stream) => stream.read(buffer),
                Self::Unix(stream) => (&*stream).read(buffer),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Writes all bytes within `timeout`, which grows with the bytes written (see `Pace`). The
    /// socket's own write timeout limits each single write.
    pub(super) fn write_all(&self, mut bytes: &[u8], timeout: Duration) -> io::Result<()> {
        let pace = Pace::start(timeout);
        let mut written = 0;
        while !bytes.is_empty() {
            let result = match self {
                Self::Tcp(stream) => (&*stream).write(bytes),
                Self::Tls(stream) => stream.write(bytes),
                Self::Unix(stream) => (&*stream).write(bytes),
            };
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    written += n as u64;
                    bytes = &bytes[n..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if !bytes.is_empty() && pace.remaining(written).is_none() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(self.fd(), Timeout::Recv, Some(timeout.max(TIMEOUT_MIN)))?)
    }

    pub(super) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(self.fd(), Timeout::Send, Some(timeout.max(TIMEOUT_MIN)))?)
    }

    /// Shuts the connection down for all its users; a blocked read or write returns.
    pub(super) fn shutdown(&self, how: Shutdown) {
        if let Self::Tls(stream) = self
            && how == Shutdown::Write
        {
            stream.send_close_notify();
        }
        let how = match how {
            Shutdown::Both => rustix::net::Shutdown::Both,
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
        };
        // An error means that the connection has ended already.
        let _ = rustix::net::shutdown(self.fd(), how);
    }

    /// False if the peer has closed the connection or the socket was shut down. Does not block.
    pub(super) fn is_open(&self) -> bool {
        if let Self::Tls(stream) = self
            && let Some(closed) = stream.peer_has_closed()
        {
            return !closed;
        }
        let mut byte = [0; 1];
        match recv(self.fd(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, n)) => n > 0,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => true,
            Err(_) => false,
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// The time limit of a transfer: a fixed part, and more with each byte transferred.
#[derive(Debug)]
pub(super) struct Pace {
    started: Instant,
    timeout: Duration,
}

impl Pace {
    pub(super) fn start(timeout: Duration) -> Self {
        Self { started: Instant::now(), timeout }
    }

    /// The remaining time after `n_bytes`. `None` if the time is over.
    pub(super) fn remaining(&self, n_bytes: u64) -> Option<Duration> {
        let allowed = self.timeout.saturating_add(Duration::from_secs(n_bytes / PACE_BYTES));
        allowed.checked_sub(self.started.elapsed()).filter(|remaining| !remaining.is_zero())
    }
}

/// True if a read or write has timed out.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The socket option treats zero as no timeout.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
