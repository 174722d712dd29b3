//! Tests of whole clusters over their sockets: real processes, faults, watches, garbage collection.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use posse_dev::{Cluster, Options};
use serde_json::{Value, json};

use crate::dev::http::{Fixture, JSON, MERGE, PODS, eventually, pod, send, start, status};

fn with_fault(name: &str, value: &str) -> Fixture {
    start(|options| {
        options.simulate = true;
        options.faults.push((name.to_owned(), value.to_owned()));
    })
}

impl Fixture {
    #[track_caller]
    fn log_line(&self, name: &str) -> String {
        eventually(&format!("a line of {name}"), || {
            self.log(name, "").split_once('\n').map(|(line, _)| line.to_owned())
        })
    }
}

fn terminated(pod: &Value) -> &Value {
    &status(pod)["state"]["terminated"]
}

/// True while a process of that id exists.
fn is_alive(pid: &str) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
}

#[test]
fn a_pod_runs_its_command_and_reports_its_exit() {
    let fixture = start(|_| {});
    let mut spec = pod("a", "echo \"$0 $IP $HOSTNAME ${USER-none}\"; pwd; exit 3");
    let container = &mut spec["spec"]["containers"][0];
    container["args"] = json!(["$(NAME)-$$(NAME)"]);
    container["workingDir"] = json!("/");
    container["env"] = json!([
        { "name": "NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
        { "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
    ]);
    fixture.create(&spec);
    let ended = fixture.in_phase("a", "Failed");
    let ip = ended["status"]["podIP"].as_str().expect("an address");
    assert!(ip.starts_with("127."), "{ip}");
    assert_eq!(fixture.log("a", ""), format!("a-$(NAME) {ip} a none\n/\n"));
    assert_eq!(fixture.log("a", "tailLines=1"), "/\n");
    let end = terminated(&ended);
    assert_eq!((&end["exitCode"], &end["reason"]), (&json!(3), &json!("Error")));
    assert_eq!(ended["spec"]["nodeName"], "dev-node-0");
    fixture.create(&pod("b", "true"));
    let ended = fixture.in_phase("b", "Succeeded");
    assert_eq!(terminated(&ended)["reason"], "Completed");
    // Ended pods are deleted at once.
    assert_eq!(fixture.delete(&format!("{PODS}/a")).status, 200);
    assert_eq!(fixture.get(&format!("{PODS}/a")).status, 404);
}

#[test]
fn init_containers_run_first_and_in_order() {
    let fixture = start(|_| {});
    let folder = std::env::temp_dir().join(format!("posse-dev-init-{}", fixture.address.port()));
    let file = folder.display();
    let mut spec = pod("a", &format!("cat {file}; rm {file}"));
    let init = |name: &str| {
        json!({ "name": name, "image": "none",
            "command": ["sh", "-c", format!("echo {name} >> {file}")] })
    };
    spec["spec"]["initContainers"] = json!([init("one"), init("two")]);
    fixture.create(&spec);
    fixture.in_phase("a", "Succeeded");
    assert_eq!(fixture.log("a", "container=c"), "one\ntwo\n");
    let mut spec = pod("b", "true");
    spec["spec"]["initContainers"] = json!([
        { "name": "i", "image": "none", "command": ["sh", "-c", "exit 9"] },
    ]);
    fixture.create(&spec);
    let failed = fixture.in_phase("b", "Failed");
    let status = &failed["status"];
    assert_eq!(status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 9);
    assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
}

#[test]
fn a_deleted_pod_gets_no_more_than_its_grace_period() {
    let fixture = start(|_| {});
    fixture.create(&pod(
        "kind",
        "trap 'echo bye; exit 0' TERM; echo $$$$; while :; do sleep 0.02; done",
    ));
    fixture.create(&pod("deaf", "trap '' TERM; echo $$$$; while :; do sleep 0.02; done"));
    let pids = [fixture.log_line("kind"), fixture.log_line("deaf")];
    assert!(pids.iter().all(|pid| is_alive(pid)));
    let version = fixture.get(PODS).json()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().expect("a version").to_owned();
    fixture.delete(&format!("{PODS}/kind"));
    let marked = fixture.delete(&format!("{PODS}/deaf?gracePeriodSeconds=1")).json();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 1);
    fixture.gone("kind");
    fixture.gone("deaf");
    assert!(!pids.iter().any(|pid| is_alive(pid)));
    // The last state of each pod before it was removed.
    let watch = fixture.get(&format!("{PODS}?watch=1&timeoutSeconds=1&resourceVersion={version}"));
    let mut ends = Vec::new();
    for line in watch.body.lines() {
        let event: Value = serde_json::from_str(line).expect("an event");
        if event["type"] == "DELETED" {
            let object = &event["object"];
            let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
            ends.push((
                name,
                terminated(object)["exitCode"].clone(),
                object["status"]["phase"].clone(),
            ));
        }
    }
    ends.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        ends,
        [
            ("deaf".to_owned(), json!(137), json!("Failed")),
            ("kind".to_owned(), json!(0), json!("Succeeded")),
        ]
    );
}

#[test]
fn a_killed_process_is_reported_as_137_and_its_process_group_is_killed() {
    let fixture = start(|_| {});
    fixture.create(&pod("a", "sleep 300 & echo $$$$ $!; wait"));
    let line = fixture.log_line("a");
    let (shell, sleeper) = line.split_once(' ').expect("two ids");
    let killed = std::process::Command::new("kill").args(["-9", shell]).status();
    assert!(killed.expect("kill runs").success());
    let ended = fixture.in_phase("a", "Failed");
    assert_eq!(terminated(&ended)["exitCode"], 137);
    eventually("the group's end", || (!is_alive(sleeper)).then_some(()));
}

#[test]
fn a_container_that_cannot_start_reports_the_reason() {
    let fixture = start(|_| {});
    let mut spec = pod("unknown", "true");
    spec["spec"]["containers"][0]["command"] = json!(["no-such-program"]);
    fixture.create(&spec);
    let ended = fixture.in_phase("unknown", "Failed");
    let end = terminated(&ended);
    assert_eq!((&end["exitCode"], &end["reason"]), (&json!(128), &json!("StartError")));
    let message = end["message"].as_str().expect("words");
    assert!(
        message.contains("exec: \"no-such-program\": executable file not found in $PATH"),
        "{message}"
    );
    let mut spec = pod("image", "true");
    spec["spec"]["containers"][0]["command"] = json!([]);
    fixture.create(&spec);
    let waits = |pod: &Value| status(pod)["state"]["waiting"]["reason"] == "ErrImagePull";
    let waiting = fixture.pod("image", "a failed pull", waits);
    let message = status(&waiting)["state"]["waiting"]["message"].as_str().expect("words");
    assert!(message.contains("runs commands"), "{message}");
    assert_eq!(waiting["status"]["phase"], "Pending");
}

#[test]
fn no_process_outlives_the_cluster() {
    let fixture = start(|_| {});
    let folder = fixture.cluster.kubeconfig().parent().expect("a folder").to_owned();
    fixture.create(&pod("a", "echo $$$$; exec sleep 300"));
    let pid = fixture.log_line("a");
    assert!(is_alive(&pid) && folder.exists());
    fixture.cluster.stop();
    assert!(!is_alive(&pid) && !folder.exists());
}

#[test]
fn dependents_are_deleted_with_their_last_owner() {
    let fixture = start(|options| options.simulate = true);
    let owner = fixture.create(&pod("owner", "true"));
    let owned = |name: &str, uid: &Value| {
        let mut pod = pod(name, "true");
        pod["metadata"]["ownerReferences"] = json!([
            { "apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": uid, "controller": true },
        ]);
        pod
    };
    fixture.create(&owned("dependent", &owner["metadata"]["uid"]));
    fixture.create(&owned("orphan", &json!("11111111-2222-3333-4444-555555555555")));
    fixture.gone("orphan");
    fixture.in_phase("dependent", "Running");
    fixture.delete(&format!("{PODS}/owner"));
    fixture.gone("owner");
    fixture.gone("dependent");
}

#[test]
fn a_deleted_namespace_is_emptied_and_removed() {
    let fixture = start(|options| {
        options.simulate = true;
        options.namespaces.push("extra".to_owned());
    });
    let pods = "/api/v1/namespaces/extra/pods";
    fixture.created(pods, &pod("a", "true"));
    assert_eq!(fixture.delete("/api/v1/namespaces/extra").status, 200);
    fixture.until("/api/v1/namespaces/extra", "gone", |namespace| namespace["code"] == 404);
    assert_eq!(fixture.get(&format!("{pods}/a")).status, 404);
}

#[test]
fn a_full_quota_answers_like_the_real_server() {
    let fixture = with_fault("quota", "2");
    fixture.create(&pod("a", "true"));
    fixture.create(&pod("b", "true"));
    let refused = fixture.post(PODS, &pod("c", "true"));
    assert_eq!(refused.status, 403);
    assert_eq!(
        refused.json()["message"],
        "pods \"c\" is forbidden: exceeded quota: dev, requested: pods=1, used: pods=2, limited: \
         pods=2"
    );
    fixture.delete(&format!("{PODS}/a"));
    fixture.gone("a");
    fixture.create(&pod("c", "true"));
}

#[test]
fn a_share_of_the_creates_is_refused() {
    let fixture = with_fault("create-429", "100");
    let refused = fixture.post(PODS, &pod("a", "true"));
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    fixture.gone("a");
    let fixture = with_fault("create-429", "50");
    let mut codes = (0..40).map(|n| fixture.post(PODS, &pod(&format!("p{n}"), "true")).status);
    assert!(codes.any(|code| code == 201) && codes.any(|code| code == 429));
}

#[test]
fn watches_are_cut_or_fall_silent() {
    let fixture = with_fault("drop-watch", "50");
    let watch = fixture.get(&format!("{PODS}?watch=1&timeoutSeconds=30"));
    assert!(!watch.whole, "a cut connection has no end");
    let fixture = with_fault("silent-watch", "0");
    fixture.create(&pod("a", "true"));
    let watch = fixture.get(&format!("{PODS}?watch=1&timeoutSeconds=1&resourceVersion=1"));
    assert_eq!((watch.whole, watch.body.as_str()), (true, ""));
}

#[test]
fn old_versions_and_pages_expire() {
    let fixture = with_fault("compact", "8");
    for n in 0..4 {
        fixture.create(&pod(&format!("p{n}"), "true"));
    }
    let page = fixture.get(&format!("{PODS}?limit=2")).json();
    let token = page["metadata"]["continue"].as_str().expect("more");
    for n in 4..24 {
        fixture.create(&pod(&format!("p{n}"), "true"));
    }
    let next = fixture.get(&format!("{PODS}?limit=2&continue={token}"));
    assert_eq!((next.status, &next.json()["reason"]), (410, &json!("Expired")));
    let answer = next.json();
    let token = answer["metadata"]["continue"].as_str().expect("a way to go on");
    let next = fixture.get(&format!("{PODS}?limit=1&continue={token}"));
    assert_eq!(next.json()["items"][0]["metadata"]["name"], "p10");
    // A watch reports this in an event; the status of its answer is 200.
    let watch = fixture.get(&format!("{PODS}?watch=1&timeoutSeconds=5&resourceVersion=2"));
    let event = watch.json();
    assert_eq!((watch.status, watch.whole), (200, true));
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    let message = event["object"]["message"].as_str().expect("words");
    assert!(message.starts_with("too old resource version: 2 ("), "{message}");
}

#[test]
fn all_pages_of_a_list_have_one_version() {
    let fixture = start(|options| options.simulate = true);
    for name in ["a", "b", "c", "d"] {
        fixture.create(&pod(name, "true"));
    }
    let page = fixture.get(&format!("{PODS}?limit=2")).json();
    let token = page["metadata"]["continue"].as_str().expect("more");
    fixture.delete(&format!("{PODS}/c?gracePeriodSeconds=0"));
    fixture.create(&pod("cc", "true"));
    let rest = fixture.get(&format!("{PODS}?limit=10&continue={token}")).json();
    let names = |list: &Value| -> Vec<Value> {
        let items = list["items"].as_array().expect("items");
        items.iter().map(|pod| pod["metadata"]["name"].clone()).collect()
    };
    assert_eq!(
        (names(&page), names(&rest)),
        (vec![json!("a"), json!("b")], vec![json!("c"), json!("d")])
    );
    assert_eq!(page["metadata"]["resourceVersion"], rest["metadata"]["resourceVersion"]);
    assert_eq!(rest["metadata"].get("continue"), None);
}

#[test]
fn a_watch_reports_pods_that_enter_and_leave_its_selection_and_ends_with_a_bookmark() {
    let fixture = start(|options| options.nodes = 0);
    let mut labelled = pod("a", "true");
    labelled["metadata"]["labels"] = json!({ "on": "no" });
    // No scheduler of that name exists: only the patches below change the pod.
    labelled["spec"]["schedulerName"] = json!("nobody");
    let first = fixture.create(&labelled);
    let version = first["metadata"]["resourceVersion"].as_str().expect("a version");
    for on in ["yes", "yes and", "no"] {
        let patch = json!({ "metadata": { "labels": { "on": on.replace(' ', "-") } } });
        fixture.patch(&format!("{PODS}/a"), &patch);
    }
    let watch = fixture.get(&format!(
        "{PODS}?watch=1&timeoutSeconds=3&allowWatchBookmarks=true&resourceVersion={version}\
         &labelSelector=on+notin+(no)"
    ));
    let mut changes = Vec::new();
    for line in watch.body.lines() {
        let event: Value = serde_json::from_str(line).expect("an event");
        let label = event["object"]["metadata"]["labels"]["on"].as_str().unwrap_or_default();
        changes.push(format!("{} {label}", event["type"].as_str().expect("a type")));
    }
    assert!(watch.whole);
    assert_eq!(changes, ["ADDED yes", "MODIFIED yes-and", "DELETED yes-and", "BOOKMARK "]);
}

#[test]
fn many_simulated_pods_run_on_all_nodes() {
    const N_PODS: usize = 300;
    let fixture = start(|options| {
        options.simulate = true;
        options.nodes = 3;
        options.start_delay = Duration::from_millis(20);
    });
    for n in 0..N_PODS {
        fixture.create(&pod(&format!("p{n}"), "true"));
    }
    let count = |selector: &str| fixture.items(&format!("{PODS}?fieldSelector={selector}")).len();
    eventually("all running", || (count("status.phase%3DRunning") == N_PODS).then_some(()));
    for node in ["dev-node-0", "dev-node-1", "dev-node-2"] {
        assert_eq!(count(&format!("spec.nodeName%3D{node}")), N_PODS / 3, "{node}");
    }
    assert_eq!(fixture.delete(PODS).status, 200);
    eventually("all gone", || (count("") == 0).then_some(()));
}

#[test]
fn wrong_options_are_reported_at_the_start() {
    for (change, expected) in [
        (
            (|options: &mut Options| options.faults.push(("no".to_owned(), "1".to_owned())))
                as fn(&mut Options),
            "unknown fault no; known faults: latency=MS",
        ),
        (|options| options.listen = SocketAddr::from(([0, 0, 0, 0], 0)), "loopback"),
        (|options| options.folder = Some("/nonexistent/x".into()), "/nonexistent/x/posse-dev-"),
    ] {
        let mut options = Options::default();
        change(&mut options);
        let error = Cluster::start(options).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_watch_may_begin_with_all_objects_and_marks_their_end() {
    let fixture = start(|options| options.simulate = true);
    let maps = "/api/v1/namespaces/default/configmaps";
    fixture.created(maps, &json!({ "metadata": { "name": "a" } }));
    let query = "watch=1&timeoutSeconds=1&sendInitialEvents=true&fieldSelector=metadata.name%3Da";
    let full = format!("{maps}?{query}&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let events: Vec<Value> = fixture
        .get(&full)
        .body
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect();
    let expected: Vec<&Value> = events.iter().map(|event| &event["type"]).collect();
    assert_eq!(expected, ["ADDED", "BOOKMARK"]);
    let metadata = &events[1]["object"]["metadata"];
    assert_eq!(metadata["annotations"], json!({ "k8s.io/initial-events-end": "true" }));
    let version = metadata["resourceVersion"].as_str().expect("a version").to_owned();
    let quiet = fixture.get(&full.replace("=true&f", "=false&f"));
    assert_eq!((quiet.status, quiet.body.as_str()), (200, ""));
    let future = version.parse::<u64>().expect("a number") + 1000;
    assert_eq!(fixture.get(&format!("{full}&resourceVersion={future}")).status, 504);
}

#[test]
fn an_object_that_is_too_large_is_refused_like_by_the_real_server() {
    let fixture = start(|options| options.simulate = true);
    let create = |n: usize| {
        let mut pod = pod("large", "true");
        pod["spec"]["containers"][0]["env"] = json!([{ "name": "A", "value": "x".repeat(n) }]);
        let reply = fixture.post(PODS, &pod);
        (reply.status, reply.json()["message"].as_str().unwrap_or_default().to_owned())
    };
    let large = "etcdserver: request is too large".to_owned();
    assert_eq!(create(1_600_000), (500, large));
    let limit = "Request entity too large: limit is 3145728".to_owned();
    assert_eq!(create(3 << 20), (413, limit));
    assert_eq!(create(1000).0, 201);
}

/// Bodies of some kilobytes that ended the server: no thread of it could walk their trees.
#[test]
fn deep_and_large_bodies_do_not_end_the_server() {
    let cluster = start(|options| options.simulate = true);
    let maps = "/api/v1/namespaces/default/configmaps";
    let send = |method: &str, path: &str, media_type: &str, body: &str| {
        send(cluster.address, method, path, Some((media_type, body)))
    };
    cluster.created(maps, &json!({ "metadata": { "name": "c" } }));
    let one = format!("{maps}/c");
    let deep = format!("{{\"data\":{}1{}}}", "{\"a\":".repeat(120), "}".repeat(120));
    let wide = format!("{{\"data\":[{}1]}}", "{\"\":1},".repeat(200_000));
    let strategic = "application/strategic-merge-patch+json";
    for (method, path, media_type, body) in [
        ("POST", maps, JSON, &deep),
        ("PATCH", &one, MERGE, &deep),
        ("PATCH", &one, strategic, &deep),
        ("POST", maps, JSON, &wide),
        ("PATCH", "/posse/faults", JSON, &deep),
    ] {
        let refused = send(method, path, media_type, body);
        assert_eq!(refused.status, 400, "{method} {path} {media_type}: {}", refused.body);
    }
    assert_eq!(cluster.get(&one).status, 200);
}
