//! What the driver reports: heartbeats, idle executors, lost connections, and the time of its last
//! call.
//!
//! Always true: heartbeats come only from calls, and a list of idle executors is known only with the time until which it
//! is valid.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::ids::ExecutorId;
use posse_base::time::Millis;

/// How long a list of idle executors is valid that the driver has given.
pub const IDLE_VALID_MS: u64 = 10_000;
/// A driver may need some time before it knows its executors.
const HEARTBEAT_FIRST_MS_MIN: u64 = 120_000;

/// A running executor that was never reported for this long is lost, once any other executor of the run was
/// reported.
pub fn heartbeat_first_ms(timeout_ms: u64) -> u64 {
    timeout_ms.max(HEARTBEAT_FIRST_MS_MIN)
}

/// Executors without heartbeats.
#[derive(Clone, Debug, Default)]
pub struct Silent {
    /// Silent for too long, the longest silence first.
    pub ids: Vec<ExecutorId>,
    /// When the next one may be silent for too long.
    pub next: Option<Millis>,
}

impl Silent {
    /// Each executor with the start of its silence, and when that has lasted too long.
    fn new(all: impl Iterator<Item = (ExecutorId, Millis, Millis)>, now: Millis) -> Self {
        let mut silent: Vec<(Millis, ExecutorId)> = Vec::new();
        let mut next: Option<Millis> = None;
        for (id, since, due) in all {
            if due <= now {
                silent.push((since, id));
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        silent.sort_unstable();
        Self { ids: silent.into_iter().map(|(_, id)| id).collect(), next }
    }
}

/// The driver's reports.
#[derive(Clone, Debug, Default)]
pub struct DriverReports {
    heartbeats: BTreeMap<ExecutorId, Millis>,
    /// The silence of an executor is measured from this time at the earliest.
    silence_from: Millis,
    /// When an executor was first reported in this run.
    first_report_at: Option<Millis>,
    /// When the last heartbeat call was made.
    heartbeat_call_at: Option<Millis>,
    /// Disconnected executors whose loss reason is awaited, and until when.
    reason_waits: BTreeMap<ExecutorId, Millis>,
    idle: BTreeSet<ExecutorId>,
    idle_until: Option<Millis>,
    /// When the last call of any kind was made; none before the driver can make calls.
    last_call_at: Option<Millis>,
    /// A timer for the heartbeat check is set.
    has_timer: bool,
}

impl DriverReports {
    /// The driver can make calls from now on.
    pub fn begin_calls(&mut self, now: Millis) {
        self.last_call_at = Some(now);
    }

    /// A call of any kind was made.
    pub fn on_call(&mut self, now: Millis) {
        self.last_call_at = self.last_call_at.map(|_| now);
    }

    pub fn last_call_at(&self) -> Option<Millis> {
        self.last_call_at
    }

    /// A timer for the heartbeat check is set, or has come. True if one was set before.
    pub fn set_timer(&mut self, is_set: bool) -> bool {
        std::mem::replace(&mut self.has_timer, is_set)
    }

    /// A heartbeat call. If the previous one is longer ago than half the timeout, the driver itself
    /// (or posse) was suspended: then silence from before does not count.
    pub fn on_heartbeats(&mut self, ids: &[ExecutorId], timeout_ms: u64, now: Millis) {
        if !self.is_driver_reporting(timeout_ms, now) {
            self.silence_from = now;
        }
        self.heartbeat_call_at = Some(now);
        if !ids.is_empty() {
            self.first_report_at.get_or_insert(now);
        }
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

    /// The executors without a heartbeat for `timeout_ms`.
    pub fn silent(&self, timeout_ms: u64, now: Millis) -> Silent {
        let since = |at: Millis| at.max(self.silence_from);
        let all = self.heartbeats.iter().map(|(&id, &at)| (id, at, since(at).after(timeout_ms)));
        Silent::new(all, now)
    }

    /// Those of the running executors that were never reported for `heartbeat_first_ms`: since they run, and
    /// since the first report of any executor. None before a call that was made after that time: the driver
    /// may call rarely.
    pub fn unreported(
        &self,
        running: impl Iterator<Item = (ExecutorId, Millis)>,
        timeout_ms: u64,
        now: Millis,
    ) -> Silent {
        let (Some(first), Some(called)) = (self.first_report_at, self.heartbeat_call_at) else {
            return Silent::default();
        };
        let first_ms = heartbeat_first_ms(timeout_ms);
        let unheard = running.filter(|(id, _)| !self.heartbeats.contains_key(id));
        let all = unheard.map(|(id, since)| {
            let due = since.max(first).max(self.silence_from).after(first_ms);
            // Not before the next call.
            (id, since, if due > called { due.max(now.after(1)) } else { due })
        });
        Silent::new(all, now)
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
    pub fn on_idle(&mut self, ids: BTreeSet<ExecutorId>, valid_ms: u64, now: Millis) {
        (self.idle, self.idle_until) = (ids, Some(now.after(valid_ms)));
    }

    /// The executors that the driver reports as idle.
    pub fn idle(&self, now: Millis) -> impl Iterator<Item = ExecutorId> {
        let is_valid = self.is_idle_list_valid(now);
        self.idle.iter().copied().take_while(move |_| is_valid)
    }

    /// True if the driver does not report this running executor as idle.
    pub fn is_busy(&self, id: ExecutorId, now: Millis) -> bool {
        self.is_idle_list_valid(now) && !self.idle.contains(&id)
    }

    /// True if the driver reports this executor as idle.
    pub fn is_idle(&self, id: ExecutorId, now: Millis) -> bool {
        self.is_idle_list_valid(now) && self.idle.contains(&id)
    }

    fn is_idle_list_valid(&self, now: Millis) -> bool {
        self.idle_until.is_some_and(|until| now < until)
    }

    /// Removes all reports about an executor.
    pub fn forget(&mut self, id: ExecutorId) {
        self.heartbeats.remove(&id);
        self.reason_waits.remove(&id);
    }

    pub fn check(&self) {
        debug_assert!(self.heartbeats.is_empty() || self.first_report_at.is_some());
        debug_assert!(self.first_report_at <= self.heartbeat_call_at, "a report without a call");
        debug_assert!(self.idle.is_empty() || self.idle_until.is_some(), "idle for ever");
    }
}
