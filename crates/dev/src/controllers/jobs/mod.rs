//! The job controller: reads a Job and its pods, does the step that `plan` decides, and writes the
//! status.

mod plan;
mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use self::plan::{FailureAction, JobCounts, JobStep, Outcome, Phase, Pod, Spec};
use crate::apiserver::answer::Answer;
use crate::apiserver::api::Api;
use crate::apiserver::write;
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use crate::storage::deletion::{DeleteOptions, Propagation};
use crate::storage::events::{self, Note};
use crate::storage::object::{
    Object, array_at, array_mut, condition_of, metadata_mut, object_mut, text_at,
};
use crate::storage::store::Change;
use crate::time;
use posse_base::time::Millis;
use posse_serve::Request;

/// The real controller's base and maximum delay after a refused create.
const REFUSED_MS: u64 = 10_000;
const REFUSED_MS_MAX: u64 = 360_000;
/// How long to wait for the change that says how a vanished pod ended.
const MISSING_MS: u64 = 1_000;

#[derive(Debug, Default)]
pub(super) struct Jobs {
    jobs: BTreeMap<Box<str>, TrackedJob>,
    dirty: BTreeSet<Box<str>>,
    due: BTreeSet<(Millis, Box<str>)>,
}

/// The controller's memory of one job.
#[derive(Debug)]
struct TrackedJob {
    key: Key,
    counts: JobCounts,
    /// The uids of the pods at the last sync.
    known: BTreeSet<Box<str>>,
    /// Pods deleted since the last sync, in their last state.
    gone: Vec<Arc<Object>>,
    /// Pods that no longer exist and whose last state is unknown.
    missing: BTreeSet<Box<str>>,
    refusals: u32,
    not_before: Millis,
}

impl Jobs {
    pub(super) fn on_change(&mut self, change: &Change) {
        let object = &change.now;
        if object.key.kind == Kind::Job {
            if change.gone {
                self.jobs.remove(&object.uid);
            } else {
                self.jobs.entry(object.uid.clone()).or_insert_with(|| TrackedJob {
                    key: object.key.clone(),
                    counts: JobCounts::default(),
                    known: BTreeSet::new(),
                    gone: Vec::new(),
                    missing: BTreeSet::new(),
                    refusals: 0,
                    not_before: Millis(0),
                });
                self.dirty.insert(object.uid.clone());
            }
        } else if object.key.kind == Kind::Pod {
            for owner in &object.owners {
                let Some(job) = self.jobs.get_mut(owner) else { continue };
                if !is_controlled(&object.value(), owner) {
                    continue;
                }
                if change.gone {
                    job.gone.push(Arc::clone(object));
                }
                self.dirty.insert(owner.clone());
            }
        }
    }

    /// Syncs the jobs that changed or are due. Returns when to run again.
    pub(super) fn run(&mut self, api: &Api) -> Option<Millis> {
        let now = api.clock.now();
        while let Some((_, uid)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            self.due.retain(|(_, due)| *due != uid);
            self.dirty.insert(uid);
        }
        for uid in std::mem::take(&mut self.dirty) {
            let Some(job) = self.jobs.get_mut(&uid) else { continue };
            let due = job.sync(api, &uid);
            self.due.retain(|(_, due)| *due != uid);
            self.due.extend(due.map(|at| (at, uid)));
        }
        self.due.first().map(|(at, _)| *at)
    }
}

/// What a Job owns without being its controller is none of its pods.
fn is_controlled(pod: &Value, uid: &str) -> bool {
    let owners = array_at(pod, "/metadata/ownerReferences");
    owners.iter().any(|owner| owner["controller"] == true && text_at(owner, "/uid") == uid)
}

impl TrackedJob {
    fn sync(&mut self, api: &Api, uid: &str) -> Option<Millis> {
        let (job, pods, now_text) = {
            let state = api.lock();
            let job = state.store.get(&self.key).filter(|job| &*job.uid == uid).cloned()?;
            let pods = state.store.dependents(uid).into_iter();
            let pods = pods.filter(|key| key.kind == Kind::Pod);
            let pods = pods.filter_map(|key| state.store.get(&key).cloned());
            let pods = pods.filter(|pod| is_controlled(&pod.value(), uid));
            (job, pods.collect::<Vec<_>>(), state.now.clone())
        };
        if job.deleting {
            return None;
        }
        let value = job.value();
        if let Some(finished) = finished_at(&value) {
            self.gone.clear();
            return expire(api, &job, &value, time::seconds(finished), &now_text);
        }
        let now = api.clock.now();
        if self.has_newly_missing(&pods) {
            return Some(now.after(MISSING_MS));
        }
        let spec = read_spec(&value);
        let all_pods = self.collect_pods(&value, &pods);
        let started = text_at(&value, "/status/startTime");
        let age = time::seconds(&now_text) - time::seconds(started);
        let age = if started.is_empty() { 0 } else { age };
        let mut step = plan::next_step(&spec, &mut self.counts, &all_pods, now, age);
        self.known = pods.iter().map(|pod| pod.uid.clone()).collect();
        self.counts.retain(&self.known);
        for pod in pods.iter().filter(|pod| step.delete.contains(&pod.uid)) {
            delete_pod(api, &job, pod);
        }
        self.create_pods(api, &job, &value, &mut step, now);
        write_status(api, &job, &spec, &step, &self.counts);
        step.due
    }

    /// True if a pod has vanished since the changes were read. The next changes say how it ended;
    /// if they do not, because the history was too short, the pod counts as failed.
    fn has_newly_missing(&mut self, pods: &[Arc<Object>]) -> bool {
        let mut missing = self.known.clone();
        for pod in pods.iter().chain(&self.gone) {
            missing.remove(&pod.uid);
        }
        let has_new = !missing.is_subset(&self.missing);
        self.missing = missing;
        has_new
    }

    /// The existing pods and those deleted since the last sync.
    fn collect_pods(&mut self, job: &Value, pods: &[Arc<Object>]) -> Vec<Pod> {
        let gone = std::mem::take(&mut self.gone);
        let mut all: Vec<Pod> =
            gone.iter().map(|pod| Pod { gone: true, ..read_pod(job, pod) }).collect();
        let seen = pods.iter().chain(&gone).map(|pod| pod.uid.clone()).collect::<BTreeSet<_>>();
        // Pods that vanished without a known last state count as failed.
        let lost = self.known.difference(&seen).map(|uid| Pod {
            uid: uid.clone(),
            phase: Phase::Failed,
            ready: false,
            deleting: true,
            gone: true,
            restarts: 0,
            failure_action: FailureAction::Count,
        });
        all.extend(lost);
        all.extend(pods.iter().map(|pod| read_pod(job, pod)));
        all
    }

    fn create_pods(
        &mut self,
        api: &Api,
        job: &Object,
        value: &Value,
        step: &mut JobStep,
        now: Millis,
    ) {
        let wanted = std::mem::take(&mut step.create);
        if wanted > 0 && now < self.not_before {
            step.active -= wanted;
            step.due = [step.due, Some(self.not_before)].into_iter().flatten().min();
            return;
        }
        for done in 0..wanted {
            let created = create_pod(api, job, value);
            let message = match &created {
                Ok(name) => format!("Created pod: {name}"),
                Err(refused) => format!("Error creating: {}", refused.message),
            };
            let reason = if created.is_ok() { "SuccessfulCreate" } else { "FailedCreate" };
            note(api, job, created.is_err(), reason, &message);
            if created.is_ok() {
                self.refusals = 0;
                continue;
            }
            // The remaining creates would be refused for the same reason.
            step.active -= wanted - done;
            let delay = (REFUSED_MS << self.refusals.min(10)).min(REFUSED_MS_MAX);
            self.refusals += 1;
            self.not_before = now.after(delay);
            step.due = [step.due, Some(self.not_before)].into_iter().flatten().min();
            return;
        }
    }
}

/// Deletes a finished job after its `ttlSecondsAfterFinished`. Returns when that time is.
fn expire(api: &Api, job: &Object, value: &Value, finished: i64, now: &str) -> Option<Millis> {
    let ttl = value.pointer("/spec/ttlSecondsAfterFinished").and_then(Value::as_i64)?;
    let remaining = finished.saturating_add(ttl).saturating_sub(time::seconds(now));
    if remaining > 0 {
        let remaining = u64::try_from(remaining).unwrap_or_default();
        return Some(api.clock.now().after(remaining.saturating_mul(1000)));
    }
    let options = DeleteOptions {
        uid: Some(job.uid.to_string()),
        propagation: Some(Propagation::Background),
        ..DeleteOptions::default()
    };
    if let Err(refused) = api.lock().delete(&job.key, &options) {
        log::debug!("cannot delete the finished job {}: {}", job.key, refused.message);
    }
    None
}

fn note(api: &Api, job: &Object, warning: bool, reason: &str, message: &str) {
    let component = "job-controller";
    let note = Note { warning, reason, message, component, ..Note::default() };
    events::record(&mut api.lock(), job, &note);
}

/// When the job completed or failed. `None` if it has not finished.
fn finished_at(job: &Value) -> Option<&str> {
    let finished = array_at(job, "/status/conditions").iter().find(|condition| {
        matches!(text_at(condition, "/type"), "Complete" | "Failed")
            && text_at(condition, "/status") == "True"
    });
    finished.map(|condition| text_at(condition, "/lastTransitionTime"))
}

fn read_spec(job: &Value) -> Spec {
    let number = |field: &str| job.pointer(&format!("/spec/{field}")).and_then(Value::as_i64);
    let size = |field: &str| number(field).map(|n| usize::try_from(n).unwrap_or_default());
    let completions = match (size("completions"), size("parallelism")) {
        (None, None) => Some(1),
        (completions, _) => completions,
    };
    let has_policy = job.pointer("/spec/podFailurePolicy").is_some();
    Spec {
        parallelism: size("parallelism").unwrap_or(1),
        completions,
        backoff_limit: number("backoffLimit").map_or(6, |n| u64::try_from(n).unwrap_or_default()),
        deadline_seconds: number("activeDeadlineSeconds"),
        suspend: job.pointer("/spec/suspend") == Some(&Value::Bool(true)),
        replace_failed_only: has_policy || text_at(job, "/spec/podReplacementPolicy") == "Failed",
        restarts_on_failure: text_at(job, "/spec/template/spec/restartPolicy") == "OnFailure",
    }
}

fn read_pod(job: &Value, object: &Object) -> Pod {
    let pod = object.value();
    let phase = match text_at(&pod, "/status/phase") {
        "Failed" => Phase::Failed,
        "Succeeded" => Phase::Succeeded,
        "Running" => Phase::Running,
        _ => Phase::Pending,
    };
    let restarts = ["/status/containerStatuses", "/status/initContainerStatuses"]
        .into_iter()
        .flat_map(|list| array_at(&pod, list))
        .filter_map(|container| container.get("restartCount").and_then(Value::as_u64));
    Pod {
        uid: object.uid.clone(),
        phase,
        ready: condition_of(&pod, "Ready") == "True" && !object.deleting,
        deleting: object.deleting,
        gone: false,
        restarts: restarts.sum(),
        failure_action: policy::failure_action(job, &pod),
    }
}

fn delete_pod(api: &Api, job: &Object, pod: &Object) {
    let options = DeleteOptions { uid: Some(pod.uid.to_string()), ..DeleteOptions::default() };
    let deleted = api.lock().delete(&pod.key, &options);
    if deleted.is_ok() {
        let message = format!("Deleted pod: {}", pod.key.name);
        note(api, job, false, "SuccessfulDelete", &message);
    }
}

/// Creates one pod from the template, through admission as a client would. Returns its name.
fn create_pod(api: &Api, job: &Object, value: &Value) -> Result<String, StatusError> {
    let name = &job.key.name;
    let template = value.pointer("/spec/template").cloned().unwrap_or_default();
    let mut pod = json!({ "spec": template["spec"], "metadata": template["metadata"] });
    let metadata = metadata_mut(&mut pod);
    metadata.retain(|key, _| matches!(key.as_str(), "labels" | "annotations" | "finalizers"));
    metadata.insert("generateName".to_owned(), format!("{name}-").into());
    metadata.insert(
        "ownerReferences".to_owned(),
        json!([{
            "apiVersion": job.key.kind.api_version(),
            "kind": job.key.kind.name(),
            "name": name,
            "uid": *job.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }]),
    );
    let labels = object_mut(&mut pod["metadata"], "labels");
    for (label, text) in [("controller-uid", &*job.uid), ("job-name", name)] {
        labels.insert(label.to_owned(), text.into());
        labels.insert(format!("batch.kubernetes.io/{label}"), text.into());
    }
    let mut request = Request::default();
    request.body = pod.to_string().into_bytes();
    match write::create(api, &request, Kind::Pod, &job.key.namespace)? {
        Answer::Whole { body, .. } => {
            let pod: Value = serde_json::from_slice(&body).unwrap_or_default();
            Ok(text_at(&pod, "/metadata/name").to_owned())
        }
        Answer::Exec(_) | Answer::Log(_) | Answer::Watch(_) => {
            Err(StatusError::internal("a create was answered with a stream"))
        }
    }
}

/// Writes the job's status and records Events for what is new.
fn write_status(api: &Api, job: &Object, spec: &Spec, step: &JobStep, counts: &JobCounts) {
    let now = api.lock().now.clone();
    let mut events: Vec<(bool, &str, String)> = Vec::new();
    api.lock().edit(&job.key, &job.uid, |value| {
        let status = object_mut(value, "status");
        if spec.suspend {
            status.remove("startTime");
        } else {
            status.entry("startTime").or_insert_with(|| now.as_str().into());
        }
        for (field, number) in [
            ("active", step.active),
            ("succeeded", counts.succeeded),
            ("failed", usize::try_from(counts.failed).unwrap_or(usize::MAX)),
        ] {
            match number {
                0 => status.remove(field),
                number => status.insert(field.to_owned(), number.into()),
            };
        }
        status.insert("ready".to_owned(), step.ready.into());
        status.insert("terminating".to_owned(), step.terminating.into());
        status.insert("uncountedTerminatedPods".to_owned(), json!({}));
        match &step.outcome {
            Outcome::Complete => {
                status.insert("completionTime".to_owned(), now.as_str().into());
                let message = "Reached expected number of succeeded pods";
                for name in ["SuccessCriteriaMet", "Complete"] {
                    let reason = "CompletionsReached";
                    add_condition(value, name, true, reason, message, &now);
                }
                events.push((false, "Completed", "Job completed".to_owned()));
            }
            Outcome::Failed { reason, message } => {
                for name in ["FailureTarget", "Failed"] {
                    add_condition(value, name, true, reason, message, &now);
                }
                events.push((true, reason, message.clone()));
            }
            Outcome::Open => {
                if let Some(event) = suspend_or_resume(value, spec.suspend, &now) {
                    events.push(event);
                }
            }
        }
    });
    for (warning, reason, message) in events {
        note(api, job, warning, reason, &message);
    }
}

/// Adds a condition, or replaces the condition of the same type.
fn add_condition(job: &mut Value, name: &str, holds: bool, reason: &str, message: &str, now: &str) {
    let status = if holds { "True" } else { "False" };
    let condition = json!({
        "type": name, "status": status, "lastProbeTime": now, "lastTransitionTime": now,
        "reason": reason, "message": message,
    });
    let list = array_mut(&mut job["status"], "conditions");
    match list.iter_mut().find(|present| present["type"] == condition["type"]) {
        Some(present) => *present = condition,
        None => list.push(condition),
    }
}

/// Sets the condition of a job that was just suspended or resumed. Returns the Event to record.
fn suspend_or_resume(
    job: &mut Value,
    suspend: bool,
    now: &str,
) -> Option<(bool, &'static str, String)> {
    if (condition_of(job, "Suspended") == "True") == suspend {
        return None;
    }
    let (reason, event, message) = match suspend {
        true => ("JobSuspended", "Suspended", "Job suspended"),
        false => ("JobResumed", "Resumed", "Job resumed"),
    };
    add_condition(job, "Suspended", suspend, reason, message, now);
    Some((false, event, message.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vanished_pod_counts_as_failed_only_if_no_change_says_how_it_ended() {
        let mut job = TrackedJob {
            key: Key::new(Kind::Job, "n", "j"),
            counts: JobCounts::default(),
            known: ["a".into()].into(),
            gone: Vec::new(),
            missing: BTreeSet::new(),
            refusals: 0,
            not_before: Millis(0),
        };
        assert!(job.has_newly_missing(&[]), "the next changes may say how it ended");
        assert!(!job.has_newly_missing(&[]), "they did not");
        let pods = job.collect_pods(&Value::Null, &[]);
        assert!(pods.len() == 1 && pods[0].gone && pods[0].failure_action == FailureAction::Count);
    }
}
