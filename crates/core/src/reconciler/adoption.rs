//! Adopts the pods that earlier runs created: `policy::adoption` decides what each is to this run, and
//! this carries it out.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Reconciler;
use super::tasks::end_of_record;
use crate::model::event::DeleteCause;
use crate::model::ids::{ExecutorId, Uid};
use crate::model::pod::Pod;
use crate::model::settings::GroupSpec;
use crate::policy::adoption::{Adoption, GroupFacts, PodFacts, Reported, judge};
use crate::state::executors::{Executor, Group, Life, has_ended};
use crate::state::snapshot::Change;
use crate::state::tasks::Adopted;
use posse_base::time::Millis;

impl Reconciler {
    /// First the pods of tasks that a call has opened again, as earlier ones tell ends that no longer count. Then what was
    /// told as done, what was told as lost, what has ended, and what runs. Of two that have ended with one index the later
    /// one counts: it was begun because the other did not.
    pub(super) fn adoption_order(
        &self,
        change: &Change,
    ) -> (Reverse<u32>, u8, Reverse<ExecutorId>) {
        let any = Reverse(ExecutorId(0));
        let pod = match change {
            Change::Gone(_) => None,
            Change::Updated(uid) => self.snapshot.get(uid),
        };
        let round = pod.and_then(|pod| pod.task.as_ref()).map_or(0, |run| run.round);
        let (rank, id) = match pod {
            Some(pod) if pod.completed => (0, any),
            Some(pod) if pod.counted.is_some() => (1, any),
            Some(pod) if has_ended(pod) => (2, Reverse(pod.id)),
            Some(_) | None => (3, any),
        };
        (Reverse(round), rank, id)
    }

    /// Adopts a pod that an earlier run created.
    pub(super) fn adopt(&mut self, id: ExecutorId, uid: &Uid, now: Millis) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        let is_stopping = self.end.ends_executors();
        let is_known_end = self.is_known_end(pod);
        let is_dismissed = self.is_dismissed(id, &pod.group);
        let group = self.executors.group_or_insert(pod.group.clone(), || {
            let spec = GroupSpec { restart: pod.restart, ..GroupSpec::bare(pod.group.clone()) };
            Group::new(spec, false)
        });
        // Nobody knows it any more. What an earlier process has told of it stays to be looked at.
        let is_left = self.policy.begins_anew
            && pod.task.is_none()
            && group.spec.completions.is_none()
            && (pod.counted.is_none() || pod.completed);
        let pod_facts = facts_of_pod(pod, is_dismissed || is_left);
        let adoption = judge(&pod_facts, &facts_of_group(group, is_stopping));
        let Adoption { is_done, is_earlier, life, .. } = adoption;
        group.n_accepted += 1;
        group.attempts.on_found(adoption.group_attempt);
        let mut executor = Executor::new(pod.group.clone(), now);
        executor.uid = Some(uid.clone());
        executor.is_adopted = true;
        executor.awaits_heartbeat = self.policy.heartbeat_timeout_ms > 0 && pod.task.is_none();
        // Which nodes it avoids is not known, so assume the longest time.
        let bad_nodes = &self.policy.bad_nodes;
        executor.avoids_until = (bad_nodes.losses > 0).then(|| now.after(bad_nodes.avoid_for_ms));
        executor.attempt = adoption.attempt;
        executor.task = pod.task.clone();
        if !executor.has_own_memory() {
            executor.memory_limit_bytes = pod.memory_limit_bytes;
            let text = group.spec.pod.as_ref();
            executor.memory_step = text.map_or(0, |text| text.step_of(pod.memory_limit_bytes));
        }
        executor.life = life;
        executor.is_done = is_done;
        let is_known_end = is_known_end && is_done;
        executor.slot = pod
            .slot
            .filter(|&slot| is_known_end || adoption.claims_slot && group.slots.claim(slot));
        let taken = pod.slot.filter(|_| adoption.needs_slot && executor.slot.is_none());
        if let Some(slot) = taken {
            group.slots.note_late(slot, id);
        }
        let has_task = executor.task.is_some();
        let retained_since = pod.counted.filter(|_| life == Life::Retained && !is_done);
        self.executors.insert(id, executor, Some(pod));
        if is_earlier {
            self.await_end(id);
        }
        if is_done {
            self.executors.insert_record(id, true);
        }
        if taken.is_some() {
            self.note_late_pod(id);
        }
        if has_task {
            self.adopt_task(id, now);
        } else if is_known_end {
            debug_assert!(taken.is_none(), "its slot is its own");
        } else if is_done {
            self.note_done(id, life == Life::Completed, false, now);
        } else if taken.is_some() {
            self.end(id, DeleteCause::Condemned, now);
        }
        if let Some(at) = retained_since {
            self.executors.retain_since(id, at, &self.snapshot);
        }
        self.trim_retained(now);
    }

    /// The record of the run has the end of this index already, and the slot with it. If another pod has the slot, it
    /// has ended with the same index: a restore of etcd can bring two.
    fn is_known_end(&self, pod: &Pod) -> bool {
        let Some(group) = self.executors.groups().get(&pod.group) else { return false };
        let is_known = |slot| {
            group.ended.contains(slot)
                && !self.executors.own(group).any(|(_, other)| other.slot == Some(slot))
        };
        pod.task.is_none() && pod.slot.is_some_and(is_known)
    }

    /// A pod of an earlier process has a task.
    fn adopt_task(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let Some(run) = executor.task.as_deref() else { return };
        let Some(pod) = executor.pod(&self.snapshot) else { return };
        let (run, name) = (run.clone(), executor.group.clone());
        let is_live = executor.life == Life::Wanted && !has_ended(pod);
        let (end, is_record) = (end_of_record(pod), executor.is_done);
        let was_counted = pod.counted.is_some();
        let is_dismissed = self.is_dismissed(id, &name);
        let can_run = !has_ended(pod);
        let Some(group) = self.executors.group_mut(&name) else { return };
        if is_dismissed {
            // Its task is over. A new one with this key waits for its end.
            if can_run {
                group.tasks.leave(&run.task.key, id);
            }
            return;
        }
        if group.tasks.forget_before(&run) {
            self.executors.ended_tasks.forget(&name, &run.task.key);
        }
        let Some(group) = self.executors.group_mut(&name) else { return };
        let adopted = if is_record {
            group.tasks.adopt_record(&run, id, end.clone())
        } else {
            group.tasks.adopt(&run, id, is_live)
        };
        // The record of the run has its end, and nobody may have kept its output.
        let ended = group.tasks.ended(&run.task.key);
        let is_last = ended.is_some_and(|ended| ended.executor == Some(id));
        if matches!(adopted, Adopted::Ended | Adopted::Recorded)
            || adopted == Adopted::Known && is_last
        {
            self.keep_output(id, true);
        }
        let key = &run.task.key;
        if !matches!(adopted, Adopted::Known | Adopted::Second) {
            self.note_task(&name, key);
        }
        let Some(group) = self.executors.group_mut(&name) else { return };
        match adopted {
            Adopted::Current if was_counted => {
                // The earlier process has charged this failure to the retries.
                if group.tasks.take_retry(&run, id) {
                    group.tasks.release(key, id, true);
                } else {
                    self.end_task_of(id, end, now);
                }
            }
            Adopted::Ended => self.end_task(&name, key, end),
            Adopted::Recorded => self.note_ended_task(&name, Arc::clone(key)),
            Adopted::Second => {
                self.note_late_pod(id);
                self.end(id, DeleteCause::Condemned, now);
            }
            Adopted::Current | Adopted::Known => {}
        }
    }
}

fn facts_of_pod(pod: &Pod, is_dismissed: bool) -> PodFacts {
    PodFacts {
        reported: match pod.counted {
            _ if pod.completed => Reported::Completed,
            Some(_) => Reported::Lost,
            None => Reported::Nothing,
        },
        has_stopped: has_ended(pod),
        is_deleting: pod.deleting,
        attempt: pod.attempt,
        task: pod.task.as_ref().map(|run| run.retries_left == 0),
        is_dismissed,
        is_draining: pod.draining.is_some(),
    }
}

fn facts_of_group(group: &Group, is_stopping: bool) -> GroupFacts {
    let spec = &group.spec;
    GroupFacts {
        is_known: group.is_known,
        attempt: group.attempts.current(),
        restart: spec.restart,
        restarts_whole: spec.restarts_whole(),
        has_own_slots: spec.has_own_slots(),
        is_stopping,
    }
}
