//! Locks. The threads that `crates/schedules` compiles a second time have those of shuttle there, and do without this.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value that each statement leaves consistent: it is safe to use after a panic of another thread.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
