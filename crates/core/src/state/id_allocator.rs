//! Allocates executor ids. An instance never uses an id twice, also over restarts: ids are reserved
//! on the server in blocks before they are used.

use crate::model::ids::ExecutorId;
use crate::state::ranges::Ranges;
use posse_base::time::Millis;

/// The size of a block.
pub const BLOCK: u64 = 1_000;
/// A new block is requested if fewer ids than this are left.
const LEFT_MIN: u64 = 500;
/// How long after a dropped request the reservation is requested again.
const REQUEST_AGAIN_MS: u64 = 1_000;

#[derive(Clone, Debug)]
pub struct IdAllocator {
    next: u64,
    /// Ids up to here are reserved; none: the server does not store the high water.
    reserved: Option<u64>,
    requested: u64,
    /// Ids that other processes of this instance may have used.
    earlier: Ranges,
    /// Retired ids: their pod is gone, or they can never have one.
    retired: Ranges,
    /// A request that was dropped, and when it is sent again.
    dropped: Option<(ExecutorId, Millis)>,
}

impl IdAllocator {
    /// `reserved_before`: the high water that the server has stored for an earlier run.
    /// `is_stored`: the server stores the high water of this run.
    pub fn new(reserved_before: u64, is_stored: bool) -> Self {
        let next = reserved_before.saturating_add(1);
        let mut earlier = Ranges::default();
        earlier.insert_all(1..if is_stored { next } else { BLOCK + 1 });
        Self {
            next,
            reserved: is_stored.then_some(reserved_before),
            requested: reserved_before,
            earlier,
            retired: Ranges::default(),
            dropped: None,
        }
    }

    /// The first LIST is complete; `highest` is the highest id in it. Without a stored high water,
    /// ids from there to the end of the block may have been used by pods that are gone.
    pub fn on_first_list(&mut self, highest: Option<ExecutorId>) {
        let Some(highest) = highest else { return };
        if self.reserved.is_none() {
            let block_end = highest.0.div_ceil(BLOCK).max(1).saturating_mul(BLOCK);
            let next = block_end.saturating_add(1);
            self.earlier.insert_all(1..next);
            self.next = self.next.max(next);
        }
        self.on_seen(highest);
    }

    /// The pod of this id is gone, or it can never have one.
    pub fn retire(&mut self, id: ExecutorId) {
        self.retired.insert(id.0);
    }

    /// True if the id was used and has no pod any more.
    pub fn is_retired(&self, id: ExecutorId) -> bool {
        self.retired.contains(id.0)
    }

    /// A pod with this id exists, so the id is not used again.
    pub fn on_seen(&mut self, id: ExecutorId) {
        self.next = self.next.max(id.0.saturating_add(1));
    }

    /// True if another process of this instance may have used this id.
    pub fn is_of_earlier_run(&self, id: ExecutorId) -> bool {
        self.earlier.contains(id.0)
    }

    /// True if the server stores which ids may have been used.
    pub fn is_stored(&self) -> bool {
        self.reserved.is_some()
    }

    /// What the server must have stored; none if nothing was reserved.
    pub fn reserved(&self) -> Option<ExecutorId> {
        self.reserved.filter(|&reserved| reserved > 0).map(ExecutorId)
    }

    /// The server has reserved the ids up to here.
    pub fn on_reserved(&mut self, up_to: ExecutorId) {
        if let Some(reserved) = &mut self.reserved {
            *reserved = (*reserved).max(up_to.0);
        }
    }

    /// The Lease is held again: another holder may have used ids up to `high_water`.
    pub fn on_lease(&mut self, high_water: Option<ExecutorId>) {
        if let (Some(stored), Some(reserved)) = (high_water, &mut self.reserved)
            && stored.0 > *reserved
        {
            let next = stored.0.saturating_add(1);
            self.earlier.insert_all(reserved.saturating_add(1)..next);
            *reserved = stored.0;
            self.next = self.next.max(next);
        }
    }

    /// The reservation that `missing` more ids need, unless it was requested already.
    pub fn wanted(&mut self, missing: u64) -> Option<ExecutorId> {
        let reserved = self.reserved?;
        let last_needed = self.next.saturating_add(missing).saturating_sub(1);
        if missing == 0 || reserved >= last_needed.saturating_add(LEFT_MIN) {
            return None;
        }
        let up_to = last_needed.saturating_add(LEFT_MIN).div_ceil(BLOCK).saturating_mul(BLOCK);
        if self.requested >= up_to {
            return None;
        }
        self.requested = up_to;
        Some(ExecutorId(up_to))
    }

    /// The request for a reservation was dropped.
    pub fn on_dropped(&mut self, up_to: ExecutorId, now: Millis) {
        let up_to = self.dropped.map_or(up_to, |(before, _)| up_to.max(before));
        self.dropped = Some((up_to, now.after(REQUEST_AGAIN_MS)));
    }

    /// The dropped request, if it is time to send it again.
    pub fn take_dropped(&mut self, now: Millis) -> Option<ExecutorId> {
        self.dropped.take_if(|(_, at)| *at <= now).map(|(up_to, _)| up_to)
    }

    /// When the dropped request is sent again, if there is one.
    pub fn request_again_at(&self) -> Option<Millis> {
        self.dropped.map(|(_, at)| at)
    }

    /// The next id, if it is reserved.
    pub fn take(&mut self) -> Option<ExecutorId> {
        if self.reserved.is_some_and(|reserved| self.next > reserved) {
            return None;
        }
        let id = ExecutorId(self.next);
        assert!(!self.is_retired(id), "id {id} is given twice");
        self.next = self.next.checked_add(1)?;
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_continue_above_all_that_may_have_been_given() {
        for (before, stored, highest, want) in [
            (0, true, None, 1),
            (0, false, None, 1),
            (1_000, true, None, 1_001),
            (1_000, true, Some(37), 1_001),
            (0, false, Some(37), 1_001),
            (0, false, Some(1_000), 1_001),
            (0, false, Some(1_001), 2_001),
            (1_000, true, Some(4_321), 4_322),
        ] {
            let mut ids = IdAllocator::new(before, stored);
            ids.on_first_list(highest.map(ExecutorId));
            if let Some(up_to) = ids.wanted(1) {
                ids.on_reserved(up_to);
            }
            assert_eq!(ids.take(), Some(ExecutorId(want)), "{before} {stored} {highest:?}");
        }
    }

    #[test]
    fn no_id_is_used_before_it_is_reserved() {
        let mut ids = IdAllocator::new(0, true);
        assert_eq!(ids.take(), None);
        let up_to = ids.wanted(2_000).expect("a reservation is due");
        assert_eq!(up_to, ExecutorId(3_000));
        assert_eq!(ids.wanted(2_000), None, "requested once");
        ids.on_reserved(up_to);
        assert!((1..=3_000).all(|id| ids.take() == Some(ExecutorId(id))));
        assert_eq!(ids.take(), None);
    }
}
