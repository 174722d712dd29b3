//! The stream of a connection (TCP, TLS or unix). Each read and write lasts as long as the client's
//! pace allows.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, Shutdown, recv};

use crate::Peer;
use crate::deadline::set_deadline;
use crate::pace::Pace;
use crate::tls::TlsSocket;
use posse_base::sync::lock;
use posse_base::{socket_owner, system};

/// One accepted connection and the pace of its client.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    pace: Mutex<Pace>,
}

/// Whose connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// A user of this machine.
    User(u32),
    /// This machine, if the kernel does not say which user.
    Machine,
    /// An address, or a network of IPv6.
    Network(IpAddr),
}

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Tls(TlsSocket),
    Unix(UnixStream),
}

impl Socket {
    /// The pace of the handshake and of the first request starts here.
    pub(super) fn new(stream: Stream, read_timeout: Duration) -> Self {
        let pace = Pace::of_new_connection(read_timeout, Instant::now());
        Self { stream, pace: Mutex::new(pace) }
    }

    /// The address of the client. `None` for a unix socket.
    pub(super) fn address(&self) -> Option<IpAddr> {
        Some(self.ends()?.1.ip())
    }

    /// This end and the client's. `None` for a unix socket.
    fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let stream = match &self.stream {
            Stream::Tcp(stream) => stream,
            Stream::Tls(stream) => stream.tcp(),
            Stream::Unix(_) => return None,
        };
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        Some((plain(stream.local_addr().ok()?), plain(stream.peer_addr().ok()?)))
    }

    /// Who the client is, as far as the network tells. `None` for a unix socket.
    pub(super) fn source(&self) -> Option<Source> {
        let (ours, theirs) = self.ends()?;
        let is_local = theirs.ip().is_loopback() || theirs.ip() == ours.ip();
        // A process of this machine can choose any loopback address.
        if is_local {
            let owner = socket_owner::of_end(theirs, ours).ok().flatten();
            return Some(owner.map_or(Source::Machine, |owner| Source::User(owner.uid)));
        }
        Some(Source::Network(match theirs.ip() {
            IpAddr::V4(address) => address.into(),
            // One client of IPv6 has a whole network.
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !0 << 64).into(),
        }))
    }

    /// The same for a record of who did what, also of a unix socket.
    pub(super) fn peer(&self) -> Peer {
        if let Stream::Unix(stream) = &self.stream {
            let user = system::of_peer(stream).ok().map(|(_, user)| user.as_raw());
            return Peer { user, address: None };
        }
        let user = match self.source() {
            Some(Source::User(user)) => Some(user),
            Some(Source::Machine | Source::Network(_)) | None => None,
        };
        Peer { user, address: self.address() }
    }

    /// From now on the client may be behind by `limit`.
    pub(super) fn start_pace(&self, limit: Duration) {
        *lock(&self.pace) = Pace::start(limit);
    }

    /// See `Pace::finish`.
    pub(super) fn finish(&self) {
        lock(&self.pace).finish();
    }

    /// See `Pace::lag`.
    pub(super) fn lag(&self) -> Option<Duration> {
        lock(&self.pace).lag(Instant::now())
    }

    /// How far the client is behind its pace.
    pub(super) fn behind(&self) -> Duration {
        lock(&self.pace).behind(Instant::now())
    }

    /// Reads once; 0 is the end of the stream.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|deadline| match &self.stream {
            Stream::Tcp(stream) => {
                set_deadline(stream, Timeout::Recv, deadline)?;
                (&*stream).read(buffer)
            }
            Stream::Tls(stream) => stream.read(buffer, deadline),
            Stream::Unix(stream) => {
                set_deadline(stream, Timeout::Recv, deadline)?;
                (&*stream).read(buffer)
            }
        })
    }

    /// Reads what has arrived, without waiting: `WouldBlock` if there is nothing.
    pub(super) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Stream::Tls(stream) = &self.stream {
            return stream.read_now(buffer);
        }
        let (_, n) = recv(self.stream.as_fd(), buffer, RecvFlags::DONTWAIT)?;
        Ok(n)
    }

    /// Writes all bytes.
    pub(super) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_all_parts(&mut [IoSlice::new(bytes)])
    }

    /// Writes all bytes of all parts, as many at once as the socket takes.
    pub(super) fn write_all_parts(&self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        // Skips empty parts.
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let n = self.wait(|deadline| match &self.stream {
                Stream::Tcp(stream) => {
                    set_deadline(stream, Timeout::Send, deadline)?;
                    (&*stream).write_vectored(parts)
                }
                Stream::Tls(stream) => stream.write(&parts[0], deadline),
                Stream::Unix(stream) => {
                    set_deadline(stream, Timeout::Send, deadline)?;
                    (&*stream).write_vectored(parts)
                }
            })?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut parts, n);
        }
        Ok(())
    }

    /// Runs one read or write at the client's pace. Interrupted ones are repeated.
    fn wait(&self, mut transfer: impl FnMut(Instant) -> io::Result<usize>) -> io::Result<usize> {
        let deadline =
            lock(&self.pace).begin_wait(Instant::now()).ok_or(io::ErrorKind::TimedOut)?;
        let result = loop {
            match transfer(deadline) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        lock(&self.pace).end_wait(Instant::now(), *result.as_ref().unwrap_or(&0));
        result
    }

    /// Shuts the connection down for all its users; a blocked read or write returns.
    pub(super) fn shutdown(&self, how: Shutdown) {
        if let Stream::Tls(stream) = &self.stream
            && how == Shutdown::Write
        {
            stream.send_close_notify();
        }
        // An error means that the connection has ended already.
        let _ = rustix::net::shutdown(self.stream.as_fd(), how);
    }

    /// False if the peer has closed the connection or the socket was shut down. Does not block.
    pub(super) fn is_open(&self) -> bool {
        if let Stream::Tls(stream) = &self.stream
            && let Some(closed) = stream.peer_has_closed()
        {
            return !closed;
        }
        let mut byte = [0; 1];
        match recv(self.stream.as_fd(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, n)) => n > 0,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => true,
            Err(_) => false,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// True if a read or write has timed out.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
