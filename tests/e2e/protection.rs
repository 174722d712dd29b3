//! Annotations that keep autoscalers from ending executors (`protect`).

use serde_json::{Value, json};

use crate::support::proxy::{Proxy, ProxyAction, status};
use crate::support::scene::{Scene, name_of};
use crate::support::server::{Server, Who};
use crate::support::wait::{PATIENCE, wait_for};

const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// `always` stands in the pod. `busy` comes when an executor runs. A group without the key has none.
pub fn executors_with_work_are_protected(server: &dyn Server) {
    let scene = Scene::new(server);
    let groups = json!([
        {"group": "always", "count": 1, "pod": scene.template(), "protect": "always"},
        {"group": "busy", "count": 2, "pod": scene.template(), "protect": "busy"},
        {"group": "off", "count": 1, "pod": scene.template()},
    ]);
    let posse = scene.run().settings(json!({"executors": groups})).start();
    scene.wait_running(4);
    wait_for(PATIENCE, "the busy to be protected", || protected(&scene, "busy") == 2);
    assert_eq!((protected(&scene, "always"), protected(&scene, "off")), (1, 0));
    posse.stop();
    scene.finish();
}

/// Without the right to patch pods the run goes on, and says once that nobody is protected.
pub fn without_the_right_none_is_protected(server: &dyn Server) {
    let scene = Scene::new(server);
    let proxy =
        Proxy::start(&server.access(Who::Posse), |request, _| match request.method.as_str() {
            "PATCH" if request.path.contains("/pods/") => {
                ProxyAction::Reply(403, status(403, "Forbidden", "pods is forbidden"))
            }
            _ => ProxyAction::Pass,
        });
    let group = json!({"group": "default", "count": 3, "pod": scene.template(), "protect": "busy"});
    let settings = json!({"executors": [group]});
    let posse = scene.run_with(&proxy.access()).settings(settings).start();
    scene.wait_running(3);
    let told = posse.wait_event("unprotected", |_| true);
    assert_eq!(told["executor"], Value::Null, "{told}");
    assert!(told["message"].as_str().unwrap_or_default().contains("pods is forbidden"), "{told}");
    // The run goes on, and does not ask again.
    posse.scale("default", 4);
    scene.wait_running(4);
    assert_eq!(posse.events_of("unprotected").len(), 1);
    assert_eq!(protected(&scene, "default"), 0);
    posse.stop();
    scene.finish();
}

/// A call that changes the template of a group of the file changes neither its protection nor its queue: its next pods
/// have both from the beginning.
pub fn a_call_leaves_a_group_protected_and_queued(server: &dyn Server) {
    let scene = Scene::new(server);
    let group = json!({"group": "default", "count": 1, "pod": scene.template(),
        "protect": "always", "queue": "team-a", "max_age": "20h"});
    let posse = scene.run().settings(json!({"executors": [group]})).start();
    let first = scene.wait_running(1).remove(0);
    let (code, body) =
        posse.call("PUT", "/v1/groups/default", &json!({"template": scene.template()}));
    assert_eq!(code, 200, "{body}");
    scene.remove(&first);
    scene.wait_running_ids(&[2]);
    let next = scene.ours().remove(0);
    let queue = |pod: &Value| pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"].clone();
    assert_eq!((queue(&first), queue(&next)), (json!("team-a"), json!("team-a")));
    assert_eq!(next["spec"]["activeDeadlineSeconds"], 72_000, "max_age");
    assert_eq!(protected(&scene, "default"), 1);
    posse.stop();
    scene.finish();
}

/// How many executors of the group have both annotations. None has one of them alone.
fn protected(scene: &Scene<'_>, group: &str) -> usize {
    let pods = scene.ours();
    let of_group = pods.iter().filter(|pod| pod["metadata"]["labels"]["posse.dev/group"] == group);
    let is_protected = |pod: &&Value| {
        let annotations = &pod["metadata"]["annotations"];
        let both = [&annotations[DO_NOT_DISRUPT], &annotations[SAFE_TO_EVICT]];
        assert_eq!(both[0].is_null(), both[1].is_null(), "{}: {annotations}", name_of(pod));
        both == [&json!("true"), &json!("false")]
    };
    of_group.filter(is_protected).count()
}

/// The command that tells who is idle means the same as the call: an unforced kill spares the others.
pub fn a_command_tells_which_executors_are_idle(server: &dyn Server) {
    let scene = Scene::new(server);
    let script = format!(
        "test -n \"$POSSE_CONTROL\" && test -n \"$POSSE_EXE\" || exit 5; cat {}",
        scene.file("idle").display()
    );
    let idle = json!({"command": ["sh", "-c", script], "every": "100ms"});
    let posse = scene.run().executors(3).settings(json!({"driver": {"idle": idle}})).start();
    scene.wait_running(3);
    let failed = "warn the command of `driver.idle` ended with exit code 1: cat: ";
    wait_for(PATIENCE, "the failure to be told", || posse.stderr().to_lowercase().contains(failed));
    std::fs::write(scene.file("idle"), "2\n3\n").expect("the folder can be written");
    wait_for(PATIENCE, "the recovery to be told", || {
        posse.stderr().contains("the command of `driver.idle` works again")
    });
    let kill = |id: &str| -> Value {
        let output = posse.ask(&["kill", "--json", "--no-replace", id]);
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    wait_for(PATIENCE, "executor 1 to be busy", || kill("1")["busy"] == json!([1]));
    assert_eq!(kill("2")["killed"], json!([2]));
    assert_eq!(posse.stderr().matches("the command of `driver.idle` ended").count(), 1);
    posse.stop();
    scene.finish();
}
