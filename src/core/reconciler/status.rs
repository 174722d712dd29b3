//! The status of the run. Its cost grows with what changed since the last one.

use super::Reconciler;
use crate::core::model::ids::GroupName;
use crate::core::model::status::{GroupStatus, State, Status};
use crate::core::state::executors::Group;

impl Reconciler {
    /// The status of the run.
    pub fn status(&mut self) -> Status {
        Status {
            groups: self.group_statuses(),
            pod_prefix: self.identity.pod_prefix.clone(),
            executors: self.executors.status_blocks(&self.snapshot),
            avoided_nodes: self.nodes.avoided().to_vec(),
            outage: self.outage().cloned(),
        }
    }

    /// The status of the groups; costs nothing for each executor.
    pub fn group_statuses(&self) -> Vec<GroupStatus> {
        let groups = self.executors.groups.iter();
        let status = |(name, group)| GroupStatus {
            message: self.waiting_message(group),
            ..group_status((name, group))
        };
        groups.map(status).collect()
    }

    /// The same without messages, and without taking memory.
    pub fn brief_group_statuses(&self) -> impl Iterator<Item = GroupStatus> + Clone {
        self.executors.groups.iter().map(group_status)
    }
}

fn group_status((name, group): (&GroupName, &Group)) -> GroupStatus {
    GroupStatus {
        group: name.clone(),
        target: group.spec.target,
        min: group.spec.min,
        max: group.spec.max,
        requested: group.counts.of(State::Requested),
        pending: group.counts.of(State::Pending),
        running: group.counts.of(State::Running),
        draining: group.counts.of(State::Draining),
        terminating: group.counts.of(State::Terminating),
        failed: group.counts.of(State::Failed),
        waiting: group.waiting.map(|(waiting, _)| waiting),
        since: group.waiting.map(|_| group.waiting_since),
        until: group.waiting.and_then(|(_, until)| until),
        message: None,
    }
}
