//! Executors that do not start, nodes with many losses, memory scaling after OOM: what posse waits
//! for, when it gives up, and how it changes the next pod.

use serde_json::{Value, json};

use crate::support::posse::Posse;
use crate::support::real::NODES;
use crate::support::scene::{Scene, describe, executor_id, is_over, name_of};
use crate::support::server::{End, Server, pods_path};
use crate::support::wait::{PATIENCE, is_same_time, wait_value};

/// The only executor, once it exists.
#[track_caller]
fn only(scene: &Scene<'_>, id: u64) -> Value {
    wait_value(PATIENCE, &format!("executor {id} alone"), || {
        let mut ours = scene.ours();
        ours.retain(|pod| !is_over(pod));
        match ours.as_slice() {
            [pod] if executor_id(pod) == id => Ok(pod.clone()),
            others => Err(describe(others)),
        }
    })
}

/// A container's status as a kubelet writes it.
fn container(name: &str, state: &Value) -> Value {
    json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": state})
}

/// The test-side node writes why the container of executor `id` waits; the embedded cluster's kubelet
/// finds it out by itself.
fn holds_up(scene: &Scene<'_>, id: u64, reason: &str, message: &str) {
    if scene.server.real().is_some() {
        let waiting = json!({"waiting": {"reason": reason, "message": message}});
        patch_status(scene, &only(scene, id), &[container("worker", &waiting)]);
    }
}

fn patch_status(scene: &Scene<'_>, pod: &Value, containers: &[Value]) {
    if scene.server.real().is_some() {
        let path = format!("{}/{}/status", pods_path(&scene.namespace), name_of(pod));
        scene.admin.merge_patch(&path, &json!({"status": {"containerStatuses": containers}})).ok();
    }
}

fn hold_starts(scene: &Scene<'_>, hold: bool) {
    if scene.server.real().is_some() {
        scene.hold_starts(hold);
    }
}

/// The template with a changed container.
fn template(scene: &Scene<'_>, change: impl Fn(&mut Value)) -> Value {
    let mut pod = scene.template();
    change(&mut pod["spec"]["containers"][0]);
    pod
}

fn group(pod: &Value, more: &Value) -> Value {
    let mut group = json!({"group": "default", "count": 1, "pod": pod});
    for (key, value) in more.as_object().expect("keys of a group") {
        group[key] = value.clone();
    }
    json!([group])
}

/// An image that cannot be pulled: reported with the kubelet's message, abandoned in time, probed
/// with one create, and in the end the budget is spent.
pub fn image_that_cannot_be_pulled(server: &dyn Server) {
    let scene = Scene::new(server);
    hold_starts(&scene, true);
    // Without a command the embedded cluster's node would need the image.
    let pod = template(&scene, |container| {
        container.as_object_mut().expect("a map").remove("command");
    });
    let settings = json!({"executors": group(&pod, &json!({})), "failures": {"start": 1},
        "allocation": {"start_timeout": "4s"}});
    let posse = scene.run().settings(settings).start();
    for id in 1..=2 {
        if id == 2 {
            posse.may_end();
        }
        holds_up(&scene, id, "ErrImagePull", "example.com/worker:1: not found");
        let waiting = posse.wait_event("waiting", |event| event["for"] == "image_error");
        let words = waiting["message"].as_str().unwrap_or_default();
        assert!(
            words.contains("ErrImagePull") && words.contains("example.com/worker:1"),
            "{words}"
        );
        assert!(waiting["until"].is_string(), "{waiting}");
        let lost = posse.wait_event("executor_lost", |event| event["executor"] == id);
        assert_eq!((&lost["reason"], &lost["budget"]), (&json!("image_error"), &json!("start")));
        assert_eq!(lost["caused_by_app"], true, "{lost}");
        let words = lost["message"].as_str().unwrap_or_default();
        assert!(words.contains("start_timeout (2s)") && words.contains("example.com/worker:1"));
    }
    posse.expect_exit(11);
    assert_eq!(posse.wait_event("budget_exhausted", |_| true)["budget"], "start");
    scene.finish();
}

/// A secret that is missing at first.
pub fn secret_that_is_missing(server: &dyn Server) {
    let scene = Scene::new(server);
    hold_starts(&scene, true);
    let pod = template(&scene, |container| {
        let key = json!({"secretKeyRef": {"name": "token", "key": "t"}});
        let variable = json!({"name": "TOKEN", "valueFrom": key});
        container["env"].as_array_mut().expect("a list").push(variable);
    });
    let settings = json!({"executors": group(&pod, &json!({})),
        // A busy machine needs seconds to find out why it does not start.
        "allocation": {"start_timeout": "6s"}});
    let posse = scene.run().settings(settings).start();
    holds_up(&scene, 1, "CreateContainerConfigError", "secret \"token\" not found");
    let lost = posse.wait_event("executor_lost", |event| event["executor"] == 1);
    assert_eq!((&lost["reason"], &lost["budget"]), (&json!("config_error"), &json!("start")));
    let words = lost["message"].as_str().unwrap_or_default();
    assert!(words.contains("secret \"token\" not found"), "{words}");
    posse.wait_event("waiting", |event| event["for"] == "config_error");
    wait_value(PATIENCE, "posse to explain it", || {
        let explained = posse.ask(&["explain"]);
        let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
        if explained.contains("secret \"token\" not found") { Ok(()) } else { Err(explained) }
    });
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"},
        "stringData": {"t": "x"}});
    scene.admin.post(&format!("/api/v1/namespaces/{}/secrets", scene.namespace), &secret).ok();
    hold_starts(&scene, false);
    assert!(executor_id(&scene.wait_running(1)[0]) > 1);
    posse.wait_group("nothing to be waited for", |group| {
        group["waiting"].is_null() && group["message"].is_null()
    });
    posse.stop();
    scene.finish();
}

/// Starts that hang are abandoned.
pub fn starts_that_hang(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.hold_starts(true);
    let settings = json!({"allocation": {"start_timeout": "2s"}});
    let posse = scene.run().executors(1).settings(settings).start();
    let lost = posse.wait_event("executor_lost", |event| event["executor"] == 1);
    assert_eq!((&lost["reason"], &lost["budget"]), (&json!("start_timeout"), &json!("start")));
    assert!(lost["node"].is_string(), "it was bound: {lost}");
    scene.hold_starts(false);
    scene.wait_running(1);
    posse.stop();
    scene.finish();
}

/// A node that loses three executors while others live elsewhere: the next pod avoids it.
pub fn node_with_losses(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(8).start();
    let running = scene.wait_running(8);
    let on = |node: &str| running.iter().filter(|pod| pod["spec"]["nodeName"] == node).count();
    let node = NODES.into_iter().max_by_key(|node| on(node)).expect("a node");
    assert!(on(node) < 8, "others live elsewhere: {}", describe(&running));
    for pod in running.iter().filter(|pod| pod["spec"]["nodeName"] == node).take(3) {
        scene.end(pod, End::PodFailed("Evicted"));
    }
    let avoided = posse.wait_event("node_avoided", |event| event["node"] == node);
    assert_eq!(avoided["reason"], "evicted", "{avoided}");
    let status = posse.status();
    let until = status["avoided_nodes"][node].as_str().expect("a time");
    assert!(is_same_time(until, avoided["until"].as_str().expect("a time")), "{status}");
    let way = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    let want = json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "NotIn", "values": [node]}]}]});
    let pods = scene.wait_running(8);
    assert!(pods.iter().any(|pod| pod.pointer(way) == Some(&want)), "{pods:?}");
    posse.stop();
    scene.finish();
}

/// A pod that fits no node: posse waits, and reports the scheduler's message.
pub fn pod_that_fits_no_node(server: &dyn Server) {
    let scene = Scene::new(server);
    let pod = template(&scene, |container| {
        container["resources"] = json!({"requests": {"cpu": "100000"}});
    });
    let posse = scene.run().settings(json!({"executors": group(&pod, &json!({}))})).start();
    let waiting = posse.wait_event("waiting", |event| event["for"] == "unschedulable");
    let words = waiting["message"].as_str().unwrap_or_default();
    assert!(words.contains("nodes are available"), "{waiting}");
    posse.stop();
    scene.finish();
}

/// The replacement of an executor that ran out of memory gets more memory.
pub fn memory_scaling_after_oom(server: &dyn Server) {
    let scene = Scene::new(server);
    let pod = template(&scene, |container| {
        container["resources"] = json!({"limits": {"memory": "64Mi"}});
    });
    let growth = json!({"oom_growth": 1.5, "memory_max": "100Mi"});
    let settings = json!({"executors": group(&pod, &growth), "failures": {"keep_failed": 0}});
    let posse = scene.run().settings(settings).start();
    for (id, memory) in [(1, "64Mi"), (2, "96Mi"), (3, "100Mi")] {
        let pod = scene.wait_running(1).remove(0);
        assert_eq!(executor_id(&pod), id);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["resources"]["limits"]["memory"], memory, "{container}");
        if id > 1 {
            let grown = posse.wait_event("memory_grown", |event| event["executor"] == id);
            assert_eq!(grown["memory"], memory, "{grown}");
        }
        posse.wait_event("executor_running", |event| event["executor"] == id);
        if id < 3 {
            scene.end(&pod, End::OomKilled);
            posse.wait_event("executor_requested", |event| event["executor"] == id + 1);
        }
    }
    posse.stop();
    scene.finish();
}

/// An executor that uses nearly all of its memory gets more in place, if the server can do that; from a restarted
/// posse, too.
pub fn memory_grows_in_place(server: &dyn Server) {
    let scene = Scene::new(server);
    let resources = scene.admin.get("/api/v1").ok();
    let mut names = resources["resources"].as_array().expect("a list").iter();
    let can_resize = names.any(|resource| resource["name"] == "pods/resize");
    let pod = template(&scene, |container| {
        container["resources"] = json!({"limits": {"memory": "64Mi", "cpu": "100m"}});
    });
    let growth = json!({"oom_growth": {"factor": 2, "grow_at": 0.9}, "memory_max": "256Mi"});
    let run = || scene.run().settings(json!({"executors": group(&pod, &growth)})).instance("grow1");
    let mut posse = run().start();
    let first = scene.wait_running(1).remove(0);
    posse.wait_event("executor_running", |event| event["executor"] == 1);
    if can_resize {
        // So a node says that it can do it, too.
        let mut statuses = first["status"]["containerStatuses"].clone();
        statuses[0]["resources"] = first["spec"]["containers"][0]["resources"].clone();
        patch_status(&scene, &first, statuses.as_array().expect("a list"));
    }
    let heard = |posse: &Posse, bytes: u64| {
        let body = json!({"executors": [1], "memory": {"1": bytes}});
        let (code, answer) = posse.call("POST", "/v1/executors/heartbeat", &body);
        assert_eq!((code, &answer["unknown"]), (200, &json!([])), "{answer}");
    };
    heard(&posse, 50 << 20);
    heard(&posse, 60 << 20);
    let grown = posse.wait_event("memory_grown", |event| event["executor"] == 1);
    assert_eq!(grown["memory"], "128Mi", "{grown}");
    let path = format!("{}/{}", pods_path(&scene.namespace), name_of(&first));
    let pod = scene.admin.get(&path).ok();
    let of = |pod: &Value| pod["spec"]["containers"][0]["resources"].clone();
    assert_eq!(pod["metadata"]["uid"], first["metadata"]["uid"]);
    if can_resize {
        assert_eq!(grown["message"], Value::Null, "{grown}");
        let want = json!({"limits": {"memory": "128Mi", "cpu": "100m"},
            "requests": {"memory": "128Mi", "cpu": "100m"}});
        assert_eq!(of(&pod), want);
        // The node says that others use it.
        let condition = json!({"type": "PodResizePending", "status": "True",
            "reason": "Deferred", "message": "not enough memory"});
        let status = json!({"status": {"conditions": [condition]}});
        scene.admin.merge_patch(&format!("{path}/status"), &status).ok();
        let waits = posse.wait_event("memory_grown", |event| !event["message"].is_null());
        assert_eq!(waits["message"], "Deferred, not enough memory", "{waits}");
        posse.kill();
        posse = run().start();
        posse.wait_ready();
        posse.wait_group("the executor", |group| group["running"] == 1);
        heard(&posse, 110 << 20);
        heard(&posse, 120 << 20);
        let grown = posse.wait_event("memory_grown", |event| event["message"].is_null());
        assert_eq!((&grown["executor"], &grown["memory"]), (&json!(1), &json!("256Mi")), "{grown}");
        assert_eq!(of(&scene.admin.get(&path).ok())["limits"]["memory"], "256Mi");
    } else {
        let why = grown["message"].as_str().unwrap_or_default();
        assert!(why.starts_with("the server refuses it: "), "{grown}");
        assert_eq!(of(&pod), of(&first), "nothing has changed");
    }
    posse.stop();
    scene.finish();
}
