//! What Linux alone has.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
    sockopt,
};
use rustix::process::{Pid, Uid};
use rustix::time::ClockId;

use crate::socket_owner::SocketOwner;

/// The clock of `Instant` stands still while the host is suspended.
pub(crate) const SINCE_BOOT: ClockId = ClockId::Boottime;

/// The numbers of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
const REQUEST_BYTES: u32 = 16 + 56;
/// Where `struct inet_diag_msg` has `idiag_uid` and `idiag_inode`, after `struct nlmsghdr`.
const UID_AT: usize = 16 + 64;
const INODE_AT: usize = 16 + 68;
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// A socket that the programs that this process starts do not get.
///
/// # Errors
/// The system's.
pub fn new_socket(family: AddressFamily, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    socket_with(family, kind, SocketFlags::CLOEXEC, None)
}

/// By sock_diag(7), which answers every user. One question costs some microseconds, however many sockets there are;
/// /proc/net/tcp lists all of them.
pub(crate) fn of_tcp(this: SocketAddr, other: SocketAddr) -> io::Result<Option<SocketOwner>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    sendto(&socket, &request(this, other), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; ANSWER_BYTES_MAX];
    // The kernel has answered when the request is sent.
    let (_, n) = recv(&socket, &mut answer, RecvFlags::DONTWAIT)?;
    parse(answer.get(..n).unwrap_or_default())
}

/// The process at the other end of a unix socket, and its user.
///
/// # Errors
/// The system does not say it.
pub fn of_peer(stream: &UnixStream) -> io::Result<(Pid, Uid)> {
    let peer = sockopt::socket_peercred(stream)?;
    Ok((peer.pid, peer.uid))
}

fn request(this: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(REQUEST_BYTES as usize);
    bytes.extend(REQUEST_BYTES.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    // The sequence number and the sender.
    bytes.extend([0; 8]);
    let family = if this.ip().to_canonical().is_ipv4() { AF_INET } else { AF_INET6 };
    bytes.extend([family, IPPROTO_TCP, 0, 0]);
    // In all states.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(this.port().to_be_bytes());
    bytes.extend(other.port().to_be_bytes());
    for end in [this, other] {
        let mut address = [0; 16];
        match end.ip().to_canonical() {
            IpAddr::V4(ip) => address[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => address = ip.octets(),
        }
        bytes.extend(address);
    }
    // Any interface, and no cookie.
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend([0xff; 8]);
    bytes
}

fn parse(answer: &[u8]) -> io::Result<Option<SocketOwner>> {
    let number = |at: usize| {
        let bytes = answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    };
    // The rest of the word is `nlmsg_flags`.
    let [a, b, ..] = number(4)?.to_ne_bytes();
    match u16::from_ne_bytes([a, b]) {
        SOCK_DIAG_BY_FAMILY => {
            Ok(Some(SocketOwner { uid: number(UID_AT)?, inode: number(INODE_AT)? }))
        }
        NLMSG_ERROR => match Errno::from_raw_os_error(number(16)?.wrapping_neg().cast_signed()) {
            // Also what a kernel without this protocol says.
            Errno::NOENT => Ok(None),
            error => Err(error.into()),
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;
    use crate::socket_owner::{of_end, of_listener};

    fn inode(file: impl AsFd) -> u32 {
        u32::try_from(rustix::fs::fstat(file).unwrap().st_ino).unwrap()
    }

    #[test]
    fn a_listener_is_found_as_a_connection_finds_it() {
        let uid = rustix::process::geteuid().as_raw();
        for (bound, asked) in [
            ("127.66.0.1:0", "127.66.0.1"),
            ("0.0.0.0:0", "127.66.0.2"),
            ("[::1]:0", "::1"),
            ("[::]:0", "::1"),
            // A socket of IPv6 takes connections of IPv4, too.
            ("[::]:0", "127.66.0.3"),
        ] {
            let Ok(listener) = TcpListener::bind(bound) else {
                assert!(bound.starts_with('['), "there may be no IPv6, but not {bound}");
                continue;
            };
            let address =
                SocketAddr::new(asked.parse().unwrap(), listener.local_addr().unwrap().port());
            let want = SocketOwner { uid, inode: inode(&listener) };
            assert_eq!(of_listener(address).unwrap(), Some(want), "{bound} {asked}");
            drop(listener);
            assert_eq!(of_listener(address).unwrap(), None, "{bound} {asked}");
        }
    }

    #[test]
    fn the_client_of_a_connection_is_found() {
        let listener = TcpListener::bind("127.66.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, theirs) = listener.accept().unwrap();
        let want = SocketOwner { uid: rustix::process::geteuid().as_raw(), inode: inode(&client) };
        assert_eq!(of_end(theirs, ours.local_addr().unwrap()).unwrap(), Some(want));
    }

    #[test]
    fn no_bytes_of_an_answer_are_taken_for_another_one() {
        let mut answer = vec![0; 124];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer[UID_AT..UID_AT + 4].copy_from_slice(&7_u32.to_ne_bytes());
        answer[INODE_AT..INODE_AT + 4].copy_from_slice(&9_u32.to_ne_bytes());
        assert_eq!(parse(&answer).unwrap(), Some(SocketOwner { uid: 7, inode: 9 }));
        assert!(parse(&answer[..INODE_AT]).is_err() && parse(&[]).is_err(), "cut");
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        answer[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert!(parse(&answer).is_err(), "EPERM");
        answer[4..6].copy_from_slice(&3_u16.to_ne_bytes());
        assert!(parse(&answer).is_err(), "another message");
    }
}
