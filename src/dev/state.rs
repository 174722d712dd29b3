//! Owns what the cluster knows, and what follows from a change of it: graceful deletion, the end of
//! dependents whose owners are gone, the emptying of namespaces. One lock guards it all; nothing in
//! here waits.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::core::rng::Rng;
use crate::dev::admit::Disabled;
use crate::dev::controllers::namespaces;
use crate::dev::events::Events;
use crate::dev::kind::{Key, Kind};
use crate::dev::object::{Object, array_at, metadata_mut, object_mut, text_at};
use crate::dev::refused::Refused;
use crate::dev::store::Store;
use crate::dev::time;

/// Namespaces that every cluster has and nobody deletes.
pub(crate) const NAMESPACES: [&str; 4] =
    ["default", "kube-node-lease", "kube-public", "kube-system"];

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
}

/// What a delete asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_seconds: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) dry_run: bool,
}

/// How a delete went.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object is gone.
    Gone(Arc<Object>),
    /// The object is marked, and goes later; or it went the way of pods, which are marked first.
    Marked(Value),
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
        let released = !text_at(&value, "/metadata/deletionTimestamp").is_empty()
            && array_at(&value, "/metadata/finalizers").is_empty()
            && value.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64)
                == Some(0);
        let object = self.store.put(kind, value);
        if released {
            self.remove(&object.key);
        }
        object
    }

    /// Deletes one object as the API does.
    pub(crate) fn delete(
        &mut self,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Deleted, Refused> {
        let Some(object) = self.store.get(key).cloned() else {
            return Err(Refused::not_found(key.kind, &key.name));
        };
        check_preconditions(&object, options)?;
        if key.kind == Kind::Pod {
            Ok(self.delete_pod(&object, options))
        } else if key.kind == Kind::Namespace {
            self.delete_namespace(&object, options)
        } else {
            Ok(self.delete_plain(&object, options))
        }
    }

    fn delete_pod(&mut self, object: &Object, options: &DeleteOptions) -> Deleted {
        let mut value = object.value();
        let grace = match object.deleting {
            true => shortened_grace(&value, options),
            false => Some(first_grace(object, &value, options)),
        };
        let Some(grace) = grace else { return Deleted::Marked(value) };
        let at = deletion_moment(&value, grace, &self.now);
        let metadata = metadata_mut(&mut value);
        metadata.insert("deletionTimestamp".to_owned(), at.into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
        if options.dry_run {
            return Deleted::Marked(value);
        }
        let marked = self.store.put(Kind::Pod, value).value();
        if grace == 0 && array_at(&marked, "/metadata/finalizers").is_empty() {
            self.remove(&object.key);
        }
        Deleted::Marked(marked)
    }

    fn delete_plain(&mut self, object: &Arc<Object>, options: &DeleteOptions) -> Deleted {
        let mut value = object.value();
        if !array_at(&value, "/metadata/finalizers").is_empty() {
            if object.deleting || options.dry_run {
                return Deleted::Marked(value);
            }
            let now = self.now.clone();
            let metadata = metadata_mut(&mut value);
            metadata.insert("deletionTimestamp".to_owned(), now.into());
            metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
            return Deleted::Marked(self.store.put(object.key.kind, value).value());
        }
        if !options.dry_run {
            self.remove(&object.key);
        }
        Deleted::Gone(Arc::clone(object))
    }

    fn delete_namespace(
        &mut self,
        object: &Object,
        options: &DeleteOptions,
    ) -> Result<Deleted, Refused> {
        let name = object.key.name.clone();
        if NAMESPACES.contains(&name.as_str()) {
            let detail = "this namespace may not be deleted";
            return Err(Refused::forbidden(Kind::Namespace, &name, detail));
        }
        let mut value = object.value();
        if object.deleting {
            return Ok(Deleted::Marked(value));
        }
        let now = self.now.clone();
        metadata_mut(&mut value).insert("deletionTimestamp".to_owned(), now.into());
        object_mut(&mut value, "status").insert("phase".to_owned(), "Terminating".into());
        if options.dry_run {
            return Ok(Deleted::Marked(value));
        }
        let marked = self.store.put(Kind::Namespace, value).value();
        let contents: Vec<Key> = Kind::namespaced()
            .flat_map(|kind| self.store.objects(kind, &name))
            .map(|object| object.key.clone())
            .collect();
        if contents.is_empty() {
            self.remove(&object.key);
        }
        self.sweep(contents);
        Ok(Deleted::Marked(marked))
    }

    /// Removes an object for good, and what hangs on it.
    pub(crate) fn remove(&mut self, key: &Key) {
        let orphans = self.remove_one(key);
        self.sweep(orphans);
    }

    /// Deletes in the background, as the garbage collector does. Each object is deleted once, so
    /// the number of objects bounds this.
    fn sweep(&mut self, mut keys: Vec<Key>) {
        while let Some(key) = keys.pop() {
            let Some(object) = self.store.get(&key).cloned() else { continue };
            let options = DeleteOptions::default();
            if key.kind != Kind::Pod {
                match array_at(&object.value(), "/metadata/finalizers").is_empty() {
                    true => keys.extend(self.remove_one(&key)),
                    // Whoever set them lets it go.
                    false => {
                        self.delete_plain(&object, &options);
                    }
                }
            } else if !object.deleting {
                let value = object.value();
                let grace = first_grace(&object, &value, &options);
                let stays = grace > 0 || !array_at(&value, "/metadata/finalizers").is_empty();
                if stays {
                    self.delete_pod(&object, &options);
                } else {
                    keys.extend(self.remove_one(&key));
                }
            }
        }
    }

    /// Removes one object and tells whom that leaves without an owner.
    fn remove_one(&mut self, key: &Key) -> Vec<Key> {
        let Some(gone) = self.store.remove(key) else { return Vec::new() };
        let orphans = self
            .store
            .dependents(&gone.uid)
            .into_iter()
            .filter(|key| self.store.get(key).is_some_and(|object| self.is_orphan(object)))
            .collect();
        let namespace = Key::new(Kind::Namespace, "", &key.namespace);
        let ending = self.store.get(&namespace).is_some_and(|namespace| namespace.deleting);
        let empty = || {
            Kind::namespaced().all(|kind| self.store.objects(kind, &key.namespace).next().is_none())
        };
        if ending && empty() {
            self.store.remove(&namespace);
        }
        orphans
    }

    /// True where an object names owners and none of them is there.
    fn is_orphan(&self, object: &Object) -> bool {
        !object.owners.is_empty() && !object.owners.iter().any(|uid| self.store.has_uid(uid))
    }
}

fn check_preconditions(object: &Object, options: &DeleteOptions) -> Result<(), Refused> {
    let key = &object.key;
    let refuse = |detail: String| {
        Err(Refused::conflict(key.kind.name(), key.kind.group(), &key.name, &detail))
    };
    if let Some(uid) = &options.uid
        && **uid != *object.uid
    {
        return refuse(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The \
             object might have been deleted and then recreated",
            object.uid
        ));
    }
    if let Some(version) = &options.version
        && *version != object.version.to_string()
    {
        return refuse(format!(
            "the ResourceVersion in the precondition ({version}) does not match the \
             ResourceVersion in record ({}). The object might have been modified",
            object.version
        ));
    }
    Ok(())
}

/// The grace of a pod that nobody deleted before. Where nothing can run there is none.
fn first_grace(object: &Object, value: &Value, options: &DeleteOptions) -> i64 {
    const GRACE_SECONDS: i64 = 30;
    if object.node().is_empty() || object.is_terminal() {
        return 0;
    }
    let own = || {
        value
            .pointer("/spec/terminationGracePeriodSeconds")
            .and_then(Value::as_i64)
            .unwrap_or(GRACE_SECONDS)
    };
    match options.grace_seconds.unwrap_or_else(own) {
        negative if negative < 0 => 1,
        grace => grace,
    }
}

/// The grace of a pod that is on its way already: it can only get shorter. None: no change.
fn shortened_grace(value: &Value, options: &DeleteOptions) -> Option<i64> {
    let grace = match options.grace_seconds? {
        negative if negative < 0 => 1,
        grace => grace,
    };
    let present = value.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64)?;
    (grace < present).then_some(grace)
}

/// The deletion moment under a new grace: counted from the first delete.
fn deletion_moment(value: &Value, grace: i64, now: &str) -> String {
    match text_at(value, "/metadata/deletionTimestamp") {
        "" => time::shifted(now, grace),
        at => {
            let present = value
                .pointer("/metadata/deletionGracePeriodSeconds")
                .and_then(Value::as_i64)
                .unwrap_or_default();
            time::shifted(at, grace.saturating_sub(present))
        }
    }
}
