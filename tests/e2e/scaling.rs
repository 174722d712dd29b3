//! Targets: up, down, several groups, restarts, the driver's end, `--keep`.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::audit;
use crate::support::posse::{command, said};
use crate::support::proxy::{Proxy, ProxyAction};
use crate::support::reaper::Guarded;
use crate::support::runner::show_on_failure;
use crate::support::scene::{APP, Scene, TempDir, describe, executor_id, name_of, uid_of};
use crate::support::server::{End, Server, Who, pods_path};
use crate::support::wait::{PATIENCE, stays_true, wait_for, wait_value};

fn ids(pods: &[Value]) -> Vec<u64> {
    pods.iter().map(executor_id).collect()
}

fn uids(pods: &[Value]) -> BTreeSet<&str> {
    pods.iter().map(uid_of).collect()
}

fn slots(pods: &[Value]) -> BTreeSet<String> {
    let slot = |pod: &Value| env_of(pod, "POSSE_SLOT").expect("every executor has a slot");
    pods.iter().map(slot).collect()
}

/// The value of a variable of the first container, if it is a plain value.
fn env_of(pod: &Value, name: &str) -> Option<String> {
    let env = pod["spec"]["containers"][0]["env"].as_array()?;
    let found = env.iter().find(|variable| variable["name"] == name)?;
    found["value"].as_str().map(str::to_owned)
}

/// The documented labels, variables and fields of every executor's pod.
fn check_pod(pod: &Value) {
    let labels = &pod["metadata"]["labels"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (instance, id) =
        (text(&labels["posse.dev/instance"]), text(&labels["posse.dev/executor-id"]));
    assert_eq!(name_of(pod), format!("{APP}-{instance}-exec-{id}"));
    assert_eq!(labels["posse.dev/app"], APP);
    assert_eq!(labels["posse.dev/group"], "default");
    assert_eq!(labels["app.kubernetes.io/component"], "executor");
    assert_eq!(labels["team"], "till", "the template's labels are kept");
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
    for (name, value) in [
        ("POSSE_APP", APP),
        ("POSSE_INSTANCE", &instance),
        ("POSSE_GROUP", "default"),
        ("POSSE_EXECUTOR_ID", &id),
        ("POSSE_DRIVER_HOST", "127.0.0.1"),
    ] {
        assert_eq!(env_of(pod, name).as_deref(), Some(value), "{name}");
    }
    let tolerations = pod["spec"]["tolerations"].as_array().expect("tolerations");
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let found = tolerations.iter().find(|toleration| toleration["key"] == key);
        assert_eq!(found.expect(key)["tolerationSeconds"], 60, "{key}");
    }
}

/// The event stream of one run is complete: numbered without gaps, from started to stopped.
fn check_stream(events: &[Value]) {
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["run"], events[0]["run"]);
        assert_eq!(event["seq"].as_u64(), Some(i as u64 + 1), "{event}");
        assert!(event["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{event}");
    }
    assert_eq!(events[0]["event"], "started");
    assert_eq!(events.last().expect("events")["event"], "stopped");
}

pub fn scale_up_and_down(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(2).start();
    let first = scene.wait_running(2);
    first.iter().for_each(check_pod);
    posse.wait_ready();
    posse.scale("default", 5);
    let all = scene.wait_running(5);
    assert_eq!(ids(&all), [1, 2, 3, 4, 5]);
    assert_eq!(slots(&all), ["0", "1", "2", "3", "4"].map(str::to_owned).into());
    posse.wait_group("the status to say so", |group| group["running"] == 5);
    posse.scale("default", 1);
    let last = scene.wait_running(1);
    assert!(uids(&first).is_superset(&uids(&last)), "the youngest go first, {last:?} stayed");
    wait_for(PATIENCE, "four deletions to be told", || {
        posse.events_of("executor_deleted").iter().filter(|e| e["cause"] == "scaled_down").count()
            == 4
    });
    posse.wait_group("one of one", |now| now["target"] == 1 && now["running"] == 1);
    assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0], "a scale-down is no loss");
    posse.signal(Signal::TERM);
    posse.expect_exit(0);
    check_stream(&posse.events());
    scene.finish();
}

pub fn groups_have_their_own_targets(server: &dyn Server) {
    let scene = Scene::new(server);
    let group =
        |name: &str, count: u32| json!({"group": name, "count": count, "template": "pod.json"});
    let settings = json!({"executors": [group("small", 2), group("big", 1)]});
    let posse = scene.run().settings(settings).start();
    scene.wait_running(3);
    posse.wait_ready();
    posse.scale("big", 3);
    let acted = posse.wait_event("acted", |_| true);
    assert_eq!((&acted["call"], &acted["group"]), (&json!("scale"), &json!("big")));
    let me = rustix::process::geteuid().as_raw();
    assert_eq!((&acted["by"], &acted["user"]), (&json!("socket"), &json!(me)));
    let acts = posse.ask(&["events", "--acts", "-o", "name"]);
    assert_eq!(acts.stdout, b"acted\n", "{}", said(&acts));
    let pods = scene.wait_running(5);
    let of = |name: &str| -> Vec<Value> {
        let ours = |pod: &&Value| pod["metadata"]["labels"]["posse.dev/group"] == name;
        pods.iter().filter(ours).cloned().collect()
    };
    assert_eq!(slots(&of("small")), ["0", "1"].map(str::to_owned).into());
    assert_eq!(slots(&of("big")), ["0", "1", "2"].map(str::to_owned).into());
    assert_eq!(ids(&pods).into_iter().collect::<BTreeSet<_>>().len(), 5, "ids are over all groups");
    posse.stop();
    scene.finish();
}

/// The second posse finds the executors of the first, and the ones that ended in between.
pub fn kill_9_and_adoption(server: &dyn Server) {
    let scene = Scene::new(server);
    let run = || scene.run().executors(3).instance("adopt");
    let first = run().start();
    let before = scene.wait_running(3);
    // Seen running: the process that is killed next knows all three.
    first.wait_events("executor_running", 3);
    assert!(!first.is_over());
    first.kill();
    scene.end(&before[0], End::Exit(9));
    // A start that fails in between forgets neither the executors nor their ids.
    let failed = run().arg("--record").arg("/proc/posse.record").once(&["run"]);
    assert_eq!(failed.status.code(), Some(2), "{}", said(&failed));
    let second = run().start();
    let lost = second.wait_event("executor_lost", |_| true);
    assert_eq!((&lost["executor"], &lost["exit_code"]), (&json!(1), &json!(9)));
    let after = scene.wait_running(3);
    assert!(uids(&after).is_superset(&uids(&before[1..])), "running executors are adopted");
    assert!(executor_id(&after[2]) > 3, "an id was given twice: {:?}", ids(&after));
    // Only the lost one is replaced.
    second.wait_events("executor_requested", 1);
    second.wait_events("executor_lost", 1);
    second.stop();
    scene.finish();
}

/// A kill in the middle of scaling up: the next process creates the missing executors, and uses no
/// id again that may have been used.
pub fn kill_9_while_scaling_up(server: &dyn Server) {
    let scene = Scene::new(server);
    let n_open = Arc::new(AtomicUsize::new(0));
    let open = Arc::clone(&n_open);
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, upstream| {
        if !request.is_create() {
            return ProxyAction::Pass;
        }
        open.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(300));
        let answer = upstream.send(request);
        open.fetch_sub(1, Ordering::SeqCst);
        ProxyAction::Reply(answer.code, answer.body)
    });
    let settings = json!({"allocation": {"in_flight_max": 4}});
    let run = || {
        let run = scene.run_with(&proxy.access()).executors(20);
        run.settings(settings.clone()).instance("halfw")
    };
    let first = run().start();
    wait_for(PATIENCE, "some to be made", || scene.ours().len() >= 5);
    first.kill();
    // A request that was sent may still take effect.
    wait_for(PATIENCE, "the last creates to land", || n_open.load(Ordering::SeqCst) == 0);
    let made = scene.ours();
    assert!(made.len() < 20, "killed too late: {}", describe(&made));
    let second = run().start();
    let after = scene.wait_running(20);
    assert!(uids(&after).is_superset(&uids(&made)), "what was made is adopted");
    let new: Vec<u64> = ids(&after).into_iter().filter(|id| !ids(&made).contains(id)).collect();
    let want: Vec<u64> = (1001..=1020 - made.len() as u64).collect();
    assert_eq!(new, want, "ids go on above the block that the first one had");
    second.wait_events("executor_requested", new.len());
    second.stop();
    scene.finish();
}

/// The first command of a new user: an empty folder, one file, a driver, no server.
pub fn run_with_a_cluster_of_its_own() {
    let folder = TempDir::new("own");
    let script = "until test -e done; do sleep 0.1; done; exit 0";
    let work = "cd $FOLDER; touch up.$POSSE_EXECUTOR_ID; \
                until test -e done; do sleep 0.1; done; sleep 100";
    let settings = json!({"app": APP, "executors": [{"count": 3, "command": ["sh", "-c", work],
        "env": {"FOLDER": folder.path().display().to_string()}, "image": "none:1"}]});
    std::fs::write(folder.path().join("posse.yaml"), settings.to_string()).expect("writable");
    let mut run = command(folder.path());
    run.args(["run", "--dev", "--events", "events", "--", "sh", "-c", script]);
    let log = folder.path().join("log");
    show_on_failure(&log);
    run.stdout(Stdio::null()).stderr(std::fs::File::create(&log).expect("writable"));
    let mut posse = Guarded::spawn(&mut run).expect("the binary can be started");
    wait_value(PATIENCE, "three executors to work", || {
        assert!(!posse.is_over(), "posse ended");
        let up = |id: &u32| folder.path().join(format!("up.{id}")).exists();
        let n = (1..=3).filter(up).count();
        if n == 3 { Ok(()) } else { Err(n) }
    });
    std::fs::write(folder.path().join("done"), "").expect("writable");
    let status = wait_value(PATIENCE, "posse to end", || posse.status().ok_or("it runs"));
    assert_eq!(status.code(), Some(0));
    let events = std::fs::read_to_string(folder.path().join("events")).expect("readable");
    assert_eq!(events.matches("\"executor_requested\"").count(), 3, "{events}");
    assert_eq!(events.matches("\"executor_deleted\"").count(), 3, "{events}");
}

/// Two live posse of one instance: the second one exits and names the first.
pub fn two_runs_of_one_instance(server: &dyn Server) {
    let scene = Scene::new(server);
    let run = || scene.run().executors(1).instance("twins");
    let first = run().start();
    let pods = scene.wait_running(1);
    let second = run().start();
    second.expect_exit(3);
    let words = second.stderr();
    assert!(words.contains(&first.pid().to_string()), "the holder is not named:\n{words}");
    assert_eq!(uids(&scene.wait_running(1)), uids(&pods), "the first one goes on undisturbed");
    first.stop();
    scene.finish();
}

/// The driver's end ends the application, and its exit code is posse's.
pub fn driver_decides_the_exit_code(server: &dyn Server) {
    let scene = Scene::new(server);
    let go = scene.file("go");
    let script = format!(
        "echo $POSSE_APP $POSSE_NAMESPACE; until test -e {}; do sleep 0.1; done; exit 5",
        go.display()
    );
    let posse = scene.run().executors(2).driver(&["sh", "-c", &script]).start();
    scene.wait_running(2);
    std::fs::write(go, "").expect("the folder can be written");
    posse.expect_exit(5);
    assert_eq!(posse.stdout(), format!("{APP} {}\n", scene.namespace), "its output is its own");
    scene.finish();
}

/// A second signal does not wait for a driver that ignores the first.
pub fn second_signal_ends_the_run_at_once(server: &dyn Server) {
    let scene = Scene::new(server);
    let trapped = scene.file("trapped");
    let script = format!("trap '' TERM; touch {}; sleep 100 & wait; sleep 100", trapped.display());
    let settings = json!({"shutdown": {"grace": "10m"}});
    let posse = scene.run().executors(1).settings(settings).driver(&["sh", "-c", &script]).start();
    scene.wait_running(1);
    wait_for(PATIENCE, "the driver to be deaf", || trapped.exists());
    posse.signal(Signal::TERM);
    posse.wait_event("stopping", |_| true);
    stays_true(Duration::from_millis(300), "the driver's grace", || !posse.is_over());
    posse.signal(Signal::TERM);
    posse.expect_exit(12);
    let log = posse.stderr();
    assert!(log.contains("second signal: killing the driver"), "{log}");
    assert!(!log.contains("shutdown.grace"), "its grace period is not over: {log}");
    assert_eq!(log.matches("SIGTERM: stopping").count(), 1, "{log}");
    scene.finish();
}

/// `--keep` leaves the executors; `posse cleanup` deletes them.
pub fn keep_then_cleanup(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(2).instance("kept1").arg("--keep").start();
    let before = scene.wait_running(2);
    posse.wait_events("executor_running", 2);
    posse.signal(Signal::TERM);
    posse.expect_exit(0);
    assert_eq!(uids(&scene.wait_running(2)), uids(&before));
    let cleanup = |instance: &str| scene.cleanup_as(Who::Posse, &["--instance", instance, "--yes"]);
    cleanup("other");
    assert_eq!(uids(&scene.wait_running(2)), uids(&before), "another instance's are let alone");
    cleanup("kept1");
    scene.finish();
}

/// Executors are owned by the driver pod, and are garbage collected with it.
pub fn owned_by_the_driver_pod(server: &dyn Server) {
    let scene = Scene::new(server);
    let driver = scene.make_foreign("driver");
    let run = || {
        let run = scene.run().executors(2);
        run.env("POD_NAME", "driver").env("POD_UID", uid_of(&driver))
    };
    let posse = run().start();
    let owner = |pod: &Value| pod["metadata"]["ownerReferences"][0].clone();
    for pod in scene.wait_running(2) {
        let owner = owner(&pod);
        assert_eq!((&owner["uid"], &owner["kind"]), (&json!(uid_of(&driver)), &json!("Pod")));
        assert_eq!(
            (&owner["controller"], &owner["blockOwnerDeletion"]),
            (&json!(true), &json!(false))
        );
    }
    posse.kill();
    let path = format!("{}/driver", pods_path(&scene.namespace));
    scene
        .admin
        .delete(
            &path,
            &json!({"kind": "DeleteOptions", "apiVersion": "v1",
        "gracePeriodSeconds": 0, "propagationPolicy": "Background"}),
        )
        .ok();
    scene.finish();
}

/// A check creates nothing, and the server validates the template.
pub fn check_validates_on_the_server(server: &dyn Server) {
    let scene = Scene::new(server);
    let output = scene.run().executors(1).once(&["check"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(scene.pods(), [] as [Value; 0], "a dry run creates nothing");
    scene.finish();
}

/// In a steady state there are no requests but the watch and the Lease.
pub fn steady_state_is_quiet(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(3).start();
    scene.wait_running(3);
    posse.wait_events("executor_running", 3);
    let log = server.audit_log().expect("only the real server keeps an audit log");
    let count = |resource: &str| -> u32 {
        let tally = audit::tally(&log, &scene.namespace);
        tally.iter().filter(|(what, _)| what.contains(resource)).map(|(_, n)| n).sum()
    };
    let before = count(" pods ");
    stays_true(Duration::from_secs(3), "no request about pods", || count(" pods ") == before);
    let tally = audit::tally(&log, &scene.namespace);
    assert_eq!(tally.get("create pods 201"), Some(&3), "{tally:?}");
    assert_eq!(tally.get("get pods 200"), None, "no GET for each pod: {tally:?}");
    assert!(tally["list pods 200"] <= 2, "one LIST at the start: {tally:?}");
    posse.stop();
    scene.finish();
}
