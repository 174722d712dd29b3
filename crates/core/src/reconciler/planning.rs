//! Gathers what the plan of a turn needs to know.

use super::Reconciler;
use crate::model::ids::GroupName;
use crate::model::task::Shape;
use crate::model::waiting::{RunWait, Waiting};
use crate::policy::plan::{GroupFacts, Plan, PlanInputs, plan};
use crate::state::executors::Group;
use posse_base::time::Millis;

impl Reconciler {
    fn plan_inputs(&self, now: Millis) -> PlanInputs {
        PlanInputs {
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
            groups.map(|(name, group)| self.facts_of(name, group, now)).collect();
        plan(&facts, &self.plan_inputs(now))
    }

    /// It has what it should have, nothing of it is under way, and it waits for nothing: its plan would be empty.
    fn rests(&self, group: &Group) -> bool {
        group.counts.not_running() == 0
            && group.own_capacity() == group.target()
            && group.tasks.n_ready() == 0
            && group.n_in_flight == 0
            && group.retries.count() == 0
            && group.n_beyond_slots() == 0
            && group.wait.reason().is_none()
            && group.scale_error.is_none()
            && self.credentials_problem(group).is_none()
    }

    fn facts_of<'a>(&self, name: &'a GroupName, group: &Group, now: Millis) -> GroupFacts<'a> {
        let spec = &group.spec;
        let own = group.tasks.throttles.of(Shape::TEMPLATE);
        // Also of groups that create nothing now.
        let no_credentials =
            self.credentials_problem(group).map(|_| (Waiting::Run(RunWait::Credentials), None));
        GroupFacts {
            name,
            target: group.target(),
            wanted: group.wanted(),
            counts: group.counts,
            task_counts: group.task_counts,
            n_in_flight: group.n_in_flight,
            n_own_in_flight: own.n_in_flight,
            n_ready_tasks: group.tasks.n_ready(),
            n_missing_for_tasks: group.n_missing_for_tasks(),
            tasks: self.task_facts(group, now),
            n_awaited_ends: group.n_awaited_ends(),
            slot_room: group.slot_room(),
            n_beyond_slots: group.n_beyond_slots(),
            allowance: own.backoff.allowance(now, spec.works_together(), spec.starts_together()),
            gang_paused_until: group.gang.paused_until(),
            retry_allowance: own.backoff.retry_allowance(now),
            backoff_cause: own.backoff.cause(),
            n_due_retries: group.retries.n_due(now, self.policy.in_flight_max),
            next_retry_at: group.retries.next_at(),
            is_failing: group.retries.failing_since().is_some(),
            is_scale_broken: group.scale_error.is_some(),
            has_template: spec.pod.is_some(),
            is_restarting: spec.restarts_whole() && group.attempts.awaits_ends(),
            is_target_set: group.is_target_set,
            is_removed: group.is_removed,
            has_stable_slots: spec.has_stable_slots(),
            replace: spec.replace,
            scale_down: spec.scale_down,
            gate: self.gate(group),
            unplaced_room: self.unplaced_room(group, own, now),
            n_unplaced: self.n_unplaced(group, now),
            start_problem: no_credentials.or_else(|| self.problem_waiting(group)),
            waiting: group.wait.reason(),
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
