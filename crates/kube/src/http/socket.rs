//! TCP connections with few system calls: a request costs a write, a read or two, and two checks whether
//! the connection is open. ureq's own transport sets the time limits of the socket anew for each of them.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, ShutdownHandle,
    Transport,
};

use super::interrupt::Interrupt;

/// Limits from this on are rounded down to whole seconds for the socket, so that they are the same from one
/// request to the next. What the rounding takes away is waited for in a second step.
const COARSE_MIN: Duration = Duration::from_secs(2);

/// Opens a socket, unless a connector before it in the chain made a connection.
#[derive(Debug)]
pub(super) struct SocketConnector {
    /// Ends the reads of the connection early.
    pub(super) interrupt: Option<Arc<Interrupt>>,
}

impl<In: Transport> Connector<In> for SocketConnector {
    type Out = Either<In, Socket>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, Error> {
        if chained.is_some() {
            return Ok(chained.map(Either::A));
        }
        let stream = Arc::new(open(&details.addrs, details.timeout)?);
        stream.set_nodelay(true)?;
        (details.register_shutdown)(Arc::downgrade(&stream) as Weak<dyn ShutdownHandle>)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        let interrupt = self.interrupt.clone();
        interrupt.iter().for_each(|interrupt| interrupt.attach());
        let early = EarlyAnswer::default();
        let (read_limit, write_limit) = (None, None);
        let socket = Socket { stream, buffers, early, read_limit, write_limit, interrupt };
        Ok(Some(Either::B(socket)))
    }
}

/// Connects to the first address that answers. Each address gets half of the time that is left, the last
/// one all of it.
fn open(addresses: &[SocketAddr], timeout: NextTimeout) -> Result<TcpStream, Error> {
    let began = Instant::now();
    let mut failure = Error::ConnectionFailed;
    for (i, address) in addresses.iter().enumerate() {
        let connected = match time_left(timeout, began)? {
            None => TcpStream::connect(address),
            Some(left) => {
                let is_last = i + 1 == addresses.len();
                TcpStream::connect_timeout(address, if is_last { left } else { left / 2 })
            }
        };
        failure = match connected {
            Ok(stream) => return Ok(stream),
            Err(error) if is_timeout(&error) => Error::Timeout(timeout.reason),
            Err(error) => Error::Io(error),
        };
        log::debug!("cannot connect to {address}: {failure}");
    }
    Err(failure)
}

/// What is left of a limit that began to count at `began`; none: there is no limit.
fn time_left(timeout: NextTimeout, began: Instant) -> Result<Option<Duration>, Error> {
    if timeout.after.is_not_happening() {
        return Ok(None);
    }
    match timeout.after.saturating_sub(began.elapsed()) {
        Duration::ZERO => Err(Error::Timeout(timeout.reason)),
        left => Ok(Some(left)),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    // A socket's own limit ends a call with EAGAIN on Linux.
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// An answer that came while ureq waited for `100 Continue`: it is in the buffer, and ureq 3.5 waits for more of it.
#[derive(Default)]
pub(super) struct EarlyAnswer {
    /// How many bytes of the buffer have not sufficed.
    n_looked_at: usize,
}

impl EarlyAnswer {
    /// A part of a request was sent.
    pub(super) fn on_sent(&mut self) {
        self.n_looked_at = 0;
    }

    /// True if it may be in the buffer. What has not sufficed once needs more.
    pub(super) fn take(&mut self, buffers: &mut dyn Buffers) -> bool {
        let n = buffers.input().len();
        let n_before = std::mem::replace(&mut self.n_looked_at, n);
        n > 0 && n != n_before
    }
}

/// A connected socket.
pub(super) struct Socket {
    /// The agent has a weak reference, with which it ends a blocked read.
    stream: Arc<TcpStream>,
    buffers: LazyBuffers,
    early: EarlyAnswer,
    /// The limits that the system has now.
    read_limit: Option<Duration>,
    write_limit: Option<Duration>,
    interrupt: Option<Arc<Interrupt>>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("peer", &self.stream.peer_addr().ok()).finish()
    }
}

impl Transport for Socket {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.early.on_sent();
        let mut rest = &self.buffers.output()[..amount];
        let (timeout, began, stream) = (timeout.for_write(), Instant::now(), &*self.stream);
        while !rest.is_empty() {
            let set = |limit| stream.set_write_timeout(limit);
            let write = || (&*stream).write(rest);
            let n = limited(timeout, began, &mut self.write_limit, set, write)?;
            if n == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            rest = &rest[n..];
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        if self.early.take(&mut self.buffers) {
            return Ok(true);
        }
        if let Some(interrupt) = &self.interrupt {
            let limit = time_left(timeout, Instant::now())?;
            if !interrupt.wait(&self.stream, limit).map_err(io::Error::from)? {
                return Err(Error::Timeout(timeout.reason));
            }
        }
        let buffer = self.buffers.input_append_buf();
        let (timeout, began, stream) = (timeout.for_read(), Instant::now(), &*self.stream);
        let set = |limit| stream.set_read_timeout(limit);
        let read = || (&*stream).read(buffer);
        let n = limited(timeout, began, &mut self.read_limit, set, read)?;
        self.buffers.input_appended(n);
        Ok(n > 0)
    }

    /// An idle connection has nothing to read: an end or a byte that nobody asked for closes it.
    fn is_open(&mut self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(recv(&*self.stream, &mut [0; 1], flags), Err(Errno::WOULDBLOCK))
    }
}

/// Repeats a system call until it is done, or until `timeout` is over. `limit` is what the socket has now.
fn limited(
    timeout: NextTimeout,
    began: Instant,
    limit: &mut Option<Duration>,
    set_limit: impl Fn(Option<Duration>) -> io::Result<()>,
    mut call: impl FnMut() -> io::Result<usize>,
) -> Result<usize, Error> {
    loop {
        let wanted = time_left(timeout, began)?.map(coarse);
        if *limit != wanted {
            set_limit(wanted)?;
            *limit = wanted;
        }
        match call() {
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {}
            result => return Ok(result?),
        }
    }
}

fn coarse(left: Duration) -> Duration {
    if left < COARSE_MIN { left } else { Duration::from_secs(left.as_secs()) }
}
