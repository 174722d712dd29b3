//! Retries of requests.

use std::thread;
use std::time::Duration;

use crate::core::model::refusal::{Refusal, RefusalClass};

/// How often a request is sent at most.
const TRIES_MAX: u32 = 5;
/// The wait between two attempts if the server sends no `Retry-After`, and the longest wait that
/// `Retry-After` can cause.
const WAIT_MS: u64 = 1_000;
const WAIT_MS_MAX: u64 = 10_000;

/// Repeats a request that the server did not accept now, or whose outcome is unknown.
///
/// # Errors
/// The last refusal.
pub fn with_retries<T>(mut request: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
    let mut n_tries = 1;
    loop {
        match request() {
            Err(refusal)
                if matches!(
                    refusal.class,
                    RefusalClass::Throttled
                        | RefusalClass::Transient
                        | RefusalClass::OutcomeUnknown
                ) && n_tries < TRIES_MAX =>
            {
                let wait_ms = refusal.retry_after_ms.unwrap_or(WAIT_MS).min(WAIT_MS_MAX);
                thread::park_timeout(Duration::from_millis(wait_ms));
                n_tries += 1;
            }
            result => return result,
        }
    }
}
