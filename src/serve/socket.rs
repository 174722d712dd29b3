//! Owns the kinds of stream and the time they are given; knows nothing of HTTP.

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
    /// One read; 0 is the end. Interrupted reads are tried again.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let answer = match self {
                Self::Tcp(stream) => (&*stream).read(buffer),
                Self::Tls(stream) => stream.read(buffer),
                Self::Unix(stream) => (&*stream).read(buffer),
            };
            match answer {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                answer => return answer,
            }
        }
    }

    /// Writes all of it within `timeout` and the allowance for what went through. The socket's own
    /// write time-out, set at the start, bounds each single write.
    pub(super) fn write_all(&self, mut bytes: &[u8], timeout: Duration) -> io::Result<()> {
        let pace = Pace::start(timeout);
        let mut written = 0;
        while !bytes.is_empty() {
            let answer = match self {
                Self::Tcp(stream) => (&*stream).write(bytes),
                Self::Tls(stream) => stream.write(bytes),
                Self::Unix(stream) => (&*stream).write(bytes),
            };
            match answer {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    written += n as u64;
                    bytes = &bytes[n..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if !bytes.is_empty() && pace.left(written).is_none() {
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

    /// Ends it for all who hold it; a blocked read or write returns.
    pub(super) fn shutdown(&self, how: Shutdown) {
        if let Self::Tls(stream) = self
            && how == Shutdown::Write
        {
            stream.say_goodbye();
        }
        let how = match how {
            Shutdown::Both => rustix::net::Shutdown::Both,
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
        };
        // It may be over already, which is what was wanted.
        let _ = rustix::net::shutdown(self.fd(), how);
    }

    /// False where the other side has gone or the socket was shut down. Never waits.
    pub(super) fn is_open(&self) -> bool {
        if let Self::Tls(stream) = self
            && let Some(farewell) = stream.has_farewell()
        {
            return !farewell;
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

/// The time that a transfer is given: a fixed part, and more as bytes go through.
#[derive(Debug)]
pub(super) struct Pace {
    started: Instant,
    timeout: Duration,
}

impl Pace {
    pub(super) fn start(timeout: Duration) -> Self {
        Self { started: Instant::now(), timeout }
    }

    /// What is left of it after `n_bytes`; none where it is over.
    pub(super) fn left(&self, n_bytes: u64) -> Option<Duration> {
        let given = self.timeout.saturating_add(Duration::from_secs(n_bytes / PACE_BYTES));
        given.checked_sub(self.started.elapsed()).filter(|left| !left.is_zero())
    }
}

/// True where a read or write gave up because its time was over.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Zero would mean "for ever" to the system.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
