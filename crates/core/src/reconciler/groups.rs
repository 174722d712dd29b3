//! Creating, changing and deleting groups while a run is in progress, and targets that a command sets (`scale`).
//! Repeated calls change nothing.

use std::sync::Arc;

use super::Reconciler;
use super::tasks::needs_slots;
use crate::model::command::{GroupChange, Reply};
use crate::model::event::DeleteCause;
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::pod_text::PreferredNode;
use crate::model::settings::{GroupSpec, Restart, Together, completions_error};
use crate::model::waiting::{ServerWait, Waiting};
use crate::state::create_backoff::CreateBackoff;
use crate::state::executors::{Group, Life};
use crate::state::memory_scaling::MemoryScaling;
use posse_base::time::Millis;

/// Limits the cost of a turn while all groups wait for executors.
const GROUPS_MAX: usize = 1_000;

impl Reconciler {
    /// Creates or changes a group; its executors stay as they are. A group that is being deleted is
    /// created again beside its old executors. `is_restored`: the change is what several calls have said.
    pub(super) fn put_group(
        &mut self,
        name: GroupName,
        change: GroupChange,
        is_restored: bool,
        now: Millis,
    ) -> Reply {
        let before = self.live_group(&name);
        if before.is_none() && self.executors.groups().len() >= GROUPS_MAX {
            return too_many_groups();
        }
        let old = before.map_or_else(|| GroupSpec::bare(name.clone()), |group| group.spec.clone());
        let is_new_pod = old.pod.as_ref() != Some(&change.pod);
        let old_target = before.map_or(0, Group::target);
        let had_stable_slots = old.has_stable_slots();
        let (call, is_target_given) = (change.call.clone(), change.target.is_some());
        let spec = match changed(before, old, change, is_restored) {
            Ok(spec) => spec,
            Err((field, what)) => return Reply::Refused { what, field },
        };
        self.put_spec(spec, is_new_pod).note_call(call);
        self.claim_work(&name);
        let Some(group) = self.executors.group_mut(&name) else { return Reply::UnknownGroup };
        let was_found = !std::mem::replace(&mut group.is_known, true);
        group.is_target_set |= is_target_given;
        let target = group.target();
        group.on_target_raised(target.saturating_sub(old_target));
        if group.spec.has_stable_slots() != had_stable_slots {
            self.executors.sort_victims(&name, &self.snapshot);
        }
        if was_found {
            self.restart_if_incomplete(&name, now);
        }
        self.note_group(&name);
        if target != old_target {
            self.note_target(&name);
            self.on_target_changed(name, target, now);
        }
        Reply::Target(target)
    }

    /// The nodes for the group's next executors, by the driver's word. Those that exist stay where they are.
    pub(super) fn prefer_nodes(&mut self, name: &GroupName, nodes: Vec<PreferredNode>) -> Reply {
        let Some(group) = self.executors.group_mut(name).filter(|group| !group.is_removed) else {
            return Reply::UnknownGroup;
        };
        if group.spec.together == Together::Queue {
            let what = "has `queue_group: true`, so its queue has admitted its pods as they are";
            return Reply::Refused { what: what.to_owned(), field: "group" };
        }
        group.preferred = Arc::new(nodes);
        Reply::Done
    }

    /// The group with these settings. It is created if there is none.
    fn put_spec(&mut self, spec: GroupSpec, is_new_pod: bool) -> &mut Group {
        let was_deleted = self.executors.deleted.remove(&spec.name);
        if was_deleted.is_some() {
            self.note_target(&spec.name);
        }
        let new = || Group::new(GroupSpec::bare(spec.name.clone()), true);
        let group = self.executors.group_or_insert(spec.name.clone(), new);
        group.of_file = group.of_file.or(was_deleted);
        group.is_anew |= was_deleted.is_some();
        if group.is_removed {
            (group.is_removed, group.is_target_set, group.n_accepted) = (false, false, 0);
            group.calls.clear();
            group.preferred = Arc::default();
        }
        accept_pod(group, is_new_pod);
        group.spec = spec;
        group
    }

    /// The command of a group gave a target, or failed: then the last target stays.
    pub(super) fn on_scale_read(
        &mut self,
        name: &GroupName,
        outcome: Result<Option<u32>, String>,
        now: Millis,
    ) {
        let group = self.executors.group_mut(name);
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
        let group = self.executors.groups().get(name)?;
        group.spec.is_scaled.then(|| Reply::Refused {
            what: format!("the command of `scale` sets the target of group {name}"),
            field: "target",
        })
    }

    /// Deletes a group: ends all of its executors; the group is removed after them.
    pub(super) fn delete_group(&mut self, name: &GroupName, now: Millis) -> Reply {
        let Some(group) = self.executors.group_mut(name) else { return Reply::UnknownGroup };
        if group.is_removed {
            return Reply::Done;
        }
        group.refusal = None;
        let had_target = group.target() > 0;
        group.is_removed = true;
        (group.spec.target, group.spec.min) = (0, 0);
        let members: Vec<ExecutorId> = group.members.iter().copied().collect();
        let of_file = group.of_file.map(|of_file| (name.clone(), of_file));
        self.executors.deleted.extend(of_file);
        self.forget_work(name);
        self.dismiss_all(name);
        self.note_group(name);
        self.note_target(name);
        self.cancel_all_tasks(name);
        if had_target {
            self.on_target_changed(name.clone(), 0, now);
        }
        for id in members {
            self.end_member(id, now);
        }
        if self.had_first_list() {
            self.executors.forget_empty_groups();
        }
        Reply::Done
    }

    /// Ends an executor of a deleted group; a retained pod is deleted too.
    fn end_member(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        if !matches!(executor.life, Life::Completed | Life::Retained) {
            if !executor.life.is_lost() {
                self.end(id, DeleteCause::ScaledDown, now);
            }
            return;
        }
        self.delete_pod_of(id, now);
    }
}

/// The settings of a group after this change, or the field that is refused, and why.
fn changed(
    before: Option<&Group>,
    old: GroupSpec,
    change: GroupChange,
    is_restored: bool,
) -> Result<GroupSpec, (&'static str, String)> {
    let GroupChange { pod, target, min, max, scale_down, replace, slots, .. } = change;
    let GroupChange { on_loss, restart, completions, decommission, .. } = change;
    if old.together == Together::Queue {
        let what = "has `queue_group: true`, so its queue has admitted its pods as they are: change \
                    the file, or delete the group and put another one";
        return Err(("group", what.to_owned()));
    }
    let max = max.or(old.max);
    let min = match min.unwrap_or(old.min) {
        // Work that had ended had lowered it.
        min if is_restored => min.min(max.unwrap_or(u32::MAX)),
        min => min,
    };
    if max.is_some_and(|max| max < min) {
        return Err(("max", format!("is below min, which is {min}")));
    }
    let restart = restart.unwrap_or(old.restart);
    let n_completed = before.map_or(0, |group| group.work.n_completed());
    if let Some(n) = completions {
        let rule = completions_error(n, restart).map(str::to_owned);
        let is_below = || format!("is below {n_completed}, which have completed");
        if let Some(what) = rule.or_else(|| (n < n_completed).then(is_below)) {
            return Err(("completions", what));
        }
    }
    let spec = GroupSpec {
        restart,
        completions: completions.or(old.completions).filter(|_| restart != Restart::Always),
        target: target.unwrap_or(old.target).max(min).min(max.unwrap_or(u32::MAX)),
        min,
        max,
        scale_down: scale_down.unwrap_or(old.scale_down),
        replace: replace.unwrap_or(old.replace),
        slots: slots.unwrap_or(old.slots),
        on_loss: on_loss.unwrap_or(old.on_loss),
        // From now on the group comes from the call, not from the file.
        from_file: false,
        decommission: decommission.or(old.decommission),
        pod: Some(pod),
        ..old
    };
    // Two calls may have said what one alone cannot say.
    let (replace, slots) = if is_restored { (None, None) } else { (replace, slots) };
    match spec.conflict(replace, slots).or_else(|| tasks_conflict(before, &spec)) {
        Some(refusal) => Err(refusal),
        None => Ok(spec),
    }
}

/// Why a group with open tasks cannot get slots of its own: the executors of tasks have none.
fn tasks_conflict(before: Option<&Group>, spec: &GroupSpec) -> Option<(&'static str, String)> {
    let n_open = before.filter(|group| needs_slots(&group.spec).is_none())?.tasks.n_open();
    let (key, what) = needs_slots(spec).filter(|_| n_open > 0)?;
    let what =
        format!("{what}: the group has {n_open} open tasks, which have no slot: use another group");
    Some((key, what))
}

fn too_many_groups() -> Reply {
    let what =
        format!("there are already {GROUPS_MAX} groups, which is the maximum: delete one first");
    Reply::Refused { what, field: "group" }
}

/// A dry run of the group's pod has just succeeded, so earlier refusals do not count.
fn accept_pod(group: &mut Group, is_new_pod: bool) {
    for throttle in group.tasks.throttles.all_mut() {
        let cause = throttle.backoff.cause();
        let is_refused =
            cause.is_some_and(|cause| cause.waiting() == Waiting::Server(ServerWait::Permanent));
        if is_new_pod || is_refused {
            (throttle.backoff, group.refusal) = (CreateBackoff::default(), None);
        }
    }
    if is_new_pod {
        group.starts_fail_since = None;
        group.memory_scaling = MemoryScaling::default();
    }
}
