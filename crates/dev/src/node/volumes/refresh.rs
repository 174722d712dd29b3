//! Updates volumes of running pods when configmaps, secrets or pods change. It does not create volumes:
//! that happens when a pod starts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{VOLUMES, atomic, content, stamp};
use crate::apiserver::api::Api;
use crate::schema::kind::{Key, Kind};
use crate::storage::log_files;
use crate::storage::object::{array_at, text_at};

/// Updates the volumes of a pod that hold one of the changed objects; `None`: all its volumes.
pub(in crate::node) fn refresh(api: &Api, key: &Key, changed: Option<&BTreeSet<Key>>) {
    let object = api.lock().store.get(key).filter(|pod| !pod.is_terminal()).cloned();
    let Some(pod) = object.map(|object| object.value()) else { return };
    if changed.is_some_and(|changed| !uses(&pod, key, changed)) {
        return;
    }
    let folder = log_files::pod_folder(&api.logs, key, text_at(&pod, "/metadata/uid"));
    for volume in array_at(&pod, "/spec/volumes") {
        let path = folder.join(VOLUMES).join(text_at(volume, "/name"));
        if !path.is_dir() {
            continue;
        }
        let (files, stamp) = {
            let state = api.lock();
            (content::files(api, &state, &pod, volume), stamp(&state))
        };
        // If a source was deleted, the volume stays as it was, as with a real kubelet.
        let Some(Ok(files)) = files else { continue };
        if let Err(error) = atomic::write(&path, &files, &stamp) {
            log::debug!("cannot update the volume {}: {error}", path.display());
        }
    }
}

/// True if one of the pod's volumes holds one of these objects.
fn uses(pod: &Value, own: &Key, changed: &BTreeSet<Key>) -> bool {
    let is_changed = |source: &Value| {
        let references = [
            (Kind::ConfigMap, text_at(source, "/configMap/name")),
            (Kind::Secret, text_at(source, "/secret/secretName")),
            (Kind::Secret, text_at(source, "/secret/name")),
        ];
        let was_changed = |(kind, name)| changed.contains(&Key::new(kind, &own.namespace, name));
        references.into_iter().any(was_changed)
            || source.get("downwardAPI").is_some() && changed.contains(own)
    };
    array_at(pod, "/spec/volumes").iter().any(|volume| {
        is_changed(volume) || array_at(volume, "/projected/sources").iter().any(is_changed)
    })
}
