//! `queue_group`: executors that a queue (Kueue) admits together. It counts the pods of the group and keeps each one
//! until another has taken its place, also if none will.

use super::Reconciler;
use super::retained::has_stopped;
use super::stop::Stop;
use crate::model::ids::{ExecutorId, Uid};
use crate::model::pod::{Phase, Pod};
use crate::state::executors::{Executor, Life};
use crate::state::ledger::MutationKind;

impl Reconciler {
    /// True if another executor may take the place of this one. In a queue group, if the pod has failed: as long
    /// as it may run or has succeeded, the queue counts it, and a successor would be one too many.
    pub(super) fn may_be_succeeded(&self, executor: &Executor, pod: &Pod) -> bool {
        let group = self.executors.groups.get(&executor.group);
        let is_counted = group.is_some_and(|group| group.spec.is_queue_group);
        has_stopped(pod) && (!is_counted || pod.phase == Phase::Failed)
    }

    /// Takes a pod out of its queue group if it has been deleted and nothing else keeps it.
    pub(super) fn leave_queue(&mut self, uid: &Uid) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        if pod.is_held_by_queue && pod.deleting && pod.deletion_grace_s == 0 {
            self.mutations.request(uid, &pod.name, MutationKind::LeaveQueue);
        }
    }

    /// The run ends, and failed pods stay: they must not keep the quota of their group. Once, when the labels that
    /// spare them from the delete of all are written.
    pub(super) fn retained_leave_queue(&mut self) {
        let are_labelled = !self.mutations.has_pending_counted_label();
        let is_due = |stop: &&mut Stop| are_labelled && !stop.have_retained_left;
        let Some(stop) = self.stop.as_mut().filter(is_due) else { return };
        stop.have_retained_left = true;
        if !stop.order.keep_failed {
            return;
        }
        let retained = self.executors.iter().filter(|(_, one)| one.life == Life::Retained);
        let in_queue = retained.filter(|(_, executor)| {
            let group = self.executors.groups.get(&executor.group);
            group.is_some_and(|group| group.spec.is_queue_group)
        });
        let ids: Vec<ExecutorId> = in_queue.map(|(id, _)| id).collect();
        for id in ids {
            let uid = self.executors.get(id).and_then(|executor| executor.uid.as_ref());
            if let Some(pod) = uid.and_then(|uid| self.snapshot.get(uid)) {
                self.mutations.request(&pod.uid, &pod.name, MutationKind::LeaveQueue);
            }
        }
    }
}
