//! The status of ResourceQuotas. New objects are charged at admission; this controller finds
//! objects that ended, changed or were deleted.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::apiserver::admission::{Amounts, counts, usage};
use crate::apiserver::api::Api;
use crate::schema::kind::Kind;
use crate::storage::object::Object;
use crate::storage::store::Change;
use posse_base::time::Millis;

/// Terminating pods past their grace period stop counting without any change, so count regularly.
const RESYNC_MS: u64 = 60_000;
/// The pause after a count, as a multiple of its duration: counting may not occupy the thread.
const PAUSE_FACTOR: u64 = 5;

#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// Namespaces whose usage may have changed.
    dirty: BTreeSet<String>,
    /// When the next count may start.
    next: Millis,
    resync: Millis,
}

impl Quotas {
    pub(super) fn on_change(&mut self, change: &Change) {
        let key = &change.now.key;
        let before = change.before.as_ref();
        let changed = match (key.kind, before) {
            _ if change.gone => true,
            // An object is charged when it is created. A pod is freed when it ends.
            (Kind::Pod, Some(before)) => change.now.is_terminal() && !before.is_terminal(),
            // A changed status is the result of a charge and needs no count.
            (Kind::ResourceQuota, Some(before)) => {
                before.value().get("spec") != change.now.value().get("spec")
            }
            (Kind::PersistentVolumeClaim, _) | (Kind::ResourceQuota, None) => true,
            _ => false,
        };
        if changed {
            self.dirty.insert(key.namespace.clone());
        }
    }

    /// Counts all quotas at the next run.
    pub(super) fn mark_all_dirty(&mut self) {
        self.resync = Millis(0);
    }

    /// Counts the usage of changed namespaces. Returns when to run again.
    pub(super) fn run(&mut self, api: &Api) -> Option<Millis> {
        let now = api.clock.now();
        if self.resync <= now {
            let state = api.lock();
            let quotas = state.store.objects(Kind::ResourceQuota, "");
            self.dirty.extend(quotas.map(|quota| quota.key.namespace.clone()));
            self.resync = now.after(RESYNC_MS);
        }
        if self.dirty.is_empty() {
            return Some(self.resync);
        }
        if now < self.next {
            return Some(self.next);
        }
        let mut retry = BTreeSet::new();
        for namespace in std::mem::take(&mut self.dirty) {
            let quotas: Vec<Arc<Object>> =
                api.lock().store.objects(Kind::ResourceQuota, &namespace).cloned().collect();
            for quota in quotas {
                if !recount(api, &quota) {
                    retry.insert(namespace.clone());
                }
            }
        }
        let took = api.clock.now().0.saturating_sub(now.0);
        self.next = api.clock.now().after(took * PAUSE_FACTOR);
        self.dirty = retry;
        Some(if self.dirty.is_empty() { self.resync } else { self.next })
    }
}

/// Writes a quota's status. False if the quota was charged during the count, which may then be
/// wrong.
fn recount(api: &Api, quota: &Object) -> bool {
    let mut value = quota.value();
    let hard = Amounts::read(&value, "/spec/hard");
    let counted = |kind: &Kind| hard.0.keys().any(|resource| counts(*kind, resource));
    let kinds: Vec<Kind> = Kind::namespaced().filter(counted).collect();
    let (objects, now) = {
        let state = api.lock();
        if state.store.get(&quota.key).is_none_or(|present| present.version != quota.version) {
            return false;
        }
        let objects_of = |kind: &Kind| state.store.objects(*kind, &quota.key.namespace).cloned();
        (kinds.iter().flat_map(objects_of).collect::<Vec<Arc<Object>>>(), state.now.clone())
    };
    let mut used = Amounts::default();
    for resource in hard.0.keys() {
        if kinds.iter().any(|kind| counts(*kind, resource)) {
            used.set(resource, posse_encoding::quantity::Quantity::whole(0));
        }
    }
    // Parsed without the lock, because there may be thousands of objects.
    for object in objects {
        let usage = usage(object.key.kind, &object.value(), &now);
        used.add(&usage.only(|name| hard.get(name).is_some()));
    }
    value["status"] = match hard.0.is_empty() {
        true => serde_json::json!({}),
        false => serde_json::json!({ "hard": hard.json(), "used": used.json() }),
    };
    let mut state = api.lock();
    let Some(present) = state.store.get(&quota.key) else { return true };
    if present.version != quota.version {
        return false;
    }
    if present.value() != value {
        state.replace(Kind::ResourceQuota, value);
    }
    true
}
