//! Pods on a server that enforces the fields of the Pod Security level `restricted`.
//!
//! The real server here is older than the plugin PodSecurity (Kubernetes 1.22), so its predecessor
//! PodSecurityPolicy enforces the fields. It differs from the standard: before it judges a pod, it
//! fills in what the pod does not say (`runAsNonRoot`, `allowPrivilegeEscalation`, the dropped
//! capabilities), where the standard refuses the pod. It only refuses a missing seccomp profile, and
//! fields that say something else. So this test compares each pod with what posse sent: if they are
//! equal, the policy had nothing to fill in, and the standard admits the pod as well.

use serde_json::{Value, json};

use crate::support::pod_security::{admitted, changed, forbidden, violations};
use crate::support::posse::{Posse, Run};
use crate::support::real::{Account, Real};
use crate::support::runner::ASSETS;
use crate::support::scene::{Scene, describe, is_running, name_of, uid_of};
use crate::support::server::pods_path;
use crate::support::wait::{PATIENCE, wait_value};

use super::submit;

/// The fields that the policy fills in; the standard refuses a pod without them.
const FILLED: [&str; 4] = [
    "c runAsNonRoot",
    "c allowPrivilegeEscalation",
    "c capabilities",
    "i allowPrivilegeEscalation",
];

/// Creates a policy, and a role that lets its users use it.
fn create_policy(scene: &Scene<'_>, name: &str, seccomp: &str, spec: &Value) {
    let allowed = "seccomp.security.alpha.kubernetes.io/allowedProfileNames";
    let policy = json!({"apiVersion": "policy/v1beta1", "kind": "PodSecurityPolicy",
        "metadata": {"name": name, "annotations": {allowed: seccomp}}, "spec": spec});
    scene.admin.post("/apis/policy/v1beta1/podsecuritypolicies", &policy).ok();
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name}, "rules": [{"apiGroups": ["policy"], "verbs": ["use"],
            "resources": ["podsecuritypolicies"], "resourceNames": [name]}]});
    scene.admin.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).ok();
}

fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false, "requiredDropCapabilities": ["ALL"],
        "volumes": ["configMap", "emptyDir", "projected", "secret", "downwardAPI",
            "persistentVolumeClaim"],
        "runAsUser": {"rule": "MustRunAsNonRoot"}, "seLinux": {"rule": "RunAsAny"},
        "supplementalGroups": {"rule": "RunAsAny"}, "fsGroup": {"rule": "RunAsAny"},
    })
}

/// What the level `baseline` admits of the fields that posse sets.
fn baseline() -> Value {
    json!({
        "volumes": ["configMap", "emptyDir", "projected", "secret", "downwardAPI",
            "persistentVolumeClaim"],
        "runAsUser": {"rule": "RunAsAny"}, "seLinux": {"rule": "RunAsAny"},
        "supplementalGroups": {"rule": "RunAsAny"}, "fsGroup": {"rule": "RunAsAny"},
    })
}

/// Every row of the table is refused, or filled in until the table admits the pod.
fn compare_with_the_table(scene: &Scene<'_>) {
    let path = format!("{}?dryRun=All", pods_path(&scene.namespace));
    let create = |spec: &Value| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": spec});
        scene.admin.post(&path, &pod)
    };
    let good = wait_value(PATIENCE, "the policy to be in force", || {
        let answer = create(&admitted());
        if answer.code == 201 { Ok(answer.body) } else { Err(answer.body) }
    });
    let sent = admitted();
    assert_eq!(good["spec"]["securityContext"], sent["securityContext"]);
    for (place, fields, want) in forbidden() {
        let mut spec = changed(&admitted(), place, &fields);
        for container in spec["initContainers"].as_array_mut().into_iter().flatten() {
            container["image"] = "i".into();
        }
        let answer = create(&spec);
        if FILLED.contains(&want) && answer.code == 201 {
            assert_eq!(violations(&answer.body["spec"]), [""; 0], "{place} {fields}");
        } else {
            assert_eq!(answer.code, 403, "{place} {fields}: {}", answer.body);
            let message = answer.body["message"].as_str().unwrap_or_default();
            assert!(message.contains("PodSecurityPolicy"), "{message}");
        }
    }
}

/// The security fields of a spec: of the pod, and of each container.
fn security(spec: &Value) -> Value {
    let contexts = |list: &str| -> Vec<Value> {
        let containers = spec[list].as_array().into_iter().flatten();
        containers.map(|container| container["securityContext"].clone()).collect()
    };
    // The server makes an empty one if there is none.
    let pod = spec.get("securityContext").filter(|pod| **pod != json!({}));
    let token = &spec["automountServiceAccountToken"];
    json!([pod, contexts("initContainers"), contexts("containers"), token])
}

/// What posse sends for this group.
fn rendered(run: Run) -> Value {
    let output = run.once(&["render", "-o", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pods: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    security(&pods["items"][0]["spec"])
}

#[track_caller]
fn admitted_by(pod: &Value, policy: &str) {
    assert_eq!(pod["metadata"]["annotations"]["kubernetes.io/psp"], policy, "{pod:#}");
}

/// Posse's group with an image alone, and this level.
fn groups(level: Option<&str>) -> Value {
    let mut group = json!({"group": "default", "count": 1, "image": "example.com/worker:1"});
    if let Some(level) = level {
        group["security"] = level.into();
    }
    json!({"executors": [group]})
}

#[track_caller]
fn wait_one(scene: &Scene<'_>) -> Value {
    wait_value(PATIENCE, "one running executor", || {
        let pods = submit::pods_of(scene, "executor");
        match pods.as_slice() {
            [pod] if is_running(pod) => Ok(pod.clone()),
            others => Err(describe(others)),
        }
    })
}

/// A submitted driver and its executors on such a server: of an image alone, with `restricted`, and
/// with `baseline`, which needs another policy.
pub fn pods_on_a_server_that_enforces_restricted() {
    let assets = std::env::var_os(ASSETS).expect("it is set for the real server's scenarios");
    let Some(own) = Real::start_with_pod_policies(assets.as_ref()) else {
        println!("NOT TESTED: the server has no PodSecurityPolicy");
        return;
    };
    let scene = Scene::new(&own);
    create_policy(&scene, "restricted", "runtime/default", &restricted());
    compare_with_the_table(&scene);
    let account = Account::new(&scene, "runner");
    let runner = json!({"kind": "ServiceAccount", "name": "runner", "namespace": scene.namespace});
    own.bind_role(&scene.namespace, "restricted", &runner);

    // The Job controller's account is an administrator here; there is no policy but this one.
    let driver = json!({"driver": {"command": ["driver"], "image": "example.com/driver:1",
        "pod": submit::pod_of("runner"), "retries": 0}, "executors": groups(None)["executors"]});
    let _submit = submit::run(&scene).settings(driver).begin(&["submit"]);
    let driver = submit::wait_driver(&scene, "");
    admitted_by(&driver, "restricted");
    assert_eq!(violations(&driver["spec"]), [""; 0]);
    let jobs = scene.admin.get(&submit::path(&scene, "/apis/batch/v1", "jobs")).ok();
    let template = &jobs["items"][0]["spec"]["template"]["spec"];
    assert_eq!(security(&driver["spec"]), security(template), "the policy filled in nothing");

    let run = |level: Option<&str>| {
        let run = scene.run_with(&account.access(3_600)).settings(groups(level));
        run.in_pod(name_of(&driver), uid_of(&driver))
    };
    let start = |level: Option<&str>| -> (Posse, Value) {
        let posse = run(level).start();
        (posse, wait_one(&scene))
    };
    let stop = |posse: Posse| {
        posse.stop();
        assert_eq!(describe(&submit::pods_of(&scene, "executor")), "0 pods: ");
    };
    // An image alone lacks only its user, which the policy fills in and the standard demands.
    let (posse, pod) = start(None);
    admitted_by(&pod, "restricted");
    let mut sent = rendered(run(None));
    assert!(sent[2][0]["runAsNonRoot"].is_null(), "{sent}");
    sent[2][0]["runAsNonRoot"] = true.into();
    assert_eq!(security(&pod["spec"]), sent);
    stop(posse);
    // With `restricted` nothing is missing.
    let (posse, pod) = start(Some("restricted"));
    admitted_by(&pod, "restricted");
    assert_eq!(violations(&pod["spec"]), [""; 0]);
    assert_eq!(security(&pod["spec"]), rendered(run(Some("restricted"))));
    stop(posse);
    // With `baseline` posse adds nothing, and the server refuses the pod.
    let posse = run(Some("baseline")).start();
    posse.expect_exit(4);
    let words = posse.stderr();
    assert!(words.contains("PodSecurityPolicy") && words.contains("seccomp"), "{words}");
    assert_eq!(describe(&submit::pods_of(&scene, "executor")), "0 pods: ");
    // It needs a namespace that admits it.
    create_policy(&scene, "unrestricted", "*", &baseline());
    own.bind_role(&scene.namespace, "unrestricted", &runner);
    let (posse, pod) = start(Some("baseline"));
    admitted_by(&pod, "unrestricted");
    assert_eq!(security(&pod["spec"]), rendered(run(Some("baseline"))));
    assert!(pod["spec"]["containers"][0]["securityContext"].is_null(), "{pod:#}");
    stop(posse);
    submit::stop_and_finish(scene);
}
