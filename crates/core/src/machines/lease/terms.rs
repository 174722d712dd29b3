//! How long a Lease lasts, and who waits for it.

use super::HolderState;
use crate::model::lease::Record;

/// The longest duration of another holder's Lease that we wait for, in seconds.
const HOLDER_LEASE_S_MAX: u32 = 3_600;
/// The clocks of the servers that store and read a Lease may differ by so much.
const CLOCKS_DIFFER_MS: u64 = 15_000;
/// One renewal (`renew_ms`), with time for a retry.
const LAST_LOOK_MS: u64 = 15_000;
/// Ids are reserved in blocks of this size: one write for a thousand executors.
pub const ID_BLOCK: u64 = 1_000;

/// The times of a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// `leaseDurationSeconds`: how long others must see no change before they may take the Lease.
    pub lease_s: u32,
    /// After this time without a renewal we give the Lease up. Well below `lease_s`, because a request in flight may
    /// still take effect.
    pub give_up_ms: u64,
    /// A write of ours may take effect until this long after the renewal: after `lease_s` another process may act.
    /// Requests end before it, and none is sent after it.
    pub writes_ms: u64,
    /// How often the Lease is renewed, but sooner after it was taken or a write failed; also how often it is read while
    /// another holds it.
    pub renew_ms: u64,
    /// The longest pause after a failed request.
    pub(super) backoff_ms_max: u64,
    /// The longest `Retry-After` that is obeyed: with more the Lease would be given up.
    pub(super) retry_after_ms_max: u64,
}

impl LeaseTerms {
    /// Of a run whose next process is started when the last one has ended.
    pub const USUAL: Self = Self {
        lease_s: 60,
        give_up_ms: 40_000,
        writes_ms: 55_000,
        renew_ms: 10_000,
        backoff_ms_max: 8_000,
        retry_after_ms_max: 15_000,
    };
    /// Of a run with a standby, which takes over within 20 s of the last renewal.
    pub const STANDBY: Self = Self {
        lease_s: 15,
        give_up_ms: 10_000,
        writes_ms: 13_000,
        renew_ms: 5_000,
        backoff_ms_max: 2_000,
        retry_after_ms_max: 4_000,
    };
}

/// How long a start waits for a holder that renews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderWait {
    /// Not at all: it fails.
    No,
    /// A minute: the holder may be ending, or its node may have been lost a moment ago.
    ForItsEnd,
    /// For ever: it is the standby of the holder.
    StandsBy,
}

pub(super) fn duration_ms(record: &Record) -> u64 {
    u64::from(record.duration_s.clamp(1, HOLDER_LEASE_S_MAX)) * 1_000
}

/// How long the Lease must stay unchanged here before it is taken: its whole duration. Less, if it has been unchanged for longer
/// than that by the servers' clocks, and the pod of its holder is being deleted, as on a lost node: one renewal is missed here.
pub(super) fn observation_ms(record: &Record, holder: HolderState) -> u64 {
    let lease_ms = duration_ms(record);
    let is_silent = record.unchanged_ms.is_some_and(|ms| ms >= lease_ms + CLOCKS_DIFFER_MS);
    match holder == HolderState::Ending && is_silent {
        true => lease_ms.min(LAST_LOOK_MS),
        false => lease_ms,
    }
}
