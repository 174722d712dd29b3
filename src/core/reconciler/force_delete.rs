//! Owns pods that do not get away: where their node is gone, nobody will ever say that they ended, so
//! the server is told to forget them. As long as the node may come back they keep their time.

use std::collections::BTreeSet;

use super::Reconciler;
use super::timers::Timer;
use crate::core::model::action::Action;
use crate::core::model::ids::Uid;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::core::model::time::Millis;
use crate::core::state::ledger::MutationKind;

/// A pod that is on its way out for so long is looked after, and again after as long.
const STUCK_MS: u64 = 120_000;

/// Pods on their way out, and the nodes that are to be looked at for their sake.
#[derive(Clone, Debug, Default)]
pub(super) struct TerminatingPods {
    leaving: BTreeSet<Uid>,
    nodes: Vec<Box<str>>,
    is_asking: bool,
    /// Nodes are not ours to see: then nobody is ever forgotten.
    is_forbidden: bool,
}

impl TerminatingPods {
    /// The pod is gone.
    pub(super) fn forget(&mut self, uid: &Uid) {
        self.leaving.remove(uid);
    }
}

impl Reconciler {
    /// A pod is on its way out.
    pub(super) fn note_leaving(&mut self, uid: &Uid, now: Millis) {
        let is_bound = self.snapshot.get(uid).is_some_and(|pod| pod.deleting && pod.node.is_some());
        if is_bound && !self.stuck.is_forbidden && self.stuck.leaving.insert(uid.clone()) {
            self.timers.set(now.after(STUCK_MS), Timer::Terminating(uid.clone()));
        }
    }

    pub(super) fn on_stuck(&mut self, uid: Uid, now: Millis) {
        let Some(node) = self.snapshot.get(&uid).and_then(|pod| pod.node.clone()) else { return };
        if self.stuck.is_forbidden {
            return;
        }
        if !self.stuck.nodes.contains(&node) {
            self.stuck.nodes.push(node);
        }
        self.timers.set(now.after(STUCK_MS), Timer::Terminating(uid));
    }

    /// Asks for one node at a time.
    pub(super) fn look_at_nodes(&mut self) {
        if !self.stuck.is_asking
            && let Some(name) = self.stuck.nodes.pop()
        {
            self.stuck.is_asking = true;
            self.actions.push_back(Action::GetNode { name });
        }
    }

    pub(super) fn on_node(&mut self, name: &str, answer: Result<(), Refusal>) {
        self.stuck.is_asking = false;
        let class = match answer {
            Ok(()) => return,
            Err(refusal) => refusal.class,
        };
        if class == RefusalClass::Forbidden {
            self.stuck = TerminatingPods { is_forbidden: true, ..TerminatingPods::default() };
        }
        // Any other trouble proves nothing.
        if class != RefusalClass::NotFound {
            return;
        }
        for uid in &self.stuck.leaving {
            if let Some(pod) = self.snapshot.get(uid)
                && pod.deleting
                && pod.node.as_deref() == Some(name)
            {
                self.mutations.ask(uid, &pod.name, MutationKind::ForceDelete);
            }
        }
    }
}
