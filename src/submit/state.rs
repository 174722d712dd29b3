//! Owns what an application's Job and pods say about it: its state, how its driver ended, and what
//! that is in a line. Pure functions over the server's own JSON.

use serde_json::Value;

use crate::submit::files::CONFIG_DIR;
use crate::wire::labels::CONTAINER;
/// The longest message of a server or kubelet that goes into a line, in characters.
const MESSAGE_CHARS_MAX: usize = 300;

/// The state of a driver in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its pod is not there yet, or does not run yet.
    Pending,
    Running,
    /// It failed, and the Job is about to try again.
    Retrying,
    /// It was told to end.
    Stopping,
    /// The Job is suspended.
    Suspended,
    Succeeded,
    Failed,
}

impl State {
    /// Nothing comes after it.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// As it is printed.
    pub fn as_str(self) -> &'static str {
        match self {
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

/// An object's name; empty where there is none.
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// An object's uid; empty where there is none.
pub fn uid_of(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// An object as messages name it: `job wordcount-driver`. A Job's or Pod's from a list say no kind.
pub fn kind_and_name(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or("object").to_ascii_lowercase();
    format!("{kind} {}", name_of(object))
}

fn is_ending(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// True for a Job or Pod that is over.
pub fn is_final(workload: &Value) -> bool {
    match workload["status"]["phase"].as_str() {
        Some(phase) => matches!(phase, "Failed" | "Succeeded"),
        None => job_end(workload).is_some(),
    }
}

/// How a Job ended: whether well, and the reason and message where not.
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

/// The state of a driver from its Job, where it has one, and its pods.
pub fn state(job: Option<&Value>, pods: &[Value]) -> State {
    let newest = newest(pods);
    let phase = |pod: &Value| pod["status"]["phase"].as_str().unwrap_or_default().to_owned();
    let by_pod = newest.map_or(State::Pending, |pod| match phase(pod).as_str() {
        "Succeeded" => State::Succeeded,
        "Failed" => State::Failed,
        _ if is_ending(pod) => State::Stopping,
        "Running" => State::Running,
        _ => State::Pending,
    });
    let Some(job) = job else { return by_pod };
    match job_end(job) {
        Some((true, _)) => State::Succeeded,
        Some((false, _)) => State::Failed,
        // `posse stop` has it have no pods before it deletes it.
        None if is_ending(job) || job["spec"]["parallelism"] == 0 => State::Stopping,
        None if job["spec"]["suspend"] == true => State::Suspended,
        // The controller has yet to see it, or waits before it makes another pod.
        None if by_pod.is_over() || by_pod == State::Stopping => State::Retrying,
        None if newest.is_none() && job["status"]["failed"].as_u64() > Some(0) => State::Retrying,
        None => by_pod,
    }
}

/// The pod that was made last.
pub fn newest(pods: &[Value]) -> Option<&Value> {
    pods.iter().max_by_key(|pod| {
        // Times of one form compare as texts do.
        let made = pod["metadata"]["creationTimestamp"].as_str().unwrap_or_default();
        // Of two within a second the one that has not ended is the later one.
        (made, !is_final(pod), name_of(pod))
    })
}

/// The container of a driver's or executor's pod that matters: by its mark, else the first.
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

/// The status of the driver's container; null where there is none yet.
pub fn driver_status(pod: &Value) -> &Value {
    let name = main_container(pod);
    let statuses = pod["status"]["containerStatuses"].as_array();
    let found = statuses.and_then(|list| list.iter().find(|status| status["name"] == name));
    found.unwrap_or(&Value::Null)
}

/// The driver's exit code, where it has ended.
pub fn exit_code(pod: &Value) -> Option<u8> {
    let code = driver_status(pod)["state"]["terminated"]["exitCode"].as_i64()?;
    // Codes are bytes, but a field is what somebody wrote into it.
    Some(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
}

/// True once the driver's container has begun: there is a log.
pub fn has_begun(pod: &Value) -> bool {
    let state = &driver_status(pod)["state"];
    !state["running"].is_null() || !state["terminated"].is_null()
}

/// A driver's pod in a line, in the kubelet's and scheduler's own words.
pub fn pod_line(pod: &Value) -> String {
    let status = &pod["status"];
    let name = name_of(pod);
    let restarts = driver_status(pod)["restartCount"].as_u64().unwrap_or(0);
    let again = match restarts {
        0 => String::new(),
        n => format!(", restarted {n} times"),
    };
    let what = match status["phase"].as_str().unwrap_or_default() {
        "Succeeded" => "has ended well".to_owned(),
        "Failed" => format!("has failed: {}", failure(pod)),
        _ if is_ending(pod) => "is ending".to_owned(),
        "Running" => match pod["spec"]["nodeName"].as_str() {
            Some(node) => format!("runs on {node}"),
            None => "runs".to_owned(),
        },
        _ => match waits_for(pod) {
            Some(why) => format!("waits: {why}"),
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
        (Some(code), true) => {
            let reason = terminated["reason"].as_str().filter(|reason| *reason != "Error");
            let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            format!("exit code {code}{reason}")
        }
        (Some(code), false) => format!("{by_pod}, exit code {code}"),
        (None, false) => by_pod,
        (None, true) => first_failed_init(pod).unwrap_or_else(|| "it does not say why".to_owned()),
    }
}

fn first_failed_init(pod: &Value) -> Option<String> {
    let statuses = pod["status"]["initContainerStatuses"].as_array()?;
    let failed = statuses.iter().find_map(|status| {
        let code = status["state"]["terminated"]["exitCode"].as_i64().filter(|code| *code != 0)?;
        Some((status["name"].as_str()?, code))
    });
    failed.map(|(name, code)| format!("init container {name} ended with exit code {code}"))
}

/// What a pending pod waits for.
fn waits_for(pod: &Value) -> Option<String> {
    let status = &pod["status"];
    let containers = ["initContainerStatuses", "containerStatuses"];
    let lists = containers.iter().filter_map(|key| status[*key].as_array());
    let waiting = lists.flatten().map(|one| &one["state"]["waiting"]);
    // That others are initialising is no reason of its own.
    let told = waiting.filter(|waiting| waiting["reason"] != "PodInitializing");
    let by_container = told.map(reason_and_message).find(|text| !text.is_empty());
    by_container.or_else(|| {
        let conditions = status["conditions"].as_array()?;
        let unscheduled = conditions
            .iter()
            .find(|one| one["type"] == "PodScheduled" && one["status"] == "False")?;
        Some(reason_and_message(unscheduled)).filter(|text| !text.is_empty())
    })
}

/// `reason: message` of a condition, a container's state or a pod's status.
pub fn reason_and_message(told: &Value) -> String {
    let text = |key: &str| told[key].as_str().unwrap_or_default();
    let message: String = text("message").chars().take(MESSAGE_CHARS_MAX).collect();
    match (text("reason"), message.as_str()) {
        (reason, "") => reason.to_owned(),
        ("", message) => message.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests;
