//! Facts that a run was told, or has found out, and that nobody can read from its pods: what its record keeps.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::model::event::LossReason;
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::settings::CallFields;
use crate::model::task::{AFTER, REFUSED, Task, TaskEnd};

/// What a fact is about. The record keeps the last fact about each topic. They are written in this order, and a kill may come
/// between two of them: a task without its progress is one that has not begun.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// The executors of a group that calls have ended.
    Dismissed(GroupName),
    /// What calls have said about a group.
    Group(GroupName),
    /// A task, as the call gave it.
    Task(GroupName, Arc<str>),
    /// How far a task has come. It goes after its task.
    Progress(GroupName, Arc<str>),
    /// A group's target, and without `completions` the work that has lowered it.
    Target(GroupName),
    /// Which of a block of `WORK_BLOCK` indexes of a group with `completions` have ended: each end writes its whole line.
    Work(GroupName, u32),
}

/// How many indexes have one topic. Their line has at most 60 kB.
pub const WORK_BLOCK: u32 = 4_096;

/// What is known about a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// Their ids.
    Dismissed(Vec<RangeInclusive<u64>>),
    Group(CallFields),
    Progress(Progress),
    Target(Target),
    /// `order`: tasks are begun in this order.
    Task {
        order: u64,
        task: Arc<Task>,
    },
    /// `attempt`: that of a group which begins again as a whole. What other blocks have of an earlier one is worth nothing.
    Work {
        attempt: u32,
        ended: EndedWork,
    },
}

/// The target of a group, and what has lowered it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    pub target: u32,
    /// The target that the configuration had then.
    pub of_file: u32,
    /// A call has deleted the group of the file since, and another one may have made one of this name.
    pub is_deleted: bool,
    /// How much work has ended without `completions`.
    pub n_completed: u32,
    pub n_given_up: u32,
    /// The executors that it had, as far as their pods may still tell of it.
    pub ended: BTreeSet<ExecutorId>,
}

/// How far a task has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The attempts that had a pod.
    pub attempts: u32,
    pub retries_left: u32,
    /// How often a call has opened it again.
    pub round: u32,
    /// Set if it has ended: how, and its last executor.
    pub end: Option<(TaskEnd, Option<ExecutorId>)>,
}

/// The indexes of a group whose work has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedWork {
    pub completed: BTreeSet<u32>,
    /// They failed, and nothing takes their place.
    pub given_up: BTreeSet<u32>,
}

/// What the record is to keep about a topic from now on. Without knowledge: it is forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub topic: Topic,
    pub knowledge: Option<Knowledge>,
}

impl Topic {
    /// The work of this index.
    pub fn work(group: &GroupName, index: u32) -> Self {
        Self::Work(group.clone(), index / WORK_BLOCK)
    }
}

impl Fact {
    /// The highest id that it names.
    pub fn last_id(&self) -> Option<ExecutorId> {
        match self.knowledge.as_ref()? {
            Knowledge::Dismissed(ids) => ids.iter().map(|ids| ExecutorId(*ids.end())).max(),
            Knowledge::Progress(progress) => progress.end.as_ref()?.1,
            Knowledge::Target(target) => target.ended.last().copied(),
            Knowledge::Group(_) | Knowledge::Task { .. } | Knowledge::Work { .. } => None,
        }
    }
}

/// The reason for the end of a task that has this documented name.
pub fn end_reason(name: &str) -> Option<&'static str> {
    let losses = LossReason::ALL.into_iter().map(LossReason::as_str);
    losses.chain([REFUSED, AFTER]).find(|reason| *reason == name)
}

impl EndedWork {
    /// Those of one block.
    pub fn of_block(&self, block: u32) -> Self {
        let first = block.saturating_mul(WORK_BLOCK);
        let of_block = |indexes: &BTreeSet<u32>| {
            indexes.range(first..first.saturating_add(WORK_BLOCK)).copied().collect()
        };
        Self { completed: of_block(&self.completed), given_up: of_block(&self.given_up) }
    }

    /// The blocks that have any, and the first one, which also tells the attempt.
    pub fn blocks(&self) -> BTreeSet<u32> {
        let indexes = self.completed.iter().chain(&self.given_up);
        indexes.map(|index| index / WORK_BLOCK).chain([0]).collect()
    }

    pub fn contains(&self, index: u32) -> bool {
        self.completed.contains(&index) || self.given_up.contains(&index)
    }

    /// The work of an index has ended. False if it had ended before.
    pub fn insert(&mut self, index: u32, is_completed: bool) -> bool {
        if self.contains(index) {
            return false;
        }
        if is_completed { self.completed.insert(index) } else { self.given_up.insert(index) }
    }
}
