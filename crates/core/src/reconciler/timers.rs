//! Timers of the reconciler. A timer may fire late or twice: its handler checks whether it still
//! applies.

use std::collections::BTreeSet;

use crate::model::ids::{ExecutorId, GroupName, Uid};
use posse_base::time::Millis;

/// What a timer is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A cancelled create can no longer take effect.
    Create(ExecutorId),
    /// The wait for the loss reason of a disconnected executor ends.
    Disconnected(ExecutorId),
    /// The drain period of an executor ends.
    Drain(ExecutorId),
    /// An executor may have missed its heartbeats.
    Heartbeat,
    /// An executor with more memory may have run long enough to prove that the memory suffices.
    MemoryProven(ExecutorId),
    /// A delete or patch of a pod can be sent again.
    Mutation(Uid),
    /// A node may no longer be avoided.
    Node,
    /// The probe of a group in a crash loop may have run long enough to end the backoff.
    ProbeProven(GroupName, ExecutorId),
    /// The busy executors may have changed that are protected.
    Protection,
    /// The driver may have been silent for too long.
    Silence,
    /// A start may have taken too long.
    Start(ExecutorId),
    /// A pod may have been terminating for too long.
    Terminating(Uid),
    /// The scheduler may have ignored an executor.
    Ignored(ExecutorId),
    /// An executor may have had no node for so long that its place goes to others: the turn plans its group.
    Unplaced,
}

/// All timers, by the time when they are due.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    due: BTreeSet<(Millis, Timer)>,
    /// When something that the last turn waits for comes by itself.
    turn_at: Option<Millis>,
}

impl Timers {
    /// Sets a timer. The same timer at the same time is set once.
    pub(super) fn set(&mut self, at: Millis, timer: Timer) {
        self.due.insert((at, timer));
    }

    /// Removes a timer that was set for this time.
    pub(super) fn cancel(&mut self, at: Millis, timer: Timer) {
        self.due.remove(&(at, timer));
    }

    /// What the turn waits for comes by itself then; none: it never does.
    pub(super) fn set_turn(&mut self, at: Option<Millis>) {
        self.turn_at = at;
    }

    /// The turn waits for this, too.
    pub(super) fn add_turn(&mut self, at: Millis) {
        self.turn_at = self.turn_at.into_iter().chain([at]).min();
    }

    /// When the next turn is due without an input.
    pub(super) fn next_at(&self) -> Option<Millis> {
        self.due.first().map(|(at, _)| *at).into_iter().chain(self.turn_at).min()
    }

    /// The next timer that is due by now, with its time.
    pub(super) fn pop_due(&mut self, now: Millis) -> Option<(Millis, Timer)> {
        if self.due.first()?.0 > now {
            return None;
        }
        self.due.pop_first()
    }
}
