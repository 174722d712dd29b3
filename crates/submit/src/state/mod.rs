//! The state of a driver by its Job and pods, and the words for it.

use crate::driver_pod::BIN_VOLUME;
use posse_core::model::pod::{ContainerState, End, Phase, StartProblemKind};
use posse_wire::k8s::job::{Job, JobOutcome};
use posse_wire::k8s::labels::LEADER;
use posse_wire::pod::details::PodDetails;

/// The longest message of the server or kubelet that is printed, in characters.
const MESSAGE_CHARS_MAX: usize = 300;
/// How many of the last lines of a failed driver are shown. The last four or so are posse's own.
const LAST_LINES_MAX: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverState {
    /// It runs on this host, by `posse run`.
    Local,
    /// Its pod does not exist yet or is not running yet.
    Pending,
    Running,
    /// It failed, and the Job will create another pod.
    Retrying,
    /// It is being stopped.
    Stopping,
    /// The Job is suspended.
    Suspended,
    Succeeded,
    Failed,
}

impl DriverState {
    /// True for final states.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The name in outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "Local",
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Retrying => "Retrying",
            Self::Stopping => "Stopping",
            Self::Suspended => "Suspended",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// How a Job finished: true if it succeeded, else false with reason and message. The code that posse has written
/// comes before the condition: a Job fails although its driver has ended with 0, if another container runs on.
pub fn job_end(job: &Job, pods: &[PodDetails]) -> Option<(bool, String)> {
    let is_over = newest(pods).is_none_or(PodDetails::has_ended);
    match (job.outcome(), job.exit_code()) {
        (Some(JobOutcome::Complete), _) => Some((true, String::new())),
        (Some(JobOutcome::Failed(_)), Some(0)) => Some((true, String::new())),
        (Some(JobOutcome::Failed(why)), _) => {
            Some((false, reason_and_message(&why.reason, &why.message)))
        }
        (None, code) => code.filter(|_| is_over).map(|code| (code == 0, String::new())),
    }
}

/// The state of a driver by its pods and its Job, if it has one.
pub fn state(job: Option<&Job>, pods: &[PodDetails]) -> DriverState {
    let newest = newest(pods);
    let by_pod = newest.map_or(DriverState::Pending, |pod| {
        if pod.has_succeeded() {
            DriverState::Succeeded
        } else if pod.has_ended() {
            DriverState::Failed
        } else if pod.facts.deleting {
            DriverState::Stopping
        } else if pod.runs() {
            DriverState::Running
        } else {
            DriverState::Pending
        }
    });
    let Some(job) = job else { return by_pod };
    match job_end(job, pods) {
        Some((true, _)) => DriverState::Succeeded,
        Some((false, _)) => DriverState::Failed,
        // `posse stop` sets parallelism to 0 before it deletes the Job.
        None if job.meta.is_deleting() || job.spec.parallelism == Some(0) => DriverState::Stopping,
        None if job.spec.suspend => DriverState::Suspended,
        // The Job controller has not seen the end of the pod yet, or waits before it creates another.
        None if by_pod.is_over() || by_pod == DriverState::Stopping => DriverState::Retrying,
        None if newest.is_none() && job.status.failed > 0 => DriverState::Retrying,
        None => by_pod,
    }
}

/// The pod that was created last; of a driver's, the one that acts.
pub fn newest<'a>(pods: impl IntoIterator<Item = &'a PodDetails>) -> Option<&'a PodDetails> {
    pods.into_iter().max_by_key(|pod| (leads(pod), age(pod)))
}

/// The pod that was created last, whichever leads.
pub(crate) fn last_created<'a>(
    pods: impl IntoIterator<Item = &'a PodDetails>,
) -> Option<&'a PodDetails> {
    pods.into_iter().max_by_key(|pod| age(pod))
}

/// Of two pods created in the same second, the one that has not finished is newer.
fn age(pod: &PodDetails) -> impl Ord + '_ {
    (&pod.meta.creation_timestamp, !pod.has_ended(), pod.name())
}

/// True if the driver's Service leads to this pod: it has the Lease, or had it last.
pub fn leads(pod: &PodDetails) -> bool {
    pod.meta.label(LEADER.0) == Some(LEADER.1)
}

/// How the main container or the pod ended.
fn end(pod: &PodDetails) -> Option<&End> {
    pod.facts.end.as_deref()
}

/// The exit code of the main container, if it has terminated.
pub fn exit_code(pod: &PodDetails) -> Option<u8> {
    let code = end(pod)?.exit_code?;
    // Exit codes are bytes, but the field may contain any number.
    Some(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
}

/// True if the main container has started, so that there is a log.
pub fn has_begun(pod: &PodDetails) -> bool {
    pod.facts.container != ContainerState::Waiting
}

/// A driver's pod in one line, with the messages of kubelet and scheduler.
pub fn pod_line(pod: &PodDetails) -> String {
    let again = match pod.restarts() {
        0 => String::new(),
        n => format!(", restarted {n} times"),
    };
    let what = if pod.has_succeeded() {
        "has succeeded".to_owned()
    } else if pod.has_ended() {
        format!("has failed: {}", failure(pod))
    } else if pod.facts.deleting {
        "is terminating".to_owned()
    } else if pod.facts.container == ContainerState::Waiting
        && let Some(why) = waits_for(pod)
    {
        format!("is waiting: {why}")
    } else if pod.runs() {
        pod.facts.node.as_ref().map_or_else(|| "runs".to_owned(), |node| format!("runs on {node}"))
    } else {
        "is pending".to_owned()
    };
    let runs_on = match running_rest(pod).as_slice() {
        [] => String::new(),
        rest => format!("; {} runs on in it", rest.join(", ")),
    };
    format!("pod {} {what}{again}{runs_on}", pod.name())
}

/// The containers that run on in a pod whose driver has ended.
pub fn running_rest(pod: &PodDetails) -> Vec<&str> {
    let runs_on = pod.has_ended() && !pod.is_final();
    let running = pod.rest().filter(|one| runs_on && one.state.terminated.is_none());
    running.map(|one| one.name.as_str()).collect()
}

/// Why a pod failed.
fn failure(pod: &PodDetails) -> String {
    let Some(end) = end(pod) else {
        return reason_and_message(&pod.status.reason, &pod.status.message);
    };
    let by_pod = reason_and_message(&end.pod_reason, &end.pod_message);
    match (exit_code(pod), by_pod.is_empty()) {
        (Some(code), true) if is_start_error(end) => {
            let remedy = match pod.spec.program(&pod.main) {
                Some("posse") => {
                    "; put posse on the PATH of the image, or set driver.posse_image, which copies it"
                }
                _ => volume_remedy(pod),
            };
            let why = reason_and_message(&end.container_reason, &end.container_message);
            format!("exit code {code} ({why}){remedy}")
        }
        (Some(code), true) => match &*end.container_reason {
            "" | "Error" => format!("exit code {code}"),
            reason => format!("exit code {code} ({reason})"),
        },
        (Some(code), false) => format!("{by_pod}, exit code {code}"),
        (None, false) => by_pod,
        (None, true) => match &end.init {
            Some(init) => {
                format!("init container {} ended with exit code {}", init.name, init.exit_code)
            }
            None => "no reason given".to_owned(),
        },
    }
}

/// The last lines of a failed driver: what it wrote to its termination message, or the end of its log.
pub fn last_lines(pod: &PodDetails) -> Vec<String> {
    let failed = end(pod).filter(|end| has_failed(pod) && !is_start_error(end));
    let message = failed.map_or("", |end| &*end.container_message);
    let last = message.lines().rev().filter(|line| !line.trim().is_empty()).take(LAST_LINES_MAX);
    let cut = |line: &str| line.chars().take(MESSAGE_CHARS_MAX).collect();
    let mut lines: Vec<String> = last.map(cut).collect();
    lines.reverse();
    lines
}

/// True if a pod has ended because its main container's command is missing or not executable: it is on no node. What
/// else a runtime cannot do, such as a hook for a device, may be one node's fault.
pub fn cannot_start(pod: &PodDetails) -> bool {
    let of_command = |end: &End| {
        let message = end.container_message.to_ascii_lowercase();
        let is_missing = ["executable file", "no such file or directory", "permission denied"];
        message.contains("exec")
            && is_missing.iter().any(|words| message.contains(words))
            && !message.contains("hook")
    };
    has_failed(pod) && end(pod).is_some_and(|end| is_start_error(end) && of_command(end))
}

fn has_failed(pod: &PodDetails) -> bool {
    pod.has_ended() && !pod.has_succeeded()
}

/// The container runtime could not start the command.
fn is_start_error(end: &End) -> bool {
    ["StartError", "ContainerCannotRun"].contains(&&*end.container_reason)
}

/// Since when a node prepares a pod of which it does not say what is missing.
pub fn starts_since(pod: &PodDetails) -> Option<&str> {
    let is_silent = pod.waiting().is_none_or(|waiting| waiting.message.is_empty());
    let is_starting = pod.is_live() && pod.facts.phase == Phase::Pending && is_silent;
    pod.status.start_time.as_deref().filter(|_| is_starting)
}

/// What to do about a container that does not start, if its posse is in a volume that is an image.
pub fn volume_remedy(pod: &PodDetails) -> &'static str {
    match pod.spec.has_image_volume(BIN_VOLUME) {
        true => {
            "; if the node has no image volumes, leave out `volume:` in driver.posse_image: an init \
             container then copies posse"
        }
        false => "",
    }
}

/// The reason, if a container waits for its image. A kubelet changes between two reasons for as long as
/// it tries.
pub fn image_problem(pod: &PodDetails) -> Option<&str> {
    let waiting = pod.waiting().filter(|waiting| waiting.problem() == StartProblemKind::Image);
    waiting.map(|waiting| waiting.reason.as_str())
}

/// Why a pending pod is waiting.
fn waits_for(pod: &PodDetails) -> Option<String> {
    if let Some(waiting) = pod.waiting() {
        let remedy = match image_problem(pod) {
            Some(_) => "; correct the image's name, or let the node pull it",
            None if waiting.message.is_empty() => "",
            None => volume_remedy(pod),
        };
        return Some(reason_and_message(&waiting.reason, &waiting.message) + remedy);
    }
    let mut conditions = pod.status.conditions.iter();
    let unscheduled = conditions.find(|one| one.kind == "PodScheduled" && one.status == "False")?;
    Some(reason_and_message(&unscheduled.reason, &unscheduled.message))
        .filter(|text| !text.is_empty())
}

/// `reason: message` of a condition, a container's state, a pod's status or an Event.
pub fn reason_and_message(reason: &str, message: &str) -> String {
    let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
    match (reason, message.as_str()) {
        (reason, "") => reason.to_owned(),
        ("", message) => message.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
