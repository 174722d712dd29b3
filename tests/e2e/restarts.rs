//! The next driver: in the same pod, in another pod, or two at once; the executors of earlier
//! drivers; and what follows if the driver's node is lost.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use posse_encoding::yaml::Node;

use crate::support::access::Access;
use crate::support::embedded::Embedded;
use crate::support::posse::{Posse, Run, said};
use crate::support::proxy::{Proxy, ProxyAction, status};
use crate::support::real::{Real, free_port};
use crate::support::runner::ASSETS;
use crate::support::scene::{
    APP, Scene, describe, executor_id, is_over, is_running, name_of, uid_of,
};
use crate::support::server::{End, Server, Who, items, pods_path};
use crate::support::wait::{PATIENCE, stays_true, wait_for, wait_value};

fn instance_of(pod: &Value) -> &str {
    pod["metadata"]["labels"]["posse.dev/instance"].as_str().unwrap_or_default()
}

fn uids(pods: &[Value]) -> Vec<String> {
    pods.iter().map(|pod| uid_of(pod).to_owned()).collect()
}

pub fn in_pod(run: Run, pod: &Value) -> Run {
    run.in_pod(name_of(pod), uid_of(pod))
}

/// Exactly `n` executors run of the instance that `pod` gives its driver.
#[track_caller]
fn wait_of(scene: &Scene<'_>, n: usize, fits: impl Fn(&str) -> bool) -> Vec<Value> {
    wait_value(PATIENCE, &format!("{n} executors of the instance"), || {
        let mut ours = scene.ours();
        ours.retain(|pod| fits(instance_of(pod)) && is_running(pod));
        if ours.len() == n { Ok(ours) } else { Err(describe(&scene.ours())) }
    })
}

/// A run that is killed in its pod and leaves its executors.
fn leave_behind(scene: &Scene<'_>, pod: &Value) -> Vec<Value> {
    let before: Vec<String> = scene.ours().iter().map(|pod| instance_of(pod).to_owned()).collect();
    let posse = in_pod(scene.run().executors(1), pod).start();
    let left = wait_of(scene, 1, |instance| !before.iter().any(|known| known == instance));
    posse.kill();
    left
}

fn delete_lease(scene: &Scene<'_>, name: &str) {
    let path = leases_path(scene);
    scene.admin.delete(&format!("{path}/{name}"), &json!({})).ok();
}

pub(super) fn leases_path(scene: &Scene<'_>) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", scene.namespace)
}

pub fn wait_failed(scene: &Scene<'_>, pod: &Value) {
    wait_for(PATIENCE, "the driver's pod to fail", || {
        scene.pod(name_of(pod)).is_some_and(|pod| is_over(&pod))
    });
}

/// A driver's container is killed and restarted in the same pod: it is the same instance at once
/// and adopts its executors.
pub fn container_restarted(server: &dyn Server) {
    let scene = Scene::new(server);
    // As the first process of a container, and as a child of a shell.
    for (name, is_init) in [("bare", true), ("wrapped", false)] {
        let pod = scene.make_driver_pod(name);
        let run = || {
            let settings = json!({"app": name});
            let run = in_pod(scene.run().executors(2).settings(settings).arg("--exclusive"), &pod);
            if is_init { run.into_init() } else { run }
        };
        let first = run().start();
        let before = scene.wait_running(2);
        first.wait_events("executor_running", 2);
        first.kill();
        let second = run().start();
        second.wait_ready();
        assert_eq!(uids(&scene.wait_running(2)), uids(&before), "they are adopted");
        assert_eq!(second.events_of("executor_requested"), [] as [Value; 0]);
        second.kill();
        scene.remove(&pod);
        scene.wait_none();
    }
    scene.finish();
}

/// A new driver pod does not wait for the executors of older instances, and removes orphans: of a
/// driver that failed and of one that was deleted, but not of one that is alive.
pub fn orphans_of_older_instances(server: &dyn Server) {
    let scene = Scene::new(server);
    let drivers = ["failed", "gone", "alive"].map(|name| scene.make_driver_pod(name));
    let [of_failed, of_gone, of_alive] = drivers.each_ref().map(|pod| leave_behind(&scene, pod));
    scene.hold_deletes(true);
    scene.end(&drivers[0], End::Exit(1));
    wait_failed(&scene, &drivers[0]);
    scene.remove(&drivers[1]);
    let new_pod = scene.make_driver_pod("new");
    let posse = in_pod(scene.run().executors(2), &new_pod).start();
    let told = |pods: &[Value]| {
        posse
            .stderr()
            .contains(&format!("orphaned executors of instance {}", instance_of(&pods[0])))
    };
    wait_for(PATIENCE, "the failed one's to be removed", || told(&of_failed));
    // The new executors run although the old ones still terminate.
    let old = [instance_of(&of_failed[0]), instance_of(&of_gone[0]), instance_of(&of_alive[0])];
    let new = wait_of(&scene, 2, |instance| !old.contains(&instance));
    assert_eq!(
        new.iter().map(executor_id).collect::<Vec<_>>(),
        [1, 2],
        "a new instance begins anew"
    );
    assert!(scene.pod(name_of(&of_failed[0])).is_some(), "its end is held up");
    scene.hold_deletes(false);
    wait_for(PATIENCE, "the old ones to go", || {
        [&of_failed, &of_gone].iter().all(|pods| scene.pod(name_of(&pods[0])).is_none())
    });
    let alive = scene.pod(name_of(&of_alive[0])).expect("its owner lives");
    assert!(is_running(&alive), "{alive}");
    posse.stop();
    // Without permission to list them, a run leaves orphans and continues.
    scene.end(&drivers[2], End::Exit(1));
    wait_failed(&scene, &drivers[2]);
    let last_pod = scene.make_driver_pod("last");
    let proxy = Proxy::start(&server.access(Who::Posse), |request, _| {
        match request.path.contains("instance%21%3D") {
            true => ProxyAction::Reply(403, status(403, "Forbidden", "pods is forbidden")),
            false => ProxyAction::Pass,
        }
    });
    let run = in_pod(scene.run_with(&proxy.access()).executors(1), &last_pod).start();
    wait_of(&scene, 1, |instance| instance != old[2]);
    wait_for(PATIENCE, "the missing right to be told", || {
        run.stderr().contains("this is not permitted")
    });
    run.stop();
    assert!(is_running(&scene.pod(name_of(&of_alive[0])).expect("kept")));
    for name in ["failed", "alive", "new", "last"] {
        scene.remove(&scene.pod(name).expect("it is there"));
    }
    scene.finish();
}

/// With `exclusive` the second driver waits until the first has ended, and then works.
pub fn exclusive_waits_for_the_other_driver(server: &dyn Server) {
    let scene = Scene::new(server);
    let pods = ["one", "two"].map(|name| scene.make_driver_pod(name));
    let run = |pod| in_pod(scene.run().executors(1).settings(json!({"exclusive": true})), pod);
    let first = run(&pods[0]).start();
    let of_first = scene.wait_running(1);
    let second = run(&pods[1]).start();
    wait_for(PATIENCE, "the second to wait", || {
        let said = second.stderr();
        let line = said.lines().find(|line| line.contains("the application is held by process"));
        line.is_some_and(|line| line.contains(&format!("of pod {}", uid_of(&pods[0]))))
    });
    stays_true(Duration::from_secs(1), "it goes on waiting", || !second.is_over());
    assert_eq!(uids(&scene.wait_running(1)), uids(&of_first), "nothing is made by it");
    let third = run(&pods[1]).driver(&["true"]).start();
    wait_for(PATIENCE, "the third to wait", || third.stderr().contains("the application is held"));
    third.signal(Signal::TERM);
    third.expect_exit(3);
    first.stop();
    let of_second = wait_of(&scene, 1, |instance| instance != instance_of(&of_first[0]));
    assert_eq!(executor_id(&of_second[0]), 1);
    second.stop();
    for pod in &pods {
        scene.remove(pod);
    }
    scene.finish();
}

/// A run that loses the application to another one ends its driver and leaves the executors to the
/// new holder, which adopts them if it is the same instance.
pub fn exclusive_lost_to_another(server: &dyn Server) {
    let scene = Scene::new(server);
    let told = scene.file("told");
    let script = format!(
        "trap 'touch {}; exit 7' TERM; while kill -0 $PPID; do sleep 0.1; done",
        told.display()
    );
    let run = || scene.run().executors(2).instance("twins").arg("--exclusive");
    let loser = run().driver(&["sh", "-c", &script]).start();
    let before = scene.wait_running(2);
    loser.wait_events("executor_running", 2);
    // What another process writes after it has waited for long enough.
    let path = format!("{}/{APP}.exclusive", leases_path(&scene));
    let taken = json!({"spec": {"holderIdentity": "rival"}});
    scene.admin.merge_patch(&path, &taken).ok();
    loser.expect_exit(13);
    assert!(told.exists(), "its driver is told to end");
    assert!(loser.stderr().contains("taken over (rival)"), "{}", loser.stderr());
    assert_eq!(uids(&scene.wait_running(2)), uids(&before), "the executors are the winner's");
    let lease = scene.admin.get(&path).ok();
    assert_eq!(lease["spec"]["holderIdentity"], "rival", "the loser takes nothing back: {lease}");
    delete_lease(&scene, &format!("{APP}.exclusive"));
    let winner = run().start();
    winner.wait_ready();
    assert_eq!(uids(&scene.wait_running(2)), uids(&before));
    winner.stop();
    scene.finish();
}

/// Executors that reach their maximum age are ended by the kubelet and replaced, and count against
/// no budget.
pub fn executors_at_their_maximum_age(server: &dyn Server) {
    let scene = Scene::new(server);
    let group = json!({"group": "default", "count": 1, "template": "pod.json", "max_age": "2s"});
    // A loss in the app budget would end the application.
    let settings = json!({"executors": [group], "failures": {"app": 0}});
    let posse = scene.run().settings(settings).start();
    let first = scene.wait_running(1);
    assert_eq!(first[0]["spec"]["activeDeadlineSeconds"], 2);
    if server.real().is_some() {
        scene.end(&first[0], End::PodFailed("DeadlineExceeded"));
    }
    let lost = posse.wait_event("executor_lost", |_| true);
    let told = (&lost["reason"], &lost["budget"], &lost["caused_by_app"]);
    assert_eq!(told, (&json!("deadline_exceeded"), &Value::Null, &json!(false)), "{lost}");
    posse.wait_event("executor_running", |event| event["executor"] == 2);
    posse.stop();
    scene.finish();
}

/// Executors of a driver outside the cluster are deleted when its Lease was not renewed for long;
/// for every application, with the permissions of deploy/cleanup.yaml alone.
pub fn stale_leases_are_cleaned_up(server: &dyn Server) {
    // The embedded cluster that all tests share enforces no roles.
    let own = server.real().is_none().then(|| Embedded::start_with(&["--rbac"]));
    let scene = Scene::new(own.as_ref().map_or(server, |own| own));
    let left = scene.run().executors(2).instance("away1").start();
    scene.wait_running(2);
    left.kill();
    let idle = scene.run().settings(json!({"app": "other"})).instance("away2").start();
    idle.wait_ready();
    idle.kill();
    let (access, args) = cleaner(&scene);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let clean = || {
        let output = scene.command(&access, &args).output().expect("the binary can be started");
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    };
    let first = clean();
    assert!(first.contains("kept: they have no owner, and their lease was renewed"), "{first}");
    let pods = scene.wait_running(2);
    // One is in a group of a queue, and the other one is of a Job that has ended.
    let ended = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "ended"},
        "spec": {"completions": 0, "template": job(&scene, &["true"])["spec"]["template"]}});
    let ended = scene.admin.post(&jobs_path(&scene), &ended).ok();
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "ended",
        "uid": ended["metadata"]["uid"]});
    for (pod, metadata) in pods.iter().zip([
        json!({"labels": {"kueue.x-k8s.io/pod-group-name": "g"},
            "finalizers": ["kueue.x-k8s.io/managed"]}),
        json!({"ownerReferences": [owner]}),
    ]) {
        let path = format!("{}/{}", pods_path(&scene.namespace), name_of(pod));
        scene.admin.merge_patch(&path, &json!({ "metadata": metadata })).ok();
    }
    // As if they had not been renewed for an hour.
    let path = leases_path(&scene);
    for name in [format!("{APP}-away1"), "other-away2".to_owned()] {
        let old = json!({"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}});
        scene.admin.merge_patch(&format!("{path}/{name}"), &old).ok();
    }
    let second = clean();
    assert!(second.contains("removed 2 executors and 2 leases"), "{second}");
    assert_eq!(items(&scene.admin.get(&path).ok()), [] as [Value; 0], "no Lease is left");
    scene.finish();
}

/// The service account of the CronJob in deploy/cleanup.yaml, with the permissions of that file and
/// no others, and the command that it runs.
fn cleaner(scene: &Scene<'_>) -> (Access, Vec<String>) {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/cleanup.yaml"));
    let text = text.expect("it is there");
    let rbac = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}", scene.namespace);
    let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", scene.namespace);
    let mut args = Vec::new();
    for document in text.split("\n---\n") {
        let object = Node::read(document).expect("it is YAML").to_json();
        let path = match object["kind"].as_str() {
            Some("ServiceAccount") => accounts.clone(),
            Some("Role") => format!("{rbac}/roles"),
            Some("RoleBinding") => format!("{rbac}/rolebindings"),
            _ => {
                let container =
                    &object["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0];
                let words = container["args"].as_array().expect("it has arguments");
                args = words.iter().map(|word| word.as_str().expect("a word").to_owned()).collect();
                continue;
            }
        };
        scene.admin.post(&path, &object).ok();
    }
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": 600}});
    let path = format!("{accounts}/posse-cleanup/token");
    let token = scene.admin.post(&path, &asked).ok()["status"]["token"].clone();
    let token = token.as_str().map(str::to_owned);
    let access = scene.server.access(Who::Posse);
    (Access { client: None, token, ..access }, args)
}

/// A Job whose pod runs posse as its entry point.
fn job(scene: &Scene<'_>, words: &[&str]) -> Value {
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "app"}, "spec": {
        "backoffLimit": 3, "template": {"spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 30,
            "containers": [{
                "name": "driver", "image": "example.com/posse:1", "command": words,
                "env": [
                    {"name": "POD_NAME", "valueFrom": field("metadata.name")},
                    {"name": "POD_UID", "valueFrom": field("metadata.uid")},
                    {"name": "POD_IP", "valueFrom": field("status.podIP")},
                    {"name": "POSSE_LOG", "value": "posse=debug"},
                    {"name": "XDG_RUNTIME_DIR", "value": scene.dir.path().display().to_string()},
                ],
            }],
        }},
    }})
}

fn jobs_path(scene: &Scene<'_>) -> String {
    format!("/apis/batch/v1/namespaces/{}/jobs", scene.namespace)
}

/// The running pod of the driver, other than `not`.
#[track_caller]
fn wait_driver_pod(scene: &Scene<'_>, not: &str) -> Value {
    wait_value(PATIENCE, "a pod of the job to run", || {
        let is_drivers = |pod: &Value| pod["metadata"]["labels"]["job-name"] == "app";
        let mut pods = scene.pods();
        pods.retain(is_drivers);
        let found = pods.iter().find(|pod| is_running(pod) && uid_of(pod) != not).cloned();
        found.ok_or_else(|| describe(&pods))
    })
}

fn on_node(node: &Value) -> impl Fn(&&Value) -> bool {
    move |pod| pod["spec"]["nodeName"] == *node
}

/// The driver's node shuts down while executors run on several nodes: a new driver on another node,
/// a new instance, the target reached, the old executors gone, without manual action.
pub fn driver_node_shut_down() {
    let own = Embedded::start_with(&["--nodes", "3"]);
    let scene = Scene::new(&own);
    let end = scene.file("the.end");
    let script = format!(
        "until test -e {}; do kill -0 $PPID || exit 9; sleep 0.05; done; echo the end",
        end.display()
    );
    let settings = json!({"app": APP, "namespace": scene.namespace, "exclusive": true,
        "executors": [{"count": 6, "template": "pod.json"}],
        "shutdown": {"grace": "20s", "timeout": "20s"}});
    let config = scene.file("posse.yaml");
    fs::write(&config, settings.to_string()).expect("writable");
    let program = env!("CARGO_BIN_EXE_posse");
    let config = config.display().to_string();
    let words = [program, "run", "-f", &config, "--", "sh", "-c", &script];
    scene.admin.post(&jobs_path(&scene), &job(&scene, &words)).ok();
    let first_driver = wait_driver_pod(&scene, "");
    let first = scene.wait_running(6);
    let node = &first_driver["spec"]["nodeName"];
    assert!(first.iter().any(|pod| on_node(node)(&pod)), "some are on the driver's node");
    assert!(!first.iter().all(|pod| on_node(node)(&pod)), "and not all");
    let path = format!("/api/v1/nodes/{}", node.as_str().expect("it is bound"));
    scene.admin.delete(&path, &json!({})).ok();
    remove_all_on(&scene, node);
    let second_driver = wait_driver_pod(&scene, uid_of(&first_driver));
    assert_ne!(second_driver["spec"]["nodeName"], *node);
    let second = scene.wait_running(6);
    check_heirs(&first, &second, &second_driver);
    fs::write(end, "").expect("writable");
    wait_for(PATIENCE, "the job to be complete", || {
        let job = scene.admin.get(&format!("{}/app", jobs_path(&scene))).ok();
        job["status"]["succeeded"] == 1
    });
    delete_job(&scene);
    scene.finish();
}

/// What the cluster does about the pods of a lost node after its grace period of 40 s.
fn remove_all_on(scene: &Scene<'_>, node: &Value) {
    for pod in scene.pods().iter().filter(on_node(node)) {
        scene.remove(pod);
    }
}

fn delete_job(scene: &Scene<'_>) {
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1",
        "propagationPolicy": "Background"});
    scene.admin.delete(&format!("{}/app", jobs_path(scene)), &options).ok();
}

fn check_heirs(first: &[Value], second: &[Value], driver: &Value) {
    for pod in second {
        assert_ne!(instance_of(pod), instance_of(&first[0]), "a new instance");
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], uid_of(driver));
    }
    let mut ids: Vec<u64> = second.iter().map(executor_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=second.len() as u64).collect::<Vec<_>>(), "its ids begin anew");
}

/// The same with the real Job and garbage collection controllers. There is no kubelet: posse runs
/// beside the server for each pod of the Job, and ends with the node.
pub fn driver_node_lost() {
    let assets = std::env::var_os(ASSETS).expect("it is set for the real server's scenarios");
    let own = Real::start_whole(assets.as_ref());
    let scene = Scene::new(&own);
    scene.admin.post(&jobs_path(&scene), &job(&scene, &["posse"])).ok();
    let start = |pod: &Value| -> Posse {
        let run = scene.run().executors(4).settings(json!({"exclusive": true}));
        in_pod(run, pod).into_init().start()
    };
    let first_driver = wait_driver_pod(&scene, "");
    let posse = start(&first_driver);
    let first = scene.wait_running(4);
    let node = first_driver["spec"]["nodeName"].clone();
    assert!(first.iter().any(|pod| on_node(&node)(&pod)), "some are on the driver's node");
    assert!(!first.iter().all(|pod| on_node(&node)(&pod)), "and not all");
    posse.kill();
    remove_all_on(&scene, &node);
    let second_driver = wait_driver_pod(&scene, uid_of(&first_driver));
    let posse = start(&second_driver);
    let second = wait_value(PATIENCE, "the new ones alone", || {
        let ours = scene.ours();
        let is_new = |pod: &Value| instance_of(pod) != instance_of(&first[0]) && is_running(pod);
        if ours.len() == 4 && ours.iter().all(is_new) { Ok(ours) } else { Err(describe(&ours)) }
    });
    check_heirs(&first, &second, &second_driver);
    posse.kill();
    delete_job(&scene);
    scene.finish();
}

/// A pod that cannot find out about its Job asks again: else it would begin beside what the Job's earlier pods have left.
/// Without any answer it ends with a code that the Job does not count.
pub fn a_pod_asks_until_it_knows_its_job(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.admin.post(&jobs_path(&scene), &job(&scene, &["sleep", "1000"])).ok();
    let pod = wait_value(PATIENCE, "the pod of the Job", || {
        let pods = items(&scene.admin.get(&pods_path(&scene.namespace)).ok());
        pods.into_iter().find(is_running).ok_or("not yet")
    });
    // Each is away for longer than a request of a command is repeated, or refused for a moment.
    let n_pod = Arc::new(AtomicUsize::new(6));
    let n_left = [Arc::clone(&n_pod), Arc::new(AtomicUsize::new(6)), Arc::new(AtomicUsize::new(1))];
    let path = format!("{}/{}", pods_path(&scene.namespace), name_of(&pod));
    let proxy = Proxy::start(&server.access(Who::Admin), move |request, _| {
        let of = match request.path.split('?').next().unwrap_or_default() {
            asked if asked == path => 0,
            asked if asked.ends_with("/jobs/app") => 2,
            _ if request.path.contains("job-name") => 1,
            _ => return ProxyAction::Pass,
        };
        let less = |n: usize| n.checked_sub(1);
        match n_left[of].fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) if of == 2 => ProxyAction::Reply(403, status(403, "Forbidden", "not now")),
            Ok(_) => ProxyAction::Reply(503, status(503, "ServiceUnavailable", "not now")),
            Err(_) => ProxyAction::Pass,
        }
    });
    let as_pod = |access: &Access| {
        let settings = json!({"driver": {"keep_executors": true}});
        let run = scene.run_with(access).settings(settings).executors(1).arg("--as-job");
        run.in_pod(name_of(&pod), uid_of(&pod))
    };
    let cut_off = Access { url: format!("http://127.0.0.1:{}", free_port()), ..Access::default() };
    let lost = as_pod(&cut_off).start();
    // No pod is found without its name, and then the Lease is asked for.
    let nameless = scene.run_with(&cut_off).executors(1).arg("--as-job").start();
    let posse = as_pod(&proxy.access()).start();
    let executor = wait_value(PATIENCE, "an executor", || {
        scene.ours().into_iter().find(is_running).ok_or_else(|| posse.stderr())
    });
    let owners = executor["metadata"]["ownerReferences"].as_array().unwrap();
    let kinds: Vec<&Value> = owners.iter().map(|owner| &owner["kind"]).collect();
    assert_eq!(kinds, ["Job", "Lease"], "{}", posse.stderr());
    assert_eq!(n_pod.load(Ordering::SeqCst), 0);
    for posse in [lost, nameless] {
        assert_eq!(posse.wait_exit(PATIENCE), 13, "{}", posse.stderr());
    }
    posse.kill();
    scene
        .admin
        .delete(&format!("{}/app", jobs_path(&scene)), &json!({"propagationPolicy": "Background"}))
        .ok();
    scene.finish();
}
