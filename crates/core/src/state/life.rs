//! The life of an executor as posse has decided and reported it.

use crate::model::event::DeleteCause;
use crate::model::pod::StartProblemKind;
use posse_base::time::Millis;

/// What posse decided about an executor, and what it reported. Together with the pod this
/// determines the executor's `State`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It counts as capacity, if its pod allows.
    Wanted,
    /// Its create was cancelled before its pod was seen.
    Cancelled,
    /// posse ends it. Its end is not a loss.
    Ending(Ending),
    /// Its loss was reported, in this run or before a restart. It is never capacity again.
    /// `ending`: posse ends what is left of it.
    Lost { ending: Option<Ending> },
    /// It failed, its loss was reported, and its pod is retained.
    Retained,
    /// Its work is done and was reported. Its pod stays as the record of it.
    Completed,
    /// Its pod is gone. The entry stays only because the answer to its create is still open.
    Gone,
}

impl Life {
    /// How posse ends it, if it does.
    pub fn ending(self) -> Option<Ending> {
        match self {
            Self::Ending(ending) => Some(ending),
            Self::Lost { ending } => ending,
            Self::Cancelled | Self::Completed | Self::Gone | Self::Retained | Self::Wanted => None,
        }
    }

    /// True if its loss was reported.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Retained)
    }

    /// True if its end was reported: its loss, or that its work is done.
    pub fn is_reported(self) -> bool {
        self.is_lost() || self == Self::Completed
    }

    /// The life after posse decided to end the executor.
    #[must_use]
    pub fn ended_by(self, ending: Ending) -> Self {
        match self {
            Self::Cancelled | Self::Ending(_) | Self::Wanted => Self::Ending(ending),
            Self::Lost { .. } | Self::Retained => Self::Lost { ending: Some(ending) },
            Self::Completed | Self::Gone => self,
        }
    }

    /// The life after the executor's loss was reported.
    #[must_use]
    pub fn lost(self) -> Self {
        match self {
            Self::Completed | Self::Gone | Self::Retained => self,
            Self::Cancelled | Self::Ending(_) | Self::Lost { .. } | Self::Wanted => {
                Self::Lost { ending: self.ending() }
            }
        }
    }
}

/// How far a pending executor has come, by our own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// When it was first seen bound to a node.
    pub bound_since: Option<Millis>,
    /// Since when it has no node, and no scheduler says why.
    pub ignored_since: Option<Millis>,
    /// Why it does not start, and since when.
    pub problem: Option<(StartProblemKind, Millis)>,
    /// The number of init containers that were seen started.
    pub n_started: u32,
}

/// The end of an executor by posse's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    pub cause: DeleteCause,
    /// The executor may end by itself until then; it is deleted afterwards.
    pub drain_until: Option<Millis>,
}

impl Ending {
    /// An end without a drain period.
    pub fn now(cause: DeleteCause) -> Self {
        Self { cause, drain_until: None }
    }
}
