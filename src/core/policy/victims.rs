//! The order in which executors are ended when the target falls.

use std::cmp::Reverse;

use crate::core::model::ids::ExecutorId;

/// The properties of an executor that the order depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub id: ExecutorId,
    pub stage: Stage,
    /// Annotation `controller.kubernetes.io/pod-deletion-cost` (KEP-2255).
    pub deletion_cost: i32,
}

/// How far an executor has started. Executors that have started less are ended first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Requested; no pod was seen.
    NotCreated,
    /// Its pod does not run.
    Pending,
    /// It runs, but its pod is not ready.
    NotReady,
    /// It is ready, and the driver reports it as idle.
    Idle,
    /// It is ready.
    Ready,
}

/// The `n` executors to end, ordered by stage, then lowest deletion cost, then youngest.
pub fn choose(mut candidates: Vec<Candidate>, n: usize) -> Vec<ExecutorId> {
    candidates.sort_by_key(|c| (rank(c.stage), c.deletion_cost, Reverse(c.id)));
    candidates.truncate(n);
    candidates.into_iter().map(|c| c.id).collect()
}

fn rank(stage: Stage) -> u8 {
    match stage {
        Stage::NotCreated => 0,
        Stage::Pending => 1,
        Stage::NotReady => 2,
        Stage::Idle => 3,
        Stage::Ready => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victims_are_ordered_by_stage_then_deletion_cost_then_age() {
        let candidates: Vec<Candidate> = [
            (1, Stage::Ready, 0),
            (2, Stage::Ready, -5),
            (3, Stage::Ready, 0),
            (4, Stage::NotReady, 9),
            (5, Stage::Pending, 9),
            (6, Stage::Pending, 9),
            (7, Stage::NotCreated, 9),
            (8, Stage::Idle, 9),
        ]
        .map(|(id, stage, deletion_cost)| Candidate { id: ExecutorId(id), stage, deletion_cost })
        .into();
        for (n, want) in [(0, vec![]), (3, vec![7, 6, 5]), (8, vec![7, 6, 5, 4, 8, 2, 3, 1])] {
            let got: Vec<u64> = choose(candidates.clone(), n).iter().map(|id| id.0).collect();
            assert_eq!(got, want);
        }
        assert_eq!(choose(candidates, 99).len(), 8);
    }
}
