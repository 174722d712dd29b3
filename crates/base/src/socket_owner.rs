//! Who has a TCP socket of this machine, as far as its kernel tells.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::system;

/// The user and the number of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOwner {
    pub uid: u32,
    /// As in the links of /proc/PID/fd: `socket:[INODE]`.
    pub inode: u32,
}

/// The owner of the socket to which a connection to this address of this machine goes. `None`: nobody listens
/// there.
///
/// # Errors
/// The kernel does not say it.
pub fn of_listener(address: SocketAddr) -> io::Result<Option<SocketOwner>> {
    let any: IpAddr = match address.ip().to_canonical() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    system::of_tcp(address, SocketAddr::new(any, 0))
}

/// The owner of the socket at this end of a connection, if that end is of this machine.
///
/// # Errors
/// The kernel does not say it.
pub fn of_end(this: SocketAddr, other: SocketAddr) -> io::Result<Option<SocketOwner>> {
    system::of_tcp(this, other)
}
