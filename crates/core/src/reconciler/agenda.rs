//! Which groups a turn looks at and plans, so that its cost depends on what changed. A group that rests is not
//! planned at all until it is marked (`Groups::get_mut`). What a look at one of the others has said stays true
//! until the group is marked, until its time comes, or until something changes that concerns all groups.

use std::collections::{BTreeMap, BTreeSet};

use super::Reconciler;
use crate::model::ids::GroupName;
use crate::policy::plan::{GroupFacts, PlanInputs, plan};
use crate::state::executors::Groups;
use posse_base::time::Millis;

/// The groups that do not rest, as the last look at each has seen them.
#[derive(Clone, Debug, Default)]
pub(super) struct Agenda {
    looks: BTreeMap<GroupName, Look>,
    /// What the looks have seen that concerns all groups.
    run: Option<RunFacts>,
    /// The groups that the last turn has looked at.
    looked_at: BTreeSet<GroupName>,
}

/// What a look at a group has said.
#[derive(Clone, Debug)]
struct Look {
    facts: GroupFacts,
    /// When time alone changes the facts.
    changes_at: Option<Millis>,
}

/// What the facts of every group depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunFacts {
    are_creates_stopped: bool,
    is_lease_held: bool,
    had_first_list: bool,
    is_synced: bool,
    is_driver_ready: bool,
    are_credentials_stored: bool,
    usable_credentials: Vec<bool>,
}

impl Agenda {
    /// The groups that this turn has to look at.
    fn take_due(&mut self, groups: &mut Groups, run: RunFacts, now: Millis) -> BTreeSet<GroupName> {
        self.looks.retain(|_, look| !look.facts.rests());
        let mut due = groups.take_marked();
        if self.run.as_ref() == Some(&run) {
            let is_over = |look: &Look| look.changes_at.is_some_and(|at| at <= now);
            let over = self.looks.iter().filter(|(_, look)| is_over(look));
            due.extend(over.map(|(name, _)| name.clone()));
        } else {
            self.run = Some(run);
            due.extend(groups.keys().cloned());
        }
        due
    }

    pub(super) fn looked_at(&self) -> &BTreeSet<GroupName> {
        &self.looked_at
    }

    /// The groups to plan.
    pub(super) fn facts(&self) -> impl Iterator<Item = &GroupFacts> {
        self.looks.values().map(|look| &look.facts)
    }

    /// When the next look is due because of the time.
    pub(super) fn next_at(&self) -> Option<Millis> {
        self.looks.values().filter_map(|look| look.changes_at).min()
    }
}

impl Reconciler {
    /// Looks at the groups that need it.
    pub(super) fn look_at_groups(&mut self, now: Millis) {
        let run = self.run_facts();
        let due = self.agenda.take_due(&mut self.executors.groups, run, now);
        for name in &due {
            self.expire_slot_waits(name, now);
            let gang_due = self.judge_gang(name, now);
            let group = self.executors.groups.get(name);
            let look = group.map(|group| Look {
                facts: self.facts_of(name, group, now),
                changes_at: self.facts_change_at(group, now).into_iter().chain(gang_due).min(),
            });
            match look {
                Some(look) => drop(self.agenda.looks.insert(name.clone(), look)),
                None => drop(self.agenda.looks.remove(name)),
            }
        }
        self.agenda.looked_at = due;
    }

    fn run_facts(&self) -> RunFacts {
        RunFacts {
            are_creates_stopped: self.gates.are_creates_stopped(),
            is_lease_held: self.gates.is_lease_held(),
            had_first_list: self.had_first_list(),
            is_synced: self.snapshot.is_synced(),
            is_driver_ready: self.gates.is_driver_ready(),
            are_credentials_stored: self.credentials.are_stored(),
            usable_credentials: self.credentials.usable().collect(),
        }
    }

    fn expire_slot_waits(&mut self, name: &GroupName, now: Millis) {
        let next_end =
            self.executors.groups.get(name).and_then(|group| group.slot_waits.next_end());
        if next_end.is_some_and(|at| at <= now)
            && let Some(group) = self.executors.groups.get_mut(name)
        {
            group.slot_waits.expire(now);
        }
    }

    /// A group of which this turn has not looked at a change.
    pub(super) fn overlooked_group(&self, inputs: &PlanInputs) -> Option<&GroupName> {
        let is_overlooked = |name: &GroupName, group| {
            let facts = self.facts_of(name, group, inputs.now);
            match self.agenda.looks.get(name) {
                Some(look) => look.facts != facts,
                None => !facts.rests() || !plan([&facts].into_iter(), inputs).groups.is_empty(),
            }
        };
        let mut groups = self.executors.groups.iter();
        groups.find(|(name, group)| is_overlooked(name, group)).map(|(name, _)| name)
    }
}
