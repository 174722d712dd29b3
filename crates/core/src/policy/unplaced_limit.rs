//! How many executors of one shape a group may have at a time while the scheduler finds no node for one of them.

use crate::model::pod::StartProblemKind;
use crate::model::status::State;
use crate::state::executors::Group;
use crate::state::throttle::Throttle;
use posse_base::time::Millis;

/// A group has at most so many executors that do not run from when the
/// scheduler finds no node for one of them, twice as many after each step, and never more than the last
/// number, or than run. An autoscaler is told of all of 1,000 executors within a minute.
const UNPLACED_FIRST: u32 = 100;
const UNPLACED_STEP_MS: u64 = 15_000;
const UNPLACED_MAX: u32 = 1_000;
/// The first number, doubled so often, is above the last one.
const UNPLACED_STEPS_MAX: u64 = 4;

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
