//! What a standby does otherwise: it waits for as long as the holder lives, and looks soon after each renewal.

use super::{HolderState, HolderWait, LeaseMachine};
use crate::model::lease::Record;
use crate::model::takeover::{Takeover, TakeoverCause};
use posse_base::time::Millis;

/// How long after the holder's renewal is due a standby reads the Lease.
const LOOK_AFTER_MS: u64 = 500;

impl LeaseMachine {
    pub(super) fn stands_by(&self) -> bool {
        self.wait == HolderWait::StandsBy && !self.ever_held
    }

    /// Whether it is worth a request to find out if this holder has ended: a standby asks only if it did not renew.
    pub fn doubts(&self, record: &Record, now: Millis) -> bool {
        let is_silent = |(version, since): &(String, Millis)| {
            *version == record.version_text && now.since(*since) >= self.terms.renew_ms
        };
        !self.stands_by() || self.observed.as_ref().is_none_or(is_silent)
    }

    /// When a standby reads the Lease again: soon after the next renewal is due, as far as the clocks agree, so that it
    /// sees the last one early.
    pub(super) fn look_ms(&self, record: &Record, wall_ms: i64) -> u64 {
        let renew_ms = self.terms.renew_ms;
        let age_ms =
            record.renewed_ms.and_then(|at| u64::try_from(wall_ms.saturating_sub(at)).ok());
        let known = age_ms.filter(|age_ms| *age_ms < renew_ms);
        known.map_or(renew_ms, |age_ms| (renew_ms - age_ms + LOOK_AFTER_MS).min(renew_ms))
    }
}

/// From whom this Lease is taken.
pub(super) fn takeover(record: &Record, holder: HolderState, wall_ms: i64) -> Takeover {
    let cause = match holder {
        _ if record.holder.is_empty() => TakeoverCause::Released,
        HolderState::Gone => TakeoverCause::Ended,
        HolderState::Ending | HolderState::Unknown => TakeoverCause::Silent,
    };
    let silent = record.renewed_ms.and_then(|at| u64::try_from(wall_ms.saturating_sub(at)).ok());
    Takeover { pod: record.owner.clone(), cause, silent_ms: silent.unwrap_or(0) }
}
