//! Limits the calls that take long, so that they cannot use all connections.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

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
        let mut n_used = self.n_used.lock().unwrap_or_else(PoisonError::into_inner);
        if *n_used >= self.n_max {
            return None;
        }
        *n_used += 1;
        Some(Permit(self))
    }

    /// Waits until all permits are released, at most for `wait`.
    pub(super) fn wait_until_free(&self, wait: Duration) {
        let n_used = self.n_used.lock().unwrap_or_else(PoisonError::into_inner);
        // After a time-out, the server's stop cuts the remaining connections.
        let _ = self.released.wait_timeout_while(n_used, wait, |n_used| *n_used > 0);
    }
}

/// A permit of a `Semaphore`, released when dropped.
pub(super) struct Permit<'a>(&'a Semaphore);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.n_used.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.released.notify_all();
    }
}
