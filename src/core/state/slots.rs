//! Owns the slots of one group: the lowest free index, 0 up, for ranks.

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

    /// Takes this very slot, which an adopted executor holds. False where it is taken already.
    pub fn claim(&mut self, slot: u32) -> bool {
        /// A label is bytes from outside; nobody has more executors in a group.
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

    /// The old pod is gone: its slot may be given again.
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
