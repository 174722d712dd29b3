//! A connection after `101 Switching Protocols`: bytes in both directions without HTTP.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::socket::Socket;

/// The connection of an upgraded request. Dropping it ends the connection.
#[derive(Debug)]
pub struct Upgraded {
    pub(super) socket: Arc<Socket>,
    pub(super) write_timeout: Duration,
}

impl io::Read for Upgraded {
    /// Reads what has arrived; `WouldBlock` if there is nothing. 0 is the end of the stream.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.read_now(buffer)
    }
}

impl io::Write for Upgraded {
    /// Writes everything, within the server's time limit for a response.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The connection may last for days, so each write has a pace of its own.
        self.socket.start_pace(self.write_timeout);
        self.socket.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Upgraded {
    /// Readable if `read` may return something. Read until `WouldBlock` before waiting for it: TLS
    /// may hold bytes that the file does not show.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
