//! Writes a pod's status as a kubelet reports it: phase, conditions and container states.

use serde_json::{Value, json};

use super::run::{Container, ContainerState, PodRun, Role, Terminated};
use crate::storage::object::object_mut;
use crate::storage::pods::set_condition;

/// The address of every node: they all run on this machine.
pub(super) const HOST_IP: &str = "127.0.0.1";

/// Updates the status of `pod`.
pub(super) fn write(run: &PodRun, pod: &mut Value, now: &str) {
    let phase = run.phase();
    conditions(run, phase, pod, now);
    let ip = run.ip.to_string();
    let status = object_mut(pod, "status");
    status.insert("phase".to_owned(), phase.into());
    status.insert("hostIP".to_owned(), HOST_IP.into());
    status.insert("podIP".to_owned(), ip.as_str().into());
    status.insert("podIPs".to_owned(), json!([{ "ip": ip }]));
    if let Some((reason, message)) = &run.failed {
        status.insert("reason".to_owned(), (*reason).into());
        status.insert("message".to_owned(), message.as_str().into());
    }
    status.insert("startTime".to_owned(), run.since.as_str().into());
    let statuses = |containers: &[Container]| -> Value {
        containers.iter().map(|container| container_status(container, &run.uid)).collect()
    };
    if run.n_init > 0 {
        status.insert("initContainerStatuses".to_owned(), statuses(run.init()));
    }
    status.insert("containerStatuses".to_owned(), statuses(run.main()));
}

fn conditions(run: &PodRun, phase: &str, pod: &mut Value, now: &str) {
    let names_of = |is_listed: fn(&&Container) -> bool| -> String {
        let listed = run.containers.iter().filter(is_listed).map(|c| c.name.as_str());
        listed.collect::<Vec<_>>().join(" ")
    };
    if run.is_initialized() {
        let reason = if phase == "Succeeded" { "PodCompleted" } else { "" };
        set_condition(pod, "Initialized", "True", reason, "", now);
    } else {
        let waited_for = names_of(|c| c.role != Role::Main && !c.is_passed());
        let message = format!("containers with incomplete status: [{waited_for}]");
        set_condition(pod, "Initialized", "False", "ContainersNotInitialized", &message, now);
    }
    let unready = names_of(|c| c.role != Role::Init && !c.ready);
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

fn container_status(container: &Container, uid: &str) -> Value {
    let id = format!("posse-dev://{uid}/{}/{}", container.name, container.restarts);
    let has_run =
        container.is_running() || matches!(container.state, ContainerState::Terminated(_));
    let is_init = container.role == Role::Init;
    let ready = if is_init { container.exit_code() == Some(0) } else { container.ready };
    let mut status = json!({
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": ready,
        "restartCount": container.restarts,
        "state": state(container, &id),
        "lastState": {},
    });
    if !is_init {
        status["started"] = container.started.into();
    }
    if let Some(last) = &container.last {
        // `restarts` grows when the restart happens, not while the container waits for it.
        let is_waiting = container.restarting && !has_run;
        let last_number = container.restarts - u32::from(!is_waiting).min(container.restarts);
        let last_id = format!("posse-dev://{uid}/{}/{last_number}", container.name);
        status["lastState"] = json!({ "terminated": terminated(last, &last_id) });
        status["containerID"] = last_id.into();
    }
    if has_run {
        status["containerID"] = id.into();
    }
    status
}

fn state(container: &Container, id: &str) -> Value {
    match &container.state {
        ContainerState::Terminated(end) => json!({ "terminated": terminated(end, id) }),
        ContainerState::Running { since, .. } => json!({ "running": { "startedAt": since } }),
        ContainerState::Waiting { reason, message } if message.is_empty() => {
            json!({ "waiting": { "reason": reason } })
        }
        ContainerState::Waiting { reason, message } => {
            json!({ "waiting": { "reason": reason, "message": message } })
        }
    }
}

fn terminated(end: &Terminated, id: &str) -> Value {
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
