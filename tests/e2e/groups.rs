//! Groups that are created and deleted by the control API.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::control::{Control, DOCUMENT};
use crate::support::posse::{Posse, said};
use crate::support::proxy::{Proxy, ProxyAction, status};
use crate::support::scene::{Scene, executor_id, name_of, uid_of};
use crate::support::server::{Server, Who};
use crate::support::wait::{PATIENCE, stays_true, wait_for};

/// No group in the file.
fn bare(scene: &Scene<'_>) -> Posse {
    bare_with(scene, "auto")
}

fn bare_with(scene: &Scene<'_>, record: &str) -> Posse {
    let settings = json!({"executors": [], "record": record});
    let posse = scene.run().settings(settings).instance("calls").start();
    posse.wait_ready();
    posse
}

/// A template that can be recognized: its image, its memory and an annotation contain `tag`.
fn tagged(scene: &Scene<'_>, tag: u32) -> Value {
    let mut pod = scene.template();
    pod["metadata"]["annotations"] = json!({"tag": tag.to_string()});
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = format!("example.com/worker:{tag}").into();
    container["resources"] = json!({"requests": {"memory": format!("{tag}Ki")}});
    pod
}

/// The tag of a pod, which is the same in all fields.
fn tag(pod: &Value) -> u32 {
    let container = &pod["spec"]["containers"][0];
    let tag: u32 = pod["metadata"]["annotations"]["tag"].as_str().unwrap().parse().unwrap();
    assert_eq!(container["image"], format!("example.com/worker:{tag}"));
    assert_eq!(container["resources"]["requests"]["memory"], format!("{tag}Ki"));
    tag
}

fn of<'a>(pods: &'a [Value], group: &str) -> Vec<&'a Value> {
    pods.iter().filter(|pod| pod["metadata"]["labels"]["posse.dev/group"] == group).collect()
}

/// 50 clients change three groups at once, each with its own template, max and target: at the end
/// each group is as one single call wants it.
pub fn groups_by_fifty_clients(server: &dyn Server) {
    const GROUPS: [&str; 3] = ["0", "1", "all-of-them"];
    let scene = Scene::new(server);
    let posse = bare(&scene);
    let control = posse.control();
    let call = |i: u32, round: u32| {
        let tag = 100 + i * 10 + round;
        let (group, target) = (GROUPS[(i % 3) as usize], (i + round) % 4);
        let template = (i + round).is_multiple_of(2).then(|| tagged(&scene, tag));
        match template {
            Some(pod) => (group, json!({"template": pod, "max": tag, "target": target})),
            None => (group, json!({"target": target})),
        }
    };
    for (i, group) in GROUPS.into_iter().enumerate() {
        let tag = 10 + u32::try_from(i).unwrap();
        let body = json!({"template": tagged(&scene, tag), "max": tag, "target": 1});
        assert_eq!(control.put(group, &body).ok()["target"], 1);
    }
    let calls: Vec<Vec<(&str, Value)>> =
        (0..50).map(|i| (0..4).map(|round| call(i, round)).collect()).collect();
    thread::scope(|scope| {
        for mine in &calls {
            let control = control.clone();
            scope.spawn(move || {
                for (group, body) in mine {
                    // Clients above the limit get 429 and try again.
                    wait_for(PATIENCE, "a call to be taken", || {
                        let said = control.put(group, body);
                        assert!(matches!(said.code, 200 | 429), "{said:?}");
                        said.code == 200
                    });
                }
            });
        }
    });
    let in_force: Vec<u32> = GROUPS
        .iter()
        .map(|group| {
            let max = control.group(group).unwrap()["max"].as_u64().unwrap();
            u32::try_from(max).unwrap()
        })
        .collect();
    for (group, target) in GROUPS.iter().zip([0, 0, 0]) {
        assert_eq!(control.put(group, &json!({"target": target})).ok()["target"], target);
    }
    scene.wait_none();
    for (group, target) in GROUPS.iter().zip([2, 3, 1]) {
        assert_eq!(control.put(group, &json!({"target": target})).ok()["target"], target);
    }
    let pods = scene.wait_running(6);
    for ((group, n), want) in GROUPS.iter().zip([2, 3, 1]).zip(&in_force) {
        let ours = of(&pods, group);
        assert_eq!(ours.len(), n, "{group}");
        assert!(ours.iter().all(|pod| tag(pod) == *want), "{group}: a template of another call");
        wait_for(PATIENCE, "the status to say so", || {
            let seen = control.group(group).unwrap();
            seen["target"] == n && seen["running"] == n
        });
    }
    let asked = posse.events_of("executor_requested");
    let ids: BTreeSet<u64> =
        asked.iter().map(|event| event["executor"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), asked.len(), "an id was given twice");
    assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0]);
    assert_eq!(control.try_call("GET", "/openapi.json", "").unwrap(), (200, DOCUMENT.to_owned()));
    posse.stop();
    scene.finish();
}

/// A group that the server refuses, or that is invalid, leaves nothing behind.
pub fn group_refused(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = bare(&scene);
    let control = posse.control();
    let with = |pointer: &str, value: Value| {
        let mut pod = scene.template();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[key] = value;
        json!({"template": pod, "target": 2})
    };
    let env = json!([{"name": "A", "value": "{{WHATEVER}}"}]);
    let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]);
    for (body, field, part) in [
        (with("/spec/containers", json!([])), "template.spec.containers", "empty"),
        (with("/spec/containers/0/env", env), "template.spec.containers[0].env", "WHATEVER"),
        (with("/metadata/ownerReferences", owners), "template.metadata.ownerReferences", "owner"),
        (with("/kind", json!("Job")), "template.kind", "Pod"),
        (with("/spec/containers/0/name", json!("No_Name")), "template", "No_Name"),
        (with("/spec/containers/0/resources", json!({"limits": {"cpu": "much"}})), "template", ""),
        (
            json!({"template": scene.template(), "container": "who"}),
            "template.spec.containers",
            "who",
        ),
        (json!({"template": "pod.json"}), "template", "Pod"),
        (json!({"template": scene.template(), "min": 3, "max": 2}), "max", "min"),
        (json!({"template": scene.template(), "targets": 3}), "targets", "unknown"),
    ] {
        let said = control.put("0", &body);
        let words = said.body["error"].as_str().unwrap();
        assert_eq!(said.code, 400, "{words}");
        assert!(said.body["field"].as_str().unwrap().starts_with(field), "{}", said.body);
        assert!(words.contains(part), "{words}");
        assert_eq!(control.group("0"), None);
    }
    assert_eq!(control.put("0", &json!({"target": 1})).code, 404);
    assert_eq!(control.delete("0").code, 404);
    for name in ["A", "-a", "a-", &"a".repeat(41), "a.b"] {
        assert_eq!(control.put(name, &json!({"target": 1})).code, 400, "{name}");
    }
    // The maximum depth of JSON, and the maximum length of a body.
    let deep =
        |n: usize| format!(r#"{{"template":{{"spec":{}1{}}}}}"#, "[".repeat(n), "]".repeat(n));
    for n in [120, 200_000] {
        let (code, said) = control.try_call("PUT", "/v1/groups/0", &deep(n)).unwrap();
        assert_eq!(code, 400, "{said}");
    }
    let long = |n: usize| json!({"template": scene.template(), "container": "x".repeat(n)});
    assert_eq!(control.put("0", &long(2 << 20)).code, 400);
    assert_eq!(control.put("0", &long(3 << 20)).code, 413);
    assert_eq!(scene.pods(), [] as [Value; 0]);
    assert_eq!(posse.events_of("target_changed"), [] as [Value; 0]);
    posse.stop();
    scene.finish();
}

/// A group is deleted and created again under the same name, while its old executors still
/// terminate.
pub fn group_deleted_and_created_again(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = bare(&scene);
    let control = posse.control();
    control.put("g", &json!({"template": tagged(&scene, 1), "target": 2})).ok();
    control.put("other", &json!({"template": tagged(&scene, 5), "target": 1})).ok();
    let old = scene.wait_running(3);
    let others: Vec<&str> = of(&old, "other").into_iter().map(uid_of).collect();
    scene.hold_deletes(true);
    assert_eq!(control.delete("g").ok(), json!({}));
    assert_eq!(control.delete("g").ok(), json!({}), "repeats change nothing");
    assert_eq!(control.put("g", &json!({"target": 4})).code, 404);
    let body = json!({"template": tagged(&scene, 2), "target": 3});
    assert_eq!(control.put("g", &body).ok()["target"], 3);
    wait_for(PATIENCE, "three new ones to run", || control.group("g").unwrap()["running"] == 3);
    let now = control.group("g").unwrap();
    assert_eq!(now["terminating"], 2, "the old ones are on their way: {now}");
    scene.hold_deletes(false);
    let pods = scene.wait_running(4);
    assert!(of(&pods, "g").iter().all(|pod| tag(pod) == 2 && executor_id(pod) > 3));
    assert_eq!(of(&pods, "other").into_iter().map(uid_of).collect::<Vec<_>>(), others);

    posse.scale("g", 1);
    scene.wait_running(2);
    wait_for(PATIENCE, "posse to explain it", || {
        let explained = posse.ask(&["explain"]);
        explained.status.success() && said(&explained).contains("group g: 1 of 1 running")
    });
    assert!(said(&posse.ask(&["status"])).contains("other"));
    control.delete("g").ok();
    wait_for(PATIENCE, "the group to be forgotten", || control.group("g").is_none());
    assert_eq!(control.delete("g").code, 404);
    wait_for(PATIENCE, "five deletions to be told", || {
        let told = posse.events_of("executor_deleted");
        told.iter().filter(|event| event["group"] == "g").count() == 5
    });
    assert_eq!(posse.events_of("executor_lost"), [] as [Value; 0]);
    posse.stop();
    scene.finish();
}

/// Without a record the group is unknown after a restart: it is kept until it is put again.
pub fn group_of_an_earlier_run(server: &dyn Server) {
    let scene = Scene::new(server);
    let first = bare_with(&scene, "off");
    first.control().put("0", &json!({"template": tagged(&scene, 1), "target": 2})).ok();
    first.control().put("1", &json!({"template": tagged(&scene, 9), "target": 1})).ok();
    let before = scene.wait_running(3);
    first.kill();
    let posse = bare_with(&scene, "off");
    let control = posse.control();
    wait_for(PATIENCE, "the group to be found", || {
        control.group("0").is_some_and(|group| group["running"] == 2)
    });
    assert_eq!(control.group("0").unwrap()["waiting"], "adopt_hold");
    stays_true(Duration::from_millis(500), "they stay", || scene.ours().len() == 3);
    let body = json!({"template": tagged(&scene, 2), "target": 3});
    assert_eq!(control.put("0", &body).ok()["target"], 3);
    let after = scene.wait_running(4);
    let ids: BTreeSet<&str> = before.iter().map(uid_of).collect();
    let (kept, new): (Vec<&Value>, Vec<&Value>) =
        after.iter().partition(|pod| ids.contains(uid_of(pod)));
    assert_eq!((kept.len(), new.len()), (3, 1));
    assert_eq!(tag(new[0]), 2);
    wait_for(PATIENCE, "nothing to be waited for", || {
        control.group("0").unwrap()["waiting"].is_null()
    });
    control.delete("1").ok();
    scene.wait_running(3);
    posse.stop();
    scene.finish();
}

/// While the API server refuses requests nothing is changed, and the caller is told to try again.
pub fn group_put_while_the_server_is_busy(server: &dyn Server) {
    let scene = Scene::new(server);
    let is_busy = Arc::new(AtomicBool::new(true));
    let busy = Arc::clone(&is_busy);
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, _| {
        let is_dry = request.path.contains("dryRun=All");
        match is_dry && busy.load(Ordering::SeqCst) {
            true => ProxyAction::Reply(503, status(503, "ServiceUnavailable", "the test says so")),
            false => ProxyAction::Pass,
        }
    });
    let run = scene.run_with(&proxy.access()).settings(json!({"executors": []}));
    let posse = run.start();
    posse.wait_ready();
    let control = posse.control();
    let body = json!({"template": tagged(&scene, 1), "target": 1});
    let said = control.put("0", &body);
    assert_eq!(said.code, 429, "{}", said.body);
    assert!(said.body["error"].as_str().unwrap().contains("the test says so"), "{}", said.body);
    assert_eq!(control.group("0"), None);
    is_busy.store(false, Ordering::SeqCst);
    assert_eq!(control.put("0", &body).ok()["target"], 1);
    scene.wait_running(1);
    posse.stop();
    scene.finish();
}

/// A follower that reconnects reads the same lines as the file, each once; one that stays connected
/// gets heartbeats.
pub fn events_over_reconnects(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(1).start();
    posse.wait_ready();
    let control = posse.control();
    let run = posse.wait_event("started", |_| true)["run"].as_str().unwrap().to_owned();
    let follow = |after: u64| {
        let path = format!("/v1/events?after={after}&run={run}&follow=true");
        let stream = control
            .connect()
            .and_then(|mut stream| write!(stream, "GET {path} HTTP/1.0\r\n\r\n").map(|()| stream));
        // A request that comes after the end of the run gets no lines.
        let mut lines =
            stream.into_iter().flat_map(|s| BufReader::new(s).lines().map_while(Result::ok));
        let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        assert!(head.first().is_none_or(|line| line == "HTTP/1.1 200 OK"), "{head:?}");
        lines
    };
    let has_read_end = AtomicBool::new(false);
    let read = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read: Vec<Value> = Vec::new();
            while read.last().is_none_or(|event| event["event"] != "stopped") {
                if !control.socket.exists() {
                    // The connection was closed while the last lines were sent.
                    break;
                }
                // Reads a few lines each time and disconnects.
                let some = follow(read.len() as u64).filter(|line| !line.is_empty());
                let n = 1 + read.len() % 5;
                let parsed = some.take(n).map(|line| {
                    let event: Value = serde_json::from_str(&line).unwrap();
                    has_read_end.fetch_or(event["event"] == "stopping", Ordering::SeqCst);
                    event
                });
                read.extend(parsed);
            }
            read
        });
        for target in [4, 1, 5, 0, 3] {
            posse.scale("default", target);
            scene.wait_running(target as usize);
        }
        for (query, field) in [("run=other", "run"), ("after=999999", "after")] {
            let said = control.call("GET", &format!("/v1/events?{query}"), &Value::Null);
            assert_eq!((said.code, &said.body["field"]), (409, &json!(field)));
        }
        let newest = posse.events().len() as u64;
        assert!(follow(newest).any(|line| line.is_empty()), "a sign of life while all is quiet");
        // The stop lasts until the reader, which may be between two connections, has read of it.
        scene.hold_deletes(true);
        posse.signal(Signal::TERM);
        wait_for(PATIENCE, "the begin of the stop to be read", || {
            has_read_end.load(Ordering::SeqCst) || reader.is_finished()
        });
        scene.hold_deletes(false);
        let read = reader.join().unwrap();
        posse.expect_exit(0);
        read
    });
    let told = posse.events();
    assert!(told.starts_with(&read), "an event was lost, or told twice");
    let is_end = |event: &&Value| event["event"] == "stopping";
    assert!(read.iter().find(is_end).is_some(), "{} of {} events", read.len(), told.len());
    scene.finish();
}

/// Clients that stall, send garbage or never read do not delay other clients.
pub fn hostile_clients(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(1).start();
    posse.wait_ready();
    let control = posse.control();
    let send = |text: &str| {
        let mut stream = control.connect().unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    // Followers that never read, requests that never end, and connections without a request.
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(send("GET /v1/events?follow=true HTTP/1.1\r\nhost: x\r\n\r\n"));
        held.push(send(
            "PUT /v1/groups/default HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{",
        ));
        held.push(send(""));
    }
    thread::scope(|scope| {
        for i in 0..200_u32 {
            let control: Control = control.clone();
            scope.spawn(move || {
                let target = 1 + i % 3;
                wait_for(PATIENCE, "a target to be taken", || {
                    let body = json!({"target": target}).to_string();
                    // The only refusal is the one for too many connections.
                    match control.try_call("PUT", "/v1/groups/default", &body) {
                        Ok((code, said)) => {
                            assert!(matches!(code, 200 | 429), "{code} {said}");
                            code == 200
                        }
                        Err(_) => false,
                    }
                });
            });
        }
    });
    wait_for(PATIENCE, "a call to be taken", || {
        posse.ask(&["scale", "--group", "default", "2"]).status.success()
    });
    let pods = scene.wait_running(2);
    assert!(pods.iter().all(|pod| !name_of(pod).is_empty()));
    drop(held);
    posse.stop();
    scene.finish();
}
