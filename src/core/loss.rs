//! Owns the reading of an executor's end: why it was lost, from structure and never from text.

use crate::core::event::LossReason;
use crate::core::pod::{ContainerState, End, Phase, Pod};

/// Why an executor was lost, as far as its pod tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub reason: LossReason,
    /// The deciding container's exit code.
    pub exit_code: Option<i32>,
    /// The server's own words, for a person.
    pub message: String,
}

/// Reads the loss off the last that is known of the pod. `is_absent`: it vanished.
#[must_use]
pub fn classify(pod: &Pod, is_absent: bool) -> Loss {
    let default = End::default();
    let end = pod.end.as_deref().unwrap_or(&default);
    Loss { reason: reason(pod, end, is_absent), exit_code: end.exit_code, message: message(end) }
}

fn reason(pod: &Pod, end: &End, is_absent: bool) -> LossReason {
    if let Some(reason) = of_disruption(end).or_else(|| of_pod_reason(&end.pod_reason)) {
        return reason;
    }
    if end.sidecar.is_none() && &*end.container_reason == "OOMKilled" {
        return LossReason::OomKilled;
    }
    // Told to go: however its container ended, it ended for that.
    if pod.deleting {
        return LossReason::Deleted;
    }
    if end.sidecar.is_some() {
        return LossReason::AppError;
    }
    if let Some(init) = &end.init {
        return match &*init.reason {
            "OOMKilled" => LossReason::OomKilled,
            _ => LossReason::ConfigError,
        };
    }
    match (pod.container, end.exit_code, pod.phase) {
        (ContainerState::Ended, Some(0), _) => LossReason::Completed,
        (ContainerState::Ended, Some(_), _) => match &*end.container_reason {
            // The runtime could not start it: a program that is not there, or may not be run.
            "StartError" | "ContainerCannotRun" => LossReason::ConfigError,
            // The kubelet lost sight of it, and made the code up.
            "ContainerStatusUnknown" => LossReason::Unknown,
            _ => LossReason::AppError,
        },
        (_, _, Phase::Succeeded) => LossReason::Completed,
        (_, _, Phase::Failed | Phase::Pending | Phase::Running | Phase::Unknown) => {
            if is_absent {
                LossReason::Deleted
            } else {
                LossReason::Unknown
            }
        }
    }
}

/// The reason of the condition by which servers since 1.25 say that an end is not the pod's doing.
fn of_disruption(end: &End) -> Option<LossReason> {
    match &*end.disruption {
        "" => None,
        "PreemptionByScheduler" => Some(LossReason::Preempted),
        "DeletionByPodGC" | "DeletionByTaintManager" => Some(LossReason::NodeLost),
        // One word for all that a kubelet does; the pod's own reason tells them apart. Words that
        // are not known yet are still no fault of the application.
        _ => of_pod_reason(&end.pod_reason).or(Some(LossReason::Evicted)),
    }
}

/// `status.reason`, set by kubelets and controllers that end a pod.
fn of_pod_reason(reason: &str) -> Option<LossReason> {
    match reason {
        "Evicted" => Some(LossReason::Evicted),
        "Preempting" => Some(LossReason::Preempted),
        "NodeShutdown" | "Shutdown" | "Terminated" => Some(LossReason::NodeShutdown),
        "NodeLost" => Some(LossReason::NodeLost),
        "DeadlineExceeded" => Some(LossReason::DeadlineExceeded),
        "NodeAffinity" | "UnexpectedAdmissionError" => Some(LossReason::AdmissionRejected),
        "AppArmor"
        | "InvalidNodeInfo"
        | "PodLevelResourcesNotSupported"
        | "SupplementalGroupsPolicyNotSupported" => Some(LossReason::ConfigError),
        // OutOfcpu, OutOfmemory, OutOfpods, and one for each resource that somebody may define.
        reason if reason.starts_with("OutOf") => Some(LossReason::AdmissionRejected),
        _ => None,
    }
}

fn message(end: &End) -> String {
    let mut parts: Vec<String> = Vec::new();
    let container = end.sidecar.as_ref().map(|name| format!("container {name}"));
    for (name, text) in [
        ("pod", join(&end.pod_reason, &end.pod_message)),
        ("disruption", end.disruption.to_string()),
        (
            container.as_deref().unwrap_or("container"),
            join(&end.container_reason, &end.container_message),
        ),
    ] {
        if !text.is_empty() {
            parts.push(format!("{name}: {text}"));
        }
    }
    if let Some(signal) = end.signal {
        parts.push(format!("signal {signal}"));
    }
    if let Some(init) = &end.init {
        let words = join(&init.reason, &init.message);
        parts.push(format!("init container {}: exit code {}: {words}", init.name, init.exit_code));
    }
    parts.join("; ")
}

fn join(reason: &str, message: &str) -> String {
    match (reason.is_empty(), message.is_empty()) {
        (true, _) => message.trim_end().to_owned(),
        (false, true) => reason.to_owned(),
        (false, false) => format!("{reason}, {}", message.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::pod;

    /// (deleting, absent, phase, container, exit code, container reason, pod reason, disruption)
    type Row =
        (bool, bool, Phase, ContainerState, Option<i32>, &'static str, &'static str, &'static str);

    #[track_caller]
    fn check(row: Row, want: LossReason) {
        let (
            deleting,
            absent,
            phase,
            container,
            exit_code,
            container_reason,
            pod_reason,
            disruption,
        ) = row;
        let mut pod = pod(1, 1);
        (pod.deleting, pod.phase, pod.container) = (deleting, phase, container);
        pod.end = Some(Box::new(End {
            exit_code,
            container_reason: container_reason.into(),
            pod_reason: pod_reason.into(),
            disruption: disruption.into(),
            ..End::default()
        }));
        assert_eq!(classify(&pod, absent).reason, want, "{row:?}");
    }

    #[test]
    fn reasons_are_read_from_structure() {
        use ContainerState::{Ended, Running, Waiting};
        use LossReason::{AppError, Completed, Deleted, Evicted, OomKilled, Unknown};
        use Phase::{Failed, Pending, Running as PhaseRunning, Succeeded};
        for (row, want) in [
            ((false, false, Failed, Ended, Some(1), "Error", "", ""), AppError),
            ((false, false, Failed, Ended, Some(137), "Error", "", ""), AppError),
            ((false, false, Failed, Ended, Some(137), "OOMKilled", "", ""), OomKilled),
            ((false, false, Succeeded, Ended, Some(0), "Completed", "", ""), Completed),
            // A side-car still runs: the deciding container decides.
            ((false, false, PhaseRunning, Ended, Some(0), "Completed", "", ""), Completed),
            ((false, false, PhaseRunning, Ended, Some(3), "Error", "", ""), AppError),
            // Told to go, with and without side-cars, seen before or after its container ended.
            ((true, false, PhaseRunning, Running, None, "", "", ""), Deleted),
            ((true, false, PhaseRunning, Ended, Some(143), "Error", "", ""), Deleted),
            ((true, true, Failed, Ended, Some(143), "Error", "", ""), Deleted),
            ((true, true, Succeeded, Ended, Some(0), "Completed", "", ""), Deleted),
            // Gone without a trace.
            ((false, true, PhaseRunning, Running, None, "", "", ""), Deleted),
            ((false, true, Pending, Waiting, None, "", "", ""), Deleted),
            // The cluster made room.
            ((false, false, Failed, Running, None, "", "Evicted", ""), Evicted),
            ((true, false, PhaseRunning, Running, None, "", "", "EvictionByEvictionAPI"), Evicted),
            ((true, false, Failed, Ended, Some(137), "Error", "", "TerminationByKubelet"), Evicted),
            ((false, false, Failed, Waiting, None, "", "SomethingNew", ""), Unknown),
        ] {
            check(row, want);
        }
    }
}
