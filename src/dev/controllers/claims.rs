//! Owns the binding of claims to volumes: a claim gets a volume that is free and fits, else a new
//! one, which is a directory in the cluster's private folder. Also the claims of ephemeral volumes,
//! and the end of claims and volumes that nobody uses any more.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::dev::apiserver::admission::{Amounts, PROTECTED};
use crate::dev::apiserver::api::Api;
use crate::dev::apiserver::write;
use crate::dev::schema::kind::{Key, Kind};
use crate::dev::storage::State;
use crate::dev::storage::events::{self, Note};
use crate::dev::storage::object::{Object, array_at, metadata_mut, object_mut, text_at};
use crate::dev::storage::store::Change;
use crate::serve::Request;

const PROVISIONER: &str = "posse.dev/directory";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

#[derive(Debug)]
pub(super) struct Claims {
    /// Where the directories are.
    folder: PathBuf,
    dirty: BTreeSet<Key>,
    /// Claims that were told that nothing fits.
    told: BTreeSet<Key>,
}

impl Claims {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, dirty: BTreeSet::new(), told: BTreeSet::new() }
    }

    pub(super) fn on_change(&mut self, change: &Change, state: &State) {
        let object = &change.now;
        let key = &object.key;
        if key.kind == Kind::PersistentVolumeClaim {
            self.dirty.insert(key.clone());
            if change.gone {
                self.told.remove(key);
            }
            let volume = object.field("spec.volumeName");
            if change.gone && !volume.is_empty() {
                self.dirty.insert(Key::new(Kind::PersistentVolume, "", &volume));
            }
        } else if key.kind == Kind::PersistentVolume {
            self.dirty.insert(key.clone());
            // A free one may suit whoever waits; of one that is gone its claim has to learn.
            let claims = state.store.objects(Kind::PersistentVolumeClaim, "");
            self.dirty.extend(claims.map(|claim| claim.key.clone()));
        } else if key.kind == Kind::Pod {
            if change.before.is_none() && object.item_json().contains("\"volumeClaimTemplate\":") {
                self.dirty.insert(key.clone());
            }
            if change.gone || object.is_terminal() {
                let claims = state.store.objects(Kind::PersistentVolumeClaim, &key.namespace);
                let ending = claims.filter(|claim| claim.deleting);
                self.dirty.extend(ending.map(|claim| claim.key.clone()));
            }
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
                match key.kind == Kind::Pod {
                    true => create_claims(api, &object),
                    false => self.sync_claim(api, &object),
                }
            }
        }
    }

    fn sync_claim(&mut self, api: &Api, claim: &Arc<Object>) {
        let value = claim.value();
        if claim.deleting {
            let mut state = api.lock();
            if !is_used(&state, claim) {
                release(&mut state, claim);
            }
            return;
        }
        let named = text_at(&value, "/spec/volumeName").to_owned();
        let bound =
            value.pointer("/metadata/annotations").is_some_and(|a| a.get(BIND_COMPLETED).is_some());
        if !named.is_empty() {
            let mut state = api.lock();
            let volume = state.store.get(&Key::new(Kind::PersistentVolume, "", &named)).cloned();
            match volume {
                Some(volume) if !bound && is_free(&volume.value(), claim) => {
                    bind(&mut state, claim, &volume);
                }
                None if bound && text_at(&value, "/status/phase") != "Lost" => {
                    lose(&mut state, claim);
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
                if self.told.insert(claim.key.clone()) {
                    let message = "no persistent volumes available for this claim and no storage \
                                   class is set";
                    note(&mut api.lock(), claim, false, "FailedBinding", message);
                }
            }
            None => self.provision(api, claim, &value),
        }
    }

    /// Makes a directory and the volume that it is.
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
        state.ensure(Kind::PersistentVolume, &name, volume);
        let key = Key::new(Kind::PersistentVolume, "", &name);
        if let Some(volume) = state.store.get(&key).cloned() {
            let message = format!("Successfully provisioned volume {name} using {PROVISIONER}");
            note(&mut state, claim, false, "ProvisioningSucceeded", &message);
            bind(&mut state, claim, &volume);
        }
    }

    /// A volume's phase, and its end where its claim is gone.
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
            release(&mut state, volume);
        } else if text_at(&value, "/status/phase") != phase {
            edit(&mut state, volume, |value| value["status"]["phase"] = phase.into());
        }
    }
}

/// The directory of a volume that was made here; of others there is none.
fn remove_directory(folder: &Path, volume: &str) {
    let path = folder.join(volume);
    if volume.starts_with("pvc-")
        && let Err(error) = fs::remove_dir_all(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        log::warn!("{}: {error}", path.display());
    }
}

fn note(state: &mut State, about: &Object, warning: bool, reason: &str, message: &str) {
    let component = "persistentvolume-controller";
    events::record(state, about, &Note { warning, reason, message, component, ..Note::default() });
}

/// Changes the object, where it is still the same one.
fn edit(state: &mut State, object: &Object, change: impl FnOnce(&mut Value)) {
    let present = state.store.get(&object.key).filter(|present| present.uid == object.uid);
    let Some(mut value) = present.map(|present| present.value()) else { return };
    change(&mut value);
    state.replace(object.key.kind, value);
}

/// Takes the protection from an object that nobody uses; one that is on its way out goes.
fn release(state: &mut State, object: &Object) {
    let Some((_, finalizer)) = PROTECTED.iter().find(|(kind, _)| *kind == object.key.kind) else {
        return;
    };
    if !array_at(&object.value(), "/metadata/finalizers").iter().any(|f| f == finalizer) {
        return;
    }
    edit(state, object, |value| {
        let metadata = metadata_mut(value);
        if let Some(list) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
            list.retain(|present| present != finalizer);
            if list.is_empty() {
                metadata.remove("finalizers");
            }
        }
    });
}

/// True where no other claim has or is promised the volume.
fn is_free(volume: &Value, claim: &Object) -> bool {
    let of = |field: &str| text_at(volume, &format!("/spec/claimRef/{field}"));
    match of("uid") {
        "" => {
            of("name").is_empty()
                || (of("name") == claim.key.name && of("namespace") == claim.key.namespace)
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
        .is_some_and(|(has, wants)| !wants.exceeds(has));
    is_free(volume, claim)
        && class(volume) == class(&wanted)
        && large_enough
        && array_at(&wanted, "/spec/accessModes").iter().all(|mode| modes.contains(mode))
}

fn bind(state: &mut State, claim: &Object, volume: &Object) {
    let spec = volume.value()["spec"].clone();
    // What the user has chosen is not called the controller's choice.
    let promised = spec.get("claimRef").is_some();
    let chosen = !claim.field("spec.volumeName").is_empty();
    edit(state, volume, |value| {
        value["spec"]["claimRef"] = json!({
            "kind": claim.key.kind.name(),
            "apiVersion": claim.key.kind.api_version(),
            "namespace": claim.key.namespace,
            "name": claim.key.name,
            "uid": *claim.uid,
            "resourceVersion": claim.version.to_string(),
        });
        value["status"]["phase"] = "Bound".into();
        if !promised {
            let annotations = object_mut(&mut value["metadata"], "annotations");
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".into());
        }
    });
    edit(state, claim, |value| {
        value["spec"]["volumeName"] = volume.key.name.as_str().into();
        value["status"] = json!({
            "phase": "Bound", "accessModes": spec["accessModes"], "capacity": spec["capacity"],
        });
        let annotations = object_mut(&mut value["metadata"], "annotations");
        annotations.insert(BIND_COMPLETED.to_owned(), "yes".into());
        if !chosen {
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".into());
        }
    });
}

fn lose(state: &mut State, claim: &Object) {
    edit(state, claim, |value| value["status"]["phase"] = "Lost".into());
    let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
    note(state, claim, true, "ClaimLost", message);
}

/// True while a pod that has not ended mounts the claim.
fn is_used(state: &State, claim: &Object) -> bool {
    let named = format!("\"claimName\":{}", Value::from(claim.key.name.as_str()));
    state.store.objects(Kind::Pod, &claim.key.namespace).any(|pod| {
        !pod.is_terminal()
            && !pod.node().is_empty()
            && (claim.owners.contains(&pod.uid) || pod.item_json().contains(&named))
    })
}

/// Creates the claims that a pod's ephemeral volumes ask for.
fn create_claims(api: &Api, pod: &Object) {
    let value = pod.value();
    for volume in array_at(&value, "/spec/volumes") {
        let Some(template) = volume.pointer("/ephemeral/volumeClaimTemplate") else { continue };
        let name = format!("{}-{}", pod.key.name, text_at(volume, "/name"));
        let mut claim = json!({ "spec": template["spec"], "metadata": template["metadata"] });
        let metadata = metadata_mut(&mut claim);
        metadata.retain(|key, _| matches!(key.as_str(), "labels" | "annotations"));
        metadata.insert("name".to_owned(), name.as_str().into());
        metadata.insert(
            "ownerReferences".to_owned(),
            json!([{
                "apiVersion": pod.key.kind.api_version(),
                "kind": pod.key.kind.name(),
                "name": pod.key.name,
                "uid": *pod.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }]),
        );
        let mut request = Request::default();
        request.body = claim.to_string().into_bytes();
        let namespace = &pod.key.namespace;
        let created = write::create(api, &request, Kind::PersistentVolumeClaim, namespace);
        // One that is there already is either this pod's, or the node says that it is not.
        if let Err(refused) = created.map(drop)
            && refused.code != 409
        {
            let message =
                format!("ephemeral volume controller: create PVC {name}: {}", refused.message);
            let component = "ephemeral_volume";
            let note = Note {
                warning: true,
                reason: "FailedCreate",
                message: &message,
                component,
                ..Note::default()
            };
            events::record(&mut api.lock(), pod, &note);
        }
    }
}
