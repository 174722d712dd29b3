//! `decommission: {signal: TERM}`: the drain period is the grace period of the pod.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::posse::Posse;
use crate::support::scene::{Scene, executor_id, is_running, name_of};
use crate::support::server::{End, Server};
use crate::support::wait::{PATIENCE, wait_value};

fn by_term(after: &str, count: u32) -> Value {
    json!({"executors": [{"group": "default", "count": count, "template": "pod.json",
        "decommission": {"signal": "TERM", "after": after}}]})
}

/// A lower target deletes the pod at once, with the drain period instead of its own grace period.
pub fn term_at_the_beginning_of_the_drain(server: &dyn Server) {
    let scene = Scene::new(server);
    drains_by_term(&scene, &scene.run().settings(by_term("5m", 2)).start());
    // The same in a group that a call makes.
    let posse = scene.run().settings(json!({"executors": []})).start();
    posse.wait_ready();
    let mut group = by_term("5m", 2)["executors"][0].take();
    let group = json!({"template": scene.template(), "target": group["count"].take(),
        "decommission": group["decommission"].take()});
    posse.control().put("default", &group).ok();
    drains_by_term(&scene, &posse);
    scene.finish();
}

fn drains_by_term(scene: &Scene<'_>, posse: &Posse) {
    scene.hold_deletes(true);
    let before = scene.wait_running(2);
    posse.wait_event("executor_running", |event| event["executor"] == 2);
    posse.scale("default", 1);
    let told = posse.wait_event("executor_draining", |event| event["cause"] == "scaled_down");
    let victim = before.iter().find(|pod| told["executor"] == executor_id(pod)).expect("its pod");
    wait_value(PATIENCE, "its delete with the drain period", || {
        let pod = scene.pod(name_of(victim)).expect("it is there");
        let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0);
        let mark = &pod["metadata"]["annotations"]["posse.dev/draining"];
        if (290..=300).contains(&grace) && mark.is_string() { Ok(()) } else { Err(pod) }
    });
    scene.end(victim, End::Exit(0));
    scene.hold_deletes(false);
    posse.wait_event("executor_deleted", |event| event["cause"] == "scaled_down");
    assert_eq!(posse.events_of("executor_lost").len(), 0);
    scene.wait_running(1);
    posse.signal(Signal::TERM);
    posse.expect_exit(0);
}

/// Kubernetes 1.20 would take it from all behind a pod that has ended, if all were deleted by their labels.
pub fn a_stop_gives_each_executor_its_time(server: &dyn Server) {
    let scene = Scene::new(server);
    let settings = json!({"failures": {"keep_failed": 1}, "shutdown": {"timeout": "90s"}});
    let posse = scene.run().settings(settings).executors(3).start();
    scene.end(&scene.wait_running(3)[0], End::Exit(1));
    posse.wait_event("executor_lost", |_| true);
    scene.wait_running(3);
    scene.hold_deletes(true);
    posse.signal(Signal::TERM);
    wait_value(PATIENCE, "three that have time to end", || {
        let pods = scene.pods();
        let has_time = |pod: &&Value| pod["metadata"]["deletionGracePeriodSeconds"] == 90;
        if pods.iter().filter(has_time).count() == 3 { Ok(()) } else { Err(json!(pods)) }
    });
    scene.hold_deletes(false);
    posse.expect_exit(0);
    scene.finish();
}

/// The worker needs longer than its own grace period, and gets the time.
pub fn a_worker_finishes_its_work_on_term(server: &dyn Server) {
    let scene = Scene::new(server);
    let (begun, done) = (scene.file("begun"), scene.file("done"));
    scene.write_template("pod.json", |pod| {
        let script = format!(
            "trap 'touch {}; sleep 3; touch {}; exit 0' TERM; touch $SCENE/$POSSE_POD_NAME.up; \
             while :; do sleep 0.1; done",
            begun.display(),
            done.display()
        );
        pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
        pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    });
    let posse = scene.run().settings(by_term("2m", 1)).start();
    let pods = scene.wait_running(1);
    assert!(is_running(&pods[0]));
    posse.wait_event("executor_running", |_| true);
    posse.scale("default", 0);
    posse.wait_event("executor_deleted", |event| event["cause"] == "scaled_down");
    assert!(begun.exists() && done.exists(), "the signal came, and the time was enough");
    posse.stop();
    scene.finish();
}
