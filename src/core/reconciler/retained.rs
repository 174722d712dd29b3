//! Owns the order of failed pods that are kept as evidence, and which of them go. Which pods are
//! evidence is `on_pod`'s to say.

use super::Reconciler;
use crate::core::model::ids::ExecutorId;
use crate::core::model::time::Millis;
use crate::core::state::executors::Life;
use crate::core::state::ledger::MutationKind;

impl Reconciler {
    /// Puts one that was kept before a restart among the others by its label: oldest first.
    pub(super) fn insert_retained(&mut self, id: ExecutorId, at: u64) {
        let is_later = |kept: &ExecutorId| {
            let pod = self.executors.get(*kept).and_then(|e| self.snapshot.get(e.uid.as_ref()?));
            pod.and_then(|pod| pod.counted).is_none_or(|other| (other, *kept) > (at, id))
        };
        let place = self.retained.iter().position(is_later).unwrap_or(self.retained.len());
        self.retained.insert(place, id);
    }

    /// Lets the oldest go where there are more than may stay.
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
                self.mutations.ask(&uid, &pod.name, MutationKind::Delete);
            }
            self.refresh_state(id, now);
        }
    }
}
