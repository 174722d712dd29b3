//! The requests of actions, and what their answers mean.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use log::debug;

use crate::claims::SlotClaims;
use crate::events::EventLog;
use crate::pod_groups::PodGroups;
use crate::task_outputs::{OUTPUT_BYTES_MAX, TaskOutputs};
use posse_core::model::action::{Action, Patch};
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::input::{Input, List, ListSource, Watermark};
use posse_core::model::pod_text::{PodOverrides, PodText};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::pods::Pods;
use posse_kube::http::{Request, Response};
use posse_wire::control::task;
use posse_wire::k8s::kueue;
use posse_wire::k8s::labels;
use posse_wire::k8s::status::Verb;
use posse_wire::pod::draining;

/// Time-out for reading a pod's log; the pod is deleted only after that.
const LOG_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a mark or a delete waits until the file of events has what led to it. After a kill in between
/// the next run reports it again. A pipe that nobody reads must not hold up a run.
const EVENT_WAIT: Duration = Duration::from_secs(2);

/// What the requests need.
#[derive(Debug)]
pub struct Requests {
    pub pods: Pods,
    pub claims: SlotClaims,
    pub pod_groups: Arc<PodGroups>,
    pub log: Arc<EventLog>,
    /// None: the output of tasks is not kept.
    pub outputs: Option<Arc<TaskOutputs>>,
}

impl Requests {
    /// The request of an action that is one request about one pod, and can be sent now. `input` reads its answer.
    pub(super) fn request(&self, action: &Action) -> Option<Request<'static>> {
        if let Action::Create { id, group, slot, overrides, pod, .. } = action
            && !(self.pod_groups.is_ready(group)
                && pod.render_claims(*id, *slot, overrides).is_empty())
        {
            return None;
        }
        if follows_events(action) && !self.log.is_written() {
            return None;
        }
        self.pod_request(action).ok().flatten()
    }

    /// The request of an action that is one request about one pod.
    ///
    /// # Errors
    /// The pod cannot be written down.
    fn pod_request(&self, action: &Action) -> Result<Option<Request<'static>>, Refusal> {
        let pods = &self.pods;
        Ok(Some(match action {
            Action::Create { id, slot, overrides, pod, .. } => {
                pods.create(body(pod, *id, *slot, overrides)?)
            }
            Action::Get { id, .. } | Action::ReadPod { id, .. } => {
                pods.get(&pods.selection().pod_name(id.0))
            }
            Action::Delete { uid, name, grace_s } => pods.delete(name, Some(uid), *grace_s),
            Action::Patch { uid, name, patch } => pods.patch(name, patch_body(uid, patch)),
            Action::Protect { uid, name, is_protected, .. } => {
                pods.patch(name, protect_body(uid, *is_protected))
            }
            Action::Resize { uid, name, step, pod, .. } => {
                pods.resize(name, resize_body(uid, pod, *step))
            }
            Action::DeleteAll { .. }
            | Action::GetNode { .. }
            | Action::KeepOutput { .. }
            | Action::List { .. }
            | Action::Poll
            | Action::ReadLog { .. }
            | Action::Relist
            | Action::ReserveIds { .. } => return Ok(None),
        }))
    }

    /// What the answer to the request of an action says. `None`: the action is not one request about one pod.
    pub(super) fn input(&self, action: Action, answer: Result<Response, Refusal>) -> Option<Input> {
        let pods = &self.pods;
        Some(match action {
            Action::Create { id, watermark, .. } => {
                let answer = pods.read(Verb::Create, answer);
                log_answer("create", &id, answer.as_ref().err());
                Input::Created { id, watermark, answer }
            }
            Action::Get { id, watermark } => {
                let answer = pods.read(Verb::Get, answer);
                log_answer("get", &id, answer.as_ref().err());
                Input::Got { id, watermark, answer }
            }
            Action::ReadPod { id, watermark } => {
                let answer = pods.read(Verb::Get, answer);
                log_answer("read", &id, answer.as_ref().err());
                Input::PodRead { id, watermark, answer }
            }
            Action::Delete { uid, name, .. } => {
                let answer = pods.read_deleted(answer);
                log_answer("delete", &name, answer.as_ref().err());
                Input::Deleted { uid, answer }
            }
            Action::Patch { uid, name, .. } => {
                let answer = pods.read(Verb::Patch, answer).map(drop);
                log_answer("patch", &name, answer.as_ref().err());
                Input::Patched { uid, answer }
            }
            Action::Protect { id, uid, name, .. } => {
                let answer = pods.read(Verb::Patch, answer).map(drop);
                log_answer("protect", &name, answer.as_ref().err());
                Input::Protected { id, uid, answer }
            }
            Action::Resize { id, uid, name, .. } => {
                let answer = pods.read(Verb::Patch, answer).map(drop);
                log_answer("resize", &name, answer.as_ref().err());
                Input::Resized { id, uid, answer }
            }
            Action::DeleteAll { .. }
            | Action::GetNode { .. }
            | Action::KeepOutput { .. }
            | Action::List { .. }
            | Action::Poll
            | Action::ReadLog { .. }
            | Action::Relist
            | Action::ReserveIds { .. } => return None,
        })
    }

    /// Carries out one action, and may wait for the server several times. `None`: the action is not an API request.
    pub(super) fn perform(&self, action: Action) -> Option<Input> {
        if follows_events(&action) {
            self.log.wait_written(EVENT_WAIT);
        }
        let prepared = self.prepare(&action);
        let answer = match prepared.and_then(|()| self.pod_request(&action)) {
            Ok(Some(request)) => self.pods.send(&request),
            Ok(None) => return self.perform_other(action),
            Err(refusal) => Err(refusal),
        };
        self.input(action, answer)
    }

    /// Creates what a pod needs before it.
    fn prepare(&self, action: &Action) -> Result<(), Refusal> {
        let Action::Create { id, group, slot, overrides, pod, .. } = action else { return Ok(()) };
        self.pod_groups.ensure(group)?;
        self.claims.ensure(&pod.render_claims(*id, *slot, overrides))
    }

    /// Carries out an action that is not one request about one pod.
    fn perform_other(&self, action: Action) -> Option<Input> {
        let Self { pods, outputs, .. } = self;
        Some(match action {
            Action::DeleteAll { grace_s, keep_counted } => {
                let extra = keep_counted.then(|| format!("!{}", labels::COUNTED));
                let answer = pods.delete_collection(Some(grace_s), extra.as_deref());
                log_answer("delete all", &pods.selection().selector(), answer.as_ref().err());
                Input::DeletedAll { answer }
            }
            Action::GetNode { name } => {
                let answer = pods.get_node(&name);
                log_answer("get node", &name, answer.as_ref().err());
                Input::GotNode { name, answer }
            }
            Action::List { watermark } => list(pods, watermark),
            Action::ReadLog { uid, name, container, n_lines } => {
                let answer = pods.log(&name, container.as_deref(), n_lines, LOG_TIMEOUT);
                log_answer("log of", &name, answer.as_ref().err());
                Input::LogRead { uid, answer }
            }
            Action::KeepOutput { output, n_skipped } => {
                if let Some(outputs) = outputs {
                    let container = output.container.as_deref();
                    let read = || pods.log_end(&output.pod, container, OUTPUT_BYTES_MAX);
                    outputs.keep(&output, n_skipped, read);
                }
                Input::OutputKept { uid: output.uid }
            }
            // Performed by other threads: the poller, the watcher and the lease thread. The rest are requests about
            // one pod.
            Action::Poll
            | Action::Relist
            | Action::ReserveIds { .. }
            | Action::Create { .. }
            | Action::Delete { .. }
            | Action::Get { .. }
            | Action::Patch { .. }
            | Action::Protect { .. }
            | Action::ReadPod { .. }
            | Action::Resize { .. } => return None,
        })
    }
}

/// True for what must not happen before the file of events has what led to it.
fn follows_events(action: &Action) -> bool {
    matches!(action, Action::Delete { .. } | Action::Patch { .. })
}

/// The LIST of the stop.
fn list(pods: &Pods, watermark: Watermark) -> Input {
    match pods.list() {
        Ok(listed) => {
            Input::List(List::whole(ListSource::Stop, listed.pods, listed.version, watermark))
        }
        Err(refusal) => {
            log_answer("list", &"for the shutdown", Some(&refusal));
            Input::ListRefused { refusal }
        }
    }
}

/// The body of the POST that creates an executor.
fn body(
    pod: &PodText,
    id: ExecutorId,
    slot: u32,
    overrides: &PodOverrides,
) -> Result<Vec<u8>, Refusal> {
    let body = pod.render(id, slot, overrides);
    let Some(run) = &overrides.task else { return Ok(body) };
    task::lay_over(&body, run).map_err(|error| {
        Refusal::local(RefusalClass::Invalid, format!("the template gives no JSON: {error}"))
    })
}

/// A strategic merge patch with the uid, so that the server refuses it with 409 for a pod of another uid.
fn patch_body(uid: &Uid, patch: &Patch) -> Vec<u8> {
    let metadata = match patch {
        Patch::Completed => label(uid, labels::COMPLETED),
        Patch::Counted => label(uid, labels::COUNTED),
        Patch::LeftQueue { is_deleted } => kueue::left_group(&uid.to_string(), *is_deleted),
        Patch::Draining(draining, label) => {
            let value = draining::value(*draining);
            let mut metadata = serde_json::json!({
                "uid": uid.to_string(), "annotations": {labels::DRAINING: value},
            });
            if let Some((key, value)) = label {
                metadata["labels"] = serde_json::json!({ key: value });
            }
            metadata
        }
    };
    serde_json::json!({ "metadata": metadata }).to_string().into_bytes()
}

/// A patch of the annotations that autoscalers read, with the uid as `patch_body` has it.
fn protect_body(uid: &Uid, is_protected: bool) -> Vec<u8> {
    let annotations = [labels::DO_NOT_DISRUPT, labels::SAFE_TO_EVICT]
        .map(|(key, value)| (key.to_owned(), is_protected.then_some(value).into()));
    let annotations: serde_json::Map<_, _> = annotations.into_iter().collect();
    let body = serde_json::json!({
        "metadata": { "uid": uid.to_string(), "annotations": annotations },
    });
    body.to_string().into_bytes()
}

/// A strategic merge patch of the main container's memory, with the uid as `patch_body` has it.
fn resize_body(uid: &Uid, pod: &PodText, step: u32) -> Vec<u8> {
    let memory = pod.memory_at(step).cloned().unwrap_or_default();
    // Without a request the server has set it to the limit, and a change of the quality of service is refused.
    let request = Some(memory.request).filter(|request| !request.is_empty());
    let request = request.unwrap_or_else(|| memory.limit.clone());
    let resources = serde_json::json!({
        "limits": { "memory": memory.limit }, "requests": { "memory": request },
    });
    let container = serde_json::json!({ "name": pod.main_container(), "resources": resources });
    let body = serde_json::json!({
        "metadata": { "uid": uid.to_string() }, "spec": { "containers": [container] },
    });
    body.to_string().into_bytes()
}

/// The metadata of a patch that sets a label to the time.
fn label(uid: &Uid, key: &str) -> serde_json::Value {
    serde_json::json!({"uid": uid.to_string(), "labels": {key: unix_time()}})
}

/// Seconds since 1970. The label's value orders retained pods by age.
fn unix_time() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs()).to_string()
}

fn log_answer(verb: &str, what: &dyn std::fmt::Display, refusal: Option<&Refusal>) {
    match refusal {
        None => debug!("{verb} {what}: done"),
        Some(refusal) => debug!("{verb} {what}: {:?}: {refusal}", refusal.class),
    }
}
