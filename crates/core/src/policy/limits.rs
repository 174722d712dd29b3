//! Every reason to do less for a group than is wanted: one function each, and one list. A new one is a function, a
//! line of the list, and a word (`model::waiting`).
//!
//! The plan creates and ends what the least of them allows. The tightest is told; of several that are as tight, the
//! one that comes first in the list.

use crate::model::settings::{Replace, ScaleDown};
use crate::model::waiting::{GroupWait, Limit, RunWait, ServerWait, StartWait, Waiting};
use crate::policy::demand::{Demand, GroupFacts, RunFacts, Why};
use crate::policy::shares::share_on;
use crate::policy::unplaced_limit;
use crate::state::create_backoff::{Allowance, BackoffCause};
use crate::state::slot_range::SlotRoom;
use posse_base::time::Millis;

/// What a limit judges.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    pub run: &'a RunFacts,
    pub facts: &'a GroupFacts<'a>,
    /// One demand, or the sum of those that are limited together.
    pub demand: Demand,
    /// What the group gets before it, of the same shape: creates that are sent again, and new executors.
    pub n_retries: u32,
    pub n_before: u32,
}

/// What a group may have of what all groups share.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// What counts against the limit already.
    pub held: u32,
    pub wanted: u32,
}

/// A reason to do less, if it holds.
type Judge = fn(&Case<'_>) -> Option<Limit>;

/// How many each group gets at most of what all share.
type Divide = fn(&RunFacts, &[Claim]) -> Vec<u32>;

/// What a limit limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Each demand by itself.
    Demand,
    /// The creates that have failed and are not due.
    Failed,
    /// The executors for tasks, together.
    Tasks,
    /// The new executors, together.
    New,
}

/// What all groups share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Executors that do not run.
    Pending,
    /// Requests in flight: for new executors, and for creates that are sent again.
    Requests,
}

/// Why fewer executors are created for a group.
pub const CREATES: &[(Of, Judge)] = &[
    (Of::Demand, stopping),
    (Of::Demand, lease),
    (Of::Demand, first_list),
    (Of::Demand, stale_snapshot),
    (Of::Demand, credentials),
    (Of::Demand, driver_ready),
    (Of::Demand, template),
    (Of::Demand, restart),
    (Of::Demand, gang_pause),
    (Of::New, replacement),
    (Of::Demand, slots),
    (Of::Tasks, max),
    (Of::Demand, server),
    (Of::Demand, unplaced),
    (Of::Demand, backoff),
    (Of::Failed, failing),
];

/// The same, of what all groups share. They divide what the others have left.
pub const SHARED: &[(Pool, Waiting, Divide)] = &[
    (Pool::Pending, Waiting::Group(GroupWait::PendingLimit), pending),
    (Pool::Requests, Waiting::Server(ServerWait::InFlight), window),
];

/// Why fewer executors are ended than are too many.
pub const ENDS: &[Judge] = &[lease, first_list, stale_snapshot, adopted, only_pending];

/// Why executors do not come that were asked for, or will not be asked for.
pub const STARTS: &[Judge] = &[credentials, start_problem, scale_command];

fn stopping(case: &Case<'_>) -> Option<Limit> {
    shut(case.run.shut.stopping, RunWait::Stopping)
}

fn lease(case: &Case<'_>) -> Option<Limit> {
    shut(case.run.shut.lease, RunWait::Lease)
}

fn first_list(case: &Case<'_>) -> Option<Limit> {
    shut(case.run.shut.first_list, RunWait::FirstList)
}

fn stale_snapshot(case: &Case<'_>) -> Option<Limit> {
    shut(case.run.shut.stale_snapshot, RunWait::StaleSnapshot)
}

fn credentials(case: &Case<'_>) -> Option<Limit> {
    shut(!case.facts.has_credentials, RunWait::Credentials)
}

/// The driver is waited for before it gets executors. Those that were asked for are created.
fn driver_ready(case: &Case<'_>) -> Option<Limit> {
    shut(case.run.shut.driver_ready && !case.is_retry(), RunWait::DriverReady)
}

fn template(case: &Case<'_>) -> Option<Limit> {
    let is_missing = !case.is_retry() && case.facts.group.spec.pod.is_none();
    none(Waiting::Group(GroupWait::Template), None).filter(|_| is_missing)
}

/// `on_loss: group`: executors of an earlier attempt have not ended, or the record may count what they have completed.
fn restart(case: &Case<'_>) -> Option<Limit> {
    let group = case.facts.group;
    let attempts = &group.attempts;
    let waits = attempts.awaits_ends() || attempts.awaits_record(case.run.n_recorded);
    let waits = waits && group.spec.restarts_whole() && !case.is_retry();
    none(Waiting::Group(GroupWait::Restart), None).filter(|_| waits)
}

/// A gang was given back, and tries again later.
fn gang_pause(case: &Case<'_>) -> Option<Limit> {
    let until = case.facts.group.gang.paused_until().filter(|_| case.demand.why == Why::Target)?;
    none(Waiting::Group(GroupWait::Gang), Some(until))
}

/// `replace: gone`: the pods of lost executors are not gone.
fn replacement(case: &Case<'_>) -> Option<Limit> {
    let group = case.facts.group;
    let n_awaited = match group.spec.replace {
        Replace::Gone => group.n_awaited_ends(),
        Replace::Terminating => 0,
    };
    let at_most = case.demand.n.saturating_sub(n_awaited);
    case.up_to(at_most, Waiting::Group(GroupWait::ReplaceGone), None)
}

/// The slots that executors of the target may have are taken.
fn slots(case: &Case<'_>) -> Option<Limit> {
    if case.demand.why != Why::Target {
        return None;
    }
    let room = case.facts.group.slot_room();
    let (wait, until) = match room {
        SlotRoom::Unlimited => return None,
        SlotRoom::Awaited { until, .. } => (GroupWait::Slot, until),
        SlotRoom::Free(_) if case.facts.group.spec.has_stable_slots() => (GroupWait::Slot, None),
        // The index of work whose executor has not ended.
        SlotRoom::Free(_) => (GroupWait::ReplaceGone, None),
    };
    case.up_to(room.limit(case.demand.n), Waiting::Group(wait), until)
}

/// `max` leaves tasks what the target does not need.
fn max(case: &Case<'_>) -> Option<Limit> {
    let at_most = case.facts.n_for_tasks();
    case.up_to(at_most, Waiting::Group(GroupWait::Max), None)
}

/// The server is overloaded or unreachable.
fn server(case: &Case<'_>) -> Option<Limit> {
    none(Waiting::Server(ServerWait::Failing), Some(case.run.closed_until?))
}

/// The scheduler finds no node for others of the shape.
fn unplaced(case: &Case<'_>) -> Option<Limit> {
    let group = case.facts.group;
    let throttle = group.tasks.throttles.of(case.demand.shape);
    let (room, until) = unplaced_limit::room(group, throttle, case.run.now)?;
    let at_most = if case.is_retry() { u32::MAX } else { room.saturating_sub(case.n_before) };
    case.up_to(at_most, Waiting::Start(StartWait::Unschedulable), until)
}

/// Creates of the shape were refused, fail, or do not start.
fn backoff(case: &Case<'_>) -> Option<Limit> {
    let spec = &case.facts.group.spec;
    let throttle = case.facts.group.tasks.throttles.of(case.demand.shape);
    let (backoff, now) = (&throttle.backoff, case.run.now);
    let allowance = match case.demand.why {
        Why::Retry => backoff.retry_allowance(now),
        Why::Target => backoff.allowance(now, spec.works_together(), spec.starts_together()),
        Why::Task => backoff.allowance(now, false, false),
    };
    match allowance {
        Allowance::Wait { waiting, until } => none(waiting, until),
        Allowance::UpTo(limit) => {
            let n_taken = throttle.n_in_flight() + case.n_retries + case.n_before;
            let in_flight = Waiting::Server(ServerWait::InFlight);
            let waiting = backoff.cause().map_or(in_flight, BackoffCause::waiting);
            case.up_to(limit.saturating_sub(n_taken), waiting, None)
        }
    }
}

/// Creates fail, and none has succeeded since.
fn failing(case: &Case<'_>) -> Option<Limit> {
    case.facts.group.retries.failing_since()?;
    none(Waiting::Server(ServerWait::Failing), retry_at(case.facts, case.run))
}

/// `allocation.pending_max`.
fn pending(run: &RunFacts, groups: &[Claim]) -> Vec<u32> {
    match run.pending_max {
        0 => vec![u32::MAX; groups.len()],
        limit => shares(limit, groups),
    }
}

/// The create window.
fn window(run: &RunFacts, groups: &[Claim]) -> Vec<u32> {
    let n_in_flight: u32 = groups.iter().map(|group| group.held).sum();
    shares(run.available + n_in_flight, groups)
}

/// Executors of an earlier run are kept until the driver has spoken.
fn adopted(case: &Case<'_>) -> Option<Limit> {
    let group = case.facts.group;
    let until = case.run.adopt_hold_until.filter(|_| !group.is_target_set && !group.is_removed)?;
    none(Waiting::Group(GroupWait::AdoptHold), Some(until))
}

/// `scale_down: pending`: the driver chooses which of those that run end.
fn only_pending(case: &Case<'_>) -> Option<Limit> {
    let group = case.facts.group;
    match group.spec.scale_down {
        ScaleDown::Any => None,
        ScaleDown::Pending if group.is_removed => None,
        ScaleDown::Pending => {
            let at_most = group.own.not_running();
            case.up_to(at_most, Waiting::Group(GroupWait::ScaleDownPending), None)
        }
    }
}

/// Requested executors do not start.
fn start_problem(case: &Case<'_>) -> Option<Limit> {
    let (waiting, until) = case.facts.start_problem?;
    none(waiting, until)
}

/// The command that sets the target fails.
fn scale_command(case: &Case<'_>) -> Option<Limit> {
    let is_broken = case.facts.group.scale_error.is_some();
    none(Waiting::Group(GroupWait::ScaleCommand), None).filter(|_| is_broken)
}

impl Case<'_> {
    fn is_retry(&self) -> bool {
        self.demand.why == Why::Retry
    }

    /// At most so many, if that is less than is wanted.
    fn up_to(&self, at_most: u32, waiting: Waiting, until: Option<Millis>) -> Option<Limit> {
        (at_most < self.demand.n).then_some(Limit { at_most, waiting, until })
    }
}

/// When the next failed create of the group can be sent again, if that is in the future.
pub fn retry_at(facts: &GroupFacts<'_>, run: &RunFacts) -> Option<Millis> {
    let retries = facts.group.retries.next_at().filter_map(|(shape, due)| {
        let demand = Demand { shape, why: Why::Retry, n: 1 };
        let case = Case { run, facts, demand, n_retries: 0, n_before: 0 };
        let limits = [server(&case), backoff(&case)].into_iter().flatten();
        let at = limits.filter_map(|limit| limit.until).fold(due, Millis::max);
        let gates = [stopping, lease, first_list, stale_snapshot, credentials];
        (at > run.now && gates.iter().all(|gate| gate(&case).is_none())).then_some(at)
    });
    retries.min()
}

/// Nothing may be done while a gate of the run is shut.
fn shut(is_shut: bool, wait: RunWait) -> Option<Limit> {
    none(Waiting::Run(wait), None).filter(|_| is_shut)
}

/// Nothing may be done.
fn none(waiting: Waiting, until: Option<Millis>) -> Option<Limit> {
    Some(Limit { at_most: 0, waiting, until })
}

/// What each group may have of a limit that all share. One that wants no more than its share may have what is left.
fn shares(limit: u32, groups: &[Claim]) -> Vec<u32> {
    let held: Vec<u32> = groups.iter().map(|group| group.held).collect();
    let wanted: Vec<u32> = groups.iter().map(|group| group.wanted).collect();
    let left = limit.saturating_sub(held.iter().sum());
    let got = share_on(limit, &held, &wanted);
    let at_most = |(got, wanted): (u32, u32)| if got < wanted { got } else { got.max(left) };
    got.into_iter().zip(wanted).map(at_most).collect()
}
