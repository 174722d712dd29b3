//! When the credentials of one entry are renewed: decided from the last renewal, its expiry and the
//! failures since. The thread in `run/credentials/` runs the command.

use posse_base::backoff;
use posse_base::rng::Rng;
use posse_base::time::Millis;

/// The shortest wait after a failure, and the longest, in milliseconds. The jitter at most doubles
/// both, so the longest wait is 5 min.
const RETRY_MS: u64 = 1_000;
const RETRY_MS_MAX: u64 = 150_000;
/// The part of their lifetime after which credentials are renewed, in thousandths.
const LIFETIME_PERMILLE: u64 = 800;
/// The shortest time between two renewals that succeed, in milliseconds.
const PAUSE_MS_MIN: u64 = 1_000;

/// The schedule of one entry.
#[derive(Clone, Debug)]
pub struct RenewalSchedule {
    /// None: the expiry alone decides.
    every_ms: Option<u64>,
    n_failures: u32,
    due: Millis,
    /// When the credentials of the last renewal expire; none if that is not known.
    expires: Option<Millis>,
    rng: Rng,
}

impl RenewalSchedule {
    /// The first renewal is due at once.
    pub fn new(every_ms: Option<u64>, rng: Rng) -> Self {
        Self { every_ms, n_failures: 0, due: Millis::ZERO, expires: None, rng }
    }

    /// When the command has to run next.
    pub fn due(&self) -> Millis {
        self.due
    }

    /// A renewal that began at `began` has succeeded at `now`. Returns when the next one is due.
    pub fn on_renewed(&mut self, began: Millis, now: Millis, expires: Option<Millis>) -> Millis {
        (self.n_failures, self.expires) = (0, expires);
        let of_lifetime = expires.map(|at| at.since(began) / 1_000 * LIFETIME_PERMILLE);
        let wait_ms = [self.every_ms, of_lifetime].into_iter().flatten().min();
        let due = began.after(wait_ms.unwrap_or(u64::MAX));
        self.due = due.max(now.after(PAUSE_MS_MIN));
        self.due
    }

    /// A renewal has failed at `now`. Returns when the next one is due: not after the expiry of the
    /// credentials that are still valid.
    pub fn on_failed(&mut self, now: Millis) -> Millis {
        self.n_failures = self.n_failures.saturating_add(1);
        let delay = backoff::delay_ms(self.n_failures, RETRY_MS, RETRY_MS_MAX, &mut self.rng);
        let due = now.after(delay);
        let expiry = self.expires.filter(|at| *at > now);
        self.due = expiry.map_or(due, |at| due.min(at));
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn schedule(every_ms: Option<u64>) -> RenewalSchedule {
        RenewalSchedule::new(every_ms, Rng::new(1))
    }

    #[test]
    fn the_earlier_of_interval_and_lifetime_decides() {
        let (began, now) = (Millis(10_000), Millis(12_000));
        for (every_ms, lifetime_ms, want) in [
            (Some(HOUR_MS), None, 10_000 + HOUR_MS),
            (None, Some(20_000), 10_000 + 16_000),
            (Some(HOUR_MS), Some(20_000), 10_000 + 16_000),
            (Some(5_000), Some(20_000), 10_000 + 5_000),
            // The command took longer than the interval, or the lifetime is very short.
            (Some(1_000), None, 12_000 + PAUSE_MS_MIN),
            (None, Some(2_100), 12_000 + PAUSE_MS_MIN),
            (None, None, u64::MAX),
        ] {
            let mut schedule = schedule(every_ms);
            assert_eq!(schedule.due(), Millis::ZERO, "the first renewal is due at once");
            let expires = lifetime_ms.map(|ms| began.after(ms));
            assert_eq!(schedule.on_renewed(began, now, expires), Millis(want), "{every_ms:?}");
            assert_eq!(schedule.due(), Millis(want));
        }
    }

    #[test]
    fn failures_are_retried_with_a_backoff_that_a_success_ends() {
        let mut schedule = schedule(Some(HOUR_MS));
        let now = Millis(0);
        for (low, high) in
            [(1_000, 2_000), (2_000, 4_000), (4_000, 8_000), (8_000, 16_000), (16_000, 32_000)]
        {
            let due = schedule.on_failed(now).0;
            assert!((low..high).contains(&due), "{due} is not within {low} and {high}");
        }
        for _ in 0..100 {
            assert!(schedule.on_failed(now).0 < 300_000);
        }
        schedule.on_renewed(now, now, None);
        assert!(schedule.on_failed(now).0 < 2_000, "the backoff begins anew");
    }

    #[test]
    fn a_retry_does_not_wait_beyond_the_expiry() {
        let mut schedule = schedule(None);
        schedule.on_renewed(Millis(0), Millis(0), Some(Millis(20_000)));
        for _ in 0..20 {
            assert!(schedule.on_failed(Millis(16_000)) <= Millis(20_000));
        }
        // They have expired: only the backoff counts.
        assert!(schedule.on_failed(Millis(20_000)) > Millis(100_000));
    }
}
