//! Owns how long a client tries again: for as long as something moves, and for a time without.

use std::thread;
use std::time::{Duration, Instant};

use crate::core::backoff::delay_ms;
use crate::core::rng::Rng;

const DELAY_MS: u64 = 300;
const DELAY_MS_MAX: u64 = 10_000;

/// The tries of one transfer.
#[derive(Debug)]
pub(super) struct Tries {
    /// Without progress it is given up after so long.
    timeout: Duration,
    moved: Instant,
    n_failures: u32,
    rng: Rng,
}

impl Tries {
    pub(super) fn new(timeout: Duration) -> Self {
        // Many pods that start at once are not to try again at once.
        let rng = Rng::new(u64::from(std::process::id()));
        Self { timeout, moved: Instant::now(), n_failures: 0, rng }
    }

    /// Something came through.
    pub(super) fn progress(&mut self) {
        self.moved = Instant::now();
        self.n_failures = 0;
    }

    /// Waits until it is time for another try. Gives `why` back where there is to be none.
    pub(super) fn again(&mut self, why: String, asked: Option<Duration>) -> Result<(), String> {
        self.n_failures += 1;
        let delay =
            Duration::from_millis(delay_ms(self.n_failures, DELAY_MS, DELAY_MS_MAX, &mut self.rng));
        let delay = asked.unwrap_or(delay).min(Duration::from_millis(2 * DELAY_MS_MAX));
        if self.moved.elapsed() + delay > self.timeout {
            return Err(format!("{why}; given up after {} tries", self.n_failures));
        }
        log::warn!("{why}; again in {:.1} s", delay.as_secs_f32());
        thread::sleep(delay);
        Ok(())
    }
}

/// True for an answer that says no more than: not now.
pub(super) fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}
