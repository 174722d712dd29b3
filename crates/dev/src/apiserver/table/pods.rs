//! The cells of a pod's row, above all the STATUS column.

use serde_json::{Value, json};

use super::age::age;
use super::fields::{or, texts};
use crate::schema::kind::Kind;
use crate::storage::object::{array_at, condition_of, text_at};

/// Summary of a pod's containers.
struct Summary {
    word: String,
    ready: usize,
    total: usize,
    restarts: i64,
    /// When the last container that restarted had ended; empty if none has.
    restarted: String,
}

/// The conditions of a row; `None` for a pod that has not ended.
pub(super) fn conditions(kind: Kind, pod: &Value) -> Option<Value> {
    let (reason, message) = match text_at(pod, "/status/phase") {
        "Failed" => ("Failed", "The pod failed."),
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        _ => return None,
    };
    let row = json!([
        { "type": "Completed", "status": "True", "reason": reason, "message": message },
    ]);
    (kind == Kind::Pod).then_some(row)
}

pub(super) fn cells(pod: &Value, now: &str) -> Vec<Value> {
    let summary = summary(pod);
    let ip = text_at(pod, "/status/podIPs/0/ip");
    let ready = format!("{}/{}", summary.ready, summary.total);
    let mut cells = texts([text_at(pod, "/metadata/name"), &ready, &summary.word]);
    cells.push(match summary.restarted.as_str() {
        "" => summary.restarts.to_string().into(),
        last => format!("{} ({} ago)", summary.restarts, age(last, now)).into(),
    });
    cells.extend(texts([
        age(text_at(pod, "/metadata/creationTimestamp"), now).as_str(),
        or(ip, "<none>"),
        or(text_at(pod, "/spec/nodeName"), "<none>"),
        or(text_at(pod, "/status/nominatedNodeName"), "<none>"),
        &gates(pod),
    ]));
    cells
}

fn gates(pod: &Value) -> String {
    let gates = array_at(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = |gate: &&Value| condition_of(pod, text_at(gate, "/conditionType")) == "True";
    format!("{}/{}", gates.iter().filter(open).count(), gates.len())
}

fn summary(pod: &Value) -> Summary {
    let phase = text_at(pod, "/status/phase");
    let mut summary = Summary {
        word: or(text_at(pod, "/status/reason"), phase).to_owned(),
        ready: 0,
        total: array_at(pod, "/spec/containers").len(),
        restarts: 0,
        restarted: String::new(),
    };
    if array_at(pod, "/status/conditions").iter().any(is_gated) {
        summary.word = "SchedulingGated".to_owned();
    }
    summary.total += array_at(pod, "/spec/initContainers").iter().filter(|c| is_sidecar(c)).count();
    if !is_initializing(pod, &mut summary) || condition_of(pod, "Initialized") == "True" {
        summarize_main(pod, &mut summary);
    }
    if pod.pointer("/metadata/deletionTimestamp").is_some() {
        let lost = text_at(pod, "/status/reason") == "NodeLost";
        summary.word = if lost { "Unknown" } else { "Terminating" }.to_owned();
    }
    summary
}

fn is_gated(condition: &Value) -> bool {
    text_at(condition, "/type") == "PodScheduled"
        && text_at(condition, "/reason") == "SchedulingGated"
}

/// True for a sidecar: an init container with restartPolicy Always.
fn is_sidecar(container: &Value) -> bool {
    text_at(container, "/restartPolicy") == "Always"
}

fn count_restarts(summary: &mut Summary, status: &Value) {
    summary.restarts += status["restartCount"].as_i64().unwrap_or_default();
    let ended = text_at(status, "/lastState/terminated/finishedAt");
    // Times in this form are ordered like their texts.
    if *ended > *summary.restarted {
        ended.clone_into(&mut summary.restarted);
    }
}

/// True while an init container has not finished; sets the status text.
fn is_initializing(pod: &Value, summary: &mut Summary) -> bool {
    let containers = array_at(pod, "/spec/initContainers");
    for (i, status) in array_at(pod, "/status/initContainerStatuses").iter().enumerate() {
        count_restarts(summary, status);
        let name = text_at(status, "/name");
        let sidecar = containers.iter().any(|c| text_at(c, "/name") == name && is_sidecar(c));
        let ended = &status["state"]["terminated"];
        if ended["exitCode"] == 0 {
            continue;
        }
        if sidecar && status["started"] == true {
            summary.ready += usize::from(status["ready"] == true);
            continue;
        }
        let waits = text_at(status, "/state/waiting/reason");
        summary.word = if !ended.is_null() {
            format!("Init:{}", termination_text(ended))
        } else if !waits.is_empty() && waits != "PodInitializing" {
            format!("Init:{waits}")
        } else {
            format!("Init:{i}/{}", containers.len())
        };
        return true;
    }
    false
}

/// The reason of a termination, else its signal or exit code.
fn termination_text(terminated: &Value) -> String {
    let number = |name: &str| terminated[name].as_i64().unwrap_or_default();
    match (text_at(terminated, "/reason"), number("signal")) {
        ("", 0) => format!("ExitCode:{}", number("exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Summarizes the main containers; the first one that waits or has ended gives the status text.
fn summarize_main(pod: &Value, summary: &mut Summary) {
    let containers = array_at(pod, "/spec/initContainers");
    let sidecars = array_at(pod, "/status/initContainerStatuses").iter().filter(|status| {
        let name = text_at(status, "/name");
        containers.iter().any(|c| text_at(c, "/name") == name && is_sidecar(c))
    });
    (summary.restarts, summary.restarted) = (0, String::new());
    sidecars.for_each(|status| count_restarts(summary, status));
    let mut runs = false;
    for status in array_at(pod, "/status/containerStatuses").iter().rev() {
        count_restarts(summary, status);
        let waits = text_at(status, "/state/waiting/reason");
        let ended = &status["state"]["terminated"];
        if !waits.is_empty() {
            summary.word = waits.to_owned();
        } else if !ended.is_null() {
            summary.word = termination_text(ended);
        } else if status["ready"] == true && !status["state"]["running"].is_null() {
            runs = true;
            summary.ready += 1;
        }
    }
    if summary.word == "Completed" && runs {
        let ready = condition_of(pod, "Ready") == "True";
        summary.word = if ready { "Running" } else { "NotReady" }.to_owned();
    }
}
