//! The calls of the driver and of persons. Repeated calls change nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::Reconciler;
use crate::model::act::{Act, Call, Caller};
use crate::model::command::{AfterKill, Command, GroupCommand, Reply};
use crate::model::event::{DeleteCause, Event, LossReason, RunEvent};
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::status::State;
use crate::model::task::TaskEnd;
use crate::policy::loss::Loss;
use crate::state::executors::Group;
use posse_base::time::Millis;

impl Reconciler {
    /// Executes a call and notes who acted by it, before what follows from it. A call that is refused, that asks for the
    /// target that is there or that kills nobody, changes nothing and is not noted: a driver may repeat it every second.
    pub fn call(&mut self, command: Command, by: Caller, now: Millis) -> Reply {
        let act = Act::of(&command, by);
        let place = self.out.n_events();
        let reply = self.command(command, now);
        let has_told = self.out.n_events() > place;
        let is_noted = |act: &Act| has_told || (act.call != Call::Scale && reply.has_effect());
        if let Some(act) = act.filter(is_noted) {
            self.out.tell_at(place, Event::Run(RunEvent::Acted(act)));
        }
        reply
    }

    /// Executes one call and returns its reply. The next turn acts on the new targets.
    pub fn command(&mut self, command: Command, now: Millis) -> Reply {
        if !matches!(command, Command::TaskSecretKeys | Command::View | Command::ViewTasks { .. }) {
            // posse cannot distinguish the driver from other clients.
            self.driver_reports.on_call(now);
        }
        if self.end.is_stopping() && command.is_recorded() {
            let what =
                "the run stops, so nothing new is recorded: repeat the call when it runs again";
            return Reply::NotRecorded { what: what.to_owned() };
        }
        match command {
            Command::Disconnected { executor } => self.on_disconnected(executor, now),
            Command::DriverReady => {
                self.gates.on_driver_ready();
                Reply::Done
            }
            Command::Group(name, command) => self.group_command(name, command, now),
            Command::Heartbeat { executors, memory } => {
                let reply = self.on_heartbeats(&executors, now);
                for (id, used_bytes) in memory {
                    self.on_memory_report(id, used_bytes, now);
                }
                reply
            }
            Command::Idle { executors } => self.on_idle(executors, now),
            Command::Kill { executors, after, force, is_silent, reason } => {
                let reason = reason.unwrap_or_else(|| "killed by a call".to_owned());
                // Only the driver knows whether they had failed.
                let loss = match is_silent {
                    true => Loss::new(LossReason::HeartbeatTimeout, None, reason),
                    false => Loss::new(LossReason::Killed, None, reason),
                };
                self.kill(&executors, after, force, &loss, now)
            }
            Command::TaskSecretKeys => Reply::TaskSecretKeys(self.task_secret_keys()),
            Command::Status | Command::View => Reply::Status(self.status().into()),
            Command::ViewTasks { group, key } => self.show_tasks(&group, key.as_deref()),
        }
    }

    fn group_command(&mut self, name: GroupName, command: GroupCommand, now: Millis) -> Reply {
        match command {
            GroupCommand::AddTasks { tasks } => self.add_tasks(&name, tasks),
            GroupCommand::CancelTask { key } => self.cancel_task(&name, &key, now),
            GroupCommand::Delete => self.delete_group(&name, now),
            GroupCommand::Prefer { nodes } => self.prefer_nodes(&name, nodes),
            GroupCommand::Put { change } => {
                let refusal = change.target.and_then(|target| {
                    let conflict = || self.target_conflict(&name, target, change.max);
                    self.scaled_by_command(&name).or_else(conflict)
                });
                refusal.unwrap_or_else(|| self.put_group(name, change, false, now))
            }
            GroupCommand::RetryTask { key } => self.retry_task(&name, &key),
            GroupCommand::SetTarget { target } => {
                let conflict = || self.target_conflict(&name, target, None);
                let refusal = self.scaled_by_command(&name).or_else(conflict);
                let set = || {
                    self.set_target(&name, target, now).map_or(Reply::UnknownGroup, Reply::Target)
                };
                refusal.unwrap_or_else(set)
            }
            GroupCommand::ShowTasks { key } => self.show_tasks(&name, key.as_deref()),
        }
    }

    fn kill(
        &mut self,
        ids: &BTreeSet<ExecutorId>,
        after: AfterKill,
        force: bool,
        loss: &Loss,
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
                killed.iter().for_each(|&id| self.end_task_of(id, TaskEnd::CANCELLED, now));
            }
            (AfterKill::Target(target), Some(group)) => {
                self.set_target(group, target, now);
            }
            (AfterKill::Replace, _) | (AfterKill::Target(_), None) => {}
        }
        if after != AfterKill::Replace {
            killed.iter().for_each(|&id| self.dismiss_killed(id));
        }
        for &id in &killed {
            let is_cancelled = after == AfterKill::Lower && self.has_task(id);
            if force {
                self.lose_and_delete(id, loss, now);
            } else {
                self.lose(id, loss, now);
                let cause = if is_cancelled { DeleteCause::Cancelled } else { DeleteCause::Killed };
                self.decommission(id, cause, now);
            }
        }
        self.executors.groups_mut().for_each(Group::note_surplus);
        let target = group.and_then(|name| Some(self.executors.groups().get(&name)?.target()));
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
            if let Some(group) = self.executors.groups().get(&name) {
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
        let mut all = self.executors.groups().keys();
        match (groups.len(), groups.first(), all.next(), all.next()) {
            (0, _, Some(only), None) => Ok(Some(only.clone())),
            (0, ..) => Ok(None),
            (1, Some(&only), ..) => Ok(Some(only.clone())),
            _ => Err(()),
        }
    }
}
