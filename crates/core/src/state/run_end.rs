//! Whether and why the run ends.

use crate::model::action::RunVerdict;
use posse_base::time::Millis;

/// The decision that ends the run, and what leads to it.
#[derive(Clone, Debug, Default)]
pub struct RunEnd {
    verdict: Option<RunVerdict>,
    /// When the work of all groups had ended.
    work_ended_at: Option<Millis>,
    /// Since when the run has had nothing to do.
    idle_since: Option<Millis>,
}

impl RunEnd {
    /// The run ends for this reason, unless another came first.
    pub fn decide(&mut self, verdict: RunVerdict) {
        self.verdict.get_or_insert(verdict);
    }

    /// The decision, once.
    pub fn take_verdict(&mut self) -> Option<RunVerdict> {
        self.verdict.take()
    }

    /// No work is left. Since when that is so.
    pub fn on_work_ended(&mut self, now: Millis) -> Millis {
        *self.work_ended_at.get_or_insert(now)
    }

    /// Work is left, or work may come.
    pub fn on_work_left(&mut self) {
        self.work_ended_at = None;
    }

    /// The run has nothing to do. Since when that is so.
    pub fn on_idle(&mut self, now: Millis) -> Millis {
        *self.idle_since.get_or_insert(now)
    }

    /// The run has something to do.
    pub fn on_busy(&mut self) {
        self.idle_since = None;
    }
}
