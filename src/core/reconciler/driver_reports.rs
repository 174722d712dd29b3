//! Owns what follows from the driver's words, and from its silence: executors that it does not hear
//! from, that it lost, and a driver that is gone itself.

use std::collections::BTreeSet;

use super::Reconciler;
use super::timers::Timer;
use crate::core::loss::Loss;
use crate::core::model::action::RunVerdict;
use crate::core::model::command::Reply;
use crate::core::model::event::LossReason;
use crate::core::model::ids::ExecutorId;
use crate::core::model::status::State;
use crate::core::model::time::Millis;

/// A timer that fires later than this tells that posse itself stood still: whoever was silent
/// meanwhile may have spoken, and nobody listened.
const STALL_MS: u64 = 1_000;
/// The silent ones are looked for at most so often in a time-out.
const LOOKS_MAX: u64 = 20;
/// Of so many executors of a group one may be lost for its silence within a time-out. More at once
/// is the network's or the driver's trouble, and ending them all would make it worse.
const SILENT_SHARE: u32 = 10;

impl Reconciler {
    /// The driver can make calls from now on.
    pub(super) fn await_driver(&mut self, now: Millis) {
        if self.policy.driver_silence_ms > 0 {
            self.driver_reports.spoke_at = Some(now);
            self.timers.set(now.after(self.policy.driver_silence_ms), Timer::Silence);
        }
    }

    /// Somebody made a call: who it is, nobody can tell.
    pub(super) fn note_call(&mut self, now: Millis) {
        if self.driver_reports.spoke_at.is_some() {
            self.driver_reports.spoke_at = Some(now);
        }
    }

    pub(super) fn on_silence_due(&mut self, at: Millis, now: Millis) {
        if now.since(at) > STALL_MS {
            self.note_call(now);
        }
        let silence_ms = self.policy.driver_silence_ms;
        let Some(spoke_at) = self.driver_reports.spoke_at else { return };
        let due = spoke_at.after(silence_ms);
        if due > now {
            self.timers.set(due, Timer::Silence);
        } else if self.stop.is_none() {
            self.verdict.get_or_insert(RunVerdict::DriverSilent { silence_ms });
        }
    }

    pub(super) fn on_heartbeats(&mut self, asked: &BTreeSet<ExecutorId>, now: Millis) -> Reply {
        let (known, unknown) = self.split_known(asked);
        let timeout_ms = self.policy.heartbeat_timeout_ms;
        if timeout_ms > 0 {
            self.driver_reports.on_heartbeats(&known, timeout_ms, now);
            if !self.driver_reports.has_timer {
                self.look_again(now.after(timeout_ms));
            }
        }
        Reply::Noted { unknown }
    }

    pub(super) fn on_idle(&mut self, asked: BTreeSet<ExecutorId>, now: Millis) -> Reply {
        let (_, unknown) = self.split_known(&asked);
        self.driver_reports.on_idle(asked, now);
        Reply::Noted { unknown }
    }

    pub(super) fn on_disconnected(&mut self, id: ExecutorId, now: Millis) -> Reply {
        let until = now.after(self.policy.reason_wait_ms);
        if self.is_live(id) {
            if self.driver_reports.on_lost(id, until) {
                self.timers.set(until, Timer::Disconnected(id));
            }
        } else if self.executors.get(id).is_none() && !self.retired.contains(id) {
            return Reply::UnknownExecutor;
        }
        Reply::Done
    }

    pub(super) fn on_search_over(&mut self, id: ExecutorId, now: Millis) {
        if !self.driver_reports.is_searched(id, now) || self.stop.is_some() {
            return;
        }
        if !self.can_judge() {
            // What would tell the reason is out of sight.
            let until = now.after(self.policy.reason_wait_ms.max(STALL_MS));
            self.driver_reports.search_on(id, until);
            self.timers.set(until, Timer::Disconnected(id));
            return;
        }
        self.driver_reports.forget(id);
        if self.is_live(id) {
            let message = "the driver lost it, and its pod does not tell why".to_owned();
            let loss = Loss { reason: LossReason::Disconnected, exit_code: None, message };
            self.lose_and_delete(id, &loss, now);
        }
    }

    /// Judges those that the driver does not hear from, as long as it hears at all.
    pub(super) fn on_heartbeats_due(&mut self, at: Millis, now: Millis) {
        self.driver_reports.has_timer = false;
        let timeout_ms = self.policy.heartbeat_timeout_ms;
        if now.since(at) > STALL_MS || !self.can_judge() {
            self.driver_reports.begin_anew(now);
        }
        // Where no call arrives the next one sets the timer again.
        if self.stop.is_some() || !self.driver_reports.is_driver_there(timeout_ms, now) {
            return;
        }
        let (silent, mut next) = self.driver_reports.silent(timeout_ms, now);
        for id in silent {
            if !self.is_live(id) {
                self.driver_reports.forget(id);
                continue;
            }
            if let Some(at) = self.take_silenced(id, now) {
                next = Some(next.map_or(at, |next| next.min(at)));
                continue;
            }
            self.driver_reports.forget(id);
            let seconds = timeout_ms / 1_000;
            let message = format!("the driver has not heard from it for {seconds} s");
            let loss = Loss { reason: LossReason::HeartbeatTimeout, exit_code: None, message };
            self.lose_and_delete(id, &loss, now);
        }
        if let Some(at) = next {
            self.look_again(at.max(now.after(timeout_ms / LOOKS_MAX)));
        }
    }

    /// Takes a place among the few of this executor's group that may be lost for their silence; the
    /// time when there is one again, where there is none.
    fn take_silenced(&mut self, id: ExecutorId, now: Millis) -> Option<Millis> {
        let timeout_ms = self.policy.heartbeat_timeout_ms;
        let group = self.executors.group_of(id)?;
        while group.silenced.front().is_some_and(|&at| now.since(at) >= timeout_ms) {
            group.silenced.pop_front();
        }
        let most = (group.counts.capacity().max(group.spec.target) / SILENT_SHARE).max(1);
        if group.silenced.len() >= most as usize {
            return group.silenced.front().map(|at| at.after(timeout_ms));
        }
        group.silenced.push_back(now);
        None
    }

    fn look_again(&mut self, at: Millis) {
        self.driver_reports.has_timer = true;
        self.timers.set(at, Timer::Heartbeat);
    }

    /// Nobody is judged by a picture that is known to be wrong, or for an instance of another's.
    fn can_judge(&self) -> bool {
        self.is_lease_held && self.snapshot.is_synced()
    }

    /// True for an executor that is capacity: neither lost nor ending.
    pub(super) fn is_live(&self, id: ExecutorId) -> bool {
        self.executors.get(id).is_some_and(|executor| match executor.state {
            State::Requested | State::Pending | State::Running => true,
            State::Draining | State::Terminating | State::Failed => false,
        })
    }

    /// Those that are in the table, and those that are not.
    pub(super) fn split_known(
        &self,
        ids: &BTreeSet<ExecutorId>,
    ) -> (Vec<ExecutorId>, Vec<ExecutorId>) {
        ids.iter().partition(|&&id| self.executors.get(id).is_some())
    }
}
