//! Owns the failure budgets: how many losses of a kind the window holds, and when that is too many.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::core::model::event::Budget;
use crate::core::model::time::Millis;
use crate::core::policy::settings::{FailureLimit, Policy};

const AUTO_MIN: u64 = 10;
/// A budget this large is never meant; entries beyond it are not kept.
const ENTRIES_MAX: usize = 100_000;

/// Losses and targets within the window.
#[derive(Clone, Debug)]
pub struct Budgets {
    window_ms: u64,
    limits: BTreeMap<Budget, FailureLimit>,
    losses: BTreeMap<Budget, VecDeque<Millis>>,
    retired: BTreeSet<Budget>,
    /// Sums of all targets, with the time each came into force; the last one holds now.
    targets: VecDeque<(Millis, u64)>,
}

impl Budgets {
    /// Empty budgets with the limits of `policy`.
    #[must_use]
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
            retired: BTreeSet::new(),
            targets: VecDeque::new(),
        }
    }

    /// The sum of all targets is `total` from now on.
    pub fn on_target(&mut self, total: u64, now: Millis) {
        if self.targets.back().is_none_or(|&(_, last)| last != total) {
            self.targets.push_back((now, total));
        }
        // The oldest one within the window was in force at its beginning: it stays.
        while self.targets.len() > 1 && now.since(self.targets[1].0) > self.window_ms {
            self.targets.pop_front();
        }
        // Only the highest counts, so a long history can give up its lower half.
        if self.targets.len() > ENTRIES_MAX {
            self.targets.pop_front();
        }
    }

    /// A loss is charged to `budget`. True where it is spent by that, once.
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
        n > limit && self.retired.insert(budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(limit: FailureLimit, losses_at: &[u64], target: u64, want_spent_at: Option<usize>) {
        let policy = Policy { failures_app: limit, failures_window_ms: 2_000, ..Policy::default() };
        let mut budgets = Budgets::new(&policy);
        budgets.on_target(target, Millis(0));
        let retired: Vec<bool> =
            losses_at.iter().map(|&at| budgets.charge(Budget::App, Millis(at))).collect();
        let want: Vec<bool> = (0..losses_at.len()).map(|i| Some(i) == want_spent_at).collect();
        assert_eq!(retired, want, "{limit:?} {losses_at:?}");
    }

    /// Spark's "SPARK-41210: Window based executor failure tracking mechanism".
    #[test]
    fn losses_leave_with_the_window() {
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
