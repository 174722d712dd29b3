//! Whether, why and how the run ends.
//!
//! Always true: the first reason to end is the one that is told, and a stop begins once.

use crate::model::action::RunVerdict;
use crate::model::event::Budget;
use crate::model::settings::Policy;
use crate::state::budgets::Budgets;
use crate::state::stop::Stop;
use posse_base::time::Millis;

/// How long the last pods stay after the end of all work, for those who follow their logs.
const LAST_LOGS_MS: u64 = 2_000;

/// The decision that ends the run, and what leads to it.
#[derive(Clone, Debug)]
pub struct RunEnd {
    pub budgets: Budgets,
    verdict: Option<RunVerdict>,
    /// When the work of all groups had ended.
    work_ended_at: Option<Millis>,
    /// Since when the run has had nothing to do.
    idle_since: Option<Millis>,
    stop: Option<Stop>,
}

impl RunEnd {
    pub fn new(policy: &Policy) -> Self {
        Self {
            budgets: Budgets::new(policy),
            verdict: None,
            work_ended_at: None,
            idle_since: None,
            stop: None,
        }
    }

    /// A budget is exhausted. True if the run ends by that, which is so once.
    pub fn exhaust(&mut self, budget: Budget) -> bool {
        self.budgets.exhaust(budget) && self.stop.is_none()
    }

    pub fn begin_stop(&mut self, stop: Stop) {
        debug_assert!(self.stop.is_none(), "a stop begins once");
        self.stop = Some(stop);
    }

    pub fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    pub fn stop_mut(&mut self) -> Option<&mut Stop> {
        self.stop.as_mut()
    }

    pub fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// The executors are stopped, and not left as they are.
    pub fn ends_executors(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| !stop.order().keep)
    }

    /// The stop leaves failed pods that are retained.
    pub fn keeps_failed(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.order().keep_failed)
    }

    /// A retry delay that leaves time for the retry in a stop.
    pub fn within_stop(&self, delay_ms: u64, now: Millis) -> u64 {
        self.stop.as_ref().map_or(delay_ms, |stop| stop.within(delay_ms, now))
    }

    pub fn check(&self) {
        self.stop.iter().for_each(Stop::check);
    }

    /// The run ends for this reason, unless another came first.
    pub fn decide(&mut self, verdict: RunVerdict) {
        self.verdict.get_or_insert(verdict);
    }

    /// The decision, once.
    pub fn take_verdict(&mut self) -> Option<RunVerdict> {
        self.verdict.take()
    }

    /// Decides whether the run ends by itself: some time after the work of all groups has ended, or when it has had nothing
    /// to do for long enough. `idle_end_ms`: how long that is; none: it has something to do. When to judge again, if only
    /// time passes.
    pub fn judge_rest(
        &mut self,
        has_ended: bool,
        idle_end_ms: Option<u64>,
        n_given_up: u32,
        now: Millis,
    ) -> Option<Millis> {
        self.work_ended_at = has_ended.then(|| self.work_ended_at.unwrap_or(now));
        self.idle_since = idle_end_ms.map(|_| self.idle_since.unwrap_or(now));
        let after_work = self.work_ended_at.map(|at| at.after(LAST_LOGS_MS));
        let after_rest = self.idle_since.zip(idle_end_ms).map(|(since, ms)| since.after(ms));
        let at = after_work.into_iter().chain(after_rest).min()?;
        if now >= at {
            self.decide(RunVerdict::AllEnded { n_given_up });
            return None;
        }
        Some(at)
    }
}
