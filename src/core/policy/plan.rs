//! The plan of one turn: how many executors to create and to end for each group, and why not more.
//! Keeps no state.

use crate::core::model::ids::GroupName;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;
use crate::core::policy::settings::{Replace, ScaleDown};
use crate::core::policy::throttle::Allowance;
use crate::core::state::executors::Group;

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

/// One group, and what holds for it.
#[derive(Clone, Copy, Debug)]
pub struct GroupView<'a> {
    pub name: &'a GroupName,
    pub group: &'a Group,
    /// Why it may not create executors.
    pub gate: Option<Waiting>,
    pub is_unschedulable: bool,
    /// How many of its executors may give up their place under `pending_max`: the scheduler finds
    /// no node for them, or their creates fail.
    pub n_unplaced: u32,
    /// Why requested executors do not start, and until when that may last.
    pub start_problem: Option<(Waiting, Option<Millis>)>,
}

impl GroupView<'_> {
    /// Failed creates may be sent again.
    fn may_retry(&self) -> bool {
        self.gate.is_none_or(|waiting| waiting == Waiting::DriverReady)
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
    /// Why nothing more is done, and until when.
    pub waiting: Option<(Waiting, Option<Millis>)>,
    /// When a failed create can be sent again.
    pub retry_at: Option<Millis>,
}

/// Plans all groups at once, so that no group starves another.
pub fn plan(views: &[GroupView<'_>], inputs: &PlanInputs) -> Vec<GroupPlan> {
    // The group with the smallest share of its target comes first: it gets the remainder of a
    // division, and sends the first request when a quota has little left.
    let mut views = views.to_vec();
    views.sort_by_key(|view| fill(view.group));
    let retries: Vec<u32> = views.iter().map(|view| n_retries(view, inputs)).collect();
    let demands = views.iter().zip(&retries).map(|(view, retries)| demand(view, *retries, inputs));
    let demands: Vec<Demand> = demands.collect();
    let wanted: Vec<u32> = demands.iter().map(|demand| demand.n).collect();
    let held = |n: fn(&Group) -> u32| views.iter().map(|view| n(view.group)).collect::<Vec<u32>>();
    let not_running = held(|group| group.counts.not_running());
    let pending = match inputs.pending_max {
        0 => wanted.clone(),
        limit => share_on(limit, &not_running, &wanted),
    };
    let unplaced: Vec<u32> = views.iter().map(|view| view.n_unplaced).collect();
    let displaced = displaced(inputs.pending_max, &not_running, &wanted, &pending, &unplaced);
    // A retry needs a request like any other create; it is counted as pending already.
    let requests: Vec<u32> = retries.iter().zip(&pending).map(|(a, b)| a + b).collect();
    let in_flight = held(|group| group.n_in_flight);
    let sent = share_on(inputs.available + in_flight.iter().sum::<u32>(), &in_flight, &requests);
    let mut plans: Vec<GroupPlan> = Vec::with_capacity(views.len());
    for (i, (view, demand)) in views.iter().zip(demands).enumerate() {
        let retry_at = retry_at(view, inputs);
        let n_retries = sent[i].min(retries[i]);
        let waiting =
            demand.waiting.filter(|waiting| waiting.0 != Waiting::InFlight).or_else(|| {
                if view.group.retries.failing_since().is_some() {
                    Some((Waiting::Server, retry_at))
                } else if pending[i] < wanted[i] {
                    Some((Waiting::PendingLimit, None))
                } else if sent[i] < requests[i] {
                    Some((Waiting::InFlight, None))
                } else {
                    demand.waiting
                }
            });
        let (n_ends, kept) = surplus(view, inputs);
        let is_full = view.group.tasks.n_ready() > view.group.n_missing_for_tasks();
        plans.push(GroupPlan {
            group: view.name.clone(),
            n_retries,
            n_creates: sent[i] - n_retries,
            n_task_creates: (sent[i] - n_retries).saturating_sub(demand.n - demand.n_for_tasks),
            n_ends,
            n_displaced: displaced[i],
            waiting: waiting
                .or(kept)
                .or(view.start_problem)
                .or_else(|| is_full.then_some((Waiting::GroupMax, None))),
            retry_at,
        });
    }
    plans
}

/// How many failed creates of the group may be sent again now.
fn n_retries(view: &GroupView<'_>, inputs: &PlanInputs) -> u32 {
    let group = view.group;
    match group.throttle.retry_allowance(inputs.now) {
        Allowance::UpTo(limit) if view.may_retry() && inputs.closed_until.is_none() => {
            let limit = limit.saturating_sub(group.n_in_flight).min(inputs.available);
            group.retries.n_due(inputs.now, limit)
        }
        Allowance::UpTo(_) | Allowance::Wait { .. } => 0,
    }
}

/// When the next failed create of the group can be sent again, if that is in the future.
fn retry_at(view: &GroupView<'_>, inputs: &PlanInputs) -> Option<Millis> {
    let group = view.group;
    let delayed_until = match group.throttle.retry_allowance(inputs.now) {
        Allowance::Wait { until, .. } => until,
        Allowance::UpTo(_) => None,
    };
    let due = group.retries.next_at().filter(|_| view.may_retry())?;
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
fn demand(view: &GroupView<'_>, n_retries: u32, inputs: &PlanInputs) -> Demand {
    let group = view.group;
    let target = group.target();
    let own = target.saturating_sub(group.own_capacity());
    let for_tasks = group.n_missing_for_tasks();
    let missing = own.saturating_add(for_tasks);
    let none = |waiting| Demand { n: 0, n_for_tasks: 0, waiting: Some(waiting) };
    if missing == 0 {
        return Demand { n: 0, n_for_tasks: 0, waiting: None };
    }
    if let Some(gate) = view.gate {
        return none((gate, None));
    }
    if group.spec.pod.is_none() {
        return none((Waiting::Template, None));
    }
    if group.spec.restarts_whole() && !group.earlier.is_empty() {
        return none((Waiting::GroupRestart, None));
    }
    let awaited = match group.spec.replace {
        Replace::Gone => group.n_awaited_ends(),
        Replace::Terminating => 0,
    };
    let replaceable = own.saturating_add(for_tasks).saturating_sub(awaited);
    let own_replaceable = own.min(replaceable);
    let own = group.n_with_slots(own_replaceable);
    let is_awaited = group.waits_for_slots();
    let is_slot_taken = own < own_replaceable && (is_awaited || group.spec.has_stable_slots());
    let until = group.slot_waits.next_end().filter(|_| is_awaited);
    let for_slot = is_slot_taken.then_some((Waiting::Slot, until));
    let missing = own + for_tasks.min(replaceable - own);
    if missing == 0 {
        return none(for_slot.unwrap_or((Waiting::ReplaceGone, None)));
    }
    if let Some(until) = inputs.closed_until {
        return none((Waiting::Server, Some(until)));
    }
    if view.is_unschedulable {
        return none((Waiting::Unschedulable, None));
    }
    match group.throttle.allowance(inputs.now, group.spec.restarts_whole()) {
        Allowance::Wait { waiting, until } => none((waiting, until)),
        Allowance::UpTo(limit) => {
            let n = missing.min(limit.saturating_sub(group.n_in_flight + n_retries));
            let reason = group.throttle.cause().map_or(Waiting::InFlight, |cause| cause.waiting());
            let waiting = (n < missing).then_some((reason, None)).or(for_slot);
            Demand { n, n_for_tasks: n.saturating_sub(own), waiting }
        }
    }
}

/// How many executors to end, and why not more.
fn surplus(view: &GroupView<'_>, inputs: &PlanInputs) -> (u32, Option<(Waiting, Option<Millis>)>) {
    let group = view.group;
    let target = group.target();
    let surplus = group.own_capacity().saturating_sub(target).max(group.n_beyond_slots());
    if surplus == 0 {
        return (0, None);
    }
    // These gates hold back creates only.
    let is_for_creates = |gate: Waiting| {
        matches!(gate, Waiting::Credentials | Waiting::DriverReady | Waiting::Stopping)
    };
    if let Some(gate) = view.gate.filter(|gate| !is_for_creates(*gate)) {
        return (0, Some((gate, None)));
    }
    if let Some(until) =
        inputs.adopt_hold_until.filter(|_| !group.is_target_set && !group.is_removed)
    {
        return (0, Some((Waiting::AdoptHold, Some(until))));
    }
    match group.spec.scale_down {
        ScaleDown::Any => (surplus, None),
        ScaleDown::Pending if group.is_removed => (surplus, None),
        ScaleDown::Pending => {
            // The executors of tasks are never surplus.
            let n = surplus.min(group.counts.not_running() - group.task_counts.not_running());
            (n, (n < surplus).then_some((Waiting::ScaleDownPending, None)))
        }
    }
}

/// The share of its executors that a group has, in thousandths.
fn fill(group: &Group) -> u64 {
    u64::from(group.counts.capacity()) * 1_000 / u64::from(group.wanted().max(1))
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
