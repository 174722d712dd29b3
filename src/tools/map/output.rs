//! What the lines of `posse map` have written.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use crate::terminal::with_log_output;
use posse_base::sync::lock;
use posse_kube::api::objects::Objects;
use posse_submit::listener::FollowEvent;
use posse_submit::logs::LogFollower;

/// Prints outputs that are read side by side.
#[derive(Default)]
pub(super) struct Printer {
    /// The number of the line whose output is in the middle of a line: a log comes in pieces.
    unfinished: Mutex<Option<u64>>,
    finished: Condvar,
    n_unread: AtomicU64,
}

impl Printer {
    /// Prints what the executor of a line has written, each line with the number in front.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn print(&self, line: u64, pod: &str, objects: &Objects) -> io::Result<()> {
        let failed = OnceLock::new();
        let print = |event: FollowEvent| {
            let FollowEvent::Log(bytes) = event else { return true };
            match self.write(line, &bytes) {
                Ok(()) => true,
                Err(error) => {
                    // The first one says why.
                    let _ = failed.set(error);
                    false
                }
            }
        };
        let objects = objects.clone();
        let is_ended = &AtomicBool::new(false);
        let is_read =
            LogFollower { objects, listener: &print, tail: None, is_ended, is_over: &|| false }
                .read_once(pod);
        if !self.is_at_line_start(line) {
            print(FollowEvent::Log(b"\n".to_vec()));
        }
        match failed.into_inner() {
            Some(error) => return Err(error),
            None if is_read => {}
            None => {
                self.n_unread.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// How many outputs could not be read to their end.
    pub(super) fn n_unread(&self) -> u64 {
        self.n_unread.load(Ordering::Relaxed)
    }

    fn is_at_line_start(&self, line: u64) -> bool {
        *lock(&self.unfinished) != Some(line)
    }

    /// Writes a line, or a piece of one. Waits until the line that another output has begun is finished.
    fn write(&self, line: u64, bytes: &[u8]) -> io::Result<()> {
        let unfinished = lock(&self.unfinished);
        let of_another = |of: &mut Option<u64>| of.is_some_and(|of| of != line);
        let waited = self.finished.wait_while(unfinished, of_another);
        let mut unfinished = waited.unwrap_or_else(PoisonError::into_inner);
        let prefix = if unfinished.is_none() { format!("[{line}] ") } else { String::new() };
        *unfinished = (!bytes.ends_with(b"\n")).then_some(line);
        if unfinished.is_none() {
            self.finished.notify_all();
        }
        with_log_output(&mut io::stdout().lock(), false, |out| {
            out.write_all(prefix.as_bytes())?;
            out.write_all(bytes)?;
            out.flush()
        })
    }
}
