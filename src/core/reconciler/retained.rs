//! The retained failed pods: their order, and which are deleted when there are too many. `pods`
//! decides which pods are retained.

use super::Reconciler;
use crate::core::model::ids::ExecutorId;
use crate::core::model::time::Millis;
use crate::core::state::executors::Life;
use crate::core::state::ledger::MutationKind;

impl Reconciler {
    /// Inserts a pod that was retained before a restart, ordered by the time in its label: oldest
    /// first.
    pub(super) fn insert_retained(&mut self, id: ExecutorId, at: u64) {
        let is_later = |other_id: &ExecutorId| {
            let pod =
                self.executors.get(*other_id).and_then(|e| self.snapshot.get(e.uid.as_ref()?));
            pod.and_then(|pod| pod.counted).is_none_or(|other| (other, *other_id) > (at, id))
        };
        let index = self.retained.iter().position(is_later).unwrap_or(self.retained.len());
        self.retained.insert(index, id);
    }

    /// Deletes the oldest retained pods while there are more than `keep_failed`.
    pub(super) fn trim_retained(&mut self, now: Millis) {
        while self.retained.len() > self.policy.keep_failed as usize {
            let Some(id) = self.retained.pop_front() else { return };
            let Some(executor) = self.executors.get_mut(id) else { continue };
            if executor.life == Life::Retained {
                executor.life = Life::Lost { ending: None };
            }
            if let Some(uid) = executor.uid.clone()
                && let Some(pod) = self.snapshot.get(&uid)
            {
                self.mutations.request(&uid, &pod.name, MutationKind::Delete);
            }
            self.refresh_state(id, now);
        }
    }
}
