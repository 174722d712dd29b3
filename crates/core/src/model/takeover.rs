//! That a standby has taken over.

use crate::model::owner::Owner;

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
