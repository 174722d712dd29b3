//! Executors in a queue, with the test in the part of Kueue, and gangs.

use serde_json::{Value, json};

use crate::support::audit;
use crate::support::http::Client;
use crate::support::real::Real;
use crate::support::runner::ASSETS;
use crate::support::scene::{Scene, describe, executor_id, is_running, name_of};
use crate::support::server::{End, Server, Who, items, pods_path};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

/// What Kueue's webhook adds to a pod in a queue. The test has no webhook, so the template has it.
pub const GATE: &str = "kueue.x-k8s.io/admission";

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
    assert_eq!(executor(&scene, 1)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team-a");
    admit(&scene, &executor(&scene, 1));
    running(&scene, 1);
    assert!(!is_running(&executor(&scene, 2)), "nobody admitted it");
    admit(&scene, &executor(&scene, 2));
    running(&scene, 2);

    take_back(&scene, &executor(&scene, 1), "Preempted to accommodate a workload");
    let lost = posse.wait_event("executor_lost", |event| event["executor"] == 1);
    assert_eq!((&lost["reason"], &lost["budget"]), (&json!("preempted"), &json!("cluster")));
    let words = lost["message"].as_str().unwrap_or_default();
    assert!(words.contains("Preempted to accommodate a workload"), "{words}");
    let again = executor(&scene, 3);
    assert_eq!(again["spec"]["schedulingGates"], json!([{"name": GATE}]));
    admit(&scene, &executor(&scene, 3));
    running(&scene, 3);
}

/// What Kueue's webhook does with the pods of a group: a template's finalizers are dropped.
fn hold(scene: &Scene<'_>) {
    for pod in scene.ours().iter().filter(|pod| pod["metadata"]["finalizers"].is_null()) {
        let path = format!("{}/{}", pods_path(&scene.namespace), name_of(pod));
        let finalizers = json!({"metadata": {"finalizers": ["kueue.x-k8s.io/managed"]}});
        scene.admin.merge_patch(&path, &finalizers).ok();
    }
}

/// Kueue keeps the pods of a group by its finalizer, also if nothing will take their places. The test has no Kueue, so it
/// adds the finalizer itself. Neither a lost member nor the end of a run or of its posse leaves one behind.
pub fn a_group_in_a_queue_leaves_nothing_behind(server: &dyn Server) {
    let scene = Scene::new(server);
    let pod = scene.template();
    let group = json!({"group": "default", "count": 3, "queue_group": true, "pod": pod});
    let settings = json!({"queue": "team-a", "executors": [group]});
    let start = |instance: &str| scene.run().settings(settings.clone()).instance(instance).start();
    let posse = start("one");
    let pods = scene.wait_running(3);
    hold(&scene);
    for pod in &pods {
        let metadata = &pod["metadata"];
        let name = &metadata["labels"]["kueue.x-k8s.io/pod-group-name"];
        let count = &metadata["annotations"]["kueue.x-k8s.io/pod-group-total-count"];
        assert_eq!((name, count), (&json!("shop-one-default"), &json!("3")), "{metadata}");
    }
    // A failed one is succeeded while it is still there. One that ended with 0 counts until it is gone.
    scene.end(&pods[0], End::Exit(1));
    scene.wait_running_ids(&[2, 3, 4]);
    hold(&scene);
    scene.end(&pods[1], End::Exit(0));
    scene.wait_running_ids(&[3, 4, 5]);
    hold(&scene);
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
    hold(&scene);
    posse.kill();
    scene.cleanup(&["--instance", "two", "--yes"]);
    scene.wait_none();

    let posse = start("two");
    scene.wait_running(3);
    hold(&scene);
    posse.stop();
    scene.wait_none();

    // The failed pod of a failed run stays, and nothing takes its place. Kueue takes its finalizer off by itself: if
    // posse did, Kueue might wait for the event of its own removal for ever, and keep the quota.
    let run = scene.run().settings(settings).instance("three");
    let posse = run.settings(json!({"failures": {"app": 0}})).start();
    let pods = scene.wait_running(3);
    hold(&scene);
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

/// A call that changes the template of a group of the file changes neither its gang nor how its memory grows, nor when an
/// executor begins again.
pub fn a_call_leaves_a_gang_and_its_memory(server: &dyn Server) {
    let scene = Scene::new(server);
    let mut pod = scene.template();
    // Nobody plays YuniKorn's scheduler here.
    pod["spec"]["schedulerName"] = json!("default-scheduler");
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    let group = json!({"group": "default", "count": 1, "pod": pod, "gang": {"kind": "yunikorn", "min": 1},
        "oom_growth": 1.5, "memory_max": "100Mi", "restart": "on-failure"});
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
    assert_eq!(second["metadata"]["annotations"]["posse.dev/restart"], "on-failure", "{second}");
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

/// A group that takes the place of a deleted one with `queue_group` is in the same queue, but its executors wait for
/// admission one by one.
pub fn a_group_after_one_of_a_queue_is_elastic(server: &dyn Server) {
    let scene = Scene::new(server);
    let group =
        json!({"group": "default", "count": 1, "queue_group": true, "pod": scene.template()});
    let posse = scene.run().settings(json!({"queue": "team-a", "executors": [group]})).start();
    let labels = |pod: &Value| pod["metadata"]["labels"].clone();
    let first = labels(&scene.wait_running(1).remove(0));
    assert!(first["kueue.x-k8s.io/pod-group-name"].is_string(), "{first}");
    let (code, body) = posse.call("DELETE", "/v1/groups/default", &Value::Null);
    assert_eq!(code, 200, "{body}");
    let put = json!({"template": scene.template(), "target": 1});
    let (code, body) = posse.call("PUT", "/v1/groups/default", &put);
    assert_eq!(code, 200, "{body}");
    scene.wait_running_ids(&[2]);
    let second = labels(&executor(&scene, 2));
    assert_eq!(second["kueue.x-k8s.io/pod-group-name"], Value::Null, "{second}");
    assert_eq!(second["kueue.x-k8s.io/queue-name"], "team-a", "{second}");
    posse.stop();
    scene.finish();
}

/// A group that takes the place of a deleted one has nothing of what the file said of that: no gang, no protection, no
/// larger memory.
pub fn a_group_after_one_with_a_gang_has_none(server: &dyn Server) {
    let scene = Scene::new(server);
    let mut pod = scene.template();
    // Nobody plays YuniKorn's scheduler here.
    pod["spec"]["schedulerName"] = json!("default-scheduler");
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    let group = json!({"group": "default", "count": 1, "pod": pod, "gang": {"kind": "yunikorn", "min": 1},
        "protect": "always", "oom_growth": 1.5, "memory_max": "100Mi"});
    let settings = json!({"executors": [group], "failures": {"keep_failed": 0}});
    let posse = scene.run().settings(settings).start();
    let annotation = |pod: &Value, key: &str| pod["metadata"]["annotations"][key].clone();
    let file_has = ["yunikorn.apache.org/task-groups", "karpenter.sh/do-not-disrupt"];
    let first = scene.wait_running(1).remove(0);
    for key in file_has {
        assert!(annotation(&first, key).is_string(), "{key}: {first}");
    }
    let (code, body) = posse.call("DELETE", "/v1/groups/default", &Value::Null);
    assert_eq!(code, 200, "{body}");
    let put = json!({"template": pod, "target": 1});
    let (code, body) = posse.call("PUT", "/v1/groups/default", &put);
    assert_eq!(code, 200, "{body}");
    scene.wait_running_ids(&[2]);
    let second = executor(&scene, 2);
    for key in file_has {
        assert_eq!(annotation(&second, key), Value::Null, "{key}: {second}");
    }
    scene.end(&second, End::OomKilled);
    scene.wait_running_ids(&[3]);
    let third = executor(&scene, 3);
    assert_eq!(third["spec"]["containers"][0]["resources"]["limits"]["memory"], "64Mi", "{third}");
    posse.stop();
    scene.finish();
}

/// The APIs of two schedulers with PodGroups, with what their PodGroups' `spec` may have.
pub fn volcano() -> (&'static str, &'static str, Value) {
    let min_task = json!({"type": "object", "additionalProperties": {"type": "integer"}});
    let spec = json!({"minMember": {"type": "integer"}, "minTaskMember": min_task, "queue": {"type": "string"},
        "priorityClassName": {"type": "string"}, "minResources": resources()});
    ("scheduling.volcano.sh", "v1beta1", spec)
}

pub fn coscheduling() -> (&'static str, &'static str, Value) {
    let spec = json!({"minMember": {"type": "integer"}, "scheduleTimeoutSeconds": {"type": "integer"},
        "minResources": resources()});
    ("scheduling.x-k8s.io", "v1alpha1", spec)
}

fn resources() -> Value {
    json!({"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true}})
}

/// The path of custom definitions.
pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Makes a real server know the PodGroups of a scheduler. It drops what their `spec` does not have.
pub fn define_pod_groups(admin: &Client, (api, version, spec): &(&str, &str, Value)) {
    let spec = json!({"type": "object", "properties": spec});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let version_of = json!({"name": version, "served": true, "storage": true,
        "schema": {"openAPIV3Schema": schema}});
    let approved = json!({"api-approved.kubernetes.io": "unapproved, for a test"});
    let names = json!({"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("podgroups.{api}"), "annotations": approved},
        "spec": {"group": api, "scope": "Namespaced", "names": names, "versions": [version_of]}});
    admin.post(DEFINITIONS, &definition).ok();
    wait_for(PATIENCE, "the server to have PodGroups", || {
        let answer = admin.get(&format!("/apis/{api}/{version}"));
        answer.code == 200 && answer.body.to_string().contains("\"podgroups\"")
    });
}

/// YuniKorn is told what a pod asks for with what the server adds to it.
pub fn a_gang_knows_what_the_server_adds(server: &dyn Server) {
    let scene = Scene::new(server);
    let limits = json!([{"type": "Container", "defaultRequest": {"memory": "64Mi"}}]);
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"},
        "spec": {"limits": limits}});
    scene.admin.post(&format!("/api/v1/namespaces/{}/limitranges", scene.namespace), &range).ok();
    let mut pod = scene.template();
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    let group =
        json!([{"group": "g", "count": 2, "pod": pod, "gang": {"kind": "yunikorn", "min": 2}}]);
    let posse = scene.run().settings(json!({"executors": group})).start();
    let ours = wait_value(PATIENCE, "two executors", || {
        let ours = scene.ours();
        if ours.len() == 2 { Ok(ours) } else { Err(describe(&ours)) }
    });
    let told = ours[0]["metadata"]["annotations"]["yunikorn.apache.org/task-groups"].to_string();
    let want = r#"\"minResource\":{\"cpu\":\"100m\",\"memory\":\"64Mi\"}"#;
    assert!(told.contains(want), "{told}");
    posse.stop();
    scene.finish();
}

/// Gangs of three schedulers that are not there, on a server that has the definitions of two of them: what the server has
/// stored, and, by its audit log, in which order posse asked for it.
pub fn gangs_of_other_schedulers() {
    let assets = std::env::var_os(ASSETS).expect("it is set for the real server's scenarios");
    let own = Real::start(assets.as_ref(), false);
    let scene = Scene::new(&own);
    define_pod_groups(&scene.admin, &volcano());
    define_pod_groups(&scene.admin, &coscheduling());
    let mut pod = scene.template();
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    let group = |kind: &str, queue: Value| {
        let gang = json!({"kind": kind, "min": 2});
        json!({"group": kind, "count": 2, "pod": pod, "gang": gang, "queue": queue})
    };
    let (named, none) = (json!("team-a"), Value::Null);
    let groups = json!([
        group("volcano", named.clone()),
        group("coscheduling", none),
        group("yunikorn", named)
    ]);
    let run = scene.run_with(&own.access(Who::Admin)).instance("one");
    let posse = run.settings(json!({"executors": groups})).start();
    let pods = scene.wait_running(6);
    posse.wait_events("gang_running", 3);

    let in_namespace = |api: &str, version: &str| {
        let path = format!("/apis/{api}/{version}/namespaces/{}/podgroups", scene.namespace);
        items(&scene.admin.get(&path).ok())
    };
    let stored = |(api, version, _): (&str, &str, Value)| {
        let mut found = in_namespace(api, version);
        assert_eq!(found.len(), 1, "{found:?}");
        let group = found.remove(0);
        (group["metadata"]["name"].clone(), group["spec"].clone())
    };
    let spec = json!({"minMember": 2, "queue": "team-a"});
    assert_eq!(stored(volcano()), (json!("shop-one-volcano"), spec));
    let spec = json!({"minMember": 2, "scheduleTimeoutSeconds": 300});
    assert_eq!(stored(coscheduling()), (json!("shop-one-coscheduling"), spec));
    check_pods(&pods);
    let (code, body) = posse.call("DELETE", "/v1/groups/volcano", &Value::Null);
    assert_eq!(code, 200, "{body}");
    let (api, version, _) = volcano();
    assert_eq!(in_namespace(api, version), Vec::<Value>::new(), "it is deleted with its group");
    assert_eq!(stored(coscheduling()).0, "shop-one-coscheduling", "another one stays");
    posse.stop();
    for (api, version, _) in [volcano(), coscheduling()] {
        assert_eq!(in_namespace(api, version), Vec::<Value>::new(), "they are deleted at the end");
    }
    check_order(&scene, &pods);
    scene.finish();
}

/// The pods name their gangs, and their schedulers where the template names none.
#[track_caller]
fn check_pods(pods: &[Value]) {
    let tasks = json!([{"minMember": 2, "minResource": {"cpu": "100m"}, "name": "executors"}]);
    for pod in pods {
        let (metadata, scheduler) = (&pod["metadata"], &pod["spec"]["schedulerName"]);
        let (labels, annotations) = (&metadata["labels"], &metadata["annotations"]);
        match labels["posse.dev/group"].as_str() {
            Some("volcano") => {
                assert_eq!(scheduler, "volcano");
                assert_eq!(annotations["scheduling.k8s.io/group-name"], "shop-one-volcano");
            }
            Some("coscheduling") => {
                assert_eq!(labels["scheduling.x-k8s.io/pod-group"], "shop-one-coscheduling");
            }
            _ => {
                assert_eq!(scheduler, "yunikorn");
                assert_eq!(
                    (&labels["applicationId"], &labels["queue"]),
                    (&json!("shop-one-yunikorn"), &json!("team-a"))
                );
                let of = |key: &str| annotations[format!("yunikorn.apache.org/{key}")].clone();
                assert_eq!(of("task-group-name"), "executors");
                assert_eq!(of("task-groups"), tasks.to_string());
                let parameters = "placeholderTimeoutInSeconds=300 gangSchedulingStyle=Hard";
                assert_eq!(of("schedulingPolicyParameters"), parameters);
            }
        }
    }
}

/// Each PodGroup was created before the pods that name it, and deleted after the pods.
#[track_caller]
fn check_order(scene: &Scene<'_>, pods: &[Value]) {
    let log = scene.server.audit_log().expect("the real server has one");
    let mut asked = audit::requests(&log, &scene.namespace);
    let is_whole = |entry: &Value| {
        let is_dry = entry["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun"));
        audit::by_posse(entry) && !is_dry && entry["responseStatus"]["code"].as_i64() < Some(300)
    };
    asked.retain(is_whole);
    let at = |verb: &str, resource: &str, name: &str| {
        let found = asked.iter().position(|entry| {
            let object = &entry["objectRef"];
            let of = object["name"].as_str().unwrap_or_default();
            entry["verb"] == verb && object["resource"] == resource && of.starts_with(name)
        });
        found.unwrap_or_else(|| panic!("nobody did {verb} {resource} {name}: {asked:#?}"))
    };
    let pods_deleted = at("delete", "pods", "");
    for kind in ["volcano", "coscheduling"] {
        let name = format!("shop-one-{kind}");
        let made = at("create", "podgroups", &name);
        for pod in pods.iter().filter(|pod| pod["metadata"]["labels"]["posse.dev/group"] == kind) {
            assert!(made < at("create", "pods", name_of(pod)), "{kind}: a pod came first");
        }
    }
    let kept = at("delete", "podgroups", "shop-one-coscheduling");
    assert!(pods_deleted < kept, "deleted before the pods of the run");
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

/// What Kueue does with a pod that it admits.
pub fn admit(scene: &Scene<'_>, pod: &Value) {
    let path = format!("{}/{}", pods_path(&scene.namespace), name_of(pod));
    scene.admin.merge_patch(&path, &json!({"spec": {"schedulingGates": null}})).ok();
}

/// What it does with one whose room it takes back: the condition, then the delete.
pub fn take_back(scene: &Scene<'_>, pod: &Value, message: &str) {
    let path = format!("{}/{}", pods_path(&scene.namespace), name_of(pod));
    let mut conditions = pod["status"]["conditions"].clone();
    let target = json!({"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvictedDueToPreempted",
        "message": message, "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    conditions.as_array_mut().expect("a list").push(target);
    let status = json!({"status": {"conditions": conditions}});
    scene.admin.merge_patch(&format!("{path}/status"), &status).ok();
    scene.admin.delete(&path, &json!({})).ok();
}
