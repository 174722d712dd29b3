//! Tests of faults that are switched on and off through the sockets of a running cluster.

use std::io::BufRead as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::dev::http::{
    self, Fixture, JSON, MERGE, PODS, Reply, condition, eventually, is_ready, read_reply, request,
    send,
};

const PATH: &str = "/posse/faults";

fn start() -> Fixture {
    http::start(|options| {
        options.simulate = true;
        options.nodes = 2;
    })
}

impl Fixture {
    fn call(&self, method: &str, path: &str, body: &Value) -> Reply {
        let media_type = match method {
            "PATCH" => MERGE,
            _ => JSON,
        };
        send(self.address, method, path, Some((media_type, &body.to_string())))
    }

    #[track_caller]
    fn switch(&self, method: &str, faults: &Value) -> Value {
        let reply = self.call(method, PATH, faults);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["faults"].clone()
    }

    fn send_pod(&self, name: &str) -> Reply {
        let labels = json!({"posse.dev/app": "a", "team": "b"});
        let pod = json!({"metadata": {"name": name, "labels": labels},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]}});
        self.post(PODS, &pod)
    }

    fn names(&self, query: &str) -> Vec<String> {
        let items = self.items(&format!("{PODS}?{query}"));
        items.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    fn version(&self) -> u64 {
        self.get(PATH).json()["history"]["now"].as_u64().expect("a number")
    }
}

#[test]
fn faults_are_switched_on_and_off_while_the_cluster_runs() {
    let fixture = start();
    let shown = fixture.get(PATH).json();
    assert_eq!(shown["faults"], json!({}));
    let known = |name: &str| {
        let known = shown["known"].as_array().expect("a list");
        known.iter().find(|row| row["name"] == name).cloned().unwrap_or_default()
    };
    assert_eq!(known("latency")["value"], "MS");
    assert!(known("quota")["help"].as_str().is_some_and(|help| help.contains("pods")));
    let put = json!({"create-429": 100, "retry-after": 7});
    assert_eq!(fixture.switch("PUT", &put), put);
    let refused = fixture.send_pod("a");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("7")));
    let now = fixture.switch("PATCH", &json!({"create-429": null, "quota": "0"}));
    assert_eq!(now, json!({"retry-after": 7, "quota": 0}));
    assert_eq!(fixture.send_pod("a").status, 403);
    assert_eq!(fixture.switch("PUT", &json!({"latency": 1})), json!({"latency": 1}));
    assert_eq!(fixture.send_pod("a").status, 201);
    assert_eq!(fixture.switch("DELETE", &Value::Null), json!({}));
}

#[test]
fn an_invalid_fault_is_named_and_changes_nothing() {
    let fixture = start();
    fixture.switch("PUT", &json!({"latency": 1}));
    for (method, body, want) in [
        ("PUT", json!({"nope": 1}), "unknown fault nope; known faults: latency=MS, slow-body=MS, "),
        ("PATCH", json!({"quota": "x"}), "fault quota=x: the value must be a whole number"),
        ("PATCH", json!({"all-429": 101}), "fault all-429=101: the value must be a percentage, "),
        (
            "PATCH",
            json!({"node-loss": "dev-node-0, x"}),
            "fault node-loss=dev-node-0, x: there is no node x",
        ),
        ("PATCH", json!({"restore": 99_999}), "fault restore=99999: the current version is "),
        ("PUT", json!([1]), "the body must be a JSON object of fault names and values"),
    ] {
        let refused = fixture.call(method, PATH, &body);
        let message = refused.json()["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(refused.status, 400, "{body}: {message}");
        assert!(message.starts_with(want), "{body}: {message}");
    }
    assert_eq!(fixture.call("POST", PATH, &json!({})).status, 405);
    assert_eq!(fixture.get(PATH).json()["faults"], json!({"latency": 1}));
}

#[test]
fn writes_fail_before_or_after_their_execution() {
    let fixture = start();
    let pod = |name: &str| fixture.get(&format!("{PODS}/{name}")).status;
    let path = format!("{PODS}/a");
    let note = |text: &str| json!({"metadata": {"annotations": {"note": text}}});
    let current_note = || fixture.get(&path).json()["metadata"]["annotations"]["note"].clone();
    fixture.switch("PUT", &json!({"create-500": 100}));
    assert_eq!((fixture.send_pod("a").status, pod("a")), (500, 404));
    fixture.switch("PUT", &json!({"create-500-after": 100}));
    assert_eq!((fixture.send_pod("a").status, pod("a")), (500, 200));
    fixture.switch("PUT", &json!({"write-500": 100}));
    assert_eq!(fixture.call("PATCH", &path, &note("one")).status, 500);
    assert_eq!(current_note(), Value::Null);
    fixture.switch("PUT", &json!({"write-500-after": 100}));
    assert_eq!(fixture.call("PATCH", &path, &note("two")).status, 500);
    assert_eq!(current_note(), "two");
    let cut = |name: &str| {
        let sent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            fixture.send_pod(name).status
        }));
        assert!(sent.is_err(), "there is an answer");
    };
    fixture.switch("PUT", &json!({"cut-before": 100}));
    cut("b");
    assert_eq!(pod("b"), 404);
    fixture.switch("PUT", &json!({"cut-after": 100}));
    cut("b");
    assert_eq!(pod("b"), 200);
    fixture.switch("PUT", &json!({"all-429": 100}));
    assert_eq!(pod("b"), 429);
}

#[test]
fn labels_are_stripped_from_new_pods() {
    let fixture = start();
    fixture.switch("PUT", &json!({"strip-labels": "posse.dev/"}));
    let pod = fixture.send_pod("a").json();
    assert_eq!(pod["metadata"]["labels"], json!({"team": "b"}));
}

#[test]
fn lists_are_truncated_cut_slow_or_stale() {
    let fixture = start();
    fixture.send_pod("a");
    let full_list = fixture.get(PODS).body;
    fixture.switch("PUT", &json!({"truncated-list": 100}));
    let half = fixture.get(PODS);
    assert!(half.whole && full_list.starts_with(&half.body[..10]), "{}", half.body);
    assert!(serde_json::from_str::<Value>(&half.body).is_err(), "{}", half.body);
    fixture.switch("PUT", &json!({"cut-list": 100}));
    assert!(!fixture.get(PODS).whole);
    fixture.switch("PUT", &json!({"slow-body": 100}));
    let start = Instant::now();
    assert_eq!(fixture.names(""), ["a"]);
    assert!(start.elapsed() >= Duration::from_millis(90));
    // A consistent list is delayed by as much as it is old.
    fixture.switch("PUT", &json!({"stale-lists": 100}));
    let start = Instant::now();
    assert_eq!(fixture.names(""), ["a"]);
    assert!(start.elapsed() >= Duration::from_millis(100));
    fixture.switch("PUT", &json!({"stale-lists": 600_000}));
    fixture.send_pod("b");
    assert_eq!(
        fixture.names("resourceVersion=0"),
        ["a"],
        "the state when the fault was switched on"
    );
    fixture.switch("PATCH", &json!({"stale-lists": 1}));
    eventually("the new one to be old enough", || {
        (fixture.names("resourceVersion=0") == ["a", "b"]).then_some(())
    });
}

#[test]
fn the_next_watches_get_410_as_often_as_configured() {
    let fixture = start();
    let watch = || fixture.get(&format!("{PODS}?watch=1&timeoutSeconds=1&resourceVersion=1"));
    fixture.switch("PUT", &json!({"gone": 1, "gone-status": 1}));
    let (first, second) = (watch(), watch());
    assert_eq!((first.status, &first.json()["reason"]), (410, &json!("Expired")));
    assert_eq!((second.status, &second.json()["type"]), (200, &json!("ERROR")));
    assert_eq!(second.json()["object"]["code"], 410);
    assert_eq!(fixture.get(PATH).json()["faults"], json!({}));
    assert_eq!(watch().body, "");
    // A shorter history.
    fixture.send_pod("a");
    fixture.switch("PATCH", &json!({"compact": 1}));
    assert_eq!(watch().json()["object"]["code"], 410);
}

#[test]
fn a_silent_watch_sends_missed_changes_after_the_fault() {
    let fixture = start();
    let from = fixture.version();
    let path = format!("{PODS}?watch=1&timeoutSeconds=60&resourceVersion={from}");
    let watch = request(fixture.address, "GET", &path, None);
    fixture.switch("PUT", &json!({"silent-watch": 0}));
    fixture.send_pod("a");
    fixture.switch("DELETE", &Value::Null);
    let mut lines = watch.lines().map(|line| line.expect("an event in time"));
    assert!(lines.any(|line| line.contains("\"ADDED\"")), "missed changes are sent later");
}

#[test]
fn a_restore_brings_the_old_state_back_and_cuts_watches() {
    let fixture = start();
    fixture.send_pod("old");
    fixture.in_phase("old", "Running");
    let then = fixture.version();
    fixture.send_pod("new");
    fixture.delete(&format!("{PODS}/old"));
    eventually("only the new one", || (fixture.names("") == ["new"]).then_some(()));
    let path = format!("{PODS}?watch=1&timeoutSeconds=20");
    let mut watch = request(fixture.address, "GET", &path, None);
    assert!(!watch.fill_buf().expect("an answer").is_empty(), "the watch must be open");
    assert_eq!(fixture.switch("PATCH", &json!({"restore": then})), json!({}));
    assert!(!read_reply(&mut watch).whole, "the watch must be cut");
    assert_eq!(fixture.names(""), ["old"]);
    assert!(fixture.version() >= then);
    // The node follows the restored state.
    fixture.delete(&format!("{PODS}/old"));
    eventually("it to go", || fixture.names("").is_empty().then_some(()));
}

#[test]
fn connections_are_refused_for_a_while() {
    let fixture = start();
    fixture.send_pod("a");
    fixture.switch("PATCH", &json!({"refuse": 5_000}));
    eventually("connections to be refused", || {
        TcpStream::connect(fixture.address).err().map(|_| ())
    });
    eventually("connections to be accepted again", || TcpStream::connect(fixture.address).ok());
    assert_eq!(fixture.names(""), ["a"], "the state must be kept");
}

#[test]
fn the_servers_clock_can_be_skewed() {
    let fixture = start();
    fixture.switch("PUT", &json!({"clock-skew": -31_536_000}));
    let answer = fixture.send_pod("a");
    let year = |text: &str| -> i64 { text[..4].parse().expect("a year") };
    let created = answer.json()["metadata"]["creationTimestamp"].as_str().unwrap().to_owned();
    let date = answer.header("date").expect("a date").to_owned();
    assert!(date.ends_with(" GMT") && date.contains(&created[..4]), "{date} {created}");
    fixture.switch("DELETE", &Value::Null);
    let later = fixture.send_pod("b").json()["metadata"]["creationTimestamp"].clone();
    assert_eq!(year(later.as_str().unwrap()) - year(&created), 1);
}

impl Fixture {
    /// Starts a pod on that node and waits until it is ready. `patience_s` is its
    /// `tolerationSeconds` for unreachable nodes; `None` tolerates them for ever. Returns the pod's
    /// path.
    fn run_on(&self, name: &str, node: &str, patience_s: Option<u64>) -> String {
        let mut toleration = json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists"});
        if let Some(seconds) = patience_s {
            toleration["effect"] = "NoExecute".into();
            toleration["tolerationSeconds"] = seconds.into();
        }
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node,
            "tolerations": [toleration], "containers": [{"name": "c", "image": "i"}]}});
        self.create(&pod);
        self.pod(name, "ready", is_ready);
        format!("{PODS}/{name}")
    }
}

fn is_unknown(node: &Value) -> bool {
    condition(node, "Ready")["status"] == "Unknown"
}

fn is_deleted(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

#[test]
fn a_lost_node_is_tainted_and_recovers() {
    let fixture = start();
    let (brief, patient) = (
        fixture.run_on("brief", "dev-node-0", Some(0)),
        fixture.run_on("patient", "dev-node-0", None),
    );
    let other = fixture.run_on("other", "dev-node-1", Some(0));
    let node = "/api/v1/nodes/dev-node-0";
    fixture.switch("PUT", &json!({"node-loss": "dev-node-0", "node-grace": 100}));
    let unknown = fixture.until(node, "unknown", is_unknown);
    let ready = condition(&unknown, "Ready");
    assert_eq!(
        (&ready["reason"], &ready["message"]),
        (&json!("NodeStatusUnknown"), &json!("Kubelet stopped posting node status."))
    );
    let still = fixture.object(&patient);
    assert_eq!(condition(&still, "Ready")["status"], "False");
    assert_eq!(still["status"]["phase"], "Running");
    let deleted = fixture.until(&brief, "deleted", is_deleted);
    let target = condition(&deleted, "DisruptionTarget");
    assert_eq!(
        (&target["status"], &target["reason"]),
        (&json!("True"), &json!("DeletionByTaintManager"))
    );
    let taints = fixture.object(node)["spec"]["taints"].clone();
    let effects: Vec<_> = taints.as_array().unwrap().iter().map(|taint| &taint["effect"]).collect();
    assert_eq!(effects, ["NoSchedule", "NoExecute"], "{taints}");
    // The kubelet of the lost node does not see the delete.
    fixture.delete(&patient);
    fixture.send_pod("elsewhere");
    let placed = |pod: &Value| pod["spec"]["nodeName"] == "dev-node-1";
    fixture.pod("elsewhere", "on the other node", placed);
    assert_eq!(fixture.get(&brief).status, 200);
    assert_eq!(fixture.get(&patient).status, 200);
    assert_eq!(fixture.object(&other)["metadata"]["deletionTimestamp"], Value::Null);
    fixture.switch("DELETE", &Value::Null);
    eventually("both to go", || (fixture.names("") == ["elsewhere", "other"]).then_some(()));
    let as_before = |node: &Value| node["spec"]["taints"].is_null() && is_ready(node);
    fixture.until(node, "as before", as_before);
}

#[test]
fn a_node_that_returns_in_time_keeps_its_pods() {
    let fixture = start();
    let pod = fixture.run_on("a", "dev-node-0", None);
    fixture.switch("PUT", &json!({"node-loss": "dev-node-0", "node-grace": 50}));
    fixture.until(&pod, "of a lost node", |pod| condition(pod, "Ready")["status"] == "False");
    fixture.switch("DELETE", &Value::Null);
    fixture.until(&pod, "ready again", is_ready);
}

/// If all nodes are lost, the fault is probably in the control plane.
#[test]
fn no_pod_is_evicted_if_all_nodes_are_lost() {
    let fixture = start();
    let pod = fixture.run_on("a", "dev-node-0", Some(0));
    let faults = json!({"node-loss": "dev-node-0,dev-node-1", "node-grace": 50});
    fixture.switch("PUT", &faults);
    for node in ["dev-node-0", "dev-node-1"] {
        fixture.until(&format!("/api/v1/nodes/{node}"), "unknown", is_unknown);
    }
    assert_eq!(fixture.object(&pod)["metadata"]["deletionTimestamp"], Value::Null);
    // When one node is back, the other one is tainted.
    fixture.switch("PATCH", &json!({"node-loss": "dev-node-0"}));
    fixture.until(&pod, "deleted", is_deleted);
}

#[test]
fn pods_of_a_deleted_node_are_deleted_after_the_grace_period() {
    let fixture = start();
    let pod = fixture.run_on("a", "dev-node-0", None);
    fixture.switch("PUT", &json!({"node-loss": "dev-node-0", "node-grace": 50}));
    assert_eq!(fixture.delete("/api/v1/nodes/dev-node-0").status, 200);
    fixture.until(&pod, "gone", |pod| pod["code"] == 404);
}
