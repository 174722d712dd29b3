//! Tests of the test support: the test-side node, the audit log, tokens, outages and the proxy.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::audit;
use crate::support::http::Client;
use crate::support::proxy::{Proxy, ProxyAction, status};
use crate::support::real::Account;
use crate::support::scene::{Scene, name_of};
use crate::support::server::{End, Server, Who, pods_path};
use crate::support::wait::{PATIENCE, stays_true, wait_for, wait_value};

/// Pods without an owner, through everything that the node can do with them.
pub fn harness_drives_pods(server: &dyn Server) {
    let scene = Scene::new(server);
    let path = pods_path(&scene.namespace);
    let make = |name: &str| {
        let mut pod = scene.template();
        pod["metadata"]["name"] = name.into();
        scene.admin.post(&path, &pod).ok()
    };
    let phase = |name: &str| {
        let pod = scene.pod(name).unwrap_or_default();
        pod["status"]["phase"].as_str().unwrap_or("gone").to_owned()
    };
    let wait_phase = |name: &str, want: &str| {
        wait_value(PATIENCE, &format!("{name} to be {want}"), || {
            let got = phase(name);
            if got == want { Ok(()) } else { Err(got) }
        });
    };
    scene.hold_starts(true);
    let (one, two) = (make("one"), make("two"));
    wait_for(PATIENCE, "a binding", || scene.pod("one").unwrap()["spec"]["nodeName"].is_string());
    stays_true(Duration::from_millis(300), "held starts", || phase("one") == "Pending");
    scene.hold_starts(false);
    wait_phase("one", "Running");
    wait_phase("two", "Running");
    scene.end(&one, End::Exit(7));
    scene.end(&two, End::OomKilled);
    wait_phase("one", "Failed");
    let ended = scene.pod("one").unwrap()["status"]["containerStatuses"][0]["state"].clone();
    assert_eq!(ended["terminated"]["exitCode"], 7, "{ended}");
    scene.delete(&one);
    scene.delete(&two);
    make("three");
    wait_phase("three", "Running");
    scene.hold_deletes(true);
    scene.delete(&scene.pod("three").unwrap());
    stays_true(Duration::from_millis(300), "held deletes", || phase("three") == "Running");
    scene.hold_deletes(false);
    wait_phase("three", "gone");
    let log = server.audit_log().unwrap();
    let made = audit::requests(&log, &scene.namespace)
        .iter()
        .filter(|entry| entry["verb"] == "create" && entry["objectRef"]["subresource"].is_null())
        .map(|entry| entry["objectRef"]["name"].as_str().unwrap_or_default().to_owned())
        .collect::<Vec<_>>();
    assert_eq!(made, ["one", "two", "three"], "the audit log names what was created");
    scene.finish();
}

/// The check of the audit log finds each kind of error.
pub fn harness_audit() {
    let entry = |agent: &str, verb: &str, resource: &str, name: &str| {
        let uri = format!("/x/{resource}/{name}?fieldManager=posse");
        json!({"verb": verb, "requestURI": uri, "userAgent": agent,
            "user": {"username": "posse-test"}, "responseStatus": {"code": 200},
            "objectRef": {"resource": resource, "name": name, "namespace": "n"}})
    };
    let posse = |verb: &str, resource: &str, name: &str| entry("posse/0.1", verb, resource, name);
    let with = |mut entry: Value, pointer: &str, value: Value| {
        *entry.pointer_mut(pointer).expect("it is there") = value;
        entry
    };
    let check = |entries: &[Value], want: &[&str]| {
        let found = audit::violations(entries);
        let fits = found.len() == want.len()
            && found.iter().zip(want).all(|(found, want)| found.starts_with(want));
        assert!(fits, "{found:?} instead of {want:?}");
    };
    let one = posse("create", "pods", "one");
    check(&[one.clone(), posse("create", "pods", "two"), posse("delete", "pods", "one")], &[]);
    check(&[one.clone(), posse("update", "leases", "l"), one.clone()], &["made twice"]);
    let refused = with(one.clone(), "/responseStatus/code", json!(409));
    check(&[one.clone(), refused], &[]);
    let dry = with(one.clone(), "/requestURI", json!("/x/pods?dryRun=All&fieldManager=posse"));
    check(&[one.clone(), dry], &[]);
    let foreign = entry("test-admin", "create", "pods", "theirs");
    check(
        &[foreign.clone(), posse("delete", "pods", "theirs"), posse("patch", "pods", "theirs")],
        &["a pod that is not posse's", "a pod that is not posse's"],
    );
    check(&[foreign, posse("get", "pods", "theirs")], &[]);
    check(&[entry("", "list", "pods", "")], &["posse must name itself"]);
    let nobody = with(one.clone(), "/requestURI", json!("/x/pods"));
    check(&[nobody], &["a write without a field manager"]);
    check(&[posse("create", "pods", "")], &["a create that the log does not name"]);
    check(&[posse("deletecollection", "pods", "")], &["pods are deleted by labels"]);
    check(&[posse("delete", "configmaps", "c")], &["not posse's to write"]);
    let mut status = posse("patch", "pods", "one");
    status["objectRef"]["subresource"] = "status".into();
    check(&[one, status], &["a kubelet's work"]);
}

/// The check of the events finds each kind of error.
pub fn harness_events() {
    let requested =
        |seq: u64, pod: &str| json!({"event": "executor_requested", "seq": seq, "pod": pod});
    let lost = |seq: u64, uid: &str| json!({"event": "executor_lost", "seq": seq, "uid": uid});
    let check = |runs: &[Vec<Value>], want: &[&str]| {
        let found = audit::event_violations(runs);
        let fits = found.len() == want.len()
            && found.iter().zip(want).all(|(found, want)| found.starts_with(want));
        assert!(fits, "{found:?} instead of {want:?}");
    };
    let first = vec![requested(1, "a-1"), requested(2, "a-2"), lost(3, "u")];
    check(&[first.clone(), vec![lost(1, "u"), requested(2, "a-3")]], &[]);
    check(&[first.clone(), vec![requested(1, "a-2")]], &["requested twice"]);
    check(&[vec![requested(1, "a-1"), requested(2, "a-1")]], &["requested twice"]);
    check(&[vec![lost(1, "u"), lost(2, "u")]], &["lost twice"]);
    check(&[vec![lost(1, "u"), lost(3, "v")]], &["2 is missing"]);
}

/// A server that stops and starts keeps its pods; a paused one answers late.
pub fn harness_outage(server: &dyn Server) {
    let own = server.fresh();
    own.open_namespace("outage");
    let client = Client::new(&own.access(Who::Posse), "test-admin");
    let path = pods_path("outage");
    let list = || client.try_call("GET", &path, "application/json", &Value::Null);
    assert_eq!(list().unwrap().code, 200);
    own.down();
    assert!(list().is_err(), "a stopped server answers");
    own.up();
    assert_eq!(list().unwrap().code, 200);
    own.freeze();
    let asked = Instant::now();
    let late = std::thread::scope(|scope| {
        let late = scope.spawn(list);
        stays_true(Duration::from_millis(500), "no answer from ice", || !late.is_finished());
        own.thaw();
        late.join().unwrap()
    });
    assert_eq!(late.unwrap().code, 200);
    assert!(asked.elapsed() >= Duration::from_millis(500));
}

/// Tokens that the test signs are valid until they expire.
pub fn harness_tokens(server: &dyn Server) {
    let scene = Scene::new(server);
    let account = Account::new(&scene, "robot");
    let code = |ttl_s| {
        let client = Client::new(&account.access(ttl_s), "test-token");
        client.get(&pods_path(&scene.namespace)).code
    };
    assert_eq!(code(600), 200);
    assert_eq!(code(-120), 401);
}

/// The proxy passes, changes, refuses, cuts and delays.
pub fn harness_proxy(server: &dyn Server) {
    let scene = Scene::new(server);
    let proxy = Proxy::start(&server.access(Who::Posse), |request, upstream| {
        if !request.is_create() {
            return ProxyAction::Pass;
        }
        let mut pod = request.json();
        match pod["metadata"]["name"].as_str().unwrap() {
            "changed" => {
                pod["metadata"]["labels"] = json!({});
                request.body = pod.to_string().into_bytes();
                ProxyAction::Pass
            }
            "committed" => {
                assert_eq!(upstream.send(request).code, 201);
                ProxyAction::Reply(500, status(500, "InternalError", "the test says so"))
            }
            "cut" => ProxyAction::Cut,
            _ => ProxyAction::Pass,
        }
    });
    let client = Client::new(&proxy.access(), "test-proxied");
    let path = pods_path(&scene.namespace);
    let make = |name: &str| {
        let mut pod = scene.template();
        pod["metadata"]["name"] = name.into();
        client.try_call("POST", &path, "application/json", &pod)
    };
    assert_eq!(make("passed").unwrap().ok()["metadata"]["labels"]["team"], "till");
    assert!(make("changed").unwrap().ok()["metadata"]["labels"].is_null());
    assert_eq!(make("committed").unwrap().code, 500);
    assert!(make("cut").is_err());
    let mut names: Vec<String> = scene.pods().iter().map(|p| name_of(p).to_owned()).collect();
    names.sort();
    assert_eq!(names, ["changed", "committed", "passed"]);
    assert_eq!(proxy.n_creates(), 4);
    watch_through(&scene, &proxy, &client);
    for pod in scene.pods() {
        scene.delete(&pod);
    }
    scene.finish();
}

fn watch_through(scene: &Scene<'_>, proxy: &Proxy, client: &Client) {
    let seen = Mutex::new(Vec::new());
    let path = format!("{}?watch=1&resourceVersion=0", pods_path(&scene.namespace));
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            client.watch(&path, |line| {
                seen.lock().unwrap().push(name_of(&line["object"]).to_owned());
                true
            });
        });
        let saw = |name: &str| seen.lock().unwrap().iter().any(|seen| seen == name);
        wait_for(PATIENCE, "the watch to tell a pod", || saw("passed"));
        proxy.silence_watches(true);
        let mut pod = scene.template();
        pod["metadata"]["name"] = "late".into();
        scene.admin.post(&pods_path(&scene.namespace), &pod).ok();
        stays_true(Duration::from_millis(300), "silence", || !saw("late"));
        proxy.silence_watches(false);
        wait_for(PATIENCE, "the watch to tell what it held back", || saw("late"));
        proxy.cut_watches();
        wait_for(PATIENCE, "the watch to end", || watch.is_finished());
    });
}
