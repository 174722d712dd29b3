//! Which slots the executors of a group may have, and for which ones new executors wait.

use crate::model::ids::ExecutorId;
use crate::state::executors::{Executor, Group};
use posse_base::time::Millis;

/// How long new executors wait for a slot whose executor still ends: twice Kubernetes' default grace period.
const SLOT_WAIT_MS: u64 = 60_000;

/// How many new executors can have slots now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotRoom {
    /// All of them.
    Unlimited,
    /// Slots stay below a limit, and so many of these are free.
    Free(u32),
    /// Slots whose executors still end are waited for.
    Awaited {
        n_awaited: u32,
        /// How many slots are free below the lowest of them.
        n_free_below: u32,
        /// When the next wait ends.
        until: Option<Millis>,
    },
}

impl SlotRoom {
    /// How many of `n` executors may be created now.
    pub fn limit(self, n: u32) -> u32 {
        match self {
            Self::Unlimited => n,
            Self::Free(n_free) => n.min(n_free),
            // Each awaited slot is for one new executor. A slot that is free and lower is better.
            Self::Awaited { n_awaited, n_free_below, .. } => {
                n.min(n.saturating_sub(n_awaited).max(n_free_below))
            }
        }
    }
}

impl Group {
    /// All slots must stay below this. `completions`: a slot is an index of the work, and no two
    /// executors may work on one index.
    fn slot_limit(&self) -> Option<u32> {
        let target = self.spec.has_stable_slots().then(|| self.target());
        self.spec.completions.or(target)
    }

    /// The slots that new executors may have now.
    pub fn slot_room(&self) -> SlotRoom {
        if let Some(limit) = self.slot_limit() {
            return SlotRoom::Free(self.slots.n_free_below(limit));
        }
        let Some((lowest, _)) = self.awaited_slot() else { return SlotRoom::Unlimited };
        SlotRoom::Awaited {
            n_awaited: self.slot_waits.count(),
            n_free_below: self.slots.n_free_below(lowest),
            until: self.slot_waits.next_end(),
        }
    }

    /// The lowest slot that is waited for, and the executor that still has it.
    pub fn awaited_slot(&self) -> Option<(u32, ExecutorId)> {
        self.slot_waits.lowest().filter(|_| self.waits_for_slots())
    }

    /// True if a new executor waits for a slot for a limited time only.
    pub fn waits_for_slots(&self) -> bool {
        self.spec.has_volumes() && self.slot_limit().is_none()
    }

    /// Call it after the state of an executor has changed. `before`: a new one was requested.
    pub fn note_slot_wait(
        &mut self,
        id: ExecutorId,
        executor: &Executor,
        was_awaited: bool,
        now: Millis,
    ) {
        let Some(slot) = executor.slot.filter(|_| self.waits_for_slots()) else { return };
        match (was_awaited, executor.is_awaited_in_slot()) {
            (false, true) => self.slot_waits.begin(slot, id, now.after(SLOT_WAIT_MS)),
            (true, false) => self.slot_waits.end(slot),
            (false, false) | (true, true) => {}
        }
    }

    /// How many executors that count as capacity must end because their slots are not below the limit.
    pub fn n_beyond_slots(&self) -> u32 {
        let limit = self.slot_limit().filter(|_| self.spec.has_stable_slots());
        let beyond = limit.map_or(0, |limit| {
            self.order.iter().take_while(|rank| rank.is_slot_from(limit)).count()
        });
        u32::try_from(beyond).unwrap_or(u32::MAX)
    }
}
