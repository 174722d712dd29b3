//! Failure budgets: counts losses within a time window and compares the number with a limit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::model::event::Budget;
use crate::model::settings::{Limit, Policy};
use posse_base::time::Millis;

const AUTO_MIN: u64 = 10;
/// By `auto`, an application ends if executors of a group fail to start for this long and none has run. The wait for a node
/// is no failure.
pub const NO_START_MS: u64 = 15 * 60_000;
/// More past numbers are not stored.
const WANTED_MAX: usize = 10_000;

/// The losses within the window, and how many executors were wanted in it.
#[derive(Clone, Debug)]
pub struct Budgets {
    window_ms: u64,
    limits: BTreeMap<Budget, Limit>,
    losses: BTreeMap<Budget, VecDeque<Millis>>,
    exhausted: BTreeSet<Budget>,
    /// The numbers that can still be the highest of the window: each is lower than the one before, and the last one
    /// holds now.
    wanted: VecDeque<Wanted>,
}

/// How many executors all groups want.
#[derive(Clone, Copy, Debug)]
struct Wanted {
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
            wanted: VecDeque::new(),
        }
    }

    /// Notes how many executors all groups want from now on.
    pub fn on_wanted(&mut self, total: u64, now: Millis) {
        if let Some(last) = self.wanted.back_mut() {
            last.until.get_or_insert(now);
        }
        // Lower ones leave the window earlier, so they never are the highest again.
        while self.wanted.back().is_some_and(|wanted| wanted.total <= total) {
            self.wanted.pop_back();
        }
        self.wanted.push_back(Wanted { total, until: None });
        if self.wanted.len() > WANTED_MAX {
            // The highest stays.
            self.wanted.remove(1);
        }
        self.forget_old(now);
    }

    /// A number that held within the window counts, even if that began long before.
    fn forget_old(&mut self, now: Millis) {
        while self.wanted.front().is_some_and(|wanted| self.is_old(wanted, now)) {
            self.wanted.pop_front();
        }
    }

    fn is_old(&self, wanted: &Wanted, now: Millis) -> bool {
        wanted.until.is_some_and(|until| now.since(until) > self.window_ms)
    }

    /// True if the budget is `auto`: then posse judges by more than a number.
    pub fn is_auto(&self, budget: Budget) -> bool {
        self.limits.get(&budget) == Some(&Limit::Auto)
    }

    /// Exhausts a budget. True only once.
    pub fn exhaust(&mut self, budget: Budget) -> bool {
        self.exhausted.insert(budget)
    }

    /// When the loss was after which half of those came that the budget counts.
    pub fn middle_loss(&self, budget: Budget) -> Option<Millis> {
        let losses = self.losses.get(&budget)?;
        losses.get(losses.len() / 2).copied()
    }

    /// Charges a loss. True if there are more than the budget allows.
    pub fn charge(&mut self, budget: Budget, now: Millis) -> bool {
        self.forget_old(now);
        let Some(limit) = self.limit(budget, now) else { return false };
        let losses = self.losses.entry(budget).or_default();
        losses.push_back(now);
        while losses.front().is_some_and(|&at| now.since(at) > self.window_ms) {
            losses.pop_front();
        }
        // One more than the limit proves that it is exceeded.
        while losses.len() as u64 > limit.saturating_add(1) {
            losses.pop_front();
        }
        losses.len() as u64 > limit
    }

    /// The most losses within the window; none: the budget is off. By `auto`, the larger of 10 and twice as
    /// many as were ever wanted within the window.
    fn limit(&self, budget: Budget, now: Millis) -> Option<u64> {
        match self.limits.get(&budget)? {
            Limit::Max(max) => Some(u64::from(*max)),
            Limit::Auto if budget == Budget::Start => None,
            Limit::Auto => {
                let highest = self.wanted.iter().find(|wanted| !self.is_old(wanted, now));
                let total = highest.map_or(0, |wanted| wanted.total);
                Some(AUTO_MIN.max(total.saturating_mul(2)))
            }
            Limit::Off => None,
        }
    }

    /// The budgets that are not off.
    pub fn status(&self, now: Millis) -> impl Iterator<Item = BudgetStatus> {
        self.limits.keys().filter_map(move |&budget| {
            let limit = self.limit(budget, now)?;
            let losses = self.losses.get(&budget);
            // The oldest come first.
            let is_old = |&at: &Millis| now.since(at) > self.window_ms;
            let n = losses.map_or(0, |losses| losses.len() - losses.partition_point(is_old));
            Some(BudgetStatus { budget, limit, left: limit.saturating_sub(n as u64) })
        })
    }
}

/// What is left of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetStatus {
    pub budget: Budget,
    /// The most losses within the window. One more ends the application.
    pub limit: u64,
    /// How many more losses the window takes.
    pub left: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(limit: Limit, losses_at: &[u64], target: u64, want_exhausted_at: Option<usize>) {
        let policy = Policy { failures_app: limit, failures_window_ms: 2_000, ..Policy::default() };
        let mut budgets = Budgets::new(&policy);
        budgets.on_wanted(target, Millis(0));
        let mut charge =
            |at| budgets.charge(Budget::App, Millis(at)) && budgets.exhaust(Budget::App);
        let exhausted: Vec<bool> = losses_at.iter().map(|&at| charge(at)).collect();
        let want: Vec<bool> = (0..losses_at.len()).map(|i| Some(i) == want_exhausted_at).collect();
        assert_eq!(exhausted, want, "{limit:?} {losses_at:?}");
    }

    /// Spark's "SPARK-41210: Window based executor failure tracking mechanism".
    #[test]
    fn only_losses_within_the_window_count() {
        check(Limit::Max(2), &[0, 100, 5_000, 5_100, 5_200], 1, Some(4));
        check(Limit::Max(2), &[0, 2_100, 4_200, 6_300, 8_400], 1, None);
        check(Limit::Max(0), &[7], 1, Some(0));
        check(Limit::Off, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 1, None);
    }

    #[test]
    fn what_is_left_grows_again_when_losses_are_old() {
        let (app, cluster) = (Limit::Max(3), Limit::Auto);
        let policy = Policy {
            failures_app: app,
            failures_cluster: cluster,
            failures_start: Limit::Off,
            failures_window_ms: 1_000,
            ..Policy::default()
        };
        let mut budgets = Budgets::new(&policy);
        budgets.on_wanted(20, Millis(0));
        budgets.charge(Budget::App, Millis(100));
        budgets.charge(Budget::App, Millis(600));
        budgets.on_wanted(1, Millis(700));
        let left = |at| {
            let each = |one: BudgetStatus| (one.budget, one.limit, one.left);
            budgets.status(Millis(at)).map(each).collect::<Vec<_>>()
        };
        assert_eq!(left(700), [(Budget::App, 3, 1), (Budget::Cluster, 40, 40)]);
        assert_eq!(left(1_101), [(Budget::App, 3, 2), (Budget::Cluster, 40, 40)]);
        // The high target does not count any more.
        assert_eq!(left(1_701), [(Budget::App, 3, 3), (Budget::Cluster, 10, 10)]);
    }

    #[test]
    fn auto_is_ten_or_twice_the_highest_target() {
        let losses: Vec<u64> = (0..30).collect();
        check(Limit::Auto, &losses, 1, Some(10));
        check(Limit::Auto, &losses, 12, Some(24));
    }
}
