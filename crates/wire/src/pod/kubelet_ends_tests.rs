//! How pods end: a table of statuses as kubelets of 1.20 to 1.36 write them.

use serde_json::{Value, json};

use super::*;
use posse_core::policy::loss::classify;
use posse_core::policy::node_reasons::{depends_on_place, is_node_at_fault};

/// The pod of a row: its status, and what else it has.
fn pod(row: &Value) -> Pod {
    let named = |name: &str| json!({"name": name});
    let statuses = row["status"]["containerStatuses"].as_array().map_or(&[][..], Vec::as_slice);
    let mut containers: Vec<Value> =
        statuses.iter().map(|status| named(status["name"].as_str().unwrap())).collect();
    if containers.is_empty() {
        containers.push(named("main"));
    }
    let sidecars = row["sidecars"].as_array().into_iter().flatten();
    let sidecars: Vec<Value> =
        sidecars.map(|name| json!({"name": name, "restartPolicy": "Always"})).collect();
    let node = if row.get("node").is_some() { Value::Null } else { "n1".into() };
    let deleted_at =
        if row["deleting"] == true { "2026-01-01T00:00:00Z".into() } else { Value::Null };
    let pod = json!({
        "metadata": {"name": "p-1", "uid": "u", "deletionTimestamp": deleted_at,
            "annotations": {"posse.dev/container": "main"}},
        "spec": {"nodeName": node, "containers": containers, "initContainers": sidecars},
        "status": row["status"],
    });
    json::read::<RawPod<'_>>(pod.to_string().as_bytes()).unwrap().unwrap().facts().unwrap()
}

#[test]
fn what_a_pod_died_of() {
    let table = include_str!("../../../../fixtures/pods/kubelet_ends.txt");
    let mut wrong = Vec::new();
    let mut n = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let [kubelets, want, row] = line.splitn(3, " | ").collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let pod = pod(&serde_json::from_str(row).unwrap());
        let loss = classify(&pod, false);
        let budget = loss.budget.map_or("none", |budget| budget.as_str());
        let blame = match (is_node_at_fault(loss.reason, &pod), depends_on_place(loss.reason)) {
            (true, _) => "node",
            (false, true) => "place",
            (false, false) => "others",
        };
        let container = loss.message.split("; ").find_map(|part| {
            let init = part.strip_prefix("init container ").map(|rest| rest.split(':').next());
            let init = init.flatten().map(|name| format!("init {name}"));
            init.or_else(|| part.starts_with("container").then(|| "main".to_owned()))
        });
        let container = container.unwrap_or_else(|| "-".to_owned());
        let got = format!("{} {budget} {blame} {container}", loss.reason.as_str());
        if got != want {
            wrong.push(format!("{kubelets}: {got}, not {want}: {row}\n  {}", loss.message));
        }
        n += 1;
    }
    assert!(n >= 60, "{n} rows");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the message of a start time-out says of init containers.
#[test]
fn the_init_container_that_others_wait_for_is_named() {
    let ended =
        |code: i32, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
    let waits = || json!({"waiting": {"reason": "PodInitializing"}});
    for (states, want) in [
        (vec![json!({"running": {}}), waits()], "init container i0 runs"),
        (vec![ended(0, "Completed"), waits()], "init container i1 has not begun"),
        (vec![ended(0, "OOMKilled")], "init container i0: exit code 0, OOMKilled"),
        (vec![ended(0, "Completed"), ended(0, "Error")], "init container i1: exit code 0, Error"),
        (vec![], "container main: PodInitializing"),
    ] {
        let init = states.iter().enumerate();
        let init: Vec<Value> =
            init.map(|(i, state)| json!({"name": format!("i{i}"), "state": state})).collect();
        let main = json!([{"name": "main", "state": waits()}]);
        let pod = pod(&json!({"status": {"phase": "Pending", "containerStatuses": main,
            "initContainerStatuses": init}}));
        assert_eq!(&*pod.start_problem.unwrap().message, want, "{states:?}");
    }
}
