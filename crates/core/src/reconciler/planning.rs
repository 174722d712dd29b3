//! Gathers what the plan of a turn needs to know.

use super::Reconciler;
use crate::model::ids::GroupName;
use crate::model::waiting::RunWait;
use crate::policy::demand::{GroupFacts, RunFacts};
use crate::policy::plan::{Plan, plan};
use crate::state::executors::Group;
use posse_base::time::Millis;

impl Reconciler {
    fn run_facts(&self, now: Millis) -> RunFacts {
        RunFacts {
            now,
            available: self.window.available(now),
            closed_until: self.window.closed_until(now),
            pending_max: self.policy.pending_max,
            adopt_hold_until: self.gates.adopt_hold_until(),
        }
    }

    /// Plans the groups of which something may have to be done.
    pub(super) fn plan(&self, now: Millis) -> Plan {
        let groups = self.executors.groups.iter().filter(|(_, group)| !self.rests(group));
        let facts: Vec<GroupFacts<'_>> =
            groups.map(|(name, group)| self.facts_of(name, group)).collect();
        plan(&facts, &self.run_facts(now))
    }

    /// It has what it should have, nothing of it is under way, and it waits for nothing: its plan would be empty.
    fn rests(&self, group: &Group) -> bool {
        group.counts().not_running() == 0
            && group.own_capacity() == group.target()
            && group.tasks.n_ready() == 0
            && group.tasks.throttles.n_in_flight() == 0
            && group.retries.count() == 0
            && group.n_beyond_slots() == 0
            && group.wait.waiting().is_none()
            && group.scale_error.is_none()
            && self.credentials_problem(group).is_none()
    }

    fn facts_of<'a>(&self, name: &'a GroupName, group: &'a Group) -> GroupFacts<'a> {
        GroupFacts {
            name,
            group,
            gate: self.gate(group),
            has_credentials: self.credentials_problem(group).is_none(),
            start_problem: self.problem_waiting(group),
        }
    }

    /// Why a group may not create executors.
    fn gate(&self, group: &Group) -> Option<RunWait> {
        if self.gates.are_creates_stopped() {
            Some(RunWait::Stopping)
        } else if !self.gates.is_lease_held() {
            Some(RunWait::Lease)
        } else if !self.had_first_list() {
            Some(RunWait::FirstList)
        } else if !self.snapshot.is_synced() {
            Some(RunWait::StaleSnapshot)
        } else if self.credentials_problem(group).is_some() {
            Some(RunWait::Credentials)
        } else if !self.gates.is_driver_ready() {
            Some(RunWait::DriverReady)
        } else {
            None
        }
    }
}
