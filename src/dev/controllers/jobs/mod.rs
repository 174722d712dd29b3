//! Owns the Jobs: reads a job and its pods, does the step that `plan` decides, writes the status.

mod plan;
mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use self::plan::{Outcome, Past, Phase, Pod, Spec, Step, Verdict};
use crate::core::model::time::Millis;
use crate::dev::apiserver::answer::Answer;
use crate::dev::apiserver::api::Api;
use crate::dev::apiserver::write;
use crate::dev::schema::kind::{Key, Kind};
use crate::dev::schema::status::StatusError;
use crate::dev::storage::deletion::{DeleteOptions, Propagation};
use crate::dev::storage::events::{self, Note};
use crate::dev::storage::object::{Object, array_at, metadata_mut, object_mut, text_at};
use crate::dev::storage::store::Change;
use crate::dev::time;
use crate::serve::Request;

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The real controller's base and cap where creating pods fails.
const REFUSED_MS: u64 = 10_000;
/// How long the changes get to tell how a pod ended that is no more.
const UNTOLD_MS: u64 = 1_000;
const REFUSED_MS_MAX: u64 = 360_000;

#[derive(Debug, Default)]
pub(super) struct Jobs {
    tracks: BTreeMap<Box<str>, Track>,
    dirty: BTreeSet<Box<str>>,
    due: BTreeSet<(Millis, Box<str>)>,
}

/// What is remembered of one job.
#[derive(Debug)]
struct Track {
    key: Key,
    past: Past,
    /// The pods as they were seen last.
    known: BTreeSet<Box<str>>,
    /// Pods that went since, as they were last.
    gone: Vec<Arc<Object>>,
    /// Pods that are no more, and nobody has told yet how they ended.
    untold: BTreeSet<Box<str>>,
    refusals: u32,
    not_before: Millis,
}

impl Jobs {
    pub(super) fn on_change(&mut self, change: &Change) {
        let object = &change.now;
        if object.key.kind == Kind::Job {
            if change.gone {
                self.tracks.remove(&object.uid);
            } else {
                self.tracks.entry(object.uid.clone()).or_insert_with(|| Track {
                    key: object.key.clone(),
                    past: Past::default(),
                    known: BTreeSet::new(),
                    gone: Vec::new(),
                    untold: BTreeSet::new(),
                    refusals: 0,
                    not_before: Millis(0),
                });
                self.dirty.insert(object.uid.clone());
            }
        } else if object.key.kind == Kind::Pod {
            for owner in &object.owners {
                let Some(track) = self.tracks.get_mut(owner) else { continue };
                if change.gone {
                    track.gone.push(Arc::clone(object));
                }
                self.dirty.insert(owner.clone());
            }
        }
    }

    /// Brings the jobs on that something happened to; when to come again.
    pub(super) fn run(&mut self, api: &Api) -> Option<Millis> {
        let now = api.clock.now();
        while let Some((_, uid)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            self.due.retain(|(_, due)| *due != uid);
            self.dirty.insert(uid);
        }
        for uid in std::mem::take(&mut self.dirty) {
            let Some(track) = self.tracks.get_mut(&uid) else { continue };
            let due = track.sync(api, &uid);
            self.due.retain(|(_, due)| *due != uid);
            self.due.extend(due.map(|at| (at, uid)));
        }
        self.due.first().map(|(at, _)| *at)
    }
}

impl Track {
    fn sync(&mut self, api: &Api, uid: &str) -> Option<Millis> {
        let (job, pods, now_text) = {
            let state = api.lock();
            let job = state.store.get(&self.key).filter(|job| &*job.uid == uid).cloned()?;
            let pods = state.store.dependents(uid).into_iter();
            let pods = pods.filter(|key| key.kind == Kind::Pod);
            let pods = pods.filter_map(|key| state.store.get(&key).cloned());
            (job, pods.collect::<Vec<_>>(), state.now.clone())
        };
        let value = job.value();
        if let Some(finished) = finished_at(&value) {
            self.gone.clear();
            return self.expire(api, &job, &value, time::seconds(finished), &now_text);
        }
        if job.deleting {
            return None;
        }
        let now = api.clock.now();
        if self.has_newly_untold(&pods) {
            return Some(now.after(UNTOLD_MS));
        }
        let spec = read_spec(&value);
        let facts = self.facts(&value, &pods);
        let started = text_at(&value, "/status/startTime");
        let age = time::seconds(&now_text) - time::seconds(started);
        let age = if started.is_empty() { 0 } else { age };
        let mut step = plan::step(&spec, &mut self.past, &facts, now, Some(age));
        self.known = pods.iter().map(|pod| pod.uid.clone()).collect();
        self.past.keep(&self.known);
        for pod in pods.iter().filter(|pod| step.end.contains(&pod.uid)) {
            end_pod(api, &job, pod);
        }
        self.create_pods(api, &job, &value, &mut step, now);
        write_status(api, &job, &spec, &step, &self.past);
        // A deadline that has just begun to run is looked at again with the status that says so.
        step.due
    }

    /// True where a pod went between the look at the changes and this one: the next changes tell how
    /// it ended. Where they do not, the history was too short, and it counts as lost.
    fn has_newly_untold(&mut self, pods: &[Arc<Object>]) -> bool {
        let mut untold = self.known.clone();
        for pod in pods.iter().chain(&self.gone) {
            untold.remove(&pod.uid);
        }
        let newly = !untold.is_subset(&self.untold);
        self.untold = untold;
        newly
    }

    /// The pods that are there, and those that went since the last look.
    fn facts(&mut self, job: &Value, pods: &[Arc<Object>]) -> Vec<Pod> {
        let gone = std::mem::take(&mut self.gone);
        let mut facts: Vec<Pod> =
            gone.iter().map(|pod| Pod { gone: true, ..read_pod(job, pod) }).collect();
        let told = pods.iter().chain(&gone).map(|pod| pod.uid.clone()).collect::<BTreeSet<_>>();
        // Where the history was too short to tell how they ended.
        let lost = self.known.difference(&told).map(|uid| Pod {
            uid: uid.clone(),
            phase: Phase::Failed,
            ready: false,
            deleting: true,
            gone: true,
            restarts: 0,
            index: None,
            verdict: Verdict::Count,
        });
        facts.extend(lost);
        facts.extend(pods.iter().map(|pod| read_pod(job, pod)));
        facts
    }

    fn create_pods(
        &mut self,
        api: &Api,
        job: &Object,
        value: &Value,
        step: &mut Step,
        now: Millis,
    ) {
        let wanted = std::mem::take(&mut step.create);
        if !wanted.is_empty() && now < self.not_before {
            step.active -= wanted.len();
            step.due = [step.due, Some(self.not_before)].into_iter().flatten().min();
            return;
        }
        for (done, index) in wanted.iter().enumerate() {
            let created = create_pod(api, job, value, *index);
            let told = match &created {
                Ok(name) => format!("Created pod: {name}"),
                Err(refused) => format!("Error creating: {}", refused.message),
            };
            let reason = if created.is_ok() { "SuccessfulCreate" } else { "FailedCreate" };
            note(api, job, created.is_err(), reason, &told);
            if created.is_ok() {
                self.refusals = 0;
                continue;
            }
            // The others would be refused as well.
            step.active -= wanted.len() - done;
            let delay = (REFUSED_MS << self.refusals.min(10)).min(REFUSED_MS_MAX);
            self.refusals += 1;
            self.not_before = now.after(delay);
            step.due = [step.due, Some(self.not_before)].into_iter().flatten().min();
            return;
        }
    }

    /// Deletes a job that has been over for long enough; when that will be.
    fn expire(
        &self,
        api: &Api,
        job: &Object,
        value: &Value,
        finished: i64,
        now: &str,
    ) -> Option<Millis> {
        let ttl = value.pointer("/spec/ttlSecondsAfterFinished").and_then(Value::as_i64)?;
        let left = finished.saturating_add(ttl).saturating_sub(time::seconds(now));
        if left > 0 && !job.deleting {
            let left = u64::try_from(left).unwrap_or_default();
            return Some(api.clock.now().after(left.saturating_mul(1000)));
        }
        if !job.deleting {
            let options = DeleteOptions {
                uid: Some(job.uid.to_string()),
                propagation: Some(Propagation::Foreground),
                ..DeleteOptions::default()
            };
            if let Err(refused) = api.lock().delete(&job.key, &options) {
                log::debug!("{}: {}", job.key, refused.message);
            }
        }
        None
    }
}

fn note(api: &Api, job: &Object, warning: bool, reason: &str, message: &str) {
    let component = "job-controller";
    let note = Note { warning, reason, message, component, ..Note::default() };
    events::record(&mut api.lock(), job, &note);
}

/// When the job completed or failed; none while it goes on.
fn finished_at(job: &Value) -> Option<&str> {
    let over = array_at(job, "/status/conditions").iter().find(|condition| {
        matches!(text_at(condition, "/type"), "Complete" | "Failed")
            && text_at(condition, "/status") == "True"
    });
    over.map(|condition| text_at(condition, "/lastTransitionTime"))
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
        indexed: text_at(job, "/spec/completionMode") == "Indexed",
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
    let ready = array_at(&pod, "/status/conditions").iter().any(|condition| {
        text_at(condition, "/type") == "Ready" && text_at(condition, "/status") == "True"
    });
    let index = pod.pointer("/metadata/annotations").and_then(|annotations| annotations.get(INDEX));
    Pod {
        uid: object.uid.clone(),
        phase,
        ready: ready && !object.deleting,
        deleting: object.deleting,
        gone: false,
        restarts: restarts.sum(),
        index: index.and_then(Value::as_str).and_then(|index| index.parse().ok()),
        verdict: policy::verdict(job, &pod),
    }
}

fn end_pod(api: &Api, job: &Object, pod: &Object) {
    let options = DeleteOptions { uid: Some(pod.uid.to_string()), ..DeleteOptions::default() };
    let ended = api.lock().delete(&pod.key, &options);
    if ended.is_ok() {
        let message = format!("Deleted pod: {}", pod.key.name);
        note(api, job, false, "SuccessfulDelete", &message);
    }
}

/// Creates one pod from the template, as a client would; its name.
fn create_pod(
    api: &Api,
    job: &Object,
    value: &Value,
    index: Option<usize>,
) -> Result<String, StatusError> {
    let name = &job.key.name;
    let base = index.map_or_else(|| format!("{name}-"), |index| format!("{name}-{index}-"));
    let template = value.pointer("/spec/template").cloned().unwrap_or_default();
    let mut pod = json!({ "spec": template["spec"], "metadata": template["metadata"] });
    let metadata = metadata_mut(&mut pod);
    metadata.retain(|key, _| matches!(key.as_str(), "labels" | "annotations" | "finalizers"));
    metadata.insert("generateName".to_owned(), base.into());
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
    if let Some(index) = index {
        labels.insert(INDEX.to_owned(), index.to_string().into());
        give_index(&mut pod, name, index);
    }
    let mut request = Request::default();
    request.body = pod.to_string().into_bytes();
    match write::create(api, &request, Kind::Pod, &job.key.namespace)? {
        Answer::Whole { body, .. } => {
            let pod: Value = serde_json::from_slice(&body).unwrap_or_default();
            Ok(text_at(&pod, "/metadata/name").to_owned())
        }
        Answer::Log(_) | Answer::Watch(_) => Err(StatusError::internal("a create is no stream")),
    }
}

/// Tells a pod of an indexed job which one it is.
fn give_index(pod: &mut Value, job: &str, index: usize) {
    let annotations = object_mut(&mut pod["metadata"], "annotations");
    annotations.insert(INDEX.to_owned(), index.to_string().into());
    let path = format!("metadata.annotations['{INDEX}']");
    let variable = json!({
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": path } },
    });
    let spec = object_mut(pod, "spec");
    spec.insert("hostname".to_owned(), format!("{job}-{index}").into());
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(members) = container.as_object_mut() else { continue };
            let env = members.entry("env").or_insert_with(|| json!([]));
            if let Some(env) = env.as_array_mut()
                && !env.iter().any(|present| text_at(present, "/name") == "JOB_COMPLETION_INDEX")
            {
                env.push(variable.clone());
            }
        }
    }
}

/// Writes what was decided, and tells what is new about the job.
fn write_status(api: &Api, job: &Object, spec: &Spec, step: &Step, past: &Past) {
    let now = api.lock().now.clone();
    let mut told: Vec<(bool, &str, String)> = Vec::new();
    api.edit(&job.key, &job.uid, |value| {
        let status = object_mut(value, "status");
        if spec.suspend {
            status.remove("startTime");
        } else if step.active > 0 || past.has_counted() || step.outcome != Outcome::Open {
            // One that has never done anything has not started, as the real controller sees it.
            status.entry("startTime").or_insert_with(|| now.as_str().into());
        }
        for (field, number) in [
            ("active", step.active),
            ("succeeded", past.succeeded),
            ("failed", usize::try_from(past.failed).unwrap_or(usize::MAX)),
            ("ready", step.ready),
            ("terminating", step.terminating),
        ] {
            match number {
                0 => status.remove(field),
                number => status.insert(field.to_owned(), number.into()),
            };
        }
        if spec.indexed && !past.indexes.is_empty() {
            let done = plan::ranges(&past.indexes);
            status.insert("completedIndexes".to_owned(), done.into());
        }
        match &step.outcome {
            Outcome::Complete => {
                status.insert("completionTime".to_owned(), now.as_str().into());
                let condition = condition("Complete", true, "", "", &now);
                add_condition(value, condition);
                told.push((false, "Completed", "Job completed".to_owned()));
            }
            Outcome::Failed { reason, message } => {
                if *reason == "PodFailurePolicy" {
                    let target = condition("FailureTarget", true, reason, message, &now);
                    add_condition(value, target);
                }
                add_condition(value, condition("Failed", true, reason, message, &now));
                told.push((true, reason, message.clone()));
            }
            Outcome::Open => {
                if let Some(event) = suspend_or_resume(value, spec.suspend, &now) {
                    told.push(event);
                }
            }
        }
    });
    for (warning, reason, message) in told {
        note(api, job, warning, reason, &message);
    }
}

fn condition(name: &str, holds: bool, reason: &str, message: &str, now: &str) -> Value {
    let status = if holds { "True" } else { "False" };
    let mut condition = json!({
        "type": name, "status": status, "lastProbeTime": now, "lastTransitionTime": now,
    });
    for (field, text) in [("reason", reason), ("message", message)] {
        if !text.is_empty() {
            condition[field] = text.into();
        }
    }
    condition
}

/// Adds a condition, or puts it in the place of the one of its type.
fn add_condition(job: &mut Value, condition: Value) {
    let list = object_mut(job, "status").entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return };
    match list.iter_mut().find(|present| present["type"] == condition["type"]) {
        Some(present) => *present = condition,
        None => list.push(condition),
    }
}

/// The condition of a job that was suspended or goes on again, and what to tell.
fn suspend_or_resume(
    job: &mut Value,
    suspend: bool,
    now: &str,
) -> Option<(bool, &'static str, String)> {
    let conditions = array_at(job, "/status/conditions").iter();
    let is_suspended = conditions
        .filter(|condition| text_at(condition, "/type") == "Suspended")
        .any(|condition| text_at(condition, "/status") == "True");
    if is_suspended == suspend {
        return None;
    }
    let (reason, event, message) = match suspend {
        true => ("JobSuspended", "Suspended", "Job suspended"),
        false => ("JobResumed", "Resumed", "Job resumed"),
    };
    add_condition(job, condition("Suspended", suspend, reason, message, now));
    Some((false, event, message.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_no_more_is_lost_only_where_nobody_tells_how_it_ended() {
        let mut track = Track {
            key: Key::new(Kind::Job, "n", "j"),
            past: Past::default(),
            known: ["a".into()].into(),
            gone: Vec::new(),
            untold: BTreeSet::new(),
            refusals: 0,
            not_before: Millis(0),
        };
        assert!(track.has_newly_untold(&[]), "its end may be in the next changes");
        assert!(!track.has_newly_untold(&[]), "it was not");
        let facts = track.facts(&Value::Null, &[]);
        assert!(facts.len() == 1 && facts[0].gone && facts[0].verdict == Verdict::Count);
    }
}
