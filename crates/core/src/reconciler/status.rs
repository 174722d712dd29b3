//! The status of the run. Its cost grows with what changed since the last one.

use super::Reconciler;
use crate::model::ids::GroupName;
use crate::model::status::{GroupStatus, State, Status};
use crate::model::waiting::Limits;
use crate::state::budgets::BudgetStatus;
use crate::state::executors::Group;
use posse_base::time::Millis;

impl Reconciler {
    /// The status of the run.
    pub fn status(&mut self) -> Status {
        Status {
            groups: self.group_statuses(),
            pod_prefix: self.ours.identity().pod_prefix.clone(),
            executors: self.executors.status_blocks(&self.snapshot),
            avoided_nodes: self.nodes.avoided().to_vec(),
            outage: self.outage().cloned(),
            is_recorded: self.has_record(),
            driver: None,
        }
    }

    /// The status of the groups; costs nothing for each executor.
    pub fn group_statuses(&self) -> Vec<GroupStatus> {
        let groups = self.executors.groups().iter();
        let status = |(name, group)| GroupStatus {
            message: self.waiting_message(group),
            limits: group.wait.limits().clone(),
            ..group_status((name, group))
        };
        groups.map(status).collect()
    }

    /// The same without messages, and without taking memory.
    pub fn brief_group_statuses(&self) -> impl Iterator<Item = GroupStatus> + Clone {
        self.executors.groups().iter().map(group_status)
    }

    /// What is left of the failure budgets that are not off.
    pub fn budgets(&self, now: Millis) -> impl Iterator<Item = BudgetStatus> {
        self.end.budgets.status(now)
    }

    /// When the API server last answered anything; none: not yet.
    pub fn server_heard_at(&self) -> Option<Millis> {
        self.server.heard_at()
    }

    /// How many nodes new executors avoid.
    pub fn n_avoided_nodes(&self) -> usize {
        self.nodes.avoided().len()
    }
}

fn group_status((name, group): (&GroupName, &Group)) -> GroupStatus {
    let counts = group.counts();
    GroupStatus {
        group: name.clone(),
        target: group.target(),
        wanted: group.wanted(),
        min: group.spec.min,
        max: group.spec.max,
        requested: counts.of(State::Requested),
        pending: counts.of(State::Pending),
        running: counts.of(State::Running),
        ready: group.n_ready,
        draining: counts.of(State::Draining),
        terminating: counts.of(State::Terminating),
        failed: counts.of(State::Failed),
        completed: group.work.n_completed(),
        completions: group.spec.completions,
        open_tasks: group.tasks.n_open(),
        ended_tasks: group.tasks.n_ended(),
        attempt: group.spec.restarts_whole().then_some(group.attempts.current()),
        lost: group.n_lost,
        scale_down: group.spec.scale_down,
        waiting: group.wait.waiting(),
        since: group.wait.since(),
        until: group.wait.until(),
        message: None,
        limits: Limits::default(),
    }
}
