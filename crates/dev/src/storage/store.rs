//! The objects, their resourceVersion and a bounded history of changes. Wakes subscribers after
//! changes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use serde_json::Value;

use super::object::Object;
use crate::schema::kind::{Key, Kind};

/// The changes to keep for watches and for the later pages of lists. One change of a pod takes
/// about 3 kB.
pub(crate) const WATCH_HISTORY_EVENTS: usize = 16_384;

/// One change of one object.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    /// `None` if the object is new.
    pub(crate) before: Option<Arc<Object>>,
    /// The new version, or the last one of a removed object.
    pub(crate) now: Arc<Object>,
    pub(crate) gone: bool,
}

/// A subscriber's position in the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    epoch: u64,
    version: u64,
}

/// Why the history cannot answer for a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// The version is older than the history; this is the oldest version that it can answer for.
    Compacted(u64),
    Future,
}

#[derive(Debug)]
pub(crate) struct Store {
    version: u64,
    /// Counts the calls of `restore`.
    epoch: u64,
    objects: BTreeMap<Key, Arc<Object>>,
    /// The uids of all objects, to look up owners.
    uids: BTreeSet<Box<str>>,
    /// From the uid of an owner to its dependents.
    dependents: BTreeMap<Box<str>, BTreeSet<Key>>,
    history: VecDeque<Change>,
    history_max: usize,
    subscribers: Vec<Subscriber>,
}

#[derive(Debug)]
struct Subscriber {
    kind: Kind,
    sender: Sender<()>,
}

impl Store {
    pub(crate) fn new(history_max: usize) -> Self {
        Self {
            // In requests version 0 means "any".
            version: 1,
            epoch: 0,
            objects: BTreeMap::new(),
            uids: BTreeSet::new(),
            dependents: BTreeMap::new(),
            history: VecDeque::new(),
            history_max: history_max.max(1),
            subscribers: Vec::new(),
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    pub(crate) fn has_uid(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    /// The objects that name `uid` as an owner.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Key> {
        self.dependents.get(uid).map(|keys| keys.iter().cloned().collect()).unwrap_or_default()
    }

    /// The objects of a kind in key order, of one namespace, or of all if `namespace` is empty.
    pub(crate) fn objects(
        &self,
        kind: Kind,
        namespace: &str,
    ) -> impl Iterator<Item = &Arc<Object>> {
        let namespace = namespace.to_owned();
        let all = namespace.is_empty();
        self.objects.range(Key::new(kind, &namespace, "")..).map(|(_, object)| object).take_while(
            move |object| object.key.kind == kind && (all || object.key.namespace == namespace),
        )
    }

    /// The same as they were at `version`.
    pub(crate) fn objects_at(
        &self,
        kind: Kind,
        namespace: &str,
        version: u64,
    ) -> Result<Vec<Arc<Object>>, Unavailable> {
        let mut objects: BTreeMap<&Key, &Arc<Object>> =
            self.objects(kind, namespace).map(|object| (&object.key, object)).collect();
        for change in self.changes_after(version)?.rev() {
            let key = &change.now.key;
            if key.kind != kind || !(namespace.is_empty() || key.namespace == namespace) {
                continue;
            }
            match &change.before {
                Some(before) => objects.insert(key, before),
                None => objects.remove(key),
            };
        }
        Ok(objects.into_values().cloned().collect())
    }

    /// The changes after `version`, oldest first.
    pub(crate) fn changes_after(
        &self,
        version: u64,
    ) -> Result<impl DoubleEndedIterator<Item = &Change>, Unavailable> {
        let oldest = self.oldest();
        if version < oldest {
            return Err(Unavailable::Compacted(oldest));
        }
        if version > self.version {
            return Err(Unavailable::Future);
        }
        let start = self.history.partition_point(|change| change.version <= version);
        Ok(self.history.range(start..))
    }

    /// The changes since the last call with this `seen`, which moves on. After an error the caller
    /// has to look at all objects.
    pub(crate) fn unseen(
        &self,
        seen: &mut Seen,
    ) -> Result<impl DoubleEndedIterator<Item = &Change>, Unavailable> {
        let now = Seen { epoch: self.epoch, version: self.version };
        let before = std::mem::replace(seen, now);
        if before.epoch != self.epoch {
            return Err(Unavailable::Future);
        }
        self.changes_after(before.version)
    }

    /// The oldest version whose later changes are all in the history.
    pub(crate) fn oldest(&self) -> u64 {
        self.history.front().map_or(self.version, |change| change.version - 1)
    }

    /// Stores an object under the next version; it replaces the object of the same key.
    pub(crate) fn put(&mut self, kind: Kind, value: Value) -> Arc<Object> {
        self.version += 1;
        let object = Arc::new(Object::new(kind, value, self.version));
        let before = self.objects.insert(object.key.clone(), Arc::clone(&object));
        if let Some(before) = &before {
            self.unlink(before);
        }
        self.uids.insert(object.uid.clone());
        for owner in &object.owners {
            self.dependents.entry(owner.clone()).or_default().insert(object.key.clone());
        }
        self.record(Change {
            version: self.version,
            before,
            now: Arc::clone(&object),
            gone: false,
        });
        object
    }

    /// Removes an object and returns its last state, which has the version of the removal.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Object>> {
        let before = self.objects.remove(key)?;
        self.version += 1;
        self.unlink(&before);
        let now = Arc::new(before.at_version(self.version));
        let change = Change {
            version: self.version,
            before: Some(before),
            now: Arc::clone(&now),
            gone: true,
        };
        self.record(change);
        Some(now)
    }

    /// Sets the length of the history and drops older changes.
    pub(crate) fn keep(&mut self, history_max: usize) {
        self.history_max = history_max.max(1);
        self.trim();
    }

    /// Goes back to an older version, as an etcd that is restored from a backup: without any change
    /// events, and later versions are given out a second time.
    pub(crate) fn restore(&mut self, version: u64) -> Result<(), Unavailable> {
        let n_kept = self.history.len() - self.changes_after(version)?.count();
        for change in self.history.drain(n_kept..).rev() {
            match change.before {
                Some(before) => self.objects.insert(change.now.key.clone(), before),
                None => self.objects.remove(&change.now.key),
            };
        }
        self.version = version;
        self.epoch += 1;
        self.uids = self.objects.values().map(|object| object.uid.clone()).collect();
        self.dependents.clear();
        for object in self.objects.values() {
            for owner in &object.owners {
                self.dependents.entry(owner.clone()).or_default().insert(object.key.clone());
            }
        }
        Ok(())
    }

    /// A channel that gets a token after changes of `kinds`; one token for any number of changes.
    pub(crate) fn subscribe(&mut self, kinds: impl IntoIterator<Item = Kind>) -> Receiver<()> {
        let (sender, receiver) = bounded(1);
        for kind in kinds {
            // A send is the only way to find closed channels. An extra token does no harm.
            self.wake(kind);
            self.subscribers.push(Subscriber { kind, sender: sender.clone() });
        }
        receiver
    }

    fn unlink(&mut self, object: &Object) {
        self.uids.remove(&object.uid);
        for owner in &object.owners {
            if let Some(keys) = self.dependents.get_mut(owner) {
                keys.remove(&object.key);
                if keys.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
    }

    fn record(&mut self, change: Change) {
        let kind = change.now.key.kind;
        self.history.push_back(change);
        self.trim();
        self.wake(kind);
    }

    fn trim(&mut self) {
        while self.history.len() > self.history_max {
            self.history.pop_front();
        }
    }

    /// Wakes all subscribers.
    pub(crate) fn wake_all(&mut self) {
        for kind in Kind::all() {
            self.wake(kind);
        }
    }

    fn wake(&mut self, kind: Kind) {
        self.subscribers.retain(|subscriber| {
            // A full channel still holds a token that its receiver has not taken.
            subscriber.kind != kind
                || !matches!(
                    subscriber.sender.try_send(()),
                    Err(crossbeam_channel::TrySendError::Disconnected(()))
                )
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, uid: &str, owner: Option<&str>) -> Value {
        let owners: Vec<Value> = owner
            .map(|uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": uid}))
            .into_iter()
            .collect();
        json!({"metadata": {
            "name": name, "namespace": "n", "uid": uid, "ownerReferences": owners,
        }})
    }

    fn names(objects: &[Arc<Object>]) -> Vec<&str> {
        objects.iter().map(|object| object.key.name.as_str()).collect()
    }

    #[test]
    fn an_older_version_is_rebuilt_from_the_history() {
        let mut store = Store::new(100);
        store.put(Kind::Pod, pod("a", "1", None));
        let then = store.put(Kind::Pod, pod("b", "2", None)).version;
        store.put(Kind::Pod, pod("c", "3", None));
        store.remove(&Key::new(Kind::Pod, "n", "a"));
        store.put(Kind::Pod, pod("b", "4", None));
        let objects = store.objects_at(Kind::Pod, "n", then).expect("in the window");
        assert_eq!(names(&objects), ["a", "b"]);
        assert_eq!(&*objects[1].uid, "2");
    }

    #[test]
    fn a_restored_store_has_the_objects_of_the_old_version() {
        let mut store = Store::new(100);
        store.put(Kind::Pod, pod("a", "1", Some("x")));
        let then = store.put(Kind::Pod, pod("b", "2", None)).version;
        let mut seen = Seen::default();
        assert_eq!(store.unseen(&mut seen).err(), Some(Unavailable::Compacted(1)));
        store.put(Kind::Pod, pod("c", "3", None));
        store.remove(&Key::new(Kind::Pod, "n", "a"));
        store.put(Kind::Pod, pod("b", "4", None));
        assert_eq!(store.restore(then + 9), Err(Unavailable::Future));
        assert_eq!(store.restore(then), Ok(()));
        let objects: Vec<_> = store.objects(Kind::Pod, "").cloned().collect();
        assert_eq!((names(&objects), store.version()), (vec!["a", "b"], then));
        assert!(store.has_uid("1") && store.has_uid("2"));
        assert!(!store.has_uid("3") && !store.has_uid("4"));
        assert_eq!(store.dependents("x").len(), 1);
        assert_eq!(store.unseen(&mut seen).err(), Some(Unavailable::Future));
        store.put(Kind::Pod, pod("d", "5", None));
        assert_eq!(store.unseen(&mut seen).expect("the new one").count(), 1);
        let objects = store.objects_at(Kind::Pod, "n", then).expect("in the window");
        assert_eq!(names(&objects), ["a", "b"]);
        store.keep(1);
        assert_eq!(store.restore(then - 1), Err(Unavailable::Compacted(then)));
    }

    #[test]
    fn the_history_is_bounded_and_reports_its_bounds() {
        let mut store = Store::new(2);
        for n in 0..5 {
            store.put(Kind::Pod, pod(&format!("p{n}"), &n.to_string(), None));
        }
        assert_eq!(store.version(), 6);
        assert_eq!(store.oldest(), 4);
        assert_eq!(store.changes_after(4).expect("kept").count(), 2);
        assert_eq!(store.changes_after(3).err(), Some(Unavailable::Compacted(4)));
        assert_eq!(store.changes_after(7).err(), Some(Unavailable::Future));
    }

    #[test]
    fn dependents_and_uids_follow_the_objects() {
        let mut store = Store::new(10);
        store.put(Kind::Pod, pod("o", "owner", None));
        let key = store.put(Kind::Pod, pod("d", "dependent", Some("owner"))).key.clone();
        assert_eq!(store.dependents("owner"), std::slice::from_ref(&key));
        store.remove(&key);
        assert!(store.dependents("owner").is_empty());
        assert!(store.has_uid("owner") && !store.has_uid("dependent"));
    }

    #[test]
    fn a_change_wakes_the_subscribers_of_its_kind_once() {
        let mut store = Store::new(10);
        let pods = store.subscribe([Kind::Pod]);
        let leases = store.subscribe([Kind::Lease]);
        store.put(Kind::Pod, pod("a", "1", None));
        store.put(Kind::Pod, pod("b", "2", None));
        assert_eq!(pods.try_iter().count(), 1);
        assert_eq!(leases.try_iter().count(), 0);
        drop(pods);
        let again = store.subscribe([Kind::Pod]);
        assert_eq!(store.subscribers.len(), 2, "those who have gone are forgotten");
        assert_eq!(again.try_iter().count(), 0);
    }
}
