//! What the last plan of a group waits for.

use crate::model::waiting::{Limits, RESUMED_MS, Waiting};
use posse_base::time::Millis;

/// What holds the group back, and since when the reason holds that is told of it.
#[derive(Clone, Debug, Default)]
pub struct PlanWait {
    limits: Limits,
    since: Millis,
    /// The reason before, of those that a probe ends for a moment.
    last: Option<Told>,
}

/// A reason that was told, and from when to when it held.
#[derive(Clone, Copy, Debug)]
struct Told {
    waiting: Waiting,
    since: Millis,
    until: Millis,
}

impl PlanWait {
    /// The plan leaves this undone. True if the reason that is told is another one than before.
    pub fn set(&mut self, limits: Limits, now: Millis) -> bool {
        let before = self.waiting();
        self.limits = limits;
        let after = self.waiting();
        if before == after {
            return false;
        }
        let goes_on =
            |last: &Told| Some(last.waiting) == after && now.since(last.until) < RESUMED_MS;
        let resumed = self.last.filter(goes_on);
        if let Some(waiting) = before.filter(|waiting| waiting.is_probed()) {
            self.last = Some(Told { waiting, since: self.since, until: now });
        }
        self.since = resumed.map_or(now, |last| last.since);
        resumed.is_none() && after.is_some()
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
