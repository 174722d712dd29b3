//! A connection to the server whose reads and writes never block.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustls::ClientConnection;
use ureq::http::Uri;
use ureq::unversioned::resolver::Resolver as _;

use super::connector::{AddressResolver, server_name};
use super::websocket::limit;
use super::{AgentSnapshot, Shared, socket};

/// For the name, for the socket, and for each wait of the TLS handshake.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// An open connection.
pub(super) struct Connection {
    stream: TcpStream,
    tls: Option<ClientConnection>,
    /// What was not encrypted yet, or not sent if there is no TLS.
    output: Vec<u8>,
    /// What has arrived, decrypted.
    pub(super) input: Vec<u8>,
    /// Of the certificates.
    pub(super) generation: u64,
    pub(super) used_at: Instant,
}

impl Connection {
    /// Connects, without a proxy. Blocks until TLS is agreed on.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(super) fn open(shared: &Shared, snapshot: &AgentSnapshot) -> Result<Self, ureq::Error> {
        let uri: Uri = shared.base.parse().map_err(ureq::http::Error::from)?;
        let limit = limit(OPEN_TIMEOUT);
        let config = snapshot.unary.config();
        let addresses = AddressResolver::default().resolve(&uri, config, limit)?;
        let mut stream = socket::open(&addresses, limit)?;
        stream.set_nodelay(true)?;
        let tls = match &snapshot.tls_config {
            None => None,
            Some(tls_config) => {
                let server = &shared.cluster;
                let name = server.tls_server_name.as_deref();
                let name = server_name(&uri, &server.server.host, name)?;
                let mut tls = ClientConnection::new(Arc::clone(tls_config), name)?;
                stream.set_read_timeout(Some(OPEN_TIMEOUT))?;
                stream.set_write_timeout(Some(OPEN_TIMEOUT))?;
                tls.complete_io(&mut stream)?;
                Some(tls)
            }
        };
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            tls,
            output: Vec::new(),
            input: Vec::new(),
            generation: snapshot.generation,
            used_at: Instant::now(),
        })
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        let has_output =
            !self.output.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write());
        if has_output { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Sends these bytes, or as many as the system takes now. `flush` sends the rest.
    pub(super) fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.output = bytes;
        self.used_at = Instant::now();
        self.flush()
    }

    /// Sends what is left, or as many bytes of it as the system takes now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut n_taken = 0;
        let result = self.write(&mut n_taken);
        self.output.drain(..n_taken);
        if self.output.is_empty() {
            self.output = Vec::new();
        }
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result,
        }
    }

    /// `n_taken`: how many bytes of the output TLS or the system has taken.
    fn write(&mut self, n_taken: &mut usize) -> io::Result<()> {
        let Self { stream, tls, output, .. } = self;
        loop {
            let rest = &output[*n_taken..];
            let Some(tls) = tls else {
                if rest.is_empty() {
                    return Ok(());
                }
                *n_taken += retried(|| stream.write(rest))?;
                continue;
            };
            *n_taken += tls.writer().write(rest)?;
            if !tls.wants_write() {
                return Ok(());
            }
            retried(|| tls.write_tls(stream))?;
        }
    }

    /// Adds to `input` what has arrived, at most as much as `buffer` holds. False: the server sends no more.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let n_read = match retried(|| self.stream.read(buffer)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            result => result?,
        };
        let mut arrived = &buffer[..n_read];
        let Some(tls) = &mut self.tls else {
            self.input.extend_from_slice(arrived);
            return Ok(n_read > 0);
        };
        if arrived.is_empty() {
            // Without the end that TLS has, somebody else may have cut the answer.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !arrived.is_empty() {
            let n_taken = tls.read_tls(&mut arrived)?;
            let state = tls
                .process_new_packets()
                .map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))?;
            let n_before = self.input.len();
            self.input.resize(n_before + state.plaintext_bytes_to_read(), 0);
            tls.reader().read_exact(&mut self.input[n_before..])?;
            if state.peer_has_closed() || n_taken == 0 {
                return Ok(false);
            }
        }
        self.flush()?;
        Ok(true)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Repeats a system call that a signal has interrupted.
fn retried(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
