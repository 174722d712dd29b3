//! Opens pseudo-terminals.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

/// A new one: this process's end, and the one for a program.
pub(super) fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let pty = openpt(flags)?;
    grantpt(&pty)?;
    unlockpt(&pty)?;
    let program_end = ioctl_tiocgptpeer(&pty, flags)?;
    Ok((pty, program_end))
}
