//! The state of the cluster behind one lock, and the operations that store objects. Nothing in here
//! blocks.

pub(crate) mod deletion;
pub(crate) mod events;
pub(crate) mod log_files;
pub(crate) mod namespaces;
pub(crate) mod object;
pub(crate) mod pods;
pub(crate) mod store;

use std::sync::Arc;

use serde_json::{Value, json};

use self::deletion::Collector;
use self::events::Events;
use self::object::{Object, metadata_mut};
use self::store::Store;
use crate::schema::kind::{Key, Kind};
use posse_base::rng::Rng;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Store,
    /// For uids and generated names. Faults have their own generator.
    pub(crate) rng: Rng,
    /// The wall time of the current call.
    pub(crate) now: String,
    /// The disabled admission plugins, by kube-apiserver's names.
    pub(crate) disabled: Vec<String>,
    /// The caches of the Event recorder.
    pub(crate) events: Events,
    pub(crate) collector: Collector,
    /// Requests are authenticated and authorized: pods need tokens.
    pub(crate) has_roles: bool,
    /// The certificate authority of the server, PEM.
    pub(crate) authority: String,
}

impl State {
    /// An empty state. `authority` is the certificate authority of the server, PEM.
    pub(crate) fn new(history_max: usize, rng: Rng, now: String, authority: String) -> Self {
        Self {
            store: Store::new(history_max),
            rng,
            now,
            disabled: Vec::new(),
            events: Events::default(),
            collector: Collector::default(),
            has_roles: false,
            authority,
        }
    }

    /// True unless the admission plugin is disabled.
    pub(crate) fn runs(&self, plugin: &str) -> bool {
        !self.disabled.iter().any(|disabled| disabled == plugin)
    }

    /// A random UUID, version 4.
    pub(crate) fn new_uid(&mut self) -> String {
        let high = self.rng.next_u64() & 0xFFFF_FFFF_FFFF_0FFF | 0x4000;
        let low = self.rng.next_u64() & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000;
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xFFFF,
            high & 0xFFFF,
            low >> 48,
            low & 0xFFFF_FFFF_FFFF
        )
    }

    /// The random end of a generated name.
    pub(crate) fn new_suffix(&mut self) -> String {
        // The real server's alphabet: without vowels, so that no words come out.
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let n_letters = u64::try_from(LETTERS.len()).expect("a handful");
        let letter = |rng: &mut Rng| {
            let at = usize::try_from(rng.below(n_letters)).expect("below the length");
            char::from(LETTERS[at])
        };
        (0..5).map(|_| letter(&mut self.rng)).collect()
    }

    /// Stores a new object unless it exists.
    pub(crate) fn ensure(&mut self, kind: Kind, namespace: &str, name: &str, mut value: Value) {
        if self.store.get(&Key::new(kind, namespace, name)).is_some() {
            return;
        }
        let uid = self.new_uid();
        let now = self.now.clone();
        let metadata = metadata_mut(&mut value);
        if kind.is_namespaced() {
            metadata.insert("namespace".to_owned(), namespace.into());
        }
        metadata.insert("name".to_owned(), name.into());
        metadata.insert("uid".to_owned(), uid.into());
        metadata.insert("creationTimestamp".to_owned(), now.into());
        self.create(kind, value);
    }

    /// Stores a namespace unless it exists.
    pub(crate) fn ensure_namespace(&mut self, name: &str) {
        let value = json!({
            "metadata": { "labels": { "kubernetes.io/metadata.name": name } },
            "spec": { "finalizers": ["kubernetes"] },
            "status": { "phase": "Active" },
        });
        self.ensure(Kind::Namespace, "", name, value);
    }

    /// Stores a new object, and deletes it again if none of its owners exists any more.
    pub(crate) fn create(&mut self, kind: Kind, value: Value) -> Arc<Object> {
        let object = self.store.put(kind, value);
        if self.is_orphan(&object) {
            self.collect_garbage(vec![object.key.clone()]);
        }
        if kind == Kind::Namespace {
            // At once and not by a controller, so that the first pod finds its service account.
            namespaces::ensure_objects(self, &object.key.name);
        }
        object
    }

    /// Stores a new version of an object, and removes it if it only waited for its finalizers.
    pub(crate) fn replace(&mut self, kind: Kind, value: Value) -> Arc<Object> {
        let object = self.store.put(kind, value);
        if object.deleting {
            self.continue_deletion(&object.key);
        }
        object
    }

    /// Changes the object of that key and uid if it still exists.
    pub(crate) fn edit(&mut self, key: &Key, uid: &str, change: impl FnOnce(&mut Value)) {
        let Some(object) = self.store.get(key).filter(|object| &*object.uid == uid) else { return };
        let old = object.value();
        let mut value = old.clone();
        change(&mut value);
        if value != old {
            self.replace(key.kind, value);
        }
    }
}
