//! Foreign pods: they have our labels, but posse did not create them. posse reports each of them
//! once and leaves it alone: it counts for nothing and is never deleted.

use std::collections::BTreeSet;

use super::Reconciler;
use crate::model::event::{ClusterEvent, Event};
use crate::model::ids::Uid;
use crate::model::pod::Pod;
use posse_base::time::Millis;

/// The foreign pods in the snapshot. A pod that was once foreign stays so, even if posse gives its
/// id to an executor later.
#[derive(Clone, Debug, Default)]
pub(super) struct ForeignPods {
    uids: BTreeSet<Uid>,
}

impl ForeignPods {
    pub(super) fn contains(&self, uid: &Uid) -> bool {
        self.uids.contains(uid)
    }

    /// The pod is gone, or it turned out to be ours. True if it was foreign.
    pub(super) fn forget(&mut self, uid: &Uid) -> bool {
        self.uids.remove(uid)
    }
}

impl Reconciler {
    /// True if pods with our labels are known that are not ours: a delete by labels would delete
    /// them, too.
    pub fn has_foreign_pods(&self) -> bool {
        !self.foreign_pods.uids.is_empty()
    }

    /// The number of pods in the snapshot that are ours.
    pub fn n_our_pods(&self) -> usize {
        self.snapshot.len().saturating_sub(self.foreign_pods.uids.len())
    }

    /// The pods in the snapshot that are ours.
    pub fn our_pods(&self) -> impl Iterator<Item = &Pod> {
        self.snapshot.pods().filter(|pod| !self.foreign_pods.contains(&pod.uid))
    }

    /// True if posse created this pod.
    pub(super) fn is_ours(&self, pod: &Pod) -> bool {
        self.ours.is_ours(pod, self.executors.get(pod.id))
    }

    /// Notes a pod that is not ours, and reports it once.
    pub(super) fn note_foreign(&mut self, uid: &Uid) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        if !self.foreign_pods.uids.insert(uid.clone()) {
            return;
        }
        let message = if self.ours.has_our_name(pod) {
            "it has the name of an executor, but this run did not create it"
        } else {
            "it has the labels of an executor, but not the name"
        };
        let (pod, message) = (pod.name.to_string(), message.to_owned());
        self.out.tell(Event::Cluster(ClusterEvent::ForeignPod { pod, uid: uid.clone(), message }));
    }

    /// Another holder of the Lease used ids meanwhile, so pods with these ids are ours after all.
    pub(super) fn judge_foreign_again(&mut self, now: Millis) {
        let is_found = |uid: &&Uid| {
            let pod = self.snapshot.get(uid);
            pod.is_some_and(|pod| {
                self.ours.has_our_name(pod) && self.ours.is_of_earlier_run(pod.id)
            })
        };
        let found: Vec<Uid> = self.foreign_pods.uids.iter().filter(is_found).cloned().collect();
        for uid in found {
            self.foreign_pods.forget(&uid);
            self.on_seen(&uid, now);
        }
    }
}
