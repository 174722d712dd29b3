//! Owns when a staged bundle is dropped. Asks nobody; facts come in, a verdict goes out.

use std::fmt;

/// What is known about the pods of the application that a bundle is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleOwner {
    /// The last LIST held none of its pods; so long ago was the first one of which that is true.
    Absent { for_ms: u64, was_seen: bool },
    /// The last LIST held one.
    Present,
    /// The server did not answer this time.
    Unknown,
    /// Nobody looks, or nobody may.
    Unwatched,
}

/// One bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleFacts {
    pub owner: BundleOwner,
    /// Since it was fetched last, or since it came where it never was.
    pub unused_ms: u64,
    pub was_fetched: bool,
}

/// How long bundles are kept, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleTimeouts {
    /// Unused, and no pod has ever come for it.
    pub idle_ms: u64,
    /// After the last pod of its owner: a retried driver's next pod may take a while.
    pub gone_ms: u64,
}

/// Why a bundle goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// Nobody has fetched it for long.
    Idle,
    /// Its owner's pods are gone.
    OwnerGone,
}

impl fmt::Display for DropCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "nobody has fetched it for long",
            Self::OwnerGone => "no pod of its application is left",
        })
    }
}

/// Why the bundle is to be dropped; none where it stays. As long as a pod of its owner is there, or
/// may be there unseen, it stays.
#[must_use]
pub fn judge(facts: BundleFacts, patience: BundleTimeouts) -> Option<DropCause> {
    let is_idle = facts.unused_ms >= patience.idle_ms;
    match facts.owner {
        BundleOwner::Absent { for_ms, was_seen } if was_seen || facts.was_fetched => {
            // Fetched just now, its pod may be too young for the list.
            let is_gone = for_ms >= patience.gone_ms && facts.unused_ms >= patience.gone_ms;
            is_gone.then_some(DropCause::OwnerGone)
        }
        BundleOwner::Absent { .. } | BundleOwner::Unwatched => is_idle.then_some(DropCause::Idle),
        BundleOwner::Present | BundleOwner::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_stays_and_what_is_not_goes() {
        let patience = BundleTimeouts { idle_ms: 1_800, gone_ms: 300 };
        let absent = |for_ms, was_seen| BundleOwner::Absent { for_ms, was_seen };
        for (owner, unused_ms, was_fetched, want) in [
            // Nobody came for it.
            (absent(9_000, false), 1_799, false, None),
            (absent(9_000, false), 1_800, false, Some(DropCause::Idle)),
            // Its pods wait in a queue for hours.
            (BundleOwner::Present, 90_000, false, None),
            // Its pods were there and are gone.
            (absent(299, true), 90_000, true, None),
            (absent(300, true), 90_000, true, Some(DropCause::OwnerGone)),
            (absent(300, true), 90_000, false, Some(DropCause::OwnerGone)),
            // The server of bundles was started anew and has not seen them.
            (absent(300, false), 90_000, true, Some(DropCause::OwnerGone)),
            (absent(300, false), 299, true, None),
            // The API server is away.
            (BundleOwner::Unknown, 90_000, true, None),
            // There is no API server to ask: the last fetch is all that is known.
            (BundleOwner::Unwatched, 1_799, true, None),
            (BundleOwner::Unwatched, 1_800, true, Some(DropCause::Idle)),
            (BundleOwner::Unwatched, 1_800, false, Some(DropCause::Idle)),
        ] {
            let facts = BundleFacts { owner, unused_ms, was_fetched };
            assert_eq!(judge(facts, patience), want, "{facts:?}");
        }
    }
}
