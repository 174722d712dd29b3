//! Shapes of tasks that cannot start: what becomes of them, and that the others of their group go on.

use serde_json::{Value, json};

use crate::support::posse::{Posse, said};
use crate::support::scene::{Scene, is_running};
use crate::support::server::{End, Server};
use crate::support::wait::{PATIENCE, wait_value};

fn add(posse: &Posse, words: &[&str]) {
    let output = posse.ask(&[&["task", "add", "--name"], words].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

/// A group whose template has no command, so that the embedded node needs the image.
fn settings(scene: &Scene<'_>, more: &Value) -> Value {
    let mut pod = scene.template();
    pod["spec"]["containers"][0].as_object_mut().expect("a map").remove("command");
    let group = json!({"group": "default", "count": 0, "max": 1, "pod": pod});
    let mut settings = json!({"executors": [group]});
    for (key, value) in more.as_object().expect("keys") {
        settings[key] = value.clone();
    }
    settings
}

/// Alone in its group, a task fails after its retries, with the words of the kubelet.
pub fn a_task_that_cannot_start(server: &dyn Server) {
    let scene = Scene::new(server);
    let limits = json!({"allocation": {"start_timeout": "4s"}});
    let posse = scene.run().settings(settings(&scene, &limits)).start();
    posse.wait_ready();
    add(&posse, &["image", "--retries", "0", "--image", "example.com/none:1"]);
    let output = posse.ask(&["task", "wait", "image"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let list = said(&posse.ask(&["task", "list", "-o", "wide"]));
    let line = list.lines().find(|line| line.starts_with("image")).unwrap_or_default();
    let want = ["failed", "image_error: ", "example.com/none:1"];
    assert!(want.iter().all(|part| line.contains(part)), "{list}");
    posse.stop();
    scene.finish();
}

/// The group has one place, and a task that fits no node has it first: it gives it up to another shape.
pub fn a_shape_without_a_node_gives_its_place(server: &dyn Server) {
    let scene = Scene::new(server);
    let group = json!({"group": "default", "count": 0, "max": 1, "pod": scene.template()});
    let posse = scene.run().settings(json!({"executors": [group]})).start();
    posse.wait_ready();
    add(&posse, &["bad", "--node-selector", "disk=nowhere"]);
    posse.wait_event("waiting", |event| event["for"] == "unschedulable");
    add(&posse, &["good"]);
    let good = wait_value(PATIENCE, "the other shape to run", || {
        let of_it = |pod: &Value| pod["metadata"]["labels"]["posse.dev/key"] == "good";
        scene.ours().into_iter().find(|pod| of_it(pod) && is_running(pod)).ok_or("not yet")
    });
    let deleted = posse.wait_event("executor_deleted", |_| true);
    assert_eq!(deleted["cause"], "unplaced", "{deleted}");
    scene.end(&good, End::Exit(0));
    assert_eq!(posse.ask(&["task", "wait", "good"]).status.code(), Some(0));
    let list = said(&posse.ask(&["task", "list"]));
    assert!(!list.contains("failed"), "it costs no retry: {list}");
    posse.stop();
    scene.finish();
}
