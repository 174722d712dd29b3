//! Nodes that are lost, drained, deleted or restarted.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::nodes::cluster::{
    PATIENCE, POSSE_IMAGE, Scene, UNTIL_GO, expect, is_ready, name_of, node_of, owner_of, shown,
};
use crate::nodes::machine::{MortalNode, is_node_ready, node, take_node};
use crate::nodes::wait::{stays_true, wait_for, wait_value};

/// From the death of the driver's node to the last new executor: 150 s on a quiet machine, with a node
/// that is `NotReady` after 16 s. With Kubernetes' own tolerations it is 330 s.
const DRIVER_BACK: Duration = Duration::from_secs(300);
/// From the node's `NotReady` to the last new executor: 70 s on a quiet machine.
const EXECUTORS_BACK: Duration = Duration::from_secs(150);
/// A Node that is deleted: the pod garbage collector waits 40 s and looks every 20 s.
const DELETED_BACK: Duration = Duration::from_secs(300);

/// Two executors on the node as long as it lives, and two on others.
fn executors(node: &MortalNode) -> Value {
    let group = |name: &str, more: Value| {
        let container = json!({ "name": "worker", "image": "busybox:1.36",
            "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"] });
        let mut spec = json!({ "containers": [container], "terminationGracePeriodSeconds": 5 });
        for (key, value) in more.as_object().cloned().unwrap_or_default() {
            spec[key] = value;
        }
        json!({ "group": name, "count": 2, "pod": { "spec": spec } })
    };
    json!([group("near", node.preferred()), group("far", node.avoided())])
}

/// A driver that the node does not take along, or, with `on_it`, one that begins there.
fn driver(node: &MortalNode, on_it: bool) -> Value {
    let mut spec = if on_it { node.preferred() } else { node.avoided() };
    spec["containers"] = json!([{ "name": "driver" }]);
    json!({ "retries": 0, "pod": { "spec": spec } })
}

/// A submitted application, two of its executors on the node. Returns its driver.
fn submit(scene: &Scene, node: &MortalNode, on_it: bool) -> Value {
    scene.write_driver("app", UNTIL_GO, driver(node, on_it), executors(node));
    scene.submit();
    let driver = scene.wait_application("", 4, PATIENCE);
    assert_eq!(node_of(&driver) == node.name(), on_it, "{}", shown(&scene.pods()));
    assert_eq!(on_node(&scene.executors(), &node.name()), 2, "{}", shown(&scene.pods()));
    driver
}

fn on_node(pods: &[Value], node: &str) -> usize {
    pods.iter().filter(|pod| node_of(pod) == node).count()
}

fn names(pods: &[Value]) -> Vec<String> {
    pods.iter().map(|pod| name_of(pod).to_owned()).collect()
}

/// Waits until four executors run, none of them on this node.
#[track_caller]
fn wait_replaced(scene: &Scene, node: &str, limit: Duration) {
    wait_value(limit, "new executors on other nodes", || {
        let mut pods = scene.executors();
        pods.retain(|pod| is_ready(pod) && node_of(pod) != node);
        if pods.len() == 4 { Ok(()) } else { Err(shown(&scene.pods())) }
    });
}

/// Driver and executors are back on other nodes, the executors of the lost driver are gone from
/// reachable nodes, and the dead node's return changes nothing.
pub fn driver_node_lost() {
    let mortal = take_node();
    let scene = Scene::new().create_namespace();
    let first = submit(&scene, &mortal, true);
    let node = mortal.name();
    let died_at = Instant::now();
    let dead = mortal.kill(true);
    let second = scene.wait_application(name_of(&first), 4, DRIVER_BACK);
    println!("driver's node lost -> back: {:.0} s", died_at.elapsed().as_secs_f64());
    assert_ne!(node_of(&second), node);
    wait_value(PATIENCE, "no old executor on a reachable node", || {
        let mut old = scene.pods();
        old.retain(|pod| owner_of(pod) == name_of(&first) && node_of(pod) != node);
        if old.is_empty() { Ok(()) } else { Err(shown(&old)) }
    });
    let before = names(&scene.executors());
    drop(dead);
    wait_for(PATIENCE, "the node to be back", || is_node_ready(&node));
    wait_value(PATIENCE, "the pods of the dead node to go", || {
        let pods = scene.pods();
        if pods.len() == 5 { Ok(()) } else { Err(shown(&pods)) }
    });
    assert_eq!(names(&scene.drivers()), [name_of(&second)]);
    assert_eq!(names(&scene.executors()), before);
    scene.let_go(&second, "app");
    assert_eq!(names(&scene.drivers()), [name_of(&second)], "the work is done once");
    scene.finish();
}

/// A queue whose driver may be on the node or on the first one, where no other scenario ends it.
fn submit_queue(scene: &Scene, node: &MortalNode) {
    let container =
        json!({ "name": "worker", "image": "busybox:1.36", "command": ["sleep", "20"] });
    let mut spec = node.avoided();
    spec["containers"] = json!([container]);
    let group = json!({ "group": "default", "count": 0, "max": 4, "pod": { "spec": spec } });
    let names = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [node.name(), "node-0"] });
    let mut spec = node.preferred();
    spec["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution":
        { "nodeSelectorTerms": [{ "matchExpressions": [names] }] } } });
    spec["containers"] = json!([{ "name": "driver" }]);
    let driver = json!({ "image": POSSE_IMAGE, "posse_image": POSSE_IMAGE, "standby": 1, "pod": { "spec": spec } });
    let settings = json!({ "app": "app", "driver": driver, "executors": [group] });
    scene.write("posse.yaml", &settings.to_string());
    scene.submit();
}

/// The pod of the driver that acts, if it is another one.
fn leader(scene: &Scene, other_than: &str) -> Option<Value> {
    let is_leader = |pod: &Value| pod["metadata"]["labels"]["posse.dev/leader"] == "true";
    scene
        .drivers()
        .into_iter()
        .find(|pod| is_leader(pod) && is_ready(pod) && name_of(pod) != other_than)
}

/// The standby of a driver whose node is lost goes on with its tasks: those at work are not disturbed, and each is done once.
pub fn driver_node_lost_with_a_standby() {
    let mortal = take_node();
    let scene = Scene::new().create_namespace();
    submit_queue(&scene, &mortal);
    let mut first = String::new();
    for _ in 0..10 {
        let pod = wait_value(PATIENCE, "a leader and a standby", || {
            let is_pair = scene.drivers().iter().filter(|pod| is_ready(pod)).count() == 2;
            leader(&scene, "").filter(|_| is_pair).ok_or_else(|| shown(&scene.pods()))
        });
        name_of(&pod).clone_into(&mut first);
        if node_of(&pod) == mortal.name() {
            break;
        }
        scene.kubectl(&["delete", "pod", &first]);
    }
    let task = |words: &[&str]| {
        let mut command = scene.command("posse");
        command.args(["task", words[0], "--app", "app", "-n", &scene.namespace]).args(&words[1..]);
        command.output().expect("posse is built")
    };
    wait_value(PATIENCE, "the leader to take the tasks", || {
        let output = task(&["add", "--name", "t", "--array", "1-12", "--", "sleep", "20"]);
        if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) }
    });
    let at_work = wait_value(PATIENCE, "four tasks at work", || {
        let pods = scene.executors();
        let n_ready = pods.iter().filter(|pod| is_ready(pod)).count();
        if n_ready == 4 { Ok(names(&pods)) } else { Err(shown(&pods)) }
    });
    let died_at = Instant::now();
    let dead = mortal.kill(true);
    let second = wait_value(PATIENCE, "the standby to lead", || {
        leader(&scene, &first).ok_or_else(|| shown(&scene.pods()))
    });
    let took = died_at.elapsed();
    println!("driver's node lost -> its standby leads: {:.1} s", took.as_secs_f64());
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_ne!(node_of(&second), mortal.name());
    let left: Vec<String> = names(&scene.pods());
    assert!(at_work.iter().any(|name| left.contains(name)), "{at_work:?} of {left:?}");
    expect(&task(&["wait"]), 0, &[]);
    let list = String::from_utf8(task(&["list", "-o", "json"]).stdout).unwrap();
    let tasks: Value = serde_json::from_str(&list).unwrap();
    let tasks = tasks["tasks"].as_array().or(tasks.as_array()).expect("a list");
    assert_eq!(tasks.len(), 12, "{list}");
    assert!(tasks.iter().all(|task| task["attempts"] == 1), "each is done once: {list}");
    let apps = scene.posse(&["apps", "-o", "wide"]);
    expect(&apps, 0, &[name_of(&second), ", silent, after 1"]);
    expect(
        &scene.posse(&["status", "--app", "app"]),
        0,
        &["leader ", "stands by: ", "; took over "],
    );
    drop(dead);
    scene.finish();
}

/// Executors on a lost node are replaced, their terminating pods hold nothing up and are shown as such.
pub fn executors_node_lost() {
    let mortal = take_node();
    let node = mortal.name();
    let scene = Scene::new().create_namespace();
    let driver = submit(&scene, &mortal, false);
    let dead = mortal.kill(true);
    wait_for(PATIENCE, "the node to be NotReady", || !is_node_ready(&node));
    let since = Instant::now();
    wait_replaced(&scene, &node, EXECUTORS_BACK);
    println!("NotReady -> executors replaced: {:.0} s", since.elapsed().as_secs_f64());
    let words = ["exec", name_of(&driver), "-c", "driver", "--", "/opt/posse/posse", "status"];
    let status = scene.kubectl(&words);
    assert_eq!(status.matches("terminating").count(), 2, "{status}");
    // The end of the application does not wait for them.
    scene.let_go(&driver, "app");
    expect(&scene.posse(&["apps"]), 0, &["Succeeded"]);
    drop(dead);
    wait_value(PATIENCE, "the pods of the lost node to go", || {
        let pods = scene.pods();
        if pods.len() == 1 { Ok(()) } else { Err(shown(&pods)) }
    });
    wait_for(PATIENCE, "the node to be back", || is_node_ready(&node));
    scene.finish();
}

/// A kubelet dies, and its containers live on unseen: their executors are replaced, and end when the
/// kubelet is back.
pub fn kubelet_lost() {
    let mortal = take_node();
    let name = mortal.name();
    let scene = Scene::new().create_namespace();
    let driver = submit(&scene, &mortal, false);
    let mut old = scene.executors();
    old.retain(|pod| node_of(pod) == name);
    let ids: Vec<String> = old.iter().map(container_id).collect();
    let dead = mortal.kill(false);
    wait_replaced(&scene, &name, PATIENCE);
    let live = node(&name).containers();
    assert!(ids.iter().all(|id| live.contains(id)), "{ids:?} of {live:?}");
    let lost = scene.loss_reasons("app");
    assert_eq!(lost.len(), 2, "{lost:?}");
    // Before condition DisruptionTarget (1.25) this looks like a deletion.
    assert!(lost.iter().all(|reason| reason == "node_lost" || reason == "deleted"), "{lost:?}");
    let before = names(&scene.executors());
    drop(dead);
    wait_for(PATIENCE, "the old containers to end", || {
        let live = node(&name).containers();
        !ids.iter().any(|id| live.contains(id))
    });
    wait_value(PATIENCE, "the old pods to go", || {
        let pods = scene.pods();
        if pods.len() == 5 { Ok(()) } else { Err(shown(&pods)) }
    });
    assert_eq!(names(&scene.executors()), before);
    wait_for(PATIENCE, "the node to be back", || is_node_ready(&name));
    scene.let_go(&driver, "app");
    scene.finish();
}

fn container_id(pod: &Value) -> String {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
    id.trim_start_matches("containerd://").to_owned()
}

/// The Node of a dead machine is deleted: its pods are gone, and their executors are replaced.
pub fn node_deleted() {
    let mortal = take_node();
    let node = mortal.name();
    let scene = Scene::new().create_namespace();
    let driver = submit(&scene, &mortal, false);
    let dead = mortal.kill(true);
    scene.kubectl(&["delete", "node", &node, "--wait=false"]);
    wait_replaced(&scene, &node, DELETED_BACK);
    let lost = scene.loss_reasons("app");
    assert_eq!(lost.len(), 2, "{lost:?}");
    assert!(lost.iter().all(|reason| reason == "node_lost" || reason == "deleted"), "{lost:?}");
    drop(dead);
    wait_for(PATIENCE, "the node to be back", || is_node_ready(&node));
    wait_value(PATIENCE, "the pods of the deleted node to go", || {
        let pods = scene.pods();
        if pods.len() == 5 { Ok(()) } else { Err(shown(&pods)) }
    });
    scene.let_go(&driver, "app");
    scene.finish();
}

/// A kubelet and a containerd that are restarted lose no executor; `kubectl drain` moves them, and
/// charges no failure budget.
pub fn node_restarted_and_drained() {
    let mortal = take_node();
    let node = mortal.name();
    let scene = Scene::new().create_namespace();
    let driver = submit(&scene, &mortal, false);
    let before = names(&scene.executors());
    for program in ["kubelet", "containerd"] {
        drop(mortal.stop(program));
        // A kubelet reports every 4 s, and a node is lost after 16 s.
        stays_true(Duration::from_secs(20), &format!("executors outlive {program}"), || {
            names(&scene.executors()) == before
        });
        wait_value(PATIENCE, "all executors to be ready", || {
            let executors = scene.executors();
            let is_whole = executors.iter().all(is_ready) && is_node_ready(&node);
            if is_whole { Ok(()) } else { Err(shown(&executors)) }
        });
    }
    assert_eq!(names(&scene.executors()), before);
    assert_eq!(scene.loss_reasons("app"), [""; 0]);
    let selector = "--pod-selector=posse.dev/app=app,posse.dev/group=near";
    let drain = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", selector];
    // It asks for all namespaces; only this scenario has pods on the node.
    expect(&scene.try_kubectl(&drain), 0, &["drained"]);
    wait_replaced(&scene, &node, PATIENCE);
    scene.kubectl(&["uncordon", &node]);
    let lost = scene.loss_reasons("app");
    assert!(lost.iter().all(|reason| reason == "evicted" || reason == "deleted"), "{lost:?}");
    assert_eq!(lost.len(), 2, "{lost:?}");
    scene.let_go(&driver, "app");
    scene.finish();
}
