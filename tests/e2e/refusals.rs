//! Requests that the server refuses: quotas, existing names, stripped labels, templates,
//! permissions, certificates, tokens.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::access::Access;
use crate::support::audit;
use crate::support::certs::Authority;
use crate::support::http::{Client, gone_in};
use crate::support::node::wait_bound;
use crate::support::posse::{Posse, said};
use crate::support::proxy::{Proxy, ProxyAction, status};
use crate::support::real::Account;
use crate::support::scene::{APP, GRACE_S, Scene, describe, executor_id, name_of, uid_of, up_file};
use crate::support::server::{End, Server, Who, pods_path};
use crate::support::wait::{PATIENCE, stays_true, wait_for, wait_value};

/// A stop with no create of unknown outcome. One with such a create takes a minute.
const NOTHING_OPEN: Duration = Duration::from_secs(20);

/// A limit on the namespace's pods.
struct Quota {
    /// Counts the creates if there is no audit log.
    proxy: Option<Proxy>,
}

impl Quota {
    fn new(scene: &Scene<'_>, hard: usize) -> Self {
        let body = json!({"apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": "room"}, "spec": {"hard": {"pods": hard.to_string()}}});
        scene.admin.post(&Self::path(scene), &body).ok();
        Self::wait_in_force(scene, hard);
        let counted = || Proxy::start(&scene.server.access(Who::Posse), |_, _| ProxyAction::Pass);
        Self { proxy: scene.server.real().is_none().then(counted) }
    }

    fn path(scene: &Scene<'_>) -> String {
        format!("/api/v1/namespaces/{}/resourcequotas", scene.namespace)
    }

    /// The quota controller computes the usage before the quota admits a pod.
    fn wait_in_force(scene: &Scene<'_>, hard: usize) {
        wait_value(PATIENCE, "the quota to be in force", || {
            let quota = scene.admin.get(&format!("{}/room", Self::path(scene))).ok();
            let in_force = quota["status"]["hard"]["pods"].as_str();
            if in_force == Some(&*hard.to_string()) {
                Ok(())
            } else {
                Err(quota["status"].to_string())
            }
        });
    }

    fn raise(scene: &Scene<'_>, hard: usize) {
        let body = json!({"spec": {"hard": {"pods": hard.to_string()}}});
        scene.admin.merge_patch(&format!("{}/room", Self::path(scene)), &body).ok();
        Self::wait_in_force(scene, hard);
    }

    fn access(&self, scene: &Scene<'_>) -> Access {
        self.proxy.as_ref().map_or_else(|| scene.server.access(Who::Posse), Proxy::access)
    }

    /// The number of creates so far, refused or not.
    fn n_creates(&self, scene: &Scene<'_>) -> usize {
        if let Some(proxy) = &self.proxy {
            return proxy.n_creates();
        }
        let log = scene.server.audit_log().expect("the real server keeps an audit log");
        let tally = audit::tally(&log, &scene.namespace);
        let creates = tally.iter().filter(|(what, _)| what.starts_with("create pods"));
        creates.map(|(_, n)| *n as usize).sum()
    }
}

/// posse uses the whole quota, waits for the rest with few requests, and uses new room.
pub fn quota_then_room(server: &dyn Server) {
    let scene = Scene::new(server);
    let quota = Quota::new(&scene, 2);
    let posse = scene.run_with(&quota.access(&scene)).executors(5).start();
    posse.wait_event("waiting", |event| event["for"] == "quota");
    scene.wait_running(2);
    let refused = posse.wait_event("create_refused", |_| true);
    let words = refused["message"].as_str().expect("the server's words");
    assert!(words.contains("exceeded quota: room"), "{refused}");
    stays_true(Duration::from_secs(2), "partial capacity", || !posse.is_over());
    let n_asked = quota.n_creates(&scene);
    assert!(n_asked <= 12, "{n_asked} creates against a full quota");
    posse.wait_group("a wait for the quota", |group| group["waiting"] == "quota");
    wait_value(PATIENCE, "posse to explain it", || {
        let explained = posse.ask(&["explain"]);
        let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
        let limits = "; would create 3: at most 0 by quota until ";
        if explained.contains(limits) { Ok(()) } else { Err(explained) }
    });
    Quota::raise(&scene, 4);
    scene.wait_running(4);
    Quota::raise(&scene, 5);
    scene.wait_running(5);
    assert!(posse.events_of("executor_lost").is_empty(), "a refusal is no loss");
    posse.stop();
    scene.finish();
}

/// When an executor goes, its room in the quota is used at once.
pub fn quota_wakes_when_a_pod_goes(server: &dyn Server) {
    let scene = Scene::new(server);
    let quota = Quota::new(&scene, 3);
    let foreign = scene.make_foreign("squatter");
    let posse = scene.run_with(&quota.access(&scene)).executors(3).start();
    posse.wait_event("waiting", |event| event["for"] == "quota");
    let before = scene.wait_running(2);
    scene.end(&before[0], End::Exit(1));
    posse.wait_event("executor_lost", |event| event["uid"] == uid_of(&before[0]));
    scene.delete(&foreign);
    wait_for(PATIENCE, "the foreign pod to go", || scene.pod("squatter").is_none());
    scene.wait_running(3);
    posse.stop();
    scene.finish();
}

/// A foreign pod has our name: posse uses the next id and leaves the pod alone.
pub fn foreign_pod_has_the_name(server: &dyn Server) {
    let scene = Scene::new(server);
    let foreign = scene.make_foreign("shop-inst1-exec-1");
    let posse = scene.run().executors(2).instance("inst1").start();
    let ours = scene.wait_running(2);
    assert!(ours.iter().all(|pod| executor_id(pod) >= 2), "{}", describe(&ours));
    posse.stop();
    scene.wait_none();
    let still = scene.pod("shop-inst1-exec-1").expect("it is not ours to delete");
    assert_eq!(uid_of(&still), uid_of(&foreign));
    assert!(still["metadata"]["deletionTimestamp"].is_null());
    scene.finish();
}

/// Pods of others get all labels of an executor, with silly ids and slots. A run, its stop and a
/// cleanup neither count nor touch them.
pub fn foreign_pods_are_left_alone(server: &dyn Server) {
    let scene = Scene::new(server);
    let victims = ["victim-db", "shop-inst1-exec-18446744073709551615"];
    let before = victims.map(|name| scene.make_foreign(name));
    let posse = scene.run().executors(2).instance("inst1").start();
    scene.wait_running_ids(&[1, 2]);
    let labels = json!({"metadata": {"labels": {
        "posse.dev/app": APP, "posse.dev/instance": "inst1", "posse.dev/group": "default",
        "posse.dev/executor-id": "1", "posse.dev/slot": "1000000",
        "app.kubernetes.io/component": "executor",
    }}});
    for name in victims {
        scene.admin.merge_patch(&format!("{}/{name}", pods_path(&scene.namespace)), &labels).ok();
        posse.wait_event("foreign_pod", |event| event["pod"] == name);
    }
    posse.scale("default", 4);
    scene.wait_running_ids(&[1, 2, 3, 4]);
    posse.wait_group("four of four", |group| group["running"] == 4 && group["target"] == 4);
    assert_eq!(posse.events_of("foreign_pod").len(), 2, "each is told once");
    posse.stop();
    scene.wait_none();
    let managed = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "posse"}}});
    for name in victims {
        scene.admin.merge_patch(&format!("{}/{name}", pods_path(&scene.namespace)), &managed).ok();
    }
    let output = scene.cleanup_as(Who::Posse, &["--instance", "inst1", "--yes"]);
    assert!(output.contains("they do not have the names of executors"), "{output}");
    for pod in &before {
        let still = scene.pod(name_of(pod)).expect("it is not ours to delete");
        assert_eq!(uid_of(&still), uid_of(pod));
        assert!(still["metadata"]["deletionTimestamp"].is_null(), "{still}");
        scene.remove(pod);
    }
    scene.finish();
}

/// A create whose answer was lost and whose pod terminates is repeated: 409, and the pod of that
/// name is ours but not capacity. The watch is silent meanwhile, so that only the answers show it.
pub fn own_terminating_pod_has_the_name(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.hold_deletes(true);
    let (admin, namespace) = (scene.admin.clone(), scene.namespace.clone());
    let executing_dir = server.real().is_none().then(|| scene.dir.path().to_owned());
    let (first, again) = (AtomicBool::new(true), Arc::new(AtomicBool::new(false)));
    let asked_again = Arc::clone(&again);
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, upstream| {
        if !request.is_create() {
            return ProxyAction::Pass;
        }
        if !first.swap(false, Ordering::SeqCst) {
            again.store(true, Ordering::SeqCst);
            return ProxyAction::Pass;
        }
        let pod = upstream.send(request).ok();
        wait_bound(&admin, &namespace, name_of(&pod));
        if let Some(dir) = &executing_dir {
            let up = up_file(dir, name_of(&pod));
            wait_for(PATIENCE, "the container to be deaf", || up.exists());
        }
        let path = format!("{}/{}", pods_path(&namespace), name_of(&pod));
        admin.delete(&path, &gone_in(GRACE_S)).ok();
        ProxyAction::Reply(500, status(500, "InternalError", "the answer of the first one is lost"))
    });
    proxy.silence_watches(true);
    let posse = scene.run_with(&proxy.access()).executors(1).start();
    wait_for(PATIENCE, "the create to be sent again", || asked_again.load(Ordering::SeqCst));
    posse.wait_event("executor_requested", |event| event["executor"] == 2);
    proxy.silence_watches(false);
    scene.hold_deletes(false);
    scene.wait_running_ids(&[2]);
    let lost = posse.wait_events("executor_lost", 1);
    assert_eq!(lost[0]["executor"], 1, "{lost:?}");
    posse.stop();
    scene.finish();
}

/// A webhook strips our labels, so that we would not see the pods: they are deleted, and the
/// template counts as refused.
pub fn stripped_labels(server: &dyn Server) {
    let scene = Scene::new(server);
    let proxy = Proxy::start(&server.access(Who::Posse), |request, _| {
        if request.is_create() {
            let mut pod = request.json();
            let labels = pod["metadata"]["labels"].as_object_mut().expect("posse sets labels");
            labels.retain(|name, _| !name.starts_with("posse.dev/"));
            request.body = pod.to_string().into_bytes();
        }
        ProxyAction::Pass
    });
    let posse = scene.run_with(&proxy.access()).executors(20).start();
    posse.expect_exit(4);
    assert!(!posse.events_of("create_refused").is_empty(), "it says why");
    assert!(proxy.n_creates() <= 8, "{} creates for a bad template", proxy.n_creates());
    wait_value(PATIENCE, "the blind pods to go", || {
        let pods = scene.pods();
        if pods.is_empty() { Ok(()) } else { Err(describe(&pods)) }
    });
    scene.finish();
}

/// The real server refuses a template, and posse reports the server's message.
pub fn refused_template(server: &dyn Server) {
    let scene = Scene::new(server);
    let mut template = scene.template();
    template["spec"]["containers"][0]["imagePullPolicy"] = "Sometimes".into();
    fs::write(scene.file("pod.json"), template.to_string()).expect("writable");
    let posse = scene.run().executors(50).start();
    posse.expect_exit(4);
    let words = posse.stderr();
    assert!(words.contains("imagePullPolicy"), "the server's words are missing:\n{words}");
    let log = server.audit_log().expect("only the real server keeps an audit log");
    let tally = audit::tally(&log, &scene.namespace);
    let n_asked: u32 =
        tally.iter().filter(|(what, _)| what.starts_with("create pods")).map(|(_, n)| n).sum();
    assert!(n_asked <= 8, "a bad template costs a handful of requests: {tally:?}");
    let check = scene.run().executors(1).once(&["check"]);
    assert!(!check.status.success(), "the check accepts what the server refuses");
    scene.finish();
}

/// Answers of etcd and of a webhook that is away, by which nothing was created: a pod that is too large is refused for
/// good, everything else is waited for, and a stop has no create to wait for.
pub fn creates_that_were_not_executed(server: &dyn Server) {
    let scene = Scene::new(server);
    for (message, is_final) in [
        ("etcdserver: request is too large", true),
        ("etcdserver: mvcc: database space exceeded", false),
        ("etcdserver: no leader", false),
        (
            "Internal error occurred: failed calling webhook \"a.example\": connection refused",
            false,
        ),
    ] {
        let proxy = Proxy::start(&server.access(Who::Posse), move |request, _| {
            if request.is_create() {
                return ProxyAction::Reply(500, status(500, "InternalError", message));
            }
            ProxyAction::Pass
        });
        let posse = scene.run_with(&proxy.access()).executors(3).start();
        if is_final {
            posse.expect_exit(4);
            let words = posse.stderr();
            assert!(words.contains("too large for etcd (1.5 MiB)"), "{words}");
            continue;
        }
        posse.wait_event("create_refused", |event| {
            event["message"].as_str().is_some_and(|words| words.contains(message))
        });
        posse.signal(Signal::TERM);
        let code = posse.wait_exit(NOTHING_OPEN);
        assert_eq!(code, 0, "{message}; it said:\n{}", posse.stderr());
    }
    scene.finish();
}

/// Arguments that Linux does not take, and pods that etcd does not take, are refused before anything is created: in
/// the file, and in calls.
pub fn too_large_templates(server: &dyn Server) {
    let scene = Scene::new(server);
    let pod =
        |args: &str| format!("{{spec: {{containers: [{{name: w, image: i, args: {args}}}]}}}}");
    let long = "a".repeat(140_000);
    // 17 of them: below what Linux takes, and above what etcd takes.
    let large = format!("[&a {}, {}]", "a".repeat(100_000), ["*a"; 16].join(", "));
    for (name, text) in [("long.yaml", pod(&format!("[{long}]"))), ("large.yaml", pod(&large))] {
        fs::write(scene.file(name), text).expect("writable");
    }
    let field = "spec.containers[0].args[0]: longer than Linux takes, 131,071 bytes";
    let etcd = "too large for etcd (1.5 MiB)";
    for (name, code, words) in [("long.yaml", 2, field), ("large.yaml", 4, etcd)] {
        let group = json!([{"group": "default", "count": 1, "template": name}]);
        let run = || scene.run().settings(json!({"executors": group}));
        for command in ["run", "check"] {
            let output = run().once(&[command]);
            assert_eq!(output.status.code(), Some(code), "{command} {name}: {}", said(&output));
            assert!(said(&output).contains(words), "{command} {name}: {}", said(&output));
        }
    }
    let posse = scene.run().executors(1).start();
    scene.wait_running(1);
    let template = |args: Value| json!({"template": {"spec": {"containers": [{"name": "w", "image": "i", "args": args}]}}});
    for (args, want) in [
        (json!([long]), "template.spec.containers[0].args[0]"),
        (json!(vec!["a".repeat(100_000); 17]), "template"),
    ] {
        let (code, answer) = posse.call("PUT", "/v1/groups/big", &template(args));
        assert_eq!((code, &answer["field"]), (400, &json!(want)), "{answer}");
    }
    let task = json!({"executors": [{"key": "a", "args": [long]}]});
    let (code, answer) = posse.call("POST", "/v1/groups/default/executors", &task);
    assert_eq!(code, 400, "{answer}");
    assert_eq!(scene.ours().len(), 1, "nothing else was created");
    posse.stop();
    scene.finish();
}

/// Without permissions on pods posse names the missing one before it does anything.
pub fn missing_permissions(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run_with(&server.access(Who::Stranger)).executors(1).start();
    posse.expect_exit(3);
    let words = posse.stderr();
    for word in ["pods", scene.namespace.as_str()] {
        assert!(words.contains(word), "the message does not name {word}:\n{words}");
    }
    assert!(words.contains("list pods, watch pods, create pods"), "all at once:\n{words}");
    scene.finish();
}

/// Permissions are removed during a run and granted again: posse waits, reports the reason, and
/// continues.
pub fn permissions_removed_while_running(server: &dyn Server) {
    let scene = Scene::new(server);
    let real = server.real().expect("only the real server knows rights");
    let posse = scene.run().executors(2).start();
    let before = scene.wait_running(2);
    posse.wait_event("executor_running", |event| event["executor"] == 2);
    real.unbind_role(&scene.namespace, "posse-test", "posse-test");
    scene.end(&before[0], End::Exit(1));
    posse.wait_event("executor_lost", |event| event["uid"] == uid_of(&before[0]));
    let refused = posse.wait_event("create_refused", |_| true);
    let words = refused["message"].as_str().expect("the server's words");
    assert!(words.contains("cannot create resource"), "{refused}");
    stays_true(Duration::from_secs(2), "waiting", || !posse.is_over());
    posse.wait_group("a wait for the permissions", |group| group["waiting"] == "permanent");
    let user = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User",
        "name": "posse-test"});
    real.bind_role(&scene.namespace, "posse-test", &user);
    let after = scene.wait_running(2);
    assert!(after.iter().any(|pod| uid_of(pod) == uid_of(&before[1])), "the other one lived on");
    assert_eq!(posse.events_of("executor_lost").len(), 1);
    posse.stop();
    scene.finish();
}

/// An unknown server certificate; a client certificate and a token that the server does not accept.
pub fn wrong_certificate(server: &dyn Server) {
    let scene = Scene::new(server);
    let account = Account::new(&scene, "late");
    let stranger = Authority::new("another-ca");
    let good = server.access(Who::Posse);
    let ways = [
        ("another CA", Access { ca: Some(stranger.cert.clone()), ..good.clone() }),
        (
            "a user of another CA",
            Access { client: Some(stranger.user("posse-test", None)), ..good },
        ),
        ("an expired token", account.access(-120)),
    ];
    // In parallel, because each may try for 30 s.
    let runs: Vec<_> =
        ways.iter().map(|(_, access)| scene.run_with(access).executors(1).start()).collect();
    runs.iter().for_each(Posse::may_end);
    for ((what, _), posse) in ways.iter().zip(&runs) {
        let code = posse.wait_exit(PATIENCE + Duration::from_secs(10));
        assert_eq!(code, 3, "{what}; it said:\n{}", posse.stderr());
    }
    assert_eq!(scene.pods(), [] as [Value; 0]);
    scene.finish();
}

/// The token expires during the run: the file has a new one by then, and no request fails.
pub fn expired_token(server: &dyn Server) {
    let scene = Scene::new(server);
    let account = Account::new(&scene, "robot");
    let real = server.real().expect("only the real server knows tokens");
    let file = scene.file("token");
    // The server accepts a token for a minute after it expired, because clocks differ.
    let old = account.token(-50);
    fs::write(&file, &old).expect("writable");
    let token_file = Some(file.display().to_string());
    let access = Access { token_file, ..real.access_without_user() };
    let posse = scene.run_with(&access).executors(1).start();
    let before = scene.wait_running(1);
    fs::write(&file, account.token(600)).expect("writable");
    let old = Access { token: Some(old), ..real.access_without_user() };
    let old = Client::new(&old, "test-token");
    wait_for(PATIENCE, "the old token to expire", || {
        old.get(&pods_path(&scene.namespace)).code == 401
    });
    scene.end(&before[0], End::Exit(1));
    posse.wait_event("executor_running", |event| event["executor"] == 2);
    scene.wait_running(1);
    posse.stop();
    scene.finish();
}
