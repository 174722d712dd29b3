//! What the driver reports: heartbeats, idle executors, lost connections, and the time of its last
//! call.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::model::ids::ExecutorId;
use crate::core::model::time::Millis;

/// How long a list of idle executors is valid.
pub const IDLE_VALID_MS: u64 = 10_000;

/// The driver's reports.
#[derive(Clone, Debug, Default)]
pub struct DriverReports {
    heartbeats: BTreeMap<ExecutorId, Millis>,
    /// The silence of an executor is measured from this time at the earliest.
    silence_from: Millis,
    /// When the last heartbeat call was made.
    heartbeat_call_at: Option<Millis>,
    /// Disconnected executors whose loss reason is awaited, and until when.
    reason_waits: BTreeMap<ExecutorId, Millis>,
    idle: BTreeSet<ExecutorId>,
    idle_until: Option<Millis>,
    /// When the last call of any kind was made; none before the driver can make calls.
    pub last_call_at: Option<Millis>,
    /// A timer for the heartbeat check is set.
    pub has_timer: bool,
}

impl DriverReports {
    /// A heartbeat call. If the previous one is longer ago than half the timeout, the driver itself
    /// (or posse) was suspended: then silence from before does not count.
    pub fn on_heartbeats(&mut self, ids: &[ExecutorId], timeout_ms: u64, now: Millis) {
        if !self.is_driver_reporting(timeout_ms, now) {
            self.silence_from = now;
        }
        self.heartbeat_call_at = Some(now);
        for &id in ids {
            self.heartbeats.insert(id, now);
        }
    }

    pub fn is_driver_reporting(&self, timeout_ms: u64, now: Millis) -> bool {
        self.heartbeat_call_at.is_some_and(|at| now.since(at) <= timeout_ms / 2)
    }

    /// Restarts the measurement of silence.
    pub fn reset_silence(&mut self, now: Millis) {
        self.silence_from = now;
    }

    /// The executors without a heartbeat for `timeout_ms`, the longest silence first; and when the
    /// next executor may be silent for that long.
    pub fn silent(&self, timeout_ms: u64, now: Millis) -> (Vec<ExecutorId>, Option<Millis>) {
        let mut silent: Vec<(Millis, ExecutorId)> = Vec::new();
        let mut next: Option<Millis> = None;
        for (&id, &heartbeat_at) in &self.heartbeats {
            let at = heartbeat_at.max(self.silence_from).after(timeout_ms);
            if at <= now {
                silent.push((heartbeat_at, id));
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        silent.sort_unstable();
        (silent.into_iter().map(|(_, id)| id).collect(), next)
    }

    /// The driver lost its connection to an executor. True if that was not reported before; the
    /// first report counts.
    pub fn on_disconnected(&mut self, id: ExecutorId, until: Millis) -> bool {
        let is_new = !self.reason_waits.contains_key(&id);
        if is_new {
            self.reason_waits.insert(id, until);
        }
        is_new
    }

    /// True if the wait for the loss reason is over.
    pub fn is_reason_wait_over(&self, id: ExecutorId, now: Millis) -> bool {
        self.reason_waits.get(&id).is_some_and(|&until| until <= now)
    }

    /// Extends the wait for the loss reason.
    pub fn extend_reason_wait(&mut self, id: ExecutorId, until: Millis) {
        self.reason_waits.insert(id, until);
    }

    /// Sets the idle executors; all others are busy.
    pub fn on_idle(&mut self, ids: BTreeSet<ExecutorId>, now: Millis) {
        (self.idle, self.idle_until) = (ids, Some(now.after(IDLE_VALID_MS)));
    }

    /// True if the driver reports this executor as idle.
    pub fn is_idle(&self, id: ExecutorId, now: Millis) -> bool {
        self.is_idle_list_valid(now) && self.idle.contains(&id)
    }

    /// True if the driver does not report this running executor as idle.
    pub fn is_busy(&self, id: ExecutorId, now: Millis) -> bool {
        self.is_idle_list_valid(now) && !self.idle.contains(&id)
    }

    fn is_idle_list_valid(&self, now: Millis) -> bool {
        self.idle_until.is_some_and(|until| now < until)
    }

    /// Removes all reports about an executor.
    pub fn forget(&mut self, id: ExecutorId) {
        self.heartbeats.remove(&id);
        self.reason_waits.remove(&id);
    }
}
