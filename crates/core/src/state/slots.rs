//! The slots of one group: small indexes from 0, for ranks.

use std::collections::BTreeSet;

use crate::model::ids::ExecutorId;
use crate::state::ranges::Ranges;

/// A label is untrusted input. No group has more executors.
const SLOT_MAX: u32 = 1_000_000;

/// The slots that executors hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    taken: Ranges,
    /// Executors whose creates took effect late, and that end because another one holds their slot.
    late: BTreeSet<(u32, ExecutorId)>,
}

impl Slots {
    /// Takes the lowest free slot.
    pub fn take(&mut self) -> u32 {
        let slot = self.taken.first_absent();
        self.taken.insert(slot);
        u32::try_from(slot).unwrap_or(u32::MAX)
    }

    /// Takes this slot for an adopted executor. False if it is taken already, or too large.
    pub fn claim(&mut self, slot: u32) -> bool {
        slot <= SLOT_MAX && self.taken.insert(slot.into())
    }

    /// The number of slots below `limit` that are free.
    pub fn n_free_below(&self, limit: u32) -> u32 {
        let n_taken = self.taken.count_below(limit.into());
        limit.saturating_sub(u32::try_from(n_taken).unwrap_or(u32::MAX))
    }

    /// The executor has a slot that another one holds. Until it has ended, nobody gets the slot from there.
    pub fn note_late(&mut self, slot: u32, id: ExecutorId) {
        self.late.insert((slot, id));
    }

    /// The executor has ended, or it has a slot.
    pub fn forget_late(&mut self, id: ExecutorId) {
        self.late.retain(|(_, late)| *late != id);
    }

    /// Frees a slot. A late executor that has not ended holds it from now on.
    #[must_use]
    pub fn release(&mut self, slot: u32) -> Option<ExecutorId> {
        let next = self.late.iter().find(|(late, _)| *late == slot).copied();
        if let Some((_, id)) = next {
            self.forget_late(id);
            return Some(id);
        }
        let was_taken = self.taken.remove(slot.into());
        debug_assert!(was_taken, "slot {slot} was not taken");
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_slot_comes_first() {
        let mut slots = Slots::default();
        assert!((0..5).all(|want| slots.take() == want));
        assert_eq!([slots.release(3), slots.release(1)], [None, None]);
        for (limit, want) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (9, 6)] {
            assert_eq!(slots.n_free_below(limit), want, "below {limit}");
        }
        assert_eq!([slots.take(), slots.take(), slots.take()], [1, 3, 5]);
    }

    #[test]
    fn a_late_executor_holds_its_slot_after_the_one_that_had_it() {
        let mut slots = Slots::default();
        assert_eq!(slots.take(), 0);
        for id in [7, 8] {
            slots.note_late(0, ExecutorId(id));
        }
        slots.forget_late(ExecutorId(7));
        assert_eq!((slots.release(0), slots.take()), (Some(ExecutorId(8)), 1));
        assert_eq!((slots.release(0), slots.take()), (None, 0));
    }

    #[test]
    fn an_adopted_slot_is_claimed_once() {
        let mut slots = Slots::default();
        assert!(slots.claim(3));
        assert!(!slots.claim(3));
        assert!(slots.claim(1));
        assert_eq!([slots.take(), slots.take(), slots.take()], [0, 2, 4]);
        assert!(!slots.claim(u32::MAX));
    }
}
