//! Counts losses by node and decides which nodes new executors avoid for a time. Not kept over a
//! restart.
//!
//! Always true: the names that new pods avoid are those of the avoided nodes, and no more than a pod may name.

use std::sync::Arc;

use crate::model::pod_text::PreferredNode;
use crate::model::settings::BadNodes;
use posse_base::time::Millis;

/// At most this many nodes are avoided: each one is an affinity expression in every pod.
pub const AVOIDED_MAX: usize = 20;
/// At most this many nodes are remembered; Kubernetes supports clusters of up to 5,000 nodes.
const NODES_MAX: usize = 5_000;
/// If the scheduler finds no other node for so long, bad ones are better than none: an autoscaler had time to add one.
/// It is twice as long each time, because they may be bad for good.
const PATIENCE_MS: u64 = 300_000;
/// That time, doubled so often, is longer than any node is avoided.
const DOUBLINGS_MAX: u32 = 3;

#[derive(Clone, Debug)]
struct Node {
    name: Box<str>,
    /// Losses within the window, oldest first.
    losses: Vec<Millis>,
    /// When an executor last began or ended there.
    seen_at: Millis,
}

/// A loss that a node caused.
#[derive(Clone, Copy, Debug)]
pub struct NodeLoss {
    /// For how long the executor did not start.
    pub start_ms: u64,
    /// Others of its group run on other nodes, so that one node may be avoided in a small cluster, too.
    pub lives_elsewhere: bool,
}

/// The nodes on which executors were seen, and those that are avoided.
#[derive(Clone, Debug)]
pub struct Nodes {
    policy: BadNodes,
    /// Sorted by name.
    nodes: Vec<Node>,
    /// Name and end of that time, oldest first.
    avoided: Vec<(String, Millis)>,
    /// The names of the avoided nodes, shared with the creates.
    names: Arc<Vec<String>>,
    /// Since when the scheduler finds no other node.
    missed_since: Option<Millis>,
    /// How often bad nodes were used again for want of others, since the time of one was last over.
    n_relented: u32,
}

impl Nodes {
    pub fn new(policy: BadNodes) -> Self {
        Self {
            policy,
            nodes: Vec::new(),
            avoided: Vec::new(),
            names: Arc::default(),
            missed_since: None,
            n_relented: 0,
        }
    }

    /// An executor was seen on this node.
    pub fn add(&mut self, name: &str, now: Millis) {
        if self.policy.losses > 0 {
            self.find_or_add(name, now);
        }
    }

    /// This node caused a loss. The end of the time in which it is avoided, if that starts now. A node on which nothing
    /// was seen for as long as one is avoided, and no executor `lives`, may be gone: it is known no more.
    pub fn on_loss(
        &mut self,
        name: &str,
        loss: NodeLoss,
        lives: impl Fn(&str) -> bool,
        now: Millis,
    ) -> Option<Millis> {
        let most = self.policy.losses as usize;
        if most == 0 {
            return None;
        }
        // Who is tried one after the other, is lost at most so often.
        let window_ms = self.policy.window_ms + most as u64 * loss.start_ms;
        let forgotten_after_ms = self.policy.avoid_for_ms;
        self.nodes
            .retain(|node| now.since(node.seen_at) <= forgotten_after_ms || lives(&node.name));
        let index = self.find_or_add(name, now)?;
        let losses = &mut self.nodes[index].losses;
        losses.push(now);
        losses.retain(|&at| now.since(at) <= window_ms);
        if losses.len() < most {
            return None;
        }
        losses.clear();
        let until = now.after(self.policy.avoid_for_ms);
        if let Some(index) = self.avoided.iter().position(|(known, _)| known == name) {
            let (name, _) = self.avoided.remove(index);
            self.avoided.push((name, until));
            return None;
        }
        let share = u64::from(self.policy.share_permille);
        let at_least = u64::from(loss.lives_elsewhere && share > 0);
        let most = (self.nodes.len() as u64 * share / 1_000).max(at_least);
        if self.avoided.len() as u64 >= most {
            return None;
        }
        if self.avoided.len() == AVOIDED_MAX {
            self.avoided.remove(0);
        }
        self.avoided.push((name.to_owned(), until));
        self.refresh_names();
        Some(until)
    }

    /// Stops avoiding nodes whose time is over.
    pub fn on_time(&mut self, now: Millis) {
        let before = self.avoided.len();
        self.avoided.retain(|(_, until)| *until > now);
        if self.avoided.len() < before {
            self.n_relented = 0;
        }
        self.refresh_names();
    }

    /// The scheduler finds no other node for an executor. Bad ones may then be used again at this time.
    pub fn on_missed(&mut self, now: Millis) -> Millis {
        let doublings = self.n_relented.min(DOUBLINGS_MAX);
        self.missed_since.get_or_insert(now).after(PATIENCE_MS << doublings)
    }

    /// It found one for an executor that avoids the bad ones.
    pub fn on_found(&mut self, now: Millis) {
        self.missed_since = self.missed_since.map(|_| now);
    }

    /// No executor waits for another node.
    pub fn on_none_missed(&mut self) {
        self.missed_since = None;
    }

    /// Since when the scheduler finds no other node.
    pub fn missed_since(&self) -> Option<Millis> {
        self.missed_since
    }

    /// Stops avoiding nodes, because there is no other.
    pub fn relent(&mut self) {
        self.n_relented += u32::from(!self.avoided.is_empty());
        self.missed_since = None;
        self.avoided.clear();
        self.refresh_names();
    }

    /// The names of the nodes that a new pod must avoid.
    pub fn names(&self) -> Arc<Vec<String>> {
        Arc::clone(&self.names)
    }

    /// These nodes without those that a new pod must avoid.
    pub fn without_avoided(&self, nodes: &Arc<Vec<PreferredNode>>) -> Arc<Vec<PreferredNode>> {
        if !nodes.iter().any(|node| self.names.contains(&node.name)) {
            return Arc::clone(nodes);
        }
        let rest = nodes.iter().filter(|node| !self.names.contains(&node.name));
        Arc::new(rest.cloned().collect())
    }

    /// The avoided nodes, each with the end of that time.
    pub fn avoided(&self) -> &[(String, Millis)] {
        &self.avoided
    }

    /// When the first avoided node may be used again.
    pub fn next_expiry(&self) -> Option<Millis> {
        self.avoided.iter().map(|(_, until)| *until).min()
    }

    fn refresh_names(&mut self) {
        if self.names.len() != self.avoided.len() || !self.avoided.is_empty() {
            self.names = Arc::new(self.avoided.iter().map(|(name, _)| name.clone()).collect());
        }
    }

    pub fn check(&self) {
        let is_named = |(name, _): &(String, Millis)| self.names.contains(name);
        debug_assert!(self.avoided.iter().all(is_named), "an avoided node is not named");
        debug_assert!(self.names.len() == self.avoided.len() && self.names.len() <= AVOIDED_MAX);
    }

    /// The index of the node, which is added if it is new; none if there are too many.
    fn find_or_add(&mut self, name: &str, now: Millis) -> Option<usize> {
        let found = self.nodes.binary_search_by(|node| (*node.name).cmp(name));
        match found {
            Ok(index) => {
                self.nodes[index].seen_at = now;
                Some(index)
            }
            Err(_) if self.nodes.len() == NODES_MAX => None,
            Err(index) => {
                let node = Node { name: name.into(), losses: Vec::new(), seen_at: now };
                self.nodes.insert(index, node);
                Some(index)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BadNodes =
        BadNodes { losses: 2, window_ms: 1_000, avoid_for_ms: 5_000, share_permille: 500 };

    /// `losses` are (node, time) in a cluster of `n_seen` nodes; `want` is what is avoided at 4 s.
    #[track_caller]
    fn check(policy: BadNodes, n_seen: u32, losses: &[(&str, u64)], want: &[(&str, u64)]) {
        let mut nodes = Nodes::new(policy);
        (0..n_seen).for_each(|i| nodes.add(&format!("n{i}"), Millis(0)));
        for &(name, at) in losses {
            let loss = NodeLoss { start_ms: 0, lives_elsewhere: false };
            nodes.on_loss(name, loss, |_| false, Millis(at));
        }
        nodes.on_time(Millis(4_000));
        let got: Vec<(&str, u64)> =
            nodes.avoided().iter().map(|(name, until)| (name.as_str(), until.0)).collect();
        assert_eq!(got, want, "{losses:?}");
        assert_eq!(*nodes.names(), got.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn nodes_are_avoided_for_a_time_and_only_a_share_of_them() {
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
            // At most half of the nodes; of one node that is none.
            (POLICY, 1, &[("n0", 0), ("n0", 1)], &[]),
            (POLICY, 2, &[("n0", 0), ("n0", 1), ("n1", 2), ("n1", 3)], &[("n0", 5_001)]),
        ] {
            check(policy, n_seen, losses, want);
        }
    }

    #[test]
    fn one_of_several_nodes_may_be_avoided_if_others_run_elsewhere() {
        for (share_permille, n_seen, lives_elsewhere, want) in [
            (250, 2, true, 1),
            (250, 2, false, 0),
            (250, 3, true, 1),
            (0, 3, true, 0),
            (250, 8, true, 2),
        ] {
            let mut nodes = Nodes::new(BadNodes { share_permille, ..POLICY });
            (0..n_seen).for_each(|i| nodes.add(&format!("n{i}"), Millis(0)));
            for i in [0, 0, 1, 1, 2, 2] {
                let loss = NodeLoss { start_ms: 0, lives_elsewhere };
                nodes.on_loss(&format!("n{i}"), loss, |_| false, Millis(i));
            }
            assert_eq!(nodes.avoided().len(), want, "{share_permille} of {n_seen}");
        }
    }

    /// On spot nodes each replacement has a new name.
    #[test]
    fn a_share_is_of_the_nodes_that_may_be_there() {
        for (lives, want) in [(false, 2), (true, 4)] {
            let mut nodes = Nodes::new(POLICY);
            (0..80).for_each(|i| nodes.add(&format!("old{i}"), Millis(0)));
            (0..4).for_each(|i| nodes.add(&format!("n{i}"), Millis(6_000)));
            for i in [0, 0, 1, 1, 2, 2, 3, 3] {
                let loss = NodeLoss { start_ms: 0, lives_elsewhere: true };
                nodes.on_loss(&format!("n{i}"), loss, |_| lives, Millis(6_000));
            }
            assert_eq!(nodes.avoided().len(), want, "{lives}");
        }
    }

    #[test]
    fn long_starts_one_after_the_other_count_together() {
        for (start_ms, want) in [(0, 0), (400, 0), (500, 1)] {
            let mut nodes = Nodes::new(POLICY);
            (0..4).for_each(|i| nodes.add(&format!("n{i}"), Millis(0)));
            for at in [0, 2_000] {
                let loss = NodeLoss { start_ms, lives_elsewhere: true };
                nodes.on_loss("n1", loss, |_| false, Millis(at));
            }
            assert_eq!(nodes.avoided().len(), want, "{start_ms}");
        }
    }

    #[test]
    fn the_oldest_avoided_node_is_dropped_at_the_limit() {
        let mut nodes = Nodes::new(POLICY);
        (0..100).for_each(|i| nodes.add(&format!("n{i}"), Millis(0)));
        for i in 0..=AVOIDED_MAX as u64 {
            for _ in 0..2 {
                let loss = NodeLoss { start_ms: 0, lives_elsewhere: false };
                nodes.on_loss(&format!("n{i}"), loss, |_| false, Millis(i));
            }
        }
        assert_eq!(nodes.names().len(), AVOIDED_MAX);
        assert!(!nodes.names().contains(&"n0".to_owned()));
    }
}
