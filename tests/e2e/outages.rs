//! Servers and networks that fail: not reachable, paused, cut, too old, late, twice.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::access::Access;
use crate::support::proxy::{Proxy, ProxyAction, Request, status};
use crate::support::real::free_port;
use crate::support::scene::{Scene, executor_id, is_running, name_of, uid_of};
use crate::support::server::{Server, Who};
use crate::support::wait::{PATIENCE, stays_true, wait_for};

/// How long a create of unknown outcome stays open, and some more.
const UNKNOWN_LIMIT: Duration = Duration::from_secs(180);

fn ids(pods: &[Value]) -> BTreeSet<u64> {
    pods.iter().map(executor_id).collect()
}

/// A stopped API server does not end a run; changes made meanwhile take effect later.
pub fn server_stopped_and_back(server: &dyn Server) {
    let own = server.fresh();
    let scene = Scene::new(&*own);
    let posse = scene.run().executors(2).start();
    let before = scene.wait_running(2);
    posse.wait_ready();
    own.down();
    posse.scale("default", 4);
    stays_true(Duration::from_secs(2), "a run without its server", || !posse.is_over());
    assert_eq!(posse.status()["groups"][0]["target"], 4, "the control API answers");
    own.up();
    // A real server that starts answers 403 at first, and a refused create uses up an id.
    let after = scene.wait_running(4);
    assert_eq!(ids(&after).len(), 4);
    assert!(before.iter().all(|pod| after.iter().any(|other| uid_of(other) == uid_of(pod))));
    assert!(posse.events_of("executor_lost").is_empty(), "an outage is no loss");
    posse.stop();
    scene.finish();
}

/// A stop while the server is not reachable yet ends the process at once; nothing needs a cleanup.
pub fn stopped_while_starting(server: &dyn Server) {
    let scene = Scene::new(server);
    let nobody = Access { url: format!("http://127.0.0.1:{}", free_port()), ..Access::default() };
    let as_job = || scene.run_with(&nobody).executors(1).arg("--as-job");
    let plain = || scene.run_with(&nobody).executors(1);
    let without_lease = || plain().settings(json!({"lease": false}));
    for (run, signal, want) in [
        (plain(), Signal::TERM, 0),
        (as_job(), Signal::TERM, 143),
        (plain(), Signal::INT, 130),
        (without_lease(), Signal::INT, 130),
    ] {
        let posse = run.start();
        wait_for(PATIENCE, "a first try", || posse.stderr().contains("refused"));
        stays_true(Duration::from_millis(500), "trying again", || !posse.is_over());
        posse.signal(signal);
        // Without the signal it would try for 30 s, and end with 3.
        posse.expect_exit(want);
    }
    scene.finish();
}

/// A server is paused with all its connections open: nothing is done twice after it continues.
pub fn frozen_server(server: &dyn Server) {
    let own = server.fresh();
    let scene = Scene::new(&*own);
    let posse = scene.run().executors(2).start();
    scene.wait_running(2);
    posse.wait_ready();
    own.freeze();
    posse.scale("default", 4);
    stays_true(Duration::from_secs(5), "a run on ice", || !posse.is_over());
    assert_eq!(posse.status()["groups"][0]["target"], 4, "the control API answers");
    own.thaw();
    assert_eq!(ids(&scene.wait_running(4)).len(), 4);
    assert!(posse.events_of("executor_lost").is_empty(), "a pause is no loss");
    posse.stop();
    scene.finish();
}

/// The watch is cut; events in the gap are not missed. Then two 410s, one as an event and one as a
/// status, each cause a new LIST.
pub fn watch_cut_and_410(server: &dyn Server) {
    let scene = Scene::new(server);
    // 0: pass; 200: answer the next watch with an ERROR event; 410: with that status.
    let mood = Arc::new(AtomicU16::new(0));
    let next = Arc::clone(&mood);
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, _| {
        if !request.is_watch() {
            return ProxyAction::Pass;
        }
        let gone = status(410, "Expired", "too old resource version: 1 (2)");
        match next.swap(0, Ordering::SeqCst) {
            0 => ProxyAction::Pass,
            200 => ProxyAction::Reply(200, serde_json::json!({"type": "ERROR", "object": gone})),
            code => ProxyAction::Reply(code, gone),
        }
    });
    let posse = scene.run_with(&proxy.access()).executors(2).start();
    scene.wait_running(2);
    posse.wait_events("executor_running", 2);
    for code in [0, 200, 410] {
        let victim = scene.wait_running(2)[0].clone();
        proxy.down();
        scene.delete(&victim);
        wait_for(PATIENCE, "the pod to go unseen", || scene.pod(name_of(&victim)).is_none());
        mood.store(code, Ordering::SeqCst);
        proxy.up();
        posse.wait_event("executor_lost", |event| event["uid"] == uid_of(&victim));
        scene.wait_running(2);
        // A LIST of the poll may have told the loss first.
        wait_for(PATIENCE, "a new watch", || mood.load(Ordering::SeqCst) == 0);
    }
    assert_eq!(posse.events_of("executor_lost").len(), 3, "one loss for each of the three");
    wait_for(PATIENCE, "two restarts of the watch", || {
        posse.events_of("watch_restarted").len() >= 2
    });
    posse.stop();
    scene.finish();
}

/// The watch is silent for a while: answers and polls are enough to reach the target, and late
/// events do no harm.
pub fn silent_watch(server: &dyn Server) {
    let scene = Scene::new(server);
    let proxy = Proxy::start(&server.access(Who::Posse), |_, _| ProxyAction::Pass);
    proxy.silence_watches(true);
    let posse = scene.run_with(&proxy.access()).executors(3).start();
    assert_eq!(ids(&scene.wait_running(3)), [1, 2, 3].into());
    stays_true(Duration::from_secs(1), "no more than three", || scene.ours().len() == 3);
    assert_eq!(proxy.n_creates(), 3);
    proxy.silence_watches(false);
    posse.wait_events("executor_running", 3);
    assert!(!posse.is_over());
    assert_eq!(proxy.n_creates(), 3);
    posse.stop();
    scene.finish();
}

/// 500 although the create took effect: it is repeated under the same name, and no second pod is
/// created.
pub fn error_after_commit(server: &dyn Server) {
    let scene = Scene::new(server);
    let n_left = AtomicUsize::new(3);
    let take_one =
        move || n_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, upstream| {
        if request.is_create() && take_one().is_ok() {
            upstream.send(request).ok();
            return ProxyAction::Reply(
                500,
                status(500, "InternalError", "etcdserver: request timed out"),
            );
        }
        ProxyAction::Pass
    });
    let posse = scene.run_with(&proxy.access()).executors(5).start();
    assert_eq!(ids(&scene.wait_running(5)), [1, 2, 3, 4, 5].into());
    assert!(posse.events_of("executor_lost").is_empty());
    posse.stop();
    scene.finish();
}

/// The watch reports a pod long before the create is answered.
pub fn answers_after_the_watch(server: &dyn Server) {
    let scene = Scene::new(server);
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, upstream| {
        if !request.is_create() {
            return ProxyAction::Pass;
        }
        let answer = upstream.send(request);
        std::thread::sleep(Duration::from_millis(700));
        ProxyAction::Reply(answer.code, answer.body)
    });
    let posse = scene.run_with(&proxy.access()).executors(6).start();
    assert_eq!(ids(&scene.wait_running(6)), (1..=6).collect());
    posse.wait_events("executor_running", 6);
    assert!(!posse.is_over());
    assert_eq!(proxy.n_creates(), 6);
    assert!(posse.events_of("executor_lost").is_empty());
    posse.stop();
    scene.finish();
}

/// A stop while a create has no answer: posse waits for the answer and deletes the pod.
pub fn stop_while_a_create_hangs(server: &dyn Server) {
    let scene = Scene::new(server);
    let (hanging, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (hangs, released) = (Arc::clone(&hanging), Arc::clone(&go));
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, _| {
        if request.is_create() && executor_id(&request.json()) == 3 {
            hangs.store(true, Ordering::SeqCst);
            wait_for(PATIENCE, "the test to let go", || released.load(Ordering::SeqCst));
        }
        ProxyAction::Pass
    });
    let posse = scene.run_with(&proxy.access()).executors(3).start();
    scene.wait_running(2);
    wait_for(PATIENCE, "the third to hang", || hanging.load(Ordering::SeqCst));
    posse.signal(Signal::TERM);
    posse.wait_event("stopping", |_| true);
    stays_true(Duration::from_secs(1), "waiting for the answer", || !posse.is_over());
    go.store(true, Ordering::SeqCst);
    posse.expect_exit(0);
    scene.finish();
}

/// A create that was cut and takes effect after the stop has begun: its pod is found and deleted.
pub fn late_create_at_stop(server: &dyn Server) {
    let scene = Scene::new(server);
    let kept: Arc<Mutex<Option<Request>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, _| {
        if !request.is_create() {
            return ProxyAction::Pass;
        }
        keep.lock().expect("nobody panics in here").get_or_insert_with(|| request.clone());
        ProxyAction::Cut
    });
    let posse = scene.run_with(&proxy.access()).executors(1).start();
    wait_for(PATIENCE, "a create to be cut off", || kept.lock().unwrap().is_some());
    posse.signal(Signal::TERM);
    posse.wait_event("stopping", |_| true);
    stays_true(Duration::from_secs(1), "an open create", || !posse.is_over());
    let request = kept.lock().unwrap().clone().expect("it was kept");
    proxy.upstream().send(&request).ok();
    let code = posse.wait_exit(UNKNOWN_LIMIT);
    assert_eq!(code, 0, "it said:\n{}", posse.stderr());
    assert!(!scene.pods().iter().any(is_running));
    scene.finish();
}
