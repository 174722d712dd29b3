//! The processes of runs on this host: there are none, because `posse run` needs Linux.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) fn folder_of(_: &Path) -> io::Result<PathBuf> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The process of a run on this host.
#[derive(Debug)]
pub struct RunProcess(Infallible);

impl RunProcess {
    /// The process that listens on a socket.
    ///
    /// # Errors
    /// Always.
    pub fn at(_: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends SIGTERM, by which a run ends in order.
    ///
    /// # Errors
    /// The process has ended, or is another user's.
    pub fn terminate(&self) -> io::Result<()> {
        match self.0 {}
    }

    /// Waits for its end; false: it still runs at the limit.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn wait(&self, _: Duration) -> io::Result<bool> {
        match self.0 {}
    }
}
