//! Decides when a staged bundle is dropped.

use std::fmt;

/// What is known about the pods of the application that owns a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleOwner {
    /// The last LIST had no pod of the application. `for_ms`: since the first LIST without one.
    /// `was_seen`: an earlier LIST had one.
    Absent { for_ms: u64, was_seen: bool },
    /// The last LIST had a pod of the application.
    Present,
    /// The last LIST failed.
    Unknown,
    /// Pods are not listed, or that is not permitted.
    Unwatched,
}

/// What is known about a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleFacts {
    pub owner: BundleOwner,
    /// Since the last fetch; if there was none, since the upload.
    pub unused_ms: u64,
    pub was_fetched: bool,
}

/// How long bundles are kept, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleTimeouts {
    /// Without a fetch, if no pod of the owner was seen.
    pub idle_ms: u64,
    /// After the owner's last pod. A Job's retry may take a while to create the next pod.
    pub gone_ms: u64,
}

/// Why a bundle is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// It was not fetched for a long time.
    Idle,
    /// No pod of the application is left.
    OwnerGone,
}

impl fmt::Display for DropCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "it was not fetched for a long time",
            Self::OwnerGone => "no pod of its application is left",
        })
    }
}

/// Why the bundle is to be dropped; none if it is kept. It is kept while a pod of its owner exists
/// or may exist.
pub fn judge(facts: BundleFacts, timeouts: BundleTimeouts) -> Option<DropCause> {
    let is_idle = facts.unused_ms >= timeouts.idle_ms;
    match facts.owner {
        BundleOwner::Absent { for_ms, was_seen } if was_seen || facts.was_fetched => {
            // The pod that fetched it just now may be newer than the LIST.
            let is_gone = for_ms >= timeouts.gone_ms && facts.unused_ms >= timeouts.gone_ms;
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
    fn a_bundle_is_dropped_when_unused_or_its_owner_is_gone() {
        let timeouts = BundleTimeouts { idle_ms: 1_800, gone_ms: 300 };
        let absent = |for_ms, was_seen| BundleOwner::Absent { for_ms, was_seen };
        for (owner, unused_ms, was_fetched, want) in [
            // No pod was seen and nothing fetched it.
            (absent(9_000, false), 1_799, false, None),
            (absent(9_000, false), 1_800, false, Some(DropCause::Idle)),
            // The pods wait in a queue for hours.
            (BundleOwner::Present, 90_000, false, None),
            // The pods were seen and are gone.
            (absent(299, true), 90_000, true, None),
            (absent(300, true), 90_000, true, Some(DropCause::OwnerGone)),
            (absent(300, true), 90_000, false, Some(DropCause::OwnerGone)),
            // The bundle server was restarted and has not seen the pods.
            (absent(300, false), 90_000, true, Some(DropCause::OwnerGone)),
            (absent(300, false), 299, true, None),
            // The API server does not answer.
            (BundleOwner::Unknown, 90_000, true, None),
            // Pods are not listed: only the last fetch is known.
            (BundleOwner::Unwatched, 1_799, true, None),
            (BundleOwner::Unwatched, 1_800, true, Some(DropCause::Idle)),
            (BundleOwner::Unwatched, 1_800, false, Some(DropCause::Idle)),
        ] {
            let facts = BundleFacts { owner, unused_ms, was_fetched };
            assert_eq!(judge(facts, timeouts), want, "{facts:?}");
        }
    }
}
