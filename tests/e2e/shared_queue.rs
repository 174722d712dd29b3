//! Two applications in one queue, with the test in the part of Kueue, and a group whose room is taken. Each executor is a
//! Workload of its own, so all that posse sees of a queue are gates, a condition and deletes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::queues::{GATE, admit, take_back};
use super::restarts::{in_pod, wait_failed};
use crate::support::posse::Posse;
use crate::support::proxy::{Proxy, ProxyAction, status};
use crate::support::scene::{Scene, is_over, is_running};
use crate::support::server::{End, Server, Who};
use crate::support::wait::{PATIENCE, wait_value};

/// What the API server says if Kueue is away.
const AWAY: &str =
    "Internal error occurred: failed calling webhook \"mpod.kb.io\": connect: connection refused";

/// A group of executors that wait for a queue.
fn group(scene: &Scene<'_>, count: u32, more: Value) -> Value {
    let mut pod = scene.template();
    pod["spec"]["schedulingGates"] = json!([{"name": GATE}]);
    let mut group = json!({"group": "default", "count": count, "pod": pod});
    for (key, value) in more.as_object().into_iter().flatten() {
        group[key] = value.clone();
    }
    group
}

/// The executors of an application that have not ended: those that run, and those that wait.
fn executors(scene: &Scene<'_>, app: &str) -> (Vec<Value>, Vec<Value>) {
    let mut pods = scene.ours();
    pods.retain(|pod| pod["metadata"]["labels"]["posse.dev/app"] == app && !is_over(pod));
    pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let waits = |pod: &Value| pod["spec"]["schedulingGates"].is_array();
    let (waiting, admitted): (Vec<Value>, Vec<Value>) = pods.into_iter().partition(waits);
    (admitted.into_iter().filter(is_running).collect(), waiting)
}

/// Waits until so many of an application run, and so many wait.
#[track_caller]
fn wait_counts(scene: &Scene<'_>, app: &str, want: (usize, usize)) -> (Vec<Value>, Vec<Value>) {
    wait_value(PATIENCE, &format!("{want:?} executors of {app} to run and to wait"), || {
        let found = executors(scene, app);
        let counts = (found.0.len(), found.1.len());
        if counts == want { Ok(found) } else { Err(format!("{counts:?}")) }
    })
}

#[track_caller]
fn wait_for_queue(posse: &Posse) {
    posse.wait_group("a wait for the queue", |group| group["waiting"] == "queue");
}

/// A queue that is held, resized, drained, deleted and made again, and that takes room from one application for the other.
pub fn two_applications_share_a_queue(server: &dyn Server) {
    let scene = Scene::new(server);
    let begin = |app: &str| {
        let executors = json!([group(&scene, 2, json!({}))]);
        let settings = json!({"app": app, "queue": "team-a", "executors": executors});
        scene.run().settings(settings).start()
    };
    let (low, high) = (begin("low"), begin("high"));

    // A quota of three.
    let (_, of_low) = wait_counts(&scene, "low", (0, 2));
    let (_, of_high) = wait_counts(&scene, "high", (0, 2));
    for pod in [&of_low[0], &of_low[1], &of_high[0]] {
        admit(&scene, pod);
    }
    let (run, _) = wait_counts(&scene, "low", (2, 0));
    wait_counts(&scene, "high", (1, 1));
    wait_for_queue(&high);

    // Held, or with a smaller quota: what runs runs on, and a successor waits.
    scene.end(&run[0], End::Exit(1));
    let (_, of_low) = wait_counts(&scene, "low", (1, 1));
    wait_for_queue(&low);
    // Released, with a larger one.
    admit(&scene, &of_low[0]);
    admit(&scene, &wait_counts(&scene, "high", (1, 1)).1[0]);
    let (of_low, _) = wait_counts(&scene, "low", (2, 0));
    let (of_high, _) = wait_counts(&scene, "high", (2, 0));

    // Drained: all are lost at once. Then it is deleted and made again, of which posse sees nothing.
    for pod in of_low.iter().chain(&of_high) {
        take_back(&scene, pod, "The ClusterQueue is stopped");
    }
    for (posse, app) in [(&low, "low"), (&high, "high")] {
        let (_, waiting) = wait_counts(&scene, app, (0, 2));
        wait_for_queue(posse);
        let is_taken = |lost: &&Value| lost["reason"] == "preempted" && lost["budget"] == "cluster";
        let lost = posse.events_of("executor_lost");
        assert_eq!(lost.iter().filter(is_taken).count(), 2, "{lost:?}");
        for pod in &waiting {
            admit(&scene, pod);
        }
    }
    let (of_low, _) = wait_counts(&scene, "low", (2, 0));
    wait_counts(&scene, "high", (2, 0));

    // The other application has a higher priority, and gets larger.
    high.scale("default", 3);
    wait_counts(&scene, "high", (2, 1));
    take_back(&scene, &of_low[0], "Preempted to accommodate a workload");
    let (_, of_low) = wait_counts(&scene, "low", (1, 1));
    admit(&scene, &wait_counts(&scene, "high", (2, 1)).1[0]);
    wait_counts(&scene, "high", (3, 0));
    assert_eq!(high.events_of("executor_lost").len(), 2, "{:?}", high.events_of("executor_lost"));
    high.stop();
    admit(&scene, &of_low[0]);
    wait_counts(&scene, "low", (2, 0));

    wait_counts(&scene, "low", (2, 0));
    low.stop();
    scene.finish();
}

/// Kueue is away: creates fail with the words of its webhook, and go on when it is back.
pub fn the_webhook_of_a_queue_is_away(server: &dyn Server) {
    let scene = Scene::new(server);
    let is_away = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&is_away);
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, _| {
        match request.is_create() && asked.load(Ordering::SeqCst) {
            true => ProxyAction::Reply(500, status(500, "InternalError", AWAY)),
            false => ProxyAction::Pass,
        }
    });
    let run = scene.run_with(&proxy.access()).instance("one");
    let executors = json!([group(&scene, 1, json!({}))]);
    let posse = run.settings(json!({"queue": "team-a", "executors": executors})).start();
    let refused = posse.wait_event("waiting", |event| event["for"] == "server");
    let words = refused["message"].as_str().unwrap_or_default();
    assert!(words.contains("failed calling webhook \"mpod.kb.io\""), "{words}");
    is_away.store(false, Ordering::SeqCst);
    admit(&scene, &wait_counts(&scene, "shop", (0, 1)).1[0]);
    wait_counts(&scene, "shop", (1, 0));
    // A stop would wait for a minute: nobody knows whether a create that failed so takes effect later.
    posse.kill();
    scene.cleanup(&["--instance", "one", "--yes"]);
    scene.wait_none();
    scene.finish_with_pods();
}

/// The room of a whole group is taken, and given again. Then its posse is killed and its driver fails: another run of the
/// application removes it, with Kueue's finalizer.
pub fn a_group_whose_room_is_taken(server: &dyn Server) {
    let scene = Scene::new(server);
    let mut group = group(&scene, 2, json!({"queue_group": true}));
    group["pod"]["metadata"]["finalizers"] = json!(["kueue.x-k8s.io/managed"]);
    let run = scene.run().settings(json!({"queue": "team-a", "executors": [group]}));
    let driver = scene.make_driver_pod("first");
    let posse = in_pod(run, &driver).start();
    for attempt in 1..=2 {
        let (_, waiting) = wait_counts(&scene, "shop", (0, 2));
        for pod in &waiting {
            admit(&scene, pod);
        }
        let (run, _) = wait_counts(&scene, "shop", (2, 0));
        if attempt == 1 {
            for pod in &run {
                take_back(&scene, pod, "Preempted to accommodate a workload");
            }
            let lost = posse.wait_events("executor_lost", 2);
            assert!(lost.iter().all(|lost| lost["reason"] == "preempted"), "{lost:?}");
        }
    }
    posse.kill();
    scene.end(&driver, End::Exit(1));
    wait_failed(&scene, &driver);
    let next = scene.make_driver_pod("next");
    let posse = in_pod(scene.run(), &next).start();
    scene.wait_none();
    posse.stop();
    for name in ["first", "next"] {
        scene.remove(&scene.pod(name).expect("it is there"));
    }
    scene.finish();
}
