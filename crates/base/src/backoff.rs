//! Exponential backoff with jitter.

use crate::rng::Rng;

/// The delay in milliseconds before the next try, after `failures` failures in a row (1: the
/// first): `initial_ms * 2^(failures-1)`, at most `max_ms`, plus jitter of up to the same value.
pub fn delay_ms(failures: u32, initial_ms: u64, max_ms: u64, rng: &mut Rng) -> u64 {
    let doubled = initial_ms.saturating_mul(1_u64 << failures.saturating_sub(1).min(30));
    let delay = doubled.min(max_ms);
    delay.saturating_add(rng.below(delay))
}

#[cfg(test)]
mod tests {
    use super::*;

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
