//! Labels and annotations of every object (`labels` and `annotations` at the top of posse.yaml). A proxy sees each object
//! that posse creates, so an object of a new kind cannot be forgotten.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use posse_encoding::yaml::Node;
use serde_json::{Value, json};

use super::queues::{DEFINITIONS, coscheduling, define_pod_groups};
use super::submit::{ask, expect, pods_of, run_with, wait_driver, wait_executors};
use crate::support::posse::said;
use crate::support::proxy::{Proxy, ProxyAction};
use crate::support::scene::{APP, Scene, uid_of};
use crate::support::server::{End, Server, Who, items};
use crate::support::wait::{PATIENCE, wait_for};

const COST_CENTER: &str = "cost-center";
const PART_OF: &str = "app.kubernetes.io/part-of";
const OWNER: &str = "example.com/owner";
const COMPONENT: &str = "app.kubernetes.io/component";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const POLICY: &str = r#"apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: cost-center}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team-a}}
    resourceRules:
      - apiGroups: ["", batch, coordination.k8s.io]
        apiVersions: [v1]
        operations: [CREATE]
        resources: [configmaps, jobs, leases, persistentvolumeclaims, pods, secrets, services]
  validations:
    - expression: "has(object.metadata.labels) && 'cost-center' in object.metadata.labels"
      message: every object needs the label cost-center
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: cost-center}
spec: {policyName: cost-center, validationActions: [Deny]}
"#;
/// The definition of the PodGroups of Coscheduling.
const POD_GROUPS: &str = "podgroups.scheduling.x-k8s.io";

/// What posse sends: the resource, and the object.
type Sent = Arc<Mutex<Vec<(String, Value)>>>;

/// A proxy that notes every object that posse creates or replaces, also by a dry run.
fn noting(server: &dyn Server) -> (Proxy, Sent) {
    let sent = Sent::default();
    let noted = Arc::clone(&sent);
    let proxy = Proxy::start(&server.access(Who::Admin), move |request, _| {
        let path = request.path.split('?').next().unwrap_or_default();
        let mut segments = path.rsplit('/');
        let resource = match request.method.as_str() {
            "POST" => segments.next(),
            "PUT" => segments.nth(1),
            _ => None,
        };
        // A review is a question, which the server does not store.
        if let Some(resource) = resource.filter(|resource| !resource.ends_with("reviews")) {
            let mut noted = noted.lock().expect("nobody panics in here");
            noted.push((resource.to_owned(), request.json()));
        }
        ProxyAction::Pass
    });
    (proxy, sent)
}

/// All that was sent has this cost center, and what else all objects have. Returns the resources.
#[track_caller]
fn check(sent: &[(String, Value)], cost_center: &str) -> BTreeSet<String> {
    for (resource, object) in sent {
        check_metadata(&object["metadata"], cost_center, resource);
        if resource == "jobs" {
            check_metadata(&object["spec"]["template"]["metadata"], cost_center, "pods");
        }
    }
    sent.iter().map(|(resource, _)| resource.clone()).collect()
}

#[track_caller]
fn check_metadata(metadata: &Value, cost_center: &str, what: &str) {
    let (labels, annotations) = (&metadata["labels"], &metadata["annotations"]);
    assert_eq!(labels[COST_CENTER], cost_center, "{what}: {metadata}");
    assert_eq!(labels[PART_OF], "books", "{what}: {metadata}");
    assert_eq!(annotations[OWNER], "me", "{what}: {metadata}");
    // Only templates say something else.
    let team = match labels[COMPONENT].as_str() {
        Some("executor") => "till",
        Some("driver") if what == "pods" => "drivers",
        _ => "common",
    };
    assert_eq!(labels["team"], team, "{what}: {metadata}");
}

fn common(cost_center: &str) -> Value {
    json!({
        "labels": {"team": "common", COST_CENTER: cost_center, PART_OF: "books"},
        "annotations": {OWNER: "me"},
    })
}

/// Everything that a run makes has them: pods, claims, Leases, Secrets, Events, PodGroups. The template and posse itself
/// win. A run that goes on with other labels gives them to new objects, and adopts the old ones as they are.
pub fn all_of_a_run_has_the_labels(server: &dyn Server) {
    let scene = Scene::new(server);
    // The embedded cluster takes no definitions.
    let has_pod_groups = server.real().is_some();
    if has_pod_groups {
        define_pod_groups(&scene.admin, &coscheduling());
    }
    let driver = scene.make_driver_pod("driver");
    let (proxy, sent) = noting(server);
    let volume = json!({"name": "data", "size": "1Mi", "mount": "/posse-slot-data-common"});
    let mut groups = vec![
        json!({"group": "default", "count": 1, "pod": scene.template(), "volumes_per_slot": [volume]}),
    ];
    if has_pod_groups {
        let gang = json!({"kind": "coscheduling", "min": 1});
        groups.push(json!({"group": "gang", "count": 1, "pod": scene.template(), "gang": gang}));
    }
    let n = groups.len();
    let token = json!({"name": "token", "command": ["sh", "-c", "echo x >\"$0\"/token", "{{DIR}}"],
        "every": "1h", "secret": "shop-token", "mount": "/var/posse/credentials/token"});
    let run = |cost_center: &str| {
        let run = scene.run_with(&proxy.access()).instance("one").settings(common(cost_center));
        run.settings(json!({"exclusive": true, "credentials": [token], "executors": groups}))
    };
    let taken = || sent.lock().expect("nobody panics in here").clone();

    let shown = run("first").once(&["render"]);
    assert!(said(&shown).contains("cost-center: first\n"), "{}", said(&shown));
    assert!(taken().is_empty(), "nothing was asked for");
    run("first").once(&["check"]);
    assert_eq!(check(&taken(), "first"), ["pods".to_owned()].into(), "a dry run of each group");

    let start = |cost_center| run(cost_center).in_pod("driver", uid_of(&driver)).start();
    let posse = start("first");
    let pods = scene.wait_running(n);
    let group = json!({"template": scene.template(), "target": 1});
    let (code, body) = posse.call("PUT", "/v1/groups/more", &group);
    assert_eq!(code, 200, "{body}");
    scene.wait_running(n + 1);
    scene.end(&pods[0], End::Exit(1));
    wait_for(PATIENCE, "an Event about the loss", || {
        taken().iter().any(|(resource, _)| resource == "events")
    });
    scene.wait_running(n + 1);
    posse.kill();
    let before = taken();
    let mut want =
        vec!["configmaps", "events", "leases", "persistentvolumeclaims", "pods", "secrets"];
    want.extend(has_pod_groups.then_some("podgroups"));
    assert_eq!(check(&before, "first"), want.iter().map(|one| (*one).to_owned()).collect());

    let posse = start("second");
    posse.wait_ready();
    posse.scale("default", 2);
    scene.wait_running(n + 2);
    let with = |cost_center: &str| {
        let mut pods = scene.ours();
        pods.retain(|pod| pod["metadata"]["labels"][COST_CENTER] == cost_center);
        pods.retain(|pod| pod["status"]["phase"] == "Running");
        pods.len()
    };
    assert_eq!((with("first"), with("second")), (n + 1, 1), "the adopted stay as they are");
    posse.stop();
    let after = taken()[before.len()..].to_vec();
    assert!(check(&after, "second").contains("pods"), "{after:?}");
    if has_pod_groups {
        let gone = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        scene.admin.delete(&format!("{DEFINITIONS}/{POD_GROUPS}"), &gone).ok();
    }
    scene.remove(&driver);
    scene.finish();
}

/// Everything that `posse submit` makes has them, and what the driver makes in the cluster.
pub fn all_of_a_submission_has_the_labels(server: &dyn Server) {
    let scene = Scene::new(server);
    std::fs::write(scene.file("a.txt"), "a file of the driver").expect("writable");
    let (proxy, sent) = noting(server);
    for kind in ["job", "pod"] {
        let driver = json!({"kind": kind, "pod": {"metadata": {"labels": {"team": "drivers"}},
            "spec": {"serviceAccountName": null, "containers": [{"name": "driver"}]}}});
        let group = json!({"group": "default", "count": 1, "template": "pod.json"});
        let run = run_with(&scene, &proxy.access()).settings(common("first"));
        let run = run.settings(json!({"driver": driver, "executors": [group]}));
        let done = run.once(&["submit", "--no-wait", "--create-rbac", "--file", "a.txt"]);
        expect(&done, 0, &[&format!("application shop submitted: {kind} shop-driver")]);
        let driver = wait_driver(&scene, "");
        wait_executors(&scene, &driver, 1);
        check_metadata(&driver["metadata"], "first", "pods");
        // The node of the real server runs no containers.
        if server.real().is_none() {
            let executors = pods_of(&scene, "executor");
            assert!(!executors.is_empty());
            let leases =
                format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", scene.namespace);
            let leases = items(&scene.admin.get(&leases).ok());
            assert!(!leases.is_empty());
            for object in executors.iter().chain(&leases) {
                check_metadata(&object["metadata"], "first", "an object of the driver");
            }
        }
        expect(&ask(&scene, &["stop", APP]), 0, &["application shop stopped"]);
    }
    let sent = sent.lock().expect("nobody panics in here").clone();
    let mut want = vec!["configmaps", "jobs", "pods", "rolebindings", "roles", "secrets"];
    want.extend(["serviceaccounts", "services"]);
    assert_eq!(check(&sent, "first"), want.into_iter().map(str::to_owned).collect());
    scene.finish();
}

/// A policy that asks for a label, on the real server: `check` tells what is missing, and with the label a run and a
/// submission pass.
pub fn a_policy_that_asks_for_labels(server: &dyn Server) {
    let scene = Scene::new(server);
    if scene.admin.get(&format!("{ADMISSION}/validatingadmissionpolicies")).code == 404 {
        println!("NOT TESTED: this server has no ValidatingAdmissionPolicies");
        return;
    }
    for (text, resource) in POLICY
        .replace("team-a", &scene.namespace)
        .split("---\n")
        .zip(["validatingadmissionpolicies", "validatingadmissionpolicybindings"])
    {
        let object = Node::read(text).expect("YAML").to_json();
        scene.admin.post(&format!("{ADMISSION}/{resource}"), &object).ok();
    }
    let words = "every object needs the label cost-center";
    let maps = format!("/api/v1/namespaces/{}/configmaps?dryRun=All", scene.namespace);
    let without = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    wait_for(PATIENCE, "the policy to be in force", || {
        scene.admin.post(&maps, &without).body.to_string().contains(words)
    });
    let check = scene.run().executors(1).once(&["check"]);
    assert!(!check.status.success() && said(&check).contains(words), "{}", said(&check));
    let submit = |settings: Value| {
        run_with(&scene, &scene.server.access(Who::Admin))
            .settings(settings)
            .once(&["submit", "--dry-run"])
    };
    let refused = submit(json!({}));
    assert!(!refused.status.success() && said(&refused).contains(words), "{}", said(&refused));
    expect(&submit(common("first")), 0, &["kind: Job"]);
    let posse = scene.run().executors(1).settings(common("first")).start();
    scene.wait_running(1);
    posse.stop();
    scene.finish();
}
