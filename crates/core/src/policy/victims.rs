//! The order in which executors are ended when the target falls: with stable slots by slot. Each group
//! keeps its executors in this order, so that a choice costs nothing for the others.

use std::collections::BTreeSet;

use crate::model::ids::ExecutorId;
use crate::state::victim_order::VictimOrder;

/// The `n` executors to end. Of the ready ones, those in `idle` come first: the driver reports them
/// as idle.
pub fn choose(
    order: &BTreeSet<VictimOrder>,
    idle: &BTreeSet<VictimOrder>,
    n: usize,
) -> Vec<ExecutorId> {
    let idle_ready = idle.iter().filter(|place| place.is_ready());
    let busy = order.iter().skip_while(|place| !place.is_ready());
    order
        .iter()
        .take_while(|place| !place.is_ready())
        .chain(idle_ready)
        .chain(busy.filter(|place| !idle.contains(place)))
        .take(n)
        .map(VictimOrder::executor)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::status::State;

    #[test]
    fn with_stable_slots_the_highest_slots_come_first() {
        let slots = [Some(0), Some(3), None, Some(1), Some(2)];
        let ids = (1..).map(ExecutorId);
        let order: BTreeSet<VictimOrder> =
            ids.zip(slots).map(|(id, slot)| VictimOrder::by_slot(id, slot)).collect();
        let all: Vec<u64> = choose(&order, &BTreeSet::new(), 9).iter().map(|id| id.0).collect();
        assert_eq!(all, [3, 2, 5, 4, 1]);
        for (limit, want) in [(0, 5), (1, 4), (3, 2), (4, 1), (u32::MAX, 1)] {
            let n = order.iter().take_while(|place| place.is_slot_from(limit)).count();
            assert_eq!(n, want, "from {limit}");
        }
    }

    #[test]
    fn victims_are_ordered_by_stage_then_deletion_cost_then_age() {
        let place = |(id, state, is_ready, deletion_cost)| {
            VictimOrder::of(ExecutorId(id), state, is_ready, Some(deletion_cost))
                .expect("it is not ending")
        };
        let all = [
            (1, State::Running, true, 0),
            (2, State::Running, true, -5),
            (3, State::Running, true, 0),
            (4, State::Running, false, 9),
            (5, State::Pending, false, 9),
            (6, State::Pending, false, 9),
            (7, State::Requested, false, 9),
            (8, State::Running, true, 9),
        ]
        .map(place);
        let (order, idle) = (BTreeSet::from(all), BTreeSet::from([all[3], all[7]]));
        for (n, want) in [(0, vec![]), (3, vec![7, 6, 5]), (8, vec![7, 6, 5, 4, 8, 2, 3, 1])] {
            let got: Vec<u64> = choose(&order, &idle, n).iter().map(|id| id.0).collect();
            assert_eq!(got, want);
        }
        assert_eq!(choose(&order, &idle, 99).len(), 8);
    }
}
