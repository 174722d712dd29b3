//! What is kept of the past up to a limit: retained failed pods, and ended tasks that clients may ask for.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::model::ids::{ExecutorId, GroupName};
use crate::model::task::ENDED_TASKS_MAX;

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
    keys: VecDeque<(GroupName, Arc<str>)>,
}

impl EndedTasks {
    /// This task has ended. The oldest one, if it is to be forgotten now.
    pub fn push(&mut self, group: GroupName, key: Arc<str>) -> Option<(GroupName, Arc<str>)> {
        self.keys.push_back((group, key));
        if self.keys.len() > ENDED_TASKS_MAX { self.keys.pop_front() } else { None }
    }

    /// The group is deleted, and its tasks with it.
    pub fn forget_group(&mut self, name: &GroupName) {
        self.keys.retain(|(group, _)| group != name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_retained_pod_goes_first() {
        let mut pods = RetainedPods::default();
        pods.push(ExecutorId(5));
        pods.push(ExecutorId(7));
        pods.insert(ExecutorId(6), |other| other.0 > 6);
        pods.insert(ExecutorId(9), |other| other.0 > 9);
        pods.forget(ExecutorId(7));
        assert_eq!(pods.pop_beyond(3), None);
        assert_eq!(
            [2, 1, 0].map(|max| pods.pop_beyond(max).map(|id| id.0)),
            [Some(5), Some(6), Some(9)]
        );
        assert_eq!(pods.pop_beyond(0), None);
    }

    #[test]
    fn the_oldest_ended_tasks_are_forgotten() {
        let mut tasks = EndedTasks::default();
        let mut push = |group: &str, n: usize| {
            tasks.push(GroupName::from(group), n.to_string().into()).map(|(_, key)| key.to_string())
        };
        assert!((0..ENDED_TASKS_MAX).all(|n| push("a", n).is_none()));
        assert_eq!(push("b", 1), Some("0".to_owned()));
        tasks.forget_group(&GroupName::from("a"));
        assert_eq!(tasks.keys.len(), 1);
    }
}
