//! The columns and cells of each kind's Table.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::age::{age, human};
use super::fields::{or, texts};
use super::pods;

use crate::schema::kind::Kind;
use crate::storage::object::{array_at, condition_of, text_at};
use crate::time;

/// The cells of an object; the text is the current time.
type Cells = fn(&Value, &str) -> Vec<Value>;

/// Kind, columns, cells. `+`: only in wide tables.
const PRINTERS: [(Kind, &str, Cells); 5] = [
    (
        Kind::Event,
        "Last Seen,Type,Reason,Object,Subobject+,Source+,Message,First Seen+,Count+,Name+",
        event,
    ),
    (Kind::Job, "Name,Status,Completions,Duration,Age,Containers+,Images+,Selector+", job),
    (Kind::Lease, "Name,Holder,Age", lease),
    (
        Kind::Node,
        "Name,Status,Roles,Age,Version,Internal-IP+,External-IP+,OS-Image+,Kernel-Version+,\
         Container-Runtime+",
        node,
    ),
    (
        Kind::Pod,
        "Name,Ready,Status,Restarts,Age,IP+,Node+,Nominated Node+,Readiness Gates+",
        pods::cells,
    ),
];

/// The other kinds have no columns of their own.
fn printer(kind: Kind) -> (&'static str, Cells) {
    let own = PRINTERS.iter().find(|(of, _, _)| *of == kind);
    own.map_or(("Name,Created At", plain), |(_, columns, cells)| (columns, *cells))
}

/// `columnDefinitions` without descriptions, which no client shows.
pub(super) fn columns(kind: Kind) -> Value {
    let column = |word: &str| {
        let name = word.trim_end_matches('+');
        json!({
            "name": name,
            "type": if name == "Created At" { "date" } else { "string" },
            "format": if name == "Name" { "name" } else { "" },
            "description": "",
            "priority": i32::from(word.ends_with('+')),
        })
    };
    printer(kind).0.split(',').map(column).collect()
}

pub(super) fn row(kind: Kind, object: &Value, now: &str) -> Vec<Value> {
    printer(kind).1(object, now)
}

fn name(object: &Value) -> &str {
    text_at(object, "/metadata/name")
}

fn since_created(object: &Value, now: &str) -> String {
    age(text_at(object, "/metadata/creationTimestamp"), now)
}

fn joined(items: &[Value], pointer: &str) -> String {
    let texts: Vec<&str> = items.iter().map(|item| text_at(item, pointer)).collect();
    texts.join(",")
}

fn plain(object: &Value, _now: &str) -> Vec<Value> {
    texts([name(object), text_at(object, "/metadata/creationTimestamp")])
}

fn lease(object: &Value, now: &str) -> Vec<Value> {
    texts([name(object), text_at(object, "/spec/holderIdentity"), &since_created(object, now)])
}

fn event(object: &Value, now: &str) -> Vec<Value> {
    let text = |pointer| text_at(object, pointer);
    let first = age(or(text("/firstTimestamp"), text("/eventTime")), now);
    let last = match (text("/series/lastObservedTime"), text("/lastTimestamp")) {
        ("", "") => first.clone(),
        ("", last) => age(last, now),
        (observed, _) => age(observed, now),
    };
    let number = |pointer| object.pointer(pointer).and_then(Value::as_i64);
    let count = match number("/series/count") {
        Some(count) => count,
        None => number("/count").filter(|count| *count != 0).unwrap_or(1),
    };
    let mut target = text("/involvedObject/kind").to_lowercase();
    if !text("/involvedObject/name").is_empty() {
        target = format!("{target}/{}", text("/involvedObject/name"));
    }
    let component = or(text("/source/component"), text("/reportingComponent"));
    let host = or(text("/source/host"), text("/reportingInstance"));
    let source = match host {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    };
    let mut cells = texts([
        &last,
        text("/type"),
        text("/reason"),
        &target,
        text("/involvedObject/fieldPath"),
        &source,
        text("/message").trim(),
        &first,
    ]);
    cells.extend([count.into(), name(object).into()]);
    cells
}

fn job(object: &Value, now: &str) -> Vec<Value> {
    let number = |pointer| object.pointer(pointer).and_then(Value::as_i64);
    let succeeded = number("/status/succeeded").unwrap_or_default();
    let parallelism = number("/spec/parallelism").unwrap_or_default();
    let completions = match number("/spec/completions") {
        Some(completions) => format!("{succeeded}/{completions}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    };
    let (started, completed) =
        (text_at(object, "/status/startTime"), text_at(object, "/status/completionTime"));
    let duration = time::seconds_between(started, or(completed, now));
    let containers = array_at(object, "/spec/template/spec/containers");
    texts([
        name(object),
        job_status(object),
        &completions,
        &duration.map(human).unwrap_or_default(),
        &since_created(object, now),
        &joined(containers, "/name"),
        &joined(containers, "/image"),
        &selector(&object["spec"]["selector"]),
    ])
}

/// The most telling condition of a job.
fn job_status(job: &Value) -> &'static str {
    let holds = |name: &str| condition_of(job, name) == "True";
    if holds("Complete") {
        "Complete"
    } else if holds("Failed") {
        "Failed"
    } else if job.pointer("/metadata/deletionTimestamp").is_some() {
        "Terminating"
    } else if holds("Suspended") {
        "Suspended"
    } else {
        "Running"
    }
}

/// A label selector in the syntax of `-l`.
fn selector(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let term = |(key, value): (&String, &Value)| format!("{key}={}", text_at(value, ""));
    let mut terms: Vec<String> = labels.map(term).collect();
    for expression in array_at(selector, "/matchExpressions") {
        let key = text_at(expression, "/key");
        let mut values: Vec<&str> =
            array_at(expression, "/values").iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        terms.push(match text_at(expression, "/operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return "<error>".to_owned(),
        });
    }
    terms.sort_by(|a, b| term_key(a).cmp(term_key(b)));
    or(&terms.join(","), "<none>").to_owned()
}

fn term_key(term: &str) -> &str {
    let term = term.trim_start_matches('!');
    term.split(['=', ' ']).next().unwrap_or_default()
}

fn node(object: &Value, now: &str) -> Vec<Value> {
    let mut status = match condition_of(object, "Ready") {
        "" => "Unknown",
        "True" => "Ready",
        _ => "NotReady",
    }
    .to_owned();
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        status.push_str(",SchedulingDisabled");
    }
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    let roles =
        labels.filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        });
    let roles = roles.filter(|role| !role.is_empty()).collect::<BTreeSet<_>>();
    let roles: Vec<&str> = roles.into_iter().collect();
    let address = |kind: &str| {
        let addresses = array_at(object, "/status/addresses");
        let found = addresses.iter().find(|address| text_at(address, "/type") == kind);
        found.map_or("<none>", |address| text_at(address, "/address"))
    };
    let info = |name: &str| text_at(&object["status"]["nodeInfo"], name);
    texts([
        name(object),
        &status,
        or(&roles.join(","), "<none>"),
        &since_created(object, now),
        info("/kubeletVersion"),
        address("InternalIP"),
        address("ExternalIP"),
        or(info("/osImage"), "<unknown>"),
        &match (info("/kernelVersion"), info("/architecture")) {
            ("", _) => "<unknown>".to_owned(),
            (kernel, "") => kernel.to_owned(),
            (kernel, architecture) => format!("{kernel} ({architecture})"),
        },
        or(info("/containerRuntimeVersion"), "<unknown>"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:10:00Z";

    #[track_caller]
    fn check(kind: Kind, mut object: Value, expected: &str) {
        object["metadata"]["name"] = "n".into();
        object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        let cells: Vec<String> = row(kind, &object, NOW)
            .iter()
            .map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned))
            .collect();
        assert_eq!(cells.join("|"), expected, "{kind:?} {object}");
    }

    /// Cells that the comparison with a real server cannot cover: they vary, or the rows have none.
    #[test]
    fn cells_show_the_state() {
        let job = json!({
            "spec": { "completions": 3, "selector": null },
            "status": { "succeeded": 1, "startTime": "2026-01-01T00:05:00Z" },
        });
        check(Kind::Job, job, "n|Running|1/3|5m|10m|||<none>");
    }

    #[test]
    fn sidecars_count_among_the_containers() {
        let status = |name: &str, state: Value| json!({ "name": name, "ready": true, "started": true, "restartCount": 1, "state": state });
        let running = || json!({ "running": {} });
        let mut pod = json!({
            "spec": {
                "initContainers": [
                    { "name": "side", "restartPolicy": "Always" }, { "name": "once" },
                ],
                "containers": [{ "name": "c" }],
            },
            "status": {
                "phase": "Pending",
                "initContainerStatuses": [status("side", running()), status("once", running())],
                "containerStatuses": [status("c", json!({ "waiting": { "reason": "PodInitializing" } }))],
            },
        });
        let rest = "10m|<none>|<none>|<none>|<none>";
        check(Kind::Pod, pod.clone(), &format!("n|1/2|Init:1/2|2|{rest}"));
        pod["status"]["phase"] = "Running".into();
        pod["status"]["initContainerStatuses"][1]["state"] =
            json!({ "terminated": { "exitCode": 0, "reason": "Completed" } });
        pod["status"]["containerStatuses"] = json!([status("c", running())]);
        check(Kind::Pod, pod, &format!("n|2/2|Running|2|{rest}"));
        let gated = json!({
            "spec": { "containers": [{ "name": "c" }] },
            "status": { "phase": "Pending", "conditions": [
                { "type": "PodScheduled", "status": "False", "reason": "SchedulingGated" },
            ]},
        });
        check(Kind::Pod, gated, &format!("n|0/1|SchedulingGated|0|{rest}"));
    }
}
