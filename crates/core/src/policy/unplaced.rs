//! Executors for which the scheduler finds no node, or at which none looks: how many there may be at a time, and how many
//! give their place to others.

use crate::model::pod::StartProblemKind;
use crate::model::status::State;
use crate::state::executors::Group;
use crate::state::throttle::Throttle;
use posse_base::time::Millis;

/// A group whose executor found no node for this long, or whose creates failed for this long, gives
/// up places beyond its share.
pub const UNPLACED_MS: u64 = 120_000;
/// A scheduler looks at a pod within this time. Later the group says that it does not.
pub const IGNORED_MS: u64 = 30_000;
pub const IGNORED: &str = "the pod has no condition PodScheduled: no scheduler has looked at it";
/// A group has at most so many executors that do not run from when the
/// scheduler finds no node for one of them, twice as many after each step, and never more than the last
/// number, or than run. An autoscaler is told of all of 1,000 executors within a minute.
const UNPLACED_FIRST: u32 = 100;
const UNPLACED_STEP_MS: u64 = 15_000;
const UNPLACED_MAX: u32 = 1_000;
/// The first number, doubled so often, is above the last one.
const UNPLACED_STEPS_MAX: u64 = 4;
/// The start problems of executors for which the scheduler has no node.
pub const UNPLACED: [StartProblemKind; 4] = [
    StartProblemKind::Gated,
    StartProblemKind::Queued,
    StartProblemKind::Unschedulable,
    StartProblemKind::Ignored,
];

/// How many more executors of one shape the group may have while the scheduler finds no node for others of it,
/// and when it may have more; none: there is no limit.
pub fn room(group: &Group, throttle: &Throttle, now: Millis) -> Option<(u32, Option<Millis>)> {
    // Such a group finds nodes only when all of it is there.
    if group.has_incomplete_gang() || group.spec.restarts_whole() {
        return None;
    }
    let (since, _) = throttle.problems.of(StartProblemKind::Unschedulable).first()?;
    let n_steps = now.since(*since) / UNPLACED_STEP_MS;
    let grown = UNPLACED_FIRST << n_steps.min(UNPLACED_STEPS_MAX);
    let limit = grown.min(UNPLACED_MAX).max(throttle.counts.of(State::Running));
    let more_at = since.after((n_steps + 1) * UNPLACED_STEP_MS);
    let room = limit.saturating_sub(throttle.counts.not_running());
    Some((room, (grown < UNPLACED_MAX).then_some(more_at)))
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
