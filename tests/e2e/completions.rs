//! Work that ends: completions over failures and kill -9, and the exit code of the run.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::embedded::Embedded;
use crate::support::posse::{Posse, command};
use crate::support::reaper::Guarded;
use crate::support::runner::show_on_failure;
use crate::support::scene::{APP, Scene, TempDir, is_over, is_running, name_of};
use crate::support::server::{End, Server};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

/// Parts of the work; two are done at a time.
const N_PARTS: usize = 6;

/// Ends an executor that runs, and returns its slot and uid.
fn end_one(scene: &Scene<'_>, end: End) -> (String, String) {
    let pod = wait_value(PATIENCE, "an executor to run", || {
        let mut ours = scene.ours();
        ours.retain(|pod| is_running(pod) && !is_over(pod));
        ours.into_iter().next().ok_or("none runs")
    });
    scene.end(&pod, end);
    wait_for(PATIENCE, "its end", || scene.pod(name_of(&pod)).is_none_or(|pod| is_over(&pod)));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&pod["metadata"]["labels"]["posse.dev/slot"]), text(&pod["metadata"]["uid"]))
}

fn completed(posse: &Posse) -> Vec<String> {
    let events = posse.events_of("executor_completed");
    events.iter().map(|event| event["uid"].as_str().unwrap_or_default().to_owned()).collect()
}

/// One part fails and is repeated; posse is killed in between.
pub fn work_ends_over_kill_9(server: &dyn Server) {
    let scene = Scene::new(server);
    let group = json!({"count": 2, "restart": "on-failure", "completions": N_PARTS,
        "template": "pod.json"});
    let run =
        || scene.run().settings(json!({"executors": [group.clone()]})).instance("ends").start();
    let mut posse = run();
    let mut done = BTreeSet::new();
    let mut told = BTreeSet::new();
    for n in 0..N_PARTS {
        if n == 1 {
            let (slot, _) = end_one(&scene, End::Exit(1));
            assert!(!done.contains(&slot), "part {slot} of the work runs twice");
        }
        let (slot, uid) = end_one(&scene, End::Exit(0));
        assert!(done.insert(slot.clone()), "part {slot} of the work is done twice");
        if n == 2 {
            // It tells events until it has ended.
            posse.signal(Signal::KILL);
            wait_for(PATIENCE, "posse to end", || posse.is_over());
            told.extend(completed(&posse));
            posse = run();
        } else if n + 1 < N_PARTS {
            wait_for(PATIENCE, "it to be told as completed", || completed(&posse).contains(&uid));
            wait_for(PATIENCE, "the status to count it", || {
                posse.status()["groups"][0]["completed"] == n + 1
            });
        }
    }
    posse.expect_exit(0);
    let last = completed(&posse);
    assert_eq!(last.iter().collect::<BTreeSet<_>>().len(), last.len(), "told once: {last:?}");
    told.extend(last);
    assert_eq!((told.len(), done.len()), (N_PARTS, N_PARTS), "{told:?} {done:?}");
    scene.finish();
}

/// The quota is full of pods that have ended, or in which a side-car runs on: they give way to the work.
pub fn records_give_way_to_a_quota() {
    let own = Embedded::start_with(&[]);
    for (resource, hard, beside) in
        [("count/pods", 3, false), ("count/pods", 3, true), ("pods", 2, true)]
    {
        let scene = Scene::new(&own);
        let quotas = format!("/api/v1/namespaces/{}/resourcequotas", scene.namespace);
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
            "spec": {"hard": {resource: hard.to_string()}}});
        scene.admin.post(&quotas, &quota).ok();
        wait_for(PATIENCE, "the quota to be counted", || {
            scene.admin.get(&format!("{quotas}/q")).ok()["status"]["used"][resource].is_string()
        });
        let mut containers =
            vec![json!({"name": "main", "image": "busybox:1", "command": ["true"]})];
        if beside {
            containers
                .push(json!({"name": "proxy", "image": "busybox:1", "command": ["sleep", "600"]}));
        }
        let group = json!({"count": 2, "completions": N_PARTS, "restart": "on-failure", "container": "main",
            "pod": {"spec": {"terminationGracePeriodSeconds": 1, "containers": containers}}});
        let posse = scene.run().settings(json!({"executors": [group]})).start();
        posse.expect_exit(0);
        let done: BTreeSet<String> = completed(&posse).into_iter().collect();
        assert_eq!(done.len(), N_PARTS, "{resource} {beside}");
        scene.finish();
    }
}

/// Commands as people run them: no driver, no server, and the exit code says how the work ended.
pub fn work_ends_with_its_exit_code() {
    let folder = TempDir::new("work");
    for (restart, script, completions, code) in [
        ("on-failure", "echo $POSSE_SLOT >> $FOLDER/done", Some(5), 0),
        ("on-failure", "true", None, 0),
        // Each part fails once and is repeated.
        ("on-failure", "mkdir $FOLDER/$POSSE_SLOT && exit 3; exit 0", Some(3), 0),
        ("never", "test $POSSE_SLOT != 1", Some(4), 10),
        ("on-failure", "exit 1", Some(2), 11),
    ] {
        let mut group = json!({"count": 2, "restart": restart, "image": "none:1",
            "command": ["sh", "-c", script],
            "env": {"FOLDER": folder.path().display().to_string()}});
        if let Some(n) = completions {
            group["completions"] = n.into();
        }
        let settings = json!({"app": APP, "executors": [group], "failures": {"app": 4},
            "control": "off"});
        std::fs::write(folder.path().join("posse.yaml"), settings.to_string()).expect("writable");
        let mut run = command(folder.path());
        run.args(["run", "--dev"]);
        let log = folder.path().join("log");
        show_on_failure(&log);
        run.stdout(Stdio::null()).stderr(std::fs::File::create(&log).expect("writable"));
        let mut posse = Guarded::spawn(&mut run).expect("the binary can be started");
        let status = wait_value(PATIENCE, "posse to end", || posse.status().ok_or("it runs"));
        assert_eq!(status.code(), Some(code), "{settings}");
    }
    let done = std::fs::read_to_string(folder.path().join("done")).expect("readable");
    let mut parts: Vec<&str> = done.lines().collect();
    parts.sort_unstable();
    assert_eq!(parts, ["0", "1", "2", "3", "4"]);
}

/// The example counts the words of ten texts, and begins each once.
pub fn parts_of_work_without_a_driver() {
    let folder = TempDir::new("parts");
    let log = folder.path().join("log");
    show_on_failure(&log);
    let mut run = command(Path::new(env!("CARGO_MANIFEST_DIR")));
    let told = folder.path().join("events");
    run.args(["run", "--dev", "-f", "examples/parts/posse.yaml", "--executor-logs", "--events"]);
    run.arg(&told);
    run.env("HOME", folder.path()).env("XDG_RUNTIME_DIR", folder.path());
    run.stdout(Stdio::null()).stderr(std::fs::File::create(&log).expect("writable"));
    let mut posse = Guarded::spawn(&mut run).expect("the binary can be started");
    let status = wait_value(PATIENCE, "posse to end", || posse.status().ok_or("it runs"));
    assert_eq!(status.code(), Some(0));
    let told = std::fs::read_to_string(told).expect("readable");
    for event in ["executor_requested", "executor_completed"] {
        assert_eq!(told.matches(&format!("\"event\":\"{event}\"")).count(), 10, "{told}");
    }
}
