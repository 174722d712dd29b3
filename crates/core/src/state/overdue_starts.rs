//! Starts whose time is up. They are judged by a LIST that was begun after that time: events of a watch may be of any
//! age.

use std::collections::BTreeSet;

use crate::model::ids::ExecutorId;
use posse_base::time::Millis;

/// The shortest time between two LISTs that are requested because a decision needs one.
const ASKED_EVERY_MS: u64 = 5_000;

/// The starts that wait for a LIST.
#[derive(Clone, Debug, Default)]
pub struct OverdueStarts {
    ids: BTreeSet<ExecutorId>,
    /// When the last LIST was begun that is applied.
    updated_at: Option<Millis>,
    /// One was applied since the starts were last judged.
    has_update: bool,
    /// When a LIST was last requested.
    asked_at: Option<Millis>,
}

impl OverdueStarts {
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
        self.ids.insert(id);
    }

    /// The starts to judge now: all of them after a LIST.
    pub fn take_due(&mut self) -> BTreeSet<ExecutorId> {
        match std::mem::take(&mut self.has_update) {
            true => std::mem::take(&mut self.ids),
            false => BTreeSet::new(),
        }
    }

    /// None: a LIST may be requested now, and is noted as requested. Otherwise when the next one may be.
    pub fn ask(&mut self, now: Millis) -> Option<Millis> {
        let next = self.asked_at.map(|at| at.after(ASKED_EVERY_MS)).filter(|&at| at > now);
        if next.is_none() {
            self.asked_at = Some(now);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_waits_for_an_update_that_is_not_older_than_its_limit() {
        let mut overdue = OverdueStarts::default();
        overdue.postpone(ExecutorId(1));
        assert!(overdue.take_due().is_empty(), "the server showed nothing");
        overdue.on_update(Millis(50));
        assert!(overdue.is_updated_since(Millis(50)) && !overdue.is_updated_since(Millis(51)));
        assert_eq!(overdue.take_due(), BTreeSet::from([ExecutorId(1)]));
        overdue.postpone(ExecutorId(2));
        assert!(overdue.take_due().is_empty(), "that update was used");
    }

    #[test]
    fn lists_are_requested_5_s_apart() {
        let mut overdue = OverdueStarts::default();
        assert_eq!(overdue.ask(Millis(100)), None);
        assert_eq!(overdue.ask(Millis(5_099)), Some(Millis(5_100)));
        assert_eq!(overdue.ask(Millis(5_100)), None);
        assert_eq!(overdue.ask(Millis(5_101)), Some(Millis(10_100)));
    }
}
