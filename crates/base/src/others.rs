//! Systems other than Linux.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{Pid, Uid};
use rustix::time::ClockId;

use crate::socket_owner::SocketOwner;

/// It goes on while a Mac is asleep (clock_gettime(3) there).
pub(crate) const SINCE_BOOT: ClockId = ClockId::Monotonic;

/// A socket that the programs that this process starts do not get.
///
/// # Errors
/// The system's.
pub fn new_socket(family: AddressFamily, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let socket = socket(family, kind, None)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket)
}

pub(crate) fn of_tcp(_: SocketAddr, _: SocketAddr) -> io::Result<Option<SocketOwner>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The process at the other end of a unix socket, and its user.
///
/// # Errors
/// The system does not say it.
pub fn of_peer(_: &UnixStream) -> io::Result<(Pid, Uid)> {
    Err(io::ErrorKind::Unsupported.into())
}
