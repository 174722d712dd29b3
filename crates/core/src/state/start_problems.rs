//! The executors of a group that do not start.

use std::collections::BTreeSet;

use crate::model::ids::ExecutorId;
use crate::model::pod::StartProblemKind::{
    self, Config, Gated, Ignored, Image, Queued, Unschedulable,
};
use crate::state::life::Start;
use posse_base::time::Millis;

/// Which problem a group reports, the most important first.
const REPORTED: [StartProblemKind; 6] = [Config, Image, Unschedulable, Gated, Queued, Ignored];

/// An executor whose start has had a problem for this long is stuck: it gives its place to a task of a shape that
/// has none.
const STUCK_MS: u64 = 30_000;
/// The problems of a shape. An executor that a gate or a queue holds back waits, and would lose its turn.
pub const OWN_PROBLEMS: [StartProblemKind; 4] = [Config, Image, Unschedulable, Ignored];

/// Pending executors with a start problem.
#[derive(Clone, Debug, Default)]
pub struct StartProblems {
    /// By kind, and since when they have it.
    by_kind: [BTreeSet<(Millis, ExecutorId)>; REPORTED.len() + 1],
}

impl StartProblems {
    /// An executor with the most important problem, if any.
    pub fn first(&self) -> Option<ExecutorId> {
        REPORTED.iter().find_map(|&kind| Some(self.of(kind).first()?.1))
    }

    /// The executors with this problem; the one that has it for longest comes first.
    pub fn of(&self, kind: StartProblemKind) -> &BTreeSet<(Millis, ExecutorId)> {
        &self.by_kind[kind as usize]
    }

    /// An executor is stuck.
    pub fn is_stuck(&self, now: Millis) -> bool {
        self.first_problem_at().is_some_and(|since| since.after(STUCK_MS) <= now)
    }

    /// When one is, if that is in the future.
    pub fn stuck_at(&self, now: Millis) -> Option<Millis> {
        self.first_problem_at().map(|since| since.after(STUCK_MS)).filter(|&at| at > now)
    }

    fn first_problem_at(&self) -> Option<Millis> {
        OWN_PROBLEMS.iter().filter_map(|&kind| Some(self.of(kind).first()?.0)).min()
    }

    /// An executor has come further, or is gone.
    pub fn on_change(&mut self, id: ExecutorId, before: Start, after: Start) {
        if before.problem == after.problem {
            return;
        }
        if let Some((kind, since)) = before.problem {
            self.by_kind[kind as usize].remove(&(since, id));
        }
        if let Some((kind, since)) = after.problem {
            self.by_kind[kind as usize].insert((since, id));
        }
    }
}
