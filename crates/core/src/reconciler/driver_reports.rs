//! What follows from the driver's reports and from their absence: executors without heartbeats,
//! lost connections, and a silent driver; and from the credentials without which it does not start.

use std::collections::BTreeSet;

use super::Reconciler;
use crate::model::action::RunVerdict;
use crate::model::command::Reply;
use crate::model::event::{Event, LossReason, RunEvent};
use crate::model::ids::ExecutorId;
use crate::model::input::Renewal;
use crate::model::status::State;
use crate::policy::loss::Loss;
use crate::state::driver_reports::{IDLE_VALID_MS, Silent, heartbeat_first_ms};
use crate::state::due::Timer;
use crate::state::executors::Life;
use posse_base::time::Millis;

/// A timer that fires later than this shows that posse was suspended. Calls that were made
/// meanwhile were not received.
const STALL_MS: u64 = 1_000;
/// How long to look for the reason after the driver lost the connection to an executor.
const REASON_WAIT_MS: u64 = 30_000;
/// The heartbeat check runs at most this often in one timeout.
const CHECKS_MAX: u64 = 20;

impl Reconciler {
    /// The driver can make calls from now on: starts to measure its silence.
    pub(super) fn start_silence_timer(&mut self, now: Millis) {
        if self.policy.driver_silence_ms > 0 {
            self.driver_reports.begin_calls(now);
            self.due.set(now.after(self.policy.driver_silence_ms), Timer::Silence);
        }
    }

    pub(super) fn on_silence_due(&mut self, at: Millis, now: Millis) {
        if now.since(at) > STALL_MS || !self.has_credentials() {
            self.driver_reports.on_call(now);
        }
        let silence_ms = self.policy.driver_silence_ms;
        let Some(last_call_at) = self.driver_reports.last_call_at() else { return };
        let due = last_call_at.after(silence_ms);
        if due > now {
            self.due.set(due, Timer::Silence);
        } else if !self.end.is_stopping() {
            self.end.decide(RunVerdict::DriverSilent { silence_ms });
        }
    }

    pub(super) fn on_heartbeats(&mut self, ids: &BTreeSet<ExecutorId>, now: Millis) -> Reply {
        let (known, unknown) = self.split_known(ids);
        let timeout_ms = self.policy.heartbeat_timeout_ms;
        if timeout_ms > 0 {
            self.driver_reports.on_heartbeats(&known, timeout_ms, now);
            if !self.driver_reports.set_timer(true) {
                self.due.set(now.after(timeout_ms), Timer::Heartbeat);
            }
        }
        for &id in &known {
            self.on_heartbeat(id, now);
        }
        Reply::Noted { unknown }
    }

    /// An executor that the driver hears from works. The first report makes it ready, and proves that its
    /// group no longer ends young.
    fn on_heartbeat(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let is_awaited = executor.awaits_heartbeat;
        if executor.state == State::Running
            && let Some(throttle) = self.executors.throttle_of(id)
        {
            throttle.backoff.on_proven(id);
        }
        if is_awaited {
            self.change(id, now, |executor| executor.awaits_heartbeat = false);
            self.report_ready(id, now);
        }
    }

    pub(super) fn on_idle(&mut self, ids: BTreeSet<ExecutorId>, now: Millis) -> Reply {
        let (_, unknown) = self.split_known(&ids);
        self.driver_reports.on_idle(ids, IDLE_VALID_MS, now);
        Reply::Noted { unknown }
    }

    pub(super) fn on_disconnected(&mut self, id: ExecutorId, now: Millis) -> Reply {
        let until = now.after(REASON_WAIT_MS);
        if self.is_live(id) {
            if self.driver_reports.on_disconnected(id, until) {
                self.due.set(until, Timer::Disconnected(id));
                // It works for nobody any more, so the next one does not wait for the reason.
                self.change(id, now, |executor| executor.is_disconnected = true);
            }
        } else if self.executors.get(id).is_none() && !self.ours.is_retired(id) {
            return Reply::UnknownExecutor;
        }
        Reply::Done
    }

    pub(super) fn on_reason_wait_over(&mut self, id: ExecutorId, now: Millis) {
        if !self.driver_reports.is_reason_wait_over(id, now) {
            return;
        }
        let has_pod = self.executors.get(id).is_some_and(|executor| executor.uid.is_some());
        if has_pod && self.is_live(id) && self.can_judge() && !self.end.is_stopping() {
            self.errands.pods.add(id, ());
        } else {
            self.judge_disconnected(id, now);
        }
    }

    /// All that can be known about an executor that the driver lost is known.
    pub(super) fn judge_disconnected(&mut self, id: ExecutorId, now: Millis) {
        if self.end.is_stopping() {
            return;
        }
        if !self.can_judge() {
            // The snapshot that would show the reason is not valid now.
            return self.wait_for_reason(id, now.after(REASON_WAIT_MS));
        }
        self.driver_reports.forget(id);
        if self.is_live(id) {
            let message =
                "the driver lost the connection, and the pod's status does not say why".to_owned();
            let loss = Loss::new(LossReason::Disconnected, None, message);
            self.lose_and_delete(id, &loss, now);
        }
    }

    pub(super) fn wait_for_reason(&mut self, id: ExecutorId, until: Millis) {
        self.driver_reports.extend_reason_wait(id, until);
        self.due.set(until, Timer::Disconnected(id));
    }

    /// Ends executors without heartbeats, as long as the driver reports any.
    pub(super) fn on_heartbeats_due(&mut self, at: Millis, now: Millis) {
        self.driver_reports.set_timer(false);
        let timeout_ms = self.policy.heartbeat_timeout_ms;
        if now.since(at) > STALL_MS || !self.can_judge() {
            self.driver_reports.reset_silence(now);
        }
        // If no calls arrive, the next call sets the timer again.
        if self.end.is_stopping() || !self.driver_reports.is_driver_reporting(timeout_ms, now) {
            return;
        }
        let silent = self.driver_reports.silent(timeout_ms, now);
        let unreported = self.unreported(now);
        // An executor that starts meanwhile is judged in time.
        let mut next = now.after(timeout_ms);
        next = [silent.next, unreported.next].into_iter().flatten().fold(next, Millis::min);
        let seconds = timeout_ms / 1_000;
        let silent = silent.ids.into_iter().map(|id| (id, format!("no heartbeat for {seconds} s")));
        let first_s = heartbeat_first_ms(timeout_ms) / 1_000;
        let unreported = unreported.ids.into_iter().map(|id| {
            (id, format!("no heartbeat at all, although it has been running for {first_s} s"))
        });
        for (id, message) in silent.chain(unreported) {
            if !self.is_live(id) {
                self.driver_reports.forget(id);
                continue;
            }
            if let Some(at) = self.take_heartbeat_loss(id, now) {
                next = next.min(at);
                continue;
            }
            self.driver_reports.forget(id);
            let loss = Loss::new(LossReason::HeartbeatTimeout, None, message);
            self.lose_and_delete(id, &loss, now);
        }
        self.driver_reports.set_timer(true);
        let at = next.max(now.after(timeout_ms / CHECKS_MAX));
        self.due.set(at, Timer::Heartbeat);
    }

    /// The running executors that have never reported, although another one has. The driver need not
    /// know of tasks.
    fn unreported(&self, now: Millis) -> Silent {
        let running = self.executors.iter().filter_map(|(id, executor)| {
            let since = executor.running_since?;
            let is_watched = executor.state == State::Running && executor.task.is_none();
            is_watched.then_some((id, since))
        });
        self.driver_reports.unreported(running, self.policy.heartbeat_timeout_ms, now)
    }

    /// Counts a heartbeat loss of this executor's group, if another one is allowed. Otherwise
    /// returns when one will be.
    fn take_heartbeat_loss(&mut self, id: ExecutorId, now: Millis) -> Option<Millis> {
        let group = self.executors.group_of(id)?;
        let n_executors = group.counts().capacity().max(group.target());
        group.heartbeat_losses.take(n_executors, self.policy.heartbeat_timeout_ms, now)
    }

    /// False while the snapshot is invalid or another holder has the Lease: then no executor may be
    /// lost.
    pub(super) fn can_judge(&self) -> bool {
        self.gates.is_lease_held() && self.snapshot.is_synced()
    }

    /// True if the executor is neither lost nor ending.
    pub(super) fn is_live(&self, id: ExecutorId) -> bool {
        self.executors.get(id).is_some_and(|executor| {
            executor.life == Life::Wanted && executor.state != State::Terminating
        })
    }

    /// The ids that are in the table, and those that are not.
    pub(super) fn split_known(
        &self,
        ids: &BTreeSet<ExecutorId>,
    ) -> (Vec<ExecutorId>, Vec<ExecutorId>) {
        ids.iter().partition(|&&id| self.executors.get(id).is_some())
    }

    /// A renewal of credentials has ended. Until all of them are there, no driver and no executor starts.
    pub(super) fn on_credentials(&mut self, renewal: Renewal, now: Millis) {
        let Renewal { name, outcome, next_at: until } = renewal;
        let are_complete = self.gates.on_renewal(&name, &outcome);
        self.out.tell(Event::Run(match outcome {
            Ok(expires) => RunEvent::CredentialsRenewed { name, expires, until },
            Err(message) => RunEvent::CredentialsFailed { name, message, until },
        }));
        if are_complete {
            // The driver starts now, and could not make calls before.
            self.driver_reports.on_call(now);
        }
    }

    /// All credentials were stored, so that the driver can start.
    pub fn has_credentials(&self) -> bool {
        self.gates.has_credentials()
    }
}
