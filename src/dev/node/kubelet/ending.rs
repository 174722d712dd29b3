//! Owns the ends of pods: by a delete, by their deadline, with their node; real and simulated ones.

use serde_json::Value;

use super::containers::Owned;
use super::{Due, Kubelet};
use crate::dev::node::run::{Ended, State};
use crate::dev::schema::kind::Key;
use crate::dev::storage::deletion::DeleteOptions;
use crate::dev::storage::log_files;
use crate::dev::storage::object::Object;
use crate::dev::time;

/// What a simulated process takes to end, at most.
const SIMULATED_END_MS_MAX: u64 = 100;
const LATE: &str = "Pod was active on the node longer than the specified deadline";

impl Kubelet {
    /// The API wants the pod gone: a signal now, another when the grace is over.
    pub(super) fn begin_end(&mut self, key: &Key, object: &Object) {
        let Some(run) = self.runs.get_mut(key).filter(|run| run.has_running()) else {
            if let Some(run) = self.runs.get_mut(key) {
                run.ending = Some(0);
            }
            self.confirm_end(key, &object.uid);
            return;
        };
        let pod = object.value();
        let grace = pod.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
        let grace = grace.unwrap_or_default();
        if run.ending.is_some_and(|present| present <= grace) {
            return;
        }
        run.ending = Some(grace);
        self.shorten(key, grace);
        self.advance(key);
    }

    /// Who is being ended already has less time now.
    fn shorten(&mut self, key: &Key, grace: i64) {
        let grace_ms = u64::try_from(grace).unwrap_or_default().saturating_mul(1000);
        let by = self.api.clock.now().after(grace_ms);
        let Some(run) = self.runs.get_mut(key) else { return };
        run.end_by_ms = Some(by.0);
        let stopping = run.containers.iter().filter(|container| container.stopping);
        let numbers: Vec<u64> = stopping.filter_map(|container| container.process).collect();
        for number in numbers {
            self.set_timer(grace_ms, key, Due::Kill(number));
        }
    }

    /// Nothing of the pod runs any more: its object may go.
    pub(super) fn confirm_end(&mut self, key: &Key, uid: &str) {
        if self.is_cut_off(key) {
            return;
        }
        let options = DeleteOptions {
            grace_seconds: Some(0),
            uid: Some(uid.to_owned()),
            ..DeleteOptions::default()
        };
        if let Err(refused) = self.api.lock().delete(key, &options) {
            log::debug!("{key}: {}", refused.message);
        }
    }

    /// The pod's object or its node is gone: so is what runs of it, and what it wrote.
    pub(super) fn forget(&mut self, key: &Key) {
        let Some(run) = self.runs.remove(key) else { return };
        self.processes.values().filter(|owned| owned.uid == run.uid).for_each(Owned::kill);
        if self.settings.simulate {
            return;
        }
        let folder = log_files::pod_folder(&self.api.logs, key, &run.uid);
        if let Err(error) = std::fs::remove_dir_all(&folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            log::warn!("{}: {error}", folder.display());
        }
    }

    /// Sets a timer for the end of the time that the pod may run, or ends it.
    pub(super) fn set_deadline(&mut self, key: &Key, pod: &Value) {
        let seconds = pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64);
        let (Some(seconds), Some(run)) = (seconds, self.runs.get(key)) else { return };
        if run.is_over() {
            return;
        }
        let ran = time::seconds(&self.now_text()) - time::seconds(&run.since);
        match u64::try_from(seconds.saturating_sub(ran)) {
            Ok(left) if left > 0 => self.set_timer(left.saturating_mul(1000), key, Due::Deadline),
            _ => self.fail_late(key),
        }
    }

    /// The deadline that was set is over; another may have been set since.
    pub(super) fn on_deadline(&mut self, key: &Key) {
        let object = self.api.lock().store.get(key).cloned();
        let Some(object) = object.filter(|object| !self.is_cut_off(&object.key)) else { return };
        self.set_deadline(key, &object.value());
    }

    fn fail_late(&mut self, key: &Key) {
        let Some(run) = self.runs.get_mut(key) else { return };
        run.failed = Some(("DeadlineExceeded", LATE.to_owned()));
        self.event(key, None, false, "DeadlineExceeded", LATE);
        self.advance(key);
    }

    /// A simulated process takes its time to end.
    pub(super) fn end_simulated(&mut self, key: &Key) {
        let delay = self.rng.below(SIMULATED_END_MS_MAX);
        self.set_timer(delay, key, Due::SimulatedEnd);
    }

    pub(super) fn simulate_end(&mut self, key: &Key) {
        const TERMINATED: i32 = 143;
        let finished_at = self.now_text();
        let Some(run) = self.runs.get_mut(key) else { return };
        for container in run.containers.iter_mut().filter(|container| container.stopping) {
            let State::Running { since } = &container.state else { continue };
            container.state = State::Ended(Ended {
                exit_code: TERMINATED,
                reason: "Error",
                message: String::new(),
                started_at: since.clone(),
                finished_at: finished_at.clone(),
            });
            (container.started, container.ready) = (false, false);
        }
        let uid = run.uid.clone();
        let over = run.ending.is_some() && !run.has_running();
        self.advance(key);
        if over {
            self.confirm_end(key, &uid);
        }
    }
}
