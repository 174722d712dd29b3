//! What is wanted: so many executors of a shape, and why. With the facts by which that is limited.

use crate::model::ids::GroupName;
use crate::model::task::Shape;
use crate::model::waiting::Waiting;
use crate::state::executors::Group;
use crate::state::gates::Shut;
use posse_base::time::Millis;

/// The facts that are the same for all groups.
#[derive(Clone, Copy, Debug)]
pub struct RunFacts {
    pub now: Millis,
    pub shut: Shut,
    /// How many create requests may be sent.
    pub available: u32,
    /// Until when no create request may be sent.
    pub closed_until: Option<Millis>,
    /// The limit of executors that are requested or pending at a time; 0: no limit.
    pub pending_max: u32,
    /// Until when adopted surplus executors are kept.
    pub adopt_hold_until: Option<Millis>,
    /// How many changes of the run are in the record.
    pub n_recorded: u64,
}

/// One group, and what only the run knows of it.
#[derive(Clone, Copy, Debug)]
pub struct GroupFacts<'a> {
    pub name: &'a GroupName,
    pub group: &'a Group,
    /// The credentials of its executors are there. Also of groups that create nothing now.
    pub has_credentials: bool,
    /// Why requested executors do not start, and until when that may last.
    pub start_problem: Option<(Waiting, Option<Millis>)>,
}

/// Why an executor is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its create has failed and is due again: it was asked for already, so it only needs a request.
    Retry,
    /// The group's target is higher.
    Target,
    /// No executor works on a task yet.
    Task,
}

/// So many executors are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    pub shape: Shape,
    pub why: Why,
    pub n: u32,
}

impl GroupFacts<'_> {
    /// What the group wants, in the order in which it gets it: what was asked for, the target, the tasks. Each is by
    /// shape.
    pub fn demands(&self, run: &RunFacts) -> impl Iterator<Item = Demand> {
        let by = |why| move |(shape, n)| Demand { shape, why, n };
        let retries = self.group.retries.due(run.now, run.available).map(by(Why::Retry));
        let n = self.group.target().saturating_sub(self.group.own.capacity());
        let target = Demand { shape: Shape::TEMPLATE, why: Why::Target, n };
        let tasks = self.group.tasks.ready_shapes().map(by(Why::Task));
        retries.chain([target]).chain(tasks).filter(|demand| demand.n > 0)
    }

    /// How many executors for tasks may be created: `max` leaves them what the target does not need.
    pub fn n_for_tasks(&self) -> u32 {
        let own = self.group.target().max(self.group.own.capacity());
        let room = self.group.spec.max.map_or(u32::MAX, |max| max.saturating_sub(own));
        self.group.tasks.n_ready().min(room.saturating_sub(self.group.tasks.counts.capacity()))
    }

    /// How many executors are too many.
    pub fn surplus(&self) -> u32 {
        let own = self.group.own.capacity().saturating_sub(self.group.target());
        own.max(self.group.n_beyond_slots())
    }

    /// The share of its executors that the group has, in thousandths.
    pub fn fill(&self) -> u64 {
        let wanted = u64::from(self.group.wanted().max(1));
        u64::from(self.group.counts().capacity()) * 1_000 / wanted
    }
}
