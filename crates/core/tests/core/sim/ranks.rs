//! Groups with stable slots, and groups that restart together: the worlds in which they are played, and
//! what must hold for each slot and each attempt.

use std::collections::{BTreeMap, BTreeSet};

use crate::core_run::pod_with_claims;
use posse_core::model::action::Action;
use posse_core::model::event::{Event, ExecutorEvent};
use posse_core::model::ids::GroupName;
use posse_core::model::pod::Pod;
use posse_core::model::settings::{OnLoss, Replace, ScaleDown, SlotPolicy};
use posse_core::reconciler::Reconciler;
use posse_core::state::executors::{Group, has_ended};

use super::check::{CheckResult, fail};
use super::cluster::{Cluster, Stored};
use super::world::World;

/// The attempts of groups that restart together.
#[derive(Debug, Default)]
pub struct Attempts {
    /// The attempt of each create, by the executor's id.
    of_create: BTreeMap<u64, u32>,
    /// The attempts for whose losses the current process has charged a budget.
    charged: BTreeSet<(GroupName, u32)>,
}

impl Attempts {
    pub fn of_next_process(self) -> Self {
        Self { charged: BTreeSet::new(), ..self }
    }

    pub fn on_action(&mut self, action: &Action) {
        if let Action::Create { id, overrides, .. } = action {
            self.of_create.insert(id.0, overrides.attempt);
        }
    }

    /// An attempt ends by one loss: what the others report afterwards is part of it.
    pub fn on_event(&mut self, event: &Event, core: &Reconciler, n_restores: u32) -> CheckResult {
        let Event::Executor(subject, ExecutorEvent::Lost { budget, .. }) = event else {
            return Ok(());
        };
        let group = core.executors().groups().get(&subject.group);
        let is_whole = group.is_some_and(|group| group.spec.restarts_whole());
        let Some(&attempt) = self.of_create.get(&subject.id.0) else { return Ok(()) };
        if is_whole
            && budget.is_some()
            && !self.charged.insert((subject.group.clone(), attempt))
            && n_restores == 0
        {
            return fail(format!("{event:?} is charged, but attempt {attempt} was charged before"));
        }
        Ok(())
    }
}

/// A create gets a slot below the target that no executor has, and no other attempt is alive.
pub fn on_action(action: &Action, core: &Reconciler, cluster: &Cluster) -> CheckResult {
    let Action::Create { id, group: name, slot, overrides, .. } = action else { return Ok(()) };
    let Some(group) = core.executors().groups().get(name) else { return Ok(()) };
    if !group.spec.has_stable_slots() || cluster.n_restores > 0 {
        return Ok(());
    }
    // A create that is sent again may have been overtaken by a lower target.
    let is_first = core.executors().get(*id).and_then(|e| Some(e.create.as_ref()?.n_tries == 1));
    if is_first == Some(true) && *slot >= group.target() {
        return fail(format!("{action:?} of {} ranks", group.target()));
    }
    let has_it = |pod: &&Pod| {
        let has_slot = pod.group == *name && pod.slot == Some(*slot) && !has_ended(pod);
        has_slot && pod.id != *id && is_of_executor(pod, core)
    };
    if let Some(other) = core.snapshot().pods().find(has_it) {
        return fail(format!("{action:?}, but {other:?} has this slot"));
    }
    let is_earlier =
        |pod: &&Pod| pod.group == *name && pod.attempt < overrides.attempt && !has_ended(pod);
    let earlier = core.snapshot().pods().filter(|pod| is_of_executor(pod, core));
    match earlier.into_iter().find(is_earlier) {
        Some(other) if group.spec.restarts_whole() => {
            fail(format!("{action:?}, but {other:?} is of an earlier attempt"))
        }
        _ => Ok(()),
    }
}

/// False for a second pod of an id, from a POST of unknown outcome that took effect late: it is
/// deleted at once.
fn is_of_executor(pod: &Pod, core: &Reconciler) -> bool {
    let executor = core.executors().get(pod.id);
    executor.is_some_and(|e| e.uid.as_ref().is_none_or(|uid| *uid == pod.uid))
}

/// No two live pods of a group have one slot. Of a process that was killed, a late create may still
/// take effect, so this holds only for the first one.
pub fn are_unique(core: &Reconciler, cluster: &Cluster, gen_: u32) -> CheckResult {
    if gen_ > 1 || cluster.n_restores > 0 {
        return Ok(());
    }
    let mut slots: BTreeMap<(&GroupName, Option<u32>), &Pod> = BTreeMap::new();
    let mut attempts: BTreeMap<&GroupName, u32> = BTreeMap::new();
    // Also one without our labels, as long as posse can know of it.
    let is_known =
        |stored: &&Stored| stored.is_ours() || cluster.unlabelled.contains(&stored.pod.uid);
    let ours = cluster.pods.values().filter(is_known);
    for pod in ours.map(|stored| &stored.pod) {
        let group = core.executors().groups().get(&pod.group);
        let is_rank = group.is_some_and(|group| group.spec.has_stable_slots()) && !has_ended(pod);
        if is_rank
            && is_of_executor(pod, core)
            && let Some(other) = slots.insert((&pod.group, pod.slot), pod)
        {
            return fail(format!("{pod:?} and {other:?} have one slot"));
        }
        let is_whole = group.is_some_and(|group| group.spec.restarts_whole());
        if is_whole && is_rank && is_of_executor(pod, core) {
            let attempt = attempts.entry(&pod.group).or_insert(pod.attempt);
            if *attempt != pod.attempt {
                return fail(format!("{pod:?} lives beside attempt {attempt}"));
            }
        }
    }
    Ok(())
}

/// Long after the last fault the slots are those from 0 to one below the target. `is_whole`: no pod
/// that does not go away has one.
pub fn are_complete(group: &Group, pods: &[&Pod], is_whole: bool) -> CheckResult {
    if !group.spec.has_stable_slots() {
        return Ok(());
    }
    let live = pods.iter().filter(|pod| !has_ended(pod) && !pod.deleting);
    let slots: BTreeSet<u32> = live.clone().filter_map(|pod| pod.slot).collect();
    let attempts: BTreeSet<u32> = live.map(|pod| pod.attempt).collect();
    if group.spec.restarts_whole() && attempts.len() > 1 {
        return fail(format!("the attempts {attempts:?} of {:?} live together", group.spec));
    }
    let want: BTreeSet<u32> = (0..group.target()).collect();
    if !slots.is_subset(&want) || is_whole && slots != want {
        return fail(format!("{:?} has the slots {slots:?}, not {want:?}", group.spec));
    }
    Ok(())
}

impl World {
    /// A world whose groups wait for the slots of executors that end.
    pub fn with_slot_waits(seed: u64) -> Self {
        let mut world = match seed % 2 {
            0 => Self::with_node_faults(seed),
            _ => Self::with_node_faults(seed).with_server_faults(seed),
        };
        for group in &mut world.groups {
            (group.pod, group.replace) = (pod_with_claims(), Replace::Terminating);
        }
        world
    }

    /// A world whose groups have stable slots.
    pub fn with_ranks(seed: u64) -> Self {
        let mut world = match seed % 3 {
            0 => Self::new(seed),
            1 => Self::with_node_faults(seed),
            _ => Self::with_node_faults(seed).with_server_faults(seed),
        };
        for group in &mut world.groups {
            (group.slots, group.scale_down) = (SlotPolicy::Stable, ScaleDown::Any);
            if let Some(decommission) = &mut group.decommission {
                decommission.by_term = seed % 5 < 2;
            }
            if seed % 2 == 1 {
                group.on_loss = OnLoss::Group;
            }
        }
        if seed % 8 < 6 {
            (world.profile.kills, world.profile.crashes, world.profile.restores) = (0, 0, 0);
        }
        world
    }
}
