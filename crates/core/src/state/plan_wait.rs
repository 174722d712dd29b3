//! What the last plan of a group waits for.

use crate::model::waiting::Waiting;
use posse_base::time::Millis;

/// The reason, until when it lasts, and since when it holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanWait {
    reason: Option<(Waiting, Option<Millis>)>,
    since: Millis,
}

impl PlanWait {
    /// The plan waits for this, or for nothing. True if the reason is another one than before.
    pub fn set(&mut self, reason: Option<(Waiting, Option<Millis>)>, now: Millis) -> bool {
        let is_new = self.reason.map(|(waiting, _)| waiting) != reason.map(|(waiting, _)| waiting);
        if is_new {
            self.since = now;
        }
        self.reason = reason;
        is_new
    }

    /// The reason, and until when it lasts.
    pub fn reason(&self) -> Option<(Waiting, Option<Millis>)> {
        self.reason
    }

    pub fn waiting(&self) -> Option<Waiting> {
        self.reason.map(|(waiting, _)| waiting)
    }

    pub fn since(&self) -> Option<Millis> {
        self.reason.map(|_| self.since)
    }

    pub fn until(&self) -> Option<Millis> {
        self.reason.and_then(|(_, until)| until)
    }
}
