//! The state of the simulated cluster: a store of pods with one version for each write, a log for
//! watches, and the true history of every uid. Requests and faults are in `api`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use posse_core::model::event::DeleteCause;
use posse_core::model::fact::{Fact, Knowledge, Progress, Topic};
use posse_core::model::ids::{GroupName, Uid, Version};
use posse_core::model::input::PodEvent;
use posse_core::model::pod::{ContainerState, Draining, Pod};
use posse_core::model::task::TaskRun;

use crate::core_run::new_pod;

/// The length of the log; a watch from before its first entry gets 410.
const LOG_MAX: usize = 60;

/// A pod in the store.
#[derive(Clone, Debug)]
pub struct Stored {
    pub pod: Pod,
    /// Whether the pod has our labels, so that LIST and watch show it.
    pub is_labelled: bool,
    /// A foreign pod, which posse must not touch.
    pub is_foreign: bool,
}

impl Stored {
    /// One of our executors, as far as labels show it.
    pub fn is_ours(&self) -> bool {
        self.is_labelled && !self.is_foreign
    }

    /// A foreign pod with our labels.
    pub fn is_impostor(&self) -> bool {
        self.is_labelled && self.is_foreign
    }
}

/// What ended a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    App,
    Cluster,
    Other,
}

/// The true history of one uid.
#[derive(Clone, Debug)]
pub struct Life {
    pub id: u64,
    pub slot: Option<u32>,
    pub created: u64,
    /// Whether the pod was terminating, ended or gone at some time.
    pub was_over: bool,
    /// The first cause of its end.
    pub cause: Option<Cause>,
    pub removed: Option<u64>,
    /// Whether a restore removed the pod.
    pub is_erased: bool,
    /// Whether the pod was labelled as counted.
    pub was_counted: bool,
    pub is_foreign: bool,
    /// posse made it, and a restore has removed its id from the record once.
    pub is_disowned: bool,
}

/// The outcome of a create.
#[derive(Debug)]
pub enum CreateError {
    Exists,
    Quota,
}

type Pods = BTreeMap<Box<str>, Stored>;
type Facts = BTreeMap<Topic, Knowledge>;

#[derive(Debug, Default)]
pub struct Cluster {
    /// What the record of the run has.
    record: Facts,
    pub version: u64,
    pub pods: Pods,
    pub lives: BTreeMap<Uid, Life>,
    /// Pods whose label somebody has removed.
    pub unlabelled: BTreeSet<Uid>,
    pub quota: Option<usize>,
    /// The owner that posse's creates set.
    pub owner: Option<Uid>,
    /// The id high water on the Lease.
    pub high_water: u64,
    log: VecDeque<(u64, PodEvent)>,
    compacted: u64,
    n_uids: u64,
    backup: Option<(u64, Pods, u64, Facts)>,
    pub n_restores: u32,
}

impl Cluster {
    /// Writes the record.
    pub fn record(&mut self, facts: Vec<Fact>) {
        for Fact { topic, knowledge } in facts {
            match knowledge {
                Some(knowledge) => self.record.insert(topic, knowledge),
                None => self.record.remove(&topic),
            };
        }
    }

    /// The record has the end of this task.
    pub fn has_recorded_end(&self, group: &GroupName, key: &Arc<str>) -> bool {
        let topic = Topic::Progress(group.clone(), Arc::clone(key));
        let known = self.record.get(&topic);
        matches!(known, Some(Knowledge::Progress(Progress { end: Some(_), .. })))
    }

    /// The record has the end of this part of a group's work.
    pub fn has_recorded_work(&self, group: &GroupName, index: u32) -> bool {
        let known = self.record.get(&Topic::work(group, index));
        matches!(known, Some(Knowledge::Work { ended, .. }) if ended.contains(index))
    }

    /// What the next process finds in the record.
    pub fn facts(&self) -> Vec<Fact> {
        let facts = self.record.clone().into_iter();
        facts.map(|(topic, known)| Fact { topic, knowledge: Some(known) }).collect()
    }

    /// The next version. Versions are unique across restores; otherwise the core could not tell
    /// them apart.
    fn step(&mut self) {
        self.version += 1;
        while self.version % 4 != u64::from(self.n_restores % 4) {
            self.version += 1;
        }
    }

    /// An unrelated write, which advances the version.
    pub fn write_elsewhere(&mut self, n: u64) {
        for _ in 0..n {
            self.step();
        }
    }

    pub fn create(
        &mut self,
        name: &str,
        id: u64,
        group: &GroupName,
        (slot, attempt): (u32, u32),
        (is_labelled, is_foreign): (bool, bool),
        task: Option<Box<TaskRun>>,
    ) -> Result<Pod, CreateError> {
        if self.pods.contains_key(name) {
            return Err(CreateError::Exists);
        }
        let counted = self.pods.values().filter(|s| !s.is_foreign && !s.pod.phase.is_final());
        if !is_foreign && self.quota.is_some_and(|quota| counted.count() >= quota) {
            return Err(CreateError::Quota);
        }
        self.step();
        self.n_uids += 1;
        let uid = Uid::new(&format!("u{}", self.n_uids));
        let pod = Pod {
            uid: uid.clone(),
            name: name.into(),
            version: Some(Version(self.version)),
            group: group.clone(),
            slot: task.is_none().then_some(slot),
            attempt,
            owner: self.owner.clone().filter(|_| !is_foreign),
            task,
            ..new_pod(id)
        };
        let created = self.version;
        self.lives.insert(
            uid,
            Life {
                id,
                slot: pod.slot,
                created,
                was_over: false,
                cause: None,
                removed: None,
                is_erased: false,
                was_counted: false,
                is_foreign,
                is_disowned: false,
            },
        );
        self.pods.insert(name.into(), Stored { pod: pod.clone(), is_labelled, is_foreign });
        if is_labelled {
            self.note(PodEvent::Applied(pod.clone()));
        }
        Ok(pod)
    }

    pub fn name_of(&self, uid: &Uid) -> Option<Box<str>> {
        self.pods.values().find(|s| s.pod.uid == *uid).map(|s| s.pod.name.clone())
    }

    /// Records why the pod ends now; the first cause counts.
    pub fn blame(&mut self, uid: &Uid, cause: Cause) {
        if let Some(life) = self.lives.get_mut(uid) {
            life.cause.get_or_insert(cause);
        }
    }

    /// Changes a pod. Each change has its own version.
    pub fn update(&mut self, uid: &Uid, change: impl FnOnce(&mut Pod)) {
        let Some(name) = self.name_of(uid) else { return };
        let Some(stored) = self.pods.get_mut(&name) else { return };
        let before = stored.pod.clone();
        change(&mut stored.pod);
        if stored.pod == before {
            return;
        }
        self.step();
        let Some(stored) = self.pods.get_mut(&name) else { return };
        stored.pod.version = Some(Version(self.version));
        let (pod, is_labelled) = (stored.pod.clone(), stored.is_labelled);
        if let Some(life) = self.lives.get_mut(uid) {
            life.was_over |= is_over(&pod);
            let was_killed = |draining: &Draining| draining.cause == DeleteCause::Killed;
            life.was_counted |= pod.counted.is_some()
                || pod.completed
                || pod.draining.as_deref().is_some_and(was_killed);
        }
        if is_labelled {
            self.note(PodEvent::Applied(pod));
        }
    }

    /// Somebody removes a label of ours. The watch tells it as a delete.
    pub fn unlabel(&mut self, uid: &Uid) {
        self.blame(uid, Cause::Other);
        let Some(name) = self.name_of(uid) else { return };
        let Some(stored) = self.pods.get_mut(&name) else { return };
        stored.is_labelled = false;
        let pod = stored.pod.clone();
        self.unlabelled.insert(uid.clone());
        if let Some(life) = self.lives.get_mut(uid) {
            life.was_over = true;
        }
        self.step();
        self.note(PodEvent::Deleted(Pod { version: Some(Version(self.version)), ..pod }));
    }

    /// Nobody knows any more that these pods are ours.
    pub fn forget_unlabelled(&mut self) {
        for uid in std::mem::take(&mut self.unlabelled) {
            self.remove(&uid);
        }
    }

    pub fn remove(&mut self, uid: &Uid) {
        let Some(name) = self.name_of(uid) else { return };
        let Some(mut stored) = self.pods.remove(&name) else { return };
        self.step();
        if let Some(life) = self.lives.get_mut(uid) {
            (life.was_over, life.removed) = (true, Some(self.version));
        }
        if stored.is_labelled {
            (stored.pod.version, stored.pod.deletion_grace_s) = (Some(Version(self.version)), 0);
            self.note(PodEvent::Deleted(stored.pod));
        }
    }

    /// The pods that a LIST by our labels shows, and its version.
    pub fn list(&self) -> (Vec<Pod>, Version) {
        let pods = self.pods.values().filter(|s| s.is_labelled).map(|s| s.pod.clone());
        (pods.collect(), Version(self.version))
    }

    /// The next `n` log entries after `cursor`, and the version that they reach. `None` if `cursor`
    /// is too old.
    pub fn watch(&self, cursor: u64, n: usize) -> Option<(Vec<(u64, PodEvent)>, u64)> {
        if cursor < self.compacted {
            return None;
        }
        let all = self.log.iter().filter(|(version, _)| *version > cursor);
        let told: Vec<_> = all.take(n).cloned().collect();
        let upto = match told.last() {
            Some((version, _)) if told.len() == n => *version,
            Some(_) | None => self.version.max(cursor),
        };
        Some((told, upto))
    }

    pub fn back_up(&mut self) {
        self.backup = Some((self.version, self.pods.clone(), self.high_water, self.record.clone()));
    }

    /// Restores the backup; false if there is none.
    pub fn restore(&mut self) -> bool {
        let Some((version, pods, high_water, record)) = self.backup.take() else { return false };
        self.record = record;
        for (uid, life) in &mut self.lives {
            let is_back = pods.values().any(|s| s.pod.uid == *uid);
            if is_back {
                life.removed = None;
                life.is_erased = false;
            } else if life.removed.is_none() || life.created > version {
                (life.is_erased, life.was_over) = (true, true);
            }
        }
        self.log.retain(|(at, _)| *at <= version);
        (self.version, self.pods, self.high_water) = (version, pods, high_water);
        // The processes know since whose a pod is.
        for stored in self.pods.values_mut() {
            let life = self.lives.get(&stored.pod.uid);
            stored.is_foreign = life.map_or(stored.is_foreign, |life| life.is_foreign);
        }
        self.n_restores += 1;
        true
    }

    fn note(&mut self, event: PodEvent) {
        self.log.push_back((self.version, event));
        while self.log.len() > LOG_MAX {
            if let Some((version, _)) = self.log.pop_front() {
                self.compacted = version;
            }
        }
    }
}

/// Ended or terminating.
pub fn is_over(pod: &Pod) -> bool {
    pod.deleting || pod.phase.is_final() || pod.container == ContainerState::Ended
}

fn uid_of(event: &PodEvent) -> Option<&Uid> {
    match event {
        PodEvent::Applied(pod) | PodEvent::Deleted(pod) => Some(&pod.uid),
        PodEvent::Bookmark(_) => None,
    }
}

/// Only the last event of each uid, at its position.
pub fn coalesce(events: &mut Vec<PodEvent>) {
    let mut said = BTreeSet::new();
    let mut kept: Vec<PodEvent> = Vec::new();
    for event in events.drain(..).rev() {
        if uid_of(&event).is_none_or(|uid| said.insert(uid.clone())) {
            kept.push(event);
        }
    }
    kept.reverse();
    *events = kept;
}
