//! `on_loss: group`: the loss of one executor ends all executors of its group, and the next attempt
//! begins when they have ended. The number of the attempt is on the pods (label `posse.dev/attempt`), so
//! that a restarted posse completes what it finds half done.

use super::Reconciler;
use crate::model::event::{DeleteCause, Event, GroupEvent};
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::status::State;
use crate::state::create_backoff::CreateBackoff;
use crate::state::executors::{Ending, Executor, Life, has_ended};
use posse_base::time::Millis;

impl Reconciler {
    /// The loss of this executor was reported. A loss of an earlier attempt is part of the restart that
    /// is under way.
    pub(super) fn restart_group_of(&mut self, id: ExecutorId, now: Millis) {
        // A task does not need the other executors.
        let Some(executor) = self.executors.get(id).filter(|one| one.task.is_none()) else {
            return;
        };
        let (name, attempt) = (executor.group.clone(), executor.attempt);
        let is_due = self.live_group(&name).is_some_and(|group| {
            group.spec.restarts_whole() && group.attempts.current() == attempt
        });
        if is_due && !self.end.is_stopping() {
            self.restart_group(&name, now);
        }
    }

    fn restart_group(&mut self, name: &GroupName, now: Millis) {
        let Some(group) = self.executors.groups().get(name) else { return };
        let own: Vec<ExecutorId> = self.executors.own(group).map(|(id, _)| id).collect();
        let Some(group) = self.executors.group_mut(name) else { return };
        let target = group.target();
        let attempt = group.attempts.begin_next();
        self.out.tell(Event::Group(name.clone(), GroupEvent::Restarted { attempt }));
        // What some executors have completed is worth nothing without the others.
        self.forget_work(name);
        let n_changes = self.unrecorded.n_changes();
        if let Some(group) = self.executors.group_mut(name) {
            group.attempts.record_at(n_changes);
        }
        for id in own {
            self.end_earlier_attempt(id, now);
        }
        let Some(group) = self.executors.groups().get(name) else { return };
        if group.target() != target {
            let target = group.target();
            self.on_target_changed(name.clone(), target, now);
        }
    }

    /// Ends an executor of an earlier attempt at once: without the others it can do nothing, so it needs
    /// no drain period.
    fn end_earlier_attempt(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let life = executor.life;
        self.await_end(id);
        match life {
            Life::Completed => {
                self.executors.release_slot(id);
                self.delete_pod_of(id, now);
            }
            Life::Wanted => self.end(id, DeleteCause::GroupRestarted, now),
            Life::Ending(Ending { drain_until: Some(_), .. })
            | Life::Lost { ending: Some(Ending { drain_until: Some(_), .. }) } => {
                self.end_drain(id, now);
            }
            Life::Cancelled | Life::Ending(_) | Life::Gone | Life::Lost { .. } | Life::Retained => {
            }
        }
    }

    /// The next attempt waits for the end of this executor, unless it has ended.
    pub(super) fn await_end(&mut self, id: ExecutorId) {
        let can_run = self.executors.get(id).is_some_and(|executor| self.can_run(executor));
        if let Some(group) = self.executors.group_of(id).filter(|_| can_run) {
            group.attempts.await_end(id);
        }
    }

    /// True if the main container runs or may still begin to run. Also if a LIST does not show the pod any more, until that
    /// is looked at.
    pub(super) fn can_run(&self, executor: &Executor) -> bool {
        let pod = executor.pod(&self.snapshot);
        executor.life != Life::Gone && pod.is_none_or(|pod| !has_ended(pod))
    }

    /// Before the first pods are adopted: the attempt of each group is the latest that a pod shows.
    pub(super) fn note_attempts(&mut self) {
        let ours = self
            .snapshot
            .pods()
            .filter(|pod| self.is_ours(pod) && !self.is_dismissed(pod.id, &pod.group));
        let found: Vec<(GroupName, u32)> = ours
            .filter(|pod| pod.attempt > 1)
            .map(|pod| (pod.group.clone(), pod.attempt))
            .collect();
        for (name, attempt) in found {
            self.find_attempt(&name, attempt);
        }
    }

    /// A pod or the record shows an attempt. What is known of earlier ones was recorded before it began.
    pub(super) fn find_attempt(&mut self, name: &GroupName, attempt: u32) {
        let Some(group) = self.executors.group_mut(name) else { return };
        let known = group.attempts.current();
        group.attempts.on_found(attempt);
        if group.attempts.current() != known && group.work.n_ended() > 0 {
            self.forget_work(name);
        }
    }

    /// The executors of an earlier run were found. If one of the attempt is missing, its loss may have
    /// happened while posse was away, and the others cannot go on without it. No budget is charged.
    pub(super) fn restart_if_incomplete(&mut self, name: &GroupName, now: Millis) {
        let Some(group) = self.executors.groups().get(name) else { return };
        if !group.spec.restarts_whole() || group.is_removed || self.end.is_stopping() {
            return;
        }
        let own = self.executors.own(group).map(|(_, executor)| executor);
        let found: Vec<&Executor> =
            own.filter(|executor| executor.attempt == group.attempts.current()).collect();
        let is_capacity = |executor: &&&Executor| {
            matches!(executor.state, State::Requested | State::Pending | State::Running)
        };
        let highest = found.iter().filter(|executor| is_capacity(executor) || executor.is_done);
        let n_slots = highest.filter_map(|e| e.slot).max().map_or(0, |highest| highest + 1);
        // The pods of those that have completed may be gone. If some have, the attempt has begun, whoever is left.
        let n_completed = group.work.n_completed();
        let n_wanted = group.target().saturating_add(n_completed).max(n_slots);
        let n_capacity = found.iter().filter(is_capacity).count();
        let n_there = u32::try_from(n_capacity).unwrap_or(u32::MAX).saturating_add(n_completed);
        if (!found.is_empty() || n_completed > 0) && n_there < n_wanted {
            self.restart_group(name, now);
        }
    }

    /// How many other executors end by the loss of this one soon after their start.
    pub(super) fn n_early_mates(&self, id: ExecutorId, now: Millis) -> usize {
        let Some(executor) = self.executors.get(id) else { return 0 };
        let group = self.executors.home(executor);
        if executor.task.is_some() || !group.spec.restarts_whole() {
            return 0;
        }
        let is_early = |(other_id, other): &(ExecutorId, &Executor)| {
            let is_young =
                other.running_since.is_some_and(|since| CreateBackoff::proven_at(since) > now);
            *other_id != id && is_young && !other.is_adopted && other.state == State::Running
        };
        self.executors.own(group).filter(is_early).count()
    }
}
