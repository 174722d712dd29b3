//! The admission plugins that need other objects, in kube-apiserver's order. They run under the
//! lock under which the object is stored, so that two requests cannot use the same rest of a quota.

mod account;
mod limits;
mod quota;

use std::sync::Arc;

use serde_json::Value;

pub(crate) use self::quota::{counts, usage};
use crate::apiserver::defaults::quality_of_service;
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use crate::storage::State;
use crate::storage::object::{Object, array_mut, object_mut};
pub(crate) use posse_encoding::amounts::Amounts;
use posse_encoding::quantity::Quantity;

/// The finalizers that protect volumes and claims while they are in use.
pub(crate) const PROTECTED: [(Kind, &str); 2] = [
    (Kind::PersistentVolume, "kubernetes.io/pv-protection"),
    (Kind::PersistentVolumeClaim, "kubernetes.io/pvc-protection"),
];

/// The new usage of quotas, to be written when the object is stored.
#[derive(Debug, Default)]
pub(crate) struct Charges(Vec<(Key, Value)>);

impl Charges {
    pub(crate) fn apply(self, state: &mut State) {
        for (key, used) in self.0 {
            let Some(mut quota) = state.store.get(&key).map(|quota| quota.value()) else {
                continue;
            };
            quota["status"]["used"] = used;
            state.replace(Kind::ResourceQuota, quota);
        }
    }
}

/// Changes a new object before its validation.
pub(crate) fn mutate(
    state: &State,
    kind: Kind,
    namespace: &str,
    name: &str,
    value: &mut Value,
) -> Result<(), StatusError> {
    protect(kind, value);
    if kind != Kind::Pod {
        return Ok(());
    }
    if state.runs("LimitRanger") {
        let mut changed = false;
        for range in ranges(state, namespace) {
            changed |= limits::set_defaults(&range.value(), value);
        }
        if changed {
            let quality = quality_of_service(value);
            object_mut(value, "status").insert("qosClass".to_owned(), quality.into());
        }
    }
    match state.runs("ServiceAccount") {
        true => account::admit(state, namespace, name, value),
        false => Ok(()),
    }
}

/// Adds the finalizer of the plugin StorageObjectInUseProtection; the volume controller removes it.
fn protect(kind: Kind, value: &mut Value) {
    let Some((_, finalizer)) = PROTECTED.iter().find(|(protected, _)| *protected == kind) else {
        return;
    };
    let list = array_mut(&mut value["metadata"], "finalizers");
    if !list.iter().any(|present| present == finalizer) {
        list.push((*finalizer).into());
    }
}

/// Checks a valid object before it is stored; `before` is the old version.
pub(crate) fn check(
    state: &State,
    kind: Kind,
    before: Option<&Value>,
    value: &Value,
    (namespace, name): (&str, &str),
) -> Result<Charges, StatusError> {
    let forbidden = |detail: String| StatusError::forbidden(kind, name, &detail);
    if state.runs("LimitRanger") && kind == Kind::Pod && before.is_none() {
        for range in ranges(state, namespace) {
            if let Some(detail) = limits::check(&range.value(), value) {
                return Err(forbidden(detail));
            }
        }
    }
    // The only updates that can increase a usage change a claim's size.
    let counted = kind == Kind::PersistentVolumeClaim || kind.is_namespaced() && before.is_none();
    if !counted || !state.runs("ResourceQuota") {
        return Ok(Charges::default());
    }
    let mut delta = usage(kind, value, &state.now);
    if let Some(before) = before {
        let old = usage(kind, before, &state.now);
        for (name, amount) in &mut delta.0 {
            *amount = old.get(name).map_or(*amount, |old| amount.minus(old));
        }
    }
    delta.0.retain(|_, amount| !amount.is_zero() && !amount.is_negative());
    let mut charges = Charges::default();
    for quota in state.store.objects(Kind::ResourceQuota, namespace) {
        let used = quota::charge(&quota.value(), kind, value, &delta).map_err(forbidden)?;
        if let Some(used) = used.filter(|_| !delta.0.is_empty()) {
            charges.0.push((quota.key.clone(), used.json()));
        }
    }
    Ok(charges)
}

fn ranges<'s>(state: &'s State, namespace: &str) -> impl Iterator<Item = &'s Arc<Object>> {
    state.store.objects(Kind::LimitRange, namespace)
}
