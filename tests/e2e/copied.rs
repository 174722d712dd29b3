//! Templates that were copied from a live pod, and what the finalizers and controllers of others do to executors.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::http::gone_in;
use crate::support::proxy::{Proxy, ProxyAction};
use crate::support::scene::{GRACE_S, Scene, name_of, uid_of};
use crate::support::server::{Server, Who, pods_path};
use crate::support::wait::PATIENCE;

const FINALIZER: &str = "example.com/hold";

/// What belongs to the live pod is told and left out: the executors run on any node, and a stop leaves nothing.
pub fn copied_template(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.write_template("pod.json", |pod| {
        pod["metadata"]["uid"] = "3f2504e0-4f89-41d3-9a0c-0305e82c3301".into();
        pod["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
        pod["metadata"]["labels"]["pod-template-hash"] = "5d4f8c7b9".into();
        pod["spec"]["nodeName"] = "node-7".into();
        pod["spec"]["priority"] = 0.into();
        pod["status"] = json!({"phase": "Running"});
    });
    let posse = scene.run().executors(2).start();
    for pod in scene.wait_running(2) {
        let metadata = &pod["metadata"];
        assert_eq!(metadata["finalizers"], Value::Null);
        assert_eq!(metadata["labels"]["pod-template-hash"], Value::Null);
        assert_ne!(pod["spec"]["nodeName"], "node-7");
    }
    let words = "pod.json: metadata.finalizers, metadata.labels.pod-template-hash, spec.priority, spec.nodeName: \
        dropped";
    assert!(posse.stderr().contains(words), "{}", posse.stderr());
    posse.stop();
    scene.finish();
}

/// A webhook gives executors a finalizer that nobody removes: what waits for their end names it, and so does the stop,
/// with exit code 12.
pub fn held_by_a_finalizer(server: &dyn Server) {
    let scene = Scene::new(server);
    let proxy = Proxy::start(&server.access(Who::Posse), |request, _| {
        if request.is_create() {
            let mut pod = request.json();
            pod["metadata"]["finalizers"] = json!([FINALIZER]);
            request.body = pod.to_string().into_bytes();
        }
        ProxyAction::Pass
    });
    let settings = json!({"executors": [{"group": "default", "count": 2, "template": "pod.json", "replace": "gone"}],
        "shutdown": {"timeout": "2s"}});
    let posse = scene.run_with(&proxy.access()).settings(settings).start();
    let pods = scene.wait_running(2);
    scene.remove(&pods[0]);
    let waiting = format!("is held by finalizer {FINALIZER}, which posse does not remove");
    posse.wait_group("a wait for the held pod", |group| {
        let message = group["message"].as_str().unwrap_or_default();
        group["waiting"] == "replace_gone" && message.contains(&waiting)
    });
    posse.signal(Signal::TERM);
    assert_eq!(posse.wait_exit(PATIENCE + Duration::from_secs(10)), 12, "{}", posse.stderr());
    let said = posse.stderr();
    for pod in &pods {
        let words =
            format!("{} is held by finalizer {FINALIZER}, which nobody here removes", name_of(pod));
        assert!(said.contains(&words), "{said}");
        let path = format!("{}/{}", pods_path(&scene.namespace), name_of(pod));
        scene.admin.merge_patch(&path, &json!({"metadata": {"finalizers": null}})).ok();
    }
    assert!(!said.contains("the cluster ends them"), "{said}");
    scene.finish();
}

/// A controller takes an executor for its own, because its selector matches the labels, and deletes it.
pub fn taken_by_a_controller(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(1).start();
    let taken = scene.wait_running(1).remove(0);
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-abc", "controller": true,
        "uid": "3f2504e0-4f89-41d3-9a0c-0305e82c3301"});
    let path = format!("{}/{}", pods_path(&scene.namespace), name_of(&taken));
    scene.admin.merge_patch(&path, &json!({"metadata": {"ownerReferences": [owner]}})).ok();
    // The garbage collector of a real server may be first: there is no such ReplicaSet.
    scene.admin.delete(&path, &gone_in(GRACE_S)).ok_or_gone();
    let lost = posse.wait_event("executor_lost", |event| event["uid"] == uid_of(&taken));
    let words = "deleted by its new controller, ReplicaSet web-abc, whose selector matches the template's labels";
    let message = lost["message"].as_str().unwrap_or_default();
    assert_eq!(lost["reason"], "deleted", "{lost}");
    // Behind it stands how the container ended, if the kubelet was in time.
    assert!(message.starts_with(words), "{message}");
    scene.wait_running(1);
    posse.stop();
    scene.finish();
}
