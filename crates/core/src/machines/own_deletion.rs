//! Notices that the deletion of the driver's own pod is carried out by nobody.

use posse_base::time::Millis;

/// The driver's own pod, as the server shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnPod {
    Alive,
    /// It is being deleted, with this grace period.
    Deleting {
        grace_s: u64,
    },
    /// It does not exist, or another pod has its name.
    Gone,
}

/// Notices that nobody carries out the deletion of the driver's pod: a kubelet sends SIGTERM and, after
/// the grace period, SIGKILL. On a node whose kubelet is dead the containers live on.
#[derive(Clone, Debug, Default)]
pub struct OwnDeletion {
    was_seen: bool,
    deleting_since: Option<Millis>,
}

impl OwnDeletion {
    /// True if the pod's grace period is over since its deletion was first seen, or if the pod is gone.
    /// A pod that was never there is a wrong name, and no reason to end.
    pub fn is_abandoned(&mut self, pod: OwnPod, now: Millis) -> bool {
        match pod {
            OwnPod::Gone => self.was_seen,
            OwnPod::Alive => {
                self.was_seen = true;
                false
            }
            OwnPod::Deleting { grace_s } => {
                self.was_seen = true;
                let since = *self.deleting_since.get_or_insert(now);
                now.since(since) >= grace_s.saturating_mul(1_000)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_that_nobody_carries_out_is_noticed_after_its_grace_period() {
        let mut deletion = OwnDeletion::default();
        let deleting = OwnPod::Deleting { grace_s: 30 };
        for (at_s, pod, want) in [
            (0, OwnPod::Gone, false),
            (5, OwnPod::Alive, false),
            (10, deleting, false),
            (39, deleting, false),
            (40, deleting, true),
            (41, OwnPod::Gone, true),
        ] {
            assert_eq!(deletion.is_abandoned(pod, Millis(at_s * 1_000)), want, "{at_s} s");
        }
    }
}
