//! Reads the real server's audit log: who wrote what, and that nothing was made twice.

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

/// How often posse made each kind of request: `create pods 201`, `list pods 200` ...
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

/// What holds for every test: no executor made twice, nobody writes unnamed, no pod of others
/// is deleted.
#[track_caller]
pub fn check(log: &Path, namespace: &str) {
    let requests = requests(log, namespace);
    let mut made = BTreeSet::new();
    let mut made_by_others = BTreeSet::new();
    for entry in &requests {
        let uri = entry["requestURI"].as_str().unwrap_or_default();
        let object = &entry["objectRef"];
        let code = entry["responseStatus"]["code"].as_i64();
        let verb = entry["verb"].as_str().unwrap_or_default();
        let is_pod = object["resource"] == "pods" && object["subresource"].is_null();
        let name = object["name"].as_str().unwrap_or_default();
        if !by_posse(entry) {
            if is_pod && verb == "create" && code == Some(201) {
                made_by_others.insert(name);
            }
            // The tests themselves borrow the identity, under names of their own.
            let by_test =
                entry["userAgent"].as_str().is_some_and(|agent| agent.starts_with("test-"));
            let named = by_test || entry["user"]["username"] != "posse-test";
            assert!(named, "posse must name itself in its user agent: {entry}");
            continue;
        }
        if matches!(verb, "create" | "patch" | "update") && code.is_some_and(|c| c < 300) {
            assert!(uri.contains("fieldManager=posse"), "a write without a field manager: {uri}");
        }
        if is_pod && verb == "create" && code == Some(201) && !uri.contains("dryRun") {
            assert!(!name.is_empty(), "the audit log names what is created: {entry}");
            assert!(made.insert(name), "{name} was made twice");
        }
        if is_pod && verb == "delete" && code == Some(200) {
            assert!(!made_by_others.contains(name), "{name} is not posse's, and was deleted");
        }
    }
}
