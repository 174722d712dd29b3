//! What a mutating webhook puts into the pods: containers beside the main one.

use serde_json::{Value, json};

use super::submit::{made, pod_of};
use crate::support::access::Access;
use crate::support::posse::said;
use crate::support::proxy::{Proxy, ProxyAction};
use crate::support::scene::{Scene, describe, executor_id, is_over, name_of};
use crate::support::server::{End, Server, Who, pods_path};
use crate::support::wait::{PATIENCE, wait_value};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";

/// What a dry run says of it.
const RESTARTS: &str = "the kubelet would restart containers in place";

/// What becomes of the body of a create.
type Change = fn(&mut Value);

/// Changes each new executor, before the server stores it.
enum Mutation<'s> {
    /// The server does it (Kubernetes 1.36).
    Policy {
        scene: &'s Scene<'s>,
        name: String,
    },
    Proxy(Proxy),
}

impl<'s> Mutation<'s> {
    /// `who`: who connects. `what`: a name for it. `patch`: one operation in CEL, and what it does.
    fn start(scene: &'s Scene<'s>, who: Who, what: &str, patch: &str, change: Change) -> Self {
        if scene.admin.get(POLICIES).code != 200 {
            return Self::Proxy(Proxy::start(&scene.server.access(who), move |request, _| {
                if request.is_create_or_dry_run() {
                    let mut pod = request.json();
                    change(&mut pod);
                    request.body = pod.to_string().into_bytes();
                }
                ProxyAction::Pass
            }));
        }
        let name = format!("{what}-{}", scene.namespace);
        let api = "admissionregistration.k8s.io/v1";
        let executors = json!({"matchLabels": {"app.kubernetes.io/managed-by": "posse"}});
        let marked = format!(
            r#"JSONPatch{{op: "add", path: "/metadata/annotations/mutated", value: "{name}"}}"#
        );
        let patch = format!("[{patch}, {marked}]");
        let policy = json!({"apiVersion": api, "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {"failurePolicy": "Fail", "reinvocationPolicy": "Never",
                "matchConstraints": {"objectSelector": executors, "resourceRules": [{"apiGroups": [""],
                    "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}]}});
        scene.admin.post(POLICIES, &policy).ok();
        let namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}});
        let binding = json!({"apiVersion": api, "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "matchResources": {"namespaceSelector": namespace}}});
        scene.admin.post(BINDINGS, &binding).ok();
        let mut probe = scene.template();
        probe["metadata"] = json!({"name": "probe", "annotations": {"a": "b"},
            "labels": {"app.kubernetes.io/managed-by": "posse"}});
        let dry = format!("{}?dryRun=All", pods_path(&scene.namespace));
        wait_value(PATIENCE, "the policy to be in force", || {
            let pod = scene.admin.post(&dry, &probe).ok();
            if pod["metadata"]["annotations"]["mutated"] == name.as_str() {
                Ok(())
            } else {
                Err("it is not")
            }
        });
        Self::Policy { scene, name }
    }

    /// What posse connects to.
    fn access(&self, who: Who) -> Access {
        match self {
            Self::Policy { scene, name: _ } => scene.server.access(who),
            Self::Proxy(proxy) => proxy.access(),
        }
    }
}

impl Drop for Mutation<'_> {
    fn drop(&mut self) {
        if let Self::Policy { scene, name } = self {
            for path in [BINDINGS, POLICIES] {
                scene.admin.delete(&format!("{path}/{name}"), &json!({})).ok_or_gone();
            }
        }
    }
}

/// An agent that ends at once, as the first container of each pod: work is done when the main container
/// says so.
pub fn injected_container(server: &dyn Server) {
    let scene = Scene::new(server);
    let patch = r#"JSONPatch{op: "add", path: "/spec/containers/0", value: Object.spec.containers{
        name: "injected", image: "i", command: ["true"]}}"#;
    let mutation = Mutation::start(&scene, Who::Posse, "inject", patch, |pod| {
        let containers = pod["spec"]["containers"].as_array_mut().expect("a list");
        containers.insert(0, json!({"name": "injected", "image": "i", "command": ["true"]}));
    });
    let group = json!({"count": 1, "restart": "on-failure", "completions": 1,
        "template": "pod.json"});
    let posse = scene
        .run_with(&mutation.access(Who::Posse))
        .settings(json!({"executors": [group], "failures": {"keep_failed": 0}}))
        .start();
    for (id, end) in [(1, End::Exit(3)), (2, End::Exit(0))] {
        let pod = wait_value(PATIENCE, "the injected container to have ended", || {
            let mut ours = scene.ours();
            ours.retain(|pod| executor_id(pod) == id && !is_over(pod));
            let Some(pod) = ours.pop() else { return Err("no pod".to_owned()) };
            let statuses =
                pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
            let state = |name: &str| {
                statuses.iter().find(|one| one["name"] == name).map(|one| one["state"].clone())
            };
            let (injected, worker) = (state("injected"), state("worker"));
            match (injected, worker) {
                (Some(injected), Some(worker)) if worker["running"].is_object() => {
                    if injected["terminated"].is_object() {
                        return Ok(pod);
                    }
                    end_on_real(&scene, &pod);
                }
                (Some(_) | None, Some(_) | None) => {}
            }
            Err(describe(&[pod]))
        });
        assert_eq!(pod["spec"]["containers"][0]["name"], "injected", "{pod}");
        posse.wait_event("executor_running", |event| event["executor"] == id);
        scene.end(&pod, end);
        if id == 1 {
            let lost = posse.wait_event("executor_lost", |event| event["executor"] == 1);
            assert_eq!(
                (&lost["reason"], &lost["exit_code"]),
                (&json!("app_error"), &json!(3)),
                "{lost}"
            );
            assert_eq!(posse.events_of("executor_completed").len(), 0);
        }
    }
    posse.expect_exit(0);
    drop(mutation);
    scene.finish();
}

/// A webhook that lets the kubelet restart the main container: such a pod is deleted, and no executor takes
/// its place.
pub fn injected_restarts(server: &dyn Server) {
    let scene = Scene::new(server);
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}});
    // A server that does not know such rules drops them, or refuses a policy of a container.
    let mut probe = scene.template();
    probe["metadata"] = json!({"name": "probe"});
    probe["spec"]["restartPolicy"] = "Never".into();
    probe["spec"]["containers"][0]["restartPolicy"] = "Never".into();
    probe["spec"]["containers"][0]["restartPolicyRules"] = json!([rule]);
    let dry = format!("{}?dryRun=All", pods_path(&scene.namespace));
    let answer = scene.admin.post(&dry, &probe);
    let has_rules = answer.body["spec"]["containers"][0]["restartPolicyRules"].is_array();
    let policy = r#"JSONPatch{op: "add", path: "/spec/restartPolicy", value: "OnFailure"}"#;
    let of_container =
        r#"JSONPatch{op: "add", path: "/spec/containers/0/restartPolicy", value: "Always"}"#;
    let mutations: [(&str, &str, Change); 2] = [
        ("policy", policy, |pod| pod["spec"]["restartPolicy"] = "OnFailure".into()),
        ("container", of_container, |pod| {
            pod["spec"]["containers"][0]["restartPolicy"] = "Always".into();
        }),
    ];
    for (what, patch, change) in mutations.into_iter().take(1 + usize::from(has_rules)) {
        let driver = json!({"driver": {"image": "driver:1", "pod": pod_of("default")}});
        // The dry run tells it before anything runs, of executors and of the driver.
        let refused = |access: &Access, command: &[&str]| {
            let run = scene.run_with(access).executors(3).settings(driver.clone());
            let output = run.once(command);
            assert_eq!(output.status.code(), Some(4), "{command:?}: {}", said(&output));
            assert!(said(&output).contains(RESTARTS), "{command:?}: {}", said(&output));
        };
        let of_user = Mutation::start(&scene, Who::Admin, &format!("{what}-user"), patch, change);
        refused(&of_user.access(Who::Admin), &["submit", "--no-wait"]);
        drop(of_user);
        let mutation = Mutation::start(&scene, Who::Posse, what, patch, change);
        let access = mutation.access(Who::Posse);
        refused(&access, &["check"]);
        let posse = scene.run_with(&access).executors(3).start();
        posse.expect_exit(4);
        assert!(posse.stderr().contains("restarts its containers in place"), "{}", posse.stderr());
        assert_eq!(posse.events_of("executor_running").len(), 0);
        wait_value(PATIENCE, "the pods to go", || {
            let pods = scene.pods();
            if pods.is_empty() { Ok(()) } else { Err(describe(&pods)) }
        });
    }
    scene.finish();
}

/// A webhook for Jobs, which the dry run of the driver's pod does not meet: nothing is created.
pub fn injected_restarts_of_a_job(server: &dyn Server) {
    let scene = Scene::new(server);
    let proxy = Proxy::start(&scene.server.access(Who::Admin), |request, _| {
        if request.method == "POST" && request.path.contains("/jobs?") {
            let mut job = request.json();
            job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure".into();
            request.body = job.to_string().into_bytes();
        }
        ProxyAction::Pass
    });
    let driver = json!({"driver": {"image": "driver:1", "pod": pod_of("default")}});
    let run = scene.run_with(&proxy.access()).executors(1).settings(driver);
    let output = run.once(&["submit", "--no-wait"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("job shop-driver") && said.contains(RESTARTS), "{said}");
    assert_eq!(made(&scene), [""; 0]);
    scene.finish();
}

/// The test-side node does not end single containers.
fn end_on_real(scene: &Scene<'_>, pod: &Value) {
    if scene.server.real().is_some() {
        let path = format!("{}/{}/status", pods_path(&scene.namespace), name_of(pod));
        let mut statuses = pod["status"]["containerStatuses"].clone();
        statuses[0]["state"] = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        scene.admin.merge_patch(&path, &json!({"status": {"containerStatuses": statuses}})).ok();
    }
}
