//! The plan of one turn: how many executors to create and to end for each group, and why not more.
//! Keeps no state.

use std::collections::BTreeMap;

use crate::model::ids::GroupName;
use crate::model::task::Shape;
use crate::model::waiting::{Held, Limit, Limits};
use crate::policy::demand::{Demand, GroupFacts, RunFacts, Why};
use crate::policy::limits::{CREATES, Case, Claim, ENDS, Of, Pool, SHARED, STARTS, retry_at};
use crate::policy::shares::displaced;
use crate::policy::unplaced;
use posse_base::time::Millis;

/// The plan for one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    pub group: GroupName,
    /// How many failed creates to send again.
    pub n_retries: u32,
    /// How many executors to create.
    pub n_creates: u32,
    /// Of which shape and for what, at most.
    pub rooms: Vec<Demand>,
    /// How many executors to end.
    pub n_ends: u32,
    /// How many executors that do not start to end, because another group has a right to their place.
    pub n_displaced: u32,
    /// How many tasks of shapes that start have no place under `max` or `allocation.pending_max`.
    pub n_without_place: u32,
    /// Why nothing more is done.
    pub limits: Limits,
}

/// The plan of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The groups of which something is to be done, or whose limits are others than before.
    pub groups: Vec<GroupPlan>,
    /// When a limit of a group ends by itself.
    pub next_at: Option<Millis>,
}

/// Plans all groups at once, so that no group starves another. Groups that rest may be left out.
pub fn plan(groups: &[GroupFacts<'_>], run: &RunFacts) -> Plan {
    // The group with the smallest share of its target comes first: it gets the remainder of a
    // division, and sends the first request when a quota has little left.
    let mut groups: Vec<&GroupFacts<'_>> = groups.iter().collect();
    groups.sort_by_cached_key(|group| group.fill());
    let mut drafts: Vec<Draft<'_>> =
        groups.into_iter().map(|facts| Draft::new(facts, run)).collect();
    for (i, &(pool, waiting, divide)) in SHARED.iter().enumerate() {
        let claims: Vec<Claim> = drafts.iter().map(|draft| draft.claim(pool)).collect();
        for (draft, at_most) in drafts.iter_mut().zip(divide(run, &claims)) {
            let limit = Limit { at_most, waiting, until: None };
            draft.share(CREATES.len() + i, pool, limit);
        }
    }
    let n_displaced = n_displaced(&drafts, run);
    let mut plan = Plan { groups: Vec::new(), next_at: None };
    for (draft, n_displaced) in drafts.into_iter().zip(n_displaced) {
        let own_times = [draft.stuck_at(), retry_at(draft.facts, run)];
        let before = draft.facts.group.wait.limits();
        let of_group = draft.finish(n_displaced);
        // Starts whose time is up wait for an input from the server, so past times are left out.
        let own_times = own_times.into_iter().flatten().chain(of_group.limits.untils());
        let times = own_times.chain(plan.next_at);
        plan.next_at = times.filter(|at| *at > run.now).min();
        if of_group.does_something() || of_group.limits != *before {
            plan.groups.push(of_group);
        }
    }
    debug_assert!(
        plan.groups.iter().map(|one| one.n_retries + one.n_creates).sum::<u32>() <= run.available,
        "more requests than the window has room for: {plan:?}"
    );
    plan
}

impl GroupPlan {
    fn does_something(&self) -> bool {
        let n_requests = self.n_retries + self.n_creates;
        n_requests + self.n_ends + self.n_displaced + self.n_without_place > 0
    }
}

/// What is left of the demands of one group.
struct Draft<'a> {
    facts: &'a GroupFacts<'a>,
    run: &'a RunFacts,
    /// What each demand may get by itself.
    rooms: Vec<Demand>,
    wanted: Sums,
    left: Sums,
    /// The new executors that are wanted, without tasks beyond `max`.
    n_under_max: u32,
    /// How many new executors it would get without the other groups, and how many beside them.
    n_alone: u32,
    n_new: u32,
    n_requests: u32,
    /// How many tasks could be created if they had a place: those of shapes of which no executor is stuck.
    n_startable: u32,
    /// The limits that hold, with their place in the list.
    held: Vec<(usize, Held)>,
}

/// How many executors, by why they are wanted.
#[derive(Clone, Copy, Default)]
struct Sums {
    retries: u32,
    target: u32,
    tasks: u32,
}

impl Sums {
    fn add(&mut self, why: Why, n: u32) {
        let sum = match why {
            Why::Retry => &mut self.retries,
            Why::Target => &mut self.target,
            Why::Task => &mut self.tasks,
        };
        *sum = sum.saturating_add(n);
    }

    fn n_new(&self) -> u32 {
        self.target.saturating_add(self.tasks)
    }
}

impl<'a> Draft<'a> {
    /// As if the group were alone.
    fn new(facts: &'a GroupFacts<'a>, run: &'a RunFacts) -> Self {
        let mut draft = Self {
            facts,
            run,
            rooms: Vec::new(),
            wanted: Sums::default(),
            left: Sums::default(),
            n_under_max: 0,
            n_alone: 0,
            n_new: 0,
            n_requests: 0,
            n_startable: 0,
            held: Vec::new(),
        };
        let mut retries = BTreeMap::new();
        for demand in facts.demands(run) {
            let Demand { shape, why, .. } = demand;
            let n_retries = retries.get(&shape).copied().unwrap_or(0);
            // The target's executors have the template's shape.
            let is_after_target = why == Why::Task && shape == Shape::TEMPLATE;
            let n_before = if is_after_target { draft.left.target } else { 0 };
            let n = draft.judge(Of::Demand, &Case { run, facts, demand, n_retries, n_before });
            draft.wanted.add(why, demand.n);
            draft.left.add(why, n);
            draft.rooms.push(Demand { n, ..demand });
            match why {
                Why::Retry => drop(retries.insert(shape, n)),
                Why::Target => {}
                Why::Task => {
                    let is_stuck = facts.group.tasks.throttles.of(shape).problems.is_stuck(run.now);
                    let n_startable = if is_stuck { 0 } else { n };
                    draft.n_startable = draft.n_startable.saturating_add(n_startable);
                }
            }
        }
        let n_failed = u32::try_from(facts.group.retries.count()).unwrap_or(u32::MAX);
        let n_not_due = n_failed.saturating_sub(draft.wanted.retries);
        draft.wanted.retries = draft.wanted.retries.max(n_failed);
        draft.judge(Of::Failed, &draft.case(Why::Retry, n_not_due));
        let n_tasks = draft.judge(Of::Tasks, &draft.case(Why::Task, draft.wanted.tasks));
        draft.n_under_max = draft.wanted.target.saturating_add(n_tasks);
        let n_new = draft.judge(Of::New, &draft.case(Why::Target, draft.n_under_max));
        draft.left.tasks = draft.left.tasks.min(n_tasks);
        draft.n_alone = draft.left.n_new().min(n_new);
        draft.n_new = draft.n_alone;
        draft.n_requests = draft.left.retries + draft.n_new;
        draft
    }

    fn case(&self, why: Why, n: u32) -> Case<'a> {
        let demand = Demand { shape: Shape::TEMPLATE, why, n };
        Case { run: self.run, facts: self.facts, demand, n_retries: 0, n_before: 0 }
    }

    /// How many of these the limits of this kind allow.
    fn judge(&mut self, of: Of, case: &Case<'_>) -> u32 {
        let mut left = case.demand.n;
        for (order, (_, judge)) in CREATES.iter().enumerate().filter(|(_, (its, _))| *its == of) {
            if let Some(limit) = judge(case) {
                self.note(order, Held { limit, of: case.demand.n, is_loose: false });
                left = left.min(limit.at_most);
            }
        }
        left
    }

    /// Notes a limit. One that holds for several demands, and for one reason, is one.
    fn note(&mut self, order: usize, held: Held) {
        let waiting = held.limit.waiting;
        let is_same = |(at, one): &&mut (usize, Held)| (*at, one.limit.waiting) == (order, waiting);
        match self.held.iter_mut().find(is_same) {
            Some((_, Held { limit, of, .. })) => {
                limit.at_most = limit.at_most.saturating_add(held.limit.at_most);
                limit.until = limit.until.into_iter().chain(held.limit.until).min();
                *of = of.saturating_add(held.of);
            }
            None => self.held.push((order, held)),
        }
    }

    /// What it claims of what all groups share.
    fn claim(&self, pool: Pool) -> Claim {
        let group = self.facts.group;
        match pool {
            Pool::Pending => Claim { held: group.counts().not_running(), wanted: self.n_new },
            Pool::Requests => Claim {
                held: group.tasks.throttles.n_in_flight(),
                wanted: self.left.retries + self.n_new,
            },
        }
    }

    /// It gets at most so many of what all groups share.
    fn share(&mut self, order: usize, pool: Pool, limit: Limit) {
        let is_loose = limit.at_most >= self.claim(pool).wanted;
        let wanted = match pool {
            Pool::Pending => {
                self.n_new = self.n_new.min(limit.at_most);
                self.n_requests = self.left.retries + self.n_new;
                self.n_under_max
            }
            Pool::Requests => {
                self.n_requests = self.n_requests.min(limit.at_most);
                self.wanted.retries.saturating_add(self.n_under_max)
            }
        };
        if limit.at_most < wanted {
            self.note(order, Held { limit, of: wanted, is_loose });
        }
    }

    /// When an executor of the group is stuck, so that its place may go to a task.
    fn stuck_at(&self) -> Option<Millis> {
        let tasks = Some(&self.facts.group.tasks).filter(|tasks| tasks.n_ready() > 0)?;
        tasks.throttles.all().filter_map(|throttle| throttle.problems.stuck_at(self.run.now)).min()
    }

    /// Why fewer executors are created than are wanted, the tightest limit first.
    fn creates(&mut self) -> Vec<Held> {
        let mut held = std::mem::take(&mut self.held);
        held.sort_by_key(|(order, held)| (held.limit.at_most, *order));
        let mut limits: Vec<Held> = Vec::new();
        for (_, held) in held {
            if limits.iter().all(|one| one.limit.waiting != held.limit.waiting || one.is_loose) {
                limits.push(held);
            }
        }
        limits
    }

    /// How many executors to end, and why not more.
    fn ends(&self) -> (u32, Vec<Limit>) {
        let case = self.case(Why::Target, self.facts.surplus());
        if case.demand.n == 0 {
            return (0, Vec::new());
        }
        let mut limits: Vec<Limit> = ENDS.iter().filter_map(|judge| judge(&case)).collect();
        limits.sort_by_key(|limit| limit.at_most);
        (limits.first().map_or(case.demand.n, |limit| limit.at_most), limits)
    }

    fn finish(mut self, n_displaced: u32) -> GroupPlan {
        let n_retries = self.n_requests.min(self.left.retries);
        let n_beyond = self.n_alone - self.n_new;
        let n_without_place = self.n_startable.saturating_sub(self.facts.n_for_tasks());
        let wanted = self.wanted.n_new().saturating_add(self.wanted.retries);
        let creates = self.creates();
        let n_limited = if creates.is_empty() { 0 } else { wanted };
        let (n_ends, ends) = self.ends();
        let n_ends_limited = if ends.is_empty() { 0 } else { self.facts.surplus() };
        let case = self.case(Why::Target, 0);
        let starts = STARTS.iter().filter_map(|judge| judge(&case)).collect();
        GroupPlan {
            group: self.facts.name.clone(),
            n_retries,
            n_creates: self.n_requests - n_retries,
            rooms: self.rooms,
            n_ends,
            n_displaced,
            n_without_place: n_without_place.saturating_add(n_beyond).min(self.n_startable),
            limits: Limits { n_creates: n_limited, creates, n_ends: n_ends_limited, ends, starts },
        }
    }
}

/// How many executors each group gives up for the others' shares of `allocation.pending_max`.
fn n_displaced(drafts: &[Draft<'_>], run: &RunFacts) -> Vec<u32> {
    if run.pending_max == 0 {
        return vec![0; drafts.len()];
    }
    let each = |of: fn(&Draft<'_>) -> u32| -> Vec<u32> { drafts.iter().map(of).collect() };
    let held = each(|draft| draft.facts.group.counts().not_running());
    let (wanted, got) = (each(|draft| draft.n_alone), each(|draft| draft.n_new));
    let movable = each(|draft| unplaced::movable(draft.facts.group, draft.run.now));
    displaced(run.pending_max, &held, &wanted, &got, &movable)
}
