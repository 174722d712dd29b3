//! Pods that stay as the records of work that has ended.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::ids::ExecutorId;

/// The records of one group, in the order in which their work ended.
#[derive(Clone, Debug, Default)]
pub struct Records {
    by_end: BTreeSet<(u64, ExecutorId)>,
    places: BTreeMap<ExecutorId, u64>,
}

impl Records {
    /// `is_earlier`: the work ended before this process began. Such records come first, by id.
    pub fn insert(&mut self, id: ExecutorId, is_earlier: bool) {
        let last = self.by_end.last().map_or(0, |(last, _)| *last);
        let place = if is_earlier { 0 } else { last + 1 };
        if let Entry::Vacant(entry) = self.places.entry(id) {
            entry.insert(place);
            self.by_end.insert((place, id));
        }
    }

    pub fn remove(&mut self, id: ExecutorId) {
        if let Some(place) = self.places.remove(&id) {
            self.by_end.remove(&(place, id));
        }
    }

    /// All of them, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = ExecutorId> {
        self.by_end.iter().map(|&(_, id)| id)
    }

    /// The one whose work ended last.
    pub fn newest(&self) -> Option<ExecutorId> {
        self.by_end.last().map(|&(_, id)| id)
    }

    /// The oldest ones beyond the newest `max`.
    pub fn beyond(&self, max: usize) -> impl Iterator<Item = ExecutorId> {
        self.iter().take(self.by_end.len().saturating_sub(max))
    }
}
