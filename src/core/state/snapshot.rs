//! Owns what the server last said: pods by uid, and the position in its history. Applies lists,
//! events and answers by version; never moves a pod back. What a change means is `reconciler`'s.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::model::ids::{Uid, Version};
use crate::core::model::input::{List, PodEvent, Watermark};
use crate::core::model::pod::Pod;

/// What an input did to the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The pod is gone; this is the last that is known of it.
    Gone(Box<Pod>),
    /// The pod is new or another than before.
    Seen(Uid),
}

/// What an answer that carries a pod is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerAge {
    /// The pod stands in the snapshot now, as new as is known.
    Current,
    /// The pod was seen going: the answer came late.
    KnownGone,
    /// Asked before history went back: neither believed nor disbelieved.
    OtherEpoch,
    /// The position has passed the answer and the pod is not there: it came and went unseen.
    Overtaken,
    /// The answer lies before what was applied when it was asked for.
    RolledBack,
}

/// A LIST that lies before what was applied when it was asked for: the server's history went back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolledBack;

/// Pods by uid, and the position.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    epoch: u32,
    /// Everything up to here has been told.
    position: Option<Version>,
    /// The highest version in anything told, single answers too: no later request lies below it.
    highest: Option<Version>,
    synced: bool,
    pods: BTreeMap<Uid, Pod>,
    /// Uids whose end has no version to compare the position with (a 404 told of it, or the server
    /// writes versions that are no numbers), with the last version known of the pod. Kept until a
    /// LIST from later than that no longer holds the pod.
    tombstones: BTreeMap<Uid, Option<Version>>,
}

impl Snapshot {
    /// Epoch and highest version, to be sent along with requests.
    #[must_use]
    pub fn mark(&self) -> Watermark {
        Watermark { epoch: self.epoch, position: self.highest }
    }

    /// Up to where everything has been told.
    #[must_use]
    pub fn position(&self) -> Option<Version> {
        self.position
    }

    /// True once a whole LIST of this epoch was applied. Before that nothing may be decided.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The pod of that uid as last told.
    #[must_use]
    pub fn get(&self, uid: &Uid) -> Option<&Pod> {
        self.pods.get(uid)
    }

    /// Every pod, by uid.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// True where the server is known to hold nothing of ours.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Applies one line of the watch of `epoch`.
    pub fn apply(&mut self, epoch: u32, event: PodEvent) -> Option<Change> {
        if epoch != self.epoch {
            return None;
        }
        match event {
            PodEvent::Applied(pod) => {
                let told_before = self.has_passed(pod.version);
                self.advance(pod.version);
                self.put(pod, told_before)
            }
            PodEvent::Bookmark(version) => {
                self.advance(Some(version));
                None
            }
            PodEvent::Deleted(pod) => {
                let told_before = self.has_passed(pod.version);
                self.advance(pod.version);
                if self.pods.remove(&pod.uid).is_none() && told_before {
                    return None;
                }
                let told_now = self.tombstones.remove(&pod.uid).is_none();
                if pod.version.is_none() {
                    self.tombstones.insert(pod.uid.clone(), None);
                }
                told_now.then(|| Change::Gone(Box::new(pod)))
            }
        }
    }

    /// Applies a whole LIST in one step.
    ///
    /// # Errors
    /// The list lies before what was applied when it was asked for; nothing was changed.
    pub fn replace(&mut self, list: List) -> Result<Vec<Change>, RolledBack> {
        if list.asked.epoch != self.epoch {
            return Ok(Vec::new());
        }
        if is_before(list.version, list.asked.position) || self.is_contradicted_by(&list) {
            return Err(RolledBack);
        }
        // It may lag behind the watch.
        let is_old = is_before(list.version, self.position);
        let listed = list.pods.iter().map(|pod| pod.uid.clone()).collect::<BTreeSet<_>>();
        let mut changes = Vec::new();
        let gone: Vec<Uid> = self
            .pods
            .values()
            .filter(|pod| !listed.contains(&pod.uid))
            .filter(|pod| !is_before(list.version, pod.version))
            .map(|pod| pod.uid.clone())
            .collect();
        changes.extend(
            gone.iter().filter_map(|uid| self.pods.remove(uid)).map(|pod| Change::Gone(pod.into())),
        );
        self.tombstones.retain(|uid, last| listed.contains(uid) || is_before(list.version, *last));
        changes.extend(list.pods.into_iter().filter_map(|pod| self.put(pod, is_old)));
        self.advance(list.version);
        self.synced = true;
        Ok(changes)
    }

    /// True where the list holds a pod in an older version than one that we know, though that one
    /// lies within the list's time: history went back, and has come further since than it was.
    fn is_contradicted_by(&self, list: &List) -> bool {
        list.pods.iter().any(|pod| {
            self.pods.get(&pod.uid).is_some_and(|stored| {
                is_before(pod.version, stored.version)
                    && !is_before(list.version, stored.version)
                    && list.version.is_some()
            })
        })
    }

    /// Applies the pod in the answer to a create (`is_new`) or to a GET. A GET's answer may be old
    /// without any history having gone back: nothing happened to the pod since.
    pub fn answer(&mut self, pod: &Pod, asked: Watermark, is_new: bool) -> AnswerAge {
        if asked.epoch != self.epoch {
            return AnswerAge::OtherEpoch;
        }
        if is_new && !is_after(pod.version, asked.position) {
            return AnswerAge::RolledBack;
        }
        if self.tombstones.contains_key(&pod.uid) {
            return AnswerAge::KnownGone;
        }
        let is_known = self.pods.contains_key(&pod.uid);
        if !is_known && self.has_passed(pod.version) {
            return AnswerAge::Overtaken;
        }
        self.put(pod.clone(), false);
        AnswerAge::Current
    }

    /// Takes in how a pod looks on its way out; says nothing new about pods that are not here.
    pub fn refresh(&mut self, pod: Pod) -> Option<Change> {
        self.pods.contains_key(&pod.uid).then(|| self.put(pod, true)).flatten()
    }

    /// The server says that there is no such pod (any more).
    pub fn forget(&mut self, uid: &Uid) -> Option<Change> {
        let pod = self.pods.remove(uid)?;
        self.tombstones.insert(uid.clone(), pod.version);
        Some(Change::Gone(Box::new(pod)))
    }

    /// History went back: no version, mark or tombstone holds any longer. The pods stay, to be
    /// replaced wholly by the next LIST; until then nothing may be decided.
    pub fn roll_back(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        (self.position, self.highest) = (None, None);
        self.synced = false;
        self.tombstones.clear();
        for pod in self.pods.values_mut() {
            pod.version = None;
        }
    }

    fn put(&mut self, pod: Pod, told_before: bool) -> Option<Change> {
        self.highest = self.highest.max(pod.version);
        match self.pods.get_mut(&pod.uid) {
            Some(stored) => {
                if !is_before(stored.version, pod.version)
                    && stored.version.is_some()
                    && pod.version.is_some()
                {
                    return None;
                }
                let uid = pod.uid.clone();
                *stored = pod;
                Some(Change::Seen(uid))
            }
            // What the position has passed, and is not here, has gone since.
            None if told_before || self.tombstones.contains_key(&pod.uid) => None,
            None => {
                let uid = pod.uid.clone();
                self.pods.insert(uid.clone(), pod);
                Some(Change::Seen(uid))
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

/// False where both are comparable and `a` does not lie after `b`.
fn is_after(a: Option<Version>, b: Option<Version>) -> bool {
    !matches!((a, b), (Some(a), Some(b)) if a <= b)
}

/// True where both are comparable and `a` lies before `b`.
fn is_before(a: Option<Version>, b: Option<Version>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a < b)
}
