//! What users and others do wrong: each has a message that says what to do.

use std::fs::{self, File};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::nodes::cluster::{PATIENCE, Running, Scene, UNTIL_GO, expect, name_of, shown};
use crate::nodes::machine::share_nodes;
use crate::nodes::wait::wait_value;

fn executors(n: u32) -> Value {
    json!([{ "count": n, "template": "deploy/executor.yaml" }])
}

/// `posse submit` that follows the driver, with its messages in the file `said`.
fn follow(scene: &Scene) -> Running {
    let said = File::create(scene.dir.path().join("said")).unwrap();
    let mut submit = scene.command("posse");
    submit.args(["submit", "-f", "posse.yaml", "--create-rbac", "-n", &scene.namespace]);
    Running(submit.stdout(Stdio::null()).stderr(said).spawn().unwrap())
}

#[track_caller]
fn wait_said(scene: &Scene, words: &str) {
    wait_value(PATIENCE, words, || {
        let said = fs::read_to_string(scene.dir.path().join("said")).unwrap_or_default();
        if said.contains(words) { Ok(()) } else { Err(said) }
    });
}

/// The driver's image has no posse, and nothing brings it.
pub fn image_without_posse() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    let driver = json!({ "image": "busybox:1.36", "command": ["true"], "retries": 0 });
    let settings = json!({ "app": "app", "driver": driver, "executors": executors(1) });
    scene.write("posse.yaml", &settings.to_string());
    let output = scene.posse(&["submit", "-f", "posse.yaml", "--create-rbac"]);
    let remedy = "put posse on the PATH of the image, or set driver.posse_image";
    expect(&output, 128, &["StartError", "\"posse\": executable file not found", remedy]);
    scene.finish();
}

/// No node has the image, and nobody serves it.
pub fn image_that_no_node_has() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    let driver = json!({ "image": "registry.invalid/driver:1", "retries": 0 });
    scene.write_driver("app", UNTIL_GO, driver, executors(1));
    let submit = follow(&scene);
    wait_said(&scene, "registry.invalid/driver:1");
    wait_said(&scene, "ImagePullBackOff");
    drop(submit);
    expect(&scene.posse(&["stop", "app"]), 0, &["application app stopped"]);
    scene.finish();
}

/// The quota has no room for the next driver while the old one ends. submit says so, and the driver comes
/// when there is room.
pub fn quota_full_while_driver_ends() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    scene.kubectl(&["create", "quota", "pods", "--hard=pods=2"]);
    // The driver ends by KILL, after the grace period.
    let script = format!("trap '' TERM; {UNTIL_GO}");
    scene.write_driver("app", &script, json!({ "retries": 0 }), executors(1));
    let submit = follow(&scene);
    let first = scene.wait_application("", 1, PATIENCE);
    scene.kubectl(&["delete", "pod", name_of(&first), "--wait=false"]);
    wait_said(&scene, "exceeded quota");
    let second = scene.wait_application(name_of(&first), 1, PATIENCE);
    scene.let_go(&second, "app");
    drop(submit);
    scene.finish();
}

/// Somebody pauses the Job. The driver ends with its executors, `posse apps` shows it as stopping, and the
/// driver is back when the Job may go on.
pub fn job_paused_by_somebody() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    scene.write_driver("app", UNTIL_GO, json!({ "retries": 0 }), executors(1));
    scene.submit();
    let first = scene.wait_application("", 1, PATIENCE);
    let set = |n: u32| {
        let patch = json!({ "spec": { "parallelism": n } }).to_string();
        scene.kubectl(&["patch", "job", "app-driver", "-p", &patch]);
    };
    set(0);
    wait_value(PATIENCE, "no pod to be left", || {
        let pods = scene.pods();
        if pods.is_empty() { Ok(()) } else { Err(shown(&pods)) }
    });
    expect(&scene.posse(&["apps"]), 0, &["Stopping"]);
    set(1);
    let second = scene.wait_application(name_of(&first), 1, PATIENCE);
    scene.let_go(&second, "app");
    scene.finish();
}
