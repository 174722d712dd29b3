//! Executors of ended tasks that can still run: the next task with such a key waits for their end.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::ids::ExecutorId;
use crate::state::tasks::Tasks;

impl Tasks {
    /// This executor of an ended task of that key can still run: one that is open, or is added, waits for its end.
    pub fn leave(&mut self, key: &Arc<str>, id: ExecutorId) {
        match self.open.get_mut(key) {
            Some(open) if open.executor.is_none() => {
                self.ready.remove(open.place, &open.task);
                open.executor = Some(id);
                self.ready.on_busy(&open.task);
            }
            Some(_) => {}
            None => {
                self.leaving.insert(Arc::clone(key), id);
            }
        }
    }

    /// The group is deleted, and its tasks with it. `leaving`: the executors that can still run.
    pub fn clear(&mut self, leaving: BTreeMap<Arc<str>, ExecutorId>) {
        let (mut throttles, counts) = (std::mem::take(&mut self.throttles), self.counts);
        throttles.on_no_tasks();
        *self = Self { throttles, counts, leaving, ..Self::default() };
    }
}
