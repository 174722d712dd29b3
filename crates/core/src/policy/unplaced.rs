//! Executors for which the scheduler finds no node, or at which none looks: when they count as such, and how many give
//! their place to others.

use crate::model::pod::StartProblemKind;
use crate::state::executors::Group;
use posse_base::time::Millis;

/// A group whose executor found no node for this long, or whose creates failed for this long, gives
/// up places beyond its share.
pub const UNPLACED_MS: u64 = 120_000;
/// A scheduler looks at a pod within this time. Later the group says that it does not.
pub const IGNORED_MS: u64 = 30_000;
pub const IGNORED: &str = "the pod has no condition PodScheduled: no scheduler has looked at it";
/// The start problems of executors for which the scheduler has no node.
pub const UNPLACED: [StartProblemKind; 4] = [
    StartProblemKind::Gated,
    StartProblemKind::Queued,
    StartProblemKind::Unschedulable,
    StartProblemKind::Ignored,
];

/// How many executors the group can have, as far as one knows: what it wants, unless a quota or the nodes have room for
/// fewer. The one that was just lost had its place.
pub fn n_that_fit(group: &Group) -> u32 {
    let capacity = group.counts().capacity();
    let n_unplaced: usize = UNPLACED.iter().map(|&kind| group.problems.of(kind).len()).sum();
    let on_nodes = match u32::try_from(n_unplaced) {
        Ok(0) => u32::MAX,
        n => capacity.saturating_sub(n.unwrap_or(u32::MAX)).saturating_add(1),
    };
    group.wanted().max(capacity).min(on_nodes).min(group.n_in_quota())
}

/// How many executors of the group may be displaced: for long enough no node was found for one
/// of them, or its creates failed.
pub fn movable(group: &Group, now: Millis) -> u32 {
    let is_late = |at: Millis| now.since(at) >= UNPLACED_MS;
    let unplaced = UNPLACED.map(|kind| group.problems.of(kind));
    let is_unplaced = unplaced.iter().filter_map(|ids| ids.first()).any(|(at, _)| is_late(*at));
    let n_pods = if is_unplaced { unplaced.iter().map(|ids| ids.len()).sum() } else { 0 };
    let is_failing = group.retries.failing_since().is_some_and(is_late);
    let n_creates = if is_failing { group.retries.count() } else { 0 };
    u32::try_from(n_pods + n_creates).unwrap_or(u32::MAX)
}
