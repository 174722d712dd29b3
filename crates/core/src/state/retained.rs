//! What is kept of the past up to a limit: retained failed pods, and ended tasks that clients may ask for.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::model::ids::{ExecutorId, GroupName};
use crate::model::task::{ENDED_TASKS_MAX, TASKS_BYTES_MAX};

/// The executors whose failed pods are retained, oldest first.
#[derive(Clone, Debug, Default)]
pub struct RetainedPods {
    ids: VecDeque<ExecutorId>,
}

impl RetainedPods {
    /// This pod failed last.
    pub fn push(&mut self, id: ExecutorId) {
        debug_assert!(!self.ids.contains(&id), "{id} is retained twice");
        self.ids.push_back(id);
    }

    /// Inserts a pod before the first one that is later.
    pub fn insert(&mut self, id: ExecutorId, is_later: impl FnMut(&ExecutorId) -> bool) {
        debug_assert!(!self.ids.contains(&id), "{id} is retained twice");
        let index = self.ids.iter().position(is_later).unwrap_or(self.ids.len());
        self.ids.insert(index, id);
    }

    /// All of them, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = ExecutorId> {
        self.ids.iter().copied()
    }

    /// This pod is no longer retained.
    pub fn forget(&mut self, id: ExecutorId) {
        self.ids.retain(|retained| *retained != id);
    }

    /// Takes out the oldest one if there are more than `max`.
    pub fn pop_beyond(&mut self, max: usize) -> Option<ExecutorId> {
        if self.ids.len() > max { self.ids.pop_front() } else { None }
    }
}

/// Ended tasks that are remembered, oldest first.
#[derive(Clone, Debug, Default)]
pub struct EndedTasks {
    keys: VecDeque<(GroupName, Arc<str>, usize)>,
    n_bytes: usize,
}

impl EndedTasks {
    /// This task of so many bytes has ended.
    pub fn push(&mut self, group: GroupName, key: Arc<str>, n_bytes: usize) {
        self.n_bytes += n_bytes;
        self.keys.push_back((group, key, n_bytes));
    }

    /// Takes out the oldest one if there are too many.
    pub fn pop_beyond(&mut self) -> Option<(GroupName, Arc<str>)> {
        if self.keys.len() <= ENDED_TASKS_MAX && self.n_bytes <= TASKS_BYTES_MAX {
            return None;
        }
        let (group, key, n_bytes) = self.keys.pop_front()?;
        self.n_bytes -= n_bytes;
        Some((group, key))
    }

    /// This task is open again. Its next end is the one that counts.
    pub fn forget(&mut self, group: &GroupName, key: &str) {
        let at = self.keys.iter().position(|(of, one, _)| &**one == key && of == group);
        if let Some((.., n_bytes)) = at.and_then(|at| self.keys.remove(at)) {
            self.n_bytes -= n_bytes;
        }
    }

    /// The group is deleted, and its tasks with it.
    pub fn forget_group(&mut self, name: &GroupName) {
        self.keys.retain(|(group, ..)| group != name);
        self.n_bytes = self.keys.iter().map(|(_, _, n_bytes)| n_bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_ended_tasks_are_forgotten() {
        let mut tasks = EndedTasks::default();
        let mut push = |group: &str, n: usize, n_bytes| {
            tasks.push(GroupName::from(group), n.to_string().into(), n_bytes);
            tasks.pop_beyond().map(|(_, key)| key.to_string())
        };
        assert!((0..ENDED_TASKS_MAX).all(|n| push("a", n, 10).is_none()));
        assert_eq!(push("a", 7, 10), Some("0".to_owned()));
        assert_eq!(push("b", 1, TASKS_BYTES_MAX), Some("1".to_owned()));
        assert_eq!(tasks.pop_beyond().map(|(_, key)| key.to_string()), Some("2".to_owned()));
        let (group, key) = (GroupName::from("a"), "9");
        (0..2).for_each(|_| tasks.forget(&group, key));
        assert_eq!(tasks.n_bytes, TASKS_BYTES_MAX + tasks.keys.len() * 10 - 10);
        tasks.forget_group(&group);
        assert_eq!((tasks.keys.len(), tasks.n_bytes), (1, TASKS_BYTES_MAX));
        assert_eq!(tasks.pop_beyond(), None);
    }
}
