//! What Linux alone has.

use std::io;
use std::path::PathBuf;

use rustix::net::RecvFlags;
use rustix::process::{getpid, set_child_subreaper};

/// Programs do not get the files that a supervisor receives for another one.
pub(crate) const RECEIVE: RecvFlags = RecvFlags::CMSG_CLOEXEC;

/// This program, also if its file was replaced or removed.
pub fn this_program() -> io::Result<PathBuf> {
    Ok("/proc/self/exe".into())
}

/// Descendants whose parents end become children of this process.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    // `killall -9 posse` must not find it: it ends the programs when posse is gone.
    Ok(rustix::thread::set_name(c"supervisor")?)
}
