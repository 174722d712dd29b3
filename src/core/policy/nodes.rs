//! Owns the memory of nodes: which of them lost executors by their own doing, and which ones new
//! executors keep away from for a time. Forgets at a restart; knows nothing of how pods are kept away.

use std::sync::Arc;

use crate::core::model::event::LossReason;
use crate::core::model::pod::Pod;
use crate::core::model::time::Millis;
use crate::core::policy::settings::BadNodes;

/// So many nodes are kept away from at most; each is a requirement in every pod.
pub const AVOIDED_MAX: usize = 20;
/// So many nodes are remembered: as large as clusters are.
const SEEN_MAX: usize = 5_000;

/// True where a loss speaks against the node that the pod was on. A shutdown or a drain is somebody's
/// will, a preemption the scheduler's; a bad image or configuration would be bad anywhere.
#[must_use]
pub fn is_to_blame(reason: LossReason, pod: &Pod) -> bool {
    match reason {
        LossReason::AdmissionRejected | LossReason::NodeLost | LossReason::StartTimeout => true,
        // Its own kubelet ran short of something; the eviction API has another word.
        LossReason::Evicted => pod.end.as_ref().is_some_and(|end| &*end.pod_reason == "Evicted"),
        LossReason::AppError
        | LossReason::Completed
        | LossReason::ConfigError
        | LossReason::DeadlineExceeded
        | LossReason::Deleted
        | LossReason::Disconnected
        | LossReason::ImageError
        | LossReason::HeartbeatTimeout
        | LossReason::Killed
        | LossReason::MaxAge
        | LossReason::NodeShutdown
        | LossReason::OomKilled
        | LossReason::Preempted
        | LossReason::Unknown => false,
    }
}

#[derive(Clone, Debug)]
struct Node {
    name: Box<str>,
    /// Within the window, oldest first, never more than it takes.
    losses: Vec<Millis>,
}

/// Nodes that executors were seen on, and the ones among them that are avoided.
#[derive(Clone, Debug)]
pub struct Nodes {
    policy: BadNodes,
    /// By name.
    seen: Vec<Node>,
    /// Name and end, the oldest first.
    avoided: Vec<(String, Millis)>,
    /// The names of those alone, for the creates.
    names: Arc<Vec<String>>,
}

impl Nodes {
    /// No node is known.
    #[must_use]
    pub fn new(policy: BadNodes) -> Self {
        Self { policy, seen: Vec::new(), avoided: Vec::new(), names: Arc::default() }
    }

    /// An executor is on that node.
    pub fn note(&mut self, name: &str) {
        if self.policy.losses > 0 {
            self.place(name);
        }
    }

    /// An executor was lost by that node's doing. The time until when it is avoided, where that is
    /// news.
    pub fn on_loss(&mut self, name: &str, now: Millis) -> Option<Millis> {
        let most = self.policy.losses as usize;
        if most == 0 {
            return None;
        }
        let window_ms = self.policy.window_ms;
        let place = self.place(name)?;
        let losses = &mut self.seen[place].losses;
        losses.push(now);
        losses.retain(|&at| now.since(at) <= window_ms);
        if losses.len() < most {
            return None;
        }
        losses.clear();
        let until = now.after(self.policy.avoid_for_ms);
        if let Some(place) = self.avoided.iter().position(|(known, _)| known == name) {
            let (name, _) = self.avoided.remove(place);
            self.avoided.push((name, until));
            return None;
        }
        let share = self.seen.len() as u64 * u64::from(self.policy.share_permille) / 1_000;
        if self.avoided.len() as u64 >= share {
            return None;
        }
        if self.avoided.len() == AVOIDED_MAX {
            self.avoided.remove(0);
        }
        self.avoided.push((name.to_owned(), until));
        self.note_names();
        Some(until)
    }

    /// Lets those be used again whose time is over.
    pub fn on_time(&mut self, now: Millis) {
        self.avoided.retain(|(_, until)| *until > now);
        self.note_names();
    }

    /// The names that a new pod is to keep away from.
    #[must_use]
    pub fn names(&self) -> Arc<Vec<String>> {
        Arc::clone(&self.names)
    }

    /// The avoided ones, each with its end.
    #[must_use]
    pub fn avoided(&self) -> &[(String, Millis)] {
        &self.avoided
    }

    /// When the first of them may be used again.
    #[must_use]
    pub fn first_end(&self) -> Option<Millis> {
        self.avoided.iter().map(|(_, until)| *until).min()
    }

    fn note_names(&mut self) {
        if self.names.len() != self.avoided.len() || !self.avoided.is_empty() {
            self.names = Arc::new(self.avoided.iter().map(|(name, _)| name.clone()).collect());
        }
    }

    /// Where the node stands; none where there is no room for another.
    fn place(&mut self, name: &str) -> Option<usize> {
        let found = self.seen.binary_search_by(|node| (*node.name).cmp(name));
        match found {
            Ok(place) => Some(place),
            Err(_) if self.seen.len() == SEEN_MAX => None,
            Err(place) => {
                self.seen.insert(place, Node { name: name.into(), losses: Vec::new() });
                Some(place)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::pod::End;
    use crate::core::testing::pod;

    const POLICY: BadNodes =
        BadNodes { losses: 2, window_ms: 1_000, avoid_for_ms: 5_000, share_permille: 500 };

    /// Losses (node, time) in a cluster of `n_seen` nodes, and who is avoided at 4 s.
    #[track_caller]
    fn check(policy: BadNodes, n_seen: u32, losses: &[(&str, u64)], want: &[(&str, u64)]) {
        let mut nodes = Nodes::new(policy);
        (0..n_seen).for_each(|i| nodes.note(&format!("n{i}")));
        for &(name, at) in losses {
            nodes.on_loss(name, Millis(at));
        }
        nodes.on_time(Millis(4_000));
        let got: Vec<(&str, u64)> =
            nodes.avoided().iter().map(|(name, until)| (name.as_str(), until.0)).collect();
        assert_eq!(got, want, "{losses:?}");
        assert_eq!(*nodes.names(), got.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn nodes_are_avoided_for_a_time_and_never_too_many() {
        let off = BadNodes { losses: 0, ..POLICY };
        let short = BadNodes { avoid_for_ms: 100, ..POLICY };
        for (policy, n_seen, losses, want) in [
            (POLICY, 4, &[("n1", 0)][..], &[][..]),
            (POLICY, 4, &[("n1", 0), ("n2", 1)], &[]),
            (POLICY, 4, &[("n1", 0), ("n1", 1_000)], &[("n1", 6_000)]),
            (POLICY, 4, &[("n1", 0), ("n1", 1_001)], &[]),
            (POLICY, 4, &[("n1", 0), ("n1", 1), ("n1", 2), ("n1", 3)], &[("n1", 5_003)]),
            (short, 4, &[("n1", 0), ("n1", 1)], &[]),
            (off, 4, &[("n1", 0), ("n1", 1)], &[]),
            // Half of what was seen, and of one node there is no half.
            (POLICY, 1, &[("n0", 0), ("n0", 1)], &[]),
            (POLICY, 2, &[("n0", 0), ("n0", 1), ("n1", 2), ("n1", 3)], &[("n0", 5_001)]),
        ] {
            check(policy, n_seen, losses, want);
        }
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut nodes = Nodes::new(POLICY);
        (0..100).for_each(|i| nodes.note(&format!("n{i}")));
        for i in 0..=AVOIDED_MAX as u64 {
            for _ in 0..2 {
                nodes.on_loss(&format!("n{i}"), Millis(i));
            }
        }
        assert_eq!(nodes.names().len(), AVOIDED_MAX);
        assert!(!nodes.names().contains(&"n0".to_owned()));
    }

    #[test]
    fn only_what_is_the_nodes_own_doing_speaks_against_it() {
        let mut evicted = pod(1, 1);
        evicted.end = Some(Box::new(End { pod_reason: "Evicted".into(), ..End::default() }));
        let drained = pod(2, 1);
        for (reason, pod, want) in [
            (LossReason::Evicted, &evicted, true),
            (LossReason::Evicted, &drained, false),
            (LossReason::NodeLost, &drained, true),
            (LossReason::AdmissionRejected, &drained, true),
            (LossReason::StartTimeout, &drained, true),
            (LossReason::NodeShutdown, &drained, false),
            (LossReason::ImageError, &drained, false),
            (LossReason::AppError, &drained, false),
        ] {
            assert_eq!(is_to_blame(reason, pod), want, "{reason:?}");
        }
    }
}
