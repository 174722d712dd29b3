//! Finds out why an executor was lost, from the structure of its pod's status. A message text decides only
//! what no field says: whether an eviction was due to the pod's own use of disk space or memory, and what made
//! a kubelet end a pod whose containers then ended with 0.

use crate::model::event::{Budget, LossReason};
use crate::model::pod::{ContainerState, End, Phase, Pod};
use posse_base::text::{sanitize, sanitize_end};

/// The maximum length of a loss message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4_096;
/// The condition by which Kueue announces the end of an admitted pod.
pub const TERMINATION_TARGET: &str = "TerminationTarget";
/// The part for a message of the server or a kubelet; its beginning is kept.
const SERVER_MESSAGE_BYTES_MAX: usize = 1_024;
/// The part for a container's termination message; its end is kept, because it is often the end of
/// the log.
const TERMINATION_MESSAGE_BYTES_MAX: usize = 2_048;

/// Why an executor was lost, as far as its pod's status tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub reason: LossReason,
    /// The main container's exit code.
    pub exit_code: Option<i32>,
    /// The messages of the server and the program for a person, in one line.
    pub message: String,
    /// The budget that it is charged to: that of its reason, unless a node is to blame.
    pub budget: Option<Budget>,
}

impl Loss {
    pub fn new(reason: LossReason, exit_code: Option<i32>, message: String) -> Self {
        Self { reason, exit_code, message, budget: reason.budget() }
    }

    /// True if the application, its image or its configuration caused it.
    pub fn caused_by_app(&self) -> bool {
        self.budget.is_some_and(Budget::is_of_app)
    }
}

/// True if nobody knows how the container ended, and its exit code is made up: a kubelet does not find it any more, or
/// containerd its task (`unknownExitReason`), as after a reboot of the node.
pub fn is_made_up(reason: &str, exit_code: Option<i32>) -> bool {
    reason == "ContainerStatusUnknown" || reason == "Unknown" && exit_code == Some(255)
}

/// Classifies the loss from the last known state of the pod. `is_absent`: the pod is gone.
pub fn classify(pod: &Pod, is_absent: bool) -> Loss {
    let default = End::default();
    let end = pod.end.as_deref().unwrap_or(&default);
    Loss::new(reason(pod, end, is_absent), end.exit_code, message(pod, end, is_absent))
}

fn reason(pod: &Pod, end: &End, is_absent: bool) -> LossReason {
    let main = pod.main_container.as_deref();
    match of_disruption(end, main).or_else(|| of_pod_reason(end, main)) {
        Some(LossReason::DeadlineExceeded) if end.has_max_age => return LossReason::MaxAge,
        Some(reason) => return reason,
        None => {}
    }
    // A runtime says so also if the kernel has killed another process of the container. Exit code 0 is the program's
    // own word.
    if &*end.container_reason == "OOMKilled" && end.exit_code != Some(0) {
        return LossReason::OomKilled;
    }
    // The pod was deleted: that is the reason, whatever the container's exit code.
    if pod.deleting {
        return LossReason::Deleted;
    }
    if let Some(init) = &end.init {
        return match &*init.reason {
            "OOMKilled" => LossReason::OomKilled,
            reason if is_made_up(reason, Some(init.exit_code)) => LossReason::Unknown,
            _ => LossReason::ConfigError,
        };
    }
    // Kubelets have many words for it, new ones in each version, and sometimes none: it had no address yet.
    let is_before_start = !end.pod_reason.is_empty() || pod.ip.is_none();
    if end.is_rejected && pod.node.is_some() && is_before_start {
        return LossReason::AdmissionRejected;
    }
    match (pod.container, end.exit_code, pod.phase) {
        (ContainerState::Ended, Some(0), _) => LossReason::Completed,
        (ContainerState::Ended, Some(_), _) => match &*end.container_reason {
            // The container runtime could not start it: the command is missing or not executable.
            "StartError" | "ContainerCannotRun" => LossReason::ConfigError,
            reason if is_made_up(reason, end.exit_code) => LossReason::Unknown,
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

/// The reason of condition `DisruptionTarget` (KEP-3329, since Kubernetes 1.25), or `TERMINATION_TARGET`: they say that
/// the pod did not end by itself.
fn of_disruption(end: &End, main: Option<&str>) -> Option<LossReason> {
    match &*end.disruption {
        "" => None,
        "PreemptionByScheduler" => Some(LossReason::Preempted),
        // The queue took the room back, whatever for.
        TERMINATION_TARGET => Some(LossReason::Preempted),
        "DeletionByPodGC" | "DeletionByTaintManager" => Some(LossReason::NodeLost),
        // It covers several causes, which the pod's own reason distinguishes. Without one the containers ended with 0:
        // the kubelet calls the pod Succeeded, and keeps its reason for Failed to itself.
        "TerminationByKubelet" if end.pod_reason.is_empty() => {
            Some(of_kubelet(&end.disruption_message, main))
        }
        // Unknown reasons are not the application's fault either.
        _ => of_pod_reason(end, main).or(Some(LossReason::Evicted)),
    }
}

/// The message of condition `DisruptionTarget` of a kubelet: for a shutdown of its node and for a critical pod it
/// is a constant (nodeshutdown and preemption there), and for an eviction it begins with the resource.
fn of_kubelet(message: &str, main: Option<&str>) -> LossReason {
    match message {
        "Pod was terminated in response to imminent node shutdown." => LossReason::NodeShutdown,
        "Pod was preempted by Kubelet to accommodate a critical pod." => LossReason::Preempted,
        message if is_over_its_request(message, main) => LossReason::OomKilled,
        _ => LossReason::Evicted,
    }
}

/// True for the messages of a kubelet that evicts a pod for the pod's own limits on disk space. The
/// status has no other sign of it (kubelet, `localStorageEviction`); "The node was low on resource"
/// is what it says of a node without space.
fn is_own_disk_limit(message: &str) -> bool {
    message.contains("exceeded its local ephemeral storage limit")
        || message.contains("Pod ephemeral local storage usage exceeds the total limit")
        || message.contains("Usage of EmptyDir volume")
}

/// True for the message of a kubelet that evicts a pod because the node has little memory, if the main container used
/// more than it asked for. It names only the containers that did (kubelet, `evictionMessage`; until 1.25 it said "which
/// exceeds its request of"). No field of the pod says that. `main`: none if the pod has one container.
fn is_over_its_request(message: &str, main: Option<&str>) -> bool {
    let is_it = |said: &str| {
        let Some((name, use_)) = said.split_once(" was using ") else { return false };
        let is_over =
            use_.contains(", request is ") || use_.contains(", which exceeds its request of ");
        is_over && main.is_none_or(|main| main == name)
    };
    message.starts_with("The node was low on resource: memory.")
        && message.split("Container ").skip(1).any(is_it)
}

/// `status.reason`, set by kubelets and controllers that end a pod.
fn of_pod_reason(end: &End, main: Option<&str>) -> Option<LossReason> {
    let message = &*end.pod_message;
    match &*end.pod_reason {
        "Evicted" if is_own_disk_limit(message) => Some(LossReason::DiskExceeded),
        "Evicted" if is_over_its_request(message, main) => Some(LossReason::OomKilled),
        "Evicted" => Some(LossReason::Evicted),
        "Preempting" => Some(LossReason::Preempted),
        "NodeShutdown" | "Shutdown" | "Terminated" => Some(LossReason::NodeShutdown),
        "NodeLost" => Some(LossReason::NodeLost),
        "DeadlineExceeded" => Some(LossReason::DeadlineExceeded),
        "NodeAffinity" | "UnexpectedAdmissionError" => Some(LossReason::AdmissionRejected),
        // The pod asks for what such nodes do not do. Of a node that is alone with it, `Places` says so.
        "AppArmor"
        | "InitContainerRestartPolicyForbidden"
        | "InvalidNodeInfo"
        | "PodFeatureUnsupported"
        | "PodLevelResourcesNotSupported"
        | "PodOSNotSupported"
        | "PodOSSelectorNodeLabelDoesNotMatch"
        | "SupplementalGroupsPolicyNotSupported"
        | "SysctlForbidden" => Some(LossReason::ConfigError),
        // OutOfcpu, OutOfmemory, OutOfpods, and one for each extended resource.
        reason if reason.starts_with("OutOf") => Some(LossReason::AdmissionRejected),
        _ => None,
    }
}

/// The loss message: how the containers ended, and the messages of the server, the kubelet and the
/// program.
fn message(pod: &Pod, end: &End, is_absent: bool) -> String {
    let mut parts: Vec<String> = Vec::new();
    let is_absent_alone = is_absent && pod.adopter().is_some() && !pod.phase.is_final();
    if (pod.deleting || is_absent_alone) && end.disruption.is_empty() && end.pod_reason.is_empty() {
        parts.push(match pod.adopter() {
            Some(adopter) => format!(
                "deleted by its new controller, {adopter}, whose selector matches the template's labels"
            ),
            None => "the pod was deleted, but not by this run".to_owned(),
        });
    }
    for (name, text) in [
        ("pod", join(&end.pod_reason, &end.pod_message)),
        ("disruption", join(&end.disruption, &end.disruption_message)),
    ] {
        if !text.is_empty() {
            parts.push(format!("{name}: {text}"));
        }
    }
    if let Some(code) = end.exit_code {
        let name = pod.main_container.as_deref();
        let name = name.map_or_else(String::new, |name| format!(" {name}"));
        let how = describe_exit(code, end.signal);
        let said = describe(&end.container_reason, &end.container_message);
        parts.push(format!("container{name}: {how}{said}"));
    }
    if let Some(init) = &end.init {
        let (how, said) =
            (describe_exit(init.exit_code, None), describe(&init.reason, &init.message));
        parts.push(format!("init container {}: {how}{said}", init.name));
    }
    if parts.is_empty() {
        let what = if is_absent { "is gone, or has lost a label of posse" } else { "has ended" };
        parts.push(format!("the pod {what}, and its status does not say why"));
    }
    sanitize(&parts.join("; "), MESSAGE_BYTES_MAX)
}

/// An exit code, with the name of the signal that it stands for.
fn describe_exit(code: i32, signal: Option<i32>) -> String {
    let signal = signal.or_else(|| code.checked_sub(128));
    let name =
        signal.and_then(|n| SIGNALS.split(' ').nth(usize::try_from(n).ok()?.checked_sub(1)?));
    name.map_or_else(|| format!("exit code {code}"), |name| format!("exit code {code} (SIG{name})"))
}

/// The kubelet's reason for the end, and the termination message.
fn describe(reason: &str, message: &str) -> String {
    let (reason, message) = (reason.trim(), sanitize_end(message, TERMINATION_MESSAGE_BYTES_MAX));
    [reason, &message]
        .iter()
        .filter(|text| !text.is_empty())
        .fold(String::new(), |line, text| format!("{line}, {text}"))
}

fn join(reason: &str, message: &str) -> String {
    let message = sanitize(message, SERVER_MESSAGE_BYTES_MAX);
    match (reason.is_empty(), message.is_empty()) {
        (true, _) => message,
        (false, true) => reason.to_owned(),
        (false, false) => format!("{reason}, {message}"),
    }
}

/// Linux's signals from 1. Shells and container runtimes report a signal as exit code 128 plus its
/// number.
const SIGNALS: &str = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT \
                       CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::Rare;
    use crate::testing::pod;

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
    fn reasons_are_read_from_the_status_structure() {
        use ContainerState::{Ended, Running, Waiting};
        use LossReason::{AppError, Completed, Deleted, Evicted, OomKilled, Preempted, Unknown};
        use Phase::{Failed, Pending, Running as PhaseRunning, Succeeded};
        for (row, want) in [
            ((false, false, Failed, Ended, Some(1), "Error", "", ""), AppError),
            ((false, false, Failed, Ended, Some(137), "Error", "", ""), AppError),
            ((false, false, Failed, Ended, Some(137), "OOMKilled", "", ""), OomKilled),
            ((false, false, Succeeded, Ended, Some(0), "Completed", "", ""), Completed),
            // A sidecar still runs: the main container decides.
            ((false, false, PhaseRunning, Ended, Some(0), "Completed", "", ""), Completed),
            ((false, false, PhaseRunning, Ended, Some(3), "Error", "", ""), AppError),
            // Deleted, with and without sidecars, seen before or after the container ended.
            ((true, false, PhaseRunning, Running, None, "", "", ""), Deleted),
            ((true, false, PhaseRunning, Ended, Some(143), "Error", "", ""), Deleted),
            ((true, true, Failed, Ended, Some(143), "Error", "", ""), Deleted),
            ((true, true, Succeeded, Ended, Some(0), "Completed", "", ""), Deleted),
            // The pod is gone, and its status says nothing.
            ((false, true, PhaseRunning, Running, None, "", "", ""), Deleted),
            ((false, true, Pending, Waiting, None, "", "", ""), Deleted),
            // Evicted.
            ((false, false, Failed, Running, None, "", "Evicted", ""), Evicted),
            ((true, false, PhaseRunning, Running, None, "", "", "EvictionByEvictionAPI"), Evicted),
            ((true, false, Failed, Ended, Some(137), "Error", "", "TerminationByKubelet"), Evicted),
            // Kueue takes back the room of an admitted pod, and deletes it.
            ((true, false, PhaseRunning, Running, None, "", "", "TerminationTarget"), Preempted),
            ((true, true, PhaseRunning, Running, None, "", "", "TerminationTarget"), Preempted),
            ((false, false, Failed, Waiting, None, "", "SomethingNew", ""), Unknown),
        ] {
            check(row, want);
        }
    }

    /// A kubelet that ends a pod whose containers then end with code 0 calls it Succeeded, and leaves out the reason.
    #[test]
    fn what_a_kubelet_ended_and_what_ended_with_0_then_is_read_from_the_condition() {
        use LossReason::{Evicted, NodeShutdown, OomKilled, Preempted};
        let low =
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 91Mi. ";
        let over =
            "Container c was using 200Mi, request is 100Mi, has larger consumption of memory. ";
        for (disruption_message, pod_reason, want) in [
            ("Pod was terminated in response to imminent node shutdown.", "", NodeShutdown),
            ("Pod was preempted by Kubelet to accommodate a critical pod.", "", Preempted),
            (low, "", Evicted),
            (&format!("{low}{over}"), "", OomKilled),
            ("", "", Evicted),
            ("what a newer kubelet may say of a node shutdown", "", Evicted),
            // The reason says more than any text.
            ("Pod was terminated in response to imminent node shutdown.", "Evicted", Evicted),
            ("what a newer kubelet may say", "Terminated", NodeShutdown),
        ] {
            let mut pod = pod(1, 1);
            (pod.phase, pod.container) = (Phase::Succeeded, ContainerState::Ended);
            pod.end = Some(Box::new(End {
                exit_code: Some(0),
                container_reason: "Completed".into(),
                pod_reason: pod_reason.into(),
                disruption: "TerminationByKubelet".into(),
                disruption_message: disruption_message.into(),
                ..End::default()
            }));
            assert_eq!(classify(&pod, false).reason, want, "{disruption_message} {pod_reason}");
        }
    }

    #[test]
    fn a_controller_that_took_the_pod_is_named() {
        let mut pod = pod(1, 1);
        let adopter = "ReplicaSet web-abc".into();
        (pod.deleting, pod.rare) = (true, Some(Box::new(Rare { adopter, ..Rare::default() })));
        let words = "deleted by its new controller, ReplicaSet web-abc, whose selector matches the template's labels";
        for is_absent in [false, true] {
            let loss = classify(&pod, is_absent);
            assert_eq!((loss.reason, loss.message.as_str()), (LossReason::Deleted, words));
        }
        // Its delete was not seen.
        pod.deleting = false;
        assert_eq!(classify(&pod, true).message, words);
    }

    #[track_caller]
    #[test]
    fn max_age_charges_no_budget() {
        for (has_max_age, want) in
            [(true, LossReason::MaxAge), (false, LossReason::DeadlineExceeded)]
        {
            let mut pod = pod(1, 1);
            let pod_reason = "DeadlineExceeded".into();
            pod.end = Some(Box::new(End { pod_reason, has_max_age, ..End::default() }));
            assert_eq!(classify(&pod, false).reason, want);
            assert_eq!(want.as_str(), "deadline_exceeded");
            assert_eq!(want.budget().is_none(), has_max_age);
            // A reason that came before the deadline is reported as it is.
            let end = pod.end.as_mut().expect("it was set");
            end.pod_reason = "Evicted".into();
            assert_eq!(classify(&pod, false).reason, LossReason::Evicted);
        }
    }

    fn check_message(change: impl FnOnce(&mut Pod, &mut End), is_absent: bool, want: &str) {
        let (mut pod, mut end) = (pod(1, 1), End::default());
        change(&mut pod, &mut end);
        pod.end = Some(Box::new(end));
        assert_eq!(classify(&pod, is_absent).message, want);
    }

    #[test]
    fn a_message_says_how_the_executor_ended_and_who_says_so() {
        for (code, signal, want) in [
            (0, None, "container: exit code 0"),
            (7, None, "container: exit code 7"),
            (127, None, "container: exit code 127"),
            (128, None, "container: exit code 128"),
            (129, None, "container: exit code 129 (SIGHUP)"),
            (134, None, "container: exit code 134 (SIGABRT)"),
            (137, None, "container: exit code 137 (SIGKILL)"),
            (139, Some(11), "container: exit code 139 (SIGSEGV)"),
            (143, None, "container: exit code 143 (SIGTERM)"),
            (159, None, "container: exit code 159 (SIGSYS)"),
            (160, None, "container: exit code 160"),
            (255, None, "container: exit code 255"),
            (-1, Some(9), "container: exit code -1 (SIGKILL)"),
            (i32::MIN, Some(i32::MIN), "container: exit code -2147483648"),
        ] {
            check_message(|_, end| (end.exit_code, end.signal) = (Some(code), signal), false, want);
        }
        let oom = |pod: &mut Pod, end: &mut End| {
            (end.exit_code, end.container_reason) = (Some(137), "OOMKilled".into());
            end.container_message = "Traceback:\n  File\u{1b}[0m\nMemoryError\n".into();
            pod.main_container = Some("worker".into());
        };
        check_message(
            oom,
            false,
            "container worker: exit code 137 (SIGKILL), OOMKilled, Traceback: File\\u{1b}[0m \
             MemoryError",
        );
        let drained = |pod: &mut Pod, end: &mut End| {
            pod.deleting = true;
            end.disruption = "EvictionByEvictionAPI".into();
            end.disruption_message = "Eviction API: evicting".into();
        };
        check_message(drained, false, "disruption: EvictionByEvictionAPI, Eviction API: evicting");
        let evicted = |_: &mut Pod, end: &mut End| {
            end.pod_reason = "Evicted".into();
            end.pod_message = "The node was low on resource: memory. ".into();
            end.exit_code = Some(137);
        };
        check_message(
            evicted,
            false,
            "pod: Evicted, The node was low on resource: memory.; container: exit code 137 (SIGKILL)",
        );
        let gone = "the pod is gone, or has lost a label of posse, and its status does not say why";
        check_message(|_, _| {}, true, gone);
        check_message(
            |pod, _| pod.deleting = true,
            false,
            "the pod was deleted, but not by this run",
        );
        check_message(|_, _| {}, false, "the pod has ended, and its status does not say why");
    }

    #[test]
    fn a_message_is_bounded_and_keeps_the_end_of_the_termination_message() {
        let mut pod = pod(1, 1);
        pod.end = Some(Box::new(End {
            exit_code: Some(1),
            pod_message: "s".repeat(4_096).into(),
            container_message: format!("{}KeyError: 'id'\n", "x".repeat(4_080)).into(),
            ..End::default()
        }));
        let message = classify(&pod, false).message;
        assert!(message.len() <= MESSAGE_BYTES_MAX, "{}", message.len());
        assert!(message.contains("sss...; container: exit code 1, ...xxx"), "{message}");
        assert!(message.ends_with("xKeyError: 'id'"), "{message}");
    }
}
