//! Executors that are placed on the nodes of other pods, and what they and their driver know about
//! the node.

use serde_json::{Value, json};

use crate::support::embedded::Embedded;
use crate::support::posse::said;
use crate::support::scene::{Scene, describe, is_running, name_of};
use crate::support::server::{Server, pods_path};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn group(name: &str, count: u32, required: bool) -> Value {
    json!({"group": name, "count": count, "template": "pod.json",
        "beside": {"labels": {"app": "shuffle", "version": "4.3"}, "required": required}})
}

fn term() -> Value {
    json!({"topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "shuffle", "version": "4.3"}}})
}

/// A pod with these labels on one node.
fn make_service(scene: &Scene<'_>, name: &str, node: &str, version: &str) {
    let mut pod = scene.template();
    pod["metadata"] = json!({"name": name, "labels": {"app": "shuffle", "version": version}});
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    scene.admin.post(&pods_path(&scene.namespace), &pod).ok();
}

fn running_of(scene: &Scene<'_>, group: &str) -> Vec<Value> {
    let mut pods = scene.ours();
    pods.retain(|pod| is_running(pod) && pod["metadata"]["labels"]["posse.dev/group"] == group);
    pods
}

/// Waits until so many executors of a group run, all of them on this node, if one is given.
#[track_caller]
fn wait_on(scene: &Scene<'_>, group: &str, n: usize, node: Option<&str>) {
    wait_value(PATIENCE, &format!("{n} executors of {group} on {node:?}"), || {
        let pods = running_of(scene, group);
        let fits = |pod: &Value| node.is_none_or(|node| pod["spec"]["nodeName"] == node);
        if pods.len() == n && pods.iter().all(fits) { Ok(()) } else { Err(describe(&pods)) }
    });
}

/// Two nodes: executors wait for a pod of the labels, then run on its node only. Groups that only
/// prefer this node do not wait.
pub fn beside_pods_of_a_label() {
    let server = Embedded::start_with(&["--nodes", "2"]);
    let scene = Scene::new(&server);
    scene.write_template("pod.json", |pod| {
        let container = &mut pod["spec"]["containers"][0];
        let script = container["command"][2].as_str().expect("a script");
        let write = "echo \"$POSSE_NODE_NAME $POSSE_HOST_IP $1\" > \"$SCENE/$POSSE_POD_NAME.node\"";
        let command = json!(["sh", "-c", format!("{write}; {script}"), "sh", "{{NODE_NAME}}"]);
        container["command"] = command;
    });
    make_service(&scene, "other", "dev-node-0", "3.5");
    let groups = json!([group("only", 3, true), group("rather", 2, false)]);
    let posse = scene.run().settings(json!({"executors": groups})).start();
    let waiting = posse.wait_event("waiting", |event| event["for"] == "unschedulable");
    assert_eq!(waiting["group"], "only", "{waiting}");
    let words = waiting["message"].as_str().unwrap_or_default();
    let want = "0/2 nodes are available: 2 node(s) didn't match pod affinity rules.";
    assert!(words.ends_with(want), "{waiting}");
    wait_on(&scene, "rather", 2, None);
    assert_eq!(running_of(&scene, "only"), Vec::<Value>::new());

    make_service(&scene, "right", "dev-node-1", "4.3");
    wait_on(&scene, "only", 3, Some("dev-node-1"));
    for pod in running_of(&scene, "only") {
        let file = scene.file(&format!("{}.node", name_of(&pod)));
        let told = || std::fs::read_to_string(&file).unwrap_or_default();
        wait_for(PATIENCE, "the container to write what it knows", || told().ends_with('\n'));
        assert_eq!(told(), "dev-node-1 127.0.0.1 dev-node-1\n");
    }
    posse.scale("rather", 6);
    wait_value(PATIENCE, "the new ones on the preferred node", || {
        let pods = running_of(&scene, "rather");
        let n_there = pods.iter().filter(|pod| pod["spec"]["nodeName"] == "dev-node-1").count();
        if pods.len() == 6 && n_there >= 4 { Ok(()) } else { Err(describe(&pods)) }
    });
    posse.stop();
    scene.finish();
}

/// Four nodes, of which the driver wants two. Without its word half of the executors are there, with it all of them.
pub fn nodes_that_the_driver_prefers() {
    let server = Embedded::start_with(&["--nodes", "4"]);
    let scene = Scene::new(&server);
    let posse = scene.run().settings(json!({"executors": []})).start();
    posse.wait_ready();
    let control = posse.control();
    let on_wanted = |group: &str| {
        control.put(group, &json!({"template": scene.template(), "target": 0})).ok();
        if group == "with" {
            let nodes = json!({"nodes": {"prefer": {"dev-node-1": 100, "dev-node-3": 100}}});
            assert_eq!(control.call("POST", "/v1/groups/with", &nodes).ok(), json!({}));
        }
        control.put(group, &json!({"target": 8})).ok();
        wait_on(&scene, group, 8, None);
        let is_wanted = |pod: &&Value| {
            ["dev-node-1", "dev-node-3"].iter().any(|node| pod["spec"]["nodeName"] == *node)
        };
        running_of(&scene, group).iter().filter(is_wanted).count()
    };
    let (without, with) = (on_wanted("without"), on_wanted("with"));
    println!("executors on wanted nodes: {without} of 8 without, {with} of 8 with");
    assert_eq!((without, with), (4, 8));
    // The word counts for new executors, until another one takes its place.
    assert_eq!(
        control.call("POST", "/v1/groups/with", &json!({"nodes": {"prefer": {}}})).ok(),
        json!({})
    );
    control.put("with", &json!({"target": 9})).ok();
    wait_on(&scene, "with", 9, None);
    let preferences = |pod: &Value| pod.pointer("/spec/affinity/nodeAffinity").is_some();
    assert_eq!(running_of(&scene, "with").iter().filter(|pod| preferences(pod)).count(), 8);
    posse.stop();
    scene.finish();
}

/// The server takes the preferences behind those of the template, and posse refuses what the server would.
pub fn preferred_nodes_in_objects(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().settings(json!({"executors": []})).start();
    posse.wait_ready();
    let control = posse.control();
    let term = |key: &str, weight: u32, kind: &str, value: &str| {
        let one = json!({"key": key, "operator": "In", "values": [value]});
        json!({"weight": weight, "preference": {kind: [one]}})
    };
    let theirs = term("zone", 5, "matchExpressions", "a");
    let mut pod = scene.template();
    pod["spec"]["affinity"] = json!({"nodeAffinity": {PREFERRED: [theirs]}});
    let call = |body: Value| control.call("POST", "/v1/groups/g", &body);
    assert_eq!(call(json!({"nodes": {"prefer": {"n1": 1}}})).code, 404);
    control.put("g", &json!({"template": pod})).ok();
    assert_eq!(call(json!({"nodes": {"prefer": {"n1": 0}}})).code, 400);
    assert_eq!(call(json!({"nodes": {"prefer": {"n-2.x": 100}}})).ok(), json!({}));
    control.put("g", &json!({"target": 1})).ok();
    let pods = scene.wait_running(1);
    let want = json!([theirs, term("metadata.name", 100, "matchFields", "n-2.x")]);
    assert_eq!(pods[0]["spec"]["affinity"]["nodeAffinity"][PREFERRED], want);
    posse.stop();
    scene.finish();
}

/// The server keeps the affinity as it was sent, and the driver learns the node and its address.
pub fn beside_in_objects_and_calls(server: &dyn Server) {
    let scene = Scene::new(server);
    let theirs = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"tier": "x"}}});
    let weighted = |term: &Value| json!({"weight": 100, "podAffinityTerm": term});
    scene.write_template("pod.json", |pod| {
        pod["spec"]["affinity"] = json!({"podAffinity": {PREFERRED: [weighted(&theirs)]}});
        pod["spec"]["containers"][0]["env"]
            .as_array_mut()
            .expect("a list")
            .push(json!({"name": "SERVICE", "value": "{{HOST_IP}}:7337"}));
    });
    // On the real server the test-side node runs pods anywhere.
    if server.real().is_none() {
        make_service(&scene, "service", "dev-node-0", "4.3");
    }
    let groups = json!([group("only", 1, true), group("rather", 1, false)]);
    let posse = scene.run().settings(json!({"executors": groups})).start();
    for (name, want) in [
        ("only", json!({REQUIRED: [term()], PREFERRED: [weighted(&theirs)]})),
        ("rather", json!({PREFERRED: [weighted(&theirs), weighted(&term())]})),
    ] {
        wait_on(&scene, name, 1, None);
        let pod = running_of(&scene, name).remove(0);
        assert_eq!(pod["spec"]["affinity"], json!({"podAffinity": want}), "{pod}");
        let env = pod["spec"]["containers"][0]["env"].as_array().expect("a list");
        let field = |path: &str| json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}});
        for (name, path) in
            [("POSSE_NODE_NAME", "spec.nodeName"), ("POSSE_HOST_IP", "status.hostIP")]
        {
            let want = json!({"name": name, "valueFrom": field(path)});
            assert!(env.contains(&want), "{env:?}");
        }
        assert!(env.contains(&json!({"name": "SERVICE", "value": "$(POSSE_HOST_IP):7337"})));

        let event = posse.wait_event("executor_running", |event| event["group"] == name);
        let (node, host) = (&pod["spec"]["nodeName"], &pod["status"]["hostIP"]);
        assert_eq!((&event["node"], &event["host_ip"]), (node, host), "{event}");
        let status = posse.status();
        let executors = status["executors"].as_array().expect("a list");
        let one = executors.iter().find(|one| one["group"] == name).expect("it is there");
        assert_eq!((&one["node"], &one["host_ip"]), (node, host), "{one}");
        let wide = said(&posse.ask(&["status", "-o", "wide"]));
        assert!(
            wide.contains("HOST IP") && wide.contains(host.as_str().expect("a text")),
            "{wide}"
        );
    }
    posse.stop();
    scene.finish();
}
