//! Owns what the cluster knows, and the storing of it. What follows from a deletion stands in
//! `deletion`. One lock guards it all; nothing in here waits.

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
use crate::core::model::rng::Rng;
use crate::dev::schema::kind::{Key, Kind};

/// The plugins that are off, as kube-apiserver names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disabled(pub(crate) Vec<String>);

impl Disabled {
    pub(crate) fn has(&self, plugin: &str) -> bool {
        self.0.iter().any(|disabled| disabled == plugin)
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Store,
    /// For uids and generated names; not the one that faults draw from.
    pub(crate) rng: Rng,
    /// The wall time of the call in progress.
    pub(crate) now: String,
    /// The admission plugins that are off.
    pub(crate) disabled: Disabled,
    /// What has been said about objects.
    pub(crate) events: Events,
    pub(crate) collector: Collector,
    /// Everybody is asked who they are: pods need their tokens.
    pub(crate) has_roles: bool,
    /// The certificate that the server's own is checked with, PEM.
    pub(crate) authority: String,
}

impl State {
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

    /// The end of a generated name.
    pub(crate) fn new_suffix(&mut self) -> String {
        // The real server's alphabet: no vowels, so no words.
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let n_letters = u64::try_from(LETTERS.len()).expect("a handful");
        let letter = |rng: &mut Rng| {
            let at = usize::try_from(rng.below(n_letters)).expect("below the length");
            char::from(LETTERS[at])
        };
        (0..5).map(|_| letter(&mut self.rng)).collect()
    }

    /// Stores a new cluster-wide object, unless it is there.
    pub(crate) fn ensure(&mut self, kind: Kind, name: &str, mut value: Value) {
        if self.store.get(&Key::new(kind, "", name)).is_some() {
            return;
        }
        let uid = self.new_uid();
        let now = self.now.clone();
        let metadata = metadata_mut(&mut value);
        metadata.insert("name".to_owned(), name.into());
        metadata.insert("uid".to_owned(), uid.into());
        metadata.insert("creationTimestamp".to_owned(), now.into());
        self.store.put(kind, value);
    }

    /// Stores a namespace, unless it is there.
    pub(crate) fn ensure_namespace(&mut self, name: &str) {
        let value = json!({
            "metadata": { "labels": { "kubernetes.io/metadata.name": name } },
            "spec": { "finalizers": ["kubernetes"] },
            "status": { "phase": "Active" },
        });
        self.ensure(Kind::Namespace, name, value);
        namespaces::furnish(self, name);
    }

    /// Stores a new object and removes it again where all its owners are gone already.
    pub(crate) fn create(&mut self, kind: Kind, value: Value) -> Arc<Object> {
        let object = self.store.put(kind, value);
        if self.is_orphan(&object) {
            self.sweep(vec![object.key.clone()]);
        }
        if kind == Kind::Namespace {
            // At once, so that the first pod finds its account.
            namespaces::furnish(self, &object.key.name);
        }
        object
    }

    /// Stores a new version of an object; one that only waited for its finalizers goes.
    pub(crate) fn replace(&mut self, kind: Kind, value: Value) -> Arc<Object> {
        let object = self.store.put(kind, value);
        if object.deleting {
            self.finish(&object.key);
        }
        object
    }
}
