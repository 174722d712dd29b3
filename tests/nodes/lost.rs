//! Nodes that are lost: kubelet and containers are killed, and the Node object stays.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::nodes::cluster::{
    PATIENCE, Scene, expect, is_ready, name_of, node_of, owner_of, said, shown, take_nodes,
};
use crate::support::wait::{wait_for, wait_value};

/// From the death of the driver's node to the last new executor.
const DRIVER_BACK: Duration = Duration::from_secs(150);
/// From the node's `NotReady` to the last new executor, beyond `node_loss_after`.
const EXECUTORS_BACK: Duration = Duration::from_secs(10);

fn executors() -> Value {
    json!([{ "count": 4, "template": "deploy/executor.yaml" }])
}

fn is_node_ready(scene: &Scene, node: &str) -> bool {
    is_ready(&scene.get(&["node", node]))
}

/// Driver and executors are back on the other node, the executors of the lost driver are gone from
/// reachable nodes, and the dead node's return changes nothing.
pub fn driver_node_lost() {
    let _nodes = take_nodes();
    let scene = Scene::new().create_namespace();
    let script = "until test -e /tmp/go; do sleep 1; done; echo the work is done";
    scene.write_driver("app", script, json!({ "retries": 0 }), executors());
    scene.submit();
    let first = scene.wait_application("", 4, PATIENCE);
    let node = node_of(&first).to_owned();
    let died_at = Instant::now();
    let dead = scene.node(&node).kill(true);
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
    wait_for(PATIENCE, "the node to be back", || is_node_ready(&scene, &node));
    wait_value(PATIENCE, "the pods of the dead node to go", || {
        let pods = scene.pods();
        if pods.len() == 5 { Ok(()) } else { Err(shown(&pods)) }
    });
    assert_eq!(names(&scene.drivers()), [name_of(&second)]);
    assert_eq!(names(&scene.executors()), before);
    scene.kubectl(&["exec", name_of(&second), "-c", "driver", "--", "touch", "/tmp/go"]);
    wait_for(PATIENCE, "the job to be complete", || scene.job("app")["status"]["succeeded"] == 1);
    let log = scene.posse(&["logs", "app"]);
    assert_eq!(said(&log).matches("the work is done").count(), 1, "{}", said(&log));
    scene.finish();
}

fn names(pods: &[Value]) -> Vec<String> {
    pods.iter().map(|pod| name_of(pod).to_owned()).collect()
}

/// Executors on a lost node are replaced, their terminating pods hold nothing up and are shown as such.
pub fn executors_node_lost() {
    let _nodes = take_nodes();
    let scene = Scene::new().create_namespace();
    let script = "until test -e /tmp/go; do sleep 1; done";
    // The driver stays on the first node.
    let driver = json!({ "node_selector": { "kubernetes.io/hostname": "node-0" } });
    scene.write_driver("app", script, driver, executors());
    scene.submit();
    let driver = scene.wait_application("", 4, PATIENCE);
    let on_lost = |pods: &[Value]| pods.iter().filter(|pod| node_of(pod) == "node-1").count();
    let n_lost = on_lost(&scene.executors());
    assert!(n_lost > 0, "the scheduler spreads them: {}", shown(&scene.pods()));
    let dead = scene.node("node-1").kill(true);
    wait_for(PATIENCE, "the node to be NotReady", || !is_node_ready(&scene, "node-1"));
    let limit = Duration::from_secs(60) + EXECUTORS_BACK;
    let since = Instant::now();
    wait_value(limit, "new executors on the other node", || {
        let pods = scene.executors();
        let n = pods.iter().filter(|pod| is_ready(pod) && node_of(pod) == "node-0").count();
        if n == 4 { Ok(()) } else { Err(shown(&scene.pods())) }
    });
    println!("NotReady -> executors replaced: {:.0} s", since.elapsed().as_secs_f64());
    let words = ["exec", name_of(&driver), "-c", "driver", "--", "/opt/posse/posse", "status"];
    let status = scene.kubectl(&words);
    assert_eq!(status.matches("terminating").count(), n_lost, "{status}");
    // The end of the application does not wait for them.
    scene.kubectl(&["exec", name_of(&driver), "-c", "driver", "--", "touch", "/tmp/go"]);
    wait_for(PATIENCE, "the job to be complete", || scene.job("app")["status"]["succeeded"] == 1);
    expect(&scene.posse(&["apps"]), 0, &["Succeeded"]);
    drop(dead);
    wait_value(PATIENCE, "the pods of the lost node to go", || {
        let pods = scene.pods();
        if pods.len() == 1 { Ok(()) } else { Err(shown(&pods)) }
    });
    scene.finish();
}
