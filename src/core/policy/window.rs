//! Owns how many creates may be under way: few at first, more while the server keeps up, fewer and
//! later when it does not.

use crate::core::model::refusal::Refusal;
use crate::core::model::rng::Rng;
use crate::core::model::time::Millis;
use crate::core::policy::backoff::delay_ms;

const SIZE_INITIAL: u32 = 4;
const OVERLOAD_DELAY_INITIAL_MS: u64 = 100;
const OVERLOAD_DELAY_MAX_MS: u64 = 30_000;

/// The create window. Starts at 4, grows by one a success (so doubles a round trip), halves at most
/// once a round trip on overload.
#[derive(Clone, Debug)]
pub struct Window {
    size: u32,
    size_max: u32,
    in_flight: u32,
    failures: u32,
    shrunk_at: Option<Millis>,
    closed_until: Millis,
}

impl Window {
    /// A window that never grows beyond `size_max` (at least 1).
    #[must_use]
    pub fn new(size_max: u32) -> Self {
        let size_max = size_max.max(1);
        Self {
            size: SIZE_INITIAL.min(size_max),
            size_max,
            in_flight: 0,
            failures: 0,
            shrunk_at: None,
            closed_until: Millis::ZERO,
        }
    }

    /// How many more may be sent now.
    #[must_use]
    pub fn room(&self, now: Millis) -> u32 {
        if self.closed_until > now { 0 } else { self.size.saturating_sub(self.in_flight) }
    }

    /// Until when nothing may be sent, where that is in the future.
    #[must_use]
    pub fn closed_until(&self, now: Millis) -> Option<Millis> {
        (self.closed_until > now).then_some(self.closed_until)
    }

    /// How many are under way.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// One was sent.
    pub fn on_sent(&mut self) {
        self.in_flight += 1;
    }

    /// One was answered, and the server kept up (whatever it answered).
    pub fn on_answered(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.failures = 0;
        self.size = (self.size + 1).min(self.size_max);
    }

    /// One was sent at `sent_at`, and the answer shows overload.
    pub fn on_overload(&mut self, sent_at: Millis, refusal: &Refusal, now: Millis, rng: &mut Rng) {
        self.in_flight = self.in_flight.saturating_sub(1);
        // What was sent before the last halving says nothing about the smaller window.
        if self.shrunk_at.is_none_or(|at| sent_at >= at) {
            self.size = (self.size / 2).max(1);
            self.shrunk_at = Some(now);
            self.failures = self.failures.saturating_add(1);
            let delay =
                delay_ms(self.failures, OVERLOAD_DELAY_INITIAL_MS, OVERLOAD_DELAY_MAX_MS, rng);
            self.closed_until = self.closed_until.max(now.after(delay));
        }
        if let Some(ms) = refusal.retry_after_ms {
            self.closed_until = self.closed_until.max(now.after(ms));
        }
    }
}
