//! Retries of requests by threads that may wait. `posse_core::machines::retry` decides.

use std::hash::{BuildHasher as _, RandomState};
use std::thread;
use std::time::{Duration, Instant};

use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::machines::retry::{Retry, RetryLimit, RetryRule};
use posse_core::model::refusal::Refusal;

/// For one request of a command: a person waits for it.
const RULE: RetryRule =
    RetryRule { delay_ms: 1_000, delay_ms_max: 4_000, limit: RetryLimit::Failures(5) };

/// The tries of one request.
#[derive(Debug)]
pub struct Retries {
    retry: Retry,
    began: Instant,
}

impl Retries {
    pub fn new(rule: RetryRule) -> Self {
        // A process id is no seed: in containers that start together it is the same.
        let rng = Rng::new(RandomState::new().hash_one(0));
        Self { retry: Retry::new(rule, Millis::ZERO, rng), began: Instant::now() }
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Failures in a row.
    pub fn n_failures(&self) -> u32 {
        self.retry.n_failures()
    }

    /// It succeeded or went on: the next failure counts as the first one.
    pub fn on_success(&mut self) {
        self.retry.on_success(self.now());
    }

    /// It failed. Gives the wait before the next try, `None` to give up.
    pub fn on_failure(&mut self, retry_after_ms: Option<u64>) -> Option<Duration> {
        let now = self.now();
        let next = self.retry.on_failure(now, retry_after_ms)?;
        Some(Duration::from_millis(next.since(now)))
    }

    /// It failed. Waits before the next try; false to give up.
    pub fn wait(&mut self, retry_after_ms: Option<u64>) -> bool {
        let delay = self.on_failure(retry_after_ms);
        delay.map(thread::sleep).is_some()
    }
}

/// Repeats a request that the server did not accept now, or whose outcome is unknown.
///
/// # Errors
/// The last refusal.
pub fn with_retries<T>(request: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
    with_retries_if(|refusal| refusal.class.is_temporary(), request)
}

/// Repeats a request after the refusals that `is_temporary` accepts.
///
/// # Errors
/// The last refusal.
pub fn with_retries_if<T>(
    is_temporary: impl Fn(&Refusal) -> bool,
    mut request: impl FnMut() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let mut retries = Retries::new(RULE);
    loop {
        match request() {
            Err(refusal) if is_temporary(&refusal) && retries.wait(refusal.retry_after_ms) => {}
            result => return result,
        }
    }
}
