//! Threads that are joined with a deadline, because a thread that waits for an unresponsive server must
//! not delay the end of the process.

use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

/// A thread that can be joined with a deadline.
#[derive(Debug)]
pub struct Worker {
    name: &'static str,
    thread: JoinHandle<()>,
    /// Closed by the thread when it ends.
    ended: Receiver<()>,
}

impl Worker {
    /// Starts a thread that runs `body` on a stack of `stack_bytes`.
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

    /// The thread's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Waits until the thread ends, or until `deadline`. False: the thread still runs, or it panicked.
    #[must_use]
    pub fn join_by(self, deadline: Instant) -> bool {
        if self.ended.recv_deadline(deadline) == Err(RecvTimeoutError::Timeout) {
            log::debug!("thread {} still waits for an answer, not waiting for it", self.name);
            return false;
        }
        // A panic has been printed already.
        self.thread.join().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn join_waits_until_the_end_or_the_deadline() {
        let (release, held) = bounded::<()>(0);
        let stuck = Worker::start("stuck", 64 << 10, move || {
            let _ = held.recv();
        })
        .unwrap();
        let quick = Worker::start("quick", 64 << 10, || {}).unwrap();
        assert!(quick.join_by(Instant::now() + Duration::from_secs(120)));
        assert!(!stuck.join_by(Instant::now()));
        drop(release);
    }
}
