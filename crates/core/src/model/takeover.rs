//! That a standby has taken over.

use crate::model::named::named;
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

named! {
    /// Why a Lease could be taken from its holder.
    pub enum TakeoverCause {
        /// The holder has released it.
        Released = "released",
        /// The holder's process or pod has ended.
        Ended = "ended",
        /// The holder did not renew it.
        Silent = "silent",
    }
}
