//! The pseudo-terminal of a driver that can read the terminal, and the copy of its output.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::termios::{OptionalActions, Termios, Winsize, tcgetwinsize, tcsetattr, tcsetwinsize};

use crate::driver::pty;

/// How long the driver's last output is awaited, if processes that it left behind could still write.
const LAST_OUTPUT: Duration = Duration::from_millis(200);
/// The copied pieces, bytes.
const PIECE_BYTES: usize = 4 << 10;

/// A driver's pseudo-terminal, whose output a thread copies until nobody can write to it any more.
#[derive(Debug)]
pub(super) struct Relay {
    pty: OwnedFd,
    terminal: Arc<File>,
    /// Closed at the end.
    is_over: Receiver<()>,
}

impl Relay {
    /// Starts copying to this terminal, which has these modes. Also returns the end for the driver, which this
    /// process has to close after the driver's start.
    pub(super) fn start(terminal: File, modes: &Termios) -> io::Result<(Self, OwnedFd)> {
        let (pty, driver_end) = pty::open()?;
        tcsetattr(&driver_end, OptionalActions::Now, modes)?;
        let (sender, is_over) = bounded(0);
        let terminal = Arc::new(terminal);
        let (from, to) = (File::from(pty.try_clone()?), Arc::clone(&terminal));
        thread::Builder::new()
            .name("driver-output".to_owned())
            .spawn(move || copy(from, &to, sender))?;
        let relay = Self { pty, terminal, is_over };
        relay.update_size();
        Ok((relay, driver_end))
    }

    /// The way for keys to the driver.
    pub(super) fn keys(&self) -> io::Result<OwnedFd> {
        self.pty.try_clone()
    }

    /// Takes over the size of the window. True if it has changed.
    pub(super) fn update_size(&self) -> bool {
        let cells = |size: &Winsize| (size.ws_col, size.ws_row);
        // Errors mean that the window was closed.
        let (Ok(size), Ok(before)) = (tcgetwinsize(&*self.terminal), tcgetwinsize(&self.pty))
        else {
            return false;
        };
        cells(&size) != cells(&before) && tcsetwinsize(&self.pty, size).is_ok()
    }

    /// Waits until the output of a driver that has ended is on the terminal.
    pub(super) fn finish(&self) {
        // Closed: everything is copied.
        let _ = self.is_over.recv_timeout(LAST_OUTPUT);
    }
}

fn copy(mut from: File, mut to: &File, _is_over: Sender<()>) {
    let mut piece = [0; PIECE_BYTES];
    loop {
        match from.read(&mut piece) {
            // EIO: the last process with the other end has closed it.
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
            Err(_) => {}
            Ok(n) => {
                // The terminal's errors must not stop the driver.
                let _ = to.write_all(piece.get(..n).unwrap_or_default());
            }
        }
    }
}
