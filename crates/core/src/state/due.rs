//! What is due without an input: the timers, the next turn, and the starts whose time is up. A timer may fire late or
//! twice: its handler checks whether it still applies. Starts are judged by a LIST that was begun after their time was
//! up: events of a watch may be of any age.
//!
//! Always true after a turn: no timer is due, and every LIST that was applied has been used.

use std::collections::BTreeSet;

use crate::model::ids::{ExecutorId, GroupName, Uid};
use posse_base::time::Millis;

/// The shortest time between two LISTs that are requested because a decision needs one.
const ASKED_EVERY_MS: u64 = 5_000;

/// What a timer is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
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

/// All that is due, by the time.
#[derive(Clone, Debug, Default)]
pub struct Due {
    timers: BTreeSet<(Millis, Timer)>,
    /// When something that the last turn waits for comes by itself.
    turn_at: Option<Millis>,
    /// The starts that wait for a LIST.
    overdue: BTreeSet<ExecutorId>,
    /// When the last LIST was begun that is applied.
    updated_at: Option<Millis>,
    /// One was applied since the starts were last judged.
    has_update: bool,
    /// When a LIST was last requested.
    asked_at: Option<Millis>,
}

impl Due {
    /// Sets a timer. The same timer at the same time is set once.
    pub fn set(&mut self, at: Millis, timer: Timer) {
        self.timers.insert((at, timer));
    }

    /// Sets a timer for another time than before, or removes it.
    pub fn move_to(&mut self, at: Option<Millis>, before: Option<Millis>, timer: Timer) {
        if at != before {
            if let Some(before) = before {
                self.timers.remove(&(before, timer.clone()));
            }
            self.timers.extend(at.map(|at| (at, timer)));
        }
    }

    /// What the turn waits for comes by itself then; none: it never does.
    pub fn set_turn(&mut self, at: Option<Millis>) {
        self.turn_at = at;
    }

    /// The turn waits for this, too.
    pub fn add_turn(&mut self, at: Millis) {
        self.turn_at = self.turn_at.into_iter().chain([at]).min();
    }

    /// When the next turn is due without an input.
    pub fn next_at(&self) -> Option<Millis> {
        self.timers.first().map(|(at, _)| *at).into_iter().chain(self.turn_at).min()
    }

    /// The next timer that is due by now, with its time.
    pub fn pop_due(&mut self, now: Millis) -> Option<(Millis, Timer)> {
        if self.timers.first()?.0 > now {
            return None;
        }
        self.timers.pop_first()
    }

    /// A LIST was applied that was begun at that time.
    pub fn on_update(&mut self, at: Millis) {
        (self.updated_at, self.has_update) = (self.updated_at.max(Some(at)), true);
    }

    /// True if a LIST was applied that was begun at that time or later.
    pub fn is_updated_since(&self, at: Millis) -> bool {
        self.updated_at.is_some_and(|updated_at| updated_at >= at)
    }

    /// The start of this executor is judged after the next LIST.
    pub fn postpone(&mut self, id: ExecutorId) {
        self.overdue.insert(id);
    }

    /// The starts to judge now: all of them after a LIST.
    pub fn take_overdue(&mut self) -> BTreeSet<ExecutorId> {
        match std::mem::take(&mut self.has_update) {
            true => std::mem::take(&mut self.overdue),
            false => BTreeSet::new(),
        }
    }

    /// None: a LIST may be requested now, and is noted as requested. Otherwise when the next one may be.
    pub fn ask_for_list(&mut self, now: Millis) -> Option<Millis> {
        let next = self.asked_at.map(|at| at.after(ASKED_EVERY_MS)).filter(|&at| at > now);
        if next.is_none() {
            self.asked_at = Some(now);
        }
        next
    }

    pub fn check(&self, now: Millis) {
        let first = self.timers.first();
        debug_assert!(first.is_none_or(|(at, _)| *at > now), "{first:?} is due");
        debug_assert!(!self.has_update, "a LIST was not used");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_waits_for_an_update_that_is_not_older_than_its_limit() {
        let mut due = Due::default();
        due.postpone(ExecutorId(1));
        assert!(due.take_overdue().is_empty(), "the server showed nothing");
        due.on_update(Millis(50));
        assert!(due.is_updated_since(Millis(50)) && !due.is_updated_since(Millis(51)));
        assert_eq!(due.take_overdue(), BTreeSet::from([ExecutorId(1)]));
        due.postpone(ExecutorId(2));
        assert!(due.take_overdue().is_empty(), "that update was used");
    }

    #[test]
    fn lists_are_requested_5_s_apart() {
        let mut due = Due::default();
        assert_eq!(due.ask_for_list(Millis(100)), None);
        assert_eq!(due.ask_for_list(Millis(5_099)), Some(Millis(5_100)));
        assert_eq!(due.ask_for_list(Millis(5_100)), None);
        assert_eq!(due.ask_for_list(Millis(5_101)), Some(Millis(10_100)));
    }
}
