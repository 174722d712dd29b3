//! Owns the arithmetic of what the driver or a person asks for: targets and kills. Repeats change
//! nothing.

use std::collections::BTreeSet;

use crate::core::command::{AfterKill, Command, Reply};
use crate::core::event::{DeleteCause, LossReason};
use crate::core::ids::{ExecutorId, GroupName};
use crate::core::loss::Loss;
use crate::core::reconciler::Reconciler;
use crate::core::status::State;
use crate::core::time::Millis;

impl Reconciler {
    /// Carries out one call and answers it. What follows from it is the next turn's.
    pub fn command(&mut self, command: Command, now: Millis) -> Reply {
        match command {
            Command::DeleteGroup { group } => self.delete_group(&group, now),
            Command::DriverReady => {
                self.is_driver_ready = true;
                Reply::Done
            }
            // Nobody is busy as long as no list of idle executors was given.
            Command::Kill { executors, after, force: _, reason } => {
                self.kill(&executors, after, reason.as_deref(), now)
            }
            Command::PutGroup { group, change } => self.put_group(group, change, now),
            Command::SetTarget { group, target } => {
                self.set_target(&group, target, now).map_or(Reply::UnknownGroup, Reply::Target)
            }
            Command::Status => Reply::Status(self.status()),
        }
    }

    fn kill(
        &mut self,
        asked: &BTreeSet<ExecutorId>,
        after: AfterKill,
        reason: Option<&str>,
        now: Millis,
    ) -> Reply {
        let (known, unknown): (Vec<ExecutorId>, Vec<ExecutorId>) =
            asked.iter().partition(|&&id| self.executors.get(id).is_some());
        let group = match self.only_group(&known) {
            Ok(group) => group,
            Err(()) if matches!(after, AfterKill::Target(_)) => {
                let what = "the executors belong to several groups: which target is meant?";
                return Reply::Refused { what: what.to_owned(), field: "target" };
            }
            Err(()) => None,
        };
        let killed: Vec<ExecutorId> =
            known.into_iter().filter(|&id| self.kill_one(id, after, reason, now)).collect();
        if let (AfterKill::Target(target), Some(group)) = (after, &group) {
            self.set_target(group, target, now);
        }
        let target = group.and_then(|name| Some(self.executors.groups.get(&name)?.spec.target));
        Reply::Killed { killed, busy: Vec::new(), unknown, target }
    }

    /// True where the executor was live and not ending; it is ending now.
    fn kill_one(
        &mut self,
        id: ExecutorId,
        after: AfterKill,
        reason: Option<&str>,
        now: Millis,
    ) -> bool {
        let Some(executor) = self.executors.get(id) else { return false };
        match executor.state {
            State::Requested | State::Pending | State::Running => {}
            State::Draining | State::Terminating | State::Failed => return false,
        }
        let name = executor.group.clone();
        if after == AfterKill::Lower
            && let Some(group) = self.executors.groups.get(&name)
        {
            let lower = group.spec.target.saturating_sub(1).max(group.spec.min);
            self.set_target(&name, lower, now);
        }
        let message = reason.unwrap_or("killed by a call").to_owned();
        self.lose(id, &Loss { reason: LossReason::Killed, exit_code: None, message }, now);
        self.end(id, DeleteCause::Killed, now);
        true
    }

    /// The group that all of these belong to, else the only one there is. An error: several.
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
