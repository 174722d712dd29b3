//! Foreign pods: they have our labels, but posse did not create them. posse reports each of them
//! once and leaves it alone: it counts for nothing and is never deleted.

use std::collections::BTreeSet;

use super::Reconciler;
use crate::model::event::{ClusterEvent, Event};
use crate::model::ids::{ExecutorId, ID_MAX, Uid};
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

    /// True if posse created this pod: it has an executor's name, and either our owner's uid or an
    /// id in our own record. Anybody can write labels, so labels prove nothing.
    pub(super) fn is_ours(&self, pod: &Pod) -> bool {
        let is_owned = self.identity.owner.is_some() && self.has_our_owner(pod);
        self.has_our_name(pod) && (is_owned && pod.id.0 <= ID_MAX || self.is_recorded(pod))
    }

    pub(super) fn has_our_name(&self, pod: &Pod) -> bool {
        let number = pod.name.strip_prefix(self.identity.pod_prefix.as_str());
        pod.id.0 > 0 && number.is_some_and(|number| is_written_as(pod.id.0, number))
    }

    /// True if the pod has the owner that our creates set (outside of a cluster: none).
    pub(super) fn has_our_owner(&self, pod: &Pod) -> bool {
        pod.owner == self.identity.owner
    }

    /// True if an earlier run may have used the pod's id, or if the pod is or may be the result of
    /// a create of this run.
    ///
    /// Outside of a cluster pods have no owner. If etcd is restored there and posse is killed before
    /// it renews the Lease, the record of the last ids is lost. Executors with these ids are foreign
    /// to the next process: they are reported and left to `posse cleanup`. To believe any name above
    /// the record would let forged pods count as capacity.
    fn is_recorded(&self, pod: &Pod) -> bool {
        // Without stored ids the range is only a guess.
        let is_proof = self.ids.is_stored() || self.has_our_owner(pod);
        if self.ids.is_of_earlier_run(pod.id) && is_proof {
            return true;
        }
        let is_from_create = match self.executors.get(pod.id) {
            Some(executor) => match &executor.uid {
                Some(uid) if *uid == pod.uid => return true,
                Some(_) => true,
                None => executor.group == pod.group,
            },
            None => self.ids.is_retired(pod.id),
        };
        is_from_create && self.has_our_owner(pod)
    }

    /// The highest id among the pods of the first LIST that earlier runs of this instance created.
    /// If the server stores the ids that were used, pods without an owner prove nothing beyond.
    pub(super) fn highest_found(&self) -> Option<ExecutorId> {
        let is_credible = self.identity.owner.is_some() || !self.ids.is_stored();
        let found = self.snapshot.pods().filter(|pod| {
            is_credible && pod.id.0 <= ID_MAX && self.has_our_name(pod) && self.has_our_owner(pod)
        });
        found.map(|pod| pod.id).max()
    }

    /// Notes a pod that is not ours, and reports it once.
    pub(super) fn note_foreign(&mut self, uid: &Uid) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        if !self.foreign_pods.uids.insert(uid.clone()) {
            return;
        }
        let message = if self.has_our_name(pod) {
            "it has the name of an executor, but this run did not create it"
        } else {
            "it has the labels of an executor, but not the name"
        };
        let (pod, message) = (pod.name.to_string(), message.to_owned());
        self.events.push_back(Event::Cluster(ClusterEvent::ForeignPod {
            pod,
            uid: uid.clone(),
            message,
        }));
    }

    /// Another holder of the Lease used ids meanwhile, so pods with these ids are ours after all.
    pub(super) fn judge_foreign_again(&mut self, now: Millis) {
        let is_found = |uid: &&Uid| {
            let pod = self.snapshot.get(uid);
            pod.is_some_and(|pod| self.has_our_name(pod) && self.ids.is_of_earlier_run(pod.id))
        };
        let found: Vec<Uid> = self.foreign_pods.uids.iter().filter(is_found).cloned().collect();
        for uid in found {
            self.foreign_pods.forget(&uid);
            self.on_seen(&uid, now);
        }
    }
}

/// True if `text` is this number as posse writes it. Called for each event of a pod, so it makes no text.
fn is_written_as(number: u64, text: &str) -> bool {
    let has_digits_only = text.bytes().all(|byte| byte.is_ascii_digit());
    has_digits_only && !text.starts_with('0') && text.parse() == Ok(number)
}
