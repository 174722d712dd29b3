//! A Lease.

use crate::model::ids::{ExecutorId, Uid};
use crate::model::pod::Owner;

/// The Lease as it is stored or to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`; empty if it is to be created.
    pub version_text: String,
    /// `spec.holderIdentity`; empty if released.
    pub holder: String,
    /// `spec.leaseDurationSeconds`.
    pub duration_s: u32,
    /// `spec.acquireTime`, milliseconds since 1970.
    pub acquired_ms: Option<i64>,
    /// `spec.renewTime`, milliseconds since 1970.
    pub renewed_ms: Option<i64>,
    /// `spec.leaseTransitions`.
    pub transitions: u32,
    /// Annotation `posse.dev/id-high-water`: ids up to this one may have been used.
    pub id_high_water: Option<ExecutorId>,
    /// The owner pod as it was read. A write sets our own owner.
    pub owner: Option<Owner>,
    /// It has posse's labels for this instance or application. Another program's Lease may have our
    /// name; it is never changed.
    pub is_ours: bool,
}

/// From whom a standby has taken the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// The holder's pod.
    pub pod: Option<Owner>,
    pub cause: TakeoverCause,
    /// How long ago the holder had renewed or released it, by both clocks.
    pub silent_ms: u64,
}

impl Takeover {
    /// How long nobody acted, in seconds.
    #[expect(clippy::cast_precision_loss, reason = "no takeover lasts for centuries")]
    pub fn seconds(&self) -> f64 {
        self.silent_ms as f64 / 1_000.0
    }
}

/// Why a Lease could be taken from its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeoverCause {
    /// The holder has released it.
    Released,
    /// The holder's process or pod has ended.
    Ended,
    /// The holder did not renew it.
    Silent,
}

impl TakeoverCause {
    /// The word in events and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Ended => "ended",
            Self::Silent => "silent",
        }
    }
}
