//! When the work of a group has ended, and when the group itself.

use crate::model::settings::Restart;
use crate::state::executors::Group;

impl Group {
    /// True if some work has ended, and none is left.
    pub fn is_finished(&self) -> bool {
        self.spec.restart != Restart::Always
            && self.tasks.n_open() == 0
            && self.work.n_ended() > 0
            && (self.n_left() == 0 || self.spec.completions.is_none() && self.spec.target == 0)
            && self.counts().capacity() == 0
    }

    /// True if it has no executors and is neither configured nor targeted, so it can be removed.
    pub fn is_over(&self) -> bool {
        let is_wanted = self.is_known || self.is_target_set || self.tasks.n_open() > 0;
        let is_unwanted = self.is_removed || !is_wanted;
        is_unwanted && self.members.is_empty()
    }
}
