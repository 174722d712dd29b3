//! Force-deletes terminating pods whose node is gone: no kubelet will ever confirm their end. Pods
//! of a node that still exists are left alone.

use super::Reconciler;
use crate::model::ids::Uid;
use crate::model::refusal::{Refusal, RefusalClass};
use crate::state::due::Timer;
use crate::state::errands::MutationKind;
use posse_base::time::Millis;

/// How long a pod may be terminating before its node is checked, and the time between checks.
const NODE_CHECK_MS: u64 = 120_000;

impl Reconciler {
    /// Notes a pod that is terminating.
    pub(super) fn note_terminating(&mut self, uid: &Uid, now: Millis) {
        let is_bound = self.snapshot.get(uid).is_some_and(|pod| pod.deleting && pod.node.is_some());
        if is_bound && !self.errands.nodes.is_off() && self.snapshot.note_terminating(uid) {
            self.due.set(now.after(NODE_CHECK_MS), Timer::Terminating(uid.clone()));
        }
    }

    pub(super) fn on_terminating_due(&mut self, uid: Uid, now: Millis) {
        let Some(node) = self.snapshot.get(&uid).and_then(|pod| pod.node.clone()) else { return };
        if self.errands.nodes.is_off() {
            return;
        }
        self.errands.nodes.add(node, ());
        self.due.set(now.after(NODE_CHECK_MS), Timer::Terminating(uid));
    }

    pub(super) fn on_node_answer(&mut self, name: &str, answer: Result<(), Refusal>) {
        self.errands.nodes.end(&name.into());
        let class = match answer {
            Ok(()) => return,
            Err(refusal) => refusal.class,
        };
        if class == RefusalClass::Forbidden {
            self.errands.nodes.turn_off();
        }
        // Other errors prove nothing.
        if class != RefusalClass::NotFound {
            return;
        }
        for pod in self.snapshot.terminating_on(name) {
            self.errands.mutations.request(&pod.uid, &pod.name, MutationKind::ForceDelete);
        }
    }
}
