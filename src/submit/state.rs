//! The state of a driver, read from the JSON of its Job and pods.

use serde_json::Value;

use crate::submit::files::CONFIG_DIR;
use crate::wire::labels::{CONTAINER, EXIT_CODE};

/// The longest message of the server or kubelet that is printed, in characters.
const MESSAGE_CHARS_MAX: usize = 300;
/// How many of the last lines of a failed driver are shown. The last four or so are posse's own.
const LAST_LINES_MAX: usize = 10;

/// The state of a driver.
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

/// An object's name; empty if it has none.
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// An object's uid; empty if it has none.
pub fn uid_of(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Kind and name for messages, for example `job wordcount-driver`. Objects from a list have no kind.
pub fn kind_and_name(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or("object").to_ascii_lowercase();
    format!("{kind} {}", name_of(object))
}

pub fn is_ending(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// True if a Job or Pod has finished.
pub fn is_final(workload: &Value) -> bool {
    match workload["status"]["phase"].as_str() {
        Some(phase) => matches!(phase, "Failed" | "Succeeded"),
        None => job_end(workload).is_some(),
    }
}

/// How a Job finished: true if it succeeded, else false with reason and message.
pub fn job_end(job: &Value) -> Option<(bool, String)> {
    let conditions = job["status"]["conditions"].as_array()?;
    conditions.iter().filter(|condition| condition["status"] == "True").find_map(|condition| {
        match condition["type"].as_str() {
            Some("Complete") => Some((true, String::new())),
            Some("Failed") => Some((false, reason_and_message(condition))),
            Some(_) | None => None,
        }
    })
}

/// The state of a driver by its pods and its Job, if it has one.
pub fn state(job: Option<&Value>, pods: &[Value]) -> DriverState {
    let newest = newest(pods);
    let phase = |pod: &Value| pod["status"]["phase"].as_str().unwrap_or_default().to_owned();
    let by_pod = newest.map_or(DriverState::Pending, |pod| match phase(pod).as_str() {
        "Succeeded" => DriverState::Succeeded,
        "Failed" => DriverState::Failed,
        _ if is_ending(pod) => DriverState::Stopping,
        "Running" => DriverState::Running,
        _ => DriverState::Pending,
    });
    let Some(job) = job else { return by_pod };
    match job_end(job) {
        Some((true, _)) => DriverState::Succeeded,
        Some((false, _)) => DriverState::Failed,
        // `posse stop` sets parallelism to 0 before it deletes the Job.
        None if is_ending(job) || job["spec"]["parallelism"] == 0 => DriverState::Stopping,
        None if job["spec"]["suspend"] == true => DriverState::Suspended,
        // The Job controller has not seen the end of the pod yet, or waits before it creates another.
        None if by_pod.is_over() || by_pod == DriverState::Stopping => DriverState::Retrying,
        None if newest.is_none() && job["status"]["failed"].as_u64() > Some(0) => {
            DriverState::Retrying
        }
        None => by_pod,
    }
}

/// The pod that was created last.
pub fn newest(pods: &[Value]) -> Option<&Value> {
    pods.iter().max_by_key(|pod| {
        // Timestamps in the same format can be compared as text.
        let made = pod["metadata"]["creationTimestamp"].as_str().unwrap_or_default();
        // Of two pods created in the same second, the one that has not finished is newer.
        (made, !is_final(pod), name_of(pod))
    })
}

/// The name of the container that runs the driver or executor: by our mount or annotation, else the
/// first container.
pub fn main_container(pod: &Value) -> &str {
    let containers = pod["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = pod["metadata"]["annotations"][CONTAINER].as_str();
    let is_marked = |container: &&Value| {
        let mut mounts = container["volumeMounts"].as_array().into_iter().flatten();
        let runs_posse = mounts.any(|mount| mount["mountPath"] == CONFIG_DIR);
        runs_posse || named.is_some_and(|named| container["name"] == *named)
    };
    let found = containers.iter().find(is_marked).or_else(|| containers.first());
    found.and_then(|container| container["name"].as_str()).unwrap_or_default()
}

/// The status of the main container; null if there is none yet.
pub fn driver_status(pod: &Value) -> &Value {
    let name = main_container(pod);
    let statuses = pod["status"]["containerStatuses"].as_array();
    let found = statuses.and_then(|list| list.iter().find(|status| status["name"] == name));
    found.unwrap_or(&Value::Null)
}

/// The exit code of the main container, if it has terminated.
pub fn exit_code(pod: &Value) -> Option<u8> {
    let code = driver_status(pod)["state"]["terminated"]["exitCode"].as_i64()?;
    // Exit codes are bytes, but the field may contain any number.
    Some(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
}

/// The application's exit code, if posse has ended the Job.
pub fn ended_with(job: &Value) -> Option<u8> {
    job["metadata"]["annotations"][EXIT_CODE].as_str()?.parse().ok()
}

/// True if the main container has started, so that there is a log.
pub fn has_begun(pod: &Value) -> bool {
    let state = &driver_status(pod)["state"];
    !state["running"].is_null() || !state["terminated"].is_null()
}

/// A driver's pod in one line, with the messages of kubelet and scheduler.
pub fn pod_line(pod: &Value) -> String {
    let status = &pod["status"];
    let name = name_of(pod);
    let restarts = driver_status(pod)["restartCount"].as_u64().unwrap_or(0);
    let again = match restarts {
        0 => String::new(),
        n => format!(", restarted {n} times"),
    };
    let what = match status["phase"].as_str().unwrap_or_default() {
        "Succeeded" => "has succeeded".to_owned(),
        "Failed" => format!("has failed: {}", failure(pod)),
        _ if is_ending(pod) => "is terminating".to_owned(),
        "Running" => match pod["spec"]["nodeName"].as_str() {
            Some(node) => format!("runs on {node}"),
            None => "runs".to_owned(),
        },
        _ => match waits_for(pod) {
            Some(why) => format!("is waiting: {why}"),
            None => "is pending".to_owned(),
        },
    };
    format!("pod {name} {what}{again}")
}

/// Why a pod failed.
fn failure(pod: &Value) -> String {
    let terminated = &driver_status(pod)["state"]["terminated"];
    let by_pod = reason_and_message(&pod["status"]);
    match (exit_code(pod), by_pod.is_empty()) {
        (Some(code), true) if is_start_error(terminated) => {
            let remedy = match driver_command(pod) {
                Some("posse") => {
                    "; put posse on the PATH of the image, or set driver.posse_image, which copies it"
                }
                _ => "",
            };
            format!("exit code {code} ({}){remedy}", reason_and_message(terminated))
        }
        (Some(code), true) => {
            let reason = terminated["reason"].as_str().filter(|reason| *reason != "Error");
            let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            format!("exit code {code}{reason}")
        }
        (Some(code), false) => format!("{by_pod}, exit code {code}"),
        (None, false) => by_pod,
        (None, true) => first_failed_init(pod).unwrap_or_else(|| "no reason given".to_owned()),
    }
}

/// The last lines of a failed driver: what it wrote to its termination message, or the end of its log.
pub fn last_lines(pod: &Value) -> Vec<String> {
    let terminated = &driver_status(pod)["state"]["terminated"];
    let has_failed = pod["status"]["phase"] == "Failed" && !is_start_error(terminated);
    let message = terminated["message"].as_str().filter(|_| has_failed).unwrap_or_default();
    let last = message.lines().rev().filter(|line| !line.trim().is_empty()).take(LAST_LINES_MAX);
    let cut = |line: &str| line.chars().take(MESSAGE_CHARS_MAX).collect();
    let mut lines: Vec<String> = last.map(cut).collect();
    lines.reverse();
    lines
}

/// True if a pod has ended because the command of its main container cannot be started.
pub fn cannot_start(pod: &Value) -> bool {
    pod["status"]["phase"] == "Failed" && is_start_error(&driver_status(pod)["state"]["terminated"])
}

/// The container runtime could not start the command.
fn is_start_error(terminated: &Value) -> bool {
    ["StartError", "ContainerCannotRun"].iter().any(|reason| terminated["reason"] == *reason)
}

/// The first word of the main container's command.
fn driver_command(pod: &Value) -> Option<&str> {
    let name = main_container(pod);
    let mut containers = pod["spec"]["containers"].as_array()?.iter();
    containers.find(|container| container["name"] == *name)?["command"][0].as_str()
}

fn first_failed_init(pod: &Value) -> Option<String> {
    let statuses = pod["status"]["initContainerStatuses"].as_array()?;
    let failed = statuses.iter().find_map(|status| {
        let code = status["state"]["terminated"]["exitCode"].as_i64().filter(|code| *code != 0)?;
        Some((status["name"].as_str()?, code))
    });
    failed.map(|(name, code)| format!("init container {name} ended with exit code {code}"))
}

/// The state of the first container that waits for something.
fn waiting(pod: &Value) -> Option<&Value> {
    let containers = ["initContainerStatuses", "containerStatuses"];
    let lists = containers.iter().filter_map(|key| pod["status"][*key].as_array());
    let mut waiting = lists.flatten().map(|one| &one["state"]["waiting"]);
    // PodInitializing only says that init containers are not done.
    waiting.find(|one| one["reason"].is_string() && one["reason"] != "PodInitializing")
}

/// The reason, if a container waits for its image. A kubelet changes between two reasons for as long as
/// it tries.
pub fn image_problem(pod: &Value) -> Option<&str> {
    const REASONS: [&str; 4] =
        ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];
    waiting(pod)?["reason"].as_str().filter(|reason| REASONS.contains(reason))
}

/// Why a pending pod is waiting.
fn waits_for(pod: &Value) -> Option<String> {
    let remedy = match image_problem(pod) {
        Some(_) => "; correct the image's name, or let the node pull it",
        None => "",
    };
    let by_container = waiting(pod).map(|one| format!("{}{remedy}", reason_and_message(one)));
    let status = &pod["status"];
    by_container.or_else(|| {
        let conditions = status["conditions"].as_array()?;
        let unscheduled = conditions
            .iter()
            .find(|one| one["type"] == "PodScheduled" && one["status"] == "False")?;
        Some(reason_and_message(unscheduled)).filter(|text| !text.is_empty())
    })
}

/// `reason: message` of a condition, a container's state or a pod's status.
pub fn reason_and_message(status: &Value) -> String {
    let text = |key: &str| status[key].as_str().unwrap_or_default();
    let message: String = text("message").chars().take(MESSAGE_CHARS_MAX).collect();
    match (text("reason"), message.as_str()) {
        (reason, "") => reason.to_owned(),
        ("", message) => message.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests;
