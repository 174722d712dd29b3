//! Owns which id comes next. An id is given once in the life of an instance, over restarts too:
//! the high water is reserved on the server in blocks before ids of a block are given.

use crate::core::model::ids::ExecutorId;

/// Ids in a block.
pub const BLOCK: u64 = 1_000;
/// A new block is asked for when fewer than so many are left.
const LEFT_MIN: u64 = 500;

/// The source of ids.
#[derive(Clone, Debug)]
pub struct IdAllocator {
    next: u64,
    /// Ids up to here are reserved; none: nothing on the server keeps them.
    reserved: Option<u64>,
    asked: u64,
}

impl IdAllocator {
    /// `reserved_before`: what an earlier run of this instance may have given, as the server kept
    /// it. `is_kept`: the server keeps the high water for us.
    #[must_use]
    pub fn new(reserved_before: u64, is_kept: bool) -> Self {
        Self {
            next: reserved_before.saturating_add(1),
            reserved: is_kept.then_some(reserved_before),
            asked: reserved_before,
        }
    }

    /// The first LIST is complete, and `highest` is the highest id in it. Without a high water that
    /// somebody kept, ids between it and the end of its block may have been given and be gone.
    pub fn on_first_list(&mut self, highest: Option<ExecutorId>) {
        let Some(highest) = highest else { return };
        if self.reserved.is_none() {
            let block_end = highest.0.div_ceil(BLOCK).max(1).saturating_mul(BLOCK);
            self.next = self.next.max(block_end.saturating_add(1));
        }
        self.on_seen(highest);
    }

    /// A pod with this id exists: it is not given again.
    pub fn on_seen(&mut self, id: ExecutorId) {
        self.next = self.next.max(id.0.saturating_add(1));
    }

    /// What the server has to keep; none where it keeps nothing, or nothing was reserved.
    #[must_use]
    pub fn reserved(&self) -> Option<ExecutorId> {
        self.reserved.filter(|&reserved| reserved > 0).map(ExecutorId)
    }

    /// Ids up to here are reserved now.
    pub fn on_reserved(&mut self, up_to: ExecutorId) {
        if let Some(reserved) = &mut self.reserved {
            *reserved = (*reserved).max(up_to.0);
        }
    }

    /// The instance is ours again: ids up to `high_water` may have been given by another meanwhile.
    pub fn on_lease(&mut self, high_water: Option<ExecutorId>) {
        if let (Some(kept), Some(reserved)) = (high_water, &mut self.reserved)
            && kept.0 > *reserved
        {
            *reserved = kept.0;
            self.next = self.next.max(kept.0.saturating_add(1));
        }
    }

    /// The reservation that `missing` more ids need, where it was not asked for yet.
    pub fn wanted(&mut self, missing: u64) -> Option<ExecutorId> {
        let reserved = self.reserved?;
        let last_needed = self.next.saturating_add(missing).saturating_sub(1);
        if missing == 0 || reserved >= last_needed.saturating_add(LEFT_MIN) {
            return None;
        }
        let up_to = last_needed.saturating_add(LEFT_MIN).div_ceil(BLOCK).saturating_mul(BLOCK);
        if self.asked >= up_to {
            return None;
        }
        self.asked = up_to;
        Some(ExecutorId(up_to))
    }

    /// A fresh id, where one may be given.
    pub fn take(&mut self) -> Option<ExecutorId> {
        if self.reserved.is_some_and(|reserved| self.next > reserved) {
            return None;
        }
        let id = ExecutorId(self.next);
        self.next = self.next.checked_add(1)?;
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_on_above_everything_that_may_have_been_given() {
        for (before, kept, highest, want) in [
            (0, true, None, 1),
            (0, false, None, 1),
            (1_000, true, None, 1_001),
            (1_000, true, Some(37), 1_001),
            (0, false, Some(37), 1_001),
            (0, false, Some(1_000), 1_001),
            (0, false, Some(1_001), 2_001),
            (1_000, true, Some(4_321), 4_322),
        ] {
            let mut ids = IdAllocator::new(before, kept);
            ids.on_first_list(highest.map(ExecutorId));
            if let Some(up_to) = ids.wanted(1) {
                ids.on_reserved(up_to);
            }
            assert_eq!(ids.take(), Some(ExecutorId(want)), "{before} {kept} {highest:?}");
        }
    }

    #[test]
    fn nothing_is_given_before_it_is_reserved() {
        let mut ids = IdAllocator::new(0, true);
        assert_eq!(ids.take(), None);
        let up_to = ids.wanted(2_000).expect("a reservation is due");
        assert_eq!(up_to, ExecutorId(3_000));
        assert_eq!(ids.wanted(2_000), None, "asked for once");
        ids.on_reserved(up_to);
        assert!((1..=3_000).all(|id| ids.take() == Some(ExecutorId(id))));
        assert_eq!(ids.take(), None);
    }
}
