//! Owns the plan: what to do now for each group, and why nothing more. Decides; remembers nothing.

use crate::core::model::ids::GroupName;
use crate::core::model::status::State;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;
use crate::core::policy::settings::{Replace, ScaleDown};
use crate::core::policy::throttle::Allowance;
use crate::core::state::executors::Group;

/// What holds for all groups in this turn.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    pub now: Millis,
    /// Why nothing at all may be created, with the time that ends by itself.
    pub gate: Option<(Waiting, Option<Millis>)>,
    /// How many creates may leave.
    pub room: u32,
    /// Until when none may leave.
    pub closed_until: Option<Millis>,
    /// How many may be on their way to running at a time; 0: no limit.
    pub pending_max: u32,
    /// Adopted surplus is kept until then.
    pub hold_until: Option<Millis>,
}

/// What a group may do and is up against.
#[derive(Clone, Copy, Debug)]
pub struct GroupView<'a> {
    pub name: &'a GroupName,
    pub group: &'a Group,
    pub is_unschedulable: bool,
    /// What keeps executors that are asked for from starting, and until when.
    pub stuck: Option<(Waiting, Option<Millis>)>,
}

/// What is to be done for one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    pub group: GroupName,
    pub n_creates: u32,
    /// So many executors are too many.
    pub n_ends: u32,
    /// Why nothing more, and until when.
    pub waiting: Option<(Waiting, Option<Millis>)>,
}

/// Decides for all groups at once, so that none starves another.
#[must_use]
pub fn plan(views: &[GroupView<'_>], all: &Circumstances) -> Vec<GroupPlan> {
    // Whoever has the least of what it wants is the first to get what cannot be split, and the first
    // to ask where a quota has room for few.
    let mut views = views.to_vec();
    views.sort_by_key(|view| fill(view.group));
    let wants: Vec<Want> = views.iter().map(|view| want(view, all)).collect();
    let asked: Vec<u32> = wants.iter().map(|want| want.n).collect();
    let held = |n: fn(&Group) -> u32| views.iter().map(|view| n(view.group)).collect::<Vec<u32>>();
    let pending = match all.pending_max {
        0 => asked.clone(),
        most => share_on(most, &held(|group| group.counts.not_running()), &asked),
    };
    let in_flight = held(|group| group.n_in_flight);
    let sent = share_on(all.room + in_flight.iter().sum::<u32>(), &in_flight, &pending);
    let mut plans: Vec<GroupPlan> = Vec::with_capacity(views.len());
    for (i, (view, want)) in views.iter().zip(wants).enumerate() {
        let waiting = want.waiting.or_else(|| {
            if pending[i] < asked[i] {
                Some((Waiting::PendingLimit, None))
            } else if sent[i] < asked[i] {
                Some((Waiting::InFlight, None))
            } else {
                None
            }
        });
        let (n_ends, held) = surplus(view, all);
        plans.push(GroupPlan {
            group: view.name.clone(),
            n_creates: sent[i],
            n_ends,
            waiting: waiting.or(held).or(view.stuck),
        });
    }
    plans
}

struct Want {
    n: u32,
    waiting: Option<(Waiting, Option<Millis>)>,
}

/// How many a group would create if it were alone, and what keeps it from more.
fn want(view: &GroupView<'_>, all: &Circumstances) -> Want {
    let group = view.group;
    let target = if group.is_removed { 0 } else { group.spec.target };
    let missing = target.saturating_sub(group.counts.capacity());
    let none = |waiting| Want { n: 0, waiting: Some(waiting) };
    if missing == 0 {
        return Want { n: 0, waiting: None };
    }
    if let Some(gate) = all.gate {
        return none(gate);
    }
    if group.spec.pod.is_none() {
        return none((Waiting::Template, None));
    }
    let going = match group.spec.replace {
        Replace::Gone => group.counts.of(State::Terminating) + group.counts.of(State::Draining),
        Replace::Terminating => 0,
    };
    let missing = missing.saturating_sub(going);
    if missing == 0 {
        return none((Waiting::ReplaceGone, None));
    }
    if let Some(until) = all.closed_until {
        return none((Waiting::Server, Some(until)));
    }
    if view.is_unschedulable {
        return none((Waiting::Unschedulable, None));
    }
    match group.throttle.allowance(all.now) {
        Allowance::Wait { waiting, until } => none((waiting, until)),
        Allowance::UpTo(most) => {
            let n = missing.min(most.saturating_sub(group.n_in_flight));
            let held = group.throttle.cause().map_or(Waiting::InFlight, |cause| cause.waiting());
            Want { n, waiting: (n < missing).then_some((held, None)) }
        }
    }
}

/// How many of a group are too many, and why they stay if they do.
fn surplus(view: &GroupView<'_>, all: &Circumstances) -> (u32, Option<(Waiting, Option<Millis>)>) {
    let group = view.group;
    let target = if group.is_removed { 0 } else { group.spec.target };
    let surplus = group.counts.capacity().saturating_sub(target);
    if surplus == 0 {
        return (0, None);
    }
    // A gate that only holds creates back (the driver is not ready) lets ends through.
    if let Some(gate) = all.gate.filter(|gate| gate.0 != Waiting::DriverReady) {
        return (0, Some(gate));
    }
    if let Some(until) = all.hold_until.filter(|_| !group.is_target_set && !group.is_removed) {
        return (0, Some((Waiting::AdoptHold, Some(until))));
    }
    match group.spec.scale_down {
        ScaleDown::Any => (surplus, None),
        ScaleDown::Pending if group.is_removed => (surplus, None),
        ScaleDown::Pending => {
            let n = surplus.min(group.counts.not_running());
            (n, (n < surplus).then_some((Waiting::ScaleDownPending, None)))
        }
    }
}

/// How much of its target a group has, in thousandths.
fn fill(group: &Group) -> u64 {
    u64::from(group.counts.capacity()) * 1_000 / u64::from(group.spec.target.max(1))
}

/// What each gets of `most` beside what it holds of it: nobody gets more while another that wants
/// some has less.
fn share_on(most: u32, held: &[u32], wants: &[u32]) -> Vec<u32> {
    let wishes: Vec<u32> = held.iter().zip(wants).map(|(held, want)| held + want).collect();
    let mut open = share(most, &wishes);
    for ((open, held), want) in open.iter_mut().zip(held).zip(wants) {
        *open = open.saturating_sub(*held).min(*want);
    }
    share(most.saturating_sub(held.iter().sum()), &open)
}

/// Shares `room` among those who want some: one each in turn, in order, until it or the wish ends.
#[must_use]
pub fn share(room: u32, wants: &[u32]) -> Vec<u32> {
    let mut got = vec![0; wants.len()];
    let mut left = room;
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
    fn slots_are_split_evenly_the_first_ones_get_the_rest() {
        for (room, want) in
            [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (4, [2, 1, 1])]
        {
            assert_eq!(share(room, &[9, 9, 9]), want);
        }
        for room in 0..3 {
            assert_eq!(share(room, &[9]), [room]);
        }
        assert_eq!(share(10, &[1, 0, 100]), [1, 0, 9]);
        assert_eq!(share(u32::MAX, &[3, 4]), [3, 4]);
    }
}
