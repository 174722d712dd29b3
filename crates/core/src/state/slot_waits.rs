//! Slots whose executors still end: new executors wait for them for a time (`slot_wait`), because what
//! the slot's volumes have is worth it.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::ids::ExecutorId;
use posse_base::time::Millis;

/// The slots of one group that ending executors hold.
#[derive(Clone, Debug, Default)]
pub struct SlotWaits {
    /// Those that are waited for: until when, and which executor has the slot.
    awaited: BTreeMap<u32, (Millis, ExecutorId)>,
    /// The same, by the end of the wait.
    by_end: BTreeSet<(Millis, u32)>,
    /// Those whose wait is over, until an executor was created without them.
    overdue: BTreeMap<u32, ExecutorId>,
}

impl SlotWaits {
    /// The executor in this slot begins to end. New executors wait for the slot until `until`.
    pub fn begin(&mut self, slot: u32, id: ExecutorId, until: Millis) {
        self.end(slot);
        self.awaited.insert(slot, (until, id));
        self.by_end.insert((until, slot));
    }

    /// The slot is free, or its executor counts as capacity again.
    pub fn end(&mut self, slot: u32) {
        if let Some((until, _)) = self.awaited.remove(&slot) {
            self.by_end.remove(&(until, slot));
        }
        self.overdue.remove(&slot);
    }

    /// Ends the waits that are over.
    pub fn expire(&mut self, now: Millis) {
        while let Some(&(until, slot)) = self.by_end.first().filter(|(until, _)| *until <= now) {
            self.by_end.remove(&(until, slot));
            if let Some((_, id)) = self.awaited.remove(&slot) {
                self.overdue.insert(slot, id);
            }
        }
    }

    /// The number of slots that are waited for.
    pub fn count(&self) -> u32 {
        u32::try_from(self.awaited.len()).unwrap_or(u32::MAX)
    }

    /// The lowest slot that is waited for, and its executor.
    pub fn lowest(&self) -> Option<(u32, ExecutorId)> {
        self.awaited.first_key_value().map(|(slot, (_, id))| (*slot, *id))
    }

    /// When the next wait ends.
    pub fn next_end(&self) -> Option<Millis> {
        self.by_end.first().map(|(until, _)| *until)
    }

    /// The lowest slot below this one for which the wait was in vain, and its executor. Each is told
    /// once.
    pub fn take_overdue_below(&mut self, slot: u32) -> Option<(u32, ExecutorId)> {
        let first = self.overdue.first_entry().filter(|first| *first.key() < slot)?;
        Some(first.remove_entry())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_slot_or_with_its_time() {
        let mut waits = SlotWaits::default();
        for (slot, until) in [(3, 30), (1, 20), (2, 10)] {
            waits.begin(slot, ExecutorId(slot.into()), Millis(until));
        }
        assert_eq!((waits.count(), waits.next_end()), (3, Some(Millis(10))));
        waits.end(2);
        assert_eq!(
            (waits.lowest(), waits.next_end()),
            (Some((1, ExecutorId(1))), Some(Millis(20)))
        );
        waits.expire(Millis(19));
        assert_eq!((waits.count(), waits.take_overdue_below(9)), (2, None));
        waits.expire(Millis(30));
        assert_eq!((waits.count(), waits.next_end(), waits.lowest()), (0, None, None));
        assert_eq!(waits.take_overdue_below(1), None, "no lower slot was waited for");
        assert_eq!(waits.take_overdue_below(2), Some((1, ExecutorId(1))));
        assert_eq!(waits.take_overdue_below(2), None, "it was told");
        waits.end(3);
        assert_eq!(waits.take_overdue_below(9), None, "it became free");
    }

    #[test]
    fn the_next_executor_in_a_slot_begins_another_wait() {
        let mut waits = SlotWaits::default();
        waits.begin(0, ExecutorId(1), Millis(10));
        waits.begin(0, ExecutorId(2), Millis(20));
        waits.expire(Millis(10));
        assert_eq!((waits.count(), waits.lowest()), (1, Some((0, ExecutorId(2)))));
    }
}
