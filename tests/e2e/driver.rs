//! Driver reports: heartbeats, disconnects, idle lists, decommission, and a driver that makes no
//! calls.

use std::time::Duration;

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::posse::{Posse, said};
use crate::support::scene::{Scene, describe, executor_id, is_running, name_of};
use crate::support::server::{End, Server, pods_path};
use crate::support::wait::{PATIENCE, is_same_time, stays_true, wait_for, wait_value};

const LEAVING: &str = "example.com/leaving";
const DRAINING: &str = "posse.dev/draining";

fn beat(posse: &Posse, executors: &[u64]) {
    let body = json!({"executors": executors});
    let (code, answer) = posse.call("POST", "/v1/executors/heartbeat", &body);
    assert_eq!(code, 200, "{answer}");
}

fn wait_known(posse: &Posse, n: usize) {
    wait_for(PATIENCE, "all to be known", || posse.events_of("executor_running").len() >= n);
}

/// A group with this drain period.
fn gentle(after: &str, count: u32) -> Value {
    let decommission = json!({"after": after, "label": format!("{LEAVING}=soon")});
    json!({"executors": [{"group": "default", "count": count, "template": "pod.json",
        "decommission": decommission}]})
}

/// An executor without heartbeats is lost, but none is while the driver or posse is paused.
pub fn heartbeats_that_stop(server: &dyn Server) {
    let scene = Scene::new(server);
    let settings = json!({"heartbeat": {"timeout": "3s"}});
    let posse = scene.run().executors(3).settings(settings).start();
    scene.wait_running(3);
    wait_known(&posse, 3);
    let body = json!({"executors": [1, 2, 77]});
    let (code, answer) = posse.call("POST", "/v1/executors/heartbeat", &body);
    assert_eq!((code, answer), (200, json!({"unknown": [77]})));
    let lost = wait_value(PATIENCE, "the silent one to be lost", || {
        beat(&posse, &[1]);
        posse.events_of("executor_lost").pop().ok_or("nobody is")
    });
    assert_eq!(
        (&lost["executor"], &lost["reason"], &lost["budget"], &lost["caused_by_app"]),
        (&json!(2), &json!("heartbeat_timeout"), &json!("app"), &json!(true)),
        "{lost}"
    );
    wait_value(PATIENCE, "a successor", || {
        beat(&posse, &[1]);
        let ours = scene.ours();
        let ids: Vec<u64> = ours.iter().filter(|p| is_running(p)).map(executor_id).collect();
        let is_replaced = ids.len() == 3 && ours.len() == 3 && !ids.contains(&2);
        if is_replaced { Ok(()) } else { Err(describe(&ours)) }
    });
    // From here on the driver sends nothing.
    let n_lost = || posse.events_of("executor_lost").len();
    stays_true(Duration::from_secs(5), "nobody is judged", || n_lost() == 1);
    // The driver continues; then posse itself is paused.
    beat(&posse, &[1]);
    posse.signal(Signal::STOP);
    stays_true(Duration::from_secs(4), "nobody is judged", || n_lost() == 1);
    posse.signal(Signal::CONT);
    for _ in 0..10 {
        beat(&posse, &[1]);
        stays_true(Duration::from_millis(400), "nobody is judged", || n_lost() == 1);
    }
    posse.stop();
    scene.finish();
}

fn disconnected(posse: &Posse, id: &str) -> u16 {
    posse.call("POST", &format!("/v1/executors/{id}/disconnected"), &json!({})).0
}

/// A disconnected executor is lost for the reason that its pod shows in time.
pub fn disconnect_with_a_reason(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(2).start();
    let pods = scene.wait_running(2);
    wait_known(&posse, 2);
    assert_eq!(disconnected(&posse, "1"), 200);
    scene.end(&pods[0], End::Exit(7));
    let found = posse.wait_event("executor_lost", |event| event["executor"] == 1);
    assert_eq!((&found["reason"], &found["exit_code"]), (&json!("app_error"), &json!(7)));
    scene.wait_running_ids(&[2, 3]);
    posse.stop();
    scene.finish();
}

/// If the pod shows no reason, the driver's report is the reason.
pub fn disconnect_without_a_reason(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(2).start();
    scene.wait_running(2);
    wait_known(&posse, 2);
    let call = |id: &str| disconnected(&posse, id);
    assert_eq!((call("2"), call("2")), (200, 200));
    assert_eq!((call("77"), call("x"), call("0")), (404, 400, 400));
    // Its replacement does not wait for the reason.
    scene.wait_running_ids(&[1, 2, 3]);
    assert_eq!(posse.events_of("executor_lost").len(), 0);
    let lost = posse.wait_event("executor_lost", |event| event["executor"] == 2);
    assert_eq!((&lost["reason"], &lost["budget"]), (&json!("disconnected"), &json!("cluster")));
    scene.wait_running_ids(&[1, 3]);
    assert_eq!(call("2"), 200, "it is known to be gone");
    assert_eq!(posse.events_of("executor_lost").len(), 1);
    posse.stop();
    scene.finish();
}

/// Busy executors are spared, idle ones go first, and a repeated kill changes nothing.
pub fn busy_and_idle(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(5).start();
    scene.wait_running(5);
    wait_known(&posse, 5);
    let kill = |words: &[&str]| -> Value {
        let (code, answer) =
            posse.call("POST", "/v1/executors/idle", &json!({"executors": [1, 2, 77]}));
        let unknown = answer["unknown"].as_array().expect("a list");
        assert!(code == 200 && unknown.contains(&json!(77)), "{code}: {answer}");
        let output = posse.ask(&[&["kill", "--json"], words].concat());
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let has_unknown = answer["unknown"] != json!([]);
        assert_eq!(output.status.code(), Some(has_unknown.into()), "{}", said(&output));
        answer
    };
    let answer = |killed: &[u64], busy: &[u64], unknown: &[u64], target: u32| json!({"killed": killed, "busy": busy, "unknown": unknown, "target": target});
    assert_eq!(kill(&["1", "5", "99", "--no-replace"]), answer(&[1], &[5], &[99], 4));
    let lost = posse.wait_event("executor_lost", |event| event["executor"] == 1);
    assert_eq!(lost["reason"], "killed", "{lost}");
    scene.wait_running(4);
    let again = kill(&["1", "5", "--no-replace"]);
    assert_eq!((&again["killed"], &again["target"]), (&json!([]), &json!(4)), "{again}");
    assert_eq!(kill(&["5", "--force", "--target", "3"]), answer(&[5], &[], &[], 3));
    scene.wait_running_ids(&[2, 3, 4]);
    posse.call("POST", "/v1/executors/idle", &json!({"executors": [2]}));
    posse.scale("default", 2);
    let left = scene.wait_running(2);
    assert_eq!(left.iter().map(executor_id).collect::<Vec<_>>(), [3, 4], "the idle one goes");
    posse.stop();
    scene.finish();
}

/// A draining executor is told so, also after a restart of posse, and is deleted at the end of the drain period.
pub fn decommission_over_a_restart(server: &dyn Server) {
    let scene = Scene::new(server);
    let run = |count| scene.run().settings(gentle("1h", count)).instance("leave").start();
    let first = run(2);
    let before = scene.wait_running(2);
    wait_known(&first, 2);
    first.scale("default", 1);
    let told = first.wait_event("executor_draining", |event| event["cause"] == "scaled_down");
    let pod = before.iter().find(|pod| told["executor"] == executor_id(pod)).expect("its pod");
    let marked = wait_value(PATIENCE, "the mark", || {
        let now = scene.pod(name_of(pod)).expect("it is there");
        let annotation = &now["metadata"]["annotations"][DRAINING];
        if annotation.is_string() { Ok(now) } else { Err(now["metadata"].clone()) }
    });
    let until = told["until"].as_str().expect("a time");
    let annotation = marked["metadata"]["annotations"][DRAINING].as_str();
    let at = annotation.and_then(|text| text.strip_prefix("scaled_down until ")).expect("a time");
    assert!(is_same_time(at, until), "{at} {until}");
    assert_eq!(marked["metadata"]["labels"][LEAVING], "soon");
    assert_eq!(first.status()["groups"][0]["draining"], 1);
    first.kill();
    let second = run(1);
    second.wait_ready();
    let group = second.wait_group("the second one to know", |group| group["running"] == 1);
    assert_eq!(group["draining"], 1, "it goes on: {group}");
    second.signal(Signal::KILL);
    // The hour is over in some seconds.
    let until = (Timestamp::now() + Duration::from_secs(3)).to_string();
    let annotation = json!({DRAINING: format!("scaled_down until {until}")});
    let path = format!("{}/{}", pods_path(&scene.namespace), name_of(pod));
    scene.admin.merge_patch(&path, &json!({"metadata": {"annotations": annotation}})).ok();
    let third = run(1);
    let gone = third.wait_event("executor_deleted", |_| true);
    assert_eq!((&gone["executor"], &gone["cause"]), (&told["executor"], &json!("scaled_down")));
    let time = gone["time"].as_str().expect("a time");
    assert!(time >= &*until || is_same_time(time, &until), "not before its time: {gone}, {until}");
    scene.wait_running(1);
    for posse in [&second, &third] {
        assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0], "it is no loss");
        assert_eq!(posse.events_of("executor_requested"), [] as [Value; 0]);
    }
    third.stop();
    scene.finish();
}

/// An executor that ends by itself while it drains is deleted at once and is no loss; an unforced
/// kill drains, a forced one does not.
pub fn drain_that_ends_early(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().settings(gentle("1h", 3)).start();
    let before = scene.wait_running(3);
    wait_known(&posse, 3);
    posse.scale("default", 2);
    posse.wait_event("executor_draining", |event| event["executor"] == 3);
    scene.end(&before[2], End::Exit(1));
    let gone = posse.wait_event("executor_deleted", |event| event["executor"] == 3);
    assert_eq!(gone["cause"], "scaled_down");
    assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0]);
    let kill = |words: &[&str]| {
        let output = posse.ask(&[&["kill", "--no-replace"], words].concat());
        assert!(output.status.success(), "{}", said(&output));
    };
    kill(&["1"]);
    let lost = posse.wait_event("executor_lost", |event| event["executor"] == 1);
    assert_eq!(lost["reason"], "killed");
    posse.wait_event("executor_draining", |event| {
        event["executor"] == 1 && event["cause"] == "killed"
    });
    stays_true(Duration::from_secs(1), "it has its time", || {
        scene.pod(name_of(&before[0])).is_some_and(|pod| is_running(&pod))
    });
    kill(&["1", "2", "--force"]);
    scene.wait_none();
    posse.wait_events("executor_lost", 2);
    posse.stop();
    scene.finish();
}

/// A driver without calls is lost: one that never made a call, and one that stopped.
pub fn silent_driver(server: &dyn Server) {
    const SILENCE: Duration = Duration::from_secs(4);
    let scene = Scene::new(server);
    let settings = json!({"driver": {"silence": format!("{}s", SILENCE.as_secs())}});
    let run = |name| {
        let run = scene.run().executors(1).settings(settings.clone()).instance(name);
        run.driver(&["sleep", "100"]).start()
    };
    let (mute, posse) = (run("mute"), run("heard"));
    mute.may_end();
    posse.wait_ready();
    stays_true(SILENCE * 3 / 2, "it is heard", || {
        beat(&posse, &[]);
        !posse.is_over()
    });
    posse.may_end();
    mute.expect_exit(14);
    posse.expect_exit(14);
    let words = posse.stderr();
    assert!(words.contains("driver.silence"), "it does not say why:\n{words}");
    scene.wait_none();
    scene.finish();
}
