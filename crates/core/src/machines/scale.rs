//! The target of a group that follows the length of a backlog.

use crate::model::settings::EXECUTORS_MAX;
use posse_base::time::Millis;

/// How the length of a backlog becomes a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleRule {
    /// Entries for each executor, at least 1.
    pub per_executor: u64,
    /// How long an empty backlog keeps the executors.
    pub idle_after_ms: u64,
}

/// Turns readings of the length of a backlog into targets.
#[derive(Clone, Debug)]
pub struct Scaler {
    rule: ScaleRule,
    target: Option<u32>,
    empty_since: Option<Millis>,
}

impl Scaler {
    pub fn new(rule: ScaleRule) -> Self {
        Self { rule, target: None, empty_since: None }
    }

    /// The target after a reading of `n_entries`, not yet limited to the group's `min` and `max`. An empty
    /// backlog keeps the last target for `idle_after`: its last entries are still worked on. None: only
    /// an earlier process knows that target.
    pub fn target(&mut self, n_entries: u64, now: Millis) -> Option<u32> {
        let ScaleRule { per_executor, idle_after_ms } = self.rule;
        if n_entries > 0 {
            self.empty_since = None;
            let wanted = n_entries.div_ceil(per_executor.max(1));
            self.target = Some(u32::try_from(wanted).unwrap_or(u32::MAX).min(EXECUTORS_MAX));
        } else if now.since(*self.empty_since.get_or_insert(now)) >= idle_after_ms {
            self.target = Some(0);
        }
        self.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings: seconds, entries, the target.
    #[track_caller]
    fn check<T: Copy + Into<Option<u32>>>(readings: &[(u64, u64, T)]) {
        let rule = ScaleRule { per_executor: 10, idle_after_ms: 60_000 };
        let mut scaler = Scaler::new(rule);
        for &(at, n_entries, want) in readings {
            let want = want.into();
            assert_eq!(scaler.target(n_entries, Millis(at * 1_000)), want, "{n_entries} at {at} s");
        }
    }

    #[test]
    fn the_target_is_the_length_divided_and_rounded_up() {
        check(&[(0, 1, 1), (1, 10, 1), (2, 11, 2), (3, 45, 5), (4, 9, 1)]);
        check(&[(0, u64::MAX, EXECUTORS_MAX)]);
    }

    #[test]
    fn an_empty_backlog_ends_the_executors_after_a_while() {
        // Until then only an earlier process knows the target.
        check(&[(0, 0, None), (59, 0, None), (60, 0, Some(0)), (61, 0, Some(0)), (62, 1, Some(1))]);
        check(&[(0, 45, 5), (10, 0, 5), (69, 0, 5), (70, 0, 0)]);
        // An entry in between begins the time anew.
        check(&[(0, 45, 5), (10, 0, 5), (60, 3, 1), (61, 0, 1), (120, 0, 1), (121, 0, 0)]);
    }
}
