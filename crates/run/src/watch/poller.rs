//! The poll thread: a slow, consistent LIST that does not depend on the watch, so that a watch that
//! silently delivers nothing is noticed. Also sends the LISTs that other threads request.

use std::time::Duration;

use crate::watch::lister::Lister;
use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::machines::retry::{Retry, RetryLimit, RetryRule};
use posse_core::machines::watch::{BACKOFF_MS, BACKOFF_MS_MAX};
use posse_core::model::input::ListSource;

const RULE: RetryRule =
    RetryRule { delay_ms: BACKOFF_MS, delay_ms_max: BACKOFF_MS_MAX, limit: RetryLimit::Never };

/// Polls until it is stopped or the inbox is closed: in this interval, varied by 10 %, and on request.
pub fn poll(lister: &Lister, interval: Duration) {
    let mut rng = lister.rng.clone();
    let now = lister.clock.now();
    let mut retry = Retry::new(RULE, now, Rng::new(rng.next_u64()));
    let mut due = Some(next_due(interval, now, &mut rng));
    while !lister.control.is_stopped() {
        if lister.control.take_request() {
            due = Some(lister.clock.now());
        }
        let now = lister.clock.now();
        if due.is_none_or(|due| now < due) {
            lister.control.wait(due.and_then(|due| lister.clock.instant(due)));
            continue;
        }
        match lister.list(ListSource::Poll) {
            None => break,
            Some(Ok(_)) => {
                retry.on_success(lister.clock.now());
                due = Some(next_due(interval, lister.clock.now(), &mut rng));
            }
            Some(Err(refusal)) => {
                due = retry.on_failure(lister.clock.now(), refusal.retry_after_ms);
                log::warn!("the poll failed, retrying: {refusal}");
            }
        }
    }
    log::debug!("the poll thread ends");
}

/// One interval from now, plus or minus a tenth, so that many instances do not poll in step.
fn next_due(interval: Duration, now: Millis, rng: &mut Rng) -> Millis {
    let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    let tenth = interval_ms / 10;
    now.after(interval_ms - tenth + rng.below(tenth.saturating_mul(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_poll_interval_varies_by_a_tenth() {
        let mut rng = Rng::new(1);
        for _ in 0..1_000 {
            let due = next_due(Duration::from_secs(300), Millis(1_000), &mut rng);
            let waited = due.since(Millis(1_000));
            assert!((270_000..330_000).contains(&waited), "{waited}");
        }
        let due = next_due(Duration::from_millis(5), Millis(1_000), &mut rng);
        assert_eq!(due, Millis(1_005));
    }
}
