//! Failure budgets: counts losses within a time window and compares the number with a limit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::core::model::event::Budget;
use crate::core::model::time::Millis;
use crate::core::policy::settings::{FailureLimit, Policy};

const AUTO_MIN: u64 = 10;
/// More past targets are not stored.
const TARGETS_MAX: usize = 10_000;

/// The losses and targets within the window.
#[derive(Clone, Debug)]
pub struct Budgets {
    window_ms: u64,
    limits: BTreeMap<Budget, FailureLimit>,
    losses: BTreeMap<Budget, VecDeque<Millis>>,
    exhausted: BTreeSet<Budget>,
    /// The sums of all targets that can still be the highest of the window: each is lower than the
    /// one before, and the last one holds now.
    targets: VecDeque<Target>,
}

/// A sum of all targets.
#[derive(Clone, Copy, Debug)]
struct Target {
    total: u64,
    /// Until when it held; none: it holds now.
    until: Option<Millis>,
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
        if let Some(last) = self.targets.back_mut() {
            last.until.get_or_insert(now);
        }
        // Lower ones leave the window earlier, so they never are the highest again.
        while self.targets.back().is_some_and(|target| target.total <= total) {
            self.targets.pop_back();
        }
        self.targets.push_back(Target { total, until: None });
        if self.targets.len() > TARGETS_MAX {
            // The highest stays.
            self.targets.remove(1);
        }
        self.forget_old_targets(now);
    }

    /// A target that held within the window counts, even if it was set long before.
    fn forget_old_targets(&mut self, now: Millis) {
        let is_old =
            |target: &Target| target.until.is_some_and(|until| now.since(until) > self.window_ms);
        while self.targets.front().is_some_and(is_old) {
            self.targets.pop_front();
        }
    }

    /// Charges a loss. True if this exhausts the budget; true only once.
    pub fn charge(&mut self, budget: Budget, now: Millis) -> bool {
        self.forget_old_targets(now);
        let limit = match self.limits.get(&budget) {
            Some(FailureLimit::Max(max)) => u64::from(*max),
            Some(FailureLimit::Auto) => {
                let highest = self.targets.front().map_or(0, |target| target.total);
                AUTO_MIN.max(highest.saturating_mul(2))
            }
            Some(FailureLimit::Off) | None => return false,
        };
        let losses = self.losses.entry(budget).or_default();
        losses.push_back(now);
        while losses.front().is_some_and(|&at| now.since(at) > self.window_ms) {
            losses.pop_front();
        }
        let is_over = losses.len() as u64 > limit;
        if is_over {
            // One more than the limit proves that it is exceeded.
            losses.pop_front();
        }
        is_over && self.exhausted.insert(budget)
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
