//! Creating, changing and deleting groups while a run is in progress. Repeated calls change
//! nothing.

use super::Reconciler;
use crate::core::model::command::{GroupChange, Reply};
use crate::core::model::event::{DeleteCause, Event};
use crate::core::model::ids::{ExecutorId, GroupName};
use crate::core::model::time::Millis;
use crate::core::policy::memory_scaling::MemoryScaling;
use crate::core::policy::settings::GroupSpec;
use crate::core::policy::throttle::{CreateThrottle, ThrottleCause};
use crate::core::state::executors::{Group, Life};

/// Limits the cost of a turn, which goes through all groups.
const GROUPS_MAX: usize = 1_000;

impl Reconciler {
    /// Creates or changes a group; its executors stay as they are. A group that is being deleted is
    /// created again beside its old executors.
    pub(super) fn put_group(&mut self, name: GroupName, change: GroupChange, now: Millis) -> Reply {
        let GroupChange { pod, target, min, max, scale_down, replace } = change;
        let before = self.executors.groups.get(&name).filter(|group| !group.is_removed);
        let old = before.map_or_else(|| GroupSpec::bare(name.clone()), |group| group.spec.clone());
        if before.is_none() && self.executors.groups.len() >= GROUPS_MAX {
            let what = format!(
                "there are already {GROUPS_MAX} groups, which is the maximum: delete one first"
            );
            return Reply::Refused { what, field: "group" };
        }
        let is_new_pod = old.pod.as_ref() != Some(&pod);
        let min = min.unwrap_or(old.min);
        let max = max.or(old.max);
        if max.is_some_and(|max| max < min) {
            let what = format!("is below min, which is {min}");
            return Reply::Refused { what, field: "max" };
        }
        let spec = GroupSpec {
            target: target.unwrap_or(old.target).max(min).min(max.unwrap_or(u32::MAX)),
            min,
            max,
            scale_down: scale_down.unwrap_or(old.scale_down),
            replace: replace.unwrap_or(old.replace),
            // From now on the group comes from the call, not from the file.
            from_file: false,
            memory_steps: pod.memory_steps(),
            decommission: old.decommission,
            pod: Some(pod),
            name: name.clone(),
        };
        let group = self
            .executors
            .groups
            .entry(name.clone())
            .or_insert_with(|| Group::new(GroupSpec::bare(name.clone()), true));
        if group.is_removed {
            (group.is_removed, group.is_target_set, group.had_pods) = (false, false, false);
        }
        // A dry run has just succeeded, so earlier refusals do not count.
        if is_new_pod
            || matches!(
                group.throttle.cause(),
                Some(ThrottleCause::Permanent | ThrottleCause::Forbidden)
            )
        {
            (group.throttle, group.refusal) = (CreateThrottle::default(), None);
        }
        if is_new_pod {
            group.memory_scaling = MemoryScaling::default();
        }
        group.is_known = true;
        group.is_target_set |= target.is_some();
        let target = spec.target;
        group.spec = spec;
        group.on_target_raised(target.saturating_sub(old.target));
        if target != old.target {
            self.events.push_back(Event::TargetChanged { group: name, target });
            self.note_targets(now);
        }
        Reply::Target(target)
    }

    /// Deletes a group: ends all of its executors; the group is removed after them.
    pub(super) fn delete_group(&mut self, name: &GroupName, now: Millis) -> Reply {
        let Some(group) = self.executors.groups.get_mut(name) else { return Reply::UnknownGroup };
        if group.is_removed {
            return Reply::Done;
        }
        group.is_removed = true;
        group.refusal = None;
        let had_target = group.spec.target > 0;
        (group.spec.target, group.spec.min) = (0, 0);
        let members: Vec<ExecutorId> = group.members.iter().copied().collect();
        if had_target {
            self.events.push_back(Event::TargetChanged { group: name.clone(), target: 0 });
            self.note_targets(now);
        }
        for id in members {
            self.end_member(id, now);
        }
        if self.had_first_list() {
            self.forget_empty_groups();
        }
        Reply::Done
    }

    /// Ends an executor of a deleted group; a retained pod is deleted too.
    fn end_member(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        if executor.life != Life::Retained {
            if !executor.life.is_lost() {
                self.end(id, DeleteCause::ScaledDown, now);
            }
            return;
        }
        self.delete_pod_of(id);
        self.refresh_state(id, now);
    }

    /// Removes groups that are over. Not called before the first LIST, whose pods may belong to
    /// them.
    pub(super) fn forget_empty_groups(&mut self) {
        self.executors.groups.retain(|_, group| !group.is_over());
    }
}
