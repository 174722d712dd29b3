//! Executors in a queue, with the test in the part of Kueue, and gangs.

use serde_json::{Value, json};

use crate::support::scene::{Scene, executor_id, is_running, name_of};
use crate::support::server::{End, Server, pods_path};
use crate::support::wait::{PATIENCE, wait_value};

/// What Kueue's webhook adds to a pod in a queue. The test has no webhook, so the template has it.
const GATE: &str = "kueue.x-k8s.io/admission";

/// The queue admits one of two executors, admits the other when there is room, and takes back the first: one loss
/// of the cluster, with Kueue's message, and the replacement waits.
pub fn a_queue_admits_and_takes_back(server: &dyn Server) {
    let scene = Scene::new(server);
    let mut pod = scene.template();
    pod["spec"]["schedulingGates"] = json!([{"name": GATE}]);
    let group = json!({"group": "default", "count": 2, "pod": pod});
    let settings = json!({"queue": "team-a", "executors": [group]});
    let posse = scene.run().settings(settings).start();

    let waiting = posse.wait_event("waiting", |event| event["for"] == "queue");
    assert!(waiting["message"].as_str().unwrap_or_default().contains(GATE), "{waiting}");
    let first = executor(&scene, 1);
    assert_eq!(first["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team-a");
    admit(&scene, 1);
    running(&scene, 1);
    assert!(!is_running(&executor(&scene, 2)), "nobody admitted it");
    admit(&scene, 2);
    running(&scene, 2);

    // As Kueue does it: the condition, then the delete.
    let path = format!("{}/{}", pods_path(&scene.namespace), name_of(&first));
    let mut conditions = executor(&scene, 1)["status"]["conditions"].clone();
    let target = json!({"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvictedDueToPreempted",
        "message": "Preempted to accommodate a workload", "lastProbeTime": null,
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    conditions.as_array_mut().expect("a list").push(target);
    let status = json!({"status": {"conditions": conditions}});
    scene.admin.merge_patch(&format!("{path}/status"), &status).ok();
    scene.admin.delete(&path, &json!({})).ok();
    let lost = posse.wait_event("executor_lost", |event| event["executor"] == 1);
    assert_eq!((&lost["reason"], &lost["budget"]), (&json!("preempted"), &json!("cluster")));
    let words = lost["message"].as_str().unwrap_or_default();
    assert!(words.contains("Preempted to accommodate a workload"), "{words}");
    let again = executor(&scene, 3);
    assert_eq!(again["spec"]["schedulingGates"], json!([{"name": GATE}]));
    admit(&scene, 3);
    running(&scene, 3);
}

/// Kueue keeps the pods of a group by its finalizer, also if nothing will take their places. The test has no Kueue, so the
/// template has the finalizer. Neither a lost member nor the end of a run or of its posse leaves one behind.
pub fn a_group_in_a_queue_leaves_nothing_behind(server: &dyn Server) {
    let scene = Scene::new(server);
    let mut pod = scene.template();
    pod["metadata"]["finalizers"] = json!(["kueue.x-k8s.io/managed"]);
    let group = json!({"group": "default", "count": 3, "queue_group": true, "pod": pod});
    let settings = json!({"queue": "team-a", "executors": [group]});
    let start = |instance: &str| scene.run().settings(settings.clone()).instance(instance).start();
    let posse = start("one");
    let pods = scene.wait_running(3);
    for pod in &pods {
        let metadata = &pod["metadata"];
        let name = &metadata["labels"]["kueue.x-k8s.io/pod-group-name"];
        let count = &metadata["annotations"]["kueue.x-k8s.io/pod-group-total-count"];
        assert_eq!((name, count), (&json!("shop-one-default"), &json!("3")), "{metadata}");
    }
    // A failed one is succeeded while it is still there. One that ended with 0 counts until it is gone.
    scene.end(&pods[0], End::Exit(1));
    scene.wait_running_ids(&[2, 3, 4]);
    scene.end(&pods[1], End::Exit(0));
    scene.wait_running_ids(&[3, 4, 5]);
    let slots: Vec<Value> = scene
        .ours()
        .iter()
        .map(|pod| pod["metadata"]["labels"]["posse.dev/slot"].clone())
        .collect();
    assert!(slots.iter().all(|slot| ["0", "1", "2"].iter().any(|one| slot == one)), "{slots:?}");
    posse.stop();
    scene.wait_none();

    let posse = start("two");
    scene.wait_running(3);
    posse.kill();
    scene.cleanup(&["--instance", "two", "--yes"]);
    scene.wait_none();

    let posse = start("two");
    scene.wait_running(3);
    posse.stop();
    scene.wait_none();

    // The failed pod of a failed run stays, and nothing takes its place. Kueue takes its finalizer off by itself: if
    // posse did, Kueue might wait for the event of its own removal for ever, and keep the quota.
    let run = scene.run().settings(settings).instance("three");
    let posse = run.settings(json!({"failures": {"app": 0}})).start();
    let pods = scene.wait_running(3);
    scene.end(&pods[0], End::Exit(1));
    posse.may_end();
    posse.expect_exit(11);
    let left = scene.ours();
    assert_eq!(left.len(), 1, "{left:?}");
    let metadata = &left[0]["metadata"];
    assert_eq!(metadata["annotations"]["kueue.x-k8s.io/retriable-in-group"], "false", "{metadata}");
    assert_eq!(metadata["annotations"]["kueue.x-k8s.io/pod-group-serving"], Value::Null);
    assert_eq!(metadata["finalizers"], json!(["kueue.x-k8s.io/managed"]));
    scene.cleanup(&["--instance", "three", "--yes"]);
    scene.wait_none();
    scene.finish();
}

/// A quota has room for two of a gang of three: both are given back at once, and the gang runs when there is room.
pub fn a_gang_is_given_back_and_tried_again(server: &dyn Server) {
    let scene = Scene::new(server);
    let path = format!("/api/v1/namespaces/{}/resourcequotas", scene.namespace);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "room"},
        "spec": {"hard": {"pods": "2"}}});
    scene.admin.post(&path, &quota).ok();
    wait_value(PATIENCE, "the quota to be in force", || {
        let quota = scene.admin.get(&format!("{path}/room")).ok();
        if quota["status"]["hard"]["pods"] == "2" { Ok(()) } else { Err(quota) }
    });
    let gang = json!({"min": 3, "timeout": "4s"});
    let group = json!({"group": "default", "count": 3, "pod": scene.template(), "gang": gang});
    let posse = scene.run().settings(json!({"executors": [group]})).start();

    let given_back = posse.wait_event("gang_given_back", |_| true);
    assert_eq!((&given_back["running"], &given_back["min"]), (&json!(2), &json!(3)));
    posse.wait_group("a wait for the gang", |group| group["waiting"] == "gang");
    for event in posse.wait_events("executor_deleted", 2) {
        assert_eq!(event["cause"], "gang_given_back", "{event}");
    }
    assert!(posse.events_of("gang_running").is_empty());
    scene
        .admin
        .merge_patch(&format!("{path}/room"), &json!({"spec": {"hard": {"pods": "3"}}}))
        .ok();
    let running = posse.wait_event("gang_running", |_| true);
    assert_eq!((&running["running"], &running["min"]), (&json!(3), &json!(3)));
    scene.wait_running(3);
    assert!(posse.events_of("executor_lost").is_empty(), "nothing was lost");
    posse.stop();
    scene.finish();
}

/// A gang of a scheduler that the cluster does not have is told at the start, with the remedy.
pub fn a_gang_without_its_scheduler_is_told_at_the_start(server: &dyn Server) {
    let scene = Scene::new(server);
    for (kind, api) in [("native", "scheduling.k8s.io"), ("volcano", "scheduling.volcano.sh")] {
        let gang = json!({"kind": kind});
        let group = json!({"group": "default", "count": 3, "pod": scene.template(), "gang": gang});
        let posse = scene.run().settings(json!({"executors": [group]})).start();
        posse.may_end();
        posse.expect_exit(4);
        let said = posse.stderr();
        assert!(said.contains(&format!("the server has no PodGroups in /apis/{api}")), "{said}");
        assert!(said.contains("or write `kind: none`"), "{said}");
    }
    assert!(scene.pods().is_empty(), "{:?}", scene.pods());
    scene.finish();
}

/// A call that changes the template of a group of the file changes neither its gang nor how its memory grows.
pub fn a_call_leaves_a_gang_and_its_memory(server: &dyn Server) {
    let scene = Scene::new(server);
    let mut pod = scene.template();
    // Nobody plays YuniKorn's scheduler here.
    pod["spec"]["schedulerName"] = json!("default-scheduler");
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    let group = json!({"group": "default", "count": 1, "pod": pod, "gang": {"kind": "yunikorn", "min": 1},
        "oom_growth": 1.5, "memory_max": "100Mi"});
    let settings = json!({"executors": [group], "failures": {"keep_failed": 0}});
    let posse = scene.run().settings(settings).start();
    let first = scene.wait_running(1).remove(0);
    pod["metadata"]["labels"]["round"] = json!("2");
    let (code, body) = posse.call("PUT", "/v1/groups/default", &json!({"template": pod}));
    assert_eq!(code, 200, "{body}");
    scene.remove(&first);
    scene.wait_running_ids(&[2]);
    posse.wait_event("executor_running", |event| event["executor"] == 2);
    let second = executor(&scene, 2);
    assert_eq!(second["metadata"]["labels"]["round"], "2");
    let tasks =
        |pod: &Value| pod["metadata"]["annotations"]["yunikorn.apache.org/task-groups"].clone();
    assert!(tasks(&first).is_string(), "{first}");
    assert_eq!(tasks(&second), tasks(&first));
    scene.end(&second, End::OomKilled);
    scene.wait_running_ids(&[3]);
    let third = executor(&scene, 3);
    assert_eq!(third["spec"]["containers"][0]["resources"]["limits"]["memory"], "96Mi", "{third}");
    // What grows needs a size to begin with.
    pod["spec"]["containers"][0]["resources"] = json!({});
    let (code, body) = posse.call("PUT", "/v1/groups/default", &json!({"template": pod}));
    assert_eq!(code, 400, "{body}");
    assert!(body.to_string().contains("oom_growth needs a limit to start from"), "{body}");
    posse.stop();
    scene.finish();
}

/// Executor `id`, once it exists.
#[track_caller]
fn executor(scene: &Scene<'_>, id: u64) -> Value {
    wait_value(PATIENCE, &format!("executor {id}"), || {
        let found = scene.ours().into_iter().find(|pod| executor_id(pod) == id);
        found.ok_or("it is not there")
    })
}

#[track_caller]
fn running(scene: &Scene<'_>, id: u64) {
    wait_value(PATIENCE, &format!("executor {id} runs"), || {
        let pod = executor(scene, id);
        if is_running(&pod) { Ok(()) } else { Err(pod["status"].clone()) }
    });
}

fn admit(scene: &Scene<'_>, id: u64) {
    let path = format!("{}/{}", pods_path(&scene.namespace), name_of(&executor(scene, id)));
    scene.admin.merge_patch(&path, &json!({"spec": {"schedulingGates": null}})).ok();
}
