//! What others see of a run: scrapes of its metrics, and Kubernetes Events about the driver's pod.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::embedded::Embedded;
use crate::support::posse::{Posse, said};
use crate::support::runner::is_in_full;
use crate::support::scene::{Scene, is_running, uid_of};
use crate::support::server::{End, Server, Who, items};
use crate::support::wait::{PATIENCE, wait_value, wait_value_every};

/// A run in a quota, with losses: the numbers of a scrape are those of the status and of the events, and
/// the driver's pod has the Events.
pub fn scraped_and_described(server: &dyn Server) {
    let scene = Scene::new(server);
    // Room for the driver and three executors.
    make_quota(&scene, 4);
    let driver = scene.make_driver_pod("driver");
    let posse = scene
        .run()
        .executors(5)
        .settings(json!({"failures": {"app": 1}}))
        .in_pod("driver", uid_of(&driver))
        .arg("--metrics=127.0.0.1:0")
        .start();
    let address = address(&posse);
    posse.wait_event("waiting", |event| event["for"] == "quota");
    let first = scene.wait_running(3).swap_remove(0);
    scene.end(&first, End::Exit(3));
    posse.wait_event("executor_lost", |event| event["uid"] == uid_of(&first));
    // The failed pod needs no room in the quota.
    let ours = scene.wait_running(3);

    wait_value(PATIENCE, "the numbers to agree", || agree(&posse, &address));
    ports(&address);
    let quota = wait_kube_event(&scene, "WaitingForQuota", |_| true);
    let note = quota["note"].as_str().expect("a note");
    assert!(note.contains("Group default waits for quota: "), "{note}");
    assert!(note.contains("exceeded quota: room"), "the server's words: {note}");
    let event = wait_kube_event(&scene, "ExecutorLost", |_| true);
    assert!(event["note"].as_str().unwrap().contains("app_error"), "{event}");
    assert_eq!(event["regarding"]["uid"], uid_of(&driver));

    // The next failure is one too many. On the same node it could be the node's.
    posse.may_end();
    let is_elsewhere = |pod: &&Value| pod["spec"]["nodeName"] != first["spec"]["nodeName"];
    scene.end(ours.iter().find(is_elsewhere).unwrap_or(&ours[0]), End::Exit(3));
    posse.expect_exit(11);
    wait_kube_event(&scene, "BudgetExhausted", |_| true);
    described(&scene, uid_of(&driver));
    scene.finish_with_pods();
}

/// How many executors a large run has, and how many of them are lost for which reason.
fn n_large() -> u32 {
    if is_in_full() { 1_000 } else { 200 }
}
const LARGE_LOSSES: [(&str, usize, End); 3] = [
    ("app_error", 40, End::Exit(3)),
    ("oom_killed", 5, End::OomKilled),
    ("evicted", 5, End::PodFailed("Evicted")),
];
/// A busy machine takes minutes to start so many.
const LARGE_PATIENCE: Duration = Duration::from_secs(600);

pub fn large_simulated_run_described() {
    large_run_described(&Embedded::start_with(&["--simulate"]));
}

/// The story of many executors with a full quota and 50 losses, in a few Events.
pub fn large_run_described(server: &dyn Server) {
    let (scene, n_large) = (Scene::new(server), n_large());
    make_quota(&scene, n_large + 1);
    let driver = scene.make_driver_pod("driver");
    let posse = scene
        .run()
        // A quota takes some more than it says: the controller's count overwrites that of the admission, which may know of
        // newer pods.
        .executors(2 * n_large)
        .settings(json!({"failures": {"app": "off", "cluster": "off", "keep_failed": 0},
            "shutdown": {"timeout": "600s"}}))
        .in_pod("driver", uid_of(&driver))
        .start();
    posse.wait_ready();
    let all_run = || {
        // Seldom, and without a process: the status has all executors.
        let step = Duration::from_secs(1);
        wait_value_every(step, LARGE_PATIENCE, "as many to run as the quota takes", || {
            let (_, status) =
                posse.control().try_call("GET", "/v1/status", "").expect("it answers");
            let status: Value = serde_json::from_str(&status).expect("the status is JSON");
            let group = status["groups"][0].clone();
            let n_running = group["running"].as_u64().unwrap_or(0);
            let is_done = n_running >= u64::from(n_large) && group["waiting"] == "quota";
            if is_done { Ok(()) } else { Err(group) }
        });
    };
    all_run();
    let mut ours = scene.ours();
    ours.retain(is_running);
    let mut ours = ours.iter();
    for (_, n, end) in LARGE_LOSSES {
        for pod in ours.by_ref().take(n) {
            scene.end(pod, end);
        }
    }
    for (reason, ..) in LARGE_LOSSES {
        let event = wait_kube_event(&scene, "ExecutorLost", |event| {
            let note = event["note"].as_str().unwrap_or_default();
            note.contains(&format!(" were lost: {reason}"))
        });
        assert_eq!(event["regarding"]["uid"], uid_of(&driver));
    }
    all_run();
    let quota = wait_kube_event(&scene, "WaitingForQuota", |_| true);
    assert!(quota["note"].as_str().unwrap().contains("exceeded quota: room"), "{quota}");
    for told in kubectl_describe(&scene) {
        for (reason, ..) in LARGE_LOSSES {
            has_line(&told, &["Warning", "ExecutorLost", reason]);
        }
        has_line(&told, &["Warning", "WaitingForQuota", "exceeded quota: room"]);
        let n_lines = told.lines().filter(|line| line.contains("posse.dev/posse")).count();
        assert!(n_lines <= 10, "a person reads {n_lines} lines:\n{told}");
    }
    posse.signal(Signal::TERM);
    assert_eq!(posse.wait_exit(LARGE_PATIENCE), 0, "{}", posse.stderr());
    scene.finish_with_pods();
}

#[track_caller]
fn has_line(told: &str, words: &[&str]) {
    let fits = |line: &str| words.iter().all(|word| line.contains(word));
    assert!(told.lines().any(fits), "no line with {words:?}:\n{told}");
}

/// A quota that has room for so many pods, and is in force.
fn make_quota(scene: &Scene<'_>, n_pods: u32) {
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "room"},
        "spec": {"hard": {"pods": n_pods.to_string()}}});
    let path = format!("/api/v1/namespaces/{}/resourcequotas", scene.namespace);
    scene.admin.post(&path, &quota).ok();
    wait_value(PATIENCE, "the quota to be in force", || {
        let status = scene.admin.get(&format!("{path}/room")).ok()["status"].clone();
        if status["used"]["pods"].is_string() { Ok(()) } else { Err(status) }
    });
}

/// The address in the log.
fn address(posse: &Posse) -> String {
    wait_value(PATIENCE, "the address of the metrics", || {
        let said = posse.stderr();
        let found =
            said.split_once("metrics at http://").and_then(|(_, rest)| rest.split_once('/'));
        found.map(|(address, _)| address.to_owned()).ok_or(said)
    })
}

/// Status and body of a GET.
fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.0\r\nhost: posse\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.expect("a code"), body.to_owned())
}

/// The samples of a text, by name and labels.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let parsed = samples.map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a sample");
        (name, value.parse().expect("a number"))
    });
    parsed.collect()
}

/// Whether the scrape says what status and events say. They are read one after the other, so a change in
/// between needs another try.
fn agree(posse: &Posse, address: &str) -> Result<(), String> {
    let status = posse.status();
    let events = posse.events();
    let (code, text) = get(address, "/metrics");
    assert_eq!(code, 200, "{text}");
    let samples = samples(&text);
    let count = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    let group = &status["groups"][0];
    let mut wanted: Vec<(String, f64)> = Vec::new();
    for state in
        ["requested", "pending", "running", "draining", "terminating", "failed", "completed"]
    {
        let name = format!("posse_executors{{group=\"default\",state=\"{state}\"}}");
        wanted.push((name, group[state].as_f64().expect("a count")));
    }
    let as_f64 = |n: usize| f64::from(u32::try_from(n).unwrap());
    let (lost, running) = (as_f64(count("executor_lost")), as_f64(count("executor_running")));
    for (name, value) in [
        ("posse_target_executors{group=\"default\"}", 5.0),
        ("posse_executors_lost_total{budget=\"app\",reason=\"app_error\"}", lost),
        ("posse_executor_start_seconds_count{group=\"default\"}", running),
        ("posse_executor_replacement_seconds_count{group=\"default\"}", lost),
        ("posse_waiting{group=\"default\",reason=\"quota\"}", 1.0),
        ("posse_creates_total{outcome=\"created\"}", running),
        ("posse_budget_limit{budget=\"app\"}", 1.0),
        ("posse_budget_left{budget=\"app\"}", 1.0 - lost),
        ("posse_server_outage_seconds", 0.0),
    ] {
        wanted.push((name.to_owned(), value));
    }
    for (name, want) in &wanted {
        if samples.get(name.as_str()) != Some(want) {
            return Err(format!(
                "{name}: {:?} instead of {want}\n{text}",
                samples.get(name.as_str())
            ));
        }
    }
    for name in [
        "posse_creates_total{outcome=\"capacity\"}",
        "rest_client_requests_total{code=\"201\",method=\"POST\"}",
        "rest_client_requests_total{code=\"403\",method=\"POST\"}",
        "rest_client_request_duration_seconds_count{verb=\"GET\"}",
        "posse_turn_seconds_count",
        "workqueue_adds_total{name=\"inbox\"}",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    ] {
        let value = samples.get(name).copied().unwrap_or(0.0);
        if value <= 0.0 {
            return Err(format!("{name}: {value}\n{text}"));
        }
    }
    Ok(())
}

/// The other paths of the port.
fn ports(address: &str) {
    for (path, code) in [("/healthz", 200), ("/readyz", 200), ("/v1/status", 404), ("/", 404)] {
        assert_eq!(get(address, path).0, code, "{path}");
    }
}

/// Waits for an Event of posse with this reason.
#[track_caller]
fn wait_kube_event(scene: &Scene<'_>, reason: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", scene.namespace);
    wait_value(LARGE_PATIENCE, &format!("an Event {reason}"), || {
        let mut events = items(&scene.admin.get(&path).ok());
        events.retain(|event| event["reportingController"] == "posse.dev/posse");
        let found = events.iter().find(|event| event["reason"] == reason && fits(event)).cloned();
        found.ok_or_else(|| Value::from(events))
    })
}

/// `kubectl describe` finds the Events by these fields, in the core group.
fn described(scene: &Scene<'_>, uid: &str) {
    let namespace = &scene.namespace;
    let fields = format!(
        "involvedObject.name%3Ddriver,involvedObject.namespace%3D{namespace},\
         involvedObject.uid%3D{uid}"
    );
    let path = format!("/api/v1/namespaces/{namespace}/events?fieldSelector={fields}");
    let events = items(&scene.admin.get(&path).ok());
    for reason in ["BudgetExhausted", "ExecutorLost", "WaitingForQuota"] {
        let found = events.iter().find(|event| event["reason"] == reason);
        let event = found.unwrap_or_else(|| panic!("no {reason}: {events:?}"));
        assert!(!event["message"].as_str().unwrap_or_default().is_empty(), "{event}");
        assert_eq!(event["type"], "Warning", "{event}");
    }
    for told in kubectl_describe(scene) {
        for words in ["WaitingForQuota", "exceeded quota: room", "ExecutorLost", "posse.dev/posse"]
        {
            assert!(told.contains(words), "no {words}:\n{told}");
        }
    }
}

/// The Events in `kubectl describe` of the driver's pod, by each kubectl that there is.
fn kubectl_describe(scene: &Scene<'_>) -> Vec<String> {
    let kubeconfig = scene.kubeconfig(&scene.server.access(Who::Admin));
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/clients/kubectl-1.20");
    let kubectls = [installed.as_path(), Path::new("kubectl")].into_iter();
    let told = kubectls.filter_map(|kubectl| {
        let run = |args: &[&str]| {
            let mut command = Command::new(kubectl);
            command.args(args).env("KUBECONFIG", &kubeconfig).env("HOME", scene.dir.path());
            command.output().ok().map(|output| said(&output))
        };
        let version = run(&["version", "--client"])?;
        let text = run(&["describe", "pod", "driver"])?;
        let events = text.split_once("\nEvents:").map(|(_, events)| events.to_owned());
        let events = events.unwrap_or_else(|| panic!("{version}: no Events: {text}"));
        Some(events)
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() {
        println!("NOT TESTED: kubectl describe; `.ci/clients` installs kubectl");
    }
    told
}
