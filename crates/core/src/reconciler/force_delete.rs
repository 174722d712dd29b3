//! Force-deletes terminating pods whose node is gone: no kubelet will ever confirm their end. Pods
//! of a node that still exists are left alone.

use std::collections::BTreeSet;

use super::Reconciler;
use super::timers::Timer;
use crate::model::action::Action;
use crate::model::ids::Uid;
use crate::model::refusal::{Refusal, RefusalClass};
use crate::state::ledger::MutationKind;
use posse_base::time::Millis;

/// How long a pod may be terminating before its node is checked, and the time between checks.
const NODE_CHECK_MS: u64 = 120_000;

/// Terminating pods, and the nodes to check for them.
#[derive(Clone, Debug, Default)]
pub(super) struct TerminatingPods {
    uids: BTreeSet<Uid>,
    nodes: Vec<Box<str>>,
    is_node_requested: bool,
    /// GET of nodes is not permitted: then no pod is force-deleted.
    is_forbidden: bool,
}

impl TerminatingPods {
    /// The pod is gone.
    pub(super) fn forget(&mut self, uid: &Uid) {
        self.uids.remove(uid);
    }
}

impl Reconciler {
    /// Notes a pod that is terminating.
    pub(super) fn note_terminating(&mut self, uid: &Uid, now: Millis) {
        let is_bound = self.snapshot.get(uid).is_some_and(|pod| pod.deleting && pod.node.is_some());
        if is_bound
            && !self.terminating_pods.is_forbidden
            && self.terminating_pods.uids.insert(uid.clone())
        {
            self.timers.set(now.after(NODE_CHECK_MS), Timer::Terminating(uid.clone()));
        }
    }

    pub(super) fn on_terminating_due(&mut self, uid: Uid, now: Millis) {
        let Some(node) = self.snapshot.get(&uid).and_then(|pod| pod.node.clone()) else { return };
        if self.terminating_pods.is_forbidden {
            return;
        }
        if !self.terminating_pods.nodes.contains(&node) {
            self.terminating_pods.nodes.push(node);
        }
        self.timers.set(now.after(NODE_CHECK_MS), Timer::Terminating(uid));
    }

    /// Requests one node at a time.
    pub(super) fn request_node(&mut self) {
        if !self.terminating_pods.is_node_requested
            && let Some(name) = self.terminating_pods.nodes.pop()
        {
            self.terminating_pods.is_node_requested = true;
            self.actions.push_back(Action::GetNode { name });
        }
    }

    pub(super) fn on_node_answer(&mut self, name: &str, answer: Result<(), Refusal>) {
        self.terminating_pods.is_node_requested = false;
        let class = match answer {
            Ok(()) => return,
            Err(refusal) => refusal.class,
        };
        if class == RefusalClass::Forbidden {
            self.terminating_pods =
                TerminatingPods { is_forbidden: true, ..TerminatingPods::default() };
        }
        // Other errors prove nothing.
        if class != RefusalClass::NotFound {
            return;
        }
        for uid in &self.terminating_pods.uids {
            if let Some(pod) = self.snapshot.get(uid)
                && pod.deleting
                && pod.node.as_deref() == Some(name)
            {
                self.mutations.request(uid, &pod.name, MutationKind::ForceDelete);
            }
        }
    }
}
