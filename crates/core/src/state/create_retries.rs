//! The creates of one group that failed and are sent again.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::ids::ExecutorId;
use crate::model::task::Shape;
use posse_base::time::Millis;

/// When each of them is sent again, and since when creates of the group fail.
#[derive(Clone, Debug, Default)]
pub struct Retries {
    /// The shape of each, and when it is sent again; none: its request is in flight.
    at: BTreeMap<ExecutorId, (Shape, Option<Millis>)>,
    /// The same by shape, in the order in which they are sent: the one that has waited longest comes
    /// first, so that a create that always fails does not hold up the others. No shape is empty.
    by_shape: BTreeMap<Shape, BTreeSet<(Millis, ExecutorId)>>,
    failing_since: Option<Millis>,
}

impl Retries {
    /// Sends this create again at `at`.
    pub fn schedule(&mut self, id: ExecutorId, shape: Shape, at: Millis) {
        self.unschedule(id);
        self.at.insert(id, (shape, Some(at)));
        self.by_shape.entry(shape).or_default().insert((at, id));
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

    /// The next create of this shape that is due by now. Its request is in flight afterwards.
    pub fn take_due(&mut self, shape: Shape, now: Millis) -> Option<ExecutorId> {
        let &(_, id) = self.by_shape.get(&shape)?.first().filter(|(at, _)| *at <= now)?;
        self.unschedule(id);
        self.at.insert(id, (shape, None));
        Some(id)
    }

    /// How many of each shape are due by now, each counted up to `max`.
    pub fn due(&self, now: Millis, max: u32) -> impl Iterator<Item = (Shape, u32)> {
        self.by_shape.iter().map(move |(&shape, of_shape)| {
            let due = of_shape.iter().take_while(|(at, _)| *at <= now);
            (shape, u32::try_from(due.take(max as usize).count()).unwrap_or(max))
        })
    }

    /// The next one of this shape, and when it is due.
    pub fn first(&self, shape: Shape) -> Option<(Millis, ExecutorId)> {
        self.by_shape.get(&shape)?.first().copied()
    }

    /// When the next one of each shape is due.
    pub fn next_at(&self) -> impl Iterator<Item = (Shape, Millis)> {
        self.by_shape.iter().filter_map(|(&shape, of_shape)| Some((shape, of_shape.first()?.0)))
    }

    /// Since when at least one create of the group fails, if one does.
    pub fn failing_since(&self) -> Option<Millis> {
        self.failing_since
    }

    fn unschedule(&mut self, id: ExecutorId) {
        if let Some(&(shape, Some(at))) = self.at.get(&id)
            && let Some(of_shape) = self.by_shape.get_mut(&shape)
        {
            of_shape.remove(&(at, id));
            if of_shape.is_empty() {
                self.by_shape.remove(&shape);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::task::Task;

    const TEMPLATE: Shape = Shape::TEMPLATE;

    #[test]
    fn the_create_that_has_waited_longest_is_sent_first() {
        let mut retries = Retries::default();
        for (id, at) in [(1, 30), (2, 10), (3, 20), (4, 99)] {
            retries.schedule(ExecutorId(id), TEMPLATE, Millis(at));
        }
        let n_due = |max| retries.due(Millis(30), max).map(|(_, n)| n).sum::<u32>();
        assert_eq!((n_due(9), n_due(2)), (3, 2));
        let order: Vec<_> = std::iter::from_fn(|| retries.take_due(TEMPLATE, Millis(30))).collect();
        assert_eq!(order, [ExecutorId(2), ExecutorId(3), ExecutorId(1)]);
        assert!(retries.next_at().eq([(TEMPLATE, Millis(99))]));
    }

    #[test]
    fn each_shape_has_its_own_order() {
        let mut retries = Retries::default();
        let other = Task { image: Some("i".into()), ..Task::default() }.shape();
        retries.schedule(ExecutorId(1), TEMPLATE, Millis(30));
        retries.schedule(ExecutorId(2), other, Millis(10));
        assert_eq!(retries.take_due(TEMPLATE, Millis(20)), None);
        assert_eq!(retries.take_due(other, Millis(20)), Some(ExecutorId(2)));
        assert!(retries.due(Millis(40), 9).eq([(TEMPLATE, 1)]), "2 is in flight");
        retries.schedule(ExecutorId(2), other, Millis(50));
        assert_eq!((retries.count(), retries.due(Millis(50), 9).count()), (2, 2));
    }

    #[test]
    fn a_failure_ends_when_every_failed_create_is_over() {
        let mut retries = Retries::default();
        assert!(!retries.resolve(ExecutorId(7)), "it never failed");
        retries.schedule(ExecutorId(1), TEMPLATE, Millis(5));
        retries.schedule(ExecutorId(2), TEMPLATE, Millis(5));
        assert!(retries.note_failure(Millis(3)));
        assert!(!retries.note_failure(Millis(4)));
        assert_eq!(retries.take_due(TEMPLATE, Millis(5)), Some(ExecutorId(1)));
        assert!(!retries.resolve(ExecutorId(1)));
        assert_eq!(retries.failing_since(), Some(Millis(3)));
        assert!(retries.resolve(ExecutorId(2)));
        assert_eq!((retries.failing_since(), retries.next_at().next()), (None, None));
    }
}
