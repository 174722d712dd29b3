//! The control API beside 1,000 executors that come and go in an embedded cluster that only
//! simulates them: how long calls take with 50 clients, how soon a target becomes a POST, and how
//! many losses a second the reconciler alone can handle. `cargo bench --bench control`.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::wildcard_enum_match_arm)]

#[path = "../crates/core/tests/support/core_run.rs"]
mod core_run;
mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use figures::{cpu, quantile, wait_running};
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::ids::ExecutorId;
use posse_core::model::input::{Input, PodAnswer, PodEvent};
use posse_core::model::pod::{ContainerState, Phase, Pod};
use posse_core::reconciler::Reconciler;
use serde_json::json;
use support::access::Access;
use support::control::Control;
use support::embedded::simulated;
use support::posse::{Posse, Run};
use support::proxy::{Proxy, ProxyAction};
use support::scene::TempDir;
use support::wait::wait_for;

const LIMIT: Duration = Duration::from_secs(120);
const EXECUTORS: u32 = 1_000;
const CLIENTS: u64 = 50;
const SPAN: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);
const CHURN: (u64, Duration) = (10, Duration::from_millis(50));
const TARGETS: u32 = 200;
const READ_BYTES: usize = 256 << 10;
const LOSSES: u64 = 200_000;

fn main() {
    losses();
    // `cargo bench --bench control -- losses` measures that part alone.
    if std::env::args().any(|arg| arg == "losses") {
        return;
    }
    let dir = TempDir::new("control");
    let (_dev, access) = simulated(&dir, &[]);
    targets(&dir, &access);
    calls(&dir, &access);
}

fn start(dir: &TempDir, access: &Access) -> Posse {
    let settings = json!({"failures": {"app": "off"}});
    let run = Run::new(dir.path(), "default", access).settings(settings);
    let posse = run.env("POSSE_LOG", "info").start();
    posse.wait_ready();
    posse
}

/// From the call to the arrival of its create, at a proxy in front of the server.
fn targets(dir: &TempDir, access: &Access) {
    let arrivals: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let seen = Arc::clone(&arrivals);
    let proxy = Proxy::start(access, move |request, _| {
        if request.is_create() {
            seen.lock().unwrap().push(Instant::now());
        }
        ProxyAction::Pass
    });
    let posse = start(dir, &proxy.access());
    let control = posse.control();
    let mut delays = Vec::new();
    for n in 1..=TARGETS {
        let begun = Instant::now();
        control.put("default", &json!({"target": n})).ok();
        wait_for(LIMIT, "the create", || arrivals.lock().unwrap().len() >= n as usize);
        let arrived = arrivals.lock().unwrap()[n as usize - 1];
        delays.push(arrived.duration_since(begun).as_secs_f64() * 1e3);
    }
    println!("PUT target -> its POST arrives, {TARGETS} times: {}", told(&mut delays));
    posse.stop();
}

/// 50 clients, one connection a call, while 200 executors a second are killed and replaced. Clients that
/// pause 10 ms after each call make at most 5,000 calls/s; the others make as many as they can.
fn calls(dir: &TempDir, access: &Access) {
    let posse = start(dir, access);
    posse.scale("default", EXECUTORS);
    wait_running(&posse, EXECUTORS, Duration::from_millis(100), LIMIT);
    let control = posse.control();
    let is_over = AtomicBool::new(false);
    let (n_killed, took) = thread::scope(|scope| {
        let churn = scope.spawn(|| (churn(&control, &is_over), Instant::now()));
        let begun = Instant::now();
        for (what, method, path, body, pause) in [
            ("PUT /v1/groups/default, the same target", "PUT", "/v1/groups/default", true, PAUSE),
            ("GET /v1/status, 1,000 executors", "GET", "/v1/status", false, PAUSE),
            ("GET /healthz", "GET", "/healthz", false, PAUSE),
            ("GET /v1/status, no pauses", "GET", "/v1/status", false, Duration::ZERO),
            ("GET /healthz, no pauses", "GET", "/healthz", false, Duration::ZERO),
        ] {
            let body = if body { json!({"target": EXECUTORS}).to_string() } else { String::new() };
            let (begun, cpu_before) = (Instant::now(), cpu(posse.pid()));
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let (control, body) = (&control, body.clone());
                    scope.spawn(move || client(control, method, path, &body, (begun, pause)))
                })
                .collect();
            let mut all: Vec<f64> = clients.into_iter().flat_map(|c| c.join().unwrap()).collect();
            let rate = all.len() as f64 / SPAN.as_secs_f64();
            let us = (cpu(posse.pid()) - cpu_before).as_secs_f64() * 1e6 / all.len() as f64;
            println!(
                "{what}: {CLIENTS} clients, {rate:.0} calls/s, {}, {us:.0} us of posse's processor time a call",
                told(&mut all)
            );
        }
        is_over.store(true, Ordering::Relaxed);
        let (n_killed, ended) = churn.join().unwrap();
        (n_killed, ended - begun)
    });
    println!("meanwhile killed and replaced: {:.0}/s", n_killed as f64 / took.as_secs_f64());
    posse.kill();
}

/// Milliseconds of each call. The answer is only counted: a client that builds a text of it needs more time
/// than the server.
fn client(
    control: &Control,
    method: &str,
    path: &str,
    body: &str,
    (begun, pause): (Instant, Duration),
) -> Vec<f64> {
    let mut took = Vec::new();
    let mut answer = vec![0; READ_BYTES];
    let request =
        format!("{method} {path} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    while begun.elapsed() < SPAN {
        let from = Instant::now();
        let mut stream = control.connect().unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut n_read = stream.read(&mut answer).unwrap();
        assert!(answer[..n_read].starts_with(b"HTTP/1.1 200 "));
        while n_read > 0 {
            n_read = stream.read(&mut answer).unwrap();
        }
        took.push(from.elapsed().as_secs_f64() * 1e3);
        thread::sleep(pause);
    }
    took
}

fn churn(control: &Control, is_over: &AtomicBool) -> usize {
    let (n_each, pause) = CHURN;
    let (mut first, mut n_killed) = (1, 0);
    while !is_over.load(Ordering::Relaxed) {
        let ids: Vec<u64> = (first..first + n_each).collect();
        let answer = control.call("POST", "/v1/executors/kill", &json!({"executors": ids})).ok();
        n_killed += answer["killed"].as_array().unwrap().len();
        first += n_each;
        thread::sleep(pause);
    }
    n_killed
}

/// The core alone: a loss told, its successor asked for, made and running, the dead one deleted.
fn losses() {
    let mut run =
        core_run::Run::with_running(core_run::policy(), vec![core_run::spec("g", EXECUTORS)]);
    let mut pods: std::collections::BTreeMap<ExecutorId, Pod> =
        run.pods.drain(..).map(|pod| (pod.id, pod)).collect();
    let (mut core, mut version, mut now) = (run.core, run.version, run.now);
    let mut n_lost = 0;
    let begun = Instant::now();
    while n_lost < LOSSES {
        // They live for more than a minute: nothing slows their group down.
        now += 61_000;
        let ids: Vec<ExecutorId> = pods.keys().copied().take(32).collect();
        let events = ids.iter().map(|id| {
            version += 1;
            let mut pod = pods[id].clone();
            (pod.phase, pod.container) = (Phase::Failed, ContainerState::Ended);
            pod.version = Some(posse_core::model::ids::Version(version));
            PodEvent::Applied(pod)
        });
        let epoch = core.watermark().epoch;
        core.handle(Input::Watch { epoch, events: events.collect() }, Millis(now));
        n_lost += ids.len() as u64;
        settle(&mut core, &mut pods, &mut version, now);
    }
    let took = begun.elapsed().as_secs_f64();
    println!(
        "losses handled by the core alone, {EXECUTORS} executors: {:.0}/s",
        n_lost as f64 / took
    );
}

/// Turns until nothing is asked for; every request succeeds, every pod runs and goes at once.
fn settle(
    core: &mut Reconciler,
    pods: &mut std::collections::BTreeMap<ExecutorId, Pod>,
    version: &mut u64,
    now: u64,
) {
    loop {
        core.turn(Millis(now));
        while core.poll_event().is_some() {}
        let actions: Vec<Action> = std::iter::from_fn(|| core.poll_action()).collect();
        if actions.is_empty() {
            return;
        }
        let epoch = core.watermark().epoch;
        for action in actions {
            *version += 1;
            let at = Some(posse_core::model::ids::Version(*version));
            let event = match action {
                Action::Create { id, watermark, .. } => {
                    let model = pods.values().next().unwrap();
                    let pod = Pod {
                        uid: posse_core::model::ids::Uid::new(&format!("u{id}")),
                        name: format!("{}{id}", core_run::PREFIX).into(),
                        id,
                        version: at,
                        ..model.clone()
                    };
                    pods.insert(id, pod.clone());
                    let answer = Ok(PodAnswer::Ours(pod.clone()));
                    core.handle(Input::Created { id, watermark, answer }, Millis(now));
                    continue;
                }
                Action::Delete { uid, .. } => {
                    let id = ExecutorId(uid.to_string()[1..].parse().unwrap());
                    core.handle(Input::Deleted { uid, answer: Ok(None) }, Millis(now));
                    let pod = pods.remove(&id).unwrap();
                    PodEvent::Deleted(Pod { version: at, ..pod })
                }
                Action::Patch { uid, .. } => {
                    core.handle(Input::Patched { uid, answer: Ok(()) }, Millis(now));
                    continue;
                }
                other => panic!("{other:?}"),
            };
            core.handle(Input::Watch { epoch, events: vec![event] }, Millis(now));
        }
    }
}

fn told(ms: &mut [f64]) -> String {
    format!("p50 {:.1} ms, p99 {:.1} ms", quantile(ms, 50), quantile(ms, 99))
}
