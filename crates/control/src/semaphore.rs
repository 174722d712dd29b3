//! Limits the calls that take long, so that they cannot use all connections.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use posse_base::sync::lock;

/// Gives out a limited number of permits.
#[derive(Debug)]
pub(super) struct Semaphore {
    n_max: usize,
    n_used: Mutex<usize>,
    released: Condvar,
}

impl Semaphore {
    pub(super) fn new(n_max: usize) -> Self {
        Self { n_max, n_used: Mutex::default(), released: Condvar::new() }
    }

    pub(super) fn try_acquire(&self) -> Option<Permit<'_>> {
        let mut n_used = lock(&self.n_used);
        if *n_used >= self.n_max {
            return None;
        }
        *n_used += 1;
        Some(Permit(self))
    }

    /// Waits until all permits are released, at most for `wait`.
    pub(super) fn wait_until_free(&self, wait: Duration) {
        let n_used = lock(&self.n_used);
        // After a time-out, the server's stop cuts the remaining connections.
        let _ = self.released.wait_timeout_while(n_used, wait, |n_used| *n_used > 0);
    }
}

/// A permit of a `Semaphore`, released when dropped.
pub(super) struct Permit<'a>(&'a Semaphore);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *lock(&self.0.n_used) -= 1;
        self.0.released.notify_all();
    }
}
