//! The embedded cluster's own faults, one server for each: the target is reached all the same,
//! no executor is made twice, and what goes is told once.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::embedded::Embedded;
use crate::common::posse::Posse;
use crate::common::scene::{Scene, executor_id, uid_of};
use crate::common::server::{End, Server};
use crate::common::wait::{PATIENCE, stays_true, wait_for};

/// Not all of them: what a storm would leave behind is seen by the ids.
const N: u32 = 10;

/// As many as wanted, and told as running, each once.
#[track_caller]
fn check_all_run(scene: &Scene<'_>, posse: &Posse) -> Vec<Value> {
    let pods = scene.wait_running(N as usize);
    wait_for(PATIENCE, "all to be known", || {
        posse.events_of("executor_running").len() == N as usize
    });
    assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0], "a refusal is no loss");
    pods
}

pub fn fault_latency_and_429(_server: &dyn Server) {
    let own = Embedded::start_with(&["--fault", "latency=30", "--fault", "create-429=40"]);
    let scene = Scene::new(&own);
    let posse = scene.run().executors(N).start();
    let pods = check_all_run(&scene, &posse);
    let ids: BTreeSet<u64> = pods.iter().map(executor_id).collect();
    assert_eq!(ids, (1..=u64::from(N)).collect(), "a 429 spends no id");
    assert!(posse.stderr().contains("429"), "the fault was not met");
    posse.stop();
    scene.finish();
}

pub fn fault_500_after_commit(_server: &dyn Server) {
    let own = Embedded::start_with(&["--fault", "create-500-after=60"]);
    let scene = Scene::new(&own);
    let posse = scene.run().executors(N).start();
    let pods = check_all_run(&scene, &posse);
    let ids: BTreeSet<u64> = pods.iter().map(executor_id).collect();
    assert_eq!(ids, (1..=u64::from(N)).collect(), "the same names again");
    assert!(posse.stderr().contains("500"), "the fault was not met");
    posse.stop();
    scene.finish();
}

/// Ends each of the first three in turn, and waits for its successor.
fn replace_three(scene: &Scene<'_>, posse: &Posse) {
    for pod in scene.wait_running(N as usize).iter().take(3) {
        scene.end(pod, End::Exit(1));
        posse.wait_event("executor_lost", |event| event["uid"] == uid_of(pod));
        scene.wait_running(N as usize);
    }
    let lost = posse.events_of("executor_lost");
    assert_eq!(lost.len(), 3, "each is told once: {lost:?}");
}

pub fn fault_dropped_watches(_server: &dyn Server) {
    let own = Embedded::start_with(&["--fault", "drop-watch=300"]);
    let scene = Scene::new(&own);
    let posse = scene.run().executors(N).start();
    check_all_run(&scene, &posse);
    replace_three(&scene, &posse);
    let requested = posse.events_of("executor_requested");
    assert_eq!(requested.len(), N as usize + 3, "no more than were needed: {requested:?}");
    posse.stop();
    scene.finish();
}

/// The poll is the witness.
pub fn fault_silent_watch(_server: &dyn Server) {
    let own = Embedded::start_with(&["--fault", "silent-watch=100"]);
    let scene = Scene::new(&own);
    let settings = json!({"allocation": {"poll_interval": "1s"}});
    let posse = scene.run().executors(N).settings(settings).start();
    check_all_run(&scene, &posse);
    replace_three(&scene, &posse);
    posse.stop();
    scene.finish();
}

/// A server that remembers two changes, and cuts its watches: 410 and a new list, many times.
pub fn fault_compacted_history(_server: &dyn Server) {
    let own = Embedded::start_with(&["--fault", "compact=2", "--fault", "drop-watch=300"]);
    let scene = Scene::new(&own);
    let posse = scene.run().executors(N).start();
    check_all_run(&scene, &posse);
    replace_three(&scene, &posse);
    posse.wait_event("watch_restarted", |event| {
        event["cause"].as_str().is_some_and(|cause| cause.contains("too old resource version"))
    });
    stays_true(Duration::from_secs(1), "as many as wanted", || scene.ours().len() >= N as usize);
    posse.stop();
    scene.finish();
}

/// A namespace with room for fewer: what fits is used, and no id is lost on the rest.
pub fn fault_quota(_server: &dyn Server) {
    let own = Embedded::start_with(&["--fault", "quota=4"]);
    let scene = Scene::new(&own);
    let posse = scene.run().executors(N).start();
    posse.wait_event("waiting", |event| event["for"] == "quota");
    let pods = scene.wait_running(4);
    scene.end(&pods[0], End::Exit(1));
    posse.wait_event("executor_lost", |event| event["uid"] == uid_of(&pods[0]));
    scene.wait_running(4);
    posse.stop();
    scene.finish();
}
