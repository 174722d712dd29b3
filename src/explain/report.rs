//! The report about one executor, from its run's events and from the cluster, as JSON and as text.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::explain::text;
use posse_base::text::one_line;
use posse_wire::control::event_text::{describe, fact, moment, string};
use posse_wire::control::status_json::ExecutorJson;
use posse_wire::k8s::labels::COUNTED;
use posse_wire::k8s::seen_event::SeenEvent;
use posse_wire::pod::details::{ContainerStatus, PodDetails, State};

/// Everything known about one executor.
#[derive(Clone, Debug, Default)]
pub struct ExecutorReport {
    pub id: u64,
    /// The executor in the run's status.
    pub state: Option<ExecutorJson>,
    /// The run's events about the executor.
    pub events: Vec<Value>,
    /// The pod in the cluster.
    pub pod: Option<PodDetails>,
    /// The Kubernetes Events of the pod.
    pub pod_events: Vec<SeenEvent>,
    /// The Workload by which a queue of Kueue holds the pod.
    pub workload: Option<Value>,
    pub log: Vec<String>,
    /// What could not be read, and why.
    pub notes: Vec<String>,
}

impl ExecutorReport {
    /// The pod's name and uid, from the run's status or events.
    pub fn pod_and_uid(&self) -> Option<(String, Option<String>)> {
        let of_state = self.state.as_ref().map(|state| (state.pod.clone(), state.uid.clone()));
        let of_events = || {
            let event = self.events.iter().rev().find(|event| event["pod"].is_string())?;
            Some((string(&event["pod"]).to_owned(), event["uid"].as_str().map(str::to_owned)))
        };
        of_state.or_else(of_events)
    }

    /// The report as JSON.
    pub fn json(&self) -> Value {
        json!({
            "executor": self.id,
            "state": self.state,
            "events": self.events,
            "pod": self.pod.as_ref().map(pod_facts),
            "kubernetes_events": self.pod_events.iter().map(SeenEvent::facts).collect::<Vec<_>>(),
            "workload": self.workload.as_ref().map(workload_facts),
            "log": self.log,
            "notes": self.notes,
        })
    }

    /// The report as text.
    pub fn text(&self, now: Timestamp) -> String {
        let mut lines = vec![self.head(now)];
        for event in &self.events {
            let log = event["log"].as_array().map_or(&[][..], Vec::as_slice);
            let what = match log.is_empty() {
                true => describe(event, now),
                false => "the end of the log:".to_owned(),
            };
            lines.push(format!("  {}  {what}", moment(&event["time"], now)));
            lines.extend(log.iter().map(|line| format!("      | {}", fact(line))));
        }
        if let Some(pod) = &self.pod {
            pod_lines(&pod_facts(pod), now, &mut lines);
        }
        if let Some(workload) = self.workload.as_ref().map(workload_facts) {
            let (name, queue) = (fact(&workload["name"]), fact(&workload["queue"]));
            lines.push(format!("workload {name} in queue {queue}:"));
            condition_lines(&workload, now, &mut lines);
        }
        if !self.pod_events.is_empty() {
            lines.push("events of the pod:".to_owned());
        }
        for event in self.pod_events.iter().map(|event| json!(event.facts())) {
            let n = event["count"].as_u64().filter(|n| *n > 1);
            let n = n.map_or_else(String::new, |n| format!(" ({n} times)"));
            let (what, why) = (fact(&event["reason"]), fact(&event["message"]));
            lines.push(format!("  {}  {what}: {why}{n}", moment(&event["time"], now)));
        }
        if !self.log.is_empty() {
            lines.push("the end of the pod's log:".to_owned());
            lines.extend(self.log.iter().map(|line| format!("  | {line}")));
        }
        lines.extend(self.notes.iter().map(|note| format!("({note})")));
        let lines = lines.iter().map(|line| one_line(line).into_owned() + "\n");
        lines.collect()
    }

    fn head(&self, now: Timestamp) -> String {
        match &self.state {
            Some(state) => text::executor(state, now),
            None if self.events.is_empty() => {
                format!("executor {}: no run of this application was found", self.id)
            }
            None => {
                let group = self.events.iter().find_map(|event| event["group"].as_str());
                format!("executor {} of group {}: deleted", self.id, group.unwrap_or("?"))
            }
        }
    }
}

fn pod_lines(pod: &Value, now: Timestamp, lines: &mut Vec<String>) {
    let mut head = format!("pod {}: {}", fact(&pod["name"]), fact(&pod["phase"]));
    if pod["kept"] == true {
        head.push_str(", retained");
    }
    for (name, before) in [("reason", ", "), ("message", ": "), ("node", ", on node ")] {
        if pod[name].is_string() {
            head.push_str(&format!("{before}{}", fact(&pod[name])));
        }
    }
    if pod["deleting"].is_string() {
        head.push_str(&format!(", terminating until {}", moment(&pod["deleting"], now)));
    }
    if pod["held_by"].is_string() {
        head.push_str(&format!(", held by finalizer {}", fact(&pod["held_by"])));
    }
    lines.push(head);
    for container in pod["containers"].as_array().map_or(&[][..], Vec::as_slice) {
        let mut line = format!("  {} {}: ", fact(&container["kind"]), fact(&container["name"]));
        line.push_str(&fact(&container["state"]));
        if let Some(code) = container["exit_code"].as_i64() {
            line.push_str(&format!(", exit code {code}"));
        }
        for name in ["reason", "message"] {
            if container[name].is_string() {
                line.push_str(&format!(", {}", fact(&container[name])));
            }
        }
        if container["since"].is_string() {
            line.push_str(&format!(", since {}", moment(&container["since"], now)));
        }
        lines.push(format!("{line}, restarts {}", container["restarts"]));
    }
    condition_lines(pod, now, lines);
}

fn condition_lines(facts: &Value, now: Timestamp, lines: &mut Vec<String>) {
    for condition in facts["conditions"].as_array().map_or(&[][..], Vec::as_slice) {
        let mut line = format!("  {} {}", fact(&condition["type"]), fact(&condition["status"]));
        line.push_str(&format!(" since {}", moment(&condition["since"], now)));
        for (name, before) in [("reason", ": "), ("message", ", ")] {
            if condition[name].is_string() {
                line.push_str(&format!("{before}{}", fact(&condition[name])));
            }
        }
        lines.push(line);
    }
}

/// The relevant fields of a pod; never its environment variables, which may be secret.
fn pod_facts(pod: &PodDetails) -> Value {
    let (meta, status) = (&pod.meta, &pod.status);
    let conditions = status.conditions.iter().map(|condition| {
        json!({
            "type": condition.kind, "status": condition.status,
            "reason": given(&condition.reason), "message": given(&condition.message),
            "since": condition.last_transition_time,
        })
    });
    let init = status.init_container_statuses.iter();
    let containers = init
        .map(|one| container_facts(one, "init container"))
        .chain(status.container_statuses.iter().map(|one| container_facts(one, "container")));
    json!({
        "name": meta.name, "uid": meta.uid, "created": meta.creation_timestamp,
        "deleting": meta.deletion_timestamp, "held_by": pod.facts.held_by(),
        "kept": meta.label(COUNTED).is_some(),
        "node": pod.facts.node, "ip": status.pod_ip, "phase": pod.phase(),
        "reason": given(&status.reason), "message": given(&status.message),
        "containers": containers.collect::<Vec<Value>>(),
        "conditions": conditions.collect::<Vec<Value>>(),
    })
}

fn container_facts(container: &ContainerStatus, kind: &str) -> Value {
    let mut facts = json!({
        "name": container.name, "kind": kind, "state": "waiting", "exit_code": null,
        "reason": null, "message": null, "since": null, "restarts": container.restart_count,
    });
    match &container.state {
        State { terminated: Some(end), .. } => {
            facts["state"] = "terminated".into();
            facts["exit_code"] = json!(end.exit_code);
            facts["reason"] = json!(given(&end.reason));
            facts["message"] = json!(given(&end.message));
            facts["since"] = json!(end.finished_at);
        }
        State { running: Some(running), .. } => {
            facts["state"] = "running".into();
            facts["since"] = json!(running.started_at);
        }
        State { waiting: Some(waiting), .. } => {
            facts["reason"] = json!(given(&waiting.reason));
            facts["message"] = json!(given(&waiting.message));
        }
        State { .. } => {}
    }
    facts
}

/// The relevant fields of a Workload.
fn workload_facts(workload: &Value) -> Value {
    let conditions = workload["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let conditions = conditions.iter().map(|one| {
        json!({
            "type": one["type"], "status": one["status"], "reason": filled(&one["reason"]),
            "message": filled(&one["message"]), "since": one["lastTransitionTime"],
        })
    });
    json!({
        "name": workload["metadata"]["name"], "queue": workload["spec"]["queueName"],
        "conditions": conditions.collect::<Vec<Value>>(),
    })
}

/// None for an empty text.
fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// The pod's events by their times. Most of them have whole seconds, so versions sort those of one second.
pub fn in_order(mut events: Vec<SeenEvent>) -> Vec<SeenEvent> {
    events.sort_by_cached_key(|event| {
        let time = event.time().and_then(|time| time.parse::<Timestamp>().ok());
        (time.map(Timestamp::as_second), event.meta.resource_version.parse::<u64>().ok())
    });
    events
}

/// Null for an empty string.
fn filled(value: &Value) -> Value {
    if value.as_str() == Some("") { Value::Null } else { value.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_0: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(s: u32) -> String {
        format!("1970-01-01T00:00:{s:02}Z")
    }

    fn seen(event: &Value) -> SeenEvent {
        SeenEvent::parse(event.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_deleted_pod_names_the_finalizer_that_holds_it() {
        let pod = json!({"metadata": {"name": "a", "uid": "u", "deletionTimestamp": at(9),
            "finalizers": ["team.example.com/hold"]}, "spec": {"containers": []}});
        let pod = PodDetails::parse(pod.to_string().as_bytes()).unwrap();
        let mut lines = Vec::new();
        pod_lines(&pod_facts(&pod), DAY_0, &mut lines);
        assert!(lines[0].ends_with(", held by finalizer team.example.com/hold"), "{lines:?}");
    }

    fn failed() -> ExecutorReport {
        let event = |s: u32, name: &str, more: Value| {
            let mut event = json!({"time": at(s), "event": name, "group": "default",
                "executor": 3, "pod": "w-a-exec-3", "uid": "u3"});
            for (key, value) in more.as_object().expect("a map") {
                event[key] = value.clone();
            }
            event
        };
        ExecutorReport {
            id: 3,
            events: vec![
                event(1, "executor_requested", json!({"uid": null})),
                event(2, "executor_running", json!({"node": "n1", "ip": "10.0.0.1"})),
                event(
                    5,
                    "executor_lost",
                    json!({"reason": "app_error", "budget": "app",
                    "message": "container: exit code 7, Error"}),
                ),
                event(5, "executor_log", json!({"log": ["one", "two"], "message": null})),
            ],
            ..ExecutorReport::default()
        }
    }

    fn pod() -> PodDetails {
        let pod = json!({
            "metadata": {"name": "w-a-exec-3", "uid": "u3", "labels": {COUNTED: "5"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "worker", "env": [{"name": "P", "value": "hidden"}]}]},
            "status": {"phase": "Failed", "reason": "",
                "conditions": [{"type": "Ready", "status": "False", "reason": "PodFailed",
                    "lastTransitionTime": at(5)}],
                "containerStatuses": [{"name": "worker", "restartCount": 0, "state": {"terminated":
                    {"exitCode": 7, "reason": "Error", "message": "a\nb\u{1b}", "finishedAt": at(5)}}}]},
        });
        PodDetails::parse(pod.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_report_has_the_events_and_the_pod() {
        let mut report = failed();
        let events = "executor 3 of group default: deleted\n  \
                    00:00:01 UTC  requested\n  \
                    00:00:02 UTC  running on n1, ip 10.0.0.1\n  \
                    00:00:05 UTC  lost: app_error (budget app): container: exit code 7, Error\n  \
                    00:00:05 UTC  the end of the log:\n      | one\n      | two\n";
        assert_eq!(report.text(DAY_0), events);
        report.pod = Some(pod());
        report.pod_events =
            vec![seen(&json!({"lastTimestamp": at(2), "type": "Normal", "count": 2,
            "reason": "Pulled", "message": "it was there"}))];
        report.log = vec!["last".to_owned()];
        report.notes = vec!["nothing more is known".to_owned()];
        let more = "pod w-a-exec-3: Failed, retained, on node n1\n  \
                    container worker: terminated, exit code 7, Error, a b\\u{1b}, since 00:00:05 \
                    UTC, restarts 0\n  \
                    Ready False since 00:00:05 UTC: PodFailed\n\
                    events of the pod:\n  \
                    00:00:02 UTC  Pulled: it was there (2 times)\n\
                    the end of the pod's log:\n  | last\n(nothing more is known)\n";
        assert_eq!(report.text(DAY_0), format!("{events}{more}"));
        let json = report.json();
        assert_eq!(json["pod"]["containers"][0]["exit_code"], 7);
        assert_eq!(json["events"].as_array().map(Vec::len), Some(4));
        assert!(!json.to_string().contains("hidden"), "environment variables are not printed");
    }

    /// The API server lists events by their names, which end with random characters.
    #[test]
    fn events_of_the_pod_are_sorted_by_time() {
        let event = |name: &str, time: Value, version: &str| {
            json!({"reason": name, "lastTimestamp": null, "eventTime": null, "firstTimestamp": null,
                "metadata": {"resourceVersion": version}})
            .as_object()
            .map(|event| {
                let mut event = event.clone();
                event.extend(time.as_object().cloned().unwrap());
                seen(&Value::from(event))
            })
            .unwrap()
        };
        let events = vec![
            event("killing", json!({"lastTimestamp": at(9)}), "7"),
            event("started", json!({"lastTimestamp": at(3)}), "11"),
            event("created", json!({"firstTimestamp": at(3)}), "9"),
            event("pulled", json!({"lastTimestamp": at(2)}), "8"),
            event("scheduled", json!({"eventTime": "1970-01-01T00:00:02.900000Z"}), "6"),
            event("timeless", json!({}), "1"),
        ];
        let report = ExecutorReport { pod_events: in_order(events), ..failed() };
        let reasons = report.pod_events.iter().map(|event| event.reason.clone().unwrap());
        let want = ["timeless", "scheduled", "pulled", "created", "started", "killing"];
        assert_eq!(reasons.collect::<Vec<_>>(), want);
    }

    #[test]
    fn a_report_names_its_pod() {
        assert_eq!(failed().pod_and_uid(), Some(("w-a-exec-3".into(), Some("u3".into()))));
        let unknown = ExecutorReport { id: 9, ..ExecutorReport::default() };
        assert!(unknown.pod_and_uid().is_none());
        let alone = ExecutorReport { pod: Some(pod()), ..unknown };
        assert!(
            alone
                .text(DAY_0)
                .starts_with("executor 9: no run of this application was found\npod w-a")
        );
    }
}
