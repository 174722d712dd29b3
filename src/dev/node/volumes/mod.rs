//! Owns the pods' volumes: the folder or file of this machine behind each, filled before a container
//! starts and kept up to date after. Mounts nothing: `sandbox` does.

mod atomic;
mod content;
mod host;
mod refresh;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::environment::{Blocked, Env, expand};
use super::sandbox::Mount;
use crate::dev::apiserver::api::Api;
use crate::dev::schema::kind::{Key, Kind};
use crate::dev::storage::State;
use crate::dev::storage::object::{array_at, text_at};
use crate::dev::storage::store::Store;

pub(super) use refresh::Refresher;

/// Not a container's name: a pod's folder holds theirs as well.
const VOLUMES: &str = "_volumes";

/// Makes and fills the volumes that the pod's containers mount. The error is an Event's message.
pub(super) fn set_up(api: &Api, pod: &Value, pod_folder: &Path) -> Result<(), String> {
    let used = used(pod);
    for volume in array_at(pod, "/spec/volumes") {
        let name = text_at(volume, "/name");
        if !used.contains(name) {
            continue;
        }
        let claimed = claim(pod, volume).is_some();
        set_up_one(api, pod, volume, pod_folder).map_err(|error| match claimed {
            true => format!(
                "Unable to attach or mount volumes: unmounted volumes=[{name}], unattached \
                 volumes=[], failed to process volumes=[{name}]: {error}"
            ),
            false => format!("MountVolume.SetUp failed for volume \"{name}\" : {error}"),
        })?;
    }
    Ok(())
}

fn used(pod: &Value) -> BTreeSet<&str> {
    let lists = ["/spec/initContainers", "/spec/containers"];
    let containers = lists.iter().flat_map(|list| array_at(pod, list));
    let mounts = containers.flat_map(|container| array_at(container, "/volumeMounts"));
    mounts.map(|mount| text_at(mount, "/name")).collect()
}

fn set_up_one(api: &Api, pod: &Value, volume: &Value, pod_folder: &Path) -> Result<(), String> {
    let path = source(&api.lock().store, pod, volume, pod_folder)?;
    let told = |error: io::Error| format!("{}: {error}", path.display());
    if let Some(host) = volume.get("hostPath") {
        return host::check(&path, text_at(host, "/type"));
    }
    if claim(pod, volume).is_some() {
        return fs::create_dir_all(&path).map_err(told);
    }
    let files = {
        let state = api.lock();
        content::files(api, &state, pod, volume).transpose()?.map(|files| (files, stamp(&state)))
    };
    if files.is_none() && volume.get("emptyDir").is_none() {
        let types = volume.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        let kind = types.into_iter().find(|key| *key != "name").unwrap_or("emptyDir");
        return Err(format!("the embedded node has no volumes of type {kind:?}"));
    }
    // Whoever a container runs as, it may write here, whatever the umask says.
    let open = || fs::set_permissions(&path, fs::Permissions::from_mode(0o777));
    if !path.is_dir() {
        fs::create_dir_all(&path).and_then(|()| open()).map_err(told)?;
    }
    files.map_or(Ok(()), |(files, stamp)| atomic::write(&path, &files, &stamp).map_err(told))
}

/// The moment, as the names of the folders of versions have it.
fn stamp(state: &State) -> String {
    state.now.trim_end_matches('Z').replace(['-', ':'], "_").replace('T', "_")
}

/// The claim behind a volume, and whether the pod has to own it.
fn claim(pod: &Value, volume: &Value) -> Option<(String, bool)> {
    if let Some(claim) = volume.get("persistentVolumeClaim") {
        return Some((text_at(claim, "/claimName").to_owned(), false));
    }
    volume.get("ephemeral")?;
    Some((format!("{}-{}", text_at(pod, "/metadata/name"), text_at(volume, "/name")), true))
}

/// Where a volume's files are on this machine.
fn source(
    store: &Store,
    pod: &Value,
    volume: &Value,
    pod_folder: &Path,
) -> Result<PathBuf, String> {
    if let Some(host) = volume.get("hostPath") {
        return Ok(text_at(host, "/path").into());
    }
    if let Some((name, owned)) = claim(pod, volume) {
        let namespace = text_at(pod, "/metadata/namespace");
        return claimed(store, pod, namespace, &name, owned)
            .map_err(|error| format!("error processing PVC {namespace}/{name}: {error}"));
    }
    Ok(pod_folder.join(VOLUMES).join(text_at(volume, "/name")))
}

fn claimed(
    store: &Store,
    pod: &Value,
    namespace: &str,
    name: &str,
    owned: bool,
) -> Result<PathBuf, String> {
    let Some(claim) = store.get(&Key::new(Kind::PersistentVolumeClaim, namespace, name)) else {
        return Err(format!(
            "failed to fetch PVC from API server: persistentvolumeclaims \"{name}\" not found"
        ));
    };
    let value = claim.value();
    let uid = text_at(pod, "/metadata/uid");
    let owner = |owner: &Value| owner["controller"] == true && text_at(owner, "/uid") == uid;
    if owned && !array_at(&value, "/metadata/ownerReferences").iter().any(owner) {
        return Err(format!(
            "PVC {namespace}/{name} was not created for pod {namespace}/{} (pod is not owner)",
            text_at(pod, "/metadata/name")
        ));
    }
    let volume = text_at(&value, "/spec/volumeName");
    if volume.is_empty() || text_at(&value, "/status/phase") != "Bound" {
        return Err("PVC is not bound".to_owned());
    }
    let Some(volume) = store.get(&Key::new(Kind::PersistentVolume, "", volume)) else {
        return Err(format!(
            "failed to fetch PV {volume} from API server: persistentvolumes \"{volume}\" not found"
        ));
    };
    let value = volume.value();
    let path = ["/spec/hostPath/path", "/spec/local/path"].map(|place| text_at(&value, place));
    match path.into_iter().find(|path| path.starts_with('/')) {
        Some(path) => Ok(path.into()),
        None => Err(format!("the embedded node knows no folder of PV {}", volume.key.name)),
    }
}

/// What one container mounts. Called after `set_up`.
pub(super) fn mounts(
    store: &Store,
    pod: &Value,
    container: &Value,
    pod_folder: &Path,
    env: &Env,
) -> Result<Vec<Mount>, Blocked> {
    let mut mounts = Vec::new();
    for mount in array_at(container, "/volumeMounts") {
        let name = text_at(mount, "/name");
        let volumes = array_at(pod, "/spec/volumes");
        let Some(volume) = volumes.iter().find(|volume| text_at(volume, "/name") == name) else {
            return Err(Blocked::config(format!("volume {name} is not in the pod's spec")));
        };
        let whole = source(store, pod, volume, pod_folder).map_err(Blocked::config)?;
        // What the cluster fills is not for containers to write.
        let filled = ["configMap", "downwardAPI", "projected", "secret"];
        let read_only = mount["readOnly"] == true
            || filled.iter().any(|kind| volume.get(kind).is_some())
            || volume.pointer("/persistentVolumeClaim/readOnly") == Some(&Value::Bool(true));
        let source = match sub_path(mount, env).map_err(Blocked::config)? {
            None => whole,
            Some(sub) => below(&whole, &sub).map_err(|error| {
                log::debug!("subPath {sub:?} of volume {name}: {error}");
                let container = text_at(container, "/name");
                Blocked::config(format!(
                    "failed to prepare subPath for volumeMount \"{name}\" of container \
                     \"{container}\""
                ))
            })?,
        };
        let path = text_at(mount, "/mountPath");
        let target = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        mounts.push(Mount { source, target, read_only });
    }
    Ok(mounts)
}

/// The part of the volume that is meant; none for the whole.
fn sub_path(mount: &Value, env: &Env) -> Result<Option<String>, String> {
    let expression = text_at(mount, "/subPathExpr");
    let sub = match expression {
        "" => text_at(mount, "/subPath").to_owned(),
        expression => expand_strictly(expression, env)?,
    };
    if sub.starts_with('/') {
        return Err(format!("error SubPath `{sub}` must not be an absolute path"));
    }
    if Path::new(&sub).components().any(|part| part == Component::ParentDir) {
        return Err(format!("unable to provision SubPath `{sub}`: must not contain '..'"));
    }
    Ok(Some(sub).filter(|sub| !sub.is_empty()))
}

/// As `expand`, but nothing may be missing.
fn expand_strictly(expression: &str, env: &Env) -> Result<String, String> {
    let missing = std::cell::RefCell::new(None);
    let text = expand(expression, |name| {
        let value = env.get(name);
        if value.is_none() {
            missing.borrow_mut().get_or_insert_with(|| name.to_owned());
        }
        value
    });
    match missing.into_inner() {
        None => Ok(text),
        Some(name) => Err(format!("missing value for {name:?}")),
    }
}

/// A path in a volume, made a folder where there is nothing, and not out of the volume by links.
fn below(volume: &Path, sub: &str) -> io::Result<PathBuf> {
    let volume = volume.canonicalize()?;
    let path = volume.join(sub);
    // Made step by step: no folder is made behind a link that leads out.
    let mut at = volume.clone();
    for part in Path::new(sub).components() {
        at.push(part);
        if fs::symlink_metadata(&at).is_err() {
            fs::create_dir(&at)?;
            fs::set_permissions(&at, fs::metadata(&volume)?.permissions())?;
        } else if !at.canonicalize()?.starts_with(&volume) {
            return Err(io::Error::other("it leads out of the volume"));
        }
    }
    path.canonicalize()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_of_volumes_stay_in_them() {
        let env = Env::from([("POD".to_owned(), "p-1".to_owned())]);
        for (mount, want) in [
            (json!({}), Ok("")),
            (json!({"subPath": "a/b"}), Ok("a/b")),
            (json!({"subPath": "$(POD)"}), Ok("$(POD)")),
            (json!({"subPathExpr": "x/$(POD)"}), Ok("x/p-1")),
            (json!({"subPathExpr": "$$(POD)"}), Ok("$(POD)")),
            (json!({"subPathExpr": "$(NONE)"}), Err("missing value for \"NONE\"")),
            (json!({"subPath": "/a"}), Err("error SubPath `/a` must not be an absolute path")),
            (
                json!({"subPath": "a/../.."}),
                Err("unable to provision SubPath `a/../..`: must not contain '..'"),
            ),
        ] {
            let told = sub_path(&mount, &env).map(Option::unwrap_or_default);
            assert_eq!(told, want.map(str::to_owned).map_err(str::to_owned), "{mount}");
        }
        let volume = std::env::temp_dir().join(format!("posse-below-{}", std::process::id()));
        fs::create_dir_all(volume.join("in")).unwrap();
        std::os::unix::fs::symlink("/etc", volume.join("out")).unwrap();
        std::os::unix::fs::symlink("in", volume.join("link")).unwrap();
        let inside = volume.canonicalize().unwrap().join("in");
        assert_eq!(below(&volume, "link").unwrap(), inside);
        assert_eq!(below(&volume, "link/new/er").unwrap(), inside.join("new/er"));
        assert!(below(&volume, "out").is_err());
        assert!(below(&volume, "out/passwd").is_err());
        fs::remove_dir_all(&volume).unwrap();
    }

    #[test]
    fn claims_lead_to_the_folder_of_their_volume() {
        let mut store = Store::new(9);
        let claim = |name: &str, phase: &str, owner: &str| {
            json!({
                "metadata": {"name": name, "namespace": "n", "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "uid": owner, "controller": true},
                ]},
                "spec": {"volumeName": "pv"}, "status": {"phase": phase},
            })
        };
        for (name, phase, owner) in [
            ("a", "Bound", "o"),
            ("b", "Pending", "o"),
            ("p-own", "Bound", "u"),
            ("p-not", "Bound", "o"),
        ] {
            store.put(Kind::PersistentVolumeClaim, claim(name, phase, owner));
        }
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"hostPath": {"path": "/d"}}});
        store.put(Kind::PersistentVolume, volume);
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}});
        let named = |name: &str| json!({"name": "v", "persistentVolumeClaim": {"claimName": name}});
        for (volume, want) in [
            (named("a"), Ok("/d")),
            (named("b"), Err("n/b: PVC is not bound")),
            (
                named("x"),
                Err(
                    "n/x: failed to fetch PVC from API server: persistentvolumeclaims \"x\" not found",
                ),
            ),
            (json!({"name": "own", "ephemeral": {}}), Ok("/d")),
            (
                json!({"name": "not", "ephemeral": {}}),
                Err("n/p-not: PVC n/p-not was not created for pod n/p (pod is not owner)"),
            ),
        ] {
            let told = source(&store, &pod, &volume, Path::new("/pods"));
            let want = want.map(PathBuf::from).map_err(|e| format!("error processing PVC {e}"));
            assert_eq!(told, want, "{volume}");
        }
    }
}
