//! When a failed request is sent again: exponential backoff with jitter, the server's `Retry-After`, and
//! when to give up.

use posse_base::backoff::{asked_ms, delay_ms};
use posse_base::rng::Rng;
use posse_base::time::Millis;

use crate::model::refusal::RETRY_AFTER_MAX_MS;

/// How requests of one kind are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRule {
    /// The delay after the first failure. It doubles with each failure in a row up to `delay_ms_max`; jitter
    /// adds up to the same again.
    pub delay_ms: u64,
    pub delay_ms_max: u64,
    pub limit: RetryLimit,
}

/// When to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryLimit {
    Never,
    /// After this many failures in a row.
    Failures(u32),
    /// If the next try would come later than this after the begin or the last success, in milliseconds.
    TimeMs(u64),
}

/// The tries of one request.
#[derive(Clone, Debug)]
pub struct Retry {
    rule: RetryRule,
    /// The begin, or the last success.
    since: Millis,
    n_failures: u32,
    rng: Rng,
}

impl Retry {
    pub fn new(rule: RetryRule, now: Millis, rng: Rng) -> Self {
        Self { rule, since: now, n_failures: 0, rng }
    }

    /// Failures in a row.
    pub fn n_failures(&self) -> u32 {
        self.n_failures
    }

    /// It succeeded or went on: the next failure counts as the first one.
    pub fn on_success(&mut self, now: Millis) {
        (self.since, self.n_failures) = (now, 0);
    }

    /// It failed. Gives the time of the next try, `None` to give up.
    pub fn on_failure(&mut self, now: Millis, retry_after_ms: Option<u64>) -> Option<Millis> {
        let RetryRule { delay_ms: first_ms, delay_ms_max, limit } = self.rule;
        self.n_failures = self.n_failures.saturating_add(1);
        let backoff_ms = delay_ms(self.n_failures, first_ms, delay_ms_max, &mut self.rng);
        let retry_after_ms = retry_after_ms.unwrap_or(0).min(RETRY_AFTER_MAX_MS);
        let next = now.after(backoff_ms.max(asked_ms(retry_after_ms, &mut self.rng)));
        let goes_on = match limit {
            RetryLimit::Never => true,
            RetryLimit::Failures(n_max) => self.n_failures < n_max,
            RetryLimit::TimeMs(limit_ms) => next.since(self.since) <= limit_ms,
        };
        goes_on.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(limit: RetryLimit) -> Retry {
        let rule = RetryRule { delay_ms: 100, delay_ms_max: 400, limit };
        Retry::new(rule, Millis(1_000), Rng::new(1))
    }

    #[test]
    fn the_delay_doubles_until_a_success() {
        let mut retry = retry(RetryLimit::Never);
        for low in [100, 200, 400, 400] {
            let next = retry.on_failure(Millis(5_000), None).unwrap();
            assert!((low..2 * low).contains(&next.since(Millis(5_000))), "{low}: {next:?}");
        }
        assert_eq!(retry.n_failures(), 4);
        retry.on_success(Millis(6_000));
        let next = retry.on_failure(Millis(6_000), None).unwrap();
        assert!(next.0 < 6_200, "the backoff begins anew: {next:?}");
    }

    #[test]
    fn the_server_can_ask_for_a_longer_delay_but_not_for_a_day() {
        let mut retry = retry(RetryLimit::Never);
        let mut asked = |ms| retry.on_failure(Millis(0), Some(ms)).unwrap().0;
        assert!((5_000..10_000).contains(&asked(5_000)));
        let day_ms = 86_400_000;
        assert!((RETRY_AFTER_MAX_MS..RETRY_AFTER_MAX_MS + 10_000).contains(&asked(day_ms)));
        assert!(retry.on_failure(Millis(0), Some(1)).unwrap() >= Millis(400));
    }

    #[test]
    fn a_limit_ends_the_tries() {
        let mut few = retry(RetryLimit::Failures(3));
        let tries: Vec<bool> =
            (0..3).map(|_| few.on_failure(Millis(1_000), None).is_some()).collect();
        assert_eq!(tries, [true, true, false]);
        few.on_success(Millis(1_000));
        assert!(few.on_failure(Millis(1_000), None).is_some());

        let mut short = retry(RetryLimit::TimeMs(1_000));
        assert!(short.on_failure(Millis(1_500), Some(250)).is_some());
        assert_eq!(short.on_failure(Millis(1_500), Some(501)), None, "the next try would be late");
        short.on_success(Millis(9_000));
        assert!(short.on_failure(Millis(9_500), None).is_some());
    }
}
