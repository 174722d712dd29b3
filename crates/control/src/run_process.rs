//! The processes of runs on this host.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::address::connect_unix;
use posse_base::system::of_peer;

/// How long a run may take to accept a connection.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The folder of the process that listens on a socket.
pub(crate) fn folder_of(socket: &Path) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{}/cwd", listener_of(socket)?.as_raw_nonzero()))
}

/// The process of a run on this host.
#[derive(Debug)]
pub struct RunProcess {
    /// Unlike the process's number, it never means another process.
    handle: OwnedFd,
}

impl RunProcess {
    /// The process that listens on a socket.
    ///
    /// # Errors
    /// Nobody listens there, or the kernel has no handles for processes (before Linux 5.3).
    pub fn at(socket: &Path) -> io::Result<Self> {
        let first = listener_of(socket)?;
        let handle = pidfd_open(first, PidfdFlags::empty())?;
        // If it has ended before it was opened, another process may have its number.
        match listener_of(socket)? == first {
            true => Ok(Self { handle }),
            false => Err(io::Error::other("another process has taken the socket")),
        }
    }

    /// Sends SIGTERM, by which a run ends in order.
    ///
    /// # Errors
    /// The process has ended, or is another user's.
    pub fn terminate(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.handle, Signal::TERM)?)
    }

    /// Waits for its end; false: it still runs at the limit.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut ended = [PollFd::new(&self.handle, PollFlags::IN)];
            match poll(&mut ended, Some(&left)) {
                // The signal was for this process.
                Err(Errno::INTR) => {}
                other => return Ok(other? > 0),
            }
        }
    }
}

fn listener_of(socket: &Path) -> io::Result<Pid> {
    let stream = connect_unix(socket, TIMEOUT)?;
    Ok(of_peer(&stream)?.0)
}
