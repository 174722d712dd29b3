//! `posse submit`: creates a driver in the cluster, follows it and exits with its code; a refused
//! submission leaves nothing; `posse apps`, `logs` and `stop`. The test-side node runs no
//! containers, so executors of such drivers are tested on the embedded cluster only.

use std::process::{Child, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::access::Access;
use crate::support::embedded::Embedded;
use crate::support::posse::{Posse, Run, said};
use crate::support::proxy::{Proxy, ProxyAction, status};
use crate::support::scene::{APP, Scene, describe, is_running, name_of, uid_of};
use crate::support::server::{End, Server, Who, items, pods_path};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

/// What `posse submit` creates: the path of each kind, and whether it is created without
/// `--create-rbac`.
const KINDS: [(&str, &str, bool); 6] = [
    ("/api/v1", "configmaps", true),
    ("/api/v1", "services", true),
    ("/apis/batch/v1", "jobs", true),
    ("/api/v1", "serviceaccounts", false),
    ("/apis/rbac.authorization.k8s.io/v1", "roles", false),
    ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", false),
];

pub(super) fn path(scene: &Scene<'_>, root: &str, resource: &str) -> String {
    format!("{root}/namespaces/{}/{resource}", scene.namespace)
}

/// A driver's pod with this service account.
pub(super) fn pod_of(account: &str) -> Value {
    json!({"spec": {"serviceAccountName": account, "containers": [{"name": "driver"}]}})
}

/// A driver that runs until the node ends it, with executors that do the same.
fn settings(scene: &Scene<'_>) -> Value {
    let template = scene.template();
    let script = template["spec"]["containers"][0]["command"][2].as_str().unwrap();
    // posse.yaml does not expand `$$`.
    let script = script.replace("$$$$", "$$");
    json!({"driver": {
        "command": ["sh", "-c", script], "image": "example.com/driver:1", "retries": 0,
        "pod": pod_of("default"),
        "env": [
            {"name": "SCENE", "value": scene.dir.path().display().to_string()},
            {"name": "POSSE_LOG", "value": "posse=debug"},
            {"name": "POSSE_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
    }})
}

pub(super) fn run(scene: &Scene<'_>) -> Run {
    run_with(scene, &scene.server.access(Who::Admin))
}

pub(super) fn run_with(scene: &Scene<'_>, access: &Access) -> Run {
    scene.run_with(access).settings(settings(scene))
}

/// A command about applications, with a kubeconfig.
pub(super) fn ask(scene: &Scene<'_>, words: &[&str]) -> Output {
    begin(scene, words).wait_with_output().expect("it ends")
}

pub(super) fn begin(scene: &Scene<'_>, words: &[&str]) -> Child {
    let mut command = scene.command(&scene.server.access(Who::Admin), words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the binary can be started")
}

#[track_caller]
pub(super) fn expect(output: &Output, code: i32, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "it does not say {word:?} but {said}");
    }
}

fn component(pod: &Value) -> &str {
    pod["metadata"]["labels"]["app.kubernetes.io/component"].as_str().unwrap_or_default()
}

pub(super) fn pods_of(scene: &Scene<'_>, wanted: &str) -> Vec<Value> {
    let mut pods = scene.ours();
    pods.retain(|pod| component(pod) == wanted);
    pods
}

/// The running pod of the driver, other than `not`.
#[track_caller]
pub(super) fn wait_driver(scene: &Scene<'_>, other_than: &str) -> Value {
    wait_value(PATIENCE, "a driver that runs", || {
        let pods = pods_of(scene, "driver");
        let mut up = pods.iter().filter(|pod| is_running(pod) && uid_of(pod) != other_than);
        let listens = |pod: &&Value| {
            scene.server.real().is_some() || scene.file(&format!("{}.up", name_of(pod))).exists()
        };
        up.find(listens).cloned().ok_or_else(|| describe(&pods))
    })
}

/// Waits for executors of this driver's instance, and no others; only if drivers really run.
#[track_caller]
pub(super) fn wait_executors(scene: &Scene<'_>, driver: &Value, n: usize) {
    if scene.server.real().is_some() {
        return;
    }
    wait_value(PATIENCE, &format!("{n} executors of {}", name_of(driver)), || {
        let mut pods = pods_of(scene, "executor");
        pods.retain(|pod| {
            pod["metadata"]["ownerReferences"][0]["uid"] == driver["metadata"]["uid"]
        });
        let n_up = pods.iter().filter(|pod| is_running(pod)).count();
        if (n_up, pods.len()) == (n, n) { Ok(()) } else { Err(describe(&pods)) }
    });
}

/// All objects of a driver, by kind and name.
pub(super) fn made(scene: &Scene<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for (root, resource, _) in KINDS {
        let list = items(&scene.admin.get(&path(scene, root, resource)).ok());
        let ours = list.iter().filter(|one| {
            one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "posse"
                && one["metadata"]["deletionTimestamp"].is_null()
        });
        found.extend(ours.map(|one| format!("{resource}/{}", name_of(one))));
    }
    found
}

/// Without the record, which the driver makes.
fn made_by_submit(scene: &Scene<'_>) -> Vec<String> {
    made(scene).into_iter().filter(|name| !name.contains("-record-")).collect()
}

#[track_caller]
fn wait_nothing_made(scene: &Scene<'_>) {
    wait_value(PATIENCE, "nothing of a driver to be left", || {
        let made = made(scene);
        if made.is_empty() { Ok(()) } else { Err(made.join(" ")) }
    });
}

/// The application is stopped, and no object of it is left.
#[track_caller]
pub(super) fn stop_and_finish(scene: Scene<'_>) {
    expect(&ask(&scene, &["stop", APP]), 0, &["application shop stopped"]);
    wait_nothing_made(&scene);
    scene.finish();
}

/// The command exits with the driver's code. One name can be used again after the driver has ended,
/// but not before.
pub fn submit_and_exit_codes(server: &dyn Server) {
    let scene = Scene::new(server);
    for (end, code, words) in [
        (End::Exit(0), 0, "succeeded"),
        (End::Exit(3), 3, "exit code 3"),
        (End::Killed, 137, "exit code 137"),
    ] {
        // Without a running container there is no log.
        let logs = if server.real().is_none() { &["submit", "--logs"][..] } else { &["submit"] };
        let submit = run(&scene).executors(2).begin(logs);
        let driver = wait_driver(&scene, "");
        wait_executors(&scene, &driver, 2);
        expect(
            &run(&scene).once(&["submit"]),
            3,
            &["it is already running: job shop-driver has not finished"],
        );
        let apps = ask(&scene, &["apps"]);
        expect(&apps, 0, &["Running", name_of(&driver)]);
        wait_for(PATIENCE, "a line about it", || submit.stderr().contains("runs on "));
        scene.end(&driver, end);
        submit.expect_exit(code);
        let said = submit.stderr();
        assert!(said.contains(words), "{said}");
        if server.real().is_none() {
            let last = format!("the last words of {}\n", name_of(&driver));
            assert_eq!(submit.stdout().matches(&last).count(), 1, "{}", submit.stdout());
            expect(&ask(&scene, &["logs", APP, "--tail", "40"]), 0, &["stopped"]);
        }
        let apps: Value =
            serde_json::from_slice(&ask(&scene, &["apps", "s*", "-o", "json"]).stdout)
                .expect("apps -o json is JSON");
        // Runs of others on this host are listed, too.
        let mut apps = apps.as_array().expect("a list").iter();
        let app =
            apps.find(|app| app["namespace"] == scene.namespace.as_str()).expect("it is listed");
        let state = if code == 0 { "Succeeded" } else { "Failed" };
        assert_eq!((&app["state"], &app["driver"]["exit_code"]), (&json!(state), &json!(code)));
        assert_eq!(app["executors"]["running"], 0, "{app}");
    }
    stop_and_finish(scene);
}

/// A dry run creates nothing and prints everything.
pub fn submit_dry_run(server: &dyn Server) {
    let scene = Scene::new(server);
    let without = json!({"driver": {"pod": null}});
    let shown =
        run(&scene).settings(without.clone()).once(&["submit", "--dry-run", "--create-rbac"]);
    expect(&shown, 0, &["kind: Job", "kind: ConfigMap", "kind: Service\n", "kind: Role\n"]);
    let rendered = run(&scene).settings(without).once(&["render", "--driver", "--create-rbac"]);
    // They are equal, apart from the label of the call.
    let unmarked = |output: &Output| {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let lines = text.lines().filter(|line| !line.contains("posse.dev/submission"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(unmarked(&shown), unmarked(&rendered));
    assert_eq!(made(&scene), [""; 0]);
    // The server's refusal of a template is reported before anything is created.
    let mounts = json!([{"name": "no-such", "mountPath": "/x"}]);
    let container = json!({"name": "driver", "volumeMounts": mounts});
    let wrong = json!({"driver": {"pod": {"spec": {"containers": [container]}}}});
    let said = ["volumeMounts", "no-such"];
    expect(&run(&scene).settings(wrong).once(&["submit"]), 4, &said);
    assert_eq!(made(&scene), [""; 0]);
    scene.finish();
}

/// Whichever create is refused: the earlier objects are deleted again.
pub fn submit_refused_half_way(server: &dyn Server) {
    let scene = Scene::new(server);
    for (method, resource, tail) in [
        ("POST", "serviceaccounts", ""),
        ("POST", "roles", ""),
        ("POST", "rolebindings", ""),
        ("POST", "configmaps", ""),
        ("POST", "services", ""),
        ("POST", "jobs", ""),
        ("PATCH", "serviceaccounts", "/shop-driver"),
        ("PATCH", "services", "/shop-driver"),
    ] {
        let wanted = format!("/{resource}{tail}?");
        let n_refused = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&n_refused);
        let proxy = Proxy::start(&server.access(Who::Admin), move |request, _| {
            let is_meant = request.method == method
                && request.path.contains(&wanted)
                && !request.path.contains("dryRun");
            if !is_meant {
                return ProxyAction::Pass;
            }
            counted.fetch_add(1, Ordering::SeqCst);
            ProxyAction::Reply(403, status(403, "Forbidden", "forbidden: User \"x\" may not"))
        });
        let run = run_with(&scene, &proxy.access());
        let run = run.settings(json!({"driver": {"pod": null}}));
        let refused = run.once(&["submit", "--create-rbac"]);
        expect(&refused, 3, &["is not submitted", "may not"]);
        assert_eq!(n_refused.load(Ordering::SeqCst), 1, "{method} {resource}");
        wait_nothing_made(&scene);
    }
    wait_value(PATIENCE, "no driver to be left", || {
        let pods = pods_of(&scene, "driver");
        if pods.is_empty() { Ok(()) } else { Err(describe(&pods)) }
    });
    scene.finish();
}

/// Sets the namespace's quota, and waits until it is in force.
pub(super) fn allow(scene: &Scene<'_>, hard: &Value) {
    let quotas = path(scene, "/api/v1", "resourcequotas");
    let body = json!({"metadata": {"name": "room"}, "spec": {"hard": hard}});
    if scene.admin.get(&format!("{quotas}/room")).code == 200 {
        scene.admin.merge_patch(&format!("{quotas}/room"), &body).ok();
    } else {
        scene.admin.post(&quotas, &body).ok();
    }
    wait_value(PATIENCE, "the quota to be in force", || {
        let status = scene.admin.get(&format!("{quotas}/room")).ok()["status"]["hard"].clone();
        if status == *hard { Ok(()) } else { Err(status) }
    });
}

/// A quota refuses one of the objects: nothing stays. The embedded cluster counts no services.
pub fn submit_of_an_object_too_many(server: &dyn Server) {
    let scene = Scene::new(server);
    allow(&scene, &json!({"services": "0", "pods": "9"}));
    let words = ["service shop-driver", "exceeded quota: room"];
    expect(&run(&scene).once(&["submit"]), 1, &words);
    assert_eq!(made(&scene), [""; 0]);
    scene.finish();
}

/// If the driver's pod does not fit into the quota, it waits, and submit says why.
pub fn submit_without_room(server: &dyn Server) {
    let scene = Scene::new(server);
    allow(&scene, &json!({"pods": "0"}));
    let submit = run(&scene).begin(&["submit"]);
    wait_for(PATIENCE, "why there is no pod", || {
        let said = submit.stderr();
        said.contains("the driver's pod has to wait") && said.contains("has no pod: FailedCreate")
    });
    allow(&scene, &json!({"pods": "9"}));
    let driver = wait_driver(&scene, "");
    scene.end(&driver, End::Exit(0));
    submit.expect_exit(0);
    stop_and_finish(scene);
}

/// Answers are lost before or after the request takes effect: there is one driver.
pub fn submit_with_lost_answers(server: &dyn Server) {
    let scene = Scene::new(server);
    for (resource, after) in [("jobs", true), ("jobs", false), ("configmaps", true)] {
        let is_first = Arc::new(AtomicBool::new(true));
        let proxy = Proxy::start(&server.access(Who::Admin), move |request, upstream| {
            let is_meant = request.method == "POST"
                && request.path.contains(&format!("/{resource}?"))
                && !request.path.contains("dryRun");
            if !is_meant || !is_first.swap(false, Ordering::SeqCst) {
                return ProxyAction::Pass;
            }
            if after {
                assert_eq!(upstream.send(request).code, 201);
            }
            ProxyAction::Cut
        });
        let done = run_with(&scene, &proxy.access()).once(&["submit", "--no-wait"]);
        expect(&done, 0, &["application shop submitted: job shop-driver"]);
        assert_eq!(
            made_by_submit(&scene),
            ["configmaps/shop-driver", "services/shop-driver", "jobs/shop-driver"]
        );
        wait_driver(&scene, "");
        expect(&ask(&scene, &["stop", "sh?p"]), 0, &["application shop stopped"]);
        wait_nothing_made(&scene);
    }
    // The objects of a killed submit are reported, and removed by a stop.
    let left = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shop-driver",
        "labels": {"posse.dev/app": APP, "app.kubernetes.io/managed-by": "posse",
                   "app.kubernetes.io/component": "driver"}}});
    scene.admin.post(&path(&scene, "/api/v1", "configmaps"), &left).ok();
    let words = ["configmap shop-driver exists already", "posse stop shop"];
    expect(&run(&scene).once(&["submit"]), 3, &words);
    stop_and_finish(scene);
}

/// An interrupt during the creation deletes what was created, unless it is all.
pub fn submit_interrupted(server: &dyn Server) {
    let scene = Scene::new(server);
    let submit = interrupt_at(&scene, "POST", "/services?");
    let said = submit.stderr();
    assert!(said.contains("application shop is not submitted: interrupted"), "{said}");
    wait_nothing_made(&scene);
    let submit = interrupt_at(&scene, "PATCH", "/services/");
    let said = submit.stderr();
    assert!(said.contains("application shop keeps running"), "{said}");
    stop_and_finish(scene);
}

/// A submit that is interrupted while the server works on a request.
fn interrupt_at(scene: &Scene<'_>, method: &'static str, path: &'static str) -> Posse {
    let (is_there, may_go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (there, go) = (Arc::clone(&is_there), Arc::clone(&may_go));
    let proxy = Proxy::start(&scene.server.access(Who::Admin), move |request, _| {
        let is_meant = request.method == method
            && request.path.contains(path)
            && !request.path.contains("dryRun");
        if is_meant {
            there.store(true, Ordering::SeqCst);
            wait_for(PATIENCE, "the test", || go.load(Ordering::SeqCst));
        }
        ProxyAction::Pass
    });
    let submit = run_with(scene, &proxy.access()).begin(&["submit"]);
    wait_for(PATIENCE, "the request", || is_there.load(Ordering::SeqCst));
    // Like INT, which a shell makes its background jobs ignore.
    submit.signal(Signal::TERM);
    wait_for(PATIENCE, "a word on it", || submit.stderr().contains("interrupted: "));
    may_go.store(true, Ordering::SeqCst);
    submit.expect_exit(130);
    submit
}

/// A deadline ends the application.
pub fn submit_past_its_deadline(server: &dyn Server) {
    let scene = Scene::new(server);
    let later = json!({"driver": {"deadline": "1h", "retries": 3}});
    let submit = run(&scene).executors(1).settings(later).begin(&["submit"]);
    let driver = wait_driver(&scene, "");
    wait_executors(&scene, &driver, 1);
    // The deadline comes when all run, however long their start takes.
    let job = format!("{}/shop-driver", path_of_jobs(&scene));
    assert_eq!(scene.admin.get(&job).ok()["spec"]["activeDeadlineSeconds"], 3_600);
    let now = json!({"spec": {"activeDeadlineSeconds": 1}});
    scene.admin.merge_patch(&job, &now).ok();
    assert_ne!(submit.wait_exit(PATIENCE), 0, "{}", submit.stderr());
    let said = submit.stderr();
    assert!(
        said.contains("DeadlineExceeded: Job was active longer than specified deadline"),
        "{said}"
    );
    stop_and_finish(scene);
}

/// A drain is not a failure: a new driver starts without using up a retry.
pub fn submit_drained(server: &dyn Server) {
    let scene = Scene::new(server);
    let submit = run(&scene).executors(1).begin(&["submit"]);
    let first = wait_driver(&scene, "");
    wait_executors(&scene, &first, 1);
    let name = name_of(&first);
    let path = format!("{}/{name}/eviction", crate::support::server::pods_path(&scene.namespace));
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    scene.admin.post(&path, &eviction).ok();
    let second = wait_driver(&scene, uid_of(&first));
    wait_executors(&scene, &second, 1);
    // The Job counts the drained pod, and posse keeps the limit above its count.
    wait_value(PATIENCE, "one failure more, and one more to come", || {
        let job = scene.admin.get(&format!("{}/shop-driver", path_of_jobs(&scene))).ok();
        let fits = job["status"]["failed"] == 1 && job["spec"]["backoffLimit"] == 51;
        if fits { Ok(()) } else { Err(job) }
    });
    scene.end(&second, End::Exit(0));
    submit.expect_exit(0);
    stop_and_finish(scene);
}

fn path_of_jobs(scene: &Scene<'_>) -> String {
    path(scene, "/apis/batch/v1", "jobs")
}

/// Many submissions at once with one name: one creates the driver, the others get an error.
pub fn submit_twice_at_once(server: &dyn Server) {
    let scene = Scene::new(server);
    let all: Vec<Posse> = (0..4).map(|_| run(&scene).begin(&["submit", "--no-wait"])).collect();
    let codes: Vec<i32> = all.iter().map(|posse| posse.wait_exit(PATIENCE)).collect();
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1, "{codes:?}");
    let driver = wait_driver(&scene, "");
    assert_eq!(pods_of(&scene, "driver").len(), 1);
    // The others deleted only their own objects.
    assert_eq!(
        made_by_submit(&scene),
        ["configmaps/shop-driver", "services/shop-driver", "jobs/shop-driver"]
    );
    let owner = &driver["metadata"]["ownerReferences"][0]["uid"];
    for (root, resource, _) in KINDS.iter().filter(|(_, name, made)| *made && *name != "jobs") {
        let path = format!("{}/shop-driver", path(&scene, root, resource));
        let part = scene.admin.get(&path).ok();
        assert_eq!(part["metadata"]["ownerReferences"][0]["uid"], *owner, "{part}");
    }
    stop_and_finish(scene);
}

/// If a driver's pod is lost, the Job creates another, with a new instance and its own executors.
pub fn submit_with_a_lost_pod(server: &dyn Server) {
    let scene = Scene::new(server);
    let retries = json!({"driver": {"retries": 2}});
    let submit = run(&scene).executors(2).settings(retries).begin(&["submit"]);
    let first = wait_driver(&scene, "");
    wait_executors(&scene, &first, 2);
    scene.delete(&first);
    let second = wait_driver(&scene, uid_of(&first));
    wait_executors(&scene, &second, 2);
    wait_value(PATIENCE, "no executor of the first to be left", || {
        let mut pods = pods_of(&scene, "executor");
        pods.retain(|pod| {
            pod["metadata"]["ownerReferences"][0]["uid"] != second["metadata"]["uid"]
        });
        if pods.is_empty() { Ok(()) } else { Err(describe(&pods)) }
    });
    scene.end(&second, End::Exit(3));
    let third = wait_driver(&scene, uid_of(&second));
    scene.end(&third, End::Exit(0));
    submit.expect_exit(0);
    stop_and_finish(scene);
}

/// A bare pod is created, followed and stopped like a Job.
pub fn submit_of_a_bare_pod(server: &dyn Server) {
    let scene = Scene::new(server);
    let bare = json!({"driver": {"kind": "pod", "retries": 0}});
    let submit = run(&scene).executors(1).settings(bare.clone()).begin(&["submit"]);
    let driver = wait_driver(&scene, "");
    assert_eq!(name_of(&driver), "shop-driver");
    wait_executors(&scene, &driver, 1);
    scene.end(&driver, End::Exit(7));
    submit.expect_exit(7);
    // A pod that has ended is replaced.
    let again = run(&scene).settings(bare).begin(&["submit"]);
    wait_driver(&scene, uid_of(&driver));
    expect(&ask(&scene, &["apps", "-o", "wide"]), 0, &["shop-driver", "Running"]);
    expect(&ask(&scene, &["stop", APP]), 0, &["application shop stopped"]);
    let code = again.wait_exit(PATIENCE);
    assert_ne!(code, 0, "{}", again.stderr());
    wait_nothing_made(&scene);
    scene.finish();
}

/// An interrupt while following does not stop the application; a second wait finds it and its log.
pub fn submit_detached(server: &dyn Server) {
    let scene = Scene::new(server);
    let submit = run(&scene).begin(&["submit"]);
    let driver = wait_driver(&scene, "");
    wait_for(PATIENCE, "the wait to have begun", || submit.stderr().contains("runs on "));
    // Like INT, which a shell makes its background jobs ignore.
    submit.signal(Signal::TERM);
    submit.expect_exit(130);
    let said = submit.stderr();
    assert!(said.contains("application shop keeps running: `posse logs shop -f`"), "{said}");
    assert!(is_running(&scene.pod(name_of(&driver)).unwrap()));
    stop_and_finish(scene);
}

/// A stop ends the driver and its executors, which the garbage collector would delete later, also
/// if the permissions to do so belong to the application.
pub fn submit_stopped(server: &dyn Server) {
    let scene = Scene::new(server);
    let own = json!({"driver": {"pod": null, "retries": 3}});
    let done =
        run(&scene).executors(3).settings(own).once(&["submit", "--no-wait", "--create-rbac"]);
    expect(&done, 0, &[]);
    let driver = wait_driver(&scene, "");
    wait_executors(&scene, &driver, 3);
    expect(&ask(&scene, &["stop", "nothing"]), 1, &["there is no application nothing"]);
    expect(&ask(&scene, &["stop", "x*"]), 1, &["there is no application x*"]);
    expect(&ask(&scene, &["stop", "s*", "--grace", "9s"]), 0, &["application shop stopped"]);
    assert_eq!(describe(&scene.ours()), "0 pods: ");
    wait_nothing_made(&scene);
    // Runs of others on this host are listed, too.
    expect(&ask(&scene, &["apps", APP]), 1, &["there is no application shop"]);
    expect(&ask(&scene, &["logs", APP]), 1, &["there is no application shop"]);
    scene.finish();
}

/// A driver's pod that somebody's finalizer holds: the stop names it, and does not call the application stopped.
pub fn submit_held_by_a_finalizer(server: &dyn Server) {
    let scene = Scene::new(server);
    expect(&run(&scene).once(&["submit", "--no-wait"]), 0, &[]);
    let driver = wait_driver(&scene, "");
    let path = format!("{}/{}", pods_path(&scene.namespace), name_of(&driver));
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    scene.admin.merge_patch(&path, &held).ok();
    let words = format!(
        "{} (held by finalizer example.com/hold, which nobody here removes)",
        name_of(&driver)
    );
    expect(&ask(&scene, &["stop", APP, "--grace", "1s"]), 12, &[&words]);
    scene.admin.merge_patch(&path, &json!({"metadata": {"finalizers": null}})).ok();
    // What is left goes with the pod, or by another stop.
    ask(&scene, &["stop", APP]);
    wait_nothing_made(&scene);
    scene.finish();
}

/// The log is complete and in order, each line once, although the connection is cut repeatedly, and
/// continues with the next pod.
pub fn submit_logs_over_cuts(server: &dyn Server) {
    let scene = Scene::new(server);
    let proxy = Arc::new(Proxy::start(&server.access(Who::Admin), |_, _| ProxyAction::Pass));
    let script =
        "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo \"line $i\"; sleep 0.01; done; exit 5";
    let driver = json!({"driver": {"command": ["sh", "-c", script], "retries": 1,
        "env": [{"name": "POSSE_LOG", "value": "error"}]}});
    let submit = run_with(&scene, &proxy.access()).settings(driver).begin(&["submit", "--logs"]);
    let lines = || submit.stdout().lines().filter(|line| line.starts_with("line ")).count();
    for at in [50, 150, 300, 500] {
        wait_for(PATIENCE, "more lines", || lines() >= at || submit.is_over());
        proxy.down();
        proxy.up();
    }
    submit.expect_exit(5);
    let said = submit.stdout();
    let got: Vec<&str> = said.lines().filter(|line| line.starts_with("line ")).collect();
    let want: Vec<String> = (0..2).flat_map(|_| (1..=400).map(|i| format!("line {i}"))).collect();
    assert_eq!(got, want);
    stop_and_finish(scene);
}

/// A driver that is killed together with posse leaves executors, which end all the same. What has failed before stays.
pub fn submit_out_of_memory(server: &dyn Server) {
    let scene = Scene::new(server);
    let submit = run(&scene).executors(2).begin(&["submit"]);
    let driver = wait_driver(&scene, "");
    wait_executors(&scene, &driver, 2);
    let failed = pods_of(&scene, "executor").remove(0);
    scene.end(&failed, End::Exit(3));
    wait_value(PATIENCE, "another executor in its place", || {
        let pods = pods_of(&scene, "executor");
        let n_up = pods.iter().filter(|pod| is_running(pod)).count();
        if (n_up, pods.len()) == (2, 3) { Ok(()) } else { Err(describe(&pods)) }
    });
    // The OOM killer ends the whole container at once.
    let pods = scene.pods();
    assert!(!pods.is_empty());
    kill_container_of(&scene, &driver);
    submit.expect_exit(137);
    wait_value(PATIENCE, "only the failed one to be left", || {
        let pods = pods_of(&scene, "executor");
        let is_left = pods.iter().map(name_of).eq([name_of(&failed)]);
        if is_left { Ok(()) } else { Err(describe(&pods)) }
    });
    stop_and_finish(scene);
}

/// Kills the processes of a driver's pod, which have its name in their environment.
pub(super) fn kill_container_of(_scene: &Scene<'_>, pod: &Value) {
    let mark = format!("POD_UID={}", uid_of(pod));
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environ.split(|byte| *byte == 0).any(|one| one == mark.as_bytes()) {
            found.push(rustix::process::Pid::from_raw(pid).unwrap());
        }
    }
    assert!(found.len() >= 2, "posse and its driver have the pod's uid in their environment");
    // Stopped first: none may see another one's end, and act on it.
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in &found {
            // An error means that it ended with the one before it.
            let _ = rustix::process::kill_process(*pid, signal);
        }
    }
}

/// The example word count as a Job.
pub fn submit_wordcount() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = crate::support::scene::TempDir::new("wordcount");
    let embedded = Embedded::start_in(root);
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig, embedded.access(Who::Admin).kubeconfig("default")).unwrap();
    let output = crate::support::posse::command(dir.path())
        .current_dir(root)
        .args(["submit", "-f", "examples/wordcount/posse.yaml", "--create-rbac", "--logs"])
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .output()
        .expect("the binary can be started");
    let words = [
        "begun again after a loss: 0",
        "same as one sort | uniq -c: yes",
        "application wordcount succeeded",
    ];
    expect(&output, 0, &words);
}

/// A misspelt field in the driver's template, or in one of its executors.
pub fn submit_misspelt(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.write_template("typo.yaml", |template| {
        template["spec"]["containers"][0]["comand"] = json!(["true"]);
    });
    let words = "unknown field \"spec.containers[0].comand\"";
    let of_executors = run(&scene).executors(1).arg("--template").arg("typo.yaml");
    let of_driver = run(&scene).settings(json!({"driver": {"template": "typo.yaml", "pod": null}}));
    for (run, what) in [(of_executors, "group default"), (of_driver, "driver")] {
        let submit = run.begin(&["submit"]);
        submit.expect_exit(4);
        let said = submit.stderr();
        assert!(said.contains(words) && said.contains(what), "{said}");
    }
    wait_nothing_made(&scene);
    scene.finish();
}
