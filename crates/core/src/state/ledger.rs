//! The ledger of pending creates, by executor. An entry is written before its request is sent.

use std::sync::Arc;

use crate::model::input::Watermark;
use crate::model::pod_text::PodText;
use posse_base::time::Millis;

/// How long after it was sent a create of unknown outcome can still take effect, and a LIST be answered: the API
/// server's request timeout.
pub const CREATE_OPEN_MS: u64 = 60_000;
/// How long after an accepted delete the pod must be terminating; otherwise the delete is sent
/// again.
pub const DELETE_SEEN_MS: u64 = 60_000;

/// What a create waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateStep {
    /// The answer to the POST.
    Answer,
    /// The answer to the GET after an AlreadyExists.
    Check,
    /// The time to send the GET again, which `Retries` knows.
    CheckLater,
    /// Cancelled, but a request may still take effect until then.
    AwaitLateEffect(Millis),
    /// The time to send the POST again with the same name, which `Retries` knows.
    PostLater,
}

/// One create, from before its first POST until its pod is seen or it can no longer take effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    pub step: CreateStep,
    /// What had been applied before the last request was sent.
    pub watermark: Watermark,
    /// When the last request was sent.
    pub sent_at: Millis,
    /// When the last POST with an unknown outcome was sent: its pod may exist.
    pub unknown_since: Option<Millis>,
    /// The number of POSTs with an unknown outcome.
    pub n_unknown: u32,
    pub n_tries: u32,
    /// The template of the last POST; none before the first.
    pub pod: Option<Arc<PodText>>,
}

impl Create {
    /// True if a request is in flight.
    pub fn is_in_flight(&self) -> bool {
        match self.step {
            CreateStep::Answer | CreateStep::Check => true,
            CreateStep::CheckLater | CreateStep::AwaitLateEffect(_) | CreateStep::PostLater => {
                false
            }
        }
    }

    /// Until when one of its requests may take effect; none if none can.
    pub fn open_until(&self) -> Option<Millis> {
        match self.step {
            CreateStep::Answer | CreateStep::Check => Some(self.sent_at.after(CREATE_OPEN_MS)),
            CreateStep::CheckLater | CreateStep::AwaitLateEffect(_) | CreateStep::PostLater => {
                self.unknown_since.map(|at| at.after(CREATE_OPEN_MS))
            }
        }
    }
}
