//! The place of an executor in the order in which a group's executors are ended when its target falls.

use std::cmp::Reverse;

use crate::model::ids::ExecutorId;
use crate::model::status::State;

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

/// The place of an executor in the order: by stage, then lowest deletion cost (annotation
/// `controller.kubernetes.io/pod-deletion-cost`, KEP-2255), then youngest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VictimOrder {
    stage: Stage,
    /// With stable slots the negative slot instead, so that the highest slot comes first.
    deletion_cost: i32,
    id: Reverse<ExecutorId>,
}

impl VictimOrder {
    /// The place of an executor of a group with stable slots. An executor without a slot comes first.
    pub fn by_slot(id: ExecutorId, slot: Option<u32>) -> Self {
        // The same for all: an executor that runs is not spared for one that does not.
        let stage = Stage::NotCreated;
        Self { stage, deletion_cost: slot.map_or(i32::MIN, negative), id: Reverse(id) }
    }

    /// For places by slot: true if the slot is not below `limit`, or if there is none.
    pub fn is_slot_from(&self, limit: u32) -> bool {
        self.deletion_cost <= negative(limit)
    }

    /// The place of an executor; none if it is ending already.
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

    /// The executor that has this place.
    pub fn executor(&self) -> ExecutorId {
        self.id.0
    }

    /// The executor is ready.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }
}

/// No slot is as large as the maximum.
fn negative(slot: u32) -> i32 {
    -i32::try_from(slot).unwrap_or(i32::MAX)
}
