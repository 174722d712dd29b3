//! The slots of one group: small indexes from 0, for ranks.

use std::collections::BTreeSet;

/// Slots below `end` are taken, except those in `free`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    end: u32,
    free: BTreeSet<u32>,
}

impl Slots {
    /// Takes the lowest free slot.
    pub fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            let slot = self.end;
            self.end = self.end.saturating_add(1);
            slot
        })
    }

    /// Takes this slot for an adopted executor. False if it is taken already, or too large.
    pub fn claim(&mut self, slot: u32) -> bool {
        /// A label is untrusted input. No group has more executors.
        const SLOT_MAX: u32 = 1_000_000;
        if slot > SLOT_MAX {
            return false;
        }
        if slot >= self.end {
            self.free.extend(self.end..slot);
            self.end = slot + 1;
            return true;
        }
        self.free.remove(&slot)
    }

    /// Frees a slot.
    pub fn release(&mut self, slot: u32) {
        debug_assert!(slot < self.end && !self.free.contains(&slot), "slot {slot} was not taken");
        self.free.insert(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_slot_comes_first() {
        let mut slots = Slots::default();
        assert!((0..5).all(|want| slots.take() == want));
        slots.release(3);
        slots.release(1);
        assert_eq!([slots.take(), slots.take(), slots.take()], [1, 3, 5]);
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
