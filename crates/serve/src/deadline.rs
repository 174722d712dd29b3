//! Ends a read or write of a socket at a point in time.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// The socket option treats zero as no timeout.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Limits the next system call of this kind on a socket.
///
/// # Errors
/// The deadline is over (`TimedOut`), or the system refuses the limit.
pub(super) fn set_deadline(socket: impl AsFd, kind: Timeout, deadline: Instant) -> io::Result<()> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(set_socket_timeout(socket, kind, Some(remaining.max(TIMEOUT_MIN)))?)
}
