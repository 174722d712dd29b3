//! Checks the records of a test: the real server's audit log, and posse's events on both servers.
//! Nothing may be created, or lost, twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

/// The finished requests about one namespace, oldest first.
pub fn requests(log: &Path, namespace: &str) -> Vec<Value> {
    let text = fs::read_to_string(log).expect("the audit log can be read");
    let mut found = Vec::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let entry: Value = serde_json::from_str(line).expect("an audit line is JSON");
        let done = entry["stage"] == "ResponseComplete";
        if done && entry["objectRef"]["namespace"] == namespace {
            found.push(entry);
        }
    }
    found
}

pub fn by_posse(entry: &Value) -> bool {
    entry["userAgent"].as_str().is_some_and(|agent| agent.starts_with("posse/"))
}

/// How often posse sent each kind of request: `create pods 201`, `list pods 200` ...
pub fn tally(log: &Path, namespace: &str) -> BTreeMap<String, u32> {
    let mut tally = BTreeMap::new();
    for entry in requests(log, namespace).iter().filter(|entry| by_posse(entry)) {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let key = format!(
            "{} {} {}",
            text(&entry["verb"]),
            text(&entry["objectRef"]["resource"]),
            entry["responseStatus"]["code"]
        );
        *tally.entry(key).or_insert(0) += 1;
    }
    tally
}

/// Checks the rules for every test; see `violations`.
#[track_caller]
pub fn check(log: &Path, namespace: &str) {
    let found = violations(&requests(log, namespace));
    assert!(found.is_empty(), "the audit log shows:\n{}", found.join("\n"));
}

/// What posse must never do: create an executor twice, write without a name, change foreign
/// objects, write anything but pods and its Lease, or do a kubelet's work.
pub fn violations(requests: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    let (mut made, mut made_by_others) = (BTreeSet::new(), BTreeSet::new());
    for entry in requests {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (uri, verb) = (text(&entry["requestURI"]), text(&entry["verb"]));
        let object = &entry["objectRef"];
        let (name, resource) = (text(&object["name"]), text(&object["resource"]));
        let is_done = entry["responseStatus"]["code"].as_i64().is_some_and(|code| code < 300)
            && !uri.contains("dryRun");
        let is_pod = resource == "pods" && object["subresource"].is_null();
        let mut wrong = |what: &str| found.push(format!("{what}: {verb} {uri}"));
        if !by_posse(entry) {
            // A Job's pods belong to the creator of the Job.
            let is_jobs = text(&entry["user"]["username"]) == "admin" && name.contains("-driver-");
            // Before admission a pod of `generateName` has no name.
            let is_known = !is_jobs && !name.is_empty();
            if is_pod && verb == "create" && is_done && is_known {
                made_by_others.insert(name);
            }
            // The tests themselves use the identity, with other user agents.
            let is_test = text(&entry["userAgent"]).starts_with("test-");
            if !is_test && entry["user"]["username"] == "posse-test" {
                wrong("posse must name itself in its user agent");
            }
            continue;
        }
        if !is_done || matches!(&*verb, "get" | "list" | "watch") {
            continue;
        }
        if matches!(&*verb, "create" | "patch" | "update") && !uri.contains("fieldManager=posse") {
            wrong("a write without a field manager");
        }
        if !object["subresource"].is_null() {
            wrong("a kubelet's work");
        } else if !matches!(
            &*resource,
            "events" | "leases" | "podgroups" | "pods" | "secrets" | "selfsubjectaccessreviews"
        ) {
            wrong("not posse's to write");
        }
        if is_pod && verb == "create" && name.is_empty() {
            wrong("a create that the log does not name");
        }
        if is_pod && verb == "deletecollection" {
            wrong("pods are deleted by labels");
        }
        if is_pod && verb != "create" && made_by_others.contains(&name) {
            wrong("a pod that is not posse's");
        }
        // A driver's pod that has ended may be replaced.
        if is_pod && verb == "create" && !name.ends_with("-driver") && !made.insert(name) {
            wrong("made twice");
        }
    }
    found
}

/// What the events of a scene's runs must not contain: an executor that is requested twice, also by
/// a later run; a loss that is reported twice in one run; a gap.
pub fn event_violations(runs: &[Vec<Value>]) -> Vec<String> {
    let mut found = Vec::new();
    let mut requested = BTreeSet::new();
    for events in runs {
        let mut lost = BTreeSet::new();
        for (event, seq) in events.iter().zip(1_u64..) {
            let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            if event["seq"] != seq {
                found.push(format!("{seq} is missing: {event}"));
            }
            if event["event"] == "executor_requested" && !requested.insert(text("pod")) {
                found.push(format!("requested twice: {event}"));
            }
            if event["event"] == "executor_lost" && !lost.insert((text("pod"), text("uid"))) {
                found.push(format!("lost twice: {event}"));
            }
        }
    }
    found
}
