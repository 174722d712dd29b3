//! The create window: limits the create requests in flight, as TCP congestion control limits
//! packets.

use crate::model::refusal::Refusal;
use posse_base::backoff::delay_ms;
use posse_base::rng::Rng;
use posse_base::time::Millis;

const SIZE_INITIAL: u32 = 4;
const OVERLOAD_DELAY_INITIAL_MS: u64 = 100;
const OVERLOAD_DELAY_MAX_MS: u64 = 30_000;

/// Starts at 4, grows by one with each success (so doubles each round trip), and halves at most
/// once each round trip on overload.
#[derive(Clone, Debug)]
pub struct Window {
    size: u32,
    size_max: u32,
    in_flight: u32,
    failures: u32,
    shrunk_at: Option<Millis>,
    closed_until: Millis,
    /// The message of the last overload.
    message: String,
}

impl Window {
    /// A window of at most `size_max` (at least 1).
    pub fn new(size_max: u32) -> Self {
        let size_max = size_max.max(1);
        Self {
            size: SIZE_INITIAL.min(size_max),
            size_max,
            in_flight: 0,
            failures: 0,
            shrunk_at: None,
            closed_until: Millis::ZERO,
            message: String::new(),
        }
    }

    /// How many more requests may be sent now.
    pub fn available(&self, now: Millis) -> u32 {
        if self.closed_until > now { 0 } else { self.size.saturating_sub(self.in_flight) }
    }

    /// Until when nothing may be sent, if that is in the future.
    pub fn closed_until(&self, now: Millis) -> Option<Millis> {
        (self.closed_until > now).then_some(self.closed_until)
    }

    /// The message of the last overload; none after an answer without a sign of overload.
    pub fn overload(&self) -> Option<&str> {
        (self.failures > 0).then_some(self.message.as_str())
    }

    /// The number of requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A create, or the GET that settles one, was sent.
    pub fn on_sent(&mut self) {
        self.in_flight += 1;
    }

    /// A request was answered, by success or refusal, without a sign of overload.
    pub fn on_answered(&mut self) {
        self.take_answer();
        self.failures = 0;
        self.size = (self.size + 1).min(self.size_max);
    }

    /// A request failed for a reason that is no sign of overload, and no sign of capacity either.
    pub fn on_failed(&mut self) {
        self.take_answer();
    }

    pub fn check(&self) {
        debug_assert!((1..=self.size_max).contains(&self.size), "a window of {}", self.size);
        debug_assert!(self.in_flight <= self.size_max, "{} are in flight", self.in_flight);
    }

    fn take_answer(&mut self) {
        debug_assert!(self.in_flight > 0, "an answer without a request");
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A request that was sent at `sent_at` failed because of overload.
    pub fn on_overload(&mut self, sent_at: Millis, refusal: &Refusal, now: Millis, rng: &mut Rng) {
        self.take_answer();
        self.message = refusal.to_string();
        // Requests that were sent before the last halving prove nothing about the smaller window.
        if self.shrunk_at.is_none_or(|at| sent_at >= at) {
            self.size = (self.size / 2).max(1);
            self.shrunk_at = Some(now);
            self.failures = self.failures.saturating_add(1);
            let delay =
                delay_ms(self.failures, OVERLOAD_DELAY_INITIAL_MS, OVERLOAD_DELAY_MAX_MS, rng);
            self.closed_until = self.closed_until.max(now.after(delay));
        }
        self.closed_until = self.closed_until.max(now.after(refusal.retry_delay_ms()));
    }
}
