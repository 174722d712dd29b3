//! Each fault of the embedded cluster, on a server of its own: the target is reached, no executor
//! is created twice, and each loss is reported once.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::embedded::Embedded;
use crate::support::posse::Posse;
use crate::support::scene::{Scene, executor_id, is_running, uid_of};
use crate::support::server::End;
use crate::support::wait::{PATIENCE, stays_true, wait_for, wait_value};

/// The targets are small: the ids show whether too many creates were sent.
const N: u32 = 10;

/// The target is reached, and each executor is reported as running once.
#[track_caller]
fn check_all_run(scene: &Scene<'_>, posse: &Posse) -> Vec<Value> {
    let pods = scene.wait_running(N as usize);
    posse.wait_events("executor_running", N as usize);
    assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0], "a refusal is no loss");
    pods
}

pub fn fault_latency_and_429() {
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

pub fn fault_500_after_commit() {
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

/// Ends each of the first three in turn, and waits for its replacement.
fn replace_three(scene: &Scene<'_>, posse: &Posse) {
    for pod in scene.wait_running(N as usize).iter().take(3) {
        scene.end(pod, End::Exit(1));
        posse.wait_event("executor_lost", |event| event["uid"] == uid_of(pod));
        scene.wait_running(N as usize);
    }
    let lost = posse.events_of("executor_lost");
    assert_eq!(lost.len(), 3, "each is told once: {lost:?}");
}

pub fn fault_dropped_watches() {
    let own = Embedded::start_with(&["--fault", "drop-watch=300"]);
    let scene = Scene::new(&own);
    let posse = scene.run().executors(N).start();
    check_all_run(&scene, &posse);
    replace_three(&scene, &posse);
    // No more than were needed.
    posse.wait_events("executor_requested", N as usize + 3);
    posse.stop();
    scene.finish();
}

/// The poll replaces the silent watch.
pub fn fault_silent_watch() {
    let own = Embedded::start_with(&["--fault", "silent-watch=100"]);
    let scene = Scene::new(&own);
    let settings = json!({"allocation": {"poll_interval": "1s"}});
    let posse = scene.run().executors(N).settings(settings).start();
    check_all_run(&scene, &posse);
    replace_three(&scene, &posse);
    posse.stop();
    scene.finish();
}

/// The server remembers two changes and cuts its watches: 410 and a new LIST, many times.
pub fn fault_compacted_history() {
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

/// A quota below the target: posse uses the whole quota, and the refused creates use up no id.
pub fn fault_quota() {
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

/// With any faults: lost executors are replaced, each is reported once, and at the end the state is
/// as without faults.
#[track_caller]
fn check_replaces(scene: &Scene<'_>, posse: &Posse) {
    replace_three(scene, posse);
    let ids: Vec<u64> = scene.wait_running(N as usize).iter().map(executor_id).collect();
    assert_eq!(
        ids,
        (4..=u64::from(N) + 3).collect::<Vec<_>>(),
        "no id is lost, none is used twice"
    );
}

/// Writes fail before and after they take effect, with an answer and without one.
pub fn fault_errors_and_cuts() {
    let own = Embedded::start();
    own.fault(&json!({"create-500": 20, "create-500-after": 20, "cut-before": 10, "cut-after": 10,
        "write-500": 20, "write-500-after": 20}));
    let scene = Scene::new(&own);
    let run = || scene.run().executors(N).instance("cuts");
    let posse = run().start();
    check_all_run(&scene, &posse);
    check_replaces(&scene, &posse);
    own.fault(&json!({}));
    // A clean stop would wait for a minute, because a cut create may still take effect.
    posse.kill();
    let heir = run().start();
    heir.wait_ready();
    scene.wait_running(N as usize);
    heir.stop();
    scene.finish();
}

pub fn fault_429_on_everything() {
    let own = Embedded::start();
    let scene = Scene::new(&own);
    let posse = scene.run().executors(2).start();
    let before = scene.wait_running(2);
    posse.wait_ready();
    own.fault(&json!({"all-429": 100, "retry-after": 1}));
    posse.scale("default", 4);
    stays_true(Duration::from_secs(1), "a run that is refused everything", || !posse.is_over());
    wait_for(PATIENCE, "the fault to be met", || posse.stderr().contains("429"));
    own.fault(&json!({}));
    let after = scene.wait_running(4);
    assert!(before.iter().all(|pod| after.iter().any(|other| uid_of(other) == uid_of(pod))));
    assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0], "a refusal is no loss");
    posse.stop();
    scene.finish();
}

/// Watches are refused with 410, by an event and by the status of the answer.
pub fn fault_gone_watches() {
    let own = Embedded::start();
    let scene = Scene::new(&own);
    let posse = scene.run().executors(N).start();
    check_all_run(&scene, &posse);
    for (fault, n_before) in [("gone", 0), ("gone-status", 1)] {
        own.fault(&json!({"drop-watch": 100, fault: 1}));
        wait_for(PATIENCE, "the watch to begin anew", || {
            posse.events_of("watch_restarted").len() > n_before
        });
        own.fault(&json!({}));
    }
    check_replaces(&scene, &posse);
    posse.stop();
    scene.finish();
}

/// LISTs show an older state while the watch shows the current one.
pub fn fault_stale_lists() {
    let own = Embedded::start_with(&["--fault", "stale-lists=700"]);
    let scene = Scene::new(&own);
    let settings = json!({"allocation": {"poll_interval": "1s"}});
    let posse = scene.run().executors(N).settings(settings).start();
    // The test's own LISTs are as old.
    own.fault(&json!({}));
    let pods = scene.wait_running(N as usize);
    own.fault(&json!({"stale-lists": 700}));
    for pod in pods.iter().take(3) {
        scene.end(pod, End::Exit(1));
        posse.wait_event("executor_lost", |event| event["uid"] == uid_of(pod));
    }
    let requested = || posse.events_of("executor_requested").len();
    stays_true(Duration::from_secs(3), "no more than needed", || requested() <= N as usize + 3);
    own.fault(&json!({}));
    scene.wait_running(N as usize);
    posse.wait_events("executor_requested", N as usize + 3);
    posse.wait_events("executor_lost", 3);
    posse.stop();
    scene.finish();
}

/// LISTs are truncated, cut or slow.
pub fn fault_broken_lists() {
    let own = Embedded::start();
    let scene = Scene::new(&own);
    let settings = json!({"allocation": {"poll_interval": "1s"}});
    let posse = scene.run().executors(N).settings(settings).start();
    check_all_run(&scene, &posse);
    for faults in
        [json!({"truncated-list": 100}), json!({"cut-list": 100}), json!({"slow-body": 500})]
    {
        let n_before = n_failed_polls(&posse);
        own.fault(&faults);
        if faults["slow-body"].is_null() {
            wait_for(PATIENCE, "a list that failed", || n_failed_polls(&posse) > n_before);
        }
        stays_true(Duration::from_millis(500), "a run without lists", || !posse.is_over());
    }
    own.fault(&json!({}));
    check_replaces(&scene, &posse);
    posse.stop();
    scene.finish();
}

/// How often posse reported a failed LIST.
fn n_failed_polls(posse: &Posse) -> usize {
    posse.stderr().lines().filter(|line| line.contains("the poll failed")).count()
}

/// A webhook strips our labels, so that we would not see the pods: they are deleted, and the
/// template counts as refused.
pub fn fault_stripped_labels() {
    let own = Embedded::start_with(&["--fault", "strip-labels=posse.dev/"]);
    let scene = Scene::new(&own);
    let posse = scene.run().executors(20).start();
    posse.expect_exit(4);
    assert!(!posse.events_of("create_refused").is_empty(), "it says why");
    wait_for(PATIENCE, "the blind pods to go", || scene.pods().is_empty());
    scene.finish();
}

/// The server refuses connections for a while; changes made meanwhile take effect later.
pub fn fault_refused_connections() {
    let own = Embedded::start();
    let scene = Scene::new(&own);
    let posse = scene.run().executors(2).start();
    let before = scene.wait_running(2);
    posse.wait_ready();
    // Longer than a busy machine takes to start the command that makes posse send a request.
    own.fault(&json!({"refuse": 10_000}));
    posse.scale("default", 4);
    wait_for(PATIENCE, "a refused connection", || posse.stderr().contains("refused"));
    let after = wait_value(PATIENCE, "the server to be back", || {
        scene.admin.try_call("GET", "/version", "application/json", &Value::Null)
    });
    assert_eq!(after.code, 200);
    let after = scene.wait_running(4);
    assert_eq!(after.iter().map(executor_id).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(before.iter().all(|pod| after.iter().any(|other| uid_of(other) == uid_of(pod))));
    assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0], "an outage is no loss");
    posse.stop();
    scene.finish();
}

/// The server's clock is hours off: posse takes nothing for expired or not yet valid.
pub fn fault_clock_skew() {
    let own = Embedded::start_with(&["--fault", "clock-skew=-7200"]);
    let scene = Scene::new(&own);
    let posse = scene.run().executors(N).start();
    check_all_run(&scene, &posse);
    own.fault(&json!({"clock-skew": 7200}));
    check_replaces(&scene, &posse);
    posse.stop();
    scene.finish();
}

/// Two nodes, and executors without a toleration period for a lost node.
fn on_two_nodes() -> Embedded {
    Embedded::start_with(&["--nodes", "2"])
}

fn impatient(scene: &Scene<'_>) {
    let mut template = scene.template();
    template["spec"]["tolerations"] = ["unreachable", "not-ready"]
        .map(|why| {
            json!({"key": format!("node.kubernetes.io/{why}"), "operator": "Exists",
                "effect": "NoExecute", "tolerationSeconds": 0})
        })
        .to_vec()
        .into();
    fs::write(scene.file("pod.json"), template.to_string()).expect("writable");
}

/// A node is lost with its executors: they stay terminating, and are replaced on the other node.
pub fn fault_lost_node() {
    let own = on_two_nodes();
    let scene = Scene::new(&own);
    impatient(&scene);
    let posse = scene.run().executors(4).start();
    let before = scene.wait_running(4);
    let lost: Vec<&Value> =
        before.iter().filter(|pod| pod["spec"]["nodeName"] == "dev-node-1").collect();
    assert_eq!(lost.len(), 2, "they are on both nodes");
    own.fault(&json!({"node-loss": "dev-node-1", "node-grace": 200}));
    for pod in &lost {
        let told = posse.wait_event("executor_lost", |event| event["uid"] == uid_of(pod));
        assert_eq!(told["budget"], "cluster", "{told}");
    }
    wait_for(PATIENCE, "successors on the other node", || {
        let pods = scene.ours();
        let there =
            pods.iter().filter(|pod| is_running(pod) && pod["spec"]["nodeName"] == "dev-node-0");
        there.count() == 4
    });
    assert_eq!(scene.ours().len(), 6, "the lost ones hang");
    own.fault(&json!({}));
    let after = scene.wait_running(4);
    assert!(lost.iter().all(|pod| !after.iter().any(|other| uid_of(other) == uid_of(pod))));
    assert_eq!(posse.events_of("executor_lost").len(), 2, "each is told once");
    posse.stop();
    scene.finish();
}

/// A node returns before its pods were evicted: nothing is lost.
pub fn fault_lost_node_returns() {
    let own = on_two_nodes();
    let scene = Scene::new(&own);
    let posse = scene.run().executors(4).start();
    let before = scene.wait_running(4);
    own.fault(&json!({"node-loss": "dev-node-1", "node-grace": 100}));
    let ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    let n_ready = || scene.ours().iter().filter(|pod| ready(pod)).count();
    wait_for(PATIENCE, "two that are not ready", || n_ready() == 2);
    own.fault(&json!({}));
    wait_for(PATIENCE, "all to be ready again", || n_ready() == 4);
    let uids = |pods: &[Value]| pods.iter().map(|pod| uid_of(pod).to_owned()).collect::<Vec<_>>();
    assert_eq!(uids(&scene.wait_running(4)), uids(&before));
    assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0]);
    posse.stop();
    scene.finish();
}
