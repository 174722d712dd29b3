//! Work that ends (`restart: on-failure` or `never`): executors that have completed or were given up,
//! the pods that stay as their records, and the end of the run after the last one.

use std::sync::Arc;

use super::Reconciler;
use super::create_retries::forget_refusal;
use crate::model::event::{DeleteCause, ExecutorEvent, LossReason};
use crate::model::fact::Topic;
use crate::model::ids::ExecutorId;
use crate::model::pod::Pod;
use crate::model::settings::{RecordUse, Restart};
use crate::model::task::TaskEnd;
use crate::policy::loss::{Loss, classify};
use crate::state::errands::MutationKind;
use crate::state::executors::{Ending, Executor, Group, Life};
use posse_base::time::Millis;

/// How many records of tasks a group keeps, and how many of its other executors without
/// `completions`. With it, all of these are kept: each is an index.
const RECORDS_MAX: usize = 1_000;
/// The same in a run with a record of its own, where nothing but a person needs these pods.
const RECORDS_TO_LOOK_AT_MAX: usize = 50;

impl Reconciler {
    /// True if this pod, which has ended, has done its work: its main container ended with 0 by itself.
    pub(super) fn completes(&self, executor: &Executor, pod: &Pod) -> bool {
        let group = self.executors.home(executor);
        let is_open = match executor.life {
            // In a drain period an executor may finish its work. With a record it may before the delete has reached its
            // pod: else the delete takes away what tells the next process. A lower target has taken account of an
            // executor without `completions`, and a call of a task; a stop of none.
            Life::Ending(Ending { cause, drain_until }) => {
                let is_index = group.spec.completions.is_some() && executor.task.is_none();
                (drain_until.is_some() || self.has_record())
                    && (is_index || cause == DeleteCause::Stopped)
            }
            Life::Wanted => pod.draining.is_none() || group.spec.completions.is_some(),
            Life::Cancelled | Life::Completed | Life::Gone | Life::Lost { .. } | Life::Retained => {
                false
            }
        };
        is_open
            && (self.has_record() || !self.end.ends_executors())
            && !self.is_dismissed(pod.id, &executor.group)
            && !self.repeats_work(executor, pod)
            && (group.spec.restart != Restart::Always || executor.task.is_some())
            && classify(pod, false).reason == LossReason::Completed
    }

    /// The create of an earlier process took effect late, and another executor has done the work of this index or
    /// is at it. What the record says of the index may be this executor's own work: posse was lost before it told so.
    fn repeats_work(&self, executor: &Executor, pod: &Pod) -> bool {
        let group = self.executors.home(executor);
        let may_repeat = group.spec.completions.is_some()
            && executor.is_adopted
            && executor.task.is_none()
            && executor.slot.is_none();
        let mut others = self.executors.own(group);
        may_repeat && pod.slot.is_some() && others.any(|(_, other)| other.slot == pod.slot)
    }

    /// Reports that the work of an executor is done, once for each uid.
    pub(super) fn complete(&mut self, id: ExecutorId, now: Millis) {
        let is_first_sight = self.change(id, now, |executor| {
            executor.life = Life::Completed;
            executor.running_since.is_none() && !executor.is_adopted
        });
        let node = self.seen(id).and_then(|(_, pod)| Some(pod.node.as_deref()?.to_owned()));
        self.tell(id, ExecutorEvent::Completed { node });
        if let Some(throttle) = self.executors.throttle_of(id) {
            if is_first_sight {
                throttle.backoff.on_started(now);
            }
            // Work that is done ends a crash loop, however short it was.
            throttle.backoff.on_proven(id);
            throttle.backoff.discard_probe(id);
        }
        if let Some(group) = self.executors.group_of(id).filter(|_| is_first_sight) {
            forget_refusal(group);
        }
        if self.has_task(id) {
            self.end_task_of(id, TaskEnd::SUCCEEDED, now);
        } else {
            self.note_done(id, true, true, now);
        }
    }

    /// An executor was lost: gives its work up if its group or its task says so.
    pub(super) fn give_up(
        &mut self,
        id: ExecutorId,
        loss: &Loss,
        lived_ms: Option<u64>,
        now: Millis,
    ) {
        let restart = self.executors.group_of(id).map(|group| group.spec.restart);
        if self.has_task(id) {
            // A task that has failed is not started again, so its failure is no crash loop.
            if self.lose_task(id, loss, now) {
                return self.executors.discard_probe(id);
            }
        } else if restart == Some(Restart::Never) && loss.caused_by_app() {
            self.note_done(id, false, true, now);
        }
        self.update_backoff(id, lived_ms, loss, now);
    }

    /// Nothing takes the place of this executor. `is_new`: it was reported by this run. Otherwise a
    /// target that was set in this run took account of it.
    pub(super) fn note_done(
        &mut self,
        id: ExecutorId,
        is_completed: bool,
        is_new: bool,
        now: Millis,
    ) {
        let index = self.change(id, now, |executor| {
            executor.is_done = true;
            executor.slot
        });
        let Some(group) = self.executors.group_of(id) else { return };
        let before = group.target();
        let has_indexes = group.spec.completions.is_some();
        // Without an index another one has it, or it has ended before.
        let is_first = match has_indexes {
            true => index.is_some_and(|index| group.ended.insert(index, is_completed)),
            false => !group.recorded_ends.remove(&id),
        };
        if is_first {
            group.work.on_end(is_completed);
        }
        if is_first && !has_indexes && (is_new || !group.is_target_set) {
            group.spec.target = group.spec.target.saturating_sub(1);
            group.spec.min = group.spec.min.min(group.spec.target);
        }
        let (name, target) = (group.spec.name.clone(), group.target());
        match index {
            Some(index) if has_indexes => self.note_end(Topic::work(&name, index)),
            _ if has_indexes => {}
            _ => self.note_target(&name),
        }
        if target != before {
            self.on_target_changed(name, target, now);
        }
    }

    /// Keeps the pod of an executor whose work is done or given up.
    pub(super) fn keep_record(&mut self, id: ExecutorId) {
        let is_new = |pod: &Pod| !pod.completed || pod.rest_deadline_s(pod.grace_s).is_some();
        let seen = self.seen(id).filter(|(executor, _)| executor.life == Life::Completed);
        if let Some(uid) = seen.filter(|(_, pod)| is_new(pod)).map(|(_, pod)| pod.uid.clone()) {
            self.request(&uid, MutationKind::LabelCompleted);
        }
        self.executors.insert_record(id, false);
    }

    /// Deletes the oldest records of groups that have too many.
    pub(super) fn trim_records(&mut self, now: Millis) {
        let of_recorded = match self.server.counts_ended() {
            // They would take the room of executors, and of the driver's next pod while no posse runs.
            true => 0,
            false => RECORDS_TO_LOOK_AT_MAX,
        };
        let max = |is_recorded, otherwise| if is_recorded { of_recorded } else { otherwise };
        let max_of_tasks = max(self.has_record(), RECORDS_MAX);
        let max_of_indexes = max(self.has_record(), usize::MAX);
        let max_of_others = max(self.records_targets(), RECORDS_MAX);
        let oldest = |group: &Group| {
            let max = group.spec.completions.map_or(max_of_others, |_| max_of_indexes);
            let of_tasks = group.tasks.records.beyond(max_of_tasks);
            let surplus = group.records.beyond(max).chain(of_tasks);
            surplus.filter(|&id| self.is_end_recorded(id)).collect::<Vec<ExecutorId>>()
        };
        let surplus: Vec<ExecutorId> = self.executors.groups().values().flat_map(oldest).collect();
        for id in surplus {
            self.delete_pod_of(id, now);
        }
    }

    /// The record, if there is one, has the end of this executor's work: without its pod nobody else knows of it.
    pub(super) fn is_end_recorded(&self, id: ExecutorId) -> bool {
        let Some(executor) = self.executors.get(id) else { return true };
        let name = executor.group.clone();
        let topic = match &executor.task {
            Some(run) => Topic::Progress(name, Arc::clone(&run.task.key)),
            None if self.executors.home(executor).spec.completions.is_some() => {
                // It may be the one that tells of the others.
                if !self.executors.home(executor).folded.is_empty() {
                    return !self.unrecorded.has_work(&name);
                }
                // Without an index another one has it, or it has ended before.
                let Some(index) = executor.slot else { return true };
                Topic::work(&name, index)
            }
            None => Topic::Target(name),
        };
        !self.unrecorded.has(&topic)
    }

    /// At the stop of a run that failed, the last failed pods stay: those of work that was given up are
    /// no more than the others.
    pub(super) fn give_up_records(&mut self, now: Millis) {
        let groups = self.executors.groups().values();
        let records =
            groups.flat_map(|group| group.records.iter().chain(group.tasks.records.iter()));
        let is_failed = |id: &ExecutorId| {
            self.executors.get(*id).is_some_and(|executor| executor.life == Life::Retained)
        };
        let failed = records.filter(|id| is_failed(id) && self.is_end_recorded(*id));
        let failed: Vec<ExecutorId> = failed.collect();
        failed.into_iter().for_each(|id| self.executors.retained.push(id));
        self.trim_retained(now);
    }

    /// Says whether the work of all groups has ended, and whether the run has nothing to do, from its first LIST on.
    pub(super) fn judge_end(&mut self, now: Millis) {
        // What an earlier process has left is not waited for.
        let is_awaited = |group: &&Group| !group.is_idle_remnant() || !group.members.is_empty();
        let groups: Vec<&Group> = self.executors.groups().values().filter(is_awaited).collect();
        // Nothing else ends the run, and all pods are known.
        let may_have_ended =
            !self.gates.are_creates_stopped() && self.had_first_list() && self.snapshot.is_synced();
        let has_ended = self.policy.ends_with_work
            && may_have_ended
            && !groups.is_empty()
            && groups.iter().all(|group| group.is_finished());
        let has_nothing = |group: &&Group| {
            group.tasks.n_open() == 0 && group.target() == 0 && group.counts().capacity() == 0
        };
        let idle_end_ms = self.policy.idle_end_ms;
        // What it cannot read may say that there is work.
        let is_idle = idle_end_ms > 0
            && may_have_ended
            && !matches!(self.policy.record, RecordUse::Missing(_))
            && groups.iter().all(has_nothing);
        let idle_end_ms = is_idle.then_some(idle_end_ms);
        let at = self.end.judge_rest(has_ended, idle_end_ms, self.n_given_up(), now);
        at.into_iter().for_each(|at| self.due.add_turn(at));
    }

    /// How much work has failed for good: executors, and tasks that have not succeeded since.
    fn n_given_up(&self) -> u32 {
        let groups = self.executors.groups().values();
        groups.map(|group| group.work.n_given_up().saturating_add(group.tasks.n_failed())).sum()
    }
}
