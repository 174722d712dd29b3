//! The tasks of a group that need an executor, and those that wait until others of their array have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::task::{Shape, Task};

/// The place of a task in the order in which executors are created, and the shape by which it is throttled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub order: u64,
    pub shape: Shape,
}

/// Tasks by their place.
#[derive(Clone, Debug, Default)]
pub struct ReadyTasks {
    ready: ByShape,
    /// By name. Only those with a limit.
    arrays: BTreeMap<Arc<str>, Array>,
    n_waiting: usize,
}

/// Tasks by shape, and then by order.
#[derive(Clone, Debug, Default)]
struct ByShape {
    /// No shape is empty.
    tasks: BTreeMap<Shape, BTreeMap<u64, Arc<Task>>>,
    len: usize,
}

impl ByShape {
    fn insert(&mut self, place: Place, task: Arc<Task>) {
        let of_shape = self.tasks.entry(place.shape).or_default();
        self.len += usize::from(of_shape.insert(place.order, task).is_none());
    }

    fn remove(&mut self, place: Place) -> Option<Arc<Task>> {
        let of_shape = self.tasks.get_mut(&place.shape)?;
        let task = of_shape.remove(&place.order)?;
        self.len -= 1;
        if of_shape.is_empty() {
            self.tasks.remove(&place.shape);
        }
        Some(task)
    }
}

/// The tasks of an array of which not all may run at once.
#[derive(Clone, Debug, Default)]
struct Array {
    max: u32,
    /// How many of its tasks have an executor.
    n_busy: u32,
    /// Those among `ReadyTasks::ready`.
    ready: BTreeSet<Place>,
    waiting: BTreeMap<Place, Arc<Task>>,
}

impl ReadyTasks {
    /// How many tasks may get an executor now.
    pub fn n_ready(&self) -> usize {
        self.ready.len
    }

    /// How many of each shape.
    pub fn shapes(&self) -> impl Iterator<Item = (Shape, usize)> {
        self.ready.tasks.iter().map(|(&shape, tasks)| (shape, tasks.len()))
    }

    /// The order of the first one of this shape.
    pub fn first(&self, shape: Shape) -> Option<u64> {
        Some(*self.ready.tasks.get(&shape)?.first_key_value()?.0)
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
    pub fn insert(&mut self, place: Place, task: &Arc<Task>) {
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
    pub fn remove(&mut self, place: Place, task: &Task) {
        self.ready.remove(place);
        let Some((name, _)) = limit(task) else { return };
        if let Some(array) = self.arrays.get_mut(name) {
            array.ready.remove(&place);
            self.n_waiting -= usize::from(array.waiting.remove(&place).is_some());
        }
        self.level(name);
    }

    /// Takes out the first one of this shape.
    pub fn pop(&mut self, shape: Shape) -> Option<Arc<Task>> {
        let order = *self.ready.tasks.get(&shape)?.first_key_value()?.0;
        let place = Place { order, shape };
        let task = self.ready.remove(place)?;
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
            && let Some(task) = self.ready.remove(place)
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
