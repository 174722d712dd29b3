//! Pods of a real server, unusual pods, and malformed pods.

use std::mem::{size_of, size_of_val};

use super::*;
use crate::k8s::list::read_page;
use crate::k8s::watch::{Encoded, parse_event};
use posse_base::rng::Rng;
use posse_core::policy::loss::classify;

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../../../fixtures/pods/", $name))
    };
}

fn selection() -> Selection {
    Selection { app: "wordcount".to_owned(), instance: "ab3de".to_owned() }
}

fn ours(json: &str) -> Pod {
    match parse(json.as_bytes(), &selection()) {
        Ok(PodAnswer::Ours(pod)) => pod,
        other => panic!("{other:?}"),
    }
}

fn is_stuck(pod: &Pod, kind: StartProblemKind) -> bool {
    pod.start_problem.as_ref().is_some_and(|stuck| stuck.kind == kind)
}

/// The facts in one line, without those that are None.
fn facts(pod: &Pod) -> String {
    let mut facts = format!("{} {:?}", pod.id, pod.phase);
    let flags = [
        ("deleting", pod.deleting),
        ("unschedulable", is_stuck(pod, StartProblemKind::Unschedulable)),
        ("gated", is_stuck(pod, StartProblemKind::Gated)),
        ("queued", is_stuck(pod, StartProblemKind::Queued)),
        ("ready", pod.ready),
        ("draining", pod.draining.is_some()),
        ("counted", pod.counted.is_some()),
    ];
    facts += &format!(" {:?}", pod.container);
    for (name, _) in flags.iter().filter(|(_, set)| *set) {
        facts = facts + " " + name;
    }
    if pod.deletion_cost != 0 {
        facts += &format!(" cost={}", pod.deletion_cost);
    }
    if let Some(node) = &pod.node {
        facts += &format!(" on {node}");
    }
    if let Some(ip) = pod.ip {
        facts += &format!(" at {ip}");
    }
    if let Some(ip) = pod.host_ip {
        facts += &format!(" host {ip}");
    }
    if let Some(end) = &pod.end {
        facts += &format!(
            " end={}|{}|{}|{:?}|{:?}|{}|{}",
            end.pod_reason,
            end.pod_message,
            end.disruption,
            end.exit_code,
            end.signal,
            end.container_reason,
            end.container_message,
        );
    }
    facts
}

#[test]
fn pods_of_a_real_server() {
    let low = "The node was low on resource: memory.";
    let evicted = format!(
        "4 Failed Waiting ready on node-1 at 10.244.1.4 host 10.0.0.9 \
         end=Evicted|{low}|TerminationByKubelet|None|None||"
    );
    let table = [
        (fixture!("pending.json"), "1 Pending Waiting"),
        (fixture!("unschedulable.json"), "1 Pending Waiting unschedulable"),
        (fixture!("running.json"), "1 Running Running ready on node-1 at 10.244.1.1 host 10.0.0.9"),
        (
            fixture!("failed.json"),
            "2 Failed Ended ready on node-1 at 10.244.1.2 host 10.0.0.9 \
             end=|||Some(3)|None|Error|lost the driver",
        ),
        (
            fixture!("oom_killed.json"),
            "3 Failed Ended ready on node-1 at 10.244.1.3 host 10.0.0.9 end=|||Some(137)|None|OOMKilled|",
        ),
        (fixture!("evicted.json"), &evicted),
        (
            fixture!("succeeded.json"),
            "5 Succeeded Ended ready on node-1 at 10.244.1.5 host 10.0.0.9 end=|||Some(0)|None|Completed|",
        ),
        (
            fixture!("ended_beside_sidecar.json"),
            "6 Running Ended ready on node-1 at 10.244.1.6 host 10.0.0.9 end=|||Some(143)|Some(15)|Error|",
        ),
        (
            fixture!("terminating.json"),
            "7 Running Running deleting ready on node-1 at 10.244.1.7 host 10.0.0.9",
        ),
        (
            fixture!("marked.json"),
            "8 Running Running ready draining counted cost=-7 on node-1 at 10.244.1.8 host 10.0.0.9",
        ),
    ];
    for (json, wanted) in table {
        let pod = ours(json);
        assert_eq!(facts(&pod), wanted);
        assert_eq!(*pod.name, *format!("wordcount-ab3de-exec-{}", pod.id));
        assert_eq!(pod.slot.map(u64::from), Some(pod.id.0 - 1));
        assert_eq!(pod.group, GroupName::from("default"));
        assert!(pod.version.is_some() && matches!(pod.uid, Uid::Uuid(_)) && pod.owner.is_some());
    }
    let foreign = parse(fixture!("foreign.json").as_bytes(), &selection());
    assert!(
        matches!(foreign, Ok(PodAnswer::Foreign(ForeignPod { name, .. })) if name == "wordcount-ab3de-exec-9")
    );
}

#[test]
fn a_pod_with_a_wrong_label_is_foreign() {
    let running = fixture!("running.json");
    let off = [
        (r#""posse.dev/app":"wordcount""#, r#""posse.dev/app":"wordcounts""#),
        (r#""posse.dev/instance":"ab3de""#, r#""posse.dev/instance":null"#),
        (r#"component":"executor""#, r#"component":"instance""#),
    ];
    for (from, to) in off {
        let json = running.replacen(from, to, 1);
        assert_ne!(json, running, "{from}");
        assert!(matches!(parse(json.as_bytes(), &selection()), Ok(PodAnswer::Foreign(_))), "{to}");
    }
}

#[test]
fn an_id_is_read_from_the_name_before_the_label() {
    let running = fixture!("running.json");
    let name = r#""name":"wordcount-ab3de-exec-1""#;
    let label = r#""posse.dev/executor-id":"1""#;
    for (name_now, label_now, id) in [
        (name, label, 1),
        (name, r#""posse.dev/executor-id":"18446744073709551615""#, 1),
        (name, r#""posse.dev/executor-id":"one""#, 1),
        (name, r#""x":"1""#, 1),
        (r#""name":"victim-db""#, label, 1),
        (r#""name":"victim-db""#, r#""posse.dev/executor-id":"one""#, 0),
        (r#""name":"wordcount-ab3de-exec-01""#, r#""posse.dev/executor-id":"7""#, 7),
        (r#""name":"wordcount-ab3de-exec-+1""#, r#""posse.dev/executor-id":"7""#, 7),
        (r#""name":"wordcount-ab3de-exec-18446744073709551616""#, label, 1),
    ] {
        let json = running.replacen(name, name_now, 1).replacen(label, label_now, 1);
        assert_eq!(ours(&json).id.0, id, "{name_now} {label_now}");
    }
    let json = running.replacen(r#""posse.dev/group":"default""#, r#""x":"y""#, 1);
    assert_eq!(ours(&json).group, GroupName::from(""));
}

#[test]
fn an_annotation_names_the_main_container() {
    let beside = fixture!("ended_beside_sidecar.json");
    let json = beside.replacen(
        r#""labels":"#,
        r#""annotations":{"a":[1],"posse.dev/container":"sidecar"},"labels":"#,
        1,
    );
    let pod = ours(&json);
    assert_eq!((pod.container, pod.end), (ContainerState::Running, None));
    let json =
        json.replacen(r#""posse.dev/container":"sidecar""#, r#""posse.dev/container":"x""#, 1);
    let pod = ours(&json);
    assert_eq!(
        (pod.container, pod.main_container.as_deref()),
        (ContainerState::Waiting, Some("x"))
    );
}

const EARLY: &str = "2026-01-01T00:00:01Z";
const MAIN_END: &str = "2026-01-01T00:00:02Z";
const LATE: &str = "2026-01-01T00:00:03Z";

fn ended(code: i32, at: &str) -> serde_json::Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    serde_json::json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}})
}

/// A pod into which a webhook has put container `proxy`.
fn injected(
    annotation: Option<&str>,
    place: &str,
    main: Option<&serde_json::Value>,
    proxy: &serde_json::Value,
) -> serde_json::Value {
    let env = serde_json::json!([{"name": "THEIRS"}, {"name": "POSSE_EXECUTOR_ID", "value": "1"}]);
    let mut containers = vec![serde_json::json!({"name": "worker", "env": env})];
    let mut statuses = Vec::new();
    statuses.extend(main.map(|state| serde_json::json!({"name": "worker", "state": state})));
    let theirs = serde_json::json!({"name": "proxy", "env": [{"name": "THEIRS"}]});
    let status = serde_json::json!({"name": "proxy", "state": proxy});
    let mut pod: serde_json::Value = serde_json::from_str(fixture!("running.json")).expect("a pod");
    match place {
        "first" => {
            containers.insert(0, theirs);
            statuses.insert(0, status);
        }
        "last" => {
            containers.push(theirs);
            statuses.push(status);
        }
        _ => {
            pod["spec"]["initContainers"] =
                serde_json::json!([{"name": "proxy", "restartPolicy": "Always"}]);
            pod["status"]["initContainerStatuses"] = serde_json::json!([status]);
        }
    }
    pod["metadata"]["annotations"] =
        serde_json::json!({"posse.dev/container": annotation, "posse.dev/restart": "on-failure"});
    pod["spec"]["containers"] = containers.into();
    pod["status"]["containerStatuses"] = statuses.into();
    pod
}

/// A mutating webhook may put containers anywhere, and each of them may end at any time.
#[test]
fn an_injected_container_is_never_the_main_one() {
    let running = || serde_json::json!({"running": {}});
    let mains = [None, Some(running()), Some(ended(0, MAIN_END)), Some(ended(3, MAIN_END))];
    let ends = [(0, EARLY), (1, EARLY), (143, MAIN_END), (0, LATE), (143, LATE)];
    let mut proxies = vec![running()];
    proxies.extend(ends.map(|(code, at)| ended(code, at)));
    // With the annotation, and as posse 0.1 wrote a pod whose first container is the main one.
    let annotations = [Some("worker"), None];
    let places = annotations
        .into_iter()
        .flat_map(|annotation| ["first", "last", "init"].map(|place| (annotation, place)));
    for (annotation, place) in places {
        for (main, proxy) in
            mains.iter().flat_map(|main| proxies.iter().map(move |proxy| (main, proxy)))
        {
            let json = injected(annotation, place, main.as_ref(), proxy);
            let what = format!("{annotation:?} {place} {main:?} {proxy}");
            let state = main.clone().unwrap_or_default();
            let (code, want) = match (state["running"].is_object(), &state["terminated"]) {
                (true, _) => (None, ContainerState::Running),
                (false, end) if end.is_object() => {
                    (end["exitCode"].as_i64(), ContainerState::Ended)
                }
                (false, _) => (None, ContainerState::Waiting),
            };
            let got = |json: &serde_json::Value| {
                let pod = ours(&json.to_string());
                assert_eq!(pod.main_container.is_some(), place != "init", "{what}");
                assert!(pod.main_container.is_none_or(|name| &*name == "worker"), "{what}");
                (pod.end.and_then(|end| end.exit_code.map(i64::from)), pod.container)
            };
            assert_eq!(got(&json), (code, want), "{what}");
        }
    }
}

/// A container that the kubelet restarts has not ended, and never gets a second executor beside it.
#[test]
fn a_container_that_is_restarted_in_place_has_not_ended() {
    let rules = |action: &str| serde_json::json!([{"action": action, "exitCodes": {"operator": "In", "values": [3]}}]);
    let none = serde_json::Value::Null;
    for (place, policy, rules, pod_policy, want) in [
        ("worker", none.clone(), none.clone(), "Never", false),
        ("worker", "Never".into(), none.clone(), "Never", false),
        ("worker", "Never".into(), serde_json::json!([]), "Never", false),
        ("worker", "Always".into(), none.clone(), "Never", true),
        ("worker", "OnFailure".into(), none.clone(), "Never", true),
        ("worker", "Never".into(), rules("Restart"), "Never", true),
        ("other", "Never".into(), rules("RestartAllContainers"), "Never", true),
        ("other", "Always".into(), none.clone(), "Never", true),
        ("worker", none.clone(), none.clone(), "OnFailure", true),
        ("worker", none.clone(), none.clone(), "Always", true),
        // Native side-cars, and init containers, which end before the others start.
        ("init", "Always".into(), none.clone(), "Never", false),
        ("init", "OnFailure".into(), none.clone(), "Never", false),
        ("init", "Always".into(), rules("RestartAllContainers"), "Never", true),
    ] {
        let mut pod = injected(Some("worker"), "last", Some(&ended(3, EARLY)), &ended(0, LATE));
        let mut container = serde_json::json!({"name": place, "restartPolicy": policy});
        container["restartPolicyRules"] = rules;
        let what = format!("{container} {pod_policy}");
        pod["spec"]["containers"] = match place {
            "worker" => serde_json::json!([container]),
            "other" => serde_json::json!([{"name": "worker"}, container]),
            _ => serde_json::json!([{"name": "worker"}]),
        };
        if place == "init" {
            pod["spec"]["initContainers"] = serde_json::json!([container]);
        }
        pod["spec"]["restartPolicy"] = pod_policy.into();
        let read = |pod: &serde_json::Value| {
            let pod = ours(&pod.to_string());
            assert_eq!(pod.restarts_in_place, want, "{what}");
            (pod.container, pod.end.is_some())
        };
        let over = (ContainerState::Ended, true);
        let between = if want { (ContainerState::Waiting, false) } else { over };
        assert_eq!(read(&pod), between, "{what}");
        // The kubelet restarts nothing of a pod that is over or terminates.
        let mut failed = pod.clone();
        failed["status"]["phase"] = "Failed".into();
        let mut deleted = pod.clone();
        deleted["metadata"]["deletionTimestamp"] = LATE.into();
        assert_eq!((read(&failed), read(&deleted)), (over, over), "{what}");
    }
}

/// An executor's pod with little else; `rest` is added to its metadata, `status` to the pod.
fn minimal(rest: &str, status: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"n","uid":"u","labels":{{"posse.dev/app":"wordcount",
            "posse.dev/instance":"ab3de","app.kubernetes.io/component":"executor",
            "posse.dev/group":"g","posse.dev/executor-id":"5","other":7}}{rest}}},{status}}}"#
    )
}

#[test]
fn unusual_values_are_accepted() {
    let table = [
        ("", r#""status":null,"spec":null"#, "5 Pending Waiting"),
        ("", r#""status":{"phase":"Brooding","podIP":"nowhere"}"#, "5 Pending Waiting"),
        ("", r#""status":{"phase":"Running","podIP":"fd00::1"}"#, "5 Running Waiting at fd00::1"),
        (
            r#","deletionTimestamp":null"#,
            r#""spec":{"nodeName":"","containers":[]}"#,
            "5 Pending Waiting",
        ),
        (
            r#","annotations":{"controller.kubernetes.io/pod-deletion-cost":"cheap"}"#,
            r#""spec":{"containers":null}"#,
            "5 Pending Waiting",
        ),
        (
            r#","annotations":null,"ownerReferences":null"#,
            r#""status":{"conditions":null,"containerStatuses":[{"name":"x","state":null}]}"#,
            "5 Pending Waiting",
        ),
        (
            "",
            r#""status":{"phase":"Running","conditions":[{"type":"DisruptionTarget","status":"True"}]}"#,
            "5 Running Waiting end=||DisruptionTarget|None|None||",
        ),
        (
            "",
            r#""status":{"phase":"Running","conditions":[{"type":"TerminationTarget","status":"True","reason":"WorkloadEvicted"}]}"#,
            "5 Running Waiting end=||TerminationTarget|None|None||",
        ),
        (
            "",
            r#""status":{"phase":"Running","reason":"NodeLost","message":"gone"}"#,
            "5 Running Waiting end=NodeLost|gone||None|None||",
        ),
        (
            "",
            r#""spec":{"schedulingGates":[{"name":"other"}]},"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"SchedulingGated"}]}"#,
            "5 Pending Waiting gated",
        ),
        (
            r#","ownerReferences":null"#,
            r#""spec":{"schedulingGates":[]},"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"SchedulingGated"}]}"#,
            "5 Pending Waiting",
        ),
        (
            r#","annotations":null"#,
            r#""spec":{"schedulingGates":[{"name":"kueue.x-k8s.io/admission"}]},"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"SchedulingGated"}]}"#,
            "5 Pending Waiting queued",
        ),
    ];
    for (rest, status, wanted) in table {
        assert_eq!(facts(&ours(&minimal(rest, status))), wanted, "{rest} {status}");
    }
    let resizes = |status: &str| {
        let pending = format!(
            r#""status":{{"phase":"Running","conditions":[{{"type":"PodResizePending","status":"{status}","reason":"Deferred","message":"not enough memory"}}]}}"#
        );
        ours(&minimal("", &pending)).resize_problem().map(str::to_owned)
    };
    assert_eq!(resizes("True").as_deref(), Some("Deferred, not enough memory"));
    assert_eq!(resizes("False"), None);
    let pod = ours(&minimal("", r#""status":{}"#));
    assert_eq!((pod.version, pod.slot, pod.owner), (None, None, None));
}

#[test]
fn the_memory_limit_is_the_main_containers() {
    let limit = |limits: &str| {
        let spec = format!(
            r#""spec":{{"containers":[{{"name":"agent","resources":{{"limits":{{"memory":"7"}}}}}},{{"name":"main","resources":{{"limits":{limits}}}}}]}}"#
        );
        ours(&minimal(r#","annotations":{"posse.dev/container":"main"}"#, &spec)).memory_limit_bytes
    };
    for (limits, bytes) in [
        (r#"{"cpu":"1","memory":"64Mi"}"#, 64 << 20),
        (r#"{"memory":"1G"}"#, 1_000_000_000),
        (r#"{"memory":"much"}"#, 0),
        (r#"{"memory":null}"#, 0),
        ("{}", 0),
        ("null", 0),
    ] {
        assert_eq!(limit(limits), bytes, "{limits}");
    }
}

#[test]
fn long_messages_are_clipped() {
    let long = "ü".repeat(5_000);
    let json = fixture!("failed.json").replacen("lost the driver", &long, 1);
    let end = ours(&json).end.unwrap();
    assert_eq!(end.container_message.len(), MESSAGE_BYTES_MAX);
}

#[test]
fn other_bytes_are_an_error() {
    for broken in [
        "",
        "null",
        "[]",
        "{}",
        r#"{"metadata":{"name":"a"}}"#,
        r#"{"metadata":{"uid":"a"}}"#,
        r#"{"metadata":{"name":"","uid":"a"}}"#,
        r#"{"metadata":{"name":"a","uid":"a"}"#,
        r#"{"metadata":{"name":1,"uid":"a"}}"#,
    ] {
        assert!(parse(broken.as_bytes(), &selection()).is_err(), "{broken}");
    }
}

/// Memory of a stored pod, bytes.
fn stored_bytes(pod: &Pod) -> usize {
    let uid = |uid: &Uid| match uid {
        Uid::Text(text) => text.len(),
        Uid::Uuid(_) => 0,
    };
    let end = pod.end.as_ref().map_or(0, |end| {
        size_of_val(&**end)
            + [
                &end.pod_reason,
                &end.pod_message,
                &end.disruption,
                &end.container_reason,
                &end.container_message,
            ]
            .iter()
            .map(|text| text.len())
            .sum::<usize>()
    });
    // An `Arc` has two counters.
    let group = pod.group.as_str().len() + 2 * size_of::<usize>();
    size_of::<Pod>()
        + pod.name.len()
        + group
        + pod.node.as_ref().map_or(0, |node| node.len())
        + uid(&pod.uid)
        + pod.owner.as_ref().map_or(0, uid)
        + end
}

#[test]
fn a_stored_pod_is_small() {
    let long_node = "ip-10-244-113-209.eu-central-1.compute.internal";
    let json = fixture!("running.json").replace("node-1", long_node);
    let bytes = stored_bytes(&ours(&json));
    assert!(bytes < 375, "{bytes} bytes");
    let failed = stored_bytes(&ours(fixture!("failed.json")));
    assert!(failed < 500, "{failed} bytes");
}

/// Changes a few bytes, or cuts, doubles or drops a piece.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let tokens: &[&[u8]] =
        &[b"null", b"{}", b"[]", b"\"", b"\\u00", b"1e999", b"-", b"\n", b"\xff"];
    for _ in 0..=rng.below(4) {
        let len = bytes.len() as u64;
        let at = usize::try_from(rng.below(len)).unwrap();
        match rng.below(5) {
            0 => bytes[at] = rng.next_u64().to_le_bytes()[0],
            1 => bytes.truncate(at + 1),
            2 => {
                let to = (at + usize::try_from(rng.below(40)).unwrap()).min(bytes.len());
                let piece = bytes[at..to].to_vec();
                bytes.splice(at..at, piece);
            }
            3 => {
                let to = (at + usize::try_from(rng.below(40)).unwrap()).min(bytes.len() - 1);
                bytes.drain(at..to);
            }
            _ => {
                let n = usize::try_from(rng.below(tokens.len() as u64)).unwrap();
                bytes.splice(at..at, tokens[n].iter().copied());
            }
        }
    }
}

#[test]
fn no_bytes_cause_a_panic() {
    let session = include_str!("../../../../fixtures/watch/session.jsonl");
    let expired = include_str!("../../../../fixtures/watch/expired.jsonl");
    let seeds: Vec<&str> = session
        .lines()
        .chain([expired, fixture!("failed.json"), fixture!("evicted.json"), fixture!("page2.json")])
        .collect();
    let mut rng = Rng::new(7);
    let mut n_read = 0;
    for round in 0..20_000 {
        let mut bytes = seeds[round % seeds.len()].as_bytes().to_vec();
        mutate(&mut bytes, &mut rng);
        let line = parse_event(Encoded::Json(&bytes), &selection()).is_ok();
        let pod = parse(&bytes, &selection()).is_ok();
        let page = read_page(&mut bytes.as_slice(), &selection()).is_ok();
        n_read += usize::from(line || pod || page);
    }
    // Some changes leave the pod readable.
    assert!((1_000..19_000).contains(&n_read), "{n_read}");
}

/// The pod statuses that Kubernetes writes at a pod's end, and the facts read from them.
#[test]
fn the_facts_of_every_kind_of_end() {
    let running: serde_json::Value = serde_json::from_str(fixture!("running.json")).expect("a pod");
    // `nodes.jsonl` was saved by `tests/nodes/losses.rs` from a kubelet and containerd.
    for row in fixture!("endings.jsonl").lines().chain(fixture!("nodes.jsonl").lines()) {
        let row: serde_json::Value = serde_json::from_str(row).expect("a row");
        let mut pod = running.clone();
        pod["status"] = row["status"].clone();
        if row["deleting"] == true {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z".into();
        }
        pod["metadata"]["annotations"] = row["annotations"].clone();
        let loss = classify(&ours(&pod.to_string()), row["absent"] == true);
        let got = serde_json::json!({
            "reason": loss.reason.as_str(), "exit_code": loss.exit_code, "message": loss.message,
        });
        assert_eq!(got, row["want"], "{}", row["what"]);
    }
}

/// The pod statuses that keep a pod from starting, and the facts read from them.
#[test]
fn the_facts_of_every_failed_start() {
    let running: serde_json::Value = serde_json::from_str(fixture!("running.json")).expect("a pod");
    for row in fixture!("starts.jsonl").lines() {
        let row: serde_json::Value = serde_json::from_str(row).expect("a row");
        let mut pod = running.clone();
        pod["status"] = row["status"].clone();
        pod["metadata"]["annotations"] = row["annotations"].clone();
        pod["spec"]["schedulingGates"] = row["spec"]["schedulingGates"].clone();
        let got = ours(&pod.to_string()).start_problem;
        let got = got.map(|stuck| serde_json::json!([format!("{:?}", stuck.kind), *stuck.message]));
        assert_eq!(got.unwrap_or_default(), row["want"], "{}", row["what"]);
    }
}

#[test]
fn the_pods_that_a_queue_keeps_are_known() {
    let labels = r#""posse.dev/app":"wordcount","posse.dev/instance":"ab3de","posse.dev/group":"g","posse.dev/executor-id":"1","app.kubernetes.io/component":"executor""#;
    let group = r#","kueue.x-k8s.io/pod-group-name":"g""#;
    for (label, finalizers, want) in [
        (group, r#"["kueue.x-k8s.io/managed"]"#, true),
        (group, r#"["x/y","kueue.x-k8s.io/managed"]"#, true),
        (group, r#"["x/y"]"#, false),
        (group, "null", false),
        // Kueue lets a pod go that is no member of a group.
        ("", r#"["kueue.x-k8s.io/managed"]"#, false),
    ] {
        let json = format!(
            r#"{{"metadata":{{"name":"p","uid":"u","finalizers":{finalizers},"labels":{{{labels}{label}}}}}}}"#
        );
        assert_eq!(ours(&json).is_held_by_queue, want, "{json}");
    }
}

#[test]
fn what_holds_a_pod_and_who_has_taken_it_is_read() {
    let owner = |kind: &str, is_controller: bool| {
        format!(r#"[{{"kind":"{kind}","name":"web-abc","uid":"w","controller":{is_controller}}}]"#)
    };
    let (held, both) = (r#"["x/y"]"#, r#"["x/y","kueue.x-k8s.io/managed","a/b"]"#);
    for (finalizers, owners, want) in [
        ("[]", "[]".to_owned(), (None, None)),
        ("null", owner("Pod", true), (None, None)),
        (held, owner("Job", true), (Some("x/y"), None)),
        (both, owner("ReplicaSet", true), (Some("x/y, a/b"), Some("ReplicaSet web-abc"))),
        (r#"["kueue.x-k8s.io/managed"]"#, owner("ReplicaSet", false), (None, None)),
    ] {
        let rest = format!(
            r#","deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":{finalizers},"ownerReferences":{owners}"#
        );
        let pod = ours(&minimal(&rest, r#""status":null"#));
        assert_eq!((pod.held_by(), pod.adopter()), want, "{rest}");
    }
}

#[test]
fn the_grace_periods_are_read() {
    for (meta, spec, want) in [
        ("", "", (30, 0)),
        (r#","deletionGracePeriodSeconds":10"#, r#""terminationGracePeriodSeconds":45"#, (45, 10)),
        (r#","deletionGracePeriodSeconds":-1"#, r#""terminationGracePeriodSeconds":null"#, (30, 0)),
    ] {
        let pod = ours(&minimal(meta, &format!(r#""spec":{{{spec}}}"#)));
        assert_eq!((pod.grace_s, pod.deletion_grace_s), want, "{meta} {spec}");
    }
}
