//! `queue_group`: executors that a queue (Kueue) admits together. It counts the pods of the group and keeps each one
//! until another has taken its place, also if none will.

use super::Reconciler;
use crate::model::ids::Uid;
use crate::model::pod::{Phase, Pod};
use crate::state::errands::MutationKind;
use crate::state::executors::{Executor, Life, has_ended};

impl Reconciler {
    /// True if another executor may take the place of this one. In a queue group, if the pod has failed: as long
    /// as it may run or has succeeded, the queue counts it, and a successor would be one too many.
    pub(super) fn may_be_succeeded(&self, executor: &Executor, pod: &Pod) -> bool {
        let group = self.executors.groups.get(&executor.group);
        let is_counted = group.is_some_and(|group| group.spec.is_queue_group);
        has_ended(pod) && (!is_counted || pod.phase == Phase::Failed)
    }

    /// Takes a pod out of its queue group if it has been deleted and nothing else keeps it.
    pub(super) fn leave_queue(&mut self, uid: &Uid) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        if pod.is_held_by_queue && pod.deleting && pod.deletion_grace_s == 0 {
            self.errands.mutations.request(uid, &pod.name, MutationKind::LeaveQueue);
        }
    }

    /// The run ends, and failed pods stay: they must not keep the quota of their group. Each one leaves once, when the
    /// label is written that spares it from the delete of all. Kueue itself removes its finalizer from them: if posse
    /// did, Kueue might wait for ever for the event of its own removal (Kueue 0.13, `excessPodExpectations`).
    pub(super) fn retained_leave_queue(&mut self) {
        let Some(stop) = self.stop.as_mut().filter(|stop| stop.order.keep_failed) else { return };
        let groups = self.executors.groups.values().filter(|group| group.spec.is_queue_group);
        let members = groups.flat_map(|group| group.members.iter());
        let executors = members.filter_map(|&id| self.executors.get(id));
        for executor in executors.filter(|executor| executor.life == Life::Retained) {
            let Some(pod) = executor.pod(&self.snapshot).filter(|pod| !pod.deleting) else {
                continue;
            };
            if self.errands.mutations.get(&pod.uid).is_none()
                && stop.left_queues.insert(pod.uid.clone())
            {
                self.errands.mutations.request(&pod.uid, &pod.name, MutationKind::LeaveQueue);
            }
        }
    }

    /// The server's history went back, perhaps to a time at which the retained pods had not left.
    pub(super) fn forget_left_queues(&mut self) {
        if let Some(stop) = &mut self.stop {
            stop.left_queues.clear();
        }
    }
}
