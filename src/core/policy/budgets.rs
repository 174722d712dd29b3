//! Failure budgets: counts losses within a time window and compares the number with a limit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::core::model::event::Budget;
use crate::core::model::time::Millis;
use crate::core::policy::settings::{FailureLimit, Policy};

const AUTO_MIN: u64 = 10;
/// More entries are not stored; no real limit is this high.
const ENTRIES_MAX: usize = 100_000;

/// The losses and targets within the window.
#[derive(Clone, Debug)]
pub struct Budgets {
    window_ms: u64,
    limits: BTreeMap<Budget, FailureLimit>,
    losses: BTreeMap<Budget, VecDeque<Millis>>,
    exhausted: BTreeSet<Budget>,
    /// The sum of all targets, each with the time from which it held; the last one holds now.
    targets: VecDeque<(Millis, u64)>,
}

impl Budgets {
    pub fn new(policy: &Policy) -> Self {
        let limits = BTreeMap::from([
            (Budget::App, policy.failures_app),
            (Budget::Cluster, policy.failures_cluster),
            (Budget::Start, policy.failures_start),
        ]);
        Self {
            window_ms: policy.failures_window_ms,
            limits,
            losses: BTreeMap::new(),
            exhausted: BTreeSet::new(),
            targets: VecDeque::new(),
        }
    }

    /// Notes the sum of all targets from now on.
    pub fn on_target(&mut self, total: u64, now: Millis) {
        if self.targets.back().is_none_or(|&(_, last)| last != total) {
            self.targets.push_back((now, total));
        }
        // The target that held at the beginning of the window counts too.
        while self.targets.len() > 1 && now.since(self.targets[1].0) > self.window_ms {
            self.targets.pop_front();
        }
        // Only the highest target matters; drop the oldest if there are too many.
        if self.targets.len() > ENTRIES_MAX {
            self.targets.pop_front();
        }
    }

    /// Charges a loss. True if this exhausts the budget; true only once.
    pub fn charge(&mut self, budget: Budget, now: Millis) -> bool {
        let losses = self.losses.entry(budget).or_default();
        if losses.len() == ENTRIES_MAX {
            losses.pop_front();
        }
        losses.push_back(now);
        while losses.front().is_some_and(|&at| now.since(at) > self.window_ms) {
            losses.pop_front();
        }
        let n = losses.len() as u64;
        let limit = match self.limits.get(&budget) {
            Some(FailureLimit::Max(max)) => u64::from(*max),
            Some(FailureLimit::Auto) => {
                let highest = self.targets.iter().map(|&(_, total)| total).max().unwrap_or(0);
                AUTO_MIN.max(highest.saturating_mul(2))
            }
            Some(FailureLimit::Off) | None => return false,
        };
        n > limit && self.exhausted.insert(budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        limit: FailureLimit,
        losses_at: &[u64],
        target: u64,
        want_exhausted_at: Option<usize>,
    ) {
        let policy = Policy { failures_app: limit, failures_window_ms: 2_000, ..Policy::default() };
        let mut budgets = Budgets::new(&policy);
        budgets.on_target(target, Millis(0));
        let exhausted: Vec<bool> =
            losses_at.iter().map(|&at| budgets.charge(Budget::App, Millis(at))).collect();
        let want: Vec<bool> = (0..losses_at.len()).map(|i| Some(i) == want_exhausted_at).collect();
        assert_eq!(exhausted, want, "{limit:?} {losses_at:?}");
    }

    /// Spark's "SPARK-41210: Window based executor failure tracking mechanism".
    #[test]
    fn only_losses_within_the_window_count() {
        check(FailureLimit::Max(2), &[0, 100, 5_000, 5_100, 5_200], 1, Some(4));
        check(FailureLimit::Max(2), &[0, 2_100, 4_200, 6_300, 8_400], 1, None);
        check(FailureLimit::Max(0), &[7], 1, Some(0));
        check(FailureLimit::Off, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 1, None);
    }

    #[test]
    fn auto_is_ten_or_twice_the_highest_target() {
        let losses: Vec<u64> = (0..30).collect();
        check(FailureLimit::Auto, &losses, 1, Some(10));
        check(FailureLimit::Auto, &losses, 12, Some(24));
    }
}
