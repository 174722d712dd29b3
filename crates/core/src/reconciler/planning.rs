//! Gathers what the plan of a turn needs to know.

use super::Reconciler;
use crate::model::ids::GroupName;
use crate::model::task::Shape;
use crate::model::waiting::{RunWait, Waiting};
use crate::policy::plan::{GroupFacts, PlanInputs};
use crate::state::executors::Group;
use posse_base::time::Millis;

impl Reconciler {
    pub(super) fn plan_inputs(&self, now: Millis) -> PlanInputs {
        PlanInputs {
            now,
            available: self.window.available(now),
            closed_until: self.window.closed_until(now),
            pending_max: self.policy.pending_max,
            adopt_hold_until: self.gates.adopt_hold_until(),
        }
    }

    /// Depends on the group and its executors, on `RunFacts`, and until `facts_change_at` not on the time.
    pub(super) fn facts_of(&self, name: &GroupName, group: &Group, now: Millis) -> GroupFacts {
        let spec = &group.spec;
        let own = group.tasks.throttles.of(Shape::TEMPLATE);
        // Also of groups that create nothing now.
        let no_credentials =
            self.credentials_problem(group).map(|_| (Waiting::Run(RunWait::Credentials), None));
        GroupFacts {
            name: name.clone(),
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

    /// When time alone changes the facts of a group.
    pub(super) fn facts_change_at(&self, group: &Group, now: Millis) -> Option<Millis> {
        let of_throttles = group.tasks.throttles.all().flat_map(|throttle| {
            let more_room_at = self.unplaced_room(group, throttle, now).and_then(|(_, at)| at);
            [throttle.backoff.changes_at(now), more_room_at, throttle.stuck_at(now)]
        });
        let retry_at = group.retries.next_after(now);
        let others = [group.gang.paused_until(), group.slot_waits.next_end(), retry_at];
        let times = of_throttles.chain(others).flatten().chain(self.late_at(group));
        times.filter(|&at| at > now).min()
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
