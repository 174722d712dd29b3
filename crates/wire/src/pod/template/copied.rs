//! What belongs to one live pod, and comes along if a template is copied from it (`kubectl get pod -o yaml`). A pod with it
//! would be held by a finalizer that nobody removes, taken by a controller whose selector it matches, or refused.

use serde_json::{Map, Value};

/// Fields of `metadata` that only a server sets. It ignores them, or sets them anew.
const SERVER_FIELDS: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// Labels and annotations that controllers of Kubernetes give to their pods. Selectors have most of them.
const OF_CONTROLLERS: [&str; 8] = [
    "apps.kubernetes.io/pod-index",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
    "statefulset.kubernetes.io/pod-index",
];
/// The same, of Jobs.
const OF_JOBS: &str = "batch.kubernetes.io/";
/// The volume of the token that the server adds. Five characters follow.
const TOKEN_VOLUME: &str = "kube-api-access-";
const SUFFIX_BYTES: usize = 5;

/// Removes all of it, and gives the fields that a person may have meant. The server computes `priority` from
/// `priorityClassName`.
pub(super) fn remove(
    metadata: &mut Map<String, Value>,
    spec: &mut Map<String, Value>,
) -> Vec<String> {
    let theirs =
        SERVER_FIELDS.map(|field| metadata.remove(field).is_some_and(|value| !value.is_null()));
    let mut dropped = Vec::new();
    let mut drop = |map: &mut Map<String, Value>, key: &str, of: &str| {
        if map.remove(key).is_some_and(|value| !value.is_null()) {
            dropped.push(format!("{of}.{key}"));
        }
    };
    drop(metadata, "finalizers", "metadata");
    for list in ["labels", "annotations"] {
        let Some(map) = metadata.get_mut(list).and_then(Value::as_object_mut) else { continue };
        let theirs =
            |key: &&String| OF_CONTROLLERS.contains(&key.as_str()) || key.starts_with(OF_JOBS);
        let keys: Vec<String> = map.keys().filter(theirs).cloned().collect();
        keys.iter().for_each(|key| drop(map, key, &format!("metadata.{list}")));
    }
    drop(spec, "priority", "spec");
    // Alone it may be meant.
    let is_copy = theirs.contains(&true) || !dropped.is_empty();
    if is_copy && spec.remove("nodeName").is_some_and(|value| !value.is_null()) {
        dropped.push("spec.nodeName".to_owned());
    }
    remove_token(spec);
    dropped
}

/// The server adds the volume and its mounts to each pod of an account with a token.
fn remove_token(spec: &mut Map<String, Value>) {
    let is_token = |name: &Value| {
        let suffix = name.as_str().and_then(|name| name.strip_prefix(TOKEN_VOLUME));
        suffix.is_some_and(|suffix| suffix.len() == SUFFIX_BYTES)
    };
    let of_token = |entry: &Value| is_token(&entry["name"]);
    let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) else { return };
    let n_volumes = volumes.len();
    volumes.retain(|volume| !(of_token(volume) && volume["projected"].is_object()));
    if volumes.len() == n_volumes {
        return;
    }
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
                mounts.retain(|mount| !of_token(mount));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::build::tests::context;
    use crate::pod::template::Template;
    use posse_core::model::pod_text::PodOverrides;
    use serde_json::json;

    #[test]
    fn what_belongs_to_a_live_pod_is_dropped_with_one_warning() {
        let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
        let live = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "uid": "u", "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": ["batch.kubernetes.io/job-tracking"],
                "labels": {"app": "web", "job-name": "j", "controller-uid": "c", "pod-template-hash": "h",
                    "batch.kubernetes.io/job-name": "j", "statefulset.kubernetes.io/pod-name": "s-0"},
                "annotations": {"batch.kubernetes.io/job-completion-index": "0", "mine": "1"},
            },
            "spec": {"nodeName": "node-7", "priority": 0, "priorityClassName": "low",
                "volumes": [{"name": "kube-api-access-x2x4q", "projected": {}}, {"name": "data", "emptyDir": {}},
                    {"name": "kube-api-access-mine", "emptyDir": {}}],
                "containers": [{"name": "c", "image": "i", "volumeMounts":
                    [mount("data"), mount("kube-api-access-x2x4q"), mount("kube-api-access-mine")]}]},
            "status": {"phase": "Running"},
        });
        let compiled = Template::from_json("t.yaml", live).unwrap().compile(&context()).unwrap();
        let words = "t.yaml: metadata.finalizers, metadata.labels.batch.kubernetes.io/job-name, \
            metadata.labels.controller-uid, metadata.labels.job-name, metadata.labels.pod-template-hash, \
            metadata.labels.statefulset.kubernetes.io/pod-name, \
            metadata.annotations.batch.kubernetes.io/job-completion-index, spec.priority, \
            spec.nodeName: dropped, because they belong to one live pod";
        assert_eq!(compiled.warnings(), [words]);
        let body = compiled.render(1, 0, &PodOverrides::default());
        let pod: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(pod["metadata"]["labels"]["app"], "web");
        assert_eq!(pod["metadata"]["annotations"]["mine"], "1");
        for gone in [
            "x2x4q",
            "node-7",
            "job",
            "finalizers",
            "\"h\"",
            "deletionTimestamp",
            "\"priority\"",
            "Running",
        ] {
            assert!(!pod.to_string().contains(gone), "{gone}: {pod}");
        }
        assert_eq!(pod["spec"]["priorityClassName"], "low");
        let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
        let names: Vec<&Value> = mounts.iter().map(|mount| &mount["name"]).collect();
        assert_eq!(names, ["data", "kube-api-access-mine"]);
        // A template of somebody's own has nothing of it.
        let warnings = |metadata: Value, node: Value| {
            let own = json!({"metadata": metadata, "spec": {"containers": [{"name": "c"}], "nodeName": node}});
            let compiled = Template::from_json("t.yaml", own).unwrap().compile(&context()).unwrap();
            compiled.warnings().to_vec()
        };
        assert_eq!(warnings(json!({"labels": {"app": "a"}}), json!(null)), [""; 0]);
        let alone = "t.yaml: spec.nodeName: puts all executors on this node, past the scheduler: a nodeSelector lets it \
            look for room";
        assert_eq!(warnings(json!({}), json!("n")), [alone]);
        let copy = "t.yaml: spec.nodeName: dropped, because they belong to one live pod";
        assert_eq!(warnings(json!({"uid": "u"}), json!("n")), [copy]);
    }
}
