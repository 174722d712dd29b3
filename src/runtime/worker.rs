//! Owns the waiting for threads to end: for so long and no longer, since one that waits for a server
//! which never answers must not hold up the end of the process.

use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

/// A thread whose end can be waited for with a deadline.
#[derive(Debug)]
pub struct Worker {
    name: &'static str,
    thread: JoinHandle<()>,
    /// Closed when the thread ends.
    ended: Receiver<()>,
}

impl Worker {
    /// Starts `body`, with a stack of `stack_bytes`.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn start(
        name: &'static str,
        stack_bytes: usize,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (alive, ended): (Sender<()>, _) = bounded(0);
        let thread =
            Builder::new().name(name.to_owned()).stack_size(stack_bytes).spawn(move || {
                body();
                drop(alive);
            })?;
        Ok(Self { name, thread, ended })
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Waits for its end, at most until `deadline`; false where it is left to the process's end.
    #[must_use]
    pub fn join_by(self, deadline: Instant) -> bool {
        if self.ended.recv_deadline(deadline) == Err(RecvTimeoutError::Timeout) {
            log::debug!("thread {} is left behind, waiting for an answer", self.name);
            return false;
        }
        // A panic has been printed; there is nothing to add to it here.
        self.thread.join().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn waits_for_those_that_end_and_leaves_those_that_do_not() {
        let (release, held) = bounded::<()>(0);
        let stuck = Worker::start("stuck", 64 << 10, move || {
            let _ = held.recv();
        })
        .unwrap();
        let quick = Worker::start("quick", 64 << 10, || {}).unwrap();
        assert!(quick.join_by(Instant::now() + Duration::from_secs(10)));
        assert!(!stuck.join_by(Instant::now()));
        drop(release);
    }
}
