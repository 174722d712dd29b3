//! `posse check`: each problem that it can find, on a server that has it.

use std::process::Output;

use serde_json::{Value, json};

use crate::support::access::Access;
use crate::support::posse::{Run, said};
use crate::support::scene::Scene;
use crate::support::server::{Server, Who, pods_path};
use crate::support::wait::{PATIENCE, wait_value};

/// The output of `posse check --json`, and its exit code.
fn check(scene: &Scene<'_>, access: &Access, n_executors: u32, args: &[&str]) -> (Value, i32) {
    check_run(scene.run_with(access).executors(n_executors), args)
}

fn check_run(run: Run, args: &[&str]) -> (Value, i32) {
    let words = [&["check", "--json"], args].concat();
    let output: Output = run.once(&words);
    let code = output.status.code().expect("it ends by itself");
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    (report, code)
}

/// The check of that name.
fn named<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("a list of checks");
    let found = checks.iter().find(|check| check["check"] == name);
    found.unwrap_or_else(|| panic!("no check {name} in {report:#}"))
}

#[track_caller]
fn expect(report: &Value, name: &str, status: &str, words: &str) {
    let found = named(report, name);
    let message = found["message"].as_str().expect("a message");
    assert_eq!(found["status"], status, "{name}: {report:#}");
    assert!(message.contains(words), "{name} does not say {words:?}: {message}");
}

/// First only the room in the quota is too small; then namespace, connection and template fail,
/// too.
pub fn check_before_a_run(server: &dyn Server) {
    let scene = Scene::new(server);
    let access = server.access(Who::Posse);
    let (report, code) = check(&scene, &access, 2, &[]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["ok"], true);
    expect(&report, "reach", "ok", "answers: Kubernetes v");
    expect(&report, "clock", "ok", "within");
    expect(&report, "rights", "ok", "create pods");
    expect(&report, "lease", "ok", "update leases");
    expect(&report, "template default", "ok", "accepts the pod");
    assert_eq!(scene.pods(), [] as [Value; 0], "a check creates nothing");
    // The server is this machine, so that a driver on it has an address that pods may not reach.
    expect(&report, "driver host", "note", "executors connect to 127.0.0.1");
    let submitted = json!({"driver": {"image": "driver:1"}});
    let (report, _) = check_run(scene.run_with(&access).settings(submitted), &[]);
    expect(&report, "driver host", "ok", "executors connect to the driver's pod");

    let quotas = format!("/api/v1/namespaces/{}/resourcequotas", scene.namespace);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "room"}, "spec": {"hard": {"pods": "3"}}});
    scene.admin.post(&quotas, &quota).ok();
    wait_value(PATIENCE, "the quota to be counted", || {
        let quota = scene.admin.get(&format!("{quotas}/room")).ok();
        quota["status"]["used"]["pods"].as_str().map(drop).ok_or_else(|| quota.to_string())
    });
    // A user without permission to read quotas is told so; the administrator has it.
    let admin = server.access(Who::Admin);
    let (report, code) = check(&scene, &admin, 4, &[]);
    assert_eq!(code, 0, "too little room is no failure: {report:#}");
    expect(&report, "quota", "warning", "room has 3 of 3 pods left, the run needs 4");
    let (report, _) = check(&scene, &admin, 3, &[]);
    expect(&report, "quota", "ok", "room for all executors");

    records(&scene, &admin);
    disruption_budgets(&scene);
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "64Mi"},
                             "default": {"memory": "32Mi"}}]}});
    scene.admin.post(&format!("/api/v1/namespaces/{}/limitranges", scene.namespace), &range).ok();
    scene.write_template("big.yaml", |template| {
        template["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "1Gi"}});
    });
    let (report, code) = check(&scene, &admin, 1, &["--template", "big.yaml"]);
    assert_eq!(code, 4, "{report:#}");
    assert_eq!(report["ok"], false);
    expect(
        &report,
        "limits",
        "note",
        "small: Container max memory=64Mi, defaultRequest memory=32Mi",
    );
    expect(&report, "template default", "failed", "maximum memory usage per Container is 64Mi");

    let (report, code) = check(&scene, &admin, 1, &["--namespace", "nowhere"]);
    assert_eq!(code, 3, "{report:#}");
    expect(&report, "namespace", "failed", "namespaces \"nowhere\" not found");
    scene.finish();
}

/// The pods of completed executors stay, and count where ended pods do. A failed one has the claims of its successor.
fn records(scene: &Scene<'_>, admin: &Access) {
    let quotas = format!("/api/v1/namespaces/{}/resourcequotas", scene.namespace);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "records"}, "spec": {"hard": {"count/pods": "9", "persistentvolumeclaims": "8"}}});
    scene.admin.post(&quotas, &quota).ok();
    wait_value(PATIENCE, "the quota to be counted", || {
        let quota = scene.admin.get(&format!("{quotas}/records")).ok();
        quota["status"]["used"]["count/pods"].as_str().map(drop).ok_or_else(|| quota.to_string())
    });
    let volume = json!({"name": "data", "size": "1Mi", "mount": "/data"});
    for (completions, keep_failed, volumes, words) in [
        (9, 0, json!([]), None),
        (10, 0, json!([]), Some("with the pods that stay as records the run may hold 10")),
        (9, 1, json!([]), Some("with the pods that stay as records the run may hold 10")),
        (8, 1, json!([volume]), None),
        (9, 0, json!([volume]), Some("with the pods that stay as records the run may hold 9")),
    ] {
        let settings = json!({
            "executors": [{"count": 2, "completions": completions, "restart": "on-failure",
                "template": "pod.json", "volumes_per_slot": volumes}],
            "failures": {"keep_failed": keep_failed},
        });
        let (report, code) = check_run(scene.run_with(admin).settings(settings), &[]);
        assert_eq!(code, 0, "{report:#}");
        match words {
            None => expect(&report, "quota", "ok", "room for all executors"),
            Some(words) => expect(&report, "quota", "warning", words),
        }
    }
    scene.admin.delete(&format!("{quotas}/records"), &json!({})).ok();
}

/// A budget that asks for the executors' controller lets nobody evict them.
fn disruption_budgets(scene: &Scene<'_>) {
    let admin = scene.server.access(Who::Admin);
    let (report, _) = check(scene, &admin, 1, &[]);
    expect(&report, "disruption", "ok", "no PodDisruptionBudget");
    let group = scene.admin.get("/apis/policy").ok();
    let version = group["preferredVersion"]["groupVersion"].as_str().expect("a version");
    let path = format!("/apis/{version}/namespaces/{}/poddisruptionbudgets", scene.namespace);
    let ours = json!({"matchLabels": {"app.kubernetes.io/managed-by": "posse"}});
    for (name, spec) in [
        ("number", json!({"minAvailable": 1, "selector": ours})),
        ("most", json!({"maxUnavailable": 1, "selector": ours})),
    ] {
        let budget = json!({"apiVersion": version, "kind": "PodDisruptionBudget",
            "metadata": {"name": name}, "spec": spec});
        scene.admin.post(&path, &budget).ok();
    }
    let (report, code) = check(scene, &admin, 1, &[]);
    assert_eq!(code, 0, "{report:#}");
    let words = "PodDisruptionBudget most (maxUnavailable: 1) lets nobody evict an executor";
    expect(&report, "disruption", "warning", words);
}

/// A server that does not answer, an unknown certificate authority, invalid credentials.
pub fn check_connection(server: &dyn Server) {
    let scene = Scene::new(server);
    let good = server.access(Who::Posse);
    let nobody = Access { url: "https://127.0.0.1:1".to_owned(), ..good.clone() };
    let (report, code) = check(&scene, &nobody, 1, &[]);
    assert_eq!(code, 3);
    expect(&report, "reach", "failed", "Connection refused");

    let ca = Some(crate::support::certs::Authority::new("another-ca").cert);
    let (report, code) = check(&scene, &Access { ca, ..good.clone() }, 1, &[]);
    assert_eq!(code, 3);
    expect(&report, "reach", "ok", "accepts connections");
    expect(&report, "tls", "failed", "invalid peer certificate");

    let stranger = Access { client: None, token: Some("wrong".to_owned()), ..good };
    let (report, code) = check(&scene, &stranger, 1, &[]);
    assert_eq!(code, 3, "{report:#}");
    expect(&report, "identity", "failed", "Unauthorized");
    scene.finish();
}

/// Missing permissions are reported, and the printed role grants them.
pub fn check_permissions(server: &dyn Server) {
    let scene = Scene::new(server);
    let (report, code) = check(&scene, &server.access(Who::Stranger), 1, &[]);
    assert_eq!(code, 3, "{report:#}");
    expect(&report, "rights", "failed", "missing: list pods, watch pods, create pods, delete pods");
    expect(&report, "lease", "warning", "missing: get leases, create leases, update leases");
    let remedy = named(&report, "lease")["remedy"].as_str().expect("a remedy");
    let (_, role) = remedy.split_once('\n').expect("a manifest");
    let role = posse_encoding::yaml::Node::read(role).expect("YAML").to_json();
    for (item, resource) in role["items"].as_array().unwrap().iter().zip(["roles", "rolebindings"])
    {
        let mut item = item.clone();
        if resource == "rolebindings" {
            // The server of the tests is too old for SelfSubjectReview.
            item["subjects"][0]["name"] = "stranger".into();
        }
        let path =
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}/{resource}", scene.namespace);
        scene.admin.post(&path, &item).ok();
    }
    wait_value(PATIENCE, "the rights to be there", || {
        let (report, code) = check(&scene, &server.access(Who::Stranger), 1, &[]);
        if code == 0 { Ok(()) } else { Err(report.to_string()) }
    });
    scene.finish();
}

/// A misspelt field in a template: every command that shows the pods to the server says so.
pub fn misspelt_field(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.write_template("typo.yaml", |template| {
        let container = &mut template["spec"]["containers"][0];
        container["comand"] = json!(["true"]);
    });
    let words = "unknown field \"spec.containers[0].comand\"";
    let output = scene.run().executors(1).once(&["check", "--template", "typo.yaml"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains(words), "{said}");
    let posse = scene.run().executors(1).arg("--template").arg("typo.yaml").start();
    posse.expect_exit(4);
    assert!(posse.stderr().contains(words), "{}", posse.stderr());
    scene.finish();
}

/// `hostUsers: false` is kept, or the run does not begin: an older server would drop it, and the executors would run as
/// users of the host.
pub fn users_of_the_host(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.write_template("own.yaml", |template| template["spec"]["hostUsers"] = json!(false));
    let mut pod = scene.template();
    pod["metadata"]["name"] = json!("probe");
    pod["spec"]["hostUsers"] = json!(false);
    let dry = format!("{}?dryRun=All", pods_path(&scene.namespace));
    let is_kept = scene.admin.post(&dry, &pod).ok()["spec"]["hostUsers"] == false;
    let posse = scene.run().executors(1).arg("--template").arg("own.yaml").start();
    if is_kept {
        assert_eq!(scene.wait_running(1)[0]["spec"]["hostUsers"], false);
        posse.stop();
    } else {
        posse.expect_exit(4);
        let words = "unknown field \"spec.hostUsers\"";
        assert!(posse.stderr().contains(words), "{}", posse.stderr());
    }
    scene.finish();
}

/// A ReplicaSet whose selector matches the labels of the template would take the executors for its own.
pub fn check_labels(server: &dyn Server) {
    let scene = Scene::new(server);
    let make = |name: &str, labels: Value| {
        let pod = json!({"metadata": {"labels": labels}, "spec": scene.template()["spec"]});
        let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}});
        let path = format!("/apis/apps/v1/namespaces/{}/replicasets", scene.namespace);
        scene.admin.post(&path, &set).ok();
    };
    make("other", json!({"team": "till", "pod-template-hash": "h"}));
    let access = server.access(Who::Admin);
    let all = |report: &Value| report["checks"].to_string();
    let (report, _) = check(&scene, &access, 1, &[]);
    assert!(!all(&report).contains("ReplicaSet"), "{report:#}");
    make("web-abc", json!({"team": "till"}));
    let (report, code) = check(&scene, &access, 1, &[]);
    expect(&report, "labels", "warning", "ReplicaSet web-abc selects executors by their labels");
    assert_eq!(code, 0, "{report:#}");
    // Without the permission nothing is said.
    let (report, _) = check(&scene, &server.access(Who::Posse), 1, &[]);
    assert!(!all(&report).contains("ReplicaSet"), "{report:#}");
    scene.finish();
}
