//! The plan of one turn: how many executors to create and to end for each group, and why not more.
//! Keeps no state.

use crate::model::ids::GroupName;
use crate::model::settings::{Replace, ScaleDown};
use crate::model::waiting::{GroupWait, RunWait, ServerWait, StartWait, Waiting};
use crate::state::counts::Counts;
use crate::state::create_backoff::{Allowance, BackoffCause};
use crate::state::slot_range::SlotRoom;
use posse_base::time::Millis;

/// The inputs that are the same for all groups.
#[derive(Clone, Copy, Debug)]
pub struct PlanInputs {
    pub now: Millis,
    /// How many create requests may be sent.
    pub available: u32,
    /// Until when no create request may be sent.
    pub closed_until: Option<Millis>,
    /// The limit of executors that are requested or pending at a time; 0: no limit.
    pub pending_max: u32,
    /// Until when adopted surplus executors are kept.
    pub adopt_hold_until: Option<Millis>,
}

/// What the plan needs to know of one group.
#[derive(Clone, Debug)]
pub struct GroupFacts<'a> {
    pub name: &'a GroupName,
    pub target: u32,
    /// How many executors it should have: its target and one for each open task, up to `max`.
    pub wanted: u32,
    pub counts: Counts,
    /// Those of `counts` that work on tasks.
    pub task_counts: Counts,
    /// Create requests in flight.
    pub n_in_flight: u32,
    /// Those of `n_in_flight` that are throttled by the group's template.
    pub n_own_in_flight: u32,
    /// Tasks that no executor works on yet, and for how many of them `max` has room.
    pub n_ready_tasks: u32,
    pub n_missing_for_tasks: u32,
    pub tasks: TaskFacts,
    /// How many pods must go before executors are created with `replace: gone`.
    pub n_awaited_ends: u32,
    pub slot_room: SlotRoom,
    /// How many executors that count as capacity have slots at or above the limit.
    pub n_beyond_slots: u32,
    /// What the create backoff allows for new creates and for those that are sent again, and its cause.
    pub allowance: Allowance,
    pub retry_allowance: Allowance,
    pub backoff_cause: Option<BackoffCause>,
    /// Its executors were given back, and none is created before this (`gang`).
    pub gang_paused_until: Option<Millis>,
    /// Failed creates that are due.
    pub n_due_retries: u32,
    pub next_retry_at: Option<Millis>,
    /// Creates fail, and none has succeeded since.
    pub is_failing: bool,
    /// The command that sets the target fails.
    pub is_scale_broken: bool,
    pub has_template: bool,
    /// Executors of an earlier attempt have not ended.
    pub is_restarting: bool,
    /// The target was set in this run.
    pub is_target_set: bool,
    pub is_removed: bool,
    pub has_stable_slots: bool,
    pub replace: Replace,
    pub scale_down: ScaleDown,
    /// Why it may not create executors.
    pub gate: Option<RunWait>,
    /// How many executors may be created while the scheduler finds no node for others of the group, and when
    /// there may be more; none: no limit.
    pub unplaced_room: Option<(u32, Option<Millis>)>,
    /// How many of its executors may give up their place under `pending_max`: the scheduler finds
    /// no node for them, or their creates fail.
    pub n_unplaced: u32,
    /// Why requested executors do not start, and until when that may last.
    pub start_problem: Option<(Waiting, Option<Millis>)>,
    /// What the last plan waited for.
    pub waiting: Option<(Waiting, Option<Millis>)>,
}

/// What the throttles of its shapes allow for the tasks of a group that no executor works on yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct TaskFacts {
    /// How many of them have the shape of the template, and share its allowance with the target.
    pub n_of_template: u32,
    /// How many of the others their own throttles allow.
    pub n_allowed: u32,
    /// Why not more of the others.
    pub waiting: Option<(Waiting, Option<Millis>)>,
    /// How many could be created at once if they had a place: those of shapes of which no executor is stuck.
    pub n_startable: u32,
    /// When a shape may get executors again, or an executor is stuck.
    pub next_at: Option<Millis>,
}

impl GroupFacts<'_> {
    /// Failed creates may be sent again.
    fn may_retry(&self) -> bool {
        self.gate.is_none_or(|gate| gate == RunWait::DriverReady)
    }

    /// How many tasks of shapes that start have no place. `n_beyond`: how many creates `allocation.pending_max`
    /// holds back.
    fn n_without_place(&self, n_beyond: u32) -> u32 {
        let n_startable = self.tasks.n_startable;
        n_startable
            .saturating_sub(self.n_missing_for_tasks)
            .saturating_add(n_beyond)
            .min(n_startable)
    }

    /// The number of executors that count towards the target: those that work on no task.
    fn own_capacity(&self) -> u32 {
        self.counts.capacity() - self.task_counts.capacity()
    }
}

/// The plan for one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    pub group: GroupName,
    /// How many failed creates to send again.
    pub n_retries: u32,
    pub n_creates: u32,
    /// How many of the creates are for tasks.
    pub n_task_creates: u32,
    /// How many executors to end.
    pub n_ends: u32,
    /// How many executors that do not start to end, because another group has a right to their place.
    pub n_displaced: u32,
    /// How many tasks of shapes that start have no place under `max` or `allocation.pending_max`.
    pub n_without_place: u32,
    /// Why nothing more is done, and until when.
    pub waiting: Option<(Waiting, Option<Millis>)>,
}

/// The plan of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The groups of which something is to be done, or whose wait is another one than before.
    pub groups: Vec<GroupPlan>,
    /// When a wait of a group ends by itself.
    pub next_at: Option<Millis>,
}

/// Plans all groups at once, so that no group starves another. Groups that rest may be left out.
pub fn plan(groups: &[GroupFacts<'_>], inputs: &PlanInputs) -> Plan {
    // The group with the smallest share of its target comes first: it gets the remainder of a
    // division, and sends the first request when a quota has little left.
    let mut groups: Vec<&GroupFacts<'_>> = groups.iter().collect();
    groups.sort_by_cached_key(|group| fill(group));
    let retries: Vec<u32> = groups.iter().map(|group| n_retries(group, inputs)).collect();
    let demands =
        groups.iter().zip(&retries).map(|(group, retries)| demand(group, *retries, inputs));
    let demands: Vec<Demand> = demands.collect();
    let wanted: Vec<u32> = demands.iter().map(|demand| demand.n).collect();
    let not_running: Vec<u32> = groups.iter().map(|group| group.counts.not_running()).collect();
    let pending = match inputs.pending_max {
        0 => wanted.clone(),
        limit => share_on(limit, &not_running, &wanted),
    };
    let unplaced: Vec<u32> = groups.iter().map(|group| group.n_unplaced).collect();
    let displaced = displaced(inputs.pending_max, &not_running, &wanted, &pending, &unplaced);
    // A retry needs a request like any other create; it is counted as pending already.
    let requests: Vec<u32> = retries.iter().zip(&pending).map(|(a, b)| a + b).collect();
    let in_flight: Vec<u32> = groups.iter().map(|group| group.n_in_flight).collect();
    let sent = share_on(inputs.available + in_flight.iter().sum::<u32>(), &in_flight, &requests);
    let mut plan = Plan { groups: Vec::new(), next_at: None };
    for (i, (group, demand)) in groups.iter().zip(demands).enumerate() {
        let retry_at = retry_at(group, inputs);
        let n_retries = sent[i].min(retries[i]);
        let waiting = demand.waiting.filter(|waiting| !is_normal(*waiting)).or_else(|| {
            if group.is_failing {
                Some((Waiting::Server(ServerWait::Failing), retry_at))
            } else if pending[i] < wanted[i] {
                Some((Waiting::Group(GroupWait::PendingLimit), None))
            } else if sent[i] < requests[i] {
                Some((Waiting::Server(ServerWait::InFlight), None))
            } else {
                demand.waiting
            }
        });
        let (n_ends, kept) = surplus(group, inputs);
        let is_full = group.n_ready_tasks > group.n_missing_for_tasks;
        let waiting = waiting
            .or(kept)
            .or(group.start_problem)
            .or_else(|| group.tasks.waiting.filter(|waiting| !is_normal(*waiting)))
            .or_else(|| is_full.then_some((Waiting::Group(GroupWait::Max), None)))
            .or_else(|| {
                group.is_scale_broken.then_some((Waiting::Group(GroupWait::ScaleCommand), None))
            });
        // Starts whose time is up wait for an input from the server, so past times are left out.
        let until = waiting.and_then(|(_, until)| until);
        let times = [until, retry_at, group.tasks.next_at, plan.next_at].into_iter().flatten();
        plan.next_at = times.filter(|at| *at > inputs.now).min();
        let n_without_place = group.n_without_place(wanted[i] - pending[i]);
        if sent[i] + n_ends + displaced[i] + n_without_place > 0 || waiting != group.waiting {
            plan.groups.push(GroupPlan {
                group: group.name.clone(),
                n_retries,
                n_creates: sent[i] - n_retries,
                n_task_creates: (sent[i] - n_retries).saturating_sub(demand.n - demand.n_for_tasks),
                n_ends,
                n_displaced: displaced[i],
                n_without_place,
                waiting,
            });
        }
    }
    debug_assert!(
        plan.groups.iter().map(|one| one.n_retries + one.n_creates).sum::<u32>()
            <= inputs.available,
        "more requests than the window has room for: {plan:?}"
    );
    plan
}

/// The window is full, which is the normal pace.
fn is_normal(waiting: (Waiting, Option<Millis>)) -> bool {
    waiting.0 == Waiting::Server(ServerWait::InFlight)
}

/// How many failed creates of the group may be sent again now.
fn n_retries(group: &GroupFacts<'_>, inputs: &PlanInputs) -> u32 {
    match group.retry_allowance {
        Allowance::UpTo(limit) if group.may_retry() && inputs.closed_until.is_none() => {
            let n_due = group.n_due_retries.min(inputs.available);
            n_due.min(limit.saturating_sub(group.n_own_in_flight))
        }
        Allowance::UpTo(_) | Allowance::Wait { .. } => 0,
    }
}

/// When the next failed create of the group can be sent again, if that is in the future.
fn retry_at(group: &GroupFacts<'_>, inputs: &PlanInputs) -> Option<Millis> {
    let delayed_until = match group.retry_allowance {
        Allowance::Wait { until, .. } => until,
        Allowance::UpTo(_) => None,
    };
    let due = group.next_retry_at.filter(|_| group.may_retry())?;
    let at = [inputs.closed_until, delayed_until].into_iter().flatten().fold(due, Millis::max);
    (at > inputs.now).then_some(at)
}

/// How many executors that do not start each group gives up, so that groups with less than their
/// share of `limit` get it. `held`: executors that do not run; `got`: what each group may create now.
fn displaced(limit: u32, held: &[u32], wanted: &[u32], got: &[u32], unplaced: &[u32]) -> Vec<u32> {
    let totals: Vec<u32> = held.iter().zip(wanted).map(|(held, want)| held + want).collect();
    let fair = share(limit, &totals);
    let missing = |i: usize| fair[i].saturating_sub(held[i] + got[i]);
    let mut n_missing: u32 = if limit == 0 { 0 } else { (0..held.len()).map(missing).sum() };
    let mut displaced = vec![0; held.len()];
    for (i, n) in displaced.iter_mut().enumerate() {
        *n = held[i].saturating_sub(fair[i]).min(unplaced[i]).min(n_missing);
        n_missing -= *n;
    }
    displaced
}

struct Demand {
    n: u32,
    /// How many of them are for tasks: the group's own target comes first.
    n_for_tasks: u32,
    waiting: Option<(Waiting, Option<Millis>)>,
}

/// How many executors the group would create if it were alone, and why not more. `n_retries`: how
/// many requests its failed creates take.
fn demand(group: &GroupFacts<'_>, n_retries: u32, inputs: &PlanInputs) -> Demand {
    let own = group.target.saturating_sub(group.own_capacity());
    let pause = group.gang_paused_until.filter(|_| own > 0);
    let own = if pause.is_some() { 0 } else { own };
    let for_tasks = group.n_missing_for_tasks;
    let missing = own.saturating_add(for_tasks);
    let none = |waiting| Demand { n: 0, n_for_tasks: 0, waiting: Some(waiting) };
    if missing == 0 {
        let waiting = pause.map(|until| (Waiting::Group(GroupWait::Gang), Some(until)));
        return Demand { n: 0, n_for_tasks: 0, waiting };
    }
    if let Some(gate) = group.gate {
        return none((Waiting::Run(gate), None));
    }
    if !group.has_template {
        return none((Waiting::Group(GroupWait::Template), None));
    }
    if group.is_restarting {
        return none((Waiting::Group(GroupWait::Restart), None));
    }
    let awaited = match group.replace {
        Replace::Gone => group.n_awaited_ends,
        Replace::Terminating => 0,
    };
    let replaceable = own.saturating_add(for_tasks).saturating_sub(awaited);
    let own_replaceable = own.min(replaceable);
    let own = group.slot_room.limit(own_replaceable);
    let for_slot = match group.slot_room {
        _ if own == own_replaceable => None,
        SlotRoom::Awaited { until, .. } => Some((Waiting::Group(GroupWait::Slot), until)),
        SlotRoom::Free(_) => {
            group.has_stable_slots.then_some((Waiting::Group(GroupWait::Slot), None))
        }
        SlotRoom::Unlimited => None,
    };
    let missing = own + for_tasks.min(replaceable - own);
    if missing == 0 {
        return none(for_slot.unwrap_or((Waiting::Group(GroupWait::ReplaceGone), None)));
    }
    if let Some(until) = inputs.closed_until {
        return none((Waiting::Server(ServerWait::Failing), Some(until)));
    }
    let for_tasks = missing - own;
    // The throttle of the template is for the target and for the tasks of its shape.
    let by_template = own.saturating_add(for_tasks.min(group.tasks.n_of_template));
    let (n_by_template, template_waits) = throttled(group, by_template, n_retries);
    let own = own.min(n_by_template);
    let n_for_tasks = (n_by_template - own).saturating_add(group.tasks.n_allowed).min(for_tasks);
    let n = own + n_for_tasks;
    let waiting = template_waits.or(group.tasks.waiting).filter(|_| n < missing).or(for_slot);
    Demand { n, n_for_tasks, waiting }
}

/// How many of these the throttle of the template allows, and why not more.
fn throttled(
    group: &GroupFacts<'_>,
    wanted: u32,
    n_retries: u32,
) -> (u32, Option<(Waiting, Option<Millis>)>) {
    let (room, until) = group.unplaced_room.unwrap_or((wanted, None));
    let for_node = (room < wanted).then_some((Waiting::Start(StartWait::Unschedulable), until));
    match group.allowance {
        _ if wanted == 0 || room == 0 => (0, for_node),
        Allowance::Wait { waiting, until } => (0, Some((waiting, until))),
        Allowance::UpTo(limit) => {
            let n = room.min(wanted).min(limit.saturating_sub(group.n_own_in_flight + n_retries));
            let reason = group
                .backoff_cause
                .map_or(Waiting::Server(ServerWait::InFlight), BackoffCause::waiting);
            (n, (n < room.min(wanted)).then_some((reason, None)).or(for_node))
        }
    }
}

/// How many executors to end, and why not more.
fn surplus(
    group: &GroupFacts<'_>,
    inputs: &PlanInputs,
) -> (u32, Option<(Waiting, Option<Millis>)>) {
    let surplus = group.own_capacity().saturating_sub(group.target).max(group.n_beyond_slots);
    if surplus == 0 {
        return (0, None);
    }
    // These gates hold back creates only.
    let is_for_creates = |gate: RunWait| {
        matches!(gate, RunWait::Credentials | RunWait::DriverReady | RunWait::Stopping)
    };
    if let Some(gate) = group.gate.filter(|gate| !is_for_creates(*gate)) {
        return (0, Some((Waiting::Run(gate), None)));
    }
    if let Some(until) =
        inputs.adopt_hold_until.filter(|_| !group.is_target_set && !group.is_removed)
    {
        return (0, Some((Waiting::Group(GroupWait::AdoptHold), Some(until))));
    }
    match group.scale_down {
        ScaleDown::Any => (surplus, None),
        ScaleDown::Pending if group.is_removed => (surplus, None),
        ScaleDown::Pending => {
            // The executors of tasks are never surplus.
            let n = surplus.min(group.counts.not_running() - group.task_counts.not_running());
            (n, (n < surplus).then_some((Waiting::Group(GroupWait::ScaleDownPending), None)))
        }
    }
}

/// The share of its executors that a group has, in thousandths.
fn fill(group: &GroupFacts<'_>) -> u64 {
    u64::from(group.counts.capacity()) * 1_000 / u64::from(group.wanted.max(1))
}

/// What each group gets of `limit` in addition to what it holds (`held`): the totals are shared
/// evenly among the groups that want more.
fn share_on(limit: u32, held: &[u32], wants: &[u32]) -> Vec<u32> {
    let totals: Vec<u32> = held.iter().zip(wants).map(|(held, want)| held + want).collect();
    let mut open = share(limit, &totals);
    for ((open, held), want) in open.iter_mut().zip(held).zip(wants) {
        *open = open.saturating_sub(*held).min(*want);
    }
    share(limit.saturating_sub(held.iter().sum()), &open)
}

/// Shares `available` evenly among the groups that want some; what cannot be divided goes to the
/// first ones.
pub fn share(available: u32, wants: &[u32]) -> Vec<u32> {
    let mut got = vec![0; wants.len()];
    let mut left = available;
    loop {
        let open = wants.iter().zip(&got).filter(|(want, got)| got < want).count();
        let open = u32::try_from(open).unwrap_or(u32::MAX);
        if open == 0 || left == 0 {
            return got;
        }
        let each = (left / open).max(1);
        for (want, got) in wants.iter().zip(&mut got) {
            let n = (want - *got).min(each).min(left);
            *got += n;
            left -= n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spark's "SPARK-36052: test splitSlots".
    #[test]
    fn slots_are_split_evenly_and_the_first_ones_get_the_rest() {
        for (available, want) in
            [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (4, [2, 1, 1])]
        {
            assert_eq!(share(available, &[9, 9, 9]), want);
        }
        for available in 0..3 {
            assert_eq!(share(available, &[9]), [available]);
        }
        assert_eq!(share(10, &[1, 0, 100]), [1, 0, 9]);
        assert_eq!(share(u32::MAX, &[3, 4]), [3, 4]);
    }
}
