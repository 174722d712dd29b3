//! Which busy executors are protected from autoscalers (`protect: busy`), by the driver's idle lists.
//!
//! Always true: of each executor that was looked at it is known since when it is busy or idle, and one that was told as
//! busy for too long still counts as busy.

use std::collections::BTreeMap;

use crate::model::ids::ExecutorId;
use posse_base::time::Millis;

/// How often the executors are looked at: so long a busy one may be without its protection.
pub const PROTECT_CHECK_MS: u64 = 1_000;
/// How long an executor is idle before its protection is taken off. Work comes in pieces, and each change is a
/// request.
const IDLE_SETTLES_MS: u64 = 60_000;
/// How long an executor may be protected while it is busy without a pause: longer than most work, and no node is held
/// for ever.
const BUSY_MS_MAX: u64 = 24 * 3_600_000;
/// The shortest time between two changes of one executor: the watch shows the first one in this time.
const CHANGE_EVERY_MS: u64 = 10_000;

/// What is known of the work of one executor.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Since when it is busy; none: it is idle, and has been for a while.
    busy_since: Option<Millis>,
    idle_since: Option<Millis>,
    /// It was busy for longer than the limit, and that was told.
    is_over: bool,
    not_before: Millis,
}

/// What one look at an executor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// It is to be protected.
    pub wanted: bool,
    /// It has been busy for longer than the limit. True once for each time that it is busy.
    pub is_newly_over: bool,
    /// Its last change is so long ago that it may change again.
    pub may_change: bool,
}

/// What is known of the work of executors.
#[derive(Clone, Debug, Default)]
pub struct BusyProtection {
    /// The running executors of groups with `protect: busy`.
    running: BTreeMap<ExecutorId, Work>,
    /// A timer for the next look at them is set.
    has_timer: bool,
}

impl BusyProtection {
    /// Looks whether this running executor is to be protected. `is_idle`: the driver reports it as idle.
    pub fn look(&mut self, id: ExecutorId, is_idle: bool, now: Millis) -> Look {
        let new = || Work {
            busy_since: (!is_idle).then_some(now),
            idle_since: None,
            is_over: false,
            not_before: Millis::ZERO,
        };
        let work = self.running.entry(id).or_insert_with(new);
        if is_idle {
            let since = *work.idle_since.get_or_insert(now);
            if now.since(since) >= IDLE_SETTLES_MS {
                (work.busy_since, work.is_over) = (None, false);
            }
        } else {
            work.idle_since = None;
            work.busy_since.get_or_insert(now);
        }
        let is_over = work.busy_since.is_some_and(|at| now.since(at) >= BUSY_MS_MAX);
        let is_newly_over = is_over && !work.is_over;
        work.is_over |= is_over;
        Look {
            wanted: work.busy_since.is_some() && !is_over,
            is_newly_over,
            may_change: work.not_before <= now,
        }
    }

    /// A change of this executor's protection was sent.
    pub fn on_sent(&mut self, id: ExecutorId, now: Millis) {
        if let Some(work) = self.running.get_mut(&id) {
            work.not_before = now.after(CHANGE_EVERY_MS);
        }
    }

    /// No others than these, which are sorted, may be protected.
    pub fn protect_only(&mut self, running: &[ExecutorId]) {
        self.running.retain(|id, _| running.binary_search(id).is_ok());
    }

    /// A timer for the next look is set, or has come. True if one was set before.
    pub fn set_timer(&mut self, is_set: bool) -> bool {
        std::mem::replace(&mut self.has_timer, is_set)
    }

    pub fn check(&self) {
        for work in self.running.values() {
            debug_assert!(work.busy_since.is_some() || work.idle_since.is_some());
            debug_assert!(work.busy_since.is_some() || !work.is_over, "idle for long, and over");
        }
    }
}
