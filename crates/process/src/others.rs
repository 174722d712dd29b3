//! Systems other than Linux.

use std::io;
use std::path::PathBuf;

use rustix::net::RecvFlags;

/// There are no supervisors.
pub(crate) const RECEIVE: RecvFlags = RecvFlags::empty();

/// This program, unless its file was replaced.
pub fn this_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Nothing does it.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
