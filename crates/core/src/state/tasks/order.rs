//! The order of tasks: what holds one back, and what its end means for those that come after it or after its array.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::task::{Task, TaskEnd};
use crate::state::tasks::Tasks;
use crate::state::tasks::prior_arrays::Prior;

impl Tasks {
    /// A task with this key, or an array of this name.
    pub fn is_prior(&self, name: &str) -> bool {
        self.is_known(name) || self.arrays.is_known(name)
    }

    /// What holds a new task of this order back, and its end if it comes too late to start.
    pub(super) fn hold(&mut self, task: &Task, order: u64) -> (BTreeSet<Prior>, Option<TaskEnd>) {
        let held: BTreeSet<Prior> = task.after.keys().filter_map(|name| self.prior(name)).collect();
        for prior in &held {
            match prior {
                Prior::Array(name) => self.arrays.hold(name, order, &task.key),
                Prior::Task(other) => {
                    self.next.entry(Arc::clone(other)).or_default().insert(Arc::clone(&task.key));
                }
            }
        }
        let end = task.after.iter().find_map(|(name, after)| {
            let key = if self.is_known(name) { name } else { self.arrays.bad(name, order)? };
            let ended = self.ended.get(key).filter(|ended| !after.allows(ended.end.outcome))?;
            Some(ended.end.of_next(key))
        });
        (held, end)
    }

    /// What holds a task that comes after this one, or after this array.
    fn prior(&self, name: &Arc<str>) -> Option<Prior> {
        if self.is_known(name) {
            return self.open.contains_key(name).then(|| Prior::Task(Arc::clone(name)));
        }
        self.arrays.has_open(name).then(|| Prior::Array(Arc::clone(name)))
    }

    /// Frees the tasks that come after this one, which has ended, or after its array. Gives those that are over with it,
    /// which the caller ends.
    pub fn free_next(&mut self, key: &Arc<str>, end: &TaskEnd) -> Vec<(Arc<str>, TaskEnd)> {
        let mut over = Vec::new();
        for next in self.next.remove(key).into_iter().flatten() {
            if self.is_over_with(&next, &Prior::Task(Arc::clone(key)), end) {
                over.push((next, end.of_next(key)));
            } else {
                self.free(&next, &Prior::Task(Arc::clone(key)));
            }
        }
        let Some(ended) = self.ended.get(key) else { return over };
        let Some(array) = &ended.task.array else { return over };
        let (name, order) = (Arc::clone(&array.name), ended.first_order);
        let prior = Prior::Array(Arc::clone(&name));
        for (_, next) in self.arrays.next_after(&name, order) {
            if self.is_over_with(&next, &prior, end) {
                over.push((next, end.of_next(key)));
            }
        }
        for (order, next) in self.arrays.take_free(&name) {
            // Another one of this key may have been opened since.
            let is_it = self.open.get(&next).is_some_and(|open| open.first_order == order);
            if is_it && !self.is_over_with(&next, &prior, end) {
                self.free(&next, &prior);
            }
        }
        over
    }

    fn is_over_with(&self, next: &str, prior: &Prior, end: &TaskEnd) -> bool {
        self.open.get(next).filter(|open| open.held.contains(prior)).is_some_and(|open| {
            open.task.after.get(prior.name()).is_some_and(|after| !after.allows(end.outcome))
        })
    }

    fn free(&mut self, next: &str, prior: &Prior) {
        let Some(open) = self.open.get_mut(next) else { return };
        if open.held.remove(prior) && open.held.is_empty() {
            self.n_held -= 1;
            if open.executor.is_none() {
                self.ready.insert(open.place, &open.task);
            }
        }
    }
}
