//! Tests of the node with real processes: sidecars, probes, hooks, pod ends, logs and scheduling.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};

use crate::dev::http::{
    Fixture, PODS, condition, container, eventually, is_ready, pod, request, start, status,
};

impl Fixture {
    #[track_caller]
    fn wait_for_log(&self, name: &str, query: &str, text: &str) -> String {
        eventually(&format!("{text:?} in the log of {name}"), || {
            Some(self.log(name, query)).filter(|log| log.contains(text))
        })
    }

    /// The Events about a pod: reason and message.
    fn events(&self, name: &str) -> Vec<(String, String)> {
        let items = self.items("/api/v1/namespaces/default/events");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let about = items.iter().filter(|event| event["involvedObject"]["name"] == name);
        about.map(|event| (text(&event["reason"]), text(&event["message"]))).collect()
    }

    #[track_caller]
    fn wait_for_event(&self, name: &str, reason: &str, part: &str) {
        eventually(&format!("{reason} of {name} with {part}"), || {
            let events = self.events(name);
            events.iter().any(|(r, m)| r == reason && m.contains(part)).then_some(())
        });
    }
}

#[test]
fn sidecars_run_beside_the_other_containers_and_end_after_them() {
    let fixture = start(|_| {});
    let sidecar = |name: &str| {
        let script = "trap 'echo bye; exit 0' TERM; echo here; while :; do sleep 0.05; done";
        let mut sidecar = container(name, script);
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    };
    let ups = std::env::temp_dir().join(format!("posse-dev-ups-{}", fixture.address.port()));
    let ups = ups.display();
    // Ends when the one that crashes has been started again.
    let script =
        format!("until test \"`cat {ups} | wc -l`\" -ge 2; do sleep 0.05; done; echo done");
    let mut spec = pod("a", &script);
    let mut crashing = container("crashes", &format!("echo up >> {ups}; sleep 0.2; exit 3"));
    crashing["restartPolicy"] = json!("Always");
    spec["spec"]["initContainers"] =
        json!([sidecar("one"), container("init", "echo init"), sidecar("two"), crashing]);
    fixture.create(&spec);
    let running = fixture.in_phase("a", "Running");
    assert_eq!(running["status"]["initContainerStatuses"][0]["started"], true);
    let ended = fixture.in_phase("a", "Succeeded");
    let status = &ended["status"]["initContainerStatuses"];
    for (at, code) in [(0, 0), (1, 0), (2, 0)] {
        assert_eq!(status[at]["state"]["terminated"]["exitCode"], code, "{}", status[at]);
    }
    assert!(status[3]["restartCount"].as_u64() >= Some(1), "{}", status[3]);
    for name in ["one", "two"] {
        // The shell may also print that its `sleep` was terminated.
        let log = fixture.log("a", &format!("container={name}"));
        assert!(log.starts_with("here\n") && log.ends_with("bye\n"), "{log}");
    }
    assert_eq!(condition(&ended, "Ready")["reason"], "PodCompleted");
    std::fs::remove_file(ups.to_string()).expect("it was written");
}

#[test]
fn readiness_follows_its_probe_once_the_startup_probe_has_succeeded() {
    let fixture = start(|_| {});
    let folder = std::env::temp_dir().join(format!("posse-dev-ready-{}", fixture.address.port()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = |name: &str| folder.join(name);
    let probe = |name: &str| {
        json!({ "exec": { "command": ["test", "-e", file(name)] }, "periodSeconds": 1,
            "timeoutSeconds": 60, "failureThreshold": 120 })
    };
    let mut spec = pod("a", "sleep 100");
    spec["spec"]["containers"][0]["readinessProbe"] = probe("ready");
    spec["spec"]["containers"][0]["readinessProbe"]["failureThreshold"] = json!(1);
    spec["spec"]["containers"][0]["startupProbe"] = probe("started");
    fixture.create(&spec);
    let running = fixture.in_phase("a", "Running");
    assert_eq!(
        (&status(&running)["started"], &status(&running)["ready"]),
        (&json!(false), &json!(false))
    );
    let unready = condition(&running, "Ready");
    assert_eq!(unready["message"], "containers with unready status: [c]");
    fixture.wait_for_event("a", "Unhealthy", "Startup probe failed: ");
    std::fs::write(file("started"), "").expect("a file");
    fixture.pod("a", "started", |pod| status(pod)["started"] == true);
    fixture.wait_for_event("a", "Unhealthy", "Readiness probe failed: ");
    std::fs::write(file("ready"), "").expect("a file");
    fixture.pod("a", "ready", is_ready);
    std::fs::remove_file(file("ready")).expect("it is there");
    fixture.pod("a", "unready", |pod| !is_ready(pod));
    std::fs::remove_dir_all(&folder).expect("it is there");
}

/// Starts a server that answers requests with the current value of `code`. Returns its port.
fn server(code: &Arc<AtomicU16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let code = Arc::clone(code);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = [0; 1024];
            let n = stream.read(&mut bytes).unwrap_or_default();
            let request = String::from_utf8_lossy(&bytes[..n]).to_ascii_lowercase();
            let found = request.starts_with("get /health http/1.1") && request.contains("x-a: b");
            let code = if found { code.load(Ordering::SeqCst) } else { 404 };
            // The client may have closed the connection.
            let _ = stream.write_all(format!("HTTP/1.1 {code} X\r\n\r\n").as_bytes());
        }
    });
    port
}

#[test]
fn a_container_that_fails_its_liveness_probe_is_restarted() {
    let fixture = start(|_| {});
    let code = Arc::new(AtomicU16::new(200));
    let port = server(&code);
    let mut spec = pod("a", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done");
    spec["spec"]["restartPolicy"] = json!("Always");
    let http = json!({ "host": "127.0.0.1", "port": port, "path": "/health",
        "httpHeaders": [{ "name": "X-A", "value": "b" }] });
    let container = &mut spec["spec"]["containers"][0];
    container["livenessProbe"] =
        json!({ "httpGet": http, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 2 });
    container["readinessProbe"] = json!({ "tcpSocket": { "host": "127.0.0.1", "port": port }, "periodSeconds": 1,
            "timeoutSeconds": 60 });
    fixture.create(&spec);
    fixture.pod("a", "ready", is_ready);
    code.store(500, Ordering::SeqCst);
    let again =
        fixture.pod("a", "restarted", |pod| status(pod)["restartCount"].as_u64() >= Some(1));
    assert_eq!(status(&again)["lastState"]["terminated"]["exitCode"], 0);
    code.store(200, Ordering::SeqCst);
    fixture.wait_for_event(
        "a",
        "Unhealthy",
        "Liveness probe failed: HTTP probe failed with statuscode: 500",
    );
    fixture.wait_for_event("a", "Killing", "Container c failed liveness probe, will be restarted");
    let log = fixture.log("a", "previous=true");
    assert!(log.starts_with("up\n") && log.ends_with("bye\n"), "{log}");
    fixture.wait_for_log("a", "", "up");
    assert_eq!(fixture.get(&format!("{PODS}/a/log?previous=true&tailLines=0")).status, 200);
    // A port of the pod's own address on which nothing listens.
    let mut spec = pod("b", "sleep 100");
    spec["spec"]["containers"][0]["readinessProbe"] = json!({ "tcpSocket": { "port": 9 } });
    fixture.create(&spec);
    let ip = fixture.in_phase("b", "Running")["status"]["podIP"].as_str().unwrap().to_owned();
    let message = format!("Readiness probe failed: dial tcp {ip}:9: connect: connection refused");
    fixture.wait_for_event("b", "Unhealthy", &message);
}

#[test]
fn hooks_run_after_the_start_and_before_the_termination() {
    let fixture = start(|_| {});
    let folder = std::env::temp_dir().join(format!("posse-dev-hooks-{}", fixture.address.port()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("said");
    let say = |what: &str| json!({ "exec": { "command": ["sh", "-c", format!("echo {what} >> {}", file.display())] } });
    let script = format!(
        "trap 'echo term >> {}; exit 0' TERM; while :; do sleep 0.05; done",
        file.display()
    );
    let mut spec = pod("a", &script);
    spec["spec"]["containers"][0]["lifecycle"] =
        json!({ "postStart": say("begin"), "preStop": say("end") });
    fixture.create(&spec);
    fixture.pod("a", "ready", is_ready);
    assert_eq!(std::fs::read_to_string(&file).expect("it was written"), "begin\n");
    fixture.delete(&format!("{PODS}/a"));
    fixture.gone("a");
    assert_eq!(std::fs::read_to_string(&file).expect("it was written"), "begin\nend\nterm\n");
    let mut spec = pod("b", "sleep 100");
    let fails = json!({ "exec": { "command": ["sh", "-c", "echo no; exit 4"] } });
    spec["spec"]["containers"][0]["lifecycle"] = json!({ "postStart": fails });
    fixture.create(&spec);
    fixture.in_phase("b", "Failed");
    fixture.wait_for_event("b", "FailedPostStartHook", "no");
    std::fs::remove_dir_all(&folder).expect("it is there");
}

#[test]
fn the_status_tells_why_a_container_ended() {
    let fixture = start(|_| {});
    let mut late = pod("late", "echo up; sleep 100");
    late["spec"]["activeDeadlineSeconds"] = json!(3_600);
    let mut greedy = pod("greedy", "head -c 400000000 /dev/zero | tail -n 1");
    greedy["spec"]["containers"][0]["resources"] = json!({ "limits": { "memory": "20Mi" } });
    let mut wordy =
        pod("wordy", "i=0; while [ $$i -lt 100 ]; do i=$$((i+1)); echo line $$i; done; exit 1");
    wordy["spec"]["containers"][0]["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    let mut quiet = wordy.clone();
    quiet["metadata"]["name"] = json!("quiet");
    quiet["spec"]["containers"][0]["command"] = json!(["sh", "-c", "echo words"]);
    for spec in [&late, &greedy, &wordy, &quiet] {
        fixture.create(spec);
    }
    // The deadline comes when the container runs, however long its start takes.
    fixture.wait_for_log("late", "", "up");
    let deadline = json!({ "spec": { "activeDeadlineSeconds": 1 } });
    fixture.patch(&format!("{PODS}/late"), &deadline);
    let late = fixture.in_phase("late", "Failed");
    let message = "Pod was active on the node longer than the specified deadline";
    let reported = (&late["status"]["reason"], &late["status"]["message"]);
    assert_eq!(reported, (&json!("DeadlineExceeded"), &json!(message)));
    assert_eq!(status(&late)["state"]["terminated"]["exitCode"], 143);
    let greedy = fixture.in_phase("greedy", "Failed");
    let end = &status(&greedy)["state"]["terminated"];
    assert_eq!((&end["reason"], &end["exitCode"]), (&json!("OOMKilled"), &json!(137)));
    let wordy = fixture.in_phase("wordy", "Failed");
    let message =
        status(&wordy)["state"]["terminated"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.starts_with("line 21\n") && message.ends_with("line 100\n"), "{message}");
    let quiet = fixture.in_phase("quiet", "Succeeded");
    assert_eq!(status(&quiet)["state"]["terminated"]["message"], Value::Null);
}

#[test]
fn memory_limits_can_be_switched_off() {
    let fixture = start(|options| options.memory_limits = false);
    let mut greedy = pod("greedy", "head -c 50000000 /dev/zero | tail -n 1 | wc -c");
    greedy["spec"]["containers"][0]["resources"] = json!({ "limits": { "memory": "10Mi" } });
    fixture.create(&greedy);
    fixture.in_phase("greedy", "Succeeded");
}

#[test]
fn log_options_select_lines_and_are_validated() {
    let fixture = start(|_| {});
    fixture.create(&pod("a", "echo one; echo two >&2; printf three; sleep 100"));
    fixture.wait_for_log("a", "", "one\ntwo\n");
    for (query, want) in [
        ("tailLines=1", "two\n"),
        ("tailLines=0", ""),
        ("tailLines=9", "one\ntwo\n"),
        ("limitBytes=5", "one\nt"),
        ("sinceSeconds=1000", "one\ntwo\n"),
        ("sinceTime=2000-01-01T00:00:00Z&tailLines=1", "two\n"),
        ("sinceTime=2999-01-01T00:00:00Z", ""),
    ] {
        assert_eq!(fixture.log("a", query), want, "{query}");
    }
    let stamped = fixture.log("a", "timestamps=true&tailLines=1");
    let (timestamp, text) = stamped.split_once(' ').expect("a timestamp");
    assert!(timestamp.len() == 30 && timestamp.ends_with('Z') && text == "two\n", "{stamped}");
    let c = "container \"c\" in pod \"a\"";
    for (query, message) in [
        ("previous=true", &*format!("previous terminated {c} not found")),
        ("container=x", "container x is not valid for pod a"),
    ] {
        let reply = fixture.get(&format!("{PODS}/a/log?{query}"));
        let answer =
            (reply.status, reply.json()["message"].as_str().unwrap_or_default().to_owned());
        assert_eq!(answer, (400, message.to_owned()), "{query}");
    }
    fixture.delete(&format!("{PODS}/a?gracePeriodSeconds=1"));
    let mut blocked = pod("b", "");
    blocked["spec"]["containers"][0]["command"] = Value::Null;
    fixture.create(&blocked);
    fixture.pod("b", "pull backoff", |pod| {
        status(pod)["state"]["waiting"]["reason"] == "ImagePullBackOff"
    });
    let answer = fixture.get(&format!("{PODS}/b/log")).json();
    assert_eq!(
        answer["message"],
        "container \"c\" in pod \"b\" is waiting to start: trying and failing to pull image"
    );
}

#[test]
fn logs_are_followed_to_the_containers_end() {
    let fixture = start(|_| {});
    let file = std::env::temp_dir().join(format!("posse-dev-follow-{}", fixture.address.port()));
    let wait = format!("until test -e {}; do sleep 0.02; done", file.display());
    fixture.create(&pod("a", &format!("echo begin; {wait}; echo more; printf end; exit 0")));
    fixture.wait_for_log("a", "", "begin");
    let path = format!("{PODS}/a/log?follow=true");
    let mut stream = request(fixture.address, "GET", &path, None);
    let mut read = String::new();
    let mut bytes = [0; 4096];
    while !read.contains("begin\n") {
        let n = stream.read(&mut bytes).expect("the first line");
        assert!(n > 0, "ended early: {read}");
        read.push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
    assert!(!read.contains("more"), "{read}");
    std::fs::write(&file, "").expect("a file");
    stream.read_to_string(&mut read).expect("the rest, and the end");
    assert!(
        read.contains("more\n") && read.contains("end") && read.ends_with("0\r\n\r\n"),
        "{read}"
    );
    fixture.in_phase("a", "Succeeded");
    assert_eq!(fixture.log("a", "follow=true"), "begin\nmore\nend");
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn pods_wait_for_a_fitting_node_and_end_with_their_node() {
    let fixture = start(|options| options.nodes = 2);
    let node = |number: u32| format!("/api/v1/nodes/dev-node-{number}");
    let cordon = |number: u32, cordoned: bool| {
        fixture.patch(&node(number), &json!({ "spec": { "unschedulable": cordoned } }));
    };
    cordon(0, true);
    cordon(1, true);
    fixture.create(&pod("a", "echo up; sleep 100"));
    let message = "0/2 nodes are available: 2 node(s) were unschedulable.";
    let waiting = fixture
        .pod("a", "unschedulable", |pod| condition(pod, "PodScheduled")["message"] == message);
    assert_eq!(condition(&waiting, "PodScheduled")["reason"], "Unschedulable");
    fixture.wait_for_event("a", "FailedScheduling", message);
    let taints = fixture.get(&node(1)).json()["spec"]["taints"].clone();
    assert_eq!(taints[0]["key"], "node.kubernetes.io/unschedulable", "{taints}");
    cordon(1, false);
    let running = fixture.in_phase("a", "Running");
    assert_eq!(running["spec"]["nodeName"], "dev-node-1");
    fixture.wait_for_event("a", "Scheduled", "Successfully assigned default/a to dev-node-1");
    for reason in ["Pulled", "Created", "Started"] {
        fixture.wait_for_event("a", reason, "");
    }
    // The request is larger than the machine.
    let mut big = pod("big", "sleep 100");
    big["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "4k" } });
    fixture.create(&big);
    let message = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable.";
    fixture.wait_for_event("big", "FailedScheduling", message);
    // A pod that names its node is not scheduled.
    let mut bound = pod("bound", "echo $$$$; exec sleep 100");
    bound["spec"]["nodeName"] = json!("dev-node-0");
    fixture.create(&bound);
    fixture.in_phase("bound", "Running");
    let pid = fixture.wait_for_log("bound", "", "\n").trim().to_owned();
    let alive = || std::path::Path::new("/proc").join(&pid).exists();
    assert!(alive());
    assert_eq!(fixture.delete(&node(0)).status, 200);
    eventually("the process's end", || (!alive()).then_some(()));
    // A new node of that name runs pods again.
    fixture.created("/api/v1/nodes", &json!({ "metadata": { "name": "dev-node-0" } }));
    cordon(1, true);
    fixture.create(&pod("b", "sleep 100"));
    assert_eq!(fixture.in_phase("b", "Running")["spec"]["nodeName"], "dev-node-0");
}

#[test]
fn a_process_that_left_the_containers_group_ends_with_the_container() {
    let fixture = start(|_| {});
    // As `posse run` does with its driver: in a new process group.
    fixture.create(&pod("a", "setsid sh -c 'echo $$$$; exec sleep 100' & wait"));
    fixture.in_phase("a", "Running");
    let pid = fixture.wait_for_log("a", "", "\n").trim().to_owned();
    let alive = || std::path::Path::new("/proc").join(&pid).exists();
    assert!(alive());
    assert_eq!(fixture.delete(&format!("{PODS}/a?gracePeriodSeconds=0")).status, 200);
    eventually("the process's end", || (!alive()).then_some(()));
}

#[test]
fn during_the_restart_backoff_the_last_run_is_the_previous_one() {
    let fixture = start(|_| {});
    let mut spec = pod("a", "echo run; exit 1");
    spec["spec"]["restartPolicy"] = json!("OnFailure");
    fixture.create(&spec);
    let waiting = fixture
        .pod("a", "backoff", |pod| status(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff");
    let uid = waiting["metadata"]["uid"].as_str().expect("a uid");
    let message = format!("back-off 10s restarting failed container=c pod=a_default({uid})");
    assert_eq!(status(&waiting)["state"]["waiting"]["message"], message);
    assert_eq!(status(&waiting)["restartCount"], 1);
    assert_eq!(status(&waiting)["lastState"]["terminated"]["exitCode"], 1);
    for id in ["/containerID", "/lastState/terminated/containerID"] {
        let id = status(&waiting).pointer(id).and_then(Value::as_str).expect("an id");
        assert!(id.ends_with("/c/1"), "{id}");
    }
    for query in ["", "previous=true"] {
        assert_eq!(fixture.log("a", query), "run\n", "{query}");
    }
    fixture.wait_for_event(
        "a",
        "BackOff",
        "Back-off restarting failed container c in pod a_default",
    );
    // No process of the pod runs, so that its deletion needs no grace period.
    fixture.delete(&format!("{PODS}/a"));
    fixture.gone("a");
}

#[test]
fn a_pod_with_scheduling_gates_waits_until_they_are_removed() {
    let fixture = start(|_| {});
    let mut spec = pod("a", "sleep 100");
    spec["spec"]["schedulingGates"] = json!([{ "name": "g" }]);
    fixture.create(&spec);
    let gated = fixture
        .pod("a", "gated", |pod| condition(pod, "PodScheduled")["reason"] == "SchedulingGated");
    assert_eq!(condition(&gated, "PodScheduled")["status"], "False");
    fixture.patch(&format!("{PODS}/a"), &json!({ "spec": { "schedulingGates": null } }));
    fixture.in_phase("a", "Running");
}

#[test]
fn two_pods_can_listen_on_one_port() {
    let fixture = start(|_| {});
    let address = |name: &str| {
        fixture.create(&pod(name, "sleep 100"));
        let running = fixture.in_phase(name, "Running");
        running["status"]["podIP"].as_str().expect("an address").to_owned()
    };
    let (one, two) = (address("a"), address("b"));
    let first = TcpListener::bind((one.as_str(), 0)).expect("a pod's address can be listened on");
    let port = first.local_addr().expect("an address").port();
    let second = TcpListener::bind((two.as_str(), port)).expect("so can another's");
    assert_ne!(first.local_addr().expect("one"), second.local_addr().expect("another"));
    let mut host = pod("host", "sleep 100");
    host["spec"]["hostNetwork"] = json!(true);
    fixture.create(&host);
    assert_eq!(fixture.in_phase("host", "Running")["status"]["podIP"], "127.0.0.1");
}

/// As on a server without the driver of the claim: no condition says why the pod waits.
#[test]
fn a_pod_with_claims_on_devices_gets_no_node() {
    let fixture = start(|_| {});
    let mut claims = pod("claims", "sleep 100");
    claims["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": "mine" }]);
    fixture.create(&claims);
    fixture.create(&pod("after", "sleep 100"));
    fixture.in_phase("after", "Running");
    let waiting = fixture.in_phase("claims", "Pending");
    assert_eq!(condition(&waiting, "PodScheduled"), &Value::Null, "{waiting}");
    assert_eq!(waiting["spec"]["nodeName"], Value::Null, "{waiting}");
}
