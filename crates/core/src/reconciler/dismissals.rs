//! Executors that a call has ended for good: those of a deleted group, and those that a kill does not replace. Their pods
//! show it only after a write has reached them, so the record keeps their ids until they are gone.

use std::ops::{Range, RangeInclusive};

use super::Reconciler;
use crate::model::fact::Topic;
use crate::model::ids::{ExecutorId, GroupName};

impl Reconciler {
    /// True if a call has ended this executor of the group. One of the same name may be there again.
    pub(super) fn is_dismissed(&self, id: ExecutorId, name: &GroupName) -> bool {
        let ids = self.executors.dismissed.get(name);
        let is_removed = |name| self.executors.groups().get(name).is_some_and(|one| one.is_removed);
        ids.is_some_and(|ids| ids.contains(id.0)) || is_removed(name)
    }

    /// The group is deleted, and each executor that it has. Before the first LIST nobody knows them.
    pub(super) fn dismiss_all(&mut self, name: &GroupName) {
        let group = self.executors.groups().get(name);
        if !self.had_first_list() || group.is_some_and(|group| !group.members.is_empty()) {
            self.dismiss(name, 1..self.ours.next());
        }
    }

    pub(super) fn dismiss(&mut self, name: &GroupName, ids: Range<u64>) {
        if !ids.is_empty() {
            let known = self.executors.dismissed.entry(name.clone()).or_default();
            // It is gone, and was the highest one until now.
            let last = known.last().filter(|&last| last < ids.end - 1);
            if let Some(last) = last.filter(|&last| self.ours.is_retired(ExecutorId(last))) {
                known.remove(last);
            }
            known.insert_all(ids);
            self.note_fact(Topic::Dismissed(name.clone()));
        }
    }

    /// A kill ends this executor, and nothing takes its place. One of a task is known by the end of the task.
    pub(super) fn dismiss_killed(&mut self, id: ExecutorId) {
        let executor = self.executors.get(id).filter(|executor| executor.task.is_none());
        if let Some(name) = executor.map(|executor| executor.group.clone()) {
            self.dismiss(&name, id.0..id.0.saturating_add(1));
        }
    }

    /// An earlier process has recorded these.
    pub(super) fn restore_dismissed(&mut self, name: &GroupName, ids: Vec<RangeInclusive<u64>>) {
        for range in ids {
            let (first, last) = range.into_inner();
            self.dismiss(name, first..last.saturating_add(1));
        }
    }

    /// An executor of the group is gone. While others of the dismissed ones are left, the record names the highest of their
    /// ids, so that nobody gets it again. It names a deleted group as a whole, because its executors end in any order.
    pub(super) fn forget_dismissed_one(&mut self, id: ExecutorId, name: &GroupName) {
        let is_removed = self.executors.groups().get(name).is_none_or(|group| group.is_removed);
        let ids = self.executors.dismissed.get_mut(name).filter(|_| !is_removed);
        let is_less = ids.is_some_and(|ids| ids.last() != Some(id.0) && ids.remove(id.0));
        if is_less && self.has_record() {
            self.unrecorded.note_later(Topic::Dismissed(name.clone()));
        }
        self.forget_dismissed(name);
    }

    /// Forgets the dismissed executors of a group if all of them are gone.
    pub(super) fn forget_dismissed(&mut self, name: &GroupName) {
        let Some(ids) = self.executors.dismissed.get(name) else { return };
        let group = self.executors.groups().get(name);
        if group.is_none_or(|group| !group.members.iter().any(|id| ids.contains(id.0))) {
            self.executors.dismissed.remove(name);
            self.note_end(Topic::Dismissed(name.clone()));
        }
    }
}
