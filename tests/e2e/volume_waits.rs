//! What the executors of a group with volumes wait for: a slot, a claim that ends, a volume that is
//! missing or elsewhere.

use serde_json::{Value, json};

use crate::e2e::volumes::{claim_of, claims_path};
use crate::support::posse::Posse;
use crate::support::scene::{Scene, describe, executor_id, is_running, name_of, uid_of};
use crate::support::server::{End, Server, items, pods_path};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

fn settings(count: u32, group: &Value) -> Value {
    let volume = json!({"name": "scratch", "size": "1Mi", "mount": "/posse-slot-scratch"});
    let mut all = json!({"count": count, "template": "pod.json", "volumes_per_slot": [volume]});
    for (key, value) in group.as_object().expect("a map") {
        all[key] = value.clone();
    }
    json!({"executors": [all]})
}

/// The group waits for this, and says so with these words.
fn wait_said(posse: &Posse, waiting: &str, words: &str) {
    posse.wait_group(&format!("the group to wait for {waiting}: {words}"), |group| {
        let says = group["message"].as_str().is_some_and(|said| said.contains(words));
        group["waiting"] == waiting && says
    });
}

/// The slot of an executor, by its label.
fn slot_of(pod: &Value) -> &str {
    pod["metadata"]["labels"]["posse.dev/slot"].as_str().expect("a slot")
}

/// The running executor in this slot that is not one of `others`.
fn wait_in_slot(scene: &Scene<'_>, slot: &str, others: &[Value]) -> Value {
    wait_value(PATIENCE, &format!("a new executor in slot {slot}"), || {
        let mut ours = scene.ours();
        ours.retain(|pod| others.iter().all(|other| uid_of(other) != uid_of(pod)));
        ours.retain(|pod| is_running(pod) && slot_of(pod) == slot);
        ours.pop().ok_or_else(|| describe(&scene.ours()))
    })
}

fn in_slot<'a>(pods: &'a [Value], slot: &str) -> &'a Value {
    pods.iter().find(|pod| slot_of(pod) == slot).expect("an executor in the slot")
}

/// A terminating executor is waited for: its successor gets its slot, and so its claim.
pub fn slots_are_waited_for(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().instance("one").settings(settings(2, &json!({}))).start();
    let first = scene.wait_running(2);
    let held = in_slot(&first, "0");
    scene.hold_deletes(true);
    scene.delete(held);
    posse.wait_event("executor_lost", |event| event["uid"] == uid_of(held));
    let waiting = posse.wait_event("waiting", |event| event["for"] == "slot");
    let words = waiting["message"].as_str().unwrap_or_default();
    assert!(
        words.starts_with(&format!("executor {} still has slot 0", executor_id(held))),
        "{waiting}"
    );
    assert_eq!(scene.ours().len(), 2, "its successor waits");
    scene.hold_deletes(false);
    let next = wait_in_slot(&scene, "0", &first);
    assert_eq!(claim_of(&next, "scratch"), claim_of(held, "scratch"));
    assert_eq!(posse.events_of("slot_skipped").len(), 0);
    posse.stop();
    scene.finish();
}

/// Somebody deletes a claim that another pod uses: Kubernetes protects it until that pod has ended.
pub fn a_claim_that_another_pod_uses(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().instance("one").settings(settings(1, &json!({}))).start();
    let pod = scene.wait_running(1).remove(0);
    let name = claim_of(&pod, "scratch").to_owned();
    let mut other = scene.template();
    other["metadata"]["name"] = "reader".into();
    other["spec"]["volumes"] =
        json!([{"name": "theirs", "persistentVolumeClaim": {"claimName": name}}]);
    let other = scene.admin.post(&pods_path(&scene.namespace), &other).ok();
    wait_for(PATIENCE, "the other pod to run", || {
        scene.pod("reader").is_some_and(|pod| is_running(&pod))
    });
    let path = format!("{}/{name}", claims_path(&scene));
    let before = scene.admin.get(&path).ok();
    scene.admin.delete(&path, &json!({})).ok();
    scene.end(&pod, End::Exit(1));
    wait_said(&posse, "server", &format!("claim {name} is being deleted; posse waits for that"));
    assert_eq!(uid_of(&scene.admin.get(&path).ok()), uid_of(&before), "it is protected");
    scene.remove(&other);
    if server.real().is_some() {
        // No controller of claims runs beside this server.
        let free = json!({"metadata": {"finalizers": null}});
        scene.admin.merge_patch(&path, &free).ok();
    }
    let next = wait_in_slot(&scene, "0", &[pod]);
    assert_eq!(claim_of(&next, "scratch"), name);
    assert_ne!(uid_of(&scene.admin.get(&path).ok()), uid_of(&before), "it is a new one");
    posse.stop();
    scene.finish();
}

/// The claim of an earlier process, with labels as posse's own. No class provides its volume.
fn claim_without_a_volume(scene: &Scene<'_>, name: &str) {
    let labels = json!({
        "posse.dev/app": "shop", "posse.dev/instance": "one", "posse.dev/group": "default",
        "posse.dev/slot": "0", "app.kubernetes.io/managed-by": "posse",
        "app.kubernetes.io/component": "volume"});
    let claim = json!({"metadata": {"name": name, "labels": labels}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "resources": {"requests": {"storage": "1Mi"}}}});
    scene.admin.post(&claims_path(scene), &claim).ok();
}

/// No class provides the volume; then it is on no node of the cluster; then a node comes to its zone.
pub fn volumes_of_another_zone(server: &dyn Server) {
    let scene = Scene::new(server);
    let name = "shop-one-default-0-scratch";
    claim_without_a_volume(&scene, name);
    let posse = scene.run().instance("one").settings(settings(1, &json!({}))).start();
    posse.wait_ready();
    wait_said(&posse, "unschedulable", "unbound immediate PersistentVolumeClaims");

    let zone = format!("zone.example.com/{}", scene.namespace);
    let folder = scene.file("volume");
    std::fs::create_dir(&folder).expect("the folder can be written");
    let expression = json!({"key": zone, "operator": "In", "values": ["b"]});
    let terms = json!([{"matchExpressions": [expression]}]);
    let made = json!({"metadata": {"name": scene.namespace}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}, "storageClassName": "",
        "claimRef": {"name": name, "namespace": scene.namespace},
        "hostPath": {"path": folder.display().to_string()},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
    let volumes = "/api/v1/persistentvolumes";
    scene.admin.post(volumes, &made).ok();
    wait_said(&posse, "unschedulable", "volume node affinity conflict");
    assert!(!scene.ours().iter().any(is_running), "no node is in its zone");

    let node = items(&scene.admin.get("/api/v1/nodes").ok()).remove(0);
    let label = |value: &Value| json!({"metadata": {"labels": {&zone: value}}});
    let node = format!("/api/v1/nodes/{}", name_of(&node));
    scene.admin.merge_patch(&node, &label(&"b".into())).ok();
    let pod = scene.wait_running(1).remove(0);
    assert_eq!(claim_of(&pod, "scratch"), name);
    posse.stop();
    scene.wait_none();
    scene.admin.merge_patch(&node, &label(&Value::Null)).ok();
    scene.admin.delete(&format!("{volumes}/{}", scene.namespace), &json!({})).ok();
    scene.finish();
}
