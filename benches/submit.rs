//! From `posse submit` to a driver that runs and to all of its executors, in an embedded cluster whose
//! pods are real processes: a Job, posse copied by an init container, 100 executors.
//! `cargo bench --bench submit`.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::wildcard_enum_match_arm)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use figures::spread;
use support::embedded::Embedded;
use support::http::Client;
use support::posse::{command, said};
use support::scene::{TempDir, is_running, name_of};
use support::server::{Server as _, Who};

const ROUNDS: usize = 9;
const EXECUTORS: usize = 100;
const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG: &str = r#"{"app": "bench",
  "driver": {"command": ["sleep", "1000"], "image": "driver:1", "posse_image": "posse:1"},
  "executors": [{"count": 100, "template": "pod.json"}], "failures": {"app": "off"}}"#;
const POD: &str = r#"{"apiVersion": "v1", "kind": "Pod", "spec": {"terminationGracePeriodSeconds": 1,
  "containers": [{"name": "worker", "image": "worker:1", "command": ["sleep", "1000"]}]}}"#;

/// When it was seen, from the start of `posse submit` on.
#[derive(Clone, Copy, Default)]
struct Times {
    /// `posse submit --no-wait` has ended.
    submitted: Duration,
    driver: Duration,
    executors: Duration,
}

fn main() {
    let dir = TempDir::new("submit");
    // Room for 110 pods each.
    let embedded = Embedded::start_with(&["--nodes", "2"]);
    let access = embedded.access(Who::Admin);
    fs::write(dir.path().join("kubeconfig"), access.kubeconfig("default")).unwrap();
    fs::write(dir.path().join("posse.yaml"), CONFIG).unwrap();
    fs::write(dir.path().join("pod.json"), POD).unwrap();
    let rounds: Vec<Times> =
        (0..ROUNDS).map(|_| round(&dir, &Client::new(&access, "bench"))).collect();
    for (what, pick) in [
        ("submit has ended", (|times| times.submitted) as fn(&Times) -> Duration),
        ("the driver runs", |times| times.driver),
        ("all executors run", |times| times.executors),
    ] {
        let mut all: Vec<f64> =
            rounds.iter().map(|times| pick(times).as_secs_f64() * 1e3).collect();
        println!("{what} after {} ms, {ROUNDS} rounds", spread(&mut all));
    }
}

fn round(dir: &TempDir, client: &Client) -> Times {
    let began = Instant::now();
    let mut times = Times::default();
    thread::scope(|scope| {
        let seen = scope.spawn(|| watch(client, began));
        posse(dir, &["submit", "--no-wait", "--create-rbac"]);
        times.submitted = began.elapsed();
        (times.driver, times.executors) = seen.join().unwrap();
    });
    posse(dir, &["stop", "bench"]);
    times
}

/// When the driver, and when the last executor, was told to run.
fn watch(client: &Client, began: Instant) -> (Duration, Duration) {
    let list = client.get(PODS).ok();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let (mut driver, mut up) = (Duration::ZERO, BTreeSet::new());
    client.watch(&format!("{PODS}?watch=1&resourceVersion={version}"), |line| {
        let pod = &line["object"];
        if !is_running(pod) {
            return true;
        }
        match pod["metadata"]["labels"]["app.kubernetes.io/component"].as_str() {
            Some("driver") if driver.is_zero() => driver = began.elapsed(),
            Some("executor") => drop(up.insert(name_of(pod).to_owned())),
            Some(_) | None => {}
        }
        up.len() < EXECUTORS
    });
    (driver, began.elapsed())
}

fn posse(dir: &TempDir, words: &[&str]) {
    let mut command = command(dir.path());
    command.env("POSSE_LOG", "warn").args(words).args(["--kubeconfig", "kubeconfig"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}
