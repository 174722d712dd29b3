//! Owns what the node writes into a pod's status: phase, conditions, container states, as a kubelet
//! reports them.

use serde_json::{Value, json};

use super::run::{Container, Ended, Run, State};
use crate::dev::object::object_mut;
use crate::dev::write::set_condition;

/// The address of every node.
pub(super) const HOST_IP: &str = "127.0.0.1";

/// Writes the run into the pod's status.
pub(super) fn write(run: &Run, pod: &mut Value, now: &str) {
    let phase = run.phase();
    conditions(run, phase, pod, now);
    let ip = run.ip.to_string();
    let status = object_mut(pod, "status");
    status.insert("phase".to_owned(), phase.into());
    status.insert("hostIP".to_owned(), HOST_IP.into());
    status.insert("podIP".to_owned(), ip.as_str().into());
    status.insert("podIPs".to_owned(), json!([{ "ip": ip }]));
    status.insert("startTime".to_owned(), run.since.as_str().into());
    let statuses = |containers: &[Container], init: bool| -> Value {
        containers.iter().map(|container| container_status(container, &run.uid, init)).collect()
    };
    if run.n_init > 0 {
        status.insert("initContainerStatuses".to_owned(), statuses(run.init(), true));
    }
    status.insert("containerStatuses".to_owned(), statuses(run.main(), false));
}

fn conditions(run: &Run, phase: &str, pod: &mut Value, now: &str) {
    let names = |containers: &[Container], done: fn(&Container) -> bool| -> String {
        let names = containers.iter().filter(|c| !done(c)).map(|c| c.name.as_str());
        names.collect::<Vec<_>>().join(" ")
    };
    if run.is_initialized() {
        let reason = if phase == "Succeeded" { "PodCompleted" } else { "" };
        set_condition(pod, "Initialized", "True", reason, "", now);
    } else {
        let done = |container: &Container| match &container.state {
            State::Ended(ended) => ended.exit_code == 0,
            State::Running { .. } | State::Waiting { .. } => false,
        };
        let message = format!("containers with incomplete status: [{}]", names(run.init(), done));
        set_condition(pod, "Initialized", "False", "ContainersNotInitialized", &message, now);
    }
    let unready = names(run.main(), Container::is_running);
    for condition in ["Ready", "ContainersReady"] {
        match (phase, unready.as_str()) {
            ("Succeeded", _) => set_condition(pod, condition, "False", "PodCompleted", "", now),
            ("Failed", _) => set_condition(pod, condition, "False", "PodFailed", "", now),
            (_, "") => set_condition(pod, condition, "True", "", "", now),
            (_, unready) => {
                let message = format!("containers with unready status: [{unready}]");
                set_condition(pod, condition, "False", "ContainersNotReady", &message, now);
            }
        }
    }
}

fn container_status(container: &Container, uid: &str, init: bool) -> Value {
    let id = format!("posse-dev://{uid}/{}/{}", container.name, container.restarts);
    let ran = container.is_running() || matches!(container.state, State::Ended(_));
    let ready = match (&container.state, init) {
        (State::Running { .. }, init) => !init,
        (State::Ended(ended), true) => ended.exit_code == 0,
        (State::Ended(_), false) | (State::Waiting { .. }, _) => false,
    };
    let mut status = json!({
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": ready,
        "restartCount": container.restarts,
        "state": state(container, &id),
        "lastState": {},
    });
    if !init {
        status["started"] = container.is_running().into();
    }
    if ran {
        status["containerID"] = id.into();
    }
    if let Some(last) = &container.last {
        let id = format!("posse-dev://{uid}/{}/{}", container.name, container.restarts.max(1) - 1);
        status["lastState"] = json!({ "terminated": ended(last, &id) });
    }
    status
}

fn state(container: &Container, id: &str) -> Value {
    match &container.state {
        State::Ended(end) => json!({ "terminated": ended(end, id) }),
        State::Running { since, .. } => json!({ "running": { "startedAt": since } }),
        State::Waiting { reason, message } if message.is_empty() => {
            json!({ "waiting": { "reason": reason } })
        }
        State::Waiting { reason, message } => {
            json!({ "waiting": { "reason": reason, "message": message } })
        }
    }
}

fn ended(end: &Ended, id: &str) -> Value {
    let mut value = json!({
        "exitCode": end.exit_code,
        "reason": end.reason,
        "startedAt": end.started_at,
        "finishedAt": end.finished_at,
        "containerID": id,
    });
    if !end.message.is_empty() {
        value["message"] = end.message.as_str().into();
    }
    value
}
