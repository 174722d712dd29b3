//! The tasks of a group that need an executor, and those that wait until others of their array have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::task::Task;

/// Tasks by their place: the order in which executors are created for them.
#[derive(Clone, Debug, Default)]
pub struct ReadyTasks {
    ready: BTreeMap<u64, Arc<Task>>,
    /// By name. Only those with a limit.
    arrays: BTreeMap<Arc<str>, Array>,
    n_waiting: usize,
}

/// The tasks of an array of which not all may run at once.
#[derive(Clone, Debug, Default)]
struct Array {
    max: u32,
    /// How many of its tasks have an executor.
    n_busy: u32,
    /// Those among `ReadyTasks::ready`.
    ready: BTreeSet<u64>,
    waiting: BTreeMap<u64, Arc<Task>>,
}

impl ReadyTasks {
    /// How many tasks may get an executor now.
    pub fn n_ready(&self) -> usize {
        self.ready.len()
    }

    /// How many wait until others of their array have ended.
    pub fn n_waiting(&self) -> usize {
        self.n_waiting
    }

    /// How many tasks of this array have an executor. An array without a limit is not counted.
    pub fn n_busy_of(&self, array: &str) -> u32 {
        self.arrays.get(array).map_or(0, |array| array.n_busy)
    }

    /// This task needs an executor.
    pub fn insert(&mut self, place: u64, task: &Arc<Task>) {
        let Some((name, max)) = limit(task) else {
            self.ready.insert(place, Arc::clone(task));
            return;
        };
        let array = self.arrays.entry(Arc::clone(name)).or_default();
        array.max = max;
        array.waiting.insert(place, Arc::clone(task));
        self.n_waiting += 1;
        self.level(name);
    }

    /// This task needs none any more.
    pub fn remove(&mut self, place: u64, task: &Task) {
        self.ready.remove(&place);
        let Some((name, _)) = limit(task) else { return };
        if let Some(array) = self.arrays.get_mut(name) {
            array.ready.remove(&place);
            self.n_waiting -= usize::from(array.waiting.remove(&place).is_some());
        }
        self.level(name);
    }

    /// Takes out the first one.
    pub fn pop(&mut self) -> Option<Arc<Task>> {
        let (place, task) = self.ready.pop_first()?;
        if let Some((name, _)) = limit(&task)
            && let Some(array) = self.arrays.get_mut(name)
        {
            array.ready.remove(&place);
        }
        Some(task)
    }

    /// This task, which is not among the ready ones, has an executor now.
    pub fn on_busy(&mut self, task: &Task) {
        let Some((name, max)) = limit(task) else { return };
        let array = self.arrays.entry(Arc::clone(name)).or_default();
        array.max = max;
        array.n_busy += 1;
        self.level(name);
    }

    /// It has none any more.
    pub fn on_idle(&mut self, task: &Task) {
        let Some((name, _)) = limit(task) else { return };
        if let Some(array) = self.arrays.get_mut(name) {
            array.n_busy = array.n_busy.saturating_sub(1);
        }
        self.level(name);
    }

    /// Makes as many tasks of an array ready as may run beside those that do.
    fn level(&mut self, name: &Arc<str>) {
        let Some(array) = self.arrays.get_mut(name) else { return };
        let room = array.max.saturating_sub(array.n_busy) as usize;
        while array.ready.len() > room
            && let Some(place) = array.ready.pop_last()
            && let Some(task) = self.ready.remove(&place)
        {
            array.waiting.insert(place, task);
            self.n_waiting += 1;
        }
        while array.ready.len() < room
            && let Some((place, task)) = array.waiting.pop_first()
        {
            self.n_waiting -= 1;
            array.ready.insert(place);
            self.ready.insert(place, task);
        }
        if array.n_busy == 0 && array.ready.is_empty() && array.waiting.is_empty() {
            self.arrays.remove(name);
        }
    }
}

/// The name and the limit of the task's array, if it has a limit.
fn limit(task: &Task) -> Option<(&Arc<str>, u32)> {
    let array = task.array.as_ref()?;
    Some((&array.name, array.max?))
}
