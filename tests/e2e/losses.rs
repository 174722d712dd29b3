//! Executors that end by themselves, are deleted or evicted: each is reported once, with its
//! reason, and replaced.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::posse::Posse;
use crate::support::scene::{Scene, describe, executor_id, is_over, is_running, name_of, uid_of};
use crate::support::server::{End, Server, pods_path};
use crate::support::wait::{PATIENCE, stays_true, wait_for, wait_value};

/// The loss of this pod, which must be reported once and with this reason.
#[track_caller]
fn check_loss(posse: &Posse, pod: &Value, reason: &str, budget: &Value, code: &Value) {
    let uid = uid_of(pod);
    let lost = posse.wait_event("executor_lost", |event| event["uid"] == uid);
    assert_eq!(lost["reason"], reason, "{lost}");
    assert_eq!(&lost["budget"], budget, "{lost}");
    assert_eq!(&lost["exit_code"], code, "{lost}");
    assert_eq!(lost["executor"].as_u64(), Some(executor_id(pod)), "{lost}");
    assert_eq!(lost["caused_by_app"], *budget == json!("app"), "{lost}");
    let n = posse.events_of("executor_lost").iter().filter(|event| event["uid"] == uid).count();
    assert_eq!(n, 1, "one report for each uid");
}

pub fn replaced_after_failure(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(2).start();
    let before = scene.wait_running(2);
    posse.wait_event("executor_running", |event| event["executor"] == 2);
    scene.end(&before[0], End::Exit(7));
    check_loss(&posse, &before[0], "app_error", &json!("app"), &json!(7));
    let after = scene.wait_running(2);
    assert_eq!(after.iter().map(executor_id).collect::<Vec<_>>(), [2, 3]);
    posse.stop();
    scene.finish();
}

pub fn replaced_after_a_clean_end(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(1).start();
    let before = scene.wait_running(1);
    posse.wait_event("executor_running", |event| event["executor"] == 1);
    scene.end(&before[0], End::Exit(0));
    check_loss(&posse, &before[0], "completed", &json!("cluster"), &json!(0));
    scene.wait_running_ids(&[2]);
    posse.stop();
    scene.finish();
}

pub fn replaced_after_deletion(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(2).start();
    let before = scene.wait_running(2);
    posse.wait_event("executor_running", |event| event["executor"] == 2);
    scene.delete(&before[1]);
    let lost = posse.wait_event("executor_lost", |event| event["executor"] == 2);
    assert_eq!(
        (&lost["reason"], &lost["budget"]),
        (&json!("deleted"), &json!("cluster")),
        "{lost}"
    );
    let after = scene.wait_running(2);
    assert_eq!(after.iter().map(executor_id).collect::<Vec<_>>(), [1, 3]);
    posse.stop();
    scene.finish();
}

/// Somebody evicts an executor: the driver learns it while the executor still runs, and not if it asked for the end.
pub fn told_before_the_end(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.hold_deletes(true);
    let posse = scene.run().executors(2).start();
    let pods = scene.wait_running(2);
    posse.wait_events("executor_running", 2);
    let name = name_of(&pods[0]);
    let eviction = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata":
        {"name": name, "namespace": scene.namespace}, "deleteOptions": {"gracePeriodSeconds": 20}});
    let path = format!("{}/{name}/eviction", pods_path(&scene.namespace));
    scene.admin.post(&path, &eviction).ok();
    // A server that knows this condition says why the pod ends.
    let pod = scene.admin.get(path.trim_end_matches("/eviction")).ok();
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let is_told = conditions.into_iter().any(|condition| condition["type"] == "DisruptionTarget");
    let reason = if is_told { "evicted" } else { "deleted" };
    let ending = posse.wait_event("executor_ending", |_| true);
    let lost = posse.wait_event("executor_lost", |_| true);
    assert!(ending["seq"].as_u64() < lost["seq"].as_u64(), "{ending} {lost}");
    for field in ["executor", "uid", "node", "reason", "message"] {
        assert_eq!(ending[field], lost[field], "{ending}");
    }
    let left = moment(&ending["deadline"]).duration_since(moment(&ending["time"])).as_secs();
    assert!((1..=30).contains(&left), "{ending}");
    assert_eq!(ending["reason"], reason, "{ending}");
    wait_value(PATIENCE, "a successor beside the old one", || {
        let pods = scene.ours();
        let n = pods.iter().filter(|pod| is_running(pod)).count();
        if n == 2 { Ok(()) } else { Err(describe(&pods)) }
    });
    scene.hold_deletes(false);
    posse.scale("default", 1);
    posse.wait_event("executor_deleted", |_| true);
    // A server that sets the condition before it deletes shows the pod's own grace period first, and the sooner end after.
    let endings = posse.events_of("executor_ending");
    assert!(endings.iter().all(|told| told["uid"] == ending["uid"]), "{endings:?}");
    let is_sooner = |pair: &[Value]| moment(&pair[1]["deadline"]) < moment(&pair[0]["deadline"]);
    assert!(endings.windows(2).all(is_sooner), "{endings:?}");
    posse.stop();
    scene.finish();
}

fn moment(value: &Value) -> jiff::Timestamp {
    value.as_str().and_then(|at| at.parse().ok()).unwrap_or_else(|| panic!("no time: {value}"))
}

/// A terminating pod does not count as capacity: its replacement does not wait for its end.
pub fn replaced_while_terminating(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.hold_deletes(true);
    let posse = scene.run().executors(1).start();
    let before = scene.wait_running(1);
    posse.wait_event("executor_running", |event| event["executor"] == 1);
    scene.delete(&before[0]);
    wait_value(PATIENCE, "a successor beside the old one", || {
        let pods = scene.ours();
        let both = pods.len() == 2 && pods.iter().filter(|pod| is_running(pod)).count() == 1;
        if both { Ok(()) } else { Err(describe(&pods)) }
    });
    scene.hold_deletes(false);
    scene.wait_running(1);
    posse.stop();
    scene.finish();
}

/// `replace: gone` waits until the old pod is deleted.
pub fn replaced_when_gone(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.hold_deletes(true);
    let group = json!({"group": "default", "count": 1, "template": "pod.json", "replace": "gone"});
    let posse = scene.run().settings(json!({"executors": [group]})).start();
    let before = scene.wait_running(1);
    posse.wait_event("executor_running", |event| event["executor"] == 1);
    scene.delete(&before[0]);
    posse.wait_event("executor_lost", |event| event["executor"] == 1);
    posse.wait_event("waiting", |event| event["for"] == "replace_gone");
    stays_true(Duration::from_secs(1), "one pod at a time", || scene.ours().len() == 1);
    scene.hold_deletes(false);
    scene.wait_running_ids(&[2]);
    posse.stop();
    scene.finish();
}

/// Pending pods are not failed, and go first at a scale-down.
pub fn pending_goes_before_running(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(1).start();
    let running = scene.wait_running(1);
    posse.wait_event("executor_running", |_| true);
    scene.hold_starts(true);
    posse.scale("default", 3);
    wait_for(PATIENCE, "two pending ones", || posse.status()["groups"][0]["pending"] == 2);
    posse.scale("default", 1);
    let left = scene.wait_running(1);
    assert_eq!(uid_of(&left[0]), uid_of(&running[0]));
    posse.stop();
    scene.finish();
}

/// A spent budget ends the application: the driver is terminated, the exit code shows the reason,
/// and the last failed pods are retained.
pub fn spent_budget_ends_the_application(server: &dyn Server) {
    let scene = Scene::new(server);
    let (told, up) = (scene.file("told"), scene.file("up"));
    let script = format!(
        "trap 'touch {}; exit 0' TERM; touch {}; while :; do sleep 0.1; done",
        told.display(),
        up.display()
    );
    let settings = json!({"failures": {"app": 2, "keep_failed": 2}});
    let run = scene.run().executors(1).settings(settings).driver(&["sh", "-c", &script]);
    let posse = run.start();
    wait_for(PATIENCE, "the driver to listen", || up.exists());
    let mut failed = Vec::new();
    for id in 1..=3 {
        posse.wait_event("executor_running", |event| event["executor"] == id);
        if id == 3 {
            posse.may_end();
        }
        let pod = scene.ours().into_iter().find(|pod| executor_id(pod) == id);
        failed.push(pod.expect("it was told as running"));
        scene.end(&failed[failed.len() - 1], End::Exit(3));
        let lost = posse.wait_event("executor_lost", |event| event["executor"] == id);
        assert_eq!((&lost["budget"], &lost["exit_code"]), (&json!("app"), &json!(3)), "{lost}");
    }
    posse.expect_exit(11);
    assert!(told.exists(), "the driver was told to end");
    assert_eq!(posse.wait_event("budget_exhausted", |_| true)["budget"], "app");
    let left = scene.ours();
    assert!(left.iter().all(is_over) && left.len() == 2, "{}", describe(&left));
    let words = posse.stderr();
    let said = words.lines().find(|line| line.contains("retained failed pods")).unwrap_or_default();
    for pod in &left {
        assert!(said.contains(name_of(pod)), "{} is not named:\n{words}", name_of(pod));
    }
    scene.finish_with_pods();
}
