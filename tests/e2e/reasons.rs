//! Loss reasons: which one, with which message, and how often it is reported.

use std::fs;

use serde_json::{Value, json};

use crate::support::embedded::Embedded;
use crate::support::posse::{Posse, command, said};
use crate::support::proxy::{Proxy, ProxyAction, status};
use crate::support::scene::{APP, GRACE_S, Scene, executor_id, is_running, name_of, uid_of};
use crate::support::server::{End, Server, Who, pods_path};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

/// How an executor is ended.
#[derive(Clone, Copy)]
enum By {
    /// Its pod is deleted.
    Delete,
    /// It ends in this way.
    End(End),
    /// An eviction, as `kubectl drain` requests it.
    Evict,
    /// Its template makes it fail.
    Itself,
    /// `posse kill`.
    Kill,
    /// Its node gets a taint that it does not tolerate; embedded cluster only.
    Taint,
}

/// One group of one executor, how it ends, and the report: reason, budget, exit code, and the
/// beginning of the message.
struct Row(&'static str, By, &'static str, Option<&'static str>, Option<i32>, &'static str);

const APP_BUDGET: Option<&str> = Some("app");
const CLUSTER: Option<&str> = Some("cluster");
const START: Option<&str> = Some("start");

/// Ends that both servers can cause.
const EVERYWHERE: &[Row] = &[
    Row(
        "exits",
        By::End(End::Exit(7)),
        "app_error",
        APP_BUDGET,
        Some(7),
        "container: exit code 7, Error",
    ),
    Row(
        "shot",
        By::End(End::Killed),
        "app_error",
        APP_BUDGET,
        Some(137),
        "container: exit code 137 (SIGKILL), Error",
    ),
    Row(
        "done",
        By::End(End::Exit(0)),
        "completed",
        CLUSTER,
        Some(0),
        "container: exit code 0, Completed",
    ),
    Row(
        "greedy",
        By::End(End::OomKilled),
        "oom_killed",
        APP_BUDGET,
        Some(137),
        "container: exit code 137 (SIGKILL), OOMKilled",
    ),
    Row(
        "deleted",
        By::Delete,
        "deleted",
        CLUSTER,
        None,
        "the pod was deleted, but not by this run",
    ),
    Row("killed", By::Kill, "killed", None, None, "two\\u{7} lines"),
];

/// Ends that the processes and nodes of the embedded cluster cause.
const EMBEDDED: &[Row] = &[
    Row(
        "drained",
        By::Evict,
        "evicted",
        CLUSTER,
        None,
        "disruption: EvictionByEvictionAPI, Eviction API: evicting",
    ),
    // The side-car ends later.
    Row(
        "beside",
        By::Evict,
        "evicted",
        CLUSTER,
        None,
        "disruption: EvictionByEvictionAPI, Eviction API: evicting",
    ),
    Row(
        "late",
        By::Itself,
        "deadline_exceeded",
        APP_BUDGET,
        None,
        "pod: DeadlineExceeded, Pod was active on the node longer than the specified deadline",
    ),
    Row(
        "absent",
        By::Itself,
        "config_error",
        START,
        Some(128),
        "container: exit code 128, StartError, ",
    ),
    Row(
        "tainted",
        By::Taint,
        "node_lost",
        CLUSTER,
        None,
        "disruption: DeletionByTaintManager, Taint manager: deleting due to NoExecute taint",
    ),
];

/// Statuses of a kubelet or a controller, written by the test-side node.
const REAL: &[Row] = &[
    Row(
        "drained",
        By::End(End::Disrupted("EvictionByEvictionAPI")),
        "evicted",
        CLUSTER,
        None,
        "disruption: EvictionByEvictionAPI, the test says so",
    ),
    Row(
        "late",
        By::End(End::PodFailed("DeadlineExceeded")),
        "deadline_exceeded",
        APP_BUDGET,
        None,
        "pod: DeadlineExceeded, ",
    ),
    Row(
        "absent",
        By::End(End::NotStarted),
        "config_error",
        START,
        Some(128),
        "container: exit code 128, StartError, exec: \"x\": not found",
    ),
    Row(
        "tainted",
        By::End(End::Disrupted("DeletionByTaintManager")),
        "node_lost",
        CLUSTER,
        None,
        "disruption: DeletionByTaintManager, the test says so",
    ),
    Row(
        "collected",
        By::End(End::Disrupted("DeletionByPodGC")),
        "node_lost",
        CLUSTER,
        None,
        "disruption: DeletionByPodGC, the test says so",
    ),
    Row(
        "outranked",
        By::End(End::Disrupted("PreemptionByScheduler")),
        "preempted",
        CLUSTER,
        None,
        "disruption: PreemptionByScheduler, the test says so",
    ),
    Row(
        "pressed",
        By::End(End::PodFailed("Evicted")),
        "evicted",
        CLUSTER,
        None,
        "pod: Evicted, The node was low on resource: memory.",
    ),
    Row(
        "shutdown",
        By::End(End::PodFailed("Terminated")),
        "node_shutdown",
        CLUSTER,
        None,
        "pod: Terminated, ",
    ),
    Row(
        "crowded",
        By::End(End::PodFailed("OutOfcpu")),
        "admission_rejected",
        CLUSTER,
        None,
        "pod: OutOfcpu, ",
    ),
    Row(
        "silent",
        By::End(End::PodFailed("")),
        "unknown",
        CLUSTER,
        None,
        "the pod has ended, and its status does not say why",
    ),
];

/// The first executor of `group`, running if it is meant to run.
fn first_of(scene: &Scene<'_>, group: &str) -> Value {
    wait_value(PATIENCE, &format!("the executor of {group} to run"), || {
        let pods = scene.ours();
        let pod = pods.iter().find(|pod| {
            let is_up = || {
                scene.server.real().is_some()
                    || scene.file(&format!("{}.up", name_of(pod))).exists()
            };
            pod["metadata"]["labels"]["posse.dev/group"] == group && is_running(pod) && is_up()
        });
        pod.cloned().ok_or(pods.len())
    })
}

/// Ends the executor of a row; returns its uid if it existed.
fn undo(scene: &Scene<'_>, posse: &Posse, row: &Row) -> Option<String> {
    if let By::Itself = row.1 {
        return None;
    }
    let pod = first_of(scene, row.0);
    let uid = uid_of(&pod).to_owned();
    posse.wait_event("executor_running", |event| event["uid"] == uid.as_str());
    match row.1 {
        By::Delete => scene.delete(&pod),
        By::End(end) => scene.end(&pod, end),
        By::Evict => {
            let path = format!("{}/{}/eviction", pods_path(&scene.namespace), name_of(&pod));
            let eviction = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata":
                {"name": name_of(&pod), "namespace": scene.namespace},
                "deleteOptions": {"gracePeriodSeconds": GRACE_S}});
            scene.admin.post(&path, &eviction).ok();
        }
        By::Itself => {}
        By::Kill => {
            let id = executor_id(&pod).to_string();
            let output = posse.ask(&["kill", &id, "--reason", "two\u{7}\nlines"]);
            assert!(output.status.success(), "{}", said(&output));
        }
        By::Taint => {
            let node = pod["spec"]["nodeName"].as_str().expect("it runs on a node");
            let taint =
                json!({"spec": {"taints": [{"key": "posse.test/gone", "effect": "NoExecute"}]}});
            scene.admin.merge_patch(&format!("/api/v1/nodes/{node}"), &taint).ok();
        }
    }
    Some(uid)
}

/// The pod template of a row's group.
fn shape(group: &str, is_real: bool, pod: &mut Value) {
    let spec = &mut pod["spec"];
    match group {
        "absent" if !is_real => spec["containers"][0]["command"] = json!(["/no/such/program"]),
        "beside" => {
            let script = "trap 'sleep 2; exit 0' TERM; turns=0; \
                          while test $turns -lt 3000; do sleep 0.1; turns=$((turns + 1)); done";
            let side = json!({"name": "side", "image": "example.com/side:1",
                "command": ["sh", "-c", script]});
            spec["containers"].as_array_mut().expect("a list").push(side);
        }
        "greedy" => spec["containers"][0]["resources"] = json!({"limits": {"memory": "20Mi"}}),
        "late" if !is_real => spec["activeDeadlineSeconds"] = json!(2),
        _ => {}
    }
    if !is_real {
        let node = if group == "tainted" { "dev-node-1" } else { "dev-node-0" };
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    }
}

/// Every loss reason, with one group for each, all at once.
pub fn every_reason(server: &dyn Server) {
    let own = server.real().is_none().then(|| Embedded::start_with(&["--nodes", "2"]));
    let server = own.as_ref().map_or(server, |own| own as &dyn Server);
    let is_real = server.real().is_some();
    let scene = Scene::new(server);
    let rows: Vec<&Row> = EVERYWHERE.iter().chain(if is_real { REAL } else { EMBEDDED }).collect();
    let mut groups = Vec::new();
    for row in &rows {
        let file = format!("{}.json", row.0);
        scene.write_template(&file, |pod| shape(row.0, is_real, pod));
        groups.push(json!({"group": row.0, "count": 1, "template": file}));
    }
    let settings = json!({"executors": groups, "failures": {"app": "off"}});
    let posse = scene.run().settings(settings).start();
    for row in &rows {
        let uid = undo(&scene, &posse, row);
        let lost = posse.wait_event("executor_lost", |event| {
            event["group"] == row.0 && uid.as_ref().is_none_or(|uid| event["uid"] == uid.as_str())
        });
        let told = (&lost["reason"], &lost["budget"]);
        assert_eq!(told, (&json!(row.2), &json!(row.3)), "{}: {lost}", row.0);
        // The container may have ended before its status was read.
        let may_have_ended = row.4.is_none() && lost["exit_code"] == 143;
        assert!(may_have_ended || lost["exit_code"] == json!(row.4), "{}: {lost}", row.0);
        let by_app = row.3.is_some_and(|budget| budget != "cluster");
        assert_eq!(lost["caused_by_app"], by_app, "{}: {lost}", row.0);
        let message = lost["message"].as_str().unwrap_or_default();
        assert!(message.starts_with(row.5), "{}: {message:?} instead of {:?}", row.0, row.5);
        assert!(!message.chars().any(char::is_control), "{}: {message:?}", row.0);
    }
    posse.stop();
    scene.finish();
}

fn n_lost(posse: &Posse, uid: &str) -> usize {
    posse.events_of("executor_lost").iter().filter(|event| event["uid"] == uid).count()
}

/// Waits until a pod is labelled as counted.
fn wait_counted(scene: &Scene<'_>, pod: &Value) {
    wait_for(PATIENCE, "the loss to be counted on the pod", || {
        let now = scene.pod(name_of(pod)).unwrap_or_default();
        now["metadata"]["labels"]["posse.dev/counted"].is_string()
    });
}

/// After a `kill -9` a reported loss is not reported again, does not count against the budget
/// again, and its pod keeps its position among the retained pods: the oldest goes first.
pub fn reported_once_over_kill_9(server: &dyn Server) {
    let scene = Scene::new(server);
    let settings = json!({"failures": {"app": 1, "keep_failed": 1}});
    let run = || scene.run().executors(2).instance("once").settings(settings.clone());
    let first = run().start();
    let before = scene.wait_running(2);
    first.wait_events("executor_running", 2);
    scene.end(&before[0], End::Exit(9));
    first.wait_event("executor_lost", |event| event["uid"] == uid_of(&before[0]));
    wait_counted(&scene, &before[0]);
    first.kill();

    let second = run().start();
    second.wait_ready();
    let after = scene.wait_running(2);
    second.wait_events("executor_running", 2);
    assert_eq!(second.status()["groups"][0]["failed"], 1, "it is kept");
    // The budget allows one: if the old loss counted again, the run would end.
    scene.end(&after[0], End::Exit(8));
    second.wait_event("executor_lost", |event| event["uid"] == uid_of(&after[0]));
    wait_for(PATIENCE, "the older retained pod to go", || scene.pod(name_of(&before[0])).is_none());
    assert!(scene.pod(name_of(&after[0])).is_some(), "the newer one stays");
    let last = scene.wait_running(2);
    second.wait_event("executor_running", |event| event["uid"] == uid_of(&last[1]));
    assert_eq!((n_lost(&second, uid_of(&before[0])), n_lost(&second, uid_of(&after[0]))), (0, 1));
    second.may_end();
    scene.end(&last[0], End::Exit(7));
    second.expect_exit(11);
    assert_eq!(second.events_of("budget_exhausted").len(), 1);
    let left: Vec<String> = scene.ours().iter().map(|pod| name_of(pod).to_owned()).collect();
    assert_eq!(left, [name_of(&last[0])], "only the last retained pod stays");
    scene.finish_with_pods();
}

/// A kill between the event and the label: the loss is reported again, but only once more.
pub fn kill_9_before_the_label(server: &dyn Server) {
    let scene = Scene::new(server);
    let proxy =
        Proxy::start(&server.access(Who::Posse), |request, _| match request.method.as_str() {
            "PATCH" => ProxyAction::Reply(500, status(500, "InternalError", "the test says so")),
            _ => ProxyAction::Pass,
        });
    let first = scene.run_with(&proxy.access()).executors(1).instance("label").start();
    let before = scene.wait_running(1);
    first.wait_event("executor_running", |_| true);
    scene.end(&before[0], End::Exit(9));
    first.wait_event("executor_lost", |_| true);
    scene.wait_running(1);
    first.kill();
    let second = scene.run().executors(1).instance("label").start();
    second.wait_event("executor_lost", |event| event["uid"] == uid_of(&before[0]));
    wait_counted(&scene, &before[0]);
    scene.wait_running(1);
    assert_eq!(second.events_of("executor_lost").len(), 1);
    second.stop();
    scene.finish();
}

/// A spent budget also ends a driver that ignores SIGTERM.
pub fn budget_kills_a_driver_that_ignores_sigterm(server: &dyn Server) {
    let scene = Scene::new(server);
    let up = scene.file("up");
    let script = format!(
        "trap '' TERM; echo $$ > {}.pid; mv {0}.pid {0}; while :; do sleep 0.1; done",
        up.display()
    );
    let settings = json!({"failures": {"app": 0}, "shutdown": {"grace": "500ms"}});
    let run = scene.run().executors(2).settings(settings).driver(&["sh", "-c", &script]);
    let posse = run.start();
    let pods = scene.wait_running(2);
    wait_for(PATIENCE, "the driver to be deaf", || up.exists());
    posse.wait_event("executor_running", |event| event["uid"] == uid_of(&pods[0]));
    posse.may_end();
    scene.end(&pods[0], End::Exit(3));
    posse.expect_exit(11);
    let pid = fs::read_to_string(&up).expect("the driver wrote it");
    assert!(!std::path::Path::new(&format!("/proc/{}", pid.trim())).exists(), "the driver lives");
    assert_eq!(posse.events_of("budget_exhausted").len(), 1);
    let left: Vec<String> = scene.ours().iter().map(|pod| name_of(pod).to_owned()).collect();
    assert_eq!(left, [name_of(&pods[0])], "the others are cleaned away");
    assert!(posse.stderr().contains(&format!("retained failed pods: {}", left[0])));
    scene.finish_with_pods();
}

/// The last lines of a failed executor's log are reported after its loss; only then its pod is
/// deleted. A server without a log does no harm.
pub fn logs_of_the_failed(server: &dyn Server) {
    let scene = Scene::new(server);
    let settings = json!({"failures": {"log_lines": 3, "keep_failed": 0}});
    let posse = scene.run().executors(2).settings(settings).start();
    let before = scene.wait_running(2);
    posse.wait_event("executor_running", |event| event["uid"] == uid_of(&before[0]));
    posse.wait_event("executor_running", |event| event["uid"] == uid_of(&before[1]));
    scene.end(&before[0], End::Exit(7));
    scene.end(&before[1], End::Exit(0));
    let log = posse.wait_event("executor_log", |event| event["uid"] == uid_of(&before[0]));
    let lost = posse.wait_event("executor_lost", |event| event["uid"] == uid_of(&before[0]));
    assert!(log["seq"].as_u64() > lost["seq"].as_u64(), "it follows: {lost} {log}");
    if server.real().is_some() {
        assert!(log["message"].is_string() && log["log"] == json!([]), "no kubelet: {log}");
    } else {
        let words = format!("the last words of {}", name_of(&before[0]));
        assert_eq!((&log["log"], &log["message"]), (&json!([words]), &Value::Null), "{log}");
    }
    scene.wait_running(2);
    wait_for(PATIENCE, "both to be gone", || {
        before.iter().all(|pod| scene.pod(name_of(pod)).is_none())
    });
    let told = posse.events_of("executor_log");
    assert_eq!(told.len(), 1, "who did its work is left in peace: {told:?}");
    let info: Vec<String> =
        posse.stderr().lines().filter(|l| l.contains("last words of")).map(str::to_owned).collect();
    assert!(info.is_empty(), "an application's lines are not posse's to log: {info:?}");
    posse.stop();
    scene.finish();
}

#[track_caller]
fn check(text: &str, wanted: &[&str]) {
    for want in wanted {
        assert!(text.contains(want), "{want:?} is not in:\n{text}");
    }
}

/// What the cluster stores about an application without a run, whose executor `second` failed.
fn check_left_behind(scene: &Scene<'_>, kubeconfig: &str, second: &Value) {
    let alone = |args: &[&str]| {
        let output = command(scene.dir.path())
            .args(["explain", "--app", APP, "-n", &scene.namespace, kubeconfig])
            .args(args)
            .output()
            .expect("the binary can be started");
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let reason = "app_error: container: exit code 6, Error";
    check(
        &alone(&[]),
        &[
            "has no driver of application shop",
            &format!("pod {}: {reason}", name_of(second)),
            "executor 3: Running",
        ],
    );
    check(
        &alone(&["2"]),
        &["no run of this application was found", "terminated, exit code 6", "retained"],
    );
}

/// `posse explain ID`: from the run and the cluster, after the pod was deleted, and without a run.
pub fn explain_with_and_without_a_run(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(1).instance("story").start();
    let before = scene.wait_running(1);
    posse.wait_event("executor_running", |_| true);
    scene.end(&before[0], End::Exit(7));
    posse.wait_event("executor_lost", |_| true);
    wait_counted(&scene, &before[0]);
    scene.wait_running(1);
    posse.wait_event("executor_running", |event| event["executor"] == 2);

    let kubeconfig = scene.kubeconfig(&server.access(Who::Posse));
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let explain = |args: &[&str]| {
        let output = posse.ask(&[&["explain", &kubeconfig], args].concat());
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let lost = "(budget app): container: exit code 7, Error";
    let of_pod = ["container worker: terminated, exit code 7", "retained, on node "];
    check(&explain(&[]), &["group default: 1 of 1 running (1 failed and retained)"]);
    let text = explain(&["1", "--logs", "5"]);
    check(
        &text,
        &["failed, pod retained,", "  requested\n", "  running on ", "lost: app_error on ", lost],
    );
    check(&text, &of_pod);
    if server.real().is_some() {
        check(&text, &["(the pod's log cannot be read: "]);
    } else {
        check(&text, &["Scheduled: ", "the end of the pod's log:\n  | the last words of "]);
    }
    let json: Value = serde_json::from_str(&explain(&["1", "--json"])).expect("JSON");
    assert_eq!((&json["executor"], &json["state"]["state"]), (&json!(1), &json!("failed")));
    assert_eq!(json["pod"]["containers"][0]["exit_code"], 7, "{json}");
    let missing = posse.ask(&["explain", "77", &kubeconfig]);
    assert_eq!(missing.status.code(), Some(1), "{}", said(&missing));

    // The pod is deleted: the run still has the record.
    scene.delete(&before[0]);
    wait_for(PATIENCE, "the retained pod to go", || scene.pod(name_of(&before[0])).is_none());
    wait_for(PATIENCE, "posse to know", || {
        posse.status()["executors"].as_array().map_or(0, Vec::len) == 1
    });
    check(
        &explain(&["1"]),
        &["executor 1 of group default: deleted", lost, "is no longer in the cluster"],
    );

    // The run has ended: the cluster still has the record.
    let second = scene.ours().remove(0);
    scene.end(&second, End::Exit(6));
    posse.wait_event("executor_lost", |event| event["executor"] == 2);
    wait_counted(&scene, &second);
    scene.wait_running(1);
    posse.kill();
    check_left_behind(&scene, &kubeconfig, &second);
    let heir = scene.run().executors(1).instance("story").start();
    heir.wait_ready();
    heir.stop();
    scene.finish();
}
