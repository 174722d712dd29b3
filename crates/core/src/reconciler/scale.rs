//! Groups whose targets a command sets (`scale`).

use super::Reconciler;
use crate::model::command::Reply;
use crate::model::ids::GroupName;
use posse_base::time::Millis;

impl Reconciler {
    /// The command of a group gave a target, or failed: then the last target stays.
    pub(super) fn on_scale_read(
        &mut self,
        name: &GroupName,
        outcome: Result<Option<u32>, String>,
        now: Millis,
    ) {
        let group = self.executors.groups.get_mut(name);
        // A group that was deleted and made anew takes its target from calls.
        let Some(group) = group.filter(|group| group.spec.is_scaled) else { return };
        match outcome {
            Ok(target) => {
                group.scale_error = None;
                // Also if it is the same: a kill may have lowered the target.
                if let Some(target) = target {
                    self.set_target(name, target, now);
                }
            }
            Err(message) => group.scale_error = Some(message),
        }
    }

    /// The refusal of a call that sets the target of such a group: the next reading would undo it.
    pub(super) fn scaled_by_command(&self, name: &GroupName) -> Option<Reply> {
        let group = self.executors.groups.get(name)?;
        group.spec.is_scaled.then(|| Reply::Refused {
            what: format!("the command of `scale` sets the target of group {name}"),
            field: "target",
        })
    }
}
