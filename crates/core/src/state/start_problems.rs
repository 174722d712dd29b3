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
