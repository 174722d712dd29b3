//! Volumes of the slots of a group that a call creates.

use serde_json::{Value, json};

use crate::support::posse::Posse;
use crate::support::scene::{Scene, describe, is_running, name_of, uid_of};
use crate::support::server::{End, Server, items};
use crate::support::wait::{PATIENCE, wait_value};

fn claims(scene: &Scene<'_>) -> Vec<Value> {
    let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims", scene.namespace);
    let mut claims = items(&scene.admin.get(&path).ok());
    // The real server here has no controller that lets protected claims go.
    claims.retain(|claim| claim["metadata"]["deletionTimestamp"].is_null());
    claims.sort_by_key(|claim| name_of(claim).to_owned());
    claims
}

/// A pod that mounts the volume itself, in a folder of it.
fn template(scene: &Scene<'_>) -> Value {
    let mut pod = scene.template();
    let mount = json!({"name": "scratch", "mountPath": "/posse-call-data", "subPath": "a"});
    pod["spec"]["containers"][0]["volumeMounts"] = json!([mount]);
    pod
}

fn body(scene: &Scene<'_>, volume: &Value) -> Value {
    json!({"template": template(scene), "target": 2, "volumes_per_slot": [volume]})
}

fn scratch() -> Value {
    json!({"name": "scratch", "size": "1Mi", "labels": {"team": "a"}, "annotations": {"slot": "{{SLOT}}"}})
}

fn start(scene: &Scene<'_>) -> Posse {
    let posse = scene.run().settings(json!({"executors": []})).instance("calls").start();
    posse.wait_ready();
    posse
}

/// A call that is wrong changes nothing, and says which field is wrong.
fn check_refusals(scene: &Scene<'_>, posse: &Posse) {
    let with = |key: &str, value: Value| {
        let mut volume = scratch();
        volume[key] = value;
        volume
    };
    for (volume, field, words) in [
        (with("keep", json!("application")), "volumes_per_slot", "needs `exclusive: true`"),
        (with("size", json!("much")), "volumes_per_slot[0].size", "much"),
        (with("class", json!("fast")), "volumes_per_slot[0].class", "unknown key"),
        (with("name", json!("other")), "template.spec.containers", "no container mounts"),
        (with("mount", json!("/posse-call-data")), "template.spec.containers[0].volumeMounts", ""),
    ] {
        let said = posse.control().put("0", &body(scene, &volume));
        assert_eq!((said.code, &said.body["field"]), (400, &json!(field)), "{}", said.body);
        assert!(said.body["error"].to_string().contains(words), "{}", said.body);
    }
    assert_eq!(posse.control().group("0"), None);
    assert_eq!(claims(scene), Vec::<Value>::new(), "a dry run creates nothing");
}

/// The volumes of a group that a call creates: as those of a file, also over a kill of posse.
pub fn volumes_of_a_group_by_call(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = start(&scene);
    check_refusals(&scene, &posse);
    posse.control().put("0", &body(&scene, &scratch())).ok();
    let pods = scene.wait_running(2);
    let before = claims(&scene);
    let names: Vec<&str> = before.iter().map(name_of).collect();
    assert_eq!(names, ["shop-calls-0-0-scratch", "shop-calls-0-1-scratch"]);
    for (claim, slot) in before.iter().zip(["0", "1"]) {
        assert_eq!(claim["metadata"]["labels"]["team"], "a");
        assert_eq!(claim["metadata"]["annotations"]["slot"], slot);
    }
    let tasks = json!({"executors": [{"key": "t"}]});
    let (code, said) = posse.call("POST", "/v1/groups/0/executors", &tasks);
    assert_eq!(code, 400, "{said}");
    assert!(said["error"].to_string().contains("tasks have no slot"), "{said}");

    posse.kill();
    let posse = start(&scene);
    posse.control().put("0", &body(&scene, &scratch())).ok();
    scene.end(&pods[0], End::Exit(1));
    let claim_of = |pod: &Value| pod["spec"]["volumes"][0]["persistentVolumeClaim"].clone();
    wait_value(PATIENCE, "a successor with the same volume", || {
        let ours = scene.ours();
        let is_next = |pod: &&Value| {
            is_running(pod)
                && uid_of(pod) != uid_of(&pods[0])
                && claim_of(pod) == claim_of(&pods[0])
        };
        ours.iter().find(is_next).map(drop).ok_or_else(|| describe(&ours))
    });
    let uids = |claims: &[Value]| -> Vec<String> {
        claims.iter().map(|claim| uid_of(claim).to_owned()).collect()
    };
    assert_eq!(uids(&claims(&scene)), uids(&before));
    posse.stop();
    scene.wait_none();
    wait_value(PATIENCE, "the volumes to be gone", || {
        let left = claims(&scene);
        if left.is_empty() { Ok(()) } else { Err(json!(left)) }
    });
    scene.finish();
}
