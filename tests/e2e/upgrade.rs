//! A run that changes its program: to this build from an older release, and back.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::e2e::restarts::leases_path;
use crate::support::posse::Posse;
use crate::support::scene::{APP, Scene, executor_id};
use crate::support::server::{End, Server};
use crate::support::wait::{PATIENCE, wait_value};

/// More than one LIST of a small page has.
const EXECUTORS: u32 = 50;

const TASKS: &str = "/v1/groups/tasks/executors";

/// The executors of the group `default`, as uid and id.
fn executors(scene: &Scene<'_>, n_pods: usize) -> BTreeSet<(String, u64)> {
    let pods = scene.wait_running(n_pods);
    let ours = pods.iter().filter(|pod| pod["metadata"]["labels"]["posse.dev/group"] == "default");
    let facts = ours.map(|pod| {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        (uid, executor_id(pod))
    });
    facts.collect()
}

/// Adds both tasks, as a driver does after each start of posse; returns the state of each and its executor.
fn tasks(posse: &Posse) -> Vec<(Value, Value, Value)> {
    let tasks = json!({"executors": [{"key": "ends"}, {"key": "runs"}]});
    let (code, body) = posse.call("POST", TASKS, &tasks);
    assert_eq!(code, 200, "{body}");
    let states = body["executors"].as_array().expect("a list").iter();
    states
        .map(|task| (task["key"].clone(), task["state"].clone(), task["executor"].clone()))
        .collect()
}

#[track_caller]
fn wait_tasks(
    posse: &Posse,
    what: &str,
    fits: impl Fn(&[(Value, Value, Value)]) -> bool,
) -> Vec<(Value, Value, Value)> {
    wait_value(PATIENCE, what, || {
        let tasks = tasks(posse);
        if fits(&tasks) { Ok(tasks) } else { Err(format!("{tasks:?}")) }
    })
}

/// `kill -9`, and the other build goes on: nothing is lost, no id is given twice, and the records of tasks are known.
pub fn upgraded_and_back(server: &dyn Server) {
    let Some(old) = env::var_os("POSSE_OLD").map(PathBuf::from) else {
        println!(
            "NOT TESTED: an upgrade of what runs: POSSE_OLD names no older posse; .ci/upgrade does"
        );
        return;
    };
    let scene = Scene::new(server);
    let run = |is_old: bool| {
        let settings = json!({"executors": [
            {"group": "default", "count": EXECUTORS, "template": "pod.json"},
            {"group": "tasks", "count": 0, "max": 4, "template": "pod.json"},
        ]});
        let run = scene.run().settings(settings).instance("upgrade");
        if is_old { run.program(&old) } else { run }
    };
    let mut posse = run(true).start();
    let n = EXECUTORS as usize;
    scene.wait_running(n);
    posse.wait_ready();
    tasks(&posse);
    let pods = scene.wait_running(n + 2);
    let first = pods.iter().find(|pod| pod["metadata"]["labels"]["posse.dev/key"] == "ends");
    scene.end(first.expect("the pod of the task"), End::Exit(0));
    let known = wait_tasks(&posse, "one task to end", |tasks| {
        tasks[0].1 == "succeeded" && tasks[1].1 == "running"
    });
    let mut n_default = EXECUTORS;
    let mut before = executors(&scene, n + 1);
    for is_old in [false, true, false] {
        posse.kill();
        posse = run(is_old).start();
        posse.wait_ready();
        wait_tasks(&posse, "the tasks to be known", |tasks| *tasks == known);
        // After a restart the file's count is the target.
        n_default += 1;
        posse.scale("default", n_default);
        let after = executors(&scene, n_default as usize + 1);
        assert!(after.is_superset(&before), "all are adopted: {before:?} {after:?}");
        let new: Vec<u64> = after.difference(&before).map(|(_, id)| *id).collect();
        let newest = before.iter().map(|(_, id)| *id).max().expect("executors");
        assert!(new.len() == 1 && new[0] > newest, "ids go on after {newest}: {new:?}");
        assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0]);
        posse.wait_events("task_ended", 1);
        before = after;
    }
    posse.stop();
    scene.finish();
}

/// A later format may count its ids in another way: such a Lease is neither taken nor changed.
pub fn newer_lease_is_left_alone(server: &dyn Server) {
    let scene = Scene::new(server);
    let leases = leases_path(&scene);
    let name = format!("{APP}-newer");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {
        "name": name,
        "labels": {"app.kubernetes.io/managed-by": "posse", "app.kubernetes.io/component": "instance",
            "posse.dev/app": APP, "posse.dev/instance": "newer"},
        "annotations": {"posse.dev/format": "2", "posse.dev/id-high-water": "7"},
    }, "spec": {"holderIdentity": "nobody", "leaseDurationSeconds": 1}});
    let made = scene.admin.post(&leases, &lease).ok();
    let posse = scene.run().executors(1).instance("newer").start();
    wait_value(PATIENCE, "the newer format to be told", || {
        let words = posse.stderr();
        if words.contains("a newer posse has written it (format 2") { Ok(()) } else { Err(words) }
    });
    posse.kill();
    let path = format!("{leases}/{name}");
    let after = scene.admin.get(&path).ok();
    assert_eq!(after["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    assert_eq!(scene.ours(), [] as [Value; 0]);
    scene.admin.delete(&path, &json!({})).ok();
    scene.finish();
}
