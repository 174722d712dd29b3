//! The terminal on stdin, which posse and the driver have in turn.
//!
//! The driver's stdin is a pseudo-terminal in a session of its own. At first the driver is in the
//! background there, and posse has the terminal: Ctrl-C and Ctrl-Z go to posse. The system stops a
//! driver that reads its terminal or sets the modes (SIGTTIN, SIGTTOU), as it does with a shell's
//! background job. Then posse lends the terminal to the driver for good: every key goes to the driver,
//! Ctrl-C and Ctrl-Z too. A driver that never reads the terminal never gets it.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetsid, tcsetattr};

/// How long the keyboard's thread may take to stop reading: it may be writing to a driver that does
/// not read.
const PAUSE_TIMEOUT: Duration = Duration::from_millis(200);
/// Keys that are handed over at once, bytes.
const KEYS_BYTES: usize = 1 << 10;
/// Requests to the keyboard's thread.
const READ: u8 = b'r';
const PAUSE: u8 = b'p';

/// The terminal on stdin, and the thread that hands its keys to the driver. Dropping it restores the
/// modes.
#[derive(Debug)]
pub(super) struct Terminal {
    /// The modes before the driver had it.
    modes: Termios,
    /// The thread's requests and its answers. Closing it ends the thread.
    keyboard: UnixStream,
    is_lent: bool,
}

impl Terminal {
    /// `driver`: the keys' way to the driver.
    pub(super) fn start(modes: Termios, driver: OwnedFd) -> io::Result<Self> {
        let (keyboard, requests) = UnixStream::pair()?;
        keyboard.set_read_timeout(Some(PAUSE_TIMEOUT))?;
        thread::Builder::new()
            .name("keyboard".to_owned())
            .spawn(move || hand_over(&requests, &driver))?;
        Ok(Self { modes, keyboard, is_lent: false })
    }

    pub(super) fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// From now on all keys go to the driver.
    pub(super) fn lend(&mut self) -> io::Result<()> {
        let mut raw = self.modes.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        self.is_lent = true;
        (&self.keyboard).write_all(&[READ])
    }

    /// The driver was stopped or has ended.
    pub(super) fn take_back(&mut self) {
        if !std::mem::take(&mut self.is_lent) {
            return;
        }
        // Errors mean that the thread has ended, or that the terminal was closed.
        if (&self.keyboard).write_all(&[PAUSE]).is_ok() {
            let _ = (&self.keyboard).read(&mut [0]);
        }
        if is_foreground() {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.modes);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// The modes of the terminal on stdin. `None` if stdin is none, or if this process is in the
/// background.
pub(super) fn modes_of_stdin() -> Option<Termios> {
    tcgetattr(io::stdin()).ok().filter(|_| is_foreground())
}

/// The terminal on stdin, to write to.
pub(super) fn open() -> io::Result<File> {
    match File::options().read(true).write(true).open("/dev/tty") {
        Ok(terminal) => Ok(terminal),
        // It does not control this process.
        Err(_) => io::stdin().as_fd().try_clone_to_owned().map(File::from),
    }
}

/// True if `file` is the terminal on stdin.
pub(super) fn is_stdins(file: impl AsFd) -> bool {
    let device = |file| rustix::fs::fstat(file).ok().map(|stat| stat.st_rdev);
    // `/dev/tty` has a number of its own, whatever terminal it is.
    let session = |file| tcgetsid(file).ok();
    let (stdin, file) = (io::stdin(), file.as_fd());
    let (ours, is_terminal) = (stdin.as_fd(), file.is_terminal());
    is_terminal
        && (device(file) == device(ours)
            || session(file).is_some() && session(file) == session(ours))
}

/// True if this process is in the foreground process group of the terminal on stdin, or if that terminal
/// does not control this process: then there is no job control.
pub(super) fn is_foreground() -> bool {
    let foreground = tcgetpgrp(io::stdin());
    foreground.is_err() || foreground == Ok(getpgrp())
}

/// Copies keys to the driver when it is told to, until `requests` is closed.
fn hand_over(mut requests: &UnixStream, driver: &OwnedFd) {
    let stdin = io::stdin();
    let mut is_reading = false;
    loop {
        let mut fds = vec![PollFd::new(requests, PollFlags::IN)];
        if is_reading {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        if retry_on_intr(|| poll(&mut fds, None)).is_err() {
            return;
        }
        let mut is_ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let (has_request, has_keys) =
            (is_ready.next() == Some(true), is_ready.next() == Some(true));
        if has_request {
            let mut request = [0];
            match requests.read(&mut request) {
                Ok(1..) => is_reading = request == [READ],
                Ok(0) | Err(_) => return,
            }
            if !is_reading && requests.write_all(&request).is_err() {
                return;
            }
        } else if has_keys {
            is_reading = copy_keys(stdin.as_fd(), driver).is_ok();
        }
    }
}

fn copy_keys(stdin: impl AsFd, driver: &OwnedFd) -> rustix::io::Result<()> {
    let mut keys = [0; KEYS_BYTES];
    let n = retry_on_intr(|| rustix::io::read(&stdin, &mut keys))?;
    let mut rest = keys.get(..n).unwrap_or_default();
    if rest.is_empty() {
        // The terminal was closed.
        return Err(Errno::IO);
    }
    while !rest.is_empty() {
        let n = retry_on_intr(|| rustix::io::write(driver, rest))?;
        rest = rest.get(n..).unwrap_or_default();
    }
    Ok(())
}
