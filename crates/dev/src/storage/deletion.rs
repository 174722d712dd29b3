//! Deletion: grace periods, finalizers, garbage collection of dependents, and emptying of
//! namespaces. A real cluster leaves the last three to controllers; here they happen at once, under
//! the same lock.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::State;
use super::namespaces::NAMESPACES;
use super::object::{Object, array_at, metadata_mut, next_generation, object_mut, text_at};
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use crate::time;

/// The `DeleteOptions` of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_seconds: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) dry_run: bool,
    /// `None`: the object's finalizers and its kind decide.
    pub(crate) propagation: Option<Propagation>,
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// They are deleted after it.
    Background,
    /// They stay and lose the owner reference.
    Orphan,
}

/// The outcome of a delete.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object is removed.
    Removed(Arc<Object>),
    /// The object has a deletionTimestamp and is removed later. A pod always takes this way, even
    /// without a grace period.
    Terminating(Value),
}

/// The garbage collector's work in progress.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    /// Objects to look at. A queue and not a recursion, because chains of owners may be long.
    due: BTreeSet<Key>,
    is_busy: bool,
}

/// What a client may have set; dependents are always deleted at once.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

impl State {
    /// Deletes one object as the API does.
    pub(crate) fn delete(
        &mut self,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Deleted, StatusError> {
        let Some(object) = self.store.get(key).cloned() else {
            return Err(StatusError::not_found(key.kind, &key.name));
        };
        check_preconditions(&object, options)?;
        if key.kind == Kind::Namespace {
            return self.delete_namespace(&object, options);
        }
        Ok(self.delete_object(&object, options))
    }

    fn delete_object(&mut self, object: &Arc<Object>, options: &DeleteOptions) -> Deleted {
        let key = &object.key;
        let is_pod = key.kind == Kind::Pod;
        let mut value = object.value();
        let grace = match (is_pod, object.deleting) {
            (false, _) => 0,
            (true, false) => first_grace(object, &value, options),
            (true, true) => match shortened_grace(&value, options) {
                Some(grace) => grace,
                None => return Deleted::Terminating(value),
            },
        };
        let finalizers = finalizers_after(key.kind, &value, options.propagation);
        let stays = grace > 0 || !finalizers.is_empty();
        set_finalizers(&mut value, finalizers);
        if is_pod || (stays && !object.deleting) {
            set_deletion_timestamp(&mut value, grace, &self.now);
        }
        if !stays && !is_pod {
            if !options.dry_run {
                self.remove(key);
            }
            return Deleted::Removed(Arc::clone(object));
        }
        if options.dry_run || value == object.value() {
            return Deleted::Terminating(value);
        }
        let marked = self.store.put(key.kind, value);
        match stays {
            true => self.continue_deletion(key),
            false => self.remove(key),
        }
        Deleted::Terminating(marked.value())
    }

    fn delete_namespace(
        &mut self,
        object: &Object,
        options: &DeleteOptions,
    ) -> Result<Deleted, StatusError> {
        let name = object.key.name.clone();
        if NAMESPACES.contains(&name.as_str()) {
            let detail = "this namespace may not be deleted";
            return Err(StatusError::forbidden(Kind::Namespace, &name, detail));
        }
        let mut value = object.value();
        if object.deleting {
            return Ok(Deleted::Terminating(value));
        }
        let finalizers = finalizers_after(Kind::Namespace, &value, options.propagation);
        set_finalizers(&mut value, finalizers);
        let now = self.now.clone();
        metadata_mut(&mut value).insert("deletionTimestamp".to_owned(), now.into());
        object_mut(&mut value, "status").insert("phase".to_owned(), "Terminating".into());
        if options.dry_run {
            return Ok(Deleted::Terminating(value));
        }
        let marked = self.store.put(Kind::Namespace, value);
        let contents: Vec<Key> = Kind::namespaced()
            .flat_map(|kind| self.store.objects(kind, &name))
            .map(|object| object.key.clone())
            .collect();
        self.collect_garbage(contents);
        self.continue_deletion(&object.key);
        Ok(Deleted::Terminating(marked.value()))
    }

    /// Continues the deletion of an object and removes it if no finalizer, grace period or
    /// dependent holds it.
    pub(crate) fn continue_deletion(&mut self, key: &Key) {
        self.collector.due.insert(key.clone());
        if self.collector.is_busy {
            return;
        }
        self.collector.is_busy = true;
        while let Some(key) = self.collector.due.pop_first() {
            self.continue_one(&key);
        }
        self.collector.is_busy = false;
    }

    fn continue_one(&mut self, key: &Key) {
        let Some(object) = self.store.get(key).filter(|object| object.deleting).cloned() else {
            return;
        };
        let mut value = object.value();
        let mut finalizers = finalizers(&value);
        if finalizers.iter().any(|finalizer| finalizer == ORPHAN) {
            for key in self.store.dependents(&object.uid) {
                self.remove_owner_reference(&key, &object.uid);
            }
            finalizers.retain(|finalizer| finalizer != ORPHAN);
        }
        let Some(object) = self.store.get(key).filter(|now| now.uid == object.uid).cloned() else {
            return;
        };
        let is_changed = finalizers != self::finalizers(&value);
        let over = if key.kind == Kind::Namespace {
            self.is_empty(&key.name)
        } else {
            value.pointer("/metadata/deletionGracePeriodSeconds") == Some(&json!(0))
        };
        if over && finalizers.is_empty() {
            self.remove(&object.key);
        } else if is_changed {
            set_finalizers(&mut value, finalizers);
            self.store.put(key.kind, value);
        }
    }

    /// Removes an owner reference from a dependent.
    fn remove_owner_reference(&mut self, key: &Key, owner: &str) {
        let Some(mut value) = self.store.get(key).map(|object| object.value()) else { return };
        let metadata = metadata_mut(&mut value);
        if let Some(Value::Array(references)) = metadata.get_mut("ownerReferences") {
            references.retain(|reference| text_at(reference, "/uid") != owner);
            if references.is_empty() {
                metadata.remove("ownerReferences");
            }
        }
        self.replace(key.kind, value);
    }

    /// Removes an object and deletes the dependents that it leaves without an owner.
    pub(crate) fn remove(&mut self, key: &Key) {
        let orphans = self.remove_one(key);
        self.collect_garbage(orphans);
    }

    /// Deletes objects in the background, as the garbage collector does. Each object is deleted
    /// once, so the number of objects bounds the loop.
    pub(crate) fn collect_garbage(&mut self, mut keys: Vec<Key>) {
        while let Some(key) = keys.pop() {
            let Some(object) = self.store.get(&key).cloned() else { continue };
            if object.deleting {
                continue;
            }
            let value = object.value();
            let is_held = !finalizers(&value).is_empty();
            let grace = match key.kind == Kind::Pod {
                true => first_grace(&object, &value, &DeleteOptions::default()),
                false => 0,
            };
            match is_held || grace > 0 {
                true => {
                    let propagation = Some(Propagation::Background);
                    let options = DeleteOptions { propagation, ..DeleteOptions::default() };
                    self.delete_object(&object, &options);
                }
                false => keys.extend(self.remove_one(&key)),
            }
        }
    }

    /// Removes one object and returns the dependents that have no owner any more.
    fn remove_one(&mut self, key: &Key) -> Vec<Key> {
        let Some(gone) = self.store.remove(key) else { return Vec::new() };
        let orphans = self
            .store
            .dependents(&gone.uid)
            .into_iter()
            .filter(|key| self.store.get(key).is_some_and(|object| self.is_orphan(object)))
            .collect();
        if key.kind.is_namespaced() {
            self.continue_deletion(&Key::new(Kind::Namespace, "", &key.namespace));
        }
        orphans
    }

    /// True if the namespace holds no objects.
    fn is_empty(&self, namespace: &str) -> bool {
        Kind::namespaced().all(|kind| self.store.objects(kind, namespace).next().is_none())
    }

    /// True if the object names owners and none of them exists.
    pub(crate) fn is_orphan(&self, object: &Object) -> bool {
        !object.owners.is_empty() && !object.owners.iter().any(|uid| self.store.has_uid(uid))
    }
}

fn finalizers(value: &Value) -> Vec<String> {
    let finalizers = array_at(value, "/metadata/finalizers").iter();
    finalizers.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn set_finalizers(value: &mut Value, finalizers: Vec<String>) {
    match finalizers.is_empty() {
        true => metadata_mut(value).remove("finalizers"),
        false => metadata_mut(value).insert("finalizers".to_owned(), finalizers.into()),
    };
}

/// The finalizers of a deleted object: its own and that of the propagation policy.
fn finalizers_after(kind: Kind, value: &Value, propagation: Option<Propagation>) -> Vec<String> {
    let mut finalizers = finalizers(value);
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    let propagation = propagation.unwrap_or_else(|| match (has(ORPHAN), has(FOREGROUND)) {
        (true, _) => Propagation::Orphan,
        // batch/v1 Jobs default to orphan: a job's pods stay.
        (false, false) if kind == Kind::Job => Propagation::Orphan,
        (false, _) => Propagation::Background,
    });
    finalizers.retain(|finalizer| finalizer != ORPHAN && finalizer != FOREGROUND);
    if propagation == Propagation::Orphan {
        finalizers.push(ORPHAN.to_owned());
    }
    finalizers
}

fn set_deletion_timestamp(value: &mut Value, grace: i64, now: &str) {
    if text_at(value, "/metadata/deletionTimestamp").is_empty() {
        next_generation(value);
    }
    let at = deletion_timestamp(value, grace, now);
    let metadata = metadata_mut(value);
    metadata.insert("deletionTimestamp".to_owned(), at.into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
}

fn check_preconditions(object: &Object, options: &DeleteOptions) -> Result<(), StatusError> {
    let key = &object.key;
    let refuse = |detail: String| {
        Err(StatusError::conflict(key.kind.name(), key.kind.group(), &key.name, &detail))
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

/// The grace period of a pod's first delete. A pod that cannot run has none.
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

/// The grace period of another delete of a terminating pod. It can only get shorter; `None`: no
/// change.
fn shortened_grace(value: &Value, options: &DeleteOptions) -> Option<i64> {
    let grace = match options.grace_seconds? {
        negative if negative < 0 => 1,
        grace => grace,
    };
    let present = value.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64)?;
    (grace < present).then_some(grace)
}

/// The deletionTimestamp for a new grace period, counted from the first delete.
fn deletion_timestamp(value: &Value, grace: i64, now: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::state;

    fn put(state: &mut State, name: &str, owner: Option<&str>) -> Key {
        let references: Vec<Value> = owner
            .iter()
            .map(|owner| {
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": owner })
            })
            .collect();
        let metadata =
            json!({ "name": name, "namespace": "n", "uid": name, "ownerReferences": references });
        state.store.put(Kind::ConfigMap, json!({ "metadata": metadata })).key.clone()
    }

    fn delete(state: &mut State, key: &Key, propagation: Option<Propagation>) {
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        state.delete(key, &options).expect("it is there");
    }

    fn names(state: &State) -> Vec<String> {
        state.store.objects(Kind::ConfigMap, "").map(|object| object.key.name.clone()).collect()
    }

    /// Recursion would overflow the stack.
    #[test]
    fn long_chains_of_owners_are_deleted() {
        const N: usize = 1_000;
        const STACK_BYTES: usize = 256 << 10;
        let delete_chain = || {
            let mut state = state();
            let name = |i: usize| format!("c{i:05}");
            let first = put(&mut state, &name(0), None);
            for i in 1..N {
                put(&mut state, &name(i), Some(&name(i - 1)));
            }
            delete(&mut state, &first, Some(Propagation::Background));
            assert_eq!(names(&state), Vec::<String>::new());
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(delete_chain);
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn orphaned_dependents_stay_without_their_owner_reference() {
        let mut state = state();
        let owner = put(&mut state, "owner", None);
        let orphan = put(&mut state, "orphan", Some("owner"));
        delete(&mut state, &owner, Some(Propagation::Orphan));
        assert_eq!(names(&state), ["orphan"]);
        let value = state.store.get(&orphan).expect("it stays").value();
        assert!(value.pointer("/metadata/ownerReferences").is_none());
    }

    #[test]
    fn a_deleted_job_leaves_its_pods_by_default_and_a_deletion_increments_the_generation() {
        let job = finalizers_after(Kind::Job, &json!({}), None);
        assert_eq!(job, [ORPHAN]);
        assert!(finalizers_after(Kind::Job, &json!({}), Some(Propagation::Background)).is_empty());
        assert!(finalizers_after(Kind::ConfigMap, &json!({}), None).is_empty());
        let mut state = state();
        let value = json!({ "metadata": {
            "name": "b", "namespace": "n", "uid": "b", "generation": 1, "finalizers": ["x.y/z"],
        } });
        let key = state.store.put(Kind::PodDisruptionBudget, value).key.clone();
        delete(&mut state, &key, None);
        delete(&mut state, &key, None);
        let value = state.store.get(&key).expect("it is held").value();
        assert_eq!(value["metadata"]["generation"], 2);
    }
}
