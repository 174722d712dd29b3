//! Owns the order in which a lower target ends executors. Written down, total, the same each time.

use std::cmp::Reverse;

use crate::core::model::ids::ExecutorId;

/// What the order looks at, of one executor that is capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub id: ExecutorId,
    pub stage: Stage,
    /// `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: i32,
}

/// How far an executor has come; the least far goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Asked for, nothing seen yet.
    NotCreated,
    /// A pod that does not run.
    Pending,
    /// It runs, and its pod is not ready.
    NotReady,
    /// It runs, is ready, and idle by the driver's word.
    Idle,
    /// It runs and is ready.
    Ready,
}

/// The `n` that go, in the written order: not yet created, pending, not ready, idle by
/// the driver's word, lowest deletion cost, youngest.
#[must_use]
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
    fn the_least_started_goes_first_then_the_cheapest_then_the_youngest() {
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
