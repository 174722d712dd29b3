//! The reasons for a loss that only a kubelet and a container runtime can give.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::nodes::cluster::{PATIENCE, Scene, is_ready, name_of, share_nodes};
use crate::support::wait::{wait_for, wait_value};

/// If set, the statuses of all pods are saved in this file, for `fixtures/pods/nodes.jsonl`.
const CAPTURE: &str = "POSSE_CAPTURE";

/// A program that ends with the scenario.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A group whose executor ends in one way: its name, its pod's spec, and the expected reasons and code.
struct Row {
    group: &'static str,
    spec: Value,
    want: &'static [&'static str],
    exit_code: Option<i64>,
}

/// A pod of one container with this command, and more fields of the container and of the spec.
fn spec(command: &[&str], container: Value, more: Value) -> Value {
    let mut main = json!({ "name": "worker", "image": "busybox:1.36", "command": command });
    let mut spec = json!({ "terminationGracePeriodSeconds": 1 });
    for (target, fields) in [(&mut main, container), (&mut spec, more)] {
        for (key, value) in fields.as_object().cloned().unwrap_or_default() {
            target[key] = value;
        }
    }
    spec["containers"] = json!([main]);
    spec
}

fn shell(script: &str) -> Value {
    spec(&["sh", "-c", script], json!({}), json!({}))
}

fn rows() -> Vec<Row> {
    let row = |group, spec, want, exit_code| Row { group, spec, want, exit_code };
    let limits = |limits: Value| json!({ "resources": { "limits": limits } });
    let sleeps: &[&str] = &["sh", "-c", "sleep 600"];
    let fill = "dd if=/dev/zero of=/tmp/full bs=1M count=40; sleep 600";
    let none = json!({});
    let liveness = json!({ "livenessProbe": {
        "exec": { "command": ["false"] }, "periodSeconds": 1, "failureThreshold": 2 } });
    let init = json!({ "initContainers": [
        { "name": "setup", "image": "busybox:1.36", "command": ["sh", "-c", "exit 5"] }] });
    let secret = json!({ "envFrom": [{ "secretRef": { "name": "missing" } }] });
    vec![
        row(
            "exit",
            shell("echo the words > /dev/termination-log; exit 3"),
            &["app_error"],
            Some(3),
        ),
        row("clean", shell("exit 0"), &["completed"], Some(0)),
        row("signal", shell("sleep 600 & kill -SEGV $!; wait $!"), &["app_error"], Some(139)),
        row(
            "oom",
            spec(
                &["dd", "if=/dev/zero", "of=/dev/null", "bs=200M"],
                limits(json!({ "memory": "24Mi" })),
                none.clone(),
            ),
            &["oom_killed"],
            Some(137),
        ),
        row(
            "disk",
            spec(&["sh", "-c", fill], limits(json!({ "ephemeral-storage": "10Mi" })), none.clone()),
            &["disk_exceeded"],
            None,
        ),
        row(
            "deadline",
            spec(sleeps, none.clone(), json!({ "activeDeadlineSeconds": 5 })),
            &["deadline_exceeded"],
            None,
        ),
        row(
            "image",
            spec(sleeps, json!({ "image": "registry.example.com/none:1" }), none.clone()),
            &["image_error"],
            None,
        ),
        row(
            "command",
            spec(&["/no/such"], none.clone(), none.clone()),
            &["config_error"],
            Some(128),
        ),
        row("secret", spec(sleeps, secret, none.clone()), &["config_error"], None),
        row("init", spec(sleeps, none.clone(), init), &["config_error"], None),
        row("liveness", spec(sleeps, liveness, none), &["app_error"], Some(137)),
        row("deleted", shell("sleep 600"), &["deleted"], None),
        // Before condition DisruptionTarget (1.25) an eviction by the API looks like a deletion.
        row("evicted", shell("sleep 600"), &["deleted", "evicted"], None),
    ]
}

/// Each group loses its executor in its own way, and the event says so.
pub fn reasons_that_a_node_gives() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    let rows = rows();
    let groups: Vec<Value> = rows
        .iter()
        .map(|row| json!({ "group": row.group, "count": 1, "pod": { "spec": row.spec } }))
        .collect();
    let settings = json!({
        "app": "app", "executors": groups,
        "allocation": { "start_timeout": "20s", "image_timeout": "10s" },
        "failures": { "app": "off", "start": "off", "cluster": "off" },
    });
    scene.write("posse.yaml", &settings.to_string());
    let mut watch = scene.command("kubectl");
    watch.args(["-n", &scene.namespace, "get", "pods", "-w", "-o", "json"]);
    let saved = File::create(scene.dir.path().join("pods.json")).unwrap();
    let watch = Running(watch.stdout(saved).stderr(Stdio::null()).spawn().unwrap());
    let mut run = scene.command("posse");
    run.args(["run", "-f", "posse.yaml", "--namespace", &scene.namespace]);
    let log = File::create(scene.dir.path().join("posse.log")).unwrap();
    run.args(["--events", "events.jsonl"]).stdout(Stdio::null()).stderr(log);
    let mut run = Running(run.spawn().unwrap());
    for group in ["deleted", "evicted"] {
        let pod = wait_value(PATIENCE, "the pod to be lost", || {
            let pods = scene.executors();
            let mut of_group = pods.iter().filter(|pod| is_ready(pod));
            let found = of_group.find(|pod| pod["metadata"]["labels"]["posse.dev/group"] == *group);
            found.map(|pod| name_of(pod).to_owned()).ok_or("none runs")
        });
        match group {
            "evicted" => scene.evict(&pod),
            _ => drop(scene.kubectl(&["delete", "pod", &pod, "--wait=false"])),
        }
    }
    let lost = wait_value(PATIENCE, "a loss in each group", || {
        let lost = losses(&scene);
        let missing: Vec<&str> =
            rows.iter().map(|row| row.group).filter(|group| !lost.contains_key(*group)).collect();
        if missing.is_empty() { Ok(lost) } else { Err(missing.join(" ")) }
    });
    let mut wrong = Vec::new();
    for row in &rows {
        let event = &lost[row.group];
        let reason = event["reason"].as_str().unwrap_or_default();
        let is_code = row.exit_code.is_none_or(|code| event["exit_code"] == code);
        if !row.want.contains(&reason) || !is_code {
            wrong.push(format!("{}: {event}", row.group));
        }
    }
    let pid = rustix::process::Pid::from_child(&run.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(run.0.wait().unwrap().success(), "posse ends well");
    wait_for(PATIENCE, "no executor to be left", || scene.executors().is_empty());
    drop(watch);
    if let Some(path) = std::env::var_os(CAPTURE) {
        fs::copy(scene.dir.path().join("pods.json"), &path).unwrap();
        fs::copy(scene.dir.path().join("events.jsonl"), format!("{}.events", path.display()))
            .unwrap();
    }
    assert_eq!(wrong, [""; 0]);
    scene.finish();
}

/// The first loss of each group.
fn losses(scene: &Scene) -> BTreeMap<String, Value> {
    let text = fs::read_to_string(scene.dir.path().join("events.jsonl")).unwrap_or_default();
    let mut first = BTreeMap::new();
    for event in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if event["event"] == "executor_lost" {
            let group = event["group"].as_str().unwrap_or_default().to_owned();
            first.entry(group).or_insert(event);
        }
    }
    first
}
