//! The calls of the driver and of persons. Repeated calls change nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::Reconciler;
use crate::core::loss::Loss;
use crate::core::model::command::{AfterKill, Command, GroupChange, Reply};
use crate::core::model::event::{DeleteCause, LossReason};
use crate::core::model::ids::{ExecutorId, GroupName};
use crate::core::model::status::State;
use crate::core::model::time::Millis;
use crate::core::state::executors::Group;

impl Reconciler {
    /// Executes one call and returns its reply. The next turn acts on the new targets.
    pub fn command(&mut self, command: Command, now: Millis) -> Reply {
        if command != Command::View {
            self.on_driver_call(now);
        }
        if let Command::SetTarget { group, .. }
        | Command::PutGroup { group, change: GroupChange { target: Some(_), .. } } = &command
            && let Some(refusal) = self.scaled_by_command(group)
        {
            return refusal;
        }
        match command {
            Command::AddTasks { group, tasks } => self.add_tasks(&group, tasks),
            Command::CancelTask { group, key } => self.cancel_task(&group, &key, now),
            Command::ShowTasks { group, key } => self.show_tasks(&group, key.as_deref()),
            Command::DeleteGroup { group } => self.delete_group(&group, now),
            Command::Disconnected { executor } => self.on_disconnected(executor, now),
            Command::DriverReady => {
                self.is_driver_ready = true;
                Reply::Done
            }
            Command::Heartbeat { executors } => self.on_heartbeats(&executors, now),
            Command::Idle { executors } => self.on_idle(executors, now),
            Command::Kill { executors, after, force, reason } => {
                self.kill(&executors, after, force, reason.as_deref(), now)
            }
            Command::PutGroup { group, change } => self.put_group(group, change, now),
            Command::SetTarget { group, target } => {
                self.set_target(&group, target, now).map_or(Reply::UnknownGroup, Reply::Target)
            }
            Command::Status | Command::View => Reply::Status(self.status().into()),
        }
    }

    fn kill(
        &mut self,
        ids: &BTreeSet<ExecutorId>,
        after: AfterKill,
        force: bool,
        reason: Option<&str>,
        now: Millis,
    ) -> Reply {
        let (known, unknown) = self.split_known(ids);
        let group = match self.only_group(&known) {
            Ok(group) => group,
            Err(()) if matches!(after, AfterKill::Target(_)) => {
                let what = "the executors belong to several groups, so the target is ambiguous";
                return Reply::Refused { what: what.to_owned(), field: "target" };
            }
            Err(()) => None,
        };
        if let (AfterKill::Target(_), Some(name)) = (after, &group)
            && let Some(refusal) = self.scaled_by_command(name)
        {
            return refusal;
        }
        if force {
            known.iter().for_each(|&id| self.end_drain(id, now));
        }
        let live = known.into_iter().filter(|&id| self.is_live(id));
        let (busy, killed): (Vec<ExecutorId>, Vec<ExecutorId>) =
            live.partition(|&id| !force && self.is_busy(id, now));
        match (after, &group) {
            (AfterKill::Lower, _) => {
                self.lower_by(&killed, now);
                killed.iter().for_each(|&id| self.cancel_task_of(id));
            }
            (AfterKill::Target(target), Some(group)) => {
                self.set_target(group, target, now);
            }
            (AfterKill::Replace, _) | (AfterKill::Target(_), None) => {}
        }
        for &id in &killed {
            let message = reason.unwrap_or("killed by a call").to_owned();
            let loss = Loss { reason: LossReason::Killed, exit_code: None, message };
            let is_cancelled = after == AfterKill::Lower && self.has_task(id);
            if force {
                self.lose_and_delete(id, &loss, now);
            } else {
                self.lose(id, &loss, now);
                let cause = if is_cancelled { DeleteCause::Cancelled } else { DeleteCause::Killed };
                self.decommission(id, cause, now);
            }
        }
        self.executors.groups.values_mut().for_each(Group::note_surplus);
        let target = group.and_then(|name| Some(self.executors.groups.get(&name)?.target()));
        Reply::Killed { killed, busy, unknown, target }
    }

    fn is_busy(&self, id: ExecutorId, now: Millis) -> bool {
        let runs = self.executors.get(id).is_some_and(|e| e.state == State::Running);
        runs && self.driver_reports.is_busy(id, now)
    }

    /// Lowers each group's target by the number of these executors in it, but not below its `min`.
    fn lower_by(&mut self, ids: &[ExecutorId], now: Millis) {
        let mut fewer: BTreeMap<GroupName, u32> = BTreeMap::new();
        let executors = ids.iter().filter_map(|&id| self.executors.get(id));
        for executor in executors.filter(|executor| executor.task.is_none()) {
            *fewer.entry(executor.group.clone()).or_default() += 1;
        }
        for (name, n) in fewer {
            if let Some(group) = self.executors.groups.get(&name) {
                self.change_target(&name, group.target().saturating_sub(n), now);
            }
        }
    }

    /// The group of all these executors; if none of them is known, the only group. An error if
    /// there are several.
    fn only_group(&self, ids: &[ExecutorId]) -> Result<Option<GroupName>, ()> {
        let groups: BTreeSet<&GroupName> = ids
            .iter()
            .filter_map(|&id| self.executors.get(id).map(|executor| &executor.group))
            .collect();
        let mut all = self.executors.groups.keys();
        match (groups.len(), groups.first(), all.next(), all.next()) {
            (0, _, Some(only), None) => Ok(Some(only.clone())),
            (0, ..) => Ok(None),
            (1, Some(&only), ..) => Ok(Some(only.clone())),
            _ => Err(()),
        }
    }
}
