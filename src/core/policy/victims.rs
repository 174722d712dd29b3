//! The order in which executors are ended when the target falls: with stable slots by slot. Each group
//! keeps its executors in this order, so that a choice costs nothing for the others.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::core::model::ids::ExecutorId;
use crate::core::model::status::State;

/// How far an executor has started. Executors that have started less are ended first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Requested; no pod was seen.
    NotCreated,
    /// Its pod does not run.
    Pending,
    /// It runs, but is not ready.
    NotReady,
    /// It is ready.
    Ready,
}

/// The rank of an executor in the order: by stage, then lowest deletion cost (annotation
/// `controller.kubernetes.io/pod-deletion-cost`, KEP-2255), then youngest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    stage: Stage,
    /// With stable slots the negative slot instead, so that the highest slot comes first.
    deletion_cost: i32,
    id: Reverse<ExecutorId>,
}

impl Rank {
    /// The rank of an executor of a group with stable slots. An executor without a slot comes first.
    pub fn by_slot(id: ExecutorId, slot: Option<u32>) -> Self {
        // The same for all: an executor that runs is not spared for one that does not.
        let stage = Stage::NotCreated;
        Self { stage, deletion_cost: slot.map_or(i32::MIN, negative), id: Reverse(id) }
    }

    /// For ranks by slot: true if the slot is not below `limit`, or if there is none.
    pub fn is_slot_from(&self, limit: u32) -> bool {
        self.deletion_cost <= negative(limit)
    }

    /// The rank of an executor; none if it is ending already.
    pub fn of(
        id: ExecutorId,
        state: State,
        is_ready: bool,
        deletion_cost: Option<i32>,
    ) -> Option<Self> {
        let stage = match state {
            State::Requested => Stage::NotCreated,
            State::Pending => Stage::Pending,
            State::Running if !is_ready => Stage::NotReady,
            State::Running => Stage::Ready,
            State::Completed | State::Draining | State::Failed | State::Terminating => return None,
        };
        Some(Self { stage, deletion_cost: deletion_cost.unwrap_or(0), id: Reverse(id) })
    }

    fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }
}

/// No slot is as large as the maximum.
fn negative(slot: u32) -> i32 {
    -i32::try_from(slot).unwrap_or(i32::MAX)
}

/// The `n` executors to end. Of the ready ones, those in `idle` come first: the driver reports them
/// as idle.
pub fn choose(order: &BTreeSet<Rank>, idle: &BTreeSet<Rank>, n: usize) -> Vec<ExecutorId> {
    let idle_ready = idle.iter().filter(|rank| rank.is_ready());
    let busy = order.iter().skip_while(|rank| !rank.is_ready());
    order
        .iter()
        .take_while(|rank| !rank.is_ready())
        .chain(idle_ready)
        .chain(busy.filter(|rank| !idle.contains(rank)))
        .take(n)
        .map(|rank| rank.id.0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_stable_slots_the_highest_slots_come_first() {
        let slots = [Some(0), Some(3), None, Some(1), Some(2)];
        let ids = (1..).map(ExecutorId);
        let order: BTreeSet<Rank> =
            ids.zip(slots).map(|(id, slot)| Rank::by_slot(id, slot)).collect();
        let all: Vec<u64> = choose(&order, &BTreeSet::new(), 9).iter().map(|id| id.0).collect();
        assert_eq!(all, [3, 2, 5, 4, 1]);
        for (limit, want) in [(0, 5), (1, 4), (3, 2), (4, 1), (u32::MAX, 1)] {
            let n = order.iter().take_while(|rank| rank.is_slot_from(limit)).count();
            assert_eq!(n, want, "from {limit}");
        }
    }

    #[test]
    fn victims_are_ordered_by_stage_then_deletion_cost_then_age() {
        let rank = |(id, stage, deletion_cost)| {
            let id = Reverse(ExecutorId(id));
            Rank { stage, deletion_cost, id }
        };
        let all = [
            (1, Stage::Ready, 0),
            (2, Stage::Ready, -5),
            (3, Stage::Ready, 0),
            (4, Stage::NotReady, 9),
            (5, Stage::Pending, 9),
            (6, Stage::Pending, 9),
            (7, Stage::NotCreated, 9),
            (8, Stage::Ready, 9),
        ]
        .map(rank);
        let (order, idle) = (BTreeSet::from(all), BTreeSet::from([all[3], all[7]]));
        for (n, want) in [(0, vec![]), (3, vec![7, 6, 5]), (8, vec![7, 6, 5, 4, 8, 2, 3, 1])] {
            let got: Vec<u64> = choose(&order, &idle, n).iter().map(|id| id.0).collect();
            assert_eq!(got, want);
        }
        assert_eq!(choose(&order, &idle, 99).len(), 8);
    }
}
