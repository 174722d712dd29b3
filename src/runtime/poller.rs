//! Owns the poller's thread: a slow, consistent LIST that nothing else depends on, and the lists that
//! somebody asks for. The independent witness against a watch that is silently dead.

use std::time::Duration;

use crate::core::machines::watch::{BACKOFF_MS, BACKOFF_MS_MAX, RETRY_AFTER_MS_MAX};
use crate::core::model::input::{Input, ListSource, Watermark};
use crate::core::model::refusal::Refusal;
use crate::core::model::rng::Rng;
use crate::core::model::time::Millis;
use crate::core::policy::backoff::delay_ms;
use crate::runtime::watcher::Lister;

/// When the poller lists by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Every so often, 10 % more or less; never where it is none or zero.
    pub interval: Option<Duration>,
    /// Once at the beginning: where there is no watcher that does it.
    pub at_once: bool,
}

/// The body of the poller's thread; returns when it is stopped or nobody listens any more.
pub fn poll<M, F>(lister: &Lister<M, F>, schedule: Schedule)
where
    M: From<Input> + From<Refusal>,
    F: Fn() -> Watermark,
{
    let mut rng = lister.rng.clone();
    let mut n_failures = 0_u32;
    let now = lister.clock.now();
    let mut due = if schedule.at_once { Some(now) } else { next_due(schedule, now, &mut rng) };
    // Who waits for the next list; it is kept until one came.
    let mut source = ListSource::Poll;
    while !lister.control.is_stopped() {
        if let Some(asked) = lister.control.take_asked() {
            source = asked;
            due = Some(lister.clock.now());
        }
        let now = lister.clock.now();
        if due.is_none_or(|due| now < due) {
            lister.control.wait(due.and_then(|due| lister.clock.instant(due)));
            continue;
        }
        match lister.list(source) {
            None => break,
            Some(Ok(_)) => {
                n_failures = 0;
                source = ListSource::Poll;
                due = next_due(schedule, lister.clock.now(), &mut rng);
            }
            Some(Err(refusal)) => {
                n_failures = n_failures.saturating_add(1);
                let backoff = delay_ms(n_failures, BACKOFF_MS, BACKOFF_MS_MAX, &mut rng);
                let asked = refusal.retry_after_ms.unwrap_or(0).min(RETRY_AFTER_MS_MAX);
                due = Some(lister.clock.now().after(backoff.max(asked)));
                log::warn!("the poll failed and is tried again: {refusal}");
            }
        }
    }
    log::debug!("the poller ends");
}

/// One interval from now, give or take a tenth: a thousand instances must not poll in step.
fn next_due(schedule: Schedule, now: Millis, rng: &mut Rng) -> Option<Millis> {
    let interval = schedule.interval?.as_millis();
    let interval_ms = u64::try_from(interval).unwrap_or(u64::MAX);
    if interval_ms == 0 {
        return None;
    }
    let tenth = interval_ms / 10;
    Some(now.after(interval_ms - tenth + rng.below(tenth.saturating_mul(2))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_come_a_tenth_early_or_late() {
        let mut rng = Rng::new(1);
        let every = |interval| Schedule { interval, at_once: false };
        for _ in 0..1_000 {
            let due = next_due(every(Some(Duration::from_secs(300))), Millis(1_000), &mut rng);
            let waited = due.unwrap().since(Millis(1_000));
            assert!((270_000..330_000).contains(&waited), "{waited}");
        }
        assert_eq!(next_due(every(None), Millis(1_000), &mut rng), None);
        assert_eq!(next_due(every(Some(Duration::ZERO)), Millis(1_000), &mut rng), None);
        let due = next_due(every(Some(Duration::from_millis(5))), Millis(1_000), &mut rng);
        assert_eq!(due, Some(Millis(1_005)));
    }
}
