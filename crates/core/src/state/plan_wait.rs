//! What the last plan of a group waits for.

use crate::model::waiting::{Limits, Waiting};
use posse_base::time::Millis;

/// What holds the group back, and since when the reason holds that is told of it.
#[derive(Clone, Debug, Default)]
pub struct PlanWait {
    limits: Limits,
    since: Millis,
}

impl PlanWait {
    /// The plan leaves this undone. True if the reason that is told is another one than before.
    pub fn set(&mut self, limits: Limits, now: Millis) -> bool {
        let before = self.waiting();
        self.limits = limits;
        let is_new = before != self.waiting();
        if is_new {
            self.since = now;
        }
        is_new
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn waiting(&self) -> Option<Waiting> {
        self.limits.told().map(|limit| limit.waiting)
    }

    pub fn since(&self) -> Option<Millis> {
        self.limits.told().map(|_| self.since)
    }

    /// When the wait ends by itself, if it does.
    pub fn until(&self) -> Option<Millis> {
        self.limits.told().and_then(|limit| limit.until)
    }
}
