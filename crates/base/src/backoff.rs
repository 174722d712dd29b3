//! Exponential backoff with jitter.

use crate::rng::Rng;

/// The delay in milliseconds before the next try, after `failures` failures in a row (1: the
/// first): `initial_ms * 2^(failures-1)`, at most `max_ms`, plus jitter of up to the same value.
pub fn delay_ms(failures: u32, initial_ms: u64, max_ms: u64, rng: &mut Rng) -> u64 {
    let doubled = initial_ms.saturating_mul(1_u64 << failures.saturating_sub(1).min(30));
    let delay = doubled.min(max_ms);
    delay.saturating_add(rng.below(delay))
}

/// The most that `asked_ms` adds.
const ASKED_JITTER_MS_MAX: u64 = 10_000;

/// The delay for a client that a server asked to wait so long: up to as much again, and at most
/// `ASKED_JITTER_MS_MAX` more. All whom a server refuses at one moment are asked for the same time, and
/// would come back at one moment too.
pub fn asked_ms(retry_after_ms: u64, rng: &mut Rng) -> u64 {
    retry_after_ms.saturating_add(rng.below(retry_after_ms.min(ASKED_JITTER_MS_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_were_asked_for_one_time_come_back_at_many() {
        for (asked, most) in
            [(0, 0), (1_000, 1_999), (7_000, 13_999), (60_000, 69_999), (u64::MAX, u64::MAX)]
        {
            let waits: Vec<u64> =
                (0..300).map(|seed| asked_ms(asked, &mut Rng::new(seed))).collect();
            assert!(waits.iter().all(|wait| (asked..=most).contains(wait)), "{asked}: {waits:?}");
            // In a tenth of the time that they are spread over is about a tenth of them.
            let early = waits.iter().filter(|wait| **wait - asked < (most - asked) / 10).count();
            assert!(
                most == asked || (10..60).contains(&early),
                "{asked}: {early} in the first tenth"
            );
        }
    }

    #[test]
    fn the_delay_doubles_to_its_maximum_with_jitter() {
        let mut rng = Rng::new(1);
        for (failures, low) in [(1, 800), (2, 1_600), (3, 3_200), (7, 30_000), (4_000_000, 30_000)]
        {
            for _ in 0..100 {
                let got = delay_ms(failures, 800, 30_000, &mut rng);
                assert!((low..2 * low).contains(&got), "{failures}: {got}");
            }
        }
    }
}
