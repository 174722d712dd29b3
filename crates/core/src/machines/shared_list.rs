//! When a list that several readers share is read from the server: once for all of them, not more often than
//! its pace, and later after a failure. Nobody asks, and nothing is read.

use posse_base::rng::Rng;
use posse_base::time::Millis;

use super::retry::{Retry, RetryLimit, RetryRule};

/// The times of one list.
#[derive(Clone, Debug)]
pub struct SharedList {
    retry: Retry,
    /// When it may be read again.
    next: Millis,
    /// When the read under way began.
    reading: Option<Millis>,
    /// When the last complete read began: what it shows is at least as new.
    read_at: Option<Millis>,
}

/// What a reader does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Takes the last state, or the error if there is none.
    Last,
    /// Reads the list, and calls `on_success` or `on_failure`.
    Read,
    /// Waits for the end of the first read, which another reader makes.
    Wait,
}

impl SharedList {
    pub fn new(rng: Rng) -> Self {
        Self {
            retry: Retry::new(RULE, Millis::ZERO, rng),
            next: Millis::ZERO,
            reading: None,
            read_at: None,
        }
    }

    /// A reader wants the list.
    pub fn ask(&mut self, now: Millis) -> Turn {
        match self.reading {
            Some(_) if self.read_at.is_none() && self.retry.n_failures() == 0 => Turn::Wait,
            Some(_) => Turn::Last,
            None if now < self.next => Turn::Last,
            None => {
                self.reading = Some(now);
                Turn::Read
            }
        }
    }

    /// The list is complete. A long one is read more rarely, so that it takes the server a small part of the time.
    pub fn on_success(&mut self, now: Millis) {
        let began = self.reading.take().unwrap_or(now);
        self.read_at = Some(began);
        self.retry.on_success(now);
        let rest_ms = now.since(began).saturating_mul(REST_FACTOR);
        self.next = now.after(rest_ms.clamp(PACE_MS, PACE_MS_MAX));
    }

    /// The server did not give it.
    pub fn on_failure(&mut self, now: Millis, retry_after_ms: Option<u64>) {
        self.reading = None;
        // The rule never gives up.
        self.next = self.retry.on_failure(now, retry_after_ms).unwrap_or(now);
    }

    /// How old the last state is, in milliseconds.
    pub fn age_ms(&self, now: Millis) -> Option<u64> {
        self.read_at.map(|at| now.since(at))
    }
}

/// The shortest pause between two reads, in milliseconds.
pub const PACE_MS: u64 = 5_000;

/// The longest one.
const PACE_MS_MAX: u64 = 60_000;

/// A pause is so many times as long as the read before it.
const REST_FACTOR: u64 = 10;

const RULE: RetryRule =
    RetryRule { delay_ms: PACE_MS, delay_ms_max: PACE_MS_MAX / 2, limit: RetryLimit::Never };

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> SharedList {
        SharedList::new(Rng::new(1))
    }

    #[test]
    fn many_readers_cost_one_read_in_each_pace() {
        let mut list = list();
        let mut n_reads = 0;
        // 50 readers, each every 100 ms, for a minute.
        for now in (0..60_000).step_by(100).map(Millis) {
            for _ in 0..50 {
                if list.ask(now) == Turn::Read {
                    n_reads += 1;
                    list.on_success(now.after(10));
                }
            }
        }
        assert_eq!(n_reads, 12);
    }

    #[test]
    fn only_the_first_read_is_waited_for() {
        let mut list = list();
        assert_eq!(list.ask(Millis(0)), Turn::Read);
        assert_eq!((list.ask(Millis(1)), list.age_ms(Millis(1))), (Turn::Wait, None));
        list.on_success(Millis(100));
        assert_eq!(list.ask(Millis(101)), Turn::Last);
        assert_eq!(list.age_ms(Millis(101)), Some(101));
        assert_eq!(list.ask(Millis(10_000)), Turn::Read);
        // A server that hangs holds up nobody who can see the last state.
        assert_eq!(
            (list.ask(Millis(40_000)), list.age_ms(Millis(40_000))),
            (Turn::Last, Some(40_000))
        );
    }

    #[test]
    fn a_long_read_is_made_more_rarely() {
        for (took_ms, rest_ms) in [(0, 5_000), (250, 5_000), (1_000, 10_000), (30_000, 60_000)] {
            let mut list = list();
            assert_eq!(list.ask(Millis(0)), Turn::Read);
            list.on_success(Millis(took_ms));
            assert_eq!(list.ask(Millis(took_ms + rest_ms - 1)), Turn::Last, "{took_ms}");
            assert_eq!(list.ask(Millis(took_ms + rest_ms)), Turn::Read, "{took_ms}");
        }
    }

    #[test]
    fn a_failure_is_tried_again_later_and_keeps_the_last_state() {
        let mut list = list();
        assert_eq!(list.ask(Millis(0)), Turn::Read);
        list.on_failure(Millis(0), None);
        assert_eq!((list.ask(Millis(4_999)), list.age_ms(Millis(4_999))), (Turn::Last, None));
        assert_eq!(list.ask(Millis(10_000)), Turn::Read);
        // Who comes meanwhile learns of the failure.
        assert_eq!(list.ask(Millis(10_000)), Turn::Last);
        list.on_success(Millis(10_000));
        assert_eq!(list.ask(Millis(20_000)), Turn::Read);
        list.on_failure(Millis(20_000), Some(25_000));
        assert_eq!(
            (list.ask(Millis(44_999)), list.age_ms(Millis(44_999))),
            (Turn::Last, Some(34_999))
        );
        assert_eq!(list.ask(Millis(55_000)), Turn::Read);
    }
}
