//! The creates of one group that failed and are sent again.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::ids::ExecutorId;
use posse_base::time::Millis;

/// When each of them is sent again, and since when creates of the group fail.
#[derive(Clone, Debug, Default)]
pub struct Retries {
    /// When each is sent again; none: its request is in flight.
    at: BTreeMap<ExecutorId, Option<Millis>>,
    /// The same in the order in which they are sent: the one that has waited longest comes first,
    /// so that a create that always fails does not hold up the others.
    by_time: BTreeSet<(Millis, ExecutorId)>,
    failing_since: Option<Millis>,
}

impl Retries {
    /// Sends this create again at `at`.
    pub fn schedule(&mut self, id: ExecutorId, at: Millis) {
        self.unschedule(id);
        self.at.insert(id, Some(at));
        self.by_time.insert((at, id));
    }

    /// The server failed to execute a create. True if this is the first failure since all creates
    /// succeeded.
    pub fn note_failure(&mut self, now: Millis) -> bool {
        let is_first = self.failing_since.is_none();
        self.failing_since.get_or_insert(now);
        is_first
    }

    /// This create is over. True if no failed create is left because of that.
    pub fn resolve(&mut self, id: ExecutorId) -> bool {
        self.unschedule(id);
        let was_last = self.at.remove(&id).is_some() && self.at.is_empty();
        if was_last {
            self.failing_since = None;
        }
        was_last
    }

    /// True if this create is sent again, or was and is not over.
    pub fn contains(&self, id: ExecutorId) -> bool {
        self.at.contains_key(&id)
    }

    /// The number of them.
    pub fn count(&self) -> usize {
        self.at.len()
    }

    /// All of them.
    pub fn ids(&self) -> impl Iterator<Item = ExecutorId> {
        self.at.keys().copied()
    }

    /// The next create that is due by now. Its request is in flight afterwards.
    pub fn take_due(&mut self, now: Millis) -> Option<ExecutorId> {
        let &(at, id) = self.by_time.first().filter(|(at, _)| *at <= now)?;
        self.by_time.remove(&(at, id));
        self.at.insert(id, None);
        Some(id)
    }

    /// How many are due by now, counted up to `max`.
    pub fn n_due(&self, now: Millis, max: u32) -> u32 {
        let due = self.by_time.iter().take_while(|(at, _)| *at <= now);
        u32::try_from(due.take(max as usize).count()).unwrap_or(max)
    }

    /// When the next one is due.
    pub fn next_at(&self) -> Option<Millis> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Since when at least one create of the group fails, if one does.
    pub fn failing_since(&self) -> Option<Millis> {
        self.failing_since
    }

    fn unschedule(&mut self, id: ExecutorId) {
        if let Some(Some(at)) = self.at.get(&id) {
            self.by_time.remove(&(*at, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_create_that_has_waited_longest_is_sent_first() {
        let mut retries = Retries::default();
        for (id, at) in [(1, 30), (2, 10), (3, 20), (4, 99)] {
            retries.schedule(ExecutorId(id), Millis(at));
        }
        assert_eq!((retries.n_due(Millis(30), 9), retries.n_due(Millis(30), 2)), (3, 2));
        let order: Vec<_> = std::iter::from_fn(|| retries.take_due(Millis(30))).collect();
        assert_eq!(order, [ExecutorId(2), ExecutorId(3), ExecutorId(1)]);
        assert_eq!(retries.next_at(), Some(Millis(99)));
    }

    #[test]
    fn a_failure_ends_when_every_failed_create_is_over() {
        let mut retries = Retries::default();
        assert!(!retries.resolve(ExecutorId(7)), "it never failed");
        retries.schedule(ExecutorId(1), Millis(5));
        retries.schedule(ExecutorId(2), Millis(5));
        assert!(retries.note_failure(Millis(3)));
        assert!(!retries.note_failure(Millis(4)));
        assert_eq!(retries.take_due(Millis(5)), Some(ExecutorId(1)));
        assert!(!retries.resolve(ExecutorId(1)));
        assert_eq!(retries.failing_since(), Some(Millis(3)));
        assert!(retries.resolve(ExecutorId(2)));
        assert_eq!((retries.failing_since(), retries.next_at()), (None, None));
    }
}
