//! Groups from the file and from calls: the calls, and checks that the core applies each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::model::command::{Command, GroupChange, GroupCommand, Reply};
use posse_core::model::ids::{GroupName, Uid};
use posse_core::model::pod_text::{Part, PodText};
use posse_core::model::settings::{
    Decommission, GroupSpec, OnLoss, Protect, Replace, Restart, ScaleDown, SlotPolicy, Together,
};
use posse_core::reconciler::Reconciler;

use super::check::CheckResult;
use super::cluster::{Cluster, is_over};
use super::faults::at;
use super::trace::trace;
use super::world::World;

/// The groups as the current process knows them from calls.
#[derive(Debug, Default)]
pub struct Groups {
    /// The pod template of each group.
    pods: BTreeMap<GroupName, PodText>,
    deleted: BTreeSet<GroupName>,
    /// Pods of deleted groups. They must go, even if a new group has the same name.
    doomed: BTreeSet<Uid>,
}

impl Groups {
    pub fn new(file: &[GroupSpec]) -> Self {
        let pod = |spec: &GroupSpec| (**spec.pod.as_ref().unwrap()).clone();
        let pods = file.iter().map(|spec| (spec.name.clone(), pod(spec)));
        Self { pods: pods.collect(), ..Self::default() }
    }

    pub fn before_call(&mut self, core: &Reconciler, command: &Command) {
        if let Command::Group(group, GroupCommand::Delete) = command {
            let ours = core.executors().iter().filter(|(_, executor)| executor.group == *group);
            self.doomed.extend(ours.filter_map(|(_, executor)| executor.uid.clone()));
        }
    }

    pub fn after_call(&mut self, command: &Command, reply: &Reply) -> CheckResult {
        match (command, reply) {
            (Command::Group(group, GroupCommand::Delete), Reply::Done) => {
                self.pods.remove(group);
                self.deleted.insert(group.clone());
            }
            (Command::Group(group, GroupCommand::Put { change }), Reply::Target(target)) => {
                let least = change.min.unwrap_or(0);
                let most = change.max.unwrap_or(u32::MAX);
                if *target < least || *target > most {
                    return Err(format!("{command:?} set {target}"));
                }
                self.pods.insert(group.clone(), (*change.pod).clone());
                self.deleted.remove(group);
            }
            (Command::Group(group, GroupCommand::SetTarget { .. }), Reply::Target(_))
                if self.deleted.contains(group) =>
            {
                return Err(format!("{command:?} of a deleted group"));
            }
            (
                Command::Group(group, GroupCommand::Delete)
                | Command::Group(group, GroupCommand::SetTarget { .. }),
                Reply::UnknownGroup,
            ) if self.pods.contains_key(group) => {
                return Err(format!("{command:?} of a known group: {reply:?}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// A create must use the current template of its group.
    pub fn on_create(&self, group: &GroupName, pod: &PodText) -> CheckResult {
        if self.pods.get(group) != Some(pod) {
            return Err(format!("a create in {group} is not made from its template"));
        }
        Ok(())
    }

    /// Long after the last call: deleted groups are gone, created groups exist.
    pub fn converged(&self, core: &Reconciler, cluster: &Cluster) -> CheckResult {
        let pods = || cluster.pods.values().filter(|stored| stored.is_ours());
        if let Some(left) = pods().find(|s| self.doomed.contains(&s.pod.uid) && !is_over(&s.pod)) {
            return Err(format!("{} lives, and its group was deleted", left.pod.id));
        }
        let groups = core.executors().groups();
        if let Some(name) = self.pods.keys().find(|name| !groups.contains_key(*name)) {
            return Err(format!("{name} is forgotten, and nobody deleted it"));
        }
        for name in self.deleted.iter().filter(|name| groups.contains_key(*name)) {
            if !pods().any(|stored| stored.pod.group == *name) {
                return Err(format!("{name} is deleted and empty, and still known"));
            }
        }
        Ok(())
    }
}

impl World {
    /// Creates, changes or deletes a group by a call; the group may be from the file or not.
    pub fn call_group(&mut self) -> CheckResult {
        let rng = &mut self.calls_rng;
        let name = GroupName::from(["g0", "g1", "p0", "p1"][at(rng, 4)]);
        let number = |rng: &mut Rng| u32::try_from(rng.below(7)).unwrap();
        self.n_calls += 1;
        let command = match rng.below(4) {
            0 => Command::Group(name, GroupCommand::Delete),
            1 => Command::Group(name, GroupCommand::SetTarget { target: number(rng) }),
            _ => {
                let change = GroupChange {
                    pod: pod_text(&format!("{name} by call {}", self.n_calls)),
                    target: rng.chance(70).then(|| number(rng)),
                    min: rng.chance(10).then_some(1),
                    max: rng.chance(20).then(|| number(rng)),
                    scale_down: rng.chance(20).then_some(ScaleDown::Pending),
                    replace: rng.chance(20).then_some(Replace::Gone),
                    decommission: (self.n_calls % 5 == 3).then_some(Decommission {
                        after_ms: 20_000,
                        label: None,
                        by_term: self.n_calls.is_multiple_of(2),
                    }),
                    ..GroupChange::default()
                };
                Command::Group(name, GroupCommand::Put { change })
            }
        };
        self.group_call(command)
    }

    /// Makes a call about a group and checks its answer.
    pub fn group_call(&mut self, command: Command) -> CheckResult {
        let Some(core) = &mut self.core else { return Ok(()) };
        self.check.before_call(core, &command);
        let reply = core.command(command.clone(), Millis(self.now));
        trace(|| format!("{:>9}   <- {command:?}: {reply:?}", self.now));
        self.wake();
        self.check.after_call(&command, &reply)
    }
}

/// A group from the file.
pub fn group(name: &str, rng: &mut Rng) -> GroupSpec {
    GroupSpec {
        protect: Protect::Busy,
        together: Together::No,
        name: GroupName::from(name),
        target: u32::try_from(rng.below(8)).unwrap(),
        min: u32::from(rng.chance(20)),
        max: rng.chance(20).then_some(6),
        scale_down: if rng.chance(20) { ScaleDown::Pending } else { ScaleDown::Any },
        replace: if rng.chance(20) { Replace::Gone } else { Replace::Terminating },
        slots: SlotPolicy::Lowest,
        on_loss: OnLoss::Executor,
        restart: Restart::Always,
        completions: None,
        decommission: None,
        from_file: rng.chance(50),
        credentials: None,
        is_scaled: false,
        pod: Some(pod_text(&format!("{name} of the file"))),
    }
}

fn pod_text(text: &str) -> Arc<PodText> {
    Arc::new(PodText { parts: vec![Part::Text(text.to_owned())], ..PodText::default() })
}
