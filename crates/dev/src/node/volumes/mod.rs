//! The pods' volumes: the folder or file on this machine behind each volume, and its content.
//! `sandbox` mounts them.

mod atomic;
mod content;
mod refresh;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::environment::{Blocked, Env, expand};
use super::sandbox::Mount;
use crate::apiserver::api::Api;
use crate::schema::kind::{Key, Kind};
use crate::storage::State;
use crate::storage::object::{array_at, text_at};
use crate::storage::store::Store;

pub(super) use refresh::refresh;

/// The folder of a pod's volumes. The pod's folder also holds files named after containers, whose
/// names cannot start with `_`.
const VOLUMES: &str = "_volumes";

/// Creates and fills the volumes that the pod's containers mount. An error is the message of an
/// Event.
pub(super) fn set_up(api: &Api, pod: &Value, pod_folder: &Path) -> Result<(), String> {
    let mounted = mounted_volumes(pod);
    for volume in array_at(pod, "/spec/volumes") {
        let name = text_at(volume, "/name");
        if !mounted.contains(name) {
            continue;
        }
        let has_claim = volume.get("persistentVolumeClaim").is_some();
        set_up_one(api, pod, volume, pod_folder).map_err(|error| match has_claim {
            true => format!(
                "Unable to attach or mount volumes: unmounted volumes=[{name}], unattached \
                 volumes=[], failed to process volumes=[{name}]: {error}"
            ),
            false => format!("MountVolume.SetUp failed for volume \"{name}\" : {error}"),
        })?;
    }
    Ok(())
}

fn mounted_volumes(pod: &Value) -> BTreeSet<&str> {
    let lists = ["/spec/initContainers", "/spec/containers"];
    let containers = lists.iter().flat_map(|list| array_at(pod, list));
    let mounts = containers.flat_map(|container| array_at(container, "/volumeMounts"));
    mounts.map(|mount| text_at(mount, "/name")).collect()
}

fn set_up_one(api: &Api, pod: &Value, volume: &Value, pod_folder: &Path) -> Result<(), String> {
    let path = source(&api.lock().store, pod, volume, pod_folder)?;
    let with_path = |error: io::Error| format!("{}: {error}", path.display());
    if let Some(host) = volume.get("hostPath") {
        return check_host_path(&path, text_at(host, "/type"));
    }
    if volume.get("persistentVolumeClaim").is_some() {
        return fs::create_dir_all(&path).map_err(with_path);
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
    // Any user may write to the volume, because containers can run as any user.
    let make_writable = || fs::set_permissions(&path, fs::Permissions::from_mode(0o777));
    if !path.is_dir() {
        fs::create_dir_all(&path).and_then(|()| make_writable()).map_err(with_path)?;
    }
    files.map_or(Ok(()), |(files, stamp)| atomic::write(&path, &files, &stamp).map_err(with_path))
}

/// Checks that a path on this machine is of the volume's type, and creates it if the type says so. The words
/// are the kubelet's.
fn check_host_path(path: &Path, kind: &str) -> Result<(), String> {
    let shown = path.display();
    let describe = |error: io::Error| format!("hostPath type check failed: {shown}: {error}");
    match (kind, fs::metadata(path).map(|found| found.is_dir())) {
        ("" | "DirectoryOrCreate", Err(_)) => fs::create_dir_all(path).map_err(describe),
        ("FileOrCreate", Err(_)) => fs::File::create(path).map(|_| ()).map_err(describe),
        ("Directory" | "DirectoryOrCreate", found) if !found.as_ref().is_ok_and(|is| *is) => {
            Err(format!("hostPath type check failed: {shown} is not a directory"))
        }
        ("File" | "FileOrCreate", Ok(true)) => {
            Err(format!("hostPath type check failed: {shown} is not a file"))
        }
        (_, Ok(_)) => Ok(()),
        (_, Err(error)) => Err(describe(error)),
    }
}

/// The current time in the form that version folders have in their names.
fn stamp(state: &State) -> String {
    state.now.trim_end_matches('Z').replace(['-', ':'], "_").replace('T', "_")
}

/// The folder or file on this machine behind a volume.
fn source(
    store: &Store,
    pod: &Value,
    volume: &Value,
    pod_folder: &Path,
) -> Result<PathBuf, String> {
    if let Some(host) = volume.get("hostPath") {
        return Ok(text_at(host, "/path").into());
    }
    if let Some(claim) = volume.get("persistentVolumeClaim") {
        let (namespace, name) = (text_at(pod, "/metadata/namespace"), text_at(claim, "/claimName"));
        return claimed(store, namespace, name)
            .map_err(|error| format!("error processing PVC {namespace}/{name}: {error}"));
    }
    Ok(pod_folder.join(VOLUMES).join(text_at(volume, "/name")))
}

fn claimed(store: &Store, namespace: &str, name: &str) -> Result<PathBuf, String> {
    let Some(claim) = store.get(&Key::new(Kind::PersistentVolumeClaim, namespace, name)) else {
        return Err(format!(
            "failed to fetch PVC from API server: persistentvolumeclaims \"{name}\" not found"
        ));
    };
    let value = claim.value();
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
    let path = ["/spec/hostPath/path", "/spec/local/path"].map(|pointer| text_at(&value, pointer));
    match path.into_iter().find(|path| path.starts_with('/')) {
        Some(path) => Ok(path.into()),
        None => Err(format!("the embedded node knows no folder of PV {}", volume.key.name)),
    }
}

/// The mounts of one container. Call `set_up` first.
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
        let volume_path = source(store, pod, volume, pod_folder).map_err(Blocked::config)?;
        // Volumes with data of the cluster are read-only.
        let always_read_only = ["configMap", "downwardAPI", "projected", "secret"];
        let read_only = mount["readOnly"] == true
            || always_read_only.iter().any(|kind| volume.get(kind).is_some())
            || volume.pointer("/persistentVolumeClaim/readOnly") == Some(&Value::Bool(true));
        let source = match sub_path(mount, env).map_err(Blocked::config)? {
            None => volume_path,
            Some(sub) => resolve_in_volume(&volume_path, &sub).map_err(|error| {
                log::debug!("cannot use subPath {sub:?} of volume {name}: {error}");
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

/// The mount's `subPath` or expanded `subPathExpr`. `None` for the whole volume.
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

/// Like `expand`, but an unknown variable is an error.
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

/// Resolves a path in a volume, and creates missing folders. An error if a symlink leads out of the
/// volume.
fn resolve_in_volume(volume: &Path, sub: &str) -> io::Result<PathBuf> {
    let volume = volume.canonicalize()?;
    let path = volume.join(sub);
    // One component at a time, so that no folder is created behind a link out of the volume.
    let mut at = volume.clone();
    for part in Path::new(sub).components() {
        at.push(part);
        if fs::symlink_metadata(&at).is_err() {
            fs::create_dir(&at)?;
            fs::set_permissions(&at, fs::metadata(&volume)?.permissions())?;
        } else if !at.canonicalize()?.starts_with(&volume) {
            return Err(io::Error::other("the path leads out of the volume"));
        }
    }
    path.canonicalize()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sub_path_stays_in_its_volume() {
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
            let result = sub_path(&mount, &env).map(Option::unwrap_or_default);
            assert_eq!(result, want.map(str::to_owned).map_err(str::to_owned), "{mount}");
        }
        let volume = std::env::temp_dir().join(format!("posse-below-{}", std::process::id()));
        fs::create_dir_all(volume.join("in")).unwrap();
        std::os::unix::fs::symlink("/etc", volume.join("out")).unwrap();
        std::os::unix::fs::symlink("in", volume.join("link")).unwrap();
        let inside = volume.canonicalize().unwrap().join("in");
        assert_eq!(resolve_in_volume(&volume, "link").unwrap(), inside);
        assert_eq!(resolve_in_volume(&volume, "link/new/er").unwrap(), inside.join("new/er"));
        assert!(resolve_in_volume(&volume, "out").is_err());
        assert!(resolve_in_volume(&volume, "out/passwd").is_err());
        fs::remove_dir_all(&volume).unwrap();
    }

    #[test]
    fn a_claim_leads_to_the_folder_of_its_volume() {
        let mut store = Store::new(9);
        for (name, phase) in [("a", "Bound"), ("b", "Pending")] {
            let claim = json!({
                "metadata": {"name": name, "namespace": "n"},
                "spec": {"volumeName": "pv"}, "status": {"phase": phase},
            });
            store.put(Kind::PersistentVolumeClaim, claim);
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
        ] {
            let result = source(&store, &pod, &volume, Path::new("/pods"));
            let want = want.map(PathBuf::from).map_err(|e| format!("error processing PVC {e}"));
            assert_eq!(result, want, "{volume}");
        }
    }
}
