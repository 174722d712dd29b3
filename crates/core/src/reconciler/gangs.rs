//! `gang`: executors that are of use only together. If too few of them run for too long, posse gives back all at
//! once and tries again later, so that two applications never hold each other's halves for ever.

use super::Reconciler;
use crate::model::event::{DeleteCause, Event, GroupEvent};
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::settings::Together;
use crate::model::status::State;
use crate::state::executors::{Group, Life};
use crate::state::gang::{GangCounts, GangStep};
use posse_base::time::Millis;

impl Reconciler {
    /// Reports complete gangs and gives incomplete ones back. Returns when this is due again.
    pub(super) fn judge_gangs(&mut self, now: Millis) -> Option<Millis> {
        let groups = self.executors.groups().iter();
        let gangs =
            groups.filter(|(_, group)| matches!(group.spec.together, Together::Gang { .. }));
        let names: Vec<GroupName> = gangs.map(|(name, _)| name.clone()).collect();
        names.iter().filter_map(|name| self.judge_gang(name, now)).min()
    }

    fn judge_gang(&mut self, name: &GroupName, now: Millis) -> Option<Millis> {
        let group = self.executors.group_mut(name)?;
        let Together::Gang { min, give_back_after_ms } = group.spec.together else { return None };
        let counts = gang_counts(group);
        let since = match group.gang.observe(min, counts, now) {
            GangStep::Unchanged => return None,
            GangStep::Complete => {
                let event = GroupEvent::GangRunning { running: counts.running, min };
                self.out.tell(Event::Group(name.clone(), event));
                return None;
            }
            GangStep::Incomplete(since) => since,
        };
        let at = since.after(give_back_after_ms?);
        if at > now {
            return Some(at);
        }
        // More of them may run by now while the watch is interrupted.
        let is_known = self.snapshot.is_synced() && self.due.is_updated_since(at);
        if !self.gates.is_lease_held() {
            return None;
        }
        if !is_known {
            return self.request_list(now);
        }
        let group = self.executors.group_mut(name)?;
        let until = group.gang.give_back(now, &mut self.rng);
        let GangCounts { running, .. } = counts;
        let event = GroupEvent::GangGivenBack { running, min, until };
        self.out.tell(Event::Group(name.clone(), event));
        self.give_back(name, now);
        None
    }

    /// Ends all executors of the group that still work, and cancels its creates.
    fn give_back(&mut self, name: &GroupName, now: Millis) {
        let Some(group) = self.executors.groups().get(name) else { return };
        let held = self.executors.own(group).filter(|(_, one)| one.life == Life::Wanted);
        let held: Vec<ExecutorId> = held.map(|(id, _)| id).collect();
        for id in held {
            self.end(id, DeleteCause::GangGivenBack, now);
        }
    }

    /// How far a gang has come, and what keeps the others from running.
    pub(super) fn gang_message(&self, group: &Group) -> Option<String> {
        let Together::Gang { min, .. } = group.spec.together else { return None };
        let GangCounts { running, .. } = gang_counts(group);
        let problem = group.problems.first().and_then(|id| self.problem_message(id));
        let problem = problem.map_or_else(String::new, |problem| format!(": {problem}"));
        Some(format!("{running} of {min} run{problem}"))
    }
}

/// The executors of tasks need no others.
fn gang_counts(group: &Group) -> GangCounts {
    let running = group.own.of(State::Running);
    GangCounts { target: group.target(), running, held: running + group.own.of(State::Pending) }
}
