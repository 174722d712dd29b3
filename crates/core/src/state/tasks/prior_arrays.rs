//! The arrays of a group's tasks, as what comes after a whole array sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What holds a task back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Prior {
    /// The open tasks of this array that were added before.
    Array(Arc<str>),
    Task(Arc<str>),
}

impl Prior {
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::Array(name) | Self::Task(name) => name,
        }
    }
}

/// The arrays by name. "Order": the place that a task had first; each task has its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrays(BTreeMap<Arc<str>, Array>);

#[derive(Clone, Debug, Default)]
struct Array {
    /// The open tasks, by order.
    open: BTreeSet<u64>,
    n_ended: usize,
    /// Order and key of those that have ended without success.
    bad: BTreeSet<(u64, Arc<str>)>,
    /// The keys of what comes after the array, by order. One added later holds up none of them, so that there is no
    /// circle.
    next: BTreeMap<u64, Arc<str>>,
}

impl Arrays {
    pub(super) fn is_known(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn has_open(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|array| !array.open.is_empty())
    }

    /// The first task of the array that was added before this order and has ended without success.
    pub(super) fn bad(&self, name: &str, before: u64) -> Option<&Arc<str>> {
        self.0.get(name)?.bad.first().filter(|(order, _)| *order < before).map(|(_, key)| key)
    }

    pub(super) fn on_open(&mut self, name: &Arc<str>, order: u64) {
        self.0.entry(Arc::clone(name)).or_default().open.insert(order);
    }

    pub(super) fn on_ended(&mut self, name: &Arc<str>, key: &Arc<str>, order: u64, is_good: bool) {
        let array = self.0.entry(Arc::clone(name)).or_default();
        array.open.remove(&order);
        array.n_ended += 1;
        if !is_good {
            array.bad.insert((order, Arc::clone(key)));
        }
    }

    /// An ended task is opened again or forgotten.
    pub(super) fn on_ended_removed(&mut self, name: &str, key: &str) {
        let Some(array) = self.0.get_mut(name) else { return };
        array.n_ended = array.n_ended.saturating_sub(1);
        array.bad.retain(|(_, bad)| **bad != *key);
        if array.n_ended == 0 && array.open.is_empty() {
            self.0.remove(name);
        }
    }

    pub(super) fn hold(&mut self, name: &Arc<str>, order: u64, key: &Arc<str>) {
        self.0.entry(Arc::clone(name)).or_default().next.insert(order, Arc::clone(key));
    }

    /// What comes after the array's task of this order.
    pub(super) fn next_after(&self, name: &str, order: u64) -> Vec<(u64, Arc<str>)> {
        let next = self.0.get(name).into_iter().flat_map(|array| array.next.range(order..));
        next.map(|(order, key)| (*order, Arc::clone(key))).collect()
    }

    /// Takes out what comes after tasks alone that have ended.
    pub(super) fn take_free(&mut self, name: &str) -> Vec<(u64, Arc<str>)> {
        let Some(array) = self.0.get_mut(name) else { return Vec::new() };
        let held = match array.open.first() {
            Some(first) => array.next.split_off(first),
            None => BTreeMap::new(),
        };
        std::mem::replace(&mut array.next, held).into_iter().collect()
    }
}
