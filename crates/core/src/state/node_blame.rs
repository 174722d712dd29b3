//! Where the executors of one shape run, and where they ended: a few nodes on which they all end, while others live on
//! more nodes, are to blame for that, and not the application.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::event::LossReason;
use crate::model::ids::ExecutorId;
use crate::state::create_backoff::EARLY_END_MS;
use posse_base::time::Millis;

/// Ends are compared with each other for this long.
const WINDOW_MS: u64 = 600_000;
/// At most this many nodes are remembered for a reason; Kubernetes supports clusters of up to 5,000 nodes.
const NODES_MAX: usize = 5_000;

/// Who is to blame for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    Application,
    Node,
    /// The first one on a node, while others live elsewhere: it counts against the node, and is charged by its reason.
    Unclear,
}

/// The ends on one node for one reason.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: Millis,
    last: Millis,
    /// How long the oldest of those that ended had run.
    longest_ms: u64,
}

type Lives = BTreeMap<Arc<str>, BTreeSet<(Millis, ExecutorId)>>;

/// The lives and ends of executors by node.
#[derive(Clone, Debug, Default)]
pub struct Places {
    by_id: BTreeMap<ExecutorId, (Arc<str>, Millis)>,
    /// Since when each executor runs on a node.
    lives: Lives,
    ends: BTreeMap<LossReason, BTreeMap<Box<str>, Ends>>,
}

impl Places {
    /// An executor runs since `since`.
    pub fn add(&mut self, id: ExecutorId, node: &str, since: Millis) {
        self.remove(id);
        let known = self.lives.get_key_value(node).map(|(name, _)| Arc::clone(name));
        let node = known.unwrap_or_else(|| node.into());
        self.lives.entry(Arc::clone(&node)).or_default().insert((since, id));
        self.by_id.insert(id, (node, since));
    }

    /// It does not run any more.
    pub fn remove(&mut self, id: ExecutorId) {
        let Some((node, since)) = self.by_id.remove(&id) else { return };
        if let Some(lives) = self.lives.get_mut(&node) {
            lives.remove(&(since, id));
            if lives.is_empty() {
                self.lives.remove(&node);
            }
        }
    }

    /// An executor runs there.
    pub fn lives_on(&self, node: &str) -> bool {
        self.lives.contains_key(node)
    }

    /// Another executor has run on another node at least since `since`.
    pub fn lives_elsewhere(&self, node: &str, since: Millis) -> bool {
        nodes_since(&self.lives, since).any(|other| other != node)
    }

    /// An executor ended on `node` that began at `began`, and does not count as running any more. That node is to
    /// blame if it is the only one with such ends, or one of few: others have outlived this one on twice as many nodes
    /// without. An executor that runs there proves nothing, unless it began later than the first one that ended, and
    /// has lived for a minute and for longer than each of them. One end alone is no pattern yet. Those that do not
    /// start for `start_ms` are tried one after the other, so their ends are so far apart.
    pub fn blame(
        &mut self,
        reason: LossReason,
        node: &str,
        (began, start_ms): (Millis, u64),
        now: Millis,
    ) -> Blame {
        let Self { lives, ends, .. } = self;
        let ends = ends.entry(reason).or_default();
        let is_proven = |node: &str, ends: &Ends| {
            let later = (ends.first.after(1), ExecutorId(0));
            let one = lives.get(node).and_then(|lives| lives.range(later..).next());
            let proof_ms = EARLY_END_MS.max(ends.longest_ms);
            one.is_some_and(|(since, _)| now.since(*since) >= proof_ms)
        };
        ends.retain(|other, ends| {
            now.since(ends.last) <= WINDOW_MS + start_ms
                && (**other == *node || !is_proven(other, ends))
        });
        let is_good = ends.get(node).is_some_and(|ends| is_proven(node, ends));
        let is_first = !ends.contains_key(node);
        let lived_ms = now.since(began);
        if let Some(ends) = ends.get_mut(node) {
            (ends.last, ends.longest_ms) = (now, ends.longest_ms.max(lived_ms));
        } else if ends.len() < NODES_MAX {
            ends.insert(node.into(), Ends { first: now, last: now, longest_ms: lived_ms });
        }
        let is_other = |other: &&str| *other != node && !ends.contains_key(*other);
        let n_good = nodes_since(lives, began).filter(is_other).count();
        match !is_good && n_good > 0 && ends.len() <= (n_good / 2).max(1) {
            false => Blame::Application,
            true if is_first => Blame::Unclear,
            true => Blame::Node,
        }
    }
}

/// The nodes on which an executor has run at least since `since`.
fn nodes_since(lives: &Lives, since: Millis) -> impl Iterator<Item = &str> {
    let is_old = move |lives: &BTreeSet<_>| lives.first().is_some_and(|(at, _)| *at <= since);
    lives.iter().filter(move |(_, lives)| is_old(lives)).map(|(node, _)| &**node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use LossReason::{AppError, ImageError};

    /// (when, event): `+n1` an executor runs there, `-n1` the oldest one there is gone, `!n1 for 300` one ended there
    /// after so long by an error of the application, `?n1` one did not get its image there.
    #[track_caller]
    fn check(events: &[(u64, &str)], want: &[&str]) {
        let mut places = Places::default();
        let mut blamed = Vec::new();
        for (id, &(at, event)) in (1..).zip(events) {
            let (kind, rest) = event.split_at(1);
            let (node, lived) = rest.split_once(" for ").unwrap_or((rest, "0"));
            let began = Millis(at - lived.parse::<u64>().expect("a number"));
            let reason = if kind == "?" { ImageError } else { AppError };
            match kind {
                "+" => places.add(ExecutorId(id), node, Millis(at)),
                "-" => {
                    let oldest = places.lives.get(node).and_then(|lives| lives.first().copied());
                    places.remove(oldest.expect("one runs there").1);
                }
                _ => {
                    let blame = places.blame(reason, node, (began, 0), Millis(at));
                    blamed.push(if blame == Blame::Application { "" } else { node });
                }
            }
        }
        assert_eq!(blamed, want, "{events:?}");
    }

    #[test]
    fn the_node_is_to_blame_where_all_end_and_others_live_elsewhere() {
        // A node on which everything ends at once.
        check(&[(0, "+a"), (0, "+b"), (900, "!x for 300"), (1_500, "!x for 300")], &["x", "x"]);
        // Nothing has outlived it, or nothing lives elsewhere.
        check(&[(700, "+a"), (900, "!x for 300")], &[""]);
        check(&[(0, "+x"), (900, "!x for 300"), (1_500, "!x for 300")], &["", ""]);
        check(&[(900, "!x for 300")], &[""]);
        check(&[(0, "+a"), (1, "-a"), (900, "!x for 300")], &[""]);
        // One that did not start: everything that runs elsewhere has outlived it.
        check(&[(700, "+a"), (900, "?x")], &["x"]);
    }

    #[test]
    fn ends_on_several_nodes_are_the_applications_own() {
        check(
            &[(0, "+a"), (900, "!x for 300"), (950, "!y for 300"), (990, "!x for 300")],
            &["x", "", ""],
        );
        // For another reason, or long ago.
        check(&[(0, "+a"), (900, "!x for 300"), (950, "?y")], &["x", "y"]);
        check(&[(0, "+a"), (900, "!x for 300"), (601_000, "!y for 300")], &["x", "y"]);
    }

    #[test]
    fn few_of_many_nodes_are_to_blame_together() {
        let good = [(0, "+a"), (0, "+b"), (0, "+c"), (0, "+d")];
        let bad =
            [(900, "!x for 300"), (950, "!y for 300"), (990, "!x for 300"), (995, "!y for 9")];
        check(&[&good[..], &bad].concat(), &["x", "y", "x", "y"]);
        // On the good ones none has ended so, and there are twice as many of them.
        check(&[&good[..3], &bad].concat(), &["x", "", "", ""]);
        check(&[&good[..], &bad[..3], &[(995, "!d for 9")]].concat(), &["x", "y", "x", ""]);
        // One that ended otherwise acquits neither.
        check(&[&good[..], &[(800, "?d")], &bad].concat(), &["d", "x", "y", "x", "y"]);
    }

    #[test]
    fn only_who_began_later_and_lived_proves_that_a_node_is_good() {
        // It ran there when the node was still good.
        check(&[(0, "+a"), (0, "+x"), (100_000, "!x for 300"), (200_000, "!x for 9")], &["x", "x"]);
        // It began after the first end, and lives for a minute.
        let later = [(0, "+a"), (900, "!x for 300"), (1_000, "+x")];
        check(&[&later[..], &[(60_999, "!x for 300")]].concat(), &["x", "x"]);
        check(&[&later[..], &[(61_000, "!x for 300")]].concat(), &["x", ""]);
        // The other node is good again, so this one is alone.
        check(&[&later[..], &[(60_999, "!y for 300")]].concat(), &["x", ""]);
        check(&[&later[..], &[(61_000, "!y for 300")]].concat(), &["x", "y"]);
        // It has not lived for as long as the first one.
        let late = [(0, "+a"), (90_900, "!x for 90000"), (91_000, "+x")];
        check(&[&late[..], &[(171_000, "!x for 80000")]].concat(), &["x", "x"]);
        check(&[&late[..], &[(181_000, "!x for 300")]].concat(), &["x", ""]);
    }
}
