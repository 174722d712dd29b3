//! Binds PersistentVolumeClaims: to a free volume that fits, or to a new volume, which is a
//! directory in the cluster's folder. Also lets claims
//! and volumes end when they are no longer in use.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::apiserver::admission::{Amounts, PROTECTED};
use crate::apiserver::api::Api;
use crate::schema::kind::{Key, Kind};
use crate::storage::State;
use crate::storage::events::{self, Note};
use crate::storage::object::{Object, array_at, metadata_mut, object_mut, text_at};
use crate::storage::store::Change;

const PROVISIONER: &str = "posse.dev/directory";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

#[derive(Debug)]
pub(super) struct Claims {
    /// The folder for provisioned volumes.
    folder: PathBuf,
    dirty: BTreeSet<Key>,
    /// Claims with a `FailedBinding` event.
    unbindable: BTreeSet<Key>,
}

impl Claims {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, dirty: BTreeSet::new(), unbindable: BTreeSet::new() }
    }

    pub(super) fn on_change(&mut self, change: &Change, state: &State) {
        let object = &change.now;
        let key = &object.key;
        if key.kind == Kind::PersistentVolumeClaim {
            self.dirty.insert(key.clone());
            if change.gone {
                self.unbindable.remove(key);
            }
            let volume = object.field("spec.volumeName");
            if change.gone && !volume.is_empty() {
                self.dirty.insert(Key::new(Kind::PersistentVolume, "", &volume));
            }
        } else if key.kind == Kind::PersistentVolume {
            self.dirty.insert(key.clone());
            // A new volume may fit any pending claim; the claim of a deleted volume is lost.
            let claims = state.store.objects(Kind::PersistentVolumeClaim, "");
            self.dirty.extend(claims.map(|claim| claim.key.clone()));
        } else if key.kind == Kind::Pod && (change.gone || object.is_terminal()) {
            let claims = state.store.objects(Kind::PersistentVolumeClaim, &key.namespace);
            let deleting = claims.filter(|claim| claim.deleting);
            self.dirty.extend(deleting.map(|claim| claim.key.clone()));
        }
    }

    pub(super) fn run(&mut self, api: &Api) {
        for key in std::mem::take(&mut self.dirty) {
            let object = api.lock().store.get(&key).cloned();
            if key.kind == Kind::PersistentVolume {
                match object {
                    Some(volume) => self.sync_volume(api, &volume),
                    None => remove_directory(&self.folder, &key.name),
                }
            } else if let Some(object) = object {
                self.sync_claim(api, &object);
            }
        }
    }

    fn sync_claim(&mut self, api: &Api, claim: &Arc<Object>) {
        let value = claim.value();
        if claim.deleting {
            let mut state = api.lock();
            if !is_used(&state, claim) {
                remove_protection(&mut state, claim);
            }
            return;
        }
        let volume_name = text_at(&value, "/spec/volumeName").to_owned();
        let bound =
            value.pointer("/metadata/annotations").is_some_and(|a| a.get(BIND_COMPLETED).is_some());
        if !volume_name.is_empty() {
            let mut state = api.lock();
            let volume =
                state.store.get(&Key::new(Kind::PersistentVolume, "", &volume_name)).cloned();
            match volume {
                Some(volume) if !bound && is_free(&volume.value(), claim) => {
                    bind(&mut state, claim, &volume);
                }
                None if bound && text_at(&value, "/status/phase") != "Lost" => {
                    mark_lost(&mut state, claim);
                }
                Some(_) | None => {}
            }
            return;
        }
        let found = {
            let state = api.lock();
            let volumes = state.store.objects(Kind::PersistentVolume, "");
            let fitting = volumes.filter(|volume| !volume.deleting && fits(&volume.value(), claim));
            fitting
                .min_by_key(|volume| {
                    Amounts::read(&volume.value(), "/spec/capacity").get("storage")
                })
                .cloned()
        };
        match found {
            Some(volume) => bind(&mut api.lock(), claim, &volume),
            None if value.pointer("/spec/storageClassName") == Some(&json!("")) => {
                if self.unbindable.insert(claim.key.clone()) {
                    let message = "no persistent volumes available for this claim and no storage \
                                   class is set";
                    note(&mut api.lock(), claim, false, "FailedBinding", message);
                }
            }
            None => self.provision(api, claim, &value),
        }
    }

    /// Creates a directory and a volume for it, and binds the claim to the volume.
    fn provision(&self, api: &Api, claim: &Object, value: &Value) {
        let name = format!("pvc-{}", claim.uid);
        let path = self.folder.join(&name);
        if let Err(error) = fs::create_dir_all(&path) {
            let message = format!("{}: {error}", path.display());
            note(&mut api.lock(), claim, true, "ProvisioningFailed", &message);
            return;
        }
        let spec = &value["spec"];
        let mut volume = json!({
            "metadata": {
                "annotations": { PROVISIONED_BY: PROVISIONER },
                "finalizers": [PROTECTED[0].1],
            },
            "spec": {
                "accessModes": spec["accessModes"],
                "capacity": { "storage": spec["resources"]["requests"]["storage"] },
                "hostPath": { "path": path.display().to_string(), "type": "" },
                "persistentVolumeReclaimPolicy": "Delete",
                "volumeMode": "Filesystem",
            },
            "status": { "phase": "Pending" },
        });
        if let Some(class) = spec.get("storageClassName") {
            volume["spec"]["storageClassName"] = class.clone();
        }
        let mut state = api.lock();
        state.ensure(Kind::PersistentVolume, "", &name, volume);
        let key = Key::new(Kind::PersistentVolume, "", &name);
        if let Some(volume) = state.store.get(&key).cloned() {
            let message = format!("Successfully provisioned volume {name} using {PROVISIONER}");
            note(&mut state, claim, false, "ProvisioningSucceeded", &message);
            bind(&mut state, claim, &volume);
        }
    }

    /// Updates a volume's phase, and removes it if its claim is gone and its policy is Delete.
    fn sync_volume(&self, api: &Api, volume: &Arc<Object>) {
        let value = volume.value();
        let mut state = api.lock();
        let uid = text_at(&value, "/spec/claimRef/uid");
        let phase = match uid {
            "" => "Available",
            uid if state.store.has_uid(uid) => "Bound",
            _ => "Released",
        };
        let provisioned = value
            .pointer("/metadata/annotations")
            .is_some_and(|a| a.get(PROVISIONED_BY) == Some(&PROVISIONER.into()));
        let reclaims = text_at(&value, "/spec/persistentVolumeReclaimPolicy") == "Delete";
        if phase == "Released" && provisioned && reclaims {
            state.remove(&volume.key);
            drop(state);
            remove_directory(&self.folder, &volume.key.name);
        } else if volume.deleting && phase != "Bound" {
            remove_protection(&mut state, volume);
        } else if text_at(&value, "/status/phase") != phase {
            state.edit(&volume.key, &volume.uid, |value| value["status"]["phase"] = phase.into());
        }
    }
}

/// Removes the directory of a provisioned volume. Other volumes have none.
fn remove_directory(folder: &Path, volume: &str) {
    let path = folder.join(volume);
    if volume.starts_with("pvc-")
        && let Err(error) = fs::remove_dir_all(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        log::warn!("cannot remove the directory {} of a deleted volume: {error}", path.display());
    }
}

fn note(state: &mut State, about: &Object, warning: bool, reason: &str, message: &str) {
    let component = "persistentvolume-controller";
    events::record(state, about, &Note { warning, reason, message, component, ..Note::default() });
}

/// Removes the protection finalizer from an object that is not in use, so that its deletion can
/// finish.
fn remove_protection(state: &mut State, object: &Object) {
    let Some((_, finalizer)) = PROTECTED.iter().find(|(kind, _)| *kind == object.key.kind) else {
        return;
    };
    state.edit(&object.key, &object.uid, |value| {
        let metadata = metadata_mut(value);
        if let Some(list) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
            list.retain(|present| present != finalizer);
            if list.is_empty() {
                metadata.remove("finalizers");
            }
        }
    });
}

/// True if the volume is neither bound to nor reserved for another claim.
fn is_free(volume: &Value, claim: &Object) -> bool {
    let claim_ref = |field: &str| text_at(volume, &format!("/spec/claimRef/{field}"));
    match claim_ref("uid") {
        "" => {
            claim_ref("name").is_empty()
                || (claim_ref("name") == claim.key.name
                    && claim_ref("namespace") == claim.key.namespace)
        }
        uid => uid == &*claim.uid,
    }
}

fn fits(volume: &Value, claim: &Object) -> bool {
    let wanted = claim.value();
    let class = |value: &Value| text_at(value, "/spec/storageClassName").to_owned();
    let modes = array_at(volume, "/spec/accessModes");
    let amount = |value: &Value, list: &str| Amounts::read(value, list).get("storage");
    let large_enough = amount(volume, "/spec/capacity")
        .zip(amount(&wanted, "/spec/resources/requests"))
        .is_some_and(|(capacity, request)| !request.exceeds(capacity));
    is_free(volume, claim)
        && class(volume) == class(&wanted)
        && large_enough
        && array_at(&wanted, "/spec/accessModes").iter().all(|mode| modes.contains(mode))
}

fn bind(state: &mut State, claim: &Object, volume: &Object) {
    let spec = volume.value()["spec"].clone();
    // `bound-by-controller` is set only where the user had not chosen the other side.
    let is_reserved = spec.get("claimRef").is_some();
    let names_volume = !claim.field("spec.volumeName").is_empty();
    state.edit(&volume.key, &volume.uid, |value| {
        value["spec"]["claimRef"] = json!({
            "kind": claim.key.kind.name(),
            "apiVersion": claim.key.kind.api_version(),
            "namespace": claim.key.namespace,
            "name": claim.key.name,
            "uid": *claim.uid,
            "resourceVersion": claim.version.to_string(),
        });
        value["status"]["phase"] = "Bound".into();
        if !is_reserved {
            let annotations = object_mut(&mut value["metadata"], "annotations");
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".into());
        }
    });
    state.edit(&claim.key, &claim.uid, |value| {
        value["spec"]["volumeName"] = volume.key.name.as_str().into();
        value["status"] = json!({
            "phase": "Bound", "accessModes": spec["accessModes"], "capacity": spec["capacity"],
        });
        let annotations = object_mut(&mut value["metadata"], "annotations");
        annotations.insert(BIND_COMPLETED.to_owned(), "yes".into());
        if !names_volume {
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".into());
        }
    });
}

fn mark_lost(state: &mut State, claim: &Object) {
    state.edit(&claim.key, &claim.uid, |value| value["status"]["phase"] = "Lost".into());
    let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
    note(state, claim, true, "ClaimLost", message);
}

/// True while a pod that has not ended mounts the claim.
fn is_used(state: &State, claim: &Object) -> bool {
    let reference = format!("\"claimName\":{}", Value::from(claim.key.name.as_str()));
    state.store.objects(Kind::Pod, &claim.key.namespace).any(|pod| {
        !pod.is_terminal() && !pod.node().is_empty() && pod.item_json().contains(&reference)
    })
}
