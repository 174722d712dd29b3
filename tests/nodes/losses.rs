//! The reasons for a loss that only a kubelet and a container runtime can give.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::nodes::cluster::{PATIENCE, Running, Scene, is_ready, name_of, said};
use crate::nodes::machine::share_nodes;
use crate::nodes::wait::{wait_for, wait_value};

/// If set, the statuses of all pods are saved in this file, for `fixtures/pods/nodes.jsonl`.
const CAPTURE: &str = "POSSE_CAPTURE";

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

/// Ends that the executor or its template causes.
fn own_ends() -> Vec<Row> {
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
                // containerd tells of the kill on its own way, which may come after that of the end:
                // then the reason is Error. So the container ends later than its process.
                &[
                    "sh",
                    "-c",
                    "dd if=/dev/zero of=/dev/null bs=200M; code=$?; sleep 30; exit $code",
                ],
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
    ]
}

/// Executors that others end. `out`: a folder of this machine, where all nodes are.
fn ended_by_others(out: &Path) -> Vec<Row> {
    let row = |group, spec, want, exit_code| Row { group, spec, want, exit_code };
    let waits = "trap 'echo TERM >> /out/said; exit 9' TERM; while :; do sleep 0.2; done";
    let hook = json!({
        "lifecycle": { "preStop": { "exec": {
            "command": ["sh", "-c", "sleep 2; echo hook >> /out/said"] } } },
        "volumeMounts": [{ "name": "out", "mountPath": "/out" }],
    });
    let volume = json!({ "terminationGracePeriodSeconds": 20,
        "volumes": [{ "name": "out", "hostPath": { "path": out } }] });
    let seat = json!({ "resources": { "limits": { SEAT: 1 } } });
    let seated = spec(&["sh", "-c", "sleep 600"], seat, json!({ "priorityClassName": LOW }));
    vec![
        // Before condition DisruptionTarget (1.25) a preemption and an eviction by the API look like
        // deletions.
        row("preempted", seated, &["deleted", "preempted"], None),
        row("deleted", shell("sleep 600"), &["deleted"], None),
        row("hook", spec(&["sh", "-c", waits], hook, volume), &["deleted"], None),
        row("evicted", shell("sleep 600"), &["deleted", "evicted"], None),
    ]
}

/// Only one pod can have it, so the scheduler preempts.
const SEAT: &str = "example.com/seat";
const LOW: &str = "posse-test-low";
const HIGH: &str = "posse-test-high";

/// One node offers a seat, and there are two classes of pods for it.
fn offer_a_seat(scene: &Scene) {
    for (name, value) in [(LOW, 1), (HIGH, 2)] {
        let class = json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": { "name": name }, "value": value });
        scene.write("class.json", &class.to_string());
        scene.kubectl(&["apply", "-f", "class.json"]);
    }
    // The kubelet writes the status too, so a write may come too late.
    wait_value(PATIENCE, "the node to offer a seat", || {
        let mut node = scene.get(&["node", "node-0"]);
        if node["status"]["allocatable"][SEAT] == "1" {
            return Ok(());
        }
        node["status"]["capacity"][SEAT] = json!("1");
        node["status"]["allocatable"][SEAT] = json!("1");
        scene.write("node.json", &node.to_string());
        let path = ["replace", "--raw", "/api/v1/nodes/node-0/status", "-f", "node.json"];
        Err(said(&scene.try_kubectl(&path)))
    });
}

/// Takes the seat from the executor that has it.
fn preempt(scene: &Scene) {
    let mut pod = spec(
        &["sh", "-c", "sleep 600"],
        json!({ "resources": { "limits": { SEAT: 1 } } }),
        json!({ "priorityClassName": HIGH, "restartPolicy": "Never" }),
    );
    pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "preemptor" }, "spec": pod });
    scene.write("preemptor.json", &pod.to_string());
    scene.kubectl(&["create", "-f", "preemptor.json"]);
}

/// A PodDisruptionBudget refuses the eviction, until it is deleted.
fn evict_past_a_budget(scene: &Scene, pod: &str) {
    let selector = json!({ "matchLabels": { "posse.dev/group": "evicted" } });
    let versions = scene.kubectl(&["api-versions"]);
    let version = if versions.contains("policy/v1\n") { "policy/v1" } else { "policy/v1beta1" };
    let budget = json!({ "apiVersion": version, "kind": "PodDisruptionBudget",
        "metadata": { "name": "all" }, "spec": { "minAvailable": 1, "selector": selector } });
    scene.write("budget.json", &budget.to_string());
    scene.kubectl(&["create", "-f", "budget.json"]);
    wait_for(PATIENCE, "the budget to be counted", || {
        scene.get(&["pdb", "all"])["status"]["currentHealthy"] == 1
    });
    let refused = scene.try_evict(pod);
    assert!(said(&refused).contains("disruption budget"), "{}", said(&refused));
    assert!(scene.get(&["pod", pod])["metadata"]["deletionTimestamp"].is_null());
    scene.kubectl(&["delete", "pdb", "all"]);
    scene.evict(pod);
}

/// Each group loses its executor in its own way, and the event says so.
pub fn reasons_that_a_node_gives() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    let mut rows = own_ends();
    rows.extend(ended_by_others(scene.dir.path()));
    let groups: Vec<Value> = rows
        .iter()
        .map(|row| json!({ "group": row.group, "count": 1, "pod": { "spec": row.spec } }))
        .collect();
    offer_a_seat(&scene);
    let settings = json!({
        "app": "reasons", "executors": groups,
        // Longer than a busy machine takes to start the others.
        "allocation": { "start_timeout": "90s" },
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
    for group in ["deleted", "hook", "evicted", "preempted"] {
        let pod = wait_value(PATIENCE, "the pod to be lost", || {
            let pods = scene.executors();
            let mut of_group = pods.iter().filter(|pod| is_ready(pod));
            let found = of_group.find(|pod| pod["metadata"]["labels"]["posse.dev/group"] == *group);
            found.map(|pod| name_of(pod).to_owned()).ok_or("none runs")
        });
        match group {
            "evicted" => evict_past_a_budget(&scene, &pod),
            "preempted" => preempt(&scene),
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
    let ended = run.0.wait().unwrap();
    let said = fs::read_to_string(scene.dir.path().join("posse.log")).unwrap();
    // A busy node takes longer than `shutdown.timeout` to end so many.
    assert!(matches!(ended.code(), Some(0 | 12)), "{ended}: {said}");
    wait_for(PATIENCE, "no executor to be left", || scene.executors().is_empty());
    drop(watch);
    save(&scene);
    assert_eq!(wrong, [""; 0]);
    let in_order = fs::read_to_string(scene.dir.path().join("said")).unwrap();
    assert!(in_order.starts_with("hook\nTERM\n"), "{in_order}");
    scene.kubectl(&["delete", "priorityclass", LOW, HIGH]);
    scene.finish();
}

/// Copies what was seen, if it is wanted.
fn save(scene: &Scene) {
    if let Some(path) = std::env::var_os(CAPTURE) {
        fs::copy(scene.dir.path().join("pods.json"), &path).unwrap();
        fs::copy(scene.dir.path().join("events.jsonl"), format!("{}.events", path.display()))
            .unwrap();
    }
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
