//! `posse cleanup` against a scripted API server.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::sync::Mutex;

use posse_testing::{Answer, Seen, TestServer};
use serde_json::{Value, json};

use crate::testing::{Broken, Folder};

const PODS: &str = "/api/v1/namespaces/default/pods";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// A scripted server, and a folder with its kubeconfig.
struct Scene {
    folder: Folder,
    server: TestServer,
}

impl Scene {
    /// `answers`: to each call, in order.
    fn new(answers: Vec<(String, u16, Value)>) -> Self {
        let mut script: BTreeMap<String, VecDeque<(u16, Value)>> = BTreeMap::new();
        for (call, status, body) in answers {
            script.entry(call).or_default().push_back((status, body));
        }
        let script = Mutex::new(script);
        let server = TestServer::start(None, move |seen| {
            let call = call_of(seen);
            let next = script.lock().unwrap().get_mut(&call).and_then(VecDeque::pop_front);
            let (status, body) = next.unwrap_or_else(|| {
                (404, status("NotFound", &format!("the script has nothing for {call}")))
            });
            Answer::json(status, body.to_string())
        });
        Self { folder: Folder::with_server(server.address), server }
    }

    fn cleanup(&self, args: &str) -> (u8, String, String) {
        self.folder.posse(&format!("cleanup --app a --kubeconfig k {args}"))
    }

    /// The received calls.
    fn asked(&self) -> Vec<String> {
        let asked = self.server.seen().into_iter().map(|seen| {
            let body: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
            let guard = body["preconditions"].as_object().map(|guard| json!(guard).to_string());
            format!("{} {}", call_of(&seen), guard.unwrap_or_default()).trim_end().to_owned()
        });
        asked.collect()
    }

    fn deletes(&self) -> Vec<String> {
        self.asked().into_iter().filter(|call| call.starts_with("DELETE")).collect()
    }
}

/// The method, the path, and the token of a list's next page.
fn call_of(seen: &Seen) -> String {
    let line = seen.line().trim_end_matches(" HTTP/1.1");
    let (call, query) = line.split_once('?').unwrap_or((line, ""));
    let token = query.split('&').find(|pair| pair.starts_with("continue="));
    token.map_or_else(|| call.to_owned(), |token| format!("{call}?{token}"))
}

fn status(reason: &str, message: &str) -> Value {
    json!({ "kind": "Status", "status": "Failure", "reason": reason, "message": message })
}

fn executor(instance: &str, id: u32, owner: Option<(&str, &str)>) -> Value {
    let owners: Vec<Value> = owner
        .iter()
        .map(|(name, uid)| json!({"kind": "Pod", "name": name, "uid": uid, "controller": true}))
        .collect();
    json!({"metadata": {
        "name": format!("a-{instance}-exec-{id}"), "uid": format!("u-{instance}-{id}"),
        "labels": {"posse.dev/app": "a", "posse.dev/instance": instance}, "ownerReferences": owners,
    }})
}

fn list(token: &str, pods: &[Value]) -> Value {
    json!({"metadata": {"resourceVersion": "9", "continue": token}, "items": pods})
}

fn driver(uid: &str, phase: &str) -> Value {
    json!({"metadata": {"uid": uid}, "status": {"phase": phase}})
}

fn lease(app: &str, instance: &str, renewed: &str) -> Value {
    json!({"metadata": {"name": format!("{app}-{instance}"), "uid": "l", "resourceVersion": "5",
           "labels": {"posse.dev/app": app, "posse.dev/instance": instance,
                      "app.kubernetes.io/component": "instance",
                      "app.kubernetes.io/managed-by": "posse"}},
           "spec": {"holderIdentity": "h", "leaseDurationSeconds": 60, "renewTime": renewed}})
}

/// Two pages of executors of five instances.
fn five() -> Vec<(String, u16, Value)> {
    let live = Some(("live", "o-live"));
    let first = [
        executor("over", 1, Some(("done", "o-done"))),
        executor("over", 2, Some(("done", "o-done"))),
        executor("lives", 1, live),
        executor("gone", 1, Some(("nowhere", "o-x"))),
    ];
    let second =
        [executor("lives", 2, live), executor("alone", 1, None), executor("busy", 1, None)];
    vec![
        (format!("GET {PODS}"), 200, list("t2", &first)),
        (format!("GET {PODS}?continue=t2"), 200, list("", &second)),
        (format!("GET {PODS}/done"), 200, driver("o-done", "Succeeded")),
        (format!("GET {PODS}/live"), 200, driver("o-live", "Running")),
        (format!("GET {LEASES}/a-alone"), 200, lease("a", "alone", "2020-01-01T00:00:00.000000Z")),
        (format!("GET {LEASES}/a-alone"), 200, lease("a", "alone", "2020-01-01T00:00:00.000000Z")),
        (format!("GET {LEASES}/a-alone"), 200, lease("a", "alone", "2020-01-01T00:00:00.000000Z")),
        (format!("GET {LEASES}/a-busy"), 200, lease("a", "busy", "2999-01-01T00:00:00.000000Z")),
    ]
}

#[test]
fn without_yes_orphans_are_only_listed() {
    let scene = Scene::new(five());
    let (code, out, err) = scene.cleanup("");
    assert_eq!((code, err.as_str()), (0, ""));
    let want = "\
INSTANCE  EXECUTORS  OWNER    STATE      VERDICT
alone     1          -        -          kept: they have no owner; --instance alone removes them, or --stale with a duration
busy      1          -        -          kept: they have no owner; --instance busy removes them, or --stale with a duration
gone      1          nowhere  gone       removable: their owner is gone
lives     2          live     running    kept: their owner has not ended
over      2          done     succeeded  removable: their owner has ended

nothing was removed; the same with --yes removes 3 executors
";
    assert_eq!(out, want);
    // Each owner is looked up once, and no Lease is read without --stale.
    let calls = [
        format!("GET {PODS}"),
        format!("GET {PODS}?continue=t2"),
        format!("GET {PODS}/nowhere"),
        format!("GET {PODS}/live"),
        format!("GET {PODS}/done"),
    ];
    assert_eq!(scene.asked(), calls);
}

#[test]
fn yes_deletes_orphans_by_uid() {
    let mut answers = five();
    for (instance, id) in [("over", 1), ("over", 2), ("alone", 1)] {
        let call = format!("DELETE {PODS}/a-{instance}-exec-{id}");
        answers.push((call, 200, executor(instance, id, None)));
    }
    answers.push((format!("DELETE {LEASES}/a-alone"), 200, json!({"kind": "Status"})));
    // This pod is deleted meanwhile.
    let absent = status("NotFound", "pods \"a-gone-exec-1\" not found");
    answers.push((format!("DELETE {PODS}/a-gone-exec-1"), 404, absent));
    let scene = Scene::new(answers);
    let (code, out, err) = scene.cleanup("--stale 1h --yes");
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.ends_with("\nremoved 4 executors and 1 lease\n"), "{out}");
    assert!(out.contains("kept: they have no owner, and their lease was renewed 0 s ago"), "{out}");
    let by_uid = |instance: &str, id: u32| {
        format!(
            "DELETE {PODS}/a-{instance}-exec-{id} {}",
            json!({"uid": format!("u-{instance}-{id}")})
        )
    };
    let want = [
        by_uid("alone", 1),
        by_uid("gone", 1),
        by_uid("over", 1),
        by_uid("over", 2),
        format!("DELETE {LEASES}/a-alone {}", json!({"resourceVersion": "5", "uid": "l"})),
    ];
    assert_eq!(scene.deletes(), want);
}

#[test]
fn all_apps_includes_leases_without_executors() {
    let mine = |mut pod: Value| {
        pod["metadata"]["labels"]["posse.dev/app"] = "b".into();
        pod["metadata"]["name"] = "b-k-exec-1".into();
        pod
    };
    let lease_of = |app: &str, instance: &str, part: &str, renewed: &str| {
        let mut lease = lease(app, instance, renewed);
        if part == "application" {
            lease["metadata"]["name"] = format!("{app}.exclusive").into();
        }
        lease["metadata"]["labels"]["app.kubernetes.io/component"] = part.into();
        lease
    };
    let (old, now) = ("2020-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z");
    let leases = json!({"items": [
        lease_of("a", "spent", "instance", old),
        lease_of("a", "fresh", "instance", now),
        lease_of("b", "k", "instance", old),
        lease_of("b", "l", "application", old),
    ]});
    let script = || {
        let pods = [mine(executor("k", 1, None)), executor("k", 1, Some(("live", "o-live")))];
        vec![
            (format!("GET {PODS}"), 200, list("", &pods)),
            (format!("GET {PODS}/live"), 200, driver("o-live", "Running")),
            (format!("GET {LEASES}/b-k"), 200, lease("b", "k", old)),
            (format!("GET {LEASES}/b-k"), 200, lease("b", "k", old)),
            (format!("GET {LEASES}/b-k"), 200, lease("b", "k", old)),
            (format!("GET {LEASES}/a-spent"), 200, lease("a", "spent", old)),
            (format!("GET {LEASES}/b.exclusive"), 200, lease("b", "k", old)),
            (format!("DELETE {PODS}/b-k-exec-1"), 200, json!({})),
            (format!("DELETE {LEASES}/a-spent"), 200, json!({})),
            (format!("DELETE {LEASES}/b-k"), 200, json!({})),
            (format!("DELETE {LEASES}/b.exclusive"), 200, json!({})),
        ]
    };
    let with_list = || {
        let mut script = script();
        script.push((format!("GET {LEASES}"), 200, leases.clone()));
        Scene::new(script)
    };
    let scene = with_list();
    let run = |scene: &Scene, args: &str| {
        scene.folder.posse(&format!("cleanup --all-apps --kubeconfig k --stale 1h {args}"))
    };
    let (code, out, err) = run(&scene, "");
    assert_eq!((code, err.as_str()), (0, ""));
    let rows: Vec<Vec<&str>> =
        out.lines().map(|line| line.split_whitespace().take(5).collect()).collect();
    let want = [
        ["APP", "INSTANCE", "EXECUTORS", "OWNER", "STATE"],
        ["a", "k", "1", "live", "running"],
        ["b", "k", "1", "-", "-"],
        ["a", "spent", "0", "-", "-"],
        ["b", "-", "0", "-", "-"],
    ];
    assert_eq!(rows[..5], want, "{out}");
    assert!(out.ends_with("--yes removes 1 executor and 2 leases\n"), "{out}");
    let scene = with_list();
    let (code, out, err) = run(&scene, "--yes");
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.ends_with("\nremoved 1 executor and 3 leases\n"), "{out}");
    assert!(!scene.deletes().iter().any(|call| call.contains("fresh")));
    // Without permission to list Leases, the executors are deleted all the same.
    let scene = Scene::new(script());
    let (code, out, _) = run(&scene, "--yes");
    assert_eq!(code, 0);
    assert!(out.ends_with("\nremoved 1 executor and 1 lease\n"), "{out}");
}

/// The holder's clock is behind, or it was suspended and its clock was set: it renews all the same.
#[test]
fn a_lease_that_is_renewed_while_it_is_watched_is_not_stale() {
    let old = lease("a", "k", "2020-01-01T00:00:00.000000Z");
    let mut renewed = old.clone();
    renewed["metadata"]["resourceVersion"] = "6".into();
    for (second, is_kept) in [((200, renewed), true), ((200, old.clone()), false)] {
        let (code, body) = second;
        let mut last = old.clone();
        last["metadata"]["resourceVersion"] = body["metadata"]["resourceVersion"].clone();
        let scene = Scene::new(vec![
            (format!("GET {PODS}"), 200, list("", &[executor("k", 1, None)])),
            (format!("GET {LEASES}/a-k"), 200, old.clone()),
            (format!("GET {LEASES}"), 200, json!({"items": []})),
            (format!("GET {LEASES}/a-k"), code, body),
            (format!("GET {LEASES}/a-k"), 200, last),
            (format!("DELETE {PODS}/a-k-exec-1"), 200, json!({})),
            (format!("DELETE {LEASES}/a-k"), 200, json!({})),
        ]);
        let (code, out, err) = scene.cleanup("--stale 1h --yes");
        assert_eq!(code, 0, "{out}{err}");
        assert_eq!(scene.deletes().is_empty(), is_kept, "{out}");
        assert_eq!(out.contains("their lease was renewed 0 s ago"), is_kept, "{out}");
    }
}

/// A reader that has gone ends nothing that --yes began, and the JSON has what is removed.
#[test]
fn what_nobody_reads_is_removed_all_the_same() {
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "a-k-data-0", "namespace": "n", "uid": "c1", "resourceVersion": "1",
        "labels": {"posse.dev/app": "a", "posse.dev/instance": "k"}}});
    let scene = || {
        Scene::new(vec![
            (format!("GET {PODS}"), 200, list("", &[])),
            (format!("GET {LEASES}"), 200, json!({"items": []})),
            (format!("GET {claims}"), 200, list("", std::slice::from_ref(&claim))),
            (format!("GET {PODS}"), 200, list("", &[])),
            (format!("GET {LEASES}"), 200, json!({"items": []})),
            (format!("DELETE {claims}/a-k-data-0"), 200, json!({})),
        ])
    };
    let listed = scene();
    let (_, out, _) = listed.cleanup("--volumes -o json");
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        out,
        json!([{"app": "a", "kind": "volume", "name": "a-k-data-0", "removable": true}])
    );
    let scene = scene();
    let args = "cleanup --app a --kubeconfig k --volumes --yes";
    scene.folder.posse_to(args, &[], &mut Broken(ErrorKind::BrokenPipe));
    assert_eq!(scene.deletes().len(), 1);
}

/// The same of its volumes, while it has no pods.
#[test]
fn the_claims_of_a_renewed_lease_stay() {
    let old = lease("a", "k", "2020-01-01T00:00:00.000000Z");
    let mut renewed = old.clone();
    renewed["metadata"]["resourceVersion"] = "6".into();
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "a-k-data-0", "namespace": "ns", "uid": "c1", "resourceVersion": "1",
        "labels": {"posse.dev/app": "a", "posse.dev/instance": "k"}}});
    let scene = Scene::new(vec![
        (format!("GET {PODS}"), 200, list("", &[])),
        (format!("GET {LEASES}"), 200, json!({"items": [old.clone()]})),
        (format!("GET {LEASES}/a-k"), 200, renewed),
        (format!("GET {claims}"), 200, list("", &[claim])),
        (format!("GET {PODS}"), 200, list("", &[])),
        (format!("GET {LEASES}"), 200, json!({"items": [old]})),
        (format!("DELETE {claims}/a-k-data-0"), 200, json!({})),
        (format!("DELETE {LEASES}/a-k"), 200, json!({})),
    ]);
    let (code, out, err) = scene.cleanup("--stale 1h --volumes --yes");
    assert_eq!((code, scene.deletes()), (0, vec![]), "{out}{err}");
}

#[test]
fn failed_deletes_are_named() {
    let mut answers = five();
    let refused = status("Forbidden", "pods is forbidden: no");
    answers.push((format!("DELETE {PODS}/a-over-exec-1"), 403, refused));
    let done = executor("over", 2, None);
    answers.push((format!("DELETE {PODS}/a-over-exec-2"), 200, done));
    answers.push((format!("DELETE {PODS}/a-busy-exec-1"), 200, executor("busy", 1, None)));
    let scene = Scene::new(answers);
    let (code, out, err) = scene.cleanup("--instance busy --yes");
    assert_eq!(code, 12, "{out}");
    assert!(out.ends_with("\nremoved 3 executors and 0 leases\n"), "{out}");
    assert_eq!(err, "posse: not deleted: a-over-exec-1 (pods is forbidden: no (403))\n");
    let deletes = scene.deletes();
    assert!(!deletes.iter().any(|call| call.contains("lives") || call.contains("alone")));
}

#[test]
fn a_throttled_delete_is_retried() {
    let delete = format!("DELETE {PODS}/a-k-exec-1");
    let mut busy = status("TooManyRequests", "later");
    busy["details"] = json!({"retryAfterSeconds": 0});
    let scene = Scene::new(vec![
        (format!("GET {PODS}"), 200, list("", &[executor("k", 1, None)])),
        (delete.clone(), 429, busy),
        (delete, 200, executor("k", 1, None)),
    ]);
    let (code, out, err) = scene.cleanup("--instance k --yes");
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!(scene.deletes().len(), 2);
}

#[test]
fn no_executors_and_an_unreachable_server() {
    let scene = Scene::new(vec![
        (format!("GET {PODS}"), 200, list("", &[])),
        (format!("GET {PODS}"), 200, list("", &[executor("k", 1, None)])),
        (format!("GET {PODS}"), 403, status("Forbidden", "pods is forbidden: you may not")),
    ]);
    let (code, out, _) = scene.cleanup("--yes");
    assert_eq!((code, out.as_str()), (0, "app a has no executors in namespace default\n"));
    let (code, out, _) = scene.cleanup("--yes");
    assert_eq!(code, 0);
    assert!(out.ends_with("\nthere is nothing to remove\n"), "{out}");
    let (code, out, err) = scene.cleanup("--yes");
    assert_eq!((code, out.as_str()), (3, ""));
    assert!(err.starts_with("posse: cannot list the executors: http://127.0.0.1:"), "{err}");
    assert!(err.ends_with(": pods is forbidden: you may not (403)\n"), "{err}");
    let folder = Folder::with_server("127.0.0.1:1".parse().unwrap());
    let (code, _, err) = folder.posse("cleanup --app a --kubeconfig k");
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("Connection refused"), "{err}");
}

/// Without an answer about all namespaces nobody knows whose the folders of a node are.
#[test]
fn folders_of_a_node_stay_unless_all_namespaces_are_known() {
    const ALL_PODS: &str = "GET /api/v1/pods";
    const ALL_LEASES: &str = "GET /apis/coordination.k8s.io/v1/leases";
    let refused = || status("Forbidden", "you cannot list it at the cluster scope");
    let scene = Scene::new(vec![
        (ALL_PODS.to_owned(), 403, refused()),
        (ALL_PODS.to_owned(), 200, list("", &[])),
        (ALL_LEASES.to_owned(), 403, refused()),
        (ALL_PODS.to_owned(), 200, list("", &[])),
        (ALL_LEASES.to_owned(), 200, list("", &[])),
    ]);
    let folder = scene.folder.path().join("node/a.k");
    std::fs::create_dir_all(&folder).unwrap();
    for _ in 0..2 {
        let (code, _, err) = scene.cleanup("--node-dir node --yes");
        assert_eq!(code, 3, "{err}");
        assert!(err.contains("cannot list pods and leases in all namespaces: "), "{err}");
        assert!(
            err.contains("you cannot list it at the cluster scope") && folder.exists(),
            "{err}"
        );
    }
    let (code, out, err) = scene.cleanup("--node-dir node --yes");
    assert_eq!((code, folder.exists()), (0, false), "{out}{err}");
}

/// Both have the labels of instance k: a pod with another name, and a Lease without posse's labels.
#[test]
fn what_merely_has_our_labels_or_our_name_is_kept() {
    let old = "2020-01-01T00:00:00.000000Z";
    let mut victim = executor("k", 7, None);
    victim["metadata"]["name"] = "victim-db".into();
    let mut foreign = lease("a", "k", old);
    foreign["metadata"]["labels"] = json!({"app": "leader-election"});
    let scene = Scene::new(vec![
        (format!("GET {PODS}"), 200, list("", &[executor("k", 1, None), victim])),
        (format!("DELETE {PODS}/a-k-exec-1"), 200, executor("k", 1, None)),
        (format!("GET {LEASES}/a-k"), 200, foreign),
    ]);
    let (code, out, err) = scene.cleanup("--instance k --yes");
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("kept: they do not have the names of executors"), "{out}");
    assert!(out.ends_with("\nremoved 1 executor and 0 leases\n"), "{out}");
    assert_eq!(scene.deletes().len(), 1);
}

/// A PodGroup outside of a cluster has no owner. Each scheduler has its own, and most clusters have none.
#[test]
fn the_pod_groups_of_an_ended_instance_go_with_its_executors() {
    let apis = "/apis/scheduling.k8s.io";
    let mut answers = five();
    for _ in 0..3 {
        answers.extend([
            (format!("GET {apis}"), 200, json!({"versions": [{"version": "v1alpha2"}]})),
            (format!("GET {apis}/v1alpha2"), 200, json!({"resources": [{"name": "podgroups"}]})),
        ]);
    }
    let refusal = status("Forbidden", "no");
    let groups = format!("DELETE {apis}/v1alpha2/namespaces/default/podgroups");
    answers.extend([(groups.clone(), 200, json!({})), (groups.clone(), 403, refusal)]);
    let scene = Scene::new(answers);
    scene.cleanup("--yes");
    let deletes = scene.deletes();
    assert_eq!(deletes.iter().filter(|call| **call == groups).count(), 2, "{deletes:?}");
}
