//! The end of pods: by a delete, by their deadline, with their node. Also the end of simulated
//! pods.

use serde_json::Value;

use super::containers::millis;
use super::{Kubelet, TimerKind};
use crate::node::run::{ContainerState, Terminated};
use crate::schema::kind::Key;
use crate::storage::deletion::DeleteOptions;
use crate::storage::log_files;
use crate::storage::object::Object;
use crate::time;

/// The longest time that a simulated process takes to end.
const SIMULATED_END_MS_MAX: u64 = 100;
const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

impl Kubelet {
    /// The pod has a deletionTimestamp: sends SIGTERM now, and SIGKILL when the grace period is
    /// over.
    pub(super) fn begin_termination(&mut self, key: &Key, object: &Object) {
        let Some(run) = self.runs.get_mut(key).filter(|run| run.has_running()) else {
            if let Some(run) = self.runs.get_mut(key) {
                run.terminating = Some(0);
            }
            self.confirm_termination(key, &object.uid);
            return;
        };
        let pod = object.value();
        let grace = pod.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
        let grace = grace.unwrap_or_default();
        if run.terminating.is_some_and(|present| present <= grace) {
            return;
        }
        run.terminating = Some(grace);
        self.shorten_grace(key, grace);
        self.advance(key);
    }

    /// Shortens the grace period of containers that are already stopping.
    fn shorten_grace(&mut self, key: &Key, grace: i64) {
        let grace_ms = millis(grace);
        let deadline = self.api.clock.now().after(grace_ms);
        let Some(run) = self.runs.get_mut(key) else { return };
        run.end_by_ms = Some(deadline.0);
        let stopping = run.containers.iter().filter(|container| container.stopping);
        let numbers: Vec<u64> = stopping.filter_map(|container| container.process).collect();
        for number in numbers {
            self.set_timer(grace_ms, key, TimerKind::Kill(number));
        }
    }

    /// Deletes the pod's object, because none of its containers runs any more.
    pub(super) fn confirm_termination(&mut self, key: &Key, uid: &str) {
        if self.is_disconnected(key) {
            return;
        }
        let options = DeleteOptions {
            grace_seconds: Some(0),
            uid: Some(uid.to_owned()),
            ..DeleteOptions::default()
        };
        if let Err(refused) = self.api.lock().delete(key, &options) {
            log::debug!("cannot delete the terminated pod {key}: {}", refused.message);
        }
    }

    /// Kills the pod's processes and removes its files, because its object or its node is gone.
    pub(super) fn forget(&mut self, key: &Key) {
        let Some(run) = self.runs.remove(key) else { return };
        let own = self.processes.values().filter(|process| process.uid == run.uid);
        own.for_each(|process| process.child.kill());
        if self.settings.simulate {
            return;
        }
        let folder = log_files::pod_folder(&self.api.logs, key, &run.uid);
        if let Err(error) = std::fs::remove_dir_all(&folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            log::warn!("cannot remove the folder {} of pod {key}: {error}", folder.display());
        }
    }

    /// Sets a timer for the pod's `activeDeadlineSeconds`, or fails the pod if they are over.
    pub(super) fn set_deadline(&mut self, key: &Key, pod: &Value) {
        let seconds = pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64);
        let (Some(seconds), Some(run)) = (seconds, self.runs.get(key)) else { return };
        if run.is_over() {
            return;
        }
        let age = time::seconds(&self.now_text()) - time::seconds(&run.since);
        match u64::try_from(seconds.saturating_sub(age)) {
            Ok(left) if left > 0 => {
                self.set_timer(left.saturating_mul(1000), key, TimerKind::Deadline)
            }
            _ => self.fail_by_deadline(key),
        }
    }

    /// A deadline timer has fired. The deadline may have changed since the timer was set.
    pub(super) fn on_deadline(&mut self, key: &Key) {
        let object = self.api.lock().store.get(key).cloned();
        let Some(object) = object.filter(|object| !self.is_disconnected(&object.key)) else {
            return;
        };
        self.set_deadline(key, &object.value());
    }

    fn fail_by_deadline(&mut self, key: &Key) {
        let Some(run) = self.runs.get_mut(key) else { return };
        run.failed = Some(("DeadlineExceeded", DEADLINE_MESSAGE.to_owned()));
        self.event(key, None, false, "DeadlineExceeded", DEADLINE_MESSAGE);
        self.advance(key);
    }

    /// Ends the pod's simulated containers after a random delay.
    pub(super) fn end_simulated(&mut self, key: &Key) {
        let delay = self.rng.below(SIMULATED_END_MS_MAX);
        self.set_timer(delay, key, TimerKind::SimulatedEnd);
    }

    pub(super) fn simulate_end(&mut self, key: &Key) {
        const TERMINATED: i32 = 143;
        let finished_at = self.now_text();
        let Some(run) = self.runs.get_mut(key) else { return };
        for container in run.containers.iter_mut().filter(|container| container.stopping) {
            let ContainerState::Running { since } = &container.state else { continue };
            container.state = ContainerState::Terminated(Terminated {
                exit_code: TERMINATED,
                reason: "Error",
                message: String::new(),
                started_at: since.clone(),
                finished_at: finished_at.clone(),
            });
            (container.started, container.ready) = (false, false);
        }
        self.catch_up(key);
    }
}
