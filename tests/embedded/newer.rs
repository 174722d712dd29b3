//! What servers have gained since 1.20, and what a row of the transcript cannot say. The expected answers are those of the Kubernetes documentation and of client-go.

use serde_json::{Value, json};

use crate::support::embedded::Embedded;
use crate::support::http::{Answer, Client, Exchange};
use crate::support::server::{Server, Who};
use crate::support::wait::{PATIENCE, wait_for};

const CORE: &str = "/api/v1/namespaces/default";

/// A cluster without nodes: only the tests change its objects.
fn start() -> (Embedded, Client) {
    let cluster = Embedded::start_with(&["--nodes", "0"]);
    let client = Client::new(&cluster.access(Who::Admin), "newer");
    (cluster, client)
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i",
        "resources": {"requests": {"memory": "1Mi"}, "limits": {"memory": "64Mi"}}}]}})
}

#[track_caller]
fn refused(answer: &Answer, code: u16, message: &str) {
    let got = answer.body["message"].as_str().unwrap_or_default();
    assert!(answer.code == code && got.contains(message), "{answer:?}");
}

pub fn users_can_ask_who_they_are() {
    let (_cluster, client) = start();
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let user = client.post(reviews, &review).ok()["status"]["userInfo"].clone();
    assert_eq!(user["username"], "kubernetes-admin");
    assert_eq!(user["groups"], json!(["system:masters", "system:authenticated"]));
}

pub fn a_resize_changes_amounts_only() {
    let (_cluster, client) = start();
    let path = format!("{CORE}/pods/a/resize");
    client.post(&format!("{CORE}/pods"), &pod("a")).ok();
    let to = |path: &str, resources: Value| {
        let container = json!({"name": "c", "image": "other", "resources": resources});
        client.merge_patch(path, &json!({"spec": {"containers": [container]}}))
    };
    let larger = json!({"requests": {"memory": "1Mi"}, "limits": {"memory": "128Mi"}});
    let resized = to(&path, larger.clone()).ok();
    let container = &resized["spec"]["containers"][0];
    assert_eq!((&container["resources"], &container["image"]), (&larger, &json!("i")));
    let whole = to(&format!("{CORE}/pods/a"), json!({"limits": {"memory": "256Mi"}}));
    refused(&whole, 422, "pod updates may not change fields other than");
}

/// KEP-4639: the node has no images.
pub fn image_volumes_are_refused_by_the_node() {
    let cluster = Embedded::start_with(&[]);
    let client = Client::new(&cluster.access(Who::Admin), "newer");
    let container = json!({"name": "c", "image": "i", "command": ["true"],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let pod = json!({"metadata": {"name": "a"}, "spec": {
        "volumes": [{"name": "v", "image": {"reference": "r:1"}}], "containers": [container]}});
    client.post(&format!("{CORE}/pods"), &pod).ok();
    let words = "the embedded node has no volumes of type \"image\"";
    wait_for(PATIENCE, "the event of the mount", || {
        let events = client.get(&format!("{CORE}/events")).ok();
        let told = |event: &Value| {
            event["reason"] == "FailedMount"
                && event["message"].as_str().is_some_and(|message| message.contains(words))
        };
        events["items"].as_array().is_some_and(|events| events.iter().any(told))
    });
}

/// KEP-3521.
pub fn scheduling_gates_keep_a_pod_from_a_node() {
    let (_cluster, client) = start();
    let pods = format!("{CORE}/pods");
    let mut gated = pod("a");
    gated["spec"]["schedulingGates"] = json!([{"name": "x.y/g"}]);
    let made = client.post(&pods, &gated).ok();
    let condition = &made["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("PodScheduled"), &json!("SchedulingGated"))
    );
    let binding = json!({"metadata": {"name": "a"}, "target": {"name": "n"}});
    let bind = || client.post(&format!("{pods}/a/binding"), &binding);
    refused(&bind(), 409, "pod a has non-empty .spec.schedulingGates");
    client.merge_patch(&format!("{pods}/a"), &json!({"spec": {"schedulingGates": null}})).ok();
    bind().ok();
}

/// A list of this version gets the same status.
pub fn a_watch_from_the_future_gets_an_error() {
    let (_cluster, client) = start();
    let path = format!("{CORE}/pods?resourceVersion=99999999");
    let mut events = Vec::new();
    client.watch(&format!("{path}&watch=1&timeoutSeconds=60"), |event| {
        events.push(event);
        true
    });
    let [event] = events.as_slice() else { panic!("{events:?}") };
    let listed = client.get(&path);
    assert_eq!(listed.code, 504);
    assert_eq!((&event["type"], &event["object"]), (&json!("ERROR"), &listed.body));
}

/// Bytes and sizes that a row of the transcript cannot have.
pub fn bodies_that_are_not_text_or_too_large() {
    let (_cluster, client) = start();
    let send = |method, path: &str, media_type, body: &[u8]| {
        let headers = [("content-type", media_type)];
        let exchange = Exchange { method, path, headers: &headers, body: Some(body) };
        let answer = client.exchange(&exchange).unwrap();
        let body: Value = serde_json::from_slice(answer.body()).unwrap();
        (answer.status().as_u16(), body)
    };
    let maps = format!("{CORE}/configmaps");
    let json = "application/json";
    let body = b"{\"metadata\":{\"name\":\"a\"},\"data\":{\"k\":\"x\xff\xe2\x82y\"}}";
    assert_eq!(send("POST", &maps, json, body).0, 400);
    client.post(&maps, &json!({"metadata": {"name": "a"}})).ok();
    let one = format!("{maps}/a");
    for media_type in ["application/merge-patch+json", "application/strategic-merge-patch+json"] {
        assert_eq!(
            send("PATCH", &one, media_type, b"{\"data\":{\"k\":\"\xffz\"}}").0,
            400,
            "{media_type}"
        );
    }
    let large = vec![b' '; 4 << 20];
    let message = json!("Request entity too large: limit is 3145728");
    for (method, path, media_type) in [
        ("POST", &maps, json),
        ("PATCH", &one, "application/merge-patch+json"),
        ("DELETE", &one, json),
    ] {
        let (code, status) = send(method, path, media_type, &large);
        assert_eq!((code, &status["message"]), (413, &message), "{method}");
    }
}

/// Some clients refuse a context without a user (client-node), or a user that is not in the list.
pub fn every_kubeconfig_names_a_user() {
    for args in [&["--nodes", "0"][..], &["--nodes", "0", "--insecure-no-auth"]] {
        let cluster = Embedded::start_with(args);
        let text = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
        let config = posse_encoding::yaml::Node::read(&text).unwrap().to_json();
        let user = &config["contexts"][0]["context"]["user"];
        assert_eq!((user, &config["users"][0]["name"]), (&json!("posse-dev"), user), "{text}");
    }
}
