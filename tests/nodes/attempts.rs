//! Attempts of a submitted driver: which ends count, and when the Job ends.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::nodes::cluster::{
    PATIENCE, Scene, UNTIL_GO, end_of, expect, name_of, node_of, root, shown,
};
use crate::nodes::machine::{node, share_nodes};
use crate::nodes::wait::{wait_for, wait_value};

fn executors(n: u32) -> Value {
    json!([{ "count": n, "template": "deploy/executor.yaml" }])
}

/// Submits, follows to the end, and returns the number of attempts. posse's words are not expected
/// in the log: on a machine with several kubelets each removes the others' logs every minute.
#[track_caller]
fn follow(scene: &Scene, code: i32) -> usize {
    let output = scene.posse(&["submit", "-f", "posse.yaml", "--create-rbac", "--logs"]);
    expect(&output, code, &[]);
    let job = scene.job("app");
    assert_eq!(job["metadata"]["annotations"]["posse.dev/exit-code"], code.to_string(), "{job}");
    let job = failed_job(scene);
    let n = attempts(&job);
    assert_eq!(job["spec"]["backoffLimit"].as_u64(), n.checked_sub(1).map(|n| n as u64), "{job}");
    n
}

/// The Job when it has failed.
fn failed_job(scene: &Scene) -> Value {
    wait_value(PATIENCE, "the job to fail", || {
        let job = scene.job("app");
        if end_of(&job) == Some("Failed") { Ok(job) } else { Err(job["status"].to_string()) }
    })
}

/// How many attempts a Job counts.
fn attempts(job: &Value) -> usize {
    job["status"]["failed"].as_u64().map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

/// Exit code 4 would occur again: one attempt, although there are retries.
pub fn final_exit_code_is_one_attempt() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    scene.write_driver("app", "exit 4", json!({ "retries": 3 }), executors(1));
    assert_eq!(follow(&scene, 4), 1);
    scene.finish();
}

/// One retry makes two attempts, and the end is the last one's.
pub fn retries_are_spent() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    scene.write_driver("app", "exit 7", json!({ "retries": 1 }), executors(1));
    assert_eq!(follow(&scene, 7), 2);
    scene.finish();
}

/// Without the permission to change its Job, posse leaves the count to the Job: plain retries.
pub fn retries_without_permission() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    let rbac = std::fs::read_to_string(root().join("deploy/rbac.yaml")).unwrap();
    scene.write("rbac.yaml", &rbac.replace("verbs: [get, patch]", "verbs: [get]"));
    scene.kubectl(&["apply", "-f", "rbac.yaml"]);
    let script = "echo the driver ran > /dev/termination-log; exit 7";
    scene.write_driver("app", script, json!({ "retries": 0 }), executors(1));
    let output = scene.posse(&["submit", "-f", "posse.yaml"]);
    expect(&output, 7, &[]);
    let pods = scene.drivers();
    assert_eq!(pods.len(), 1, "{}", shown(&pods));
    let ran = |pod: &&Value| pod["status"].to_string().contains("the driver ran");
    assert_eq!(pods.iter().filter(ran).count(), 1, "{}", json!(pods));
    assert!(pods.iter().all(|pod| pod["status"].to_string().contains("\"exitCode\":7")));
    scene.finish();
}

/// A driver that dies together with posse cannot end the Job; the next attempt does, before it starts
/// the driver.
pub fn killed_together_with_posse() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    let script = "echo the driver ran > /dev/termination-log; sleep 600";
    scene.write_driver("app", script, json!({ "retries": 0 }), executors(1));
    scene.submit();
    let driver = scene.wait_application("", 1, PATIENCE);
    let id = driver["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().to_owned();
    node(node_of(&driver)).kill_container(&id);
    let job = failed_job(&scene);
    assert_eq!(job["metadata"]["annotations"]["posse.dev/exit-code"], "137", "{job}");
    let pods = scene.drivers();
    let ran = |pod: &&Value| pod["status"].to_string().contains("the driver ran");
    assert_eq!((attempts(&job), pods.iter().filter(ran).count()), (2, 1), "{}", json!(pods));
    scene.finish();
}

/// The driver ends with 0 while its executors ignore TERM for longer than `shutdown.timeout`: the Job
/// is complete, and does not run the driver again.
pub fn clean_end_with_slow_executors() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    let slow = json!([{ "count": 2, "pod": { "spec": {
        "terminationGracePeriodSeconds": 30,
        "containers": [{ "name": "worker", "image": "busybox:1.36",
            "command": ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"] }],
    }}}]);
    let script = "until test -e /tmp/go; do sleep 1; done; echo done";
    scene.write_driver("app", script, json!({}), slow);
    scene.submit();
    let driver = scene.wait_application("", 2, PATIENCE);
    scene.kubectl(&["exec", name_of(&driver), "-c", "driver", "--", "touch", "/tmp/go"]);
    wait_for(PATIENCE, "the job to be complete", || scene.job("app")["status"]["succeeded"] == 1);
    assert_eq!(scene.drivers().len(), 1);
    wait_for(PATIENCE, "the executors to end", || scene.pods().len() == 1);
    scene.finish();
}

/// More than a driver without retries could fail.
const DRAINS_MIN: u32 = 3;
const DRAINS_MAX: u32 = 10;
/// A newer server's Job brings a driver back 10 s after the first drain, and each time twice as late. It counts
/// every pod that ended since its last success, also those that its `podFailurePolicy` ignores.
const DRAINING_LIMIT: Duration = Duration::from_secs(60);

/// A drain is no failure, however often: as often as the Job brings the driver back within the limit.
pub fn drained_again_and_again() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    let driver = json!({ "retries": 0 });
    scene.write_driver("app", UNTIL_GO, driver, executors(1));
    scene.submit();
    let mut driver = scene.wait_application("", 1, PATIENCE);
    let begin = Instant::now();
    for n in 0..DRAINS_MAX {
        if n >= DRAINS_MIN && begin.elapsed() > DRAINING_LIMIT {
            break;
        }
        scene.evict(name_of(&driver));
        driver = scene.wait_application(name_of(&driver), 1, PATIENCE);
    }
    let job = scene.job("app");
    assert!(job["status"]["conditions"].is_null(), "{job}");
    scene.kubectl(&["exec", name_of(&driver), "-c", "driver", "--", "touch", "/tmp/go"]);
    wait_for(PATIENCE, "the job to be complete", || scene.job("app")["status"]["succeeded"] == 1);
    scene.finish();
}
