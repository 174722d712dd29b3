//! The level `restricted` of the Pod Security Standards as a table: what it forbids in a pod.

use serde_json::{Value, json};

/// The volumes that `restricted` permits.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// What the level `restricted` forbids in this pod's spec, by the field.
pub fn violations(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |is_fine: bool, field: String| {
        if !is_fine {
            found.push(field);
        }
    };
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        check(spec[host] != true, host.to_owned());
    }
    for volume in list(spec, "volumes") {
        let kinds = volume.as_object().unwrap().keys().filter(|key| *key != "name");
        for kind in kinds {
            check(VOLUMES.contains(&kind.as_str()), format!("volumes {kind}"));
        }
    }
    let pod = &spec["securityContext"];
    check(list(pod, "sysctls").next().is_none(), "sysctls".to_owned());
    check(pod["runAsNonRoot"] != false, "runAsNonRoot".to_owned());
    check(pod["runAsUser"] != 0, "runAsUser".to_owned());
    let is_profile = |profile: &Value| profile == "RuntimeDefault" || profile == "Localhost";
    let pod_profile = &pod["seccompProfile"]["type"];
    check(pod_profile.is_null() || is_profile(pod_profile), "seccompProfile".to_owned());
    for containers in ["initContainers", "containers", "ephemeralContainers"] {
        for container in list(spec, containers) {
            let name = container["name"].as_str().unwrap();
            let own = &container["securityContext"];
            let mut check = |is_fine: bool, field: &str| check(is_fine, format!("{name} {field}"));
            check(own["privileged"] != true, "privileged");
            check(own["allowPrivilegeEscalation"] == false, "allowPrivilegeEscalation");
            check(list(&own["capabilities"], "drop").any(|one| one == "ALL"), "capabilities");
            let mut added = list(&own["capabilities"], "add");
            check(added.all(|one| one == "NET_BIND_SERVICE"), "capabilities");
            let is_set = own["runAsNonRoot"] == true
                || (own["runAsNonRoot"].is_null() && pod["runAsNonRoot"] == true);
            check(is_set, "runAsNonRoot");
            check(own["runAsUser"] != 0, "runAsUser");
            let own_profile = &own["seccompProfile"]["type"];
            let profile = if own_profile.is_null() { pod_profile } else { own_profile };
            check(is_profile(profile), "seccompProfile");
            check(list(container, "ports").all(|port| port["hostPort"].is_null()), "hostPort");
            check(own["procMount"].is_null() || own["procMount"] == "Default", "procMount");
        }
    }
    found
}

/// A spec that the level admits.
pub fn admitted() -> Value {
    json!({
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "image": "i", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    })
}

/// Changes of that spec that the level forbids: the place, what is put there, and the field that
/// `violations` names.
pub fn forbidden() -> Vec<(&'static str, Value, &'static str)> {
    let container = "/containers/0/securityContext";
    vec![
        ("", json!({"hostNetwork": true}), "hostNetwork"),
        ("", json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), "volumes hostPath"),
        ("", json!({"volumes": [{"name": "v", "nfs": {}}]}), "volumes nfs"),
        ("/securityContext", json!({"runAsNonRoot": null}), "c runAsNonRoot"),
        ("/securityContext", json!({"runAsUser": 0}), "runAsUser"),
        ("/securityContext", json!({"seccompProfile": null}), "c seccompProfile"),
        ("/securityContext", json!({"seccompProfile": {"type": "Unconfined"}}), "seccompProfile"),
        (container, json!({"runAsNonRoot": false}), "c runAsNonRoot"),
        (container, json!({"runAsUser": 0}), "c runAsUser"),
        (container, json!({"privileged": true}), "c privileged"),
        (container, json!({"allowPrivilegeEscalation": null}), "c allowPrivilegeEscalation"),
        (container, json!({"capabilities": null}), "c capabilities"),
        (
            container,
            json!({"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}),
            "c capabilities",
        ),
        (container, json!({"seccompProfile": {"type": "Unconfined"}}), "c seccompProfile"),
        ("/containers/0", json!({"ports": [{"hostPort": 80}]}), "c hostPort"),
        ("", json!({"initContainers": [{"name": "i"}]}), "i allowPrivilegeEscalation"),
    ]
}

/// The spec with these fields at this place.
pub fn changed(spec: &Value, place: &str, fields: &Value) -> Value {
    let mut changed = spec.clone();
    let target = changed.pointer_mut(place).unwrap().as_object_mut().unwrap();
    target.extend(fields.as_object().unwrap().clone());
    changed
}
