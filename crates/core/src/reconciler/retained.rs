//! The retained failed pods: which ones they are, their order, and which are deleted when there are
//! too many.

use super::Reconciler;
use crate::model::ids::ExecutorId;
use crate::model::pod::Pod;
use crate::policy::loss::classify;
use crate::state::errands::MutationKind;
use crate::state::executors::{Life, has_ended};
use posse_base::time::Millis;

/// True if the application itself ended this executor, also if a side-car still runs. The pod of an
/// eviction, a preemption or an executor at its `max_age` explains nothing.
fn failed_by_itself(pod: &Pod) -> bool {
    has_ended(pod) && !pod.deleting && classify(pod, false).reason.caused_by_app()
}

impl Reconciler {
    /// Retains an ended pod or requests its delete.
    pub(super) fn retain_or_delete(&mut self, id: ExecutorId, now: Millis) {
        let Some(uid) = self.executors.get(id).and_then(|e| e.uid.clone()) else { return };
        self.on_capacity_freed(now);
        let Some(pod) = self.snapshot.get(&uid).filter(|pod| !pod.deleting) else { return };
        let Some(executor) = self.executors.get(id) else { return };
        match executor.life {
            Life::Completed => return self.keep_record(id),
            Life::Retained => {
                if pod.rest_deadline_s(pod.grace_s).is_some() {
                    self.request(&uid, MutationKind::LabelCounted);
                }
                return;
            }
            Life::Cancelled | Life::Ending(_) | Life::Gone | Life::Lost { .. } | Life::Wanted => {}
        }
        let is_retained = executor.life.is_lost()
            && executor.life.ending().is_none()
            && (self.policy.keep_failed > 0 || executor.is_done)
            && failed_by_itself(pod);
        let is_done = executor.is_done;
        if !is_retained {
            return self.request(&uid, MutationKind::Delete);
        }
        let is_going = self
            .errands
            .mutations
            .get(&uid)
            .is_some_and(|mutation| mutation.what.kind != MutationKind::LabelCounted);
        if is_going {
            return;
        }
        self.change(id, now, |executor| executor.life = Life::Retained);
        if is_done {
            self.keep_record(id);
        } else {
            self.executors.retain(id);
        }
        self.request(&uid, MutationKind::LabelCounted);
        self.trim_retained(now);
    }

    /// Deletes the oldest retained pods while there are more than `keep_failed`.
    pub(super) fn trim_retained(&mut self, now: Millis) {
        while let Some(id) = self.executors.pop_retained_beyond(self.policy.keep_failed as usize) {
            self.delete_pod_of(id, now);
        }
    }
}
