//! The snapshot: pods by uid, and the position. Applies lists, events and answers by
//! resourceVersion, and never moves a pod back.
//!
//! If etcd is restored to an older state, versions go back (a rollback). This module alone notices
//! that and forgets all versions. The pods stay until the next LIST replaces them all. What no LIST
//! can show is not here and stays as it is: targets, retired ids, reported losses, open creates.
//! Requests may still be in flight, and their answers have versions that no longer count: each
//! carries the epoch in which it was sent, and an answer of another epoch is void.
//!
//! Some pods have a mark, which no pod can carry itself. Always true after a turn: who has a mark is here.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::ids::{Uid, Version};
use crate::model::input::{List, ListPage, ListSource, PodEvent, Watermark};
use crate::model::pod::Pod;
use posse_base::time::Millis;

/// A change of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The pod is gone; its last known state.
    Gone(Box<Pod>),
    /// The pod is new or has changed.
    Updated(Uid),
}

/// What a LIST, or a page of it, has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub changes: Vec<Change>,
    /// When the first page came. The others show nothing newer.
    pub begun_at: Millis,
    /// This was the last page: every pod of the snapshot is compared.
    pub is_complete: bool,
}

/// A LIST of which the last page is missing.
#[derive(Clone, Debug)]
struct OpenList {
    /// The page that comes next.
    next_page: u32,
    begun_at: Millis,
    version: Option<Version>,
    /// The uids in the pages so far.
    listed: BTreeSet<Uid>,
    /// Before the first complete LIST, the pods of the pages so far: nothing may be decided by a part of them.
    held: Vec<Pod>,
}

/// How the pod in an answer relates to the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerAge {
    /// The pod is in the snapshot, in this or a newer version.
    Current,
    /// The pod's end was seen already, or the position has passed the answer's version and the pod
    /// is not in the snapshot: it came and went unseen.
    Gone,
    /// The request was sent before a resourceVersion rollback, or its answer is the first to show
    /// one: it proves nothing.
    Void,
}

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The number of resourceVersion rollbacks so far.
    epoch: u32,
    /// All events up to this version were applied.
    position: Option<Version>,
    /// The highest version in any event, list or answer: no later request may return an older
    /// state.
    highest: Option<Version>,
    synced: bool,
    pods: BTreeMap<Uid, Pod>,
    /// How many pods were given out: tests check that a turn does not visit all.
    n_visits: Cell<u64>,
    /// Uids of pods that are gone, if the version of their end is unknown (a 404, or versions that
    /// are not numbers), with the pod's last known version. Kept until a LIST of a later version
    /// does not contain the pod.
    tombstones: BTreeMap<Uid, Option<Version>>,
    open_lists: BTreeMap<ListSource, OpenList>,
    /// Pods with our labels that posse did not create. A pod that was once foreign stays so, even if posse gives its
    /// id to an executor later.
    foreign: BTreeSet<Uid>,
    /// Pods whose creates took effect late, while another executor had their slot or their task. They end.
    late: BTreeSet<Uid>,
    /// Pods whose nodes are looked at if they do not end.
    terminating: BTreeSet<Uid>,
    /// Pods that no LIST or watch shows any more, and that may be there: they vanished while they lived.
    unseen: BTreeSet<Uid>,
    /// The node of this process, if its kubelet ends no pods.
    own_lost_node: Option<Box<str>>,
}

impl Snapshot {
    /// The epoch and the highest version, to be noted when a request is sent.
    pub fn watermark(&self) -> Watermark {
        Watermark { epoch: self.epoch, position: self.highest }
    }

    /// True if what has this version was there before a request with this watermark was sent.
    pub fn precedes(&self, version: Option<Version>, watermark: Watermark) -> bool {
        watermark.epoch == self.epoch && !is_after(version, watermark.position)
    }

    /// Up to which version all events were applied.
    pub fn position(&self) -> Option<Version> {
        self.position
    }

    /// True once a complete LIST of this epoch was applied. Before that nothing may be decided.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    pub fn get(&self, uid: &Uid) -> Option<&Pod> {
        self.n_visits.set(self.n_visits.get() + 1);
        self.pods.get(uid)
    }

    /// Every pod, by uid.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().inspect(|_| self.n_visits.set(self.n_visits.get() + 1))
    }

    /// How many pods `get` and `pods` have given out so far.
    pub fn n_visits(&self) -> u64 {
        self.n_visits.get()
    }

    /// The number of pods.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// True if no pod is known.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub fn our_pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods().filter(|pod| !self.is_foreign(&pod.uid))
    }

    /// The number of them.
    pub fn n_ours(&self) -> usize {
        self.pods.len() - self.foreign.len()
    }

    pub fn is_foreign(&self, uid: &Uid) -> bool {
        self.foreign.contains(uid)
    }

    /// The pods that are not ours.
    pub fn foreign(&self) -> impl Iterator<Item = &Pod> {
        self.foreign.iter().filter_map(|uid| self.get(uid))
    }

    /// This pod is not ours. True if that was not known.
    pub fn note_foreign(&mut self, uid: &Uid) -> bool {
        self.foreign.insert(uid.clone())
    }

    /// The pod turned out to be ours.
    pub fn forget_foreign(&mut self, uid: &Uid) {
        self.foreign.remove(uid);
    }

    /// The pods that took effect late.
    pub fn late(&self) -> impl Iterator<Item = &Pod> {
        self.late.iter().filter_map(|uid| self.get(uid))
    }

    /// This pod took effect late.
    pub fn note_late(&mut self, uid: Uid) {
        self.late.insert(uid);
    }

    /// Keeps a pod that has vanished from the watch, until the server says that its uid does not exist. What it was is
    /// over, so it counts as terminating, with the time that a delete will leave it.
    pub fn keep_unseen(&mut self, mut pod: Pod) {
        pod.version = pod.version.max(self.position);
        (pod.deleting, pod.deletion_grace_s) = (true, pod.grace_s.max(1));
        self.tombstones.remove(&pod.uid);
        self.unseen.insert(pod.uid.clone());
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// The pod has left its queue group, and no event will show that.
    pub fn note_left_queue(&mut self, uid: &Uid) {
        if let Some(pod) = self.pods.get_mut(uid).filter(|_| self.unseen.contains(uid)) {
            pod.is_held_by_queue = false;
        }
    }

    pub fn is_unseen(&self, uid: &Uid) -> bool {
        self.unseen.contains(uid)
    }

    /// True if the server has said that this pod does not exist.
    pub fn is_known_gone(&self, uid: &Uid) -> bool {
        self.tombstones.contains_key(uid)
    }

    /// This pod, which is ours, terminates. True if that was not known.
    pub fn note_terminating(&mut self, uid: &Uid) -> bool {
        self.terminating.insert(uid.clone())
    }

    pub fn terminating_on(&self, node: &str) -> impl Iterator<Item = &Pod> {
        let known = self.terminating.iter().filter_map(|uid| self.get(uid));
        known.filter(move |pod| pod.deleting && pod.node.as_deref() == Some(node))
    }

    pub fn lose_own_node(&mut self, node: Box<str>) {
        self.own_lost_node = Some(node);
    }

    /// The pod terminates, and no kubelet will say that it has.
    pub fn is_on_own_lost_node(&self, pod: &Pod) -> bool {
        pod.deleting && pod.node.is_some() && pod.node == self.own_lost_node
    }

    /// The pod is gone. True if it was foreign.
    pub fn forget_marks(&mut self, uid: &Uid) -> bool {
        self.late.remove(uid);
        self.terminating.remove(uid);
        self.unseen.remove(uid);
        self.foreign.remove(uid)
    }

    pub fn check(&self) {
        let ours = self.late.iter().chain(&self.terminating).chain(&self.unseen);
        let mut marked = self.foreign.iter().chain(ours);
        debug_assert!(marked.all(|uid| self.pods.contains_key(uid)), "who has a mark is gone");
    }

    /// Applies one event of a watch that began in this epoch.
    pub fn apply(&mut self, event: PodEvent) -> Option<Change> {
        match event {
            PodEvent::Applied(pod) => {
                let is_old = self.has_passed(pod.version);
                self.advance(pod.version);
                self.put(pod, is_old)
            }
            PodEvent::Bookmark(version) => {
                self.advance(Some(version));
                None
            }
            PodEvent::Deleted(pod) => {
                let is_old = self.has_passed(pod.version);
                self.advance(pod.version);
                let known = self.pods.get(&pod.uid).and_then(|known| known.version);
                let is_over = pod.deleting && !pod.has_time_to_end() || pod.phase.is_final();
                if self.is_unseen(&pod.uid) && !is_over && !is_after(pod.version, known) {
                    // The event by which it vanished, once more.
                    return None;
                }
                if self.pods.remove(&pod.uid).is_none() && is_old {
                    // A LIST has overtaken the whole life of the pod, of which nothing else tells.
                    let is_told = self.tombstones.contains_key(&pod.uid);
                    return (!is_told).then(|| Change::Gone(Box::new(pod)));
                }
                let is_first_report = self.tombstones.remove(&pod.uid).is_none();
                if pod.version.is_none() {
                    self.tombstones.insert(pod.uid.clone(), None);
                }
                is_first_report.then(|| Change::Gone(Box::new(pod)))
            }
        }
    }

    /// Applies a LIST, or a page of it. The pods of a page are applied at once, so that nobody holds all pods
    /// twice; which pods are gone is known after the last page. Returns none if it is void: it was sent before
    /// a resourceVersion rollback, or is the first to show one, because it is older than what was applied
    /// before it was sent, or a page before it is missing.
    pub fn apply_list(&mut self, list: List, now: Millis) -> Option<Listed> {
        if list.watermark.epoch != self.epoch {
            return None;
        }
        if is_before(list.version, list.watermark.position) || self.is_contradicted_by(&list) {
            self.roll_back();
            return None;
        }
        let List { source, page, mut pods, version, .. } = list;
        let mut open = self.open(source, page, version, now)?;
        let begun_at = open.begun_at;
        open.listed.extend(pods.iter().map(|pod| pod.uid.clone()));
        open.held.append(&mut pods);
        if self.synced || page.is_last {
            pods = std::mem::take(&mut open.held);
        }
        let mut changes = Vec::new();
        // Before the new ones: a pod that replaces another one is seen after its end.
        if page.is_last {
            changes = self.remove_unlisted(&open.listed, version);
        }
        // A list may be older than the last watch event.
        let is_old = is_before(version, self.position);
        changes.extend(pods.into_iter().filter_map(|pod| self.put(pod, is_old)));
        if page.is_last {
            self.advance(version);
            self.synced = true;
        } else {
            self.open_lists.insert(source, open);
        }
        Some(Listed { changes, begun_at, is_complete: page.is_last })
    }

    /// The LIST that this page continues. A page of another revision, or after a lost one, continues none.
    fn open(
        &mut self,
        source: ListSource,
        page: ListPage,
        version: Option<Version>,
        now: Millis,
    ) -> Option<OpenList> {
        let begun = self.open_lists.remove(&source);
        if page.number == 0 {
            return Some(OpenList {
                next_page: 1,
                begun_at: now,
                version,
                listed: BTreeSet::new(),
                held: Vec::new(),
            });
        }
        let continued =
            begun.filter(|open| open.next_page == page.number && open.version == version)?;
        Some(OpenList { next_page: page.number.saturating_add(1), ..continued })
    }

    fn remove_unlisted(&mut self, listed: &BTreeSet<Uid>, version: Option<Version>) -> Vec<Change> {
        let gone: Vec<Uid> = self
            .pods
            .values()
            .filter(|pod| !listed.contains(&pod.uid) && !self.unseen.contains(&pod.uid))
            .filter(|pod| !is_before(version, pod.version))
            .map(|pod| pod.uid.clone())
            .collect();
        self.tombstones.retain(|uid, last| listed.contains(uid) || is_before(version, *last));
        let gone = gone.iter().filter_map(|uid| self.pods.remove(uid));
        // What has terminated has used its time meanwhile.
        gone.map(|pod| Change::Gone(Pod { deletion_grace_s: 0, ..pod }.into())).collect()
    }

    /// True if the list has a pod in an older version than the snapshot, although the snapshot's
    /// version is not newer than the list: a resourceVersion rollback, after which the versions
    /// have passed their former value.
    fn is_contradicted_by(&self, list: &List) -> bool {
        list.pods.iter().any(|pod| {
            self.pods.get(&pod.uid).is_some_and(|stored| {
                is_before(pod.version, stored.version)
                    && !is_before(list.version, stored.version)
                    && list.version.is_some()
            })
        })
    }

    /// Applies the pod in the answer to a create (`is_new`) or to a GET. The pod in a GET's answer
    /// may have an old version without a rollback: it has not changed since.
    pub fn apply_answer(&mut self, pod: &Pod, watermark: Watermark, is_new: bool) -> AnswerAge {
        if watermark.epoch != self.epoch {
            return AnswerAge::Void;
        }
        if is_new && !is_after(pod.version, watermark.position) || self.is_undone(pod, watermark) {
            self.roll_back();
            return AnswerAge::Void;
        }
        let is_known = self.pods.contains_key(&pod.uid);
        if self.tombstones.contains_key(&pod.uid) || !is_known && self.has_passed(pod.version) {
            return AnswerAge::Gone;
        }
        self.put(pod.clone(), false);
        AnswerAge::Current
    }

    /// True if the answer shows the pod in an older version than was applied before it was asked for.
    fn is_undone(&self, pod: &Pod, watermark: Watermark) -> bool {
        let stored = self.pods.get(&pod.uid).and_then(|stored| stored.version);
        is_before(pod.version, stored) && !is_after(stored, watermark.position)
    }

    /// Updates a terminating pod, if it is in the snapshot.
    pub fn refresh(&mut self, pod: Pod) -> Option<Change> {
        self.pods.contains_key(&pod.uid).then(|| self.put(pod, false)).flatten()
    }

    /// The server says that this pod does not exist.
    pub fn forget(&mut self, uid: &Uid) -> Option<Change> {
        let pod = self.pods.remove(uid)?;
        // Of one that has vanished all events are past: after a restore of etcd it may be there again.
        if !self.unseen.contains(uid) || pod.version.is_none() {
            self.tombstones.insert(uid.clone(), pod.version);
        }
        Some(Change::Gone(Box::new(pod)))
    }

    /// After a resourceVersion rollback no version, watermark or tombstone is valid. Until the next
    /// LIST nothing may be decided.
    fn roll_back(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        (self.position, self.highest) = (None, None);
        self.synced = false;
        self.open_lists.clear();
        self.tombstones.clear();
        for pod in self.pods.values_mut() {
            pod.version = None;
        }
    }

    fn put(&mut self, pod: Pod, is_old: bool) -> Option<Change> {
        self.highest = self.highest.max(pod.version);
        match self.pods.get_mut(&pod.uid) {
            // An older LIST still has what has vanished.
            Some(_) if is_old && self.unseen.contains(&pod.uid) => None,
            Some(stored) => {
                if !is_before(stored.version, pod.version)
                    && stored.version.is_some()
                    && pod.version.is_some()
                {
                    return None;
                }
                let uid = pod.uid.clone();
                *stored = pod;
                self.unseen.remove(&uid);
                Some(Change::Updated(uid))
            }
            // The position has passed this version and the pod is not in the snapshot: it is gone
            // since.
            None if is_old || self.tombstones.contains_key(&pod.uid) => None,
            None => {
                let uid = pod.uid.clone();
                self.pods.insert(uid.clone(), pod);
                Some(Change::Updated(uid))
            }
        }
    }

    fn has_passed(&self, version: Option<Version>) -> bool {
        matches!((version, self.position), (Some(v), Some(position)) if v <= position)
    }

    fn advance(&mut self, version: Option<Version>) {
        self.position = self.position.max(version);
        self.highest = self.highest.max(version);
    }
}

/// False if both are comparable and `a` is not after `b`.
fn is_after(a: Option<Version>, b: Option<Version>) -> bool {
    !matches!((a, b), (Some(a), Some(b)) if a <= b)
}

/// True if both are comparable and `a` is before `b`.
fn is_before(a: Option<Version>, b: Option<Version>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a < b)
}
