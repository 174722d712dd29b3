//! What must hold after every step and at the end. Compares the true state of the simulated
//! cluster, the inputs of the core, and the outputs of the core.

mod finish;

use std::collections::{BTreeMap, BTreeSet};

use posse_base::time::Millis;
use posse_core::model::action::{Action, Patch};
use posse_core::model::command::{Command, Reply};
use posse_core::model::event::{Event, ExecutorEvent, LossReason};
use posse_core::model::ids::{ExecutorId, GroupName, Uid};
use posse_core::model::input::{Input, PodAnswer, PodEvent};
use posse_core::model::pod::{Phase, Pod};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::GroupSpec;
use posse_core::model::status::State;
use posse_core::model::stop::StopOrder;
use posse_core::reconciler::Reconciler;
use posse_core::state::executors::{Group, has_ended};

use super::cluster::{Cluster, is_over};
use super::groups::Groups;
use super::impostors::is_foreign;
use super::indexes::{indexes_are_right, status_is_current};
use super::losses::start_loss;
use super::node::LOST_NODE;
use super::ranks;
use super::tasks::tasks_are_right;
use super::work::Work;
use super::world::World;

pub type CheckResult = Result<(), String>;

const BLOCK: u64 = 1_000;
const OPEN_MS: u64 = 60_000;
const MINUTE_MS: u64 = 60_000;
/// What the core keeps is compared with a recount at one turn of so many: a wrong entry stays wrong, and a recount takes longer than a turn.
const RECOUNT_EVERY: u64 = 8;

#[derive(Debug, Default)]
pub struct Check {
    is_kept: bool,
    n_turns: u64,
    pub n_actions: u64,
    pub n_posts: u64,
    /// The exit code of the process that ended, and the pods that it named.
    pub ended_gen: Option<u32>,
    named: BTreeSet<String>,
    /// Ids under which any process was shown a pod, and the number of restores before it.
    told_ids: BTreeMap<u64, u32>,
    /// Ids below this may be used again, because nothing is left that shows their use.
    unknowable_above: u64,
    unkept_ids: BTreeSet<u64>,
    n_restores: u32,
    // Of the current process.
    is_held: bool,
    had_list: bool,
    pub(super) stop: Option<StopOrder>,
    told_gone: BTreeSet<Uid>,
    /// Executors whose end was reported before they had a uid.
    nameless: BTreeSet<u64>,
    ended: BTreeSet<Uid>,
    owned: BTreeSet<Uid>,
    going: BTreeSet<Uid>,
    /// Pods that had the `counted` label before this process started.
    pub(super) counted: BTreeSet<Uid>,
    /// The times of reported losses that count against the `app` budget.
    pub(super) app_losses: Vec<u64>,
    pub(super) is_app_spent: bool,
    /// Losses whose log is not yet reported.
    pub(super) logs_due: BTreeSet<Uid>,
    logs_read: Vec<u64>,
    /// When this process first sent a create for an id, and for which group.
    posted: BTreeMap<u64, (u64, GroupName)>,
    unknown: BTreeMap<u64, u64>,
    /// A restore that the core has not noticed: the epoch at that time.
    pub(super) doubt: Option<u32>,
    pub(super) steps: BTreeMap<u64, u32>,
    // The true state of starts and nodes.
    pub(super) bound: BTreeMap<Uid, u64>,
    pub(super) unbound: BTreeMap<Uid, u64>,
    pub(super) running: BTreeMap<Uid, u64>,
    pub(super) lost_by_node: BTreeSet<Uid>,
    pub(super) foreign_told: BTreeSet<Uid>,
    groups: Groups,
    pub(super) work: Work,
    attempts: ranks::Attempts,
    pub(super) is_outage: bool,
    pub(super) silent_until: u64,
    /// When the server took the LISTs of these versions, and when the last one of them came and was taken.
    pub(super) lists_taken: BTreeMap<u64, u64>,
    pub(super) last_list: Option<(u64, u64)>,
    /// When the nodes end terminating pods with a long grace period.
    pub(super) late_ends: BTreeMap<Uid, u64>,
    awaited_ends: BTreeMap<Uid, u64>,
}

pub(super) fn fail<T>(what: String) -> Result<T, String> {
    Err(what)
}

/// The slots that a group waits for are those of executors that end.
fn slots_are_held(core: &Reconciler, name: &GroupName, group: &Group) -> CheckResult {
    let members = group.members.iter().filter_map(|id| core.executors().get(*id));
    let is_ending = |state| matches!(state, State::Draining | State::Terminating);
    let n_ending = members.filter(|one| is_ending(one.state) && one.slot.is_some()).count();
    if group.slot_waits.count() as usize > n_ending {
        return fail(format!("{name} waits for slots that are free: {:?}", group.slot_waits));
    }
    Ok(())
}

/// No executor was changed or told of that is not in the table.
fn none_is_missing(core: &Reconciler) -> CheckResult {
    match core.executors().n_missing() {
        0 => Ok(()),
        n => Err(format!("{n} executors were missing in the table")),
    }
}

/// Each kind of request has its limit, and each executor one request. Returns how many creates and reads each executor has.
fn requests_are_few<'a>(
    outstanding: impl Iterator<Item = &'a Action>,
    most: u32,
) -> Result<BTreeMap<u64, u32>, String> {
    let (mut n_creates, mut n_mutations, mut n_logs, mut n_protects, mut n_all) = (0, 0, 0, 0, 0);
    let mut in_flight: BTreeMap<u64, u32> = BTreeMap::new();
    for action in outstanding {
        n_all += 1;
        match action {
            Action::Create { id, .. } | Action::Get { id, .. } => {
                n_creates += 1;
                *in_flight.entry(id.0).or_default() += 1;
            }
            Action::Delete { .. } | Action::Patch { .. } => n_mutations += 1,
            Action::Protect { .. } => n_protects += 1,
            Action::ReadLog { .. } => n_logs += 1,
            _ => {}
        }
    }
    let is_over = n_mutations > 16 || n_logs > 4 || n_protects > 16;
    if is_over || n_creates > most || n_all > most + 46 {
        let what = format!("{n_creates} creates, {n_mutations} deletes and patches, {n_logs} logs");
        return fail(format!("{what}, {n_all} requests"));
    }
    if let Some((id, n)) = in_flight.iter().find(|(_, n)| **n > 1) {
        return fail(format!("{n} requests at a time for executor {id}"));
    }
    Ok(in_flight)
}

impl Check {
    pub fn new(is_kept: bool) -> Self {
        Self { is_kept, ..Self::default() }
    }

    pub fn on_start(&mut self, is_held: bool, cluster: &Cluster, groups: &[GroupSpec]) {
        let kept = cluster.pods.values().filter(|stored| stored.pod.counted.is_some());
        // A create that was sent before a restore may have taken effect since.
        let given = cluster.lives.values().map(|life| life.id);
        self.unkept_ids.extend(given.filter(|id| *id > cluster.high_water));
        *self = Self {
            is_kept: self.is_kept,
            told_ids: std::mem::take(&mut self.told_ids),
            bound: std::mem::take(&mut self.bound),
            unbound: std::mem::take(&mut self.unbound),
            running: std::mem::take(&mut self.running),
            lost_by_node: std::mem::take(&mut self.lost_by_node),
            silent_until: self.silent_until,
            unkept_ids: std::mem::take(&mut self.unkept_ids),
            n_restores: cluster.n_restores,
            is_held,
            counted: kept.map(|stored| stored.pod.uid.clone()).collect(),
            groups: Groups::new(groups),
            late_ends: std::mem::take(&mut self.late_ends),
            work: std::mem::take(&mut self.work),
            attempts: std::mem::take(&mut self.attempts).of_next_process(),
            ..Self::default()
        };
    }

    pub fn on_restore(&mut self, core: Option<&Reconciler>, high_water: u64) {
        let given = self.told_ids.keys().chain(self.posted.keys());
        self.unkept_ids.extend(given.filter(|id| **id > high_water));
        self.n_restores += 1;
        self.doubt = core.map(|core| core.watermark().epoch);
        self.told_gone.clear();
        self.running.clear();
        self.lost_by_node.clear();
    }

    pub fn bound(&mut self, uid: &Uid, now: u64) {
        self.bound.entry(uid.clone()).or_insert(now);
    }

    pub fn unbound(&mut self, uid: &Uid, now: u64) {
        self.unbound.entry(uid.clone()).or_insert(now);
    }

    pub fn is_going(&self, uid: &Uid) -> bool {
        self.going.contains(uid)
    }

    pub fn running(&mut self, uid: &Uid, now: u64) {
        self.running.entry(uid.clone()).or_insert(now);
    }

    pub fn lost_by_node(&mut self, uid: &Uid) {
        self.lost_by_node.insert(uid.clone());
    }

    /// The stop waits for the grace periods of these pods, which it knows to be terminating.
    pub fn note_late_ends(&mut self, core: &Reconciler) {
        let is_known = |uid: &Uid| core.snapshot().get(uid).is_some_and(|pod| pod.deleting);
        let ends = self.late_ends.iter().filter(|(uid, _)| is_known(uid));
        self.awaited_ends = ends.map(|(uid, at)| (uid.clone(), *at)).collect();
    }

    /// True if this process itself has asked for an executor of this id.
    pub fn has_posted(&self, id: u64, group: &GroupName) -> bool {
        self.posted.get(&id).is_some_and(|(_, posted)| posted == group)
    }

    pub fn on_stop(&mut self, order: StopOrder) {
        self.stop.get_or_insert(order);
    }

    pub fn before_call(&mut self, core: &Reconciler, command: &Command) {
        self.groups.before_call(core, command);
    }

    pub fn after_call(&mut self, command: &Command, reply: &Reply) -> CheckResult {
        self.groups.after_call(command, reply)
    }

    pub fn before_input(&mut self, core: &Reconciler, input: &Input, cluster: &Cluster) {
        match input {
            Input::Lease { held, .. } => self.is_held = *held,
            Input::List(list) if !core.had_first_list() => {
                let ours = list.pods.iter().filter(|pod| !is_foreign(&pod.uid, cluster));
                let highest = ours.map(|pod| pod.id.0).max();
                let above = highest.map_or(0, |id| id.div_ceil(BLOCK).max(1) * BLOCK);
                let before = if list.page.number == 0 { 0 } else { self.unknowable_above };
                self.unknowable_above = above.max(before);
            }
            Input::Watch { epoch, events } if *epoch == core.watermark().epoch => {
                for event in events {
                    if let PodEvent::Deleted(pod) = event
                        && !is_foreign(&pod.uid, cluster)
                    {
                        // An event from before a restore says nothing of a pod that is back.
                        if is_over(pod) && !cluster.pods.values().any(|s| s.pod.uid == pod.uid) {
                            self.told_gone.insert(pod.uid.clone());
                        }
                        // While a restore is in doubt the event may be older than it.
                        let told = self.doubt.is_none().then_some(self.n_restores);
                        self.told_ids.extend(told.map(|n| (pod.id.0, n)));
                    }
                }
            }
            Input::Created { id, answer: Err(refusal), .. }
                if refusal.class == RefusalClass::OutcomeUnknown =>
            {
                let sent_at = self.posted.get(&id.0).map_or(0, |(at, _)| *at);
                self.unknown.insert(id.0, sent_at);
            }
            _ => {}
        }
    }

    pub fn after_input(&mut self, core: &Reconciler, input: &Input, _: &Cluster) -> CheckResult {
        self.had_list |= core.had_first_list();
        if let Input::Deleted { uid, answer: Err(refusal) } = input
            && matches!(refusal.class, RefusalClass::NotFound | RefusalClass::Conflict)
            && self.n_restores == 0
        {
            self.told_gone.insert(uid.clone());
            if core.snapshot().get(uid).is_some() {
                return fail(format!("{uid} is gone by the server's word, and still there"));
            }
        }
        Ok(())
    }

    /// Checks a POST that took effect.
    pub fn created(
        world: &World,
        gen_: u32,
        id: u64,
        seen: &PodAnswer,
        was_late: bool,
    ) -> CheckResult {
        let uid = match seen {
            PodAnswer::Ours(pod) => &pod.uid,
            PodAnswer::Foreign(foreign) => &foreign.uid,
        };
        let lives = &world.cluster.lives;
        let others = lives
            .iter()
            .filter(|(u, life)| life.id == id && !life.is_erased && !life.is_foreign && *u != uid);
        // Only a POST of unknown outcome may cause a second pod, which must be deleted.
        let is_excused = was_late
            || world.cluster.n_restores > 0
            || world.check.unknown.contains_key(&id)
            || (!world.check.is_kept && id > world.check.unknowable_above);
        if others.count() > 0 && !is_excused {
            return fail(format!("a second pod {uid} was made for executor {id}"));
        }
        let name = format!("{}{id}", super::world::PREFIX);
        let ended = world.check.ended_gen == Some(gen_);
        if ended && matches!(seen, PodAnswer::Ours(_)) && !world.check.named.contains(&name) {
            return fail(format!("{name} came after the end and was not among the names told"));
        }
        Ok(())
    }

    pub fn after_turn(world: &mut World, events: &[Event], actions: &[Action]) -> CheckResult {
        let Some(core) = &mut world.core else { return Ok(()) };
        let check = &mut world.check;
        check.n_turns += 1;
        let is_recounted = check.n_turns.is_multiple_of(RECOUNT_EVERY);
        if is_recounted {
            status_is_current(core)?;
        }
        check.had_list |= core.had_first_list();
        none_is_missing(core)?;
        if check.doubt.is_some_and(|epoch| core.watermark().epoch != epoch)
            && core.snapshot().is_synced()
        {
            check.doubt = None;
        }
        for event in events {
            check.on_event(event, &world.cluster)?;
            check.on_foreign_pod(event, &world.cluster)?;
            check.on_start_loss(event, core, &world.cluster, &world.policy, world.now)?;
            world.driver.on_event(event, core, &world.policy, world.now)?;
            check.on_loss(event, &world.cluster, &world.policy, world.now)?;
            check.work.on_event(event, core, &world.cluster)?;
            check.attempts.on_event(event, core, world.cluster.n_restores)?;
            world.tasks.on_event(event, &world.cluster)?;
        }
        check.budget_is_kept(&world.policy, world.now)?;
        for action in actions {
            check.spares_foreign_pods(action, &world.cluster)?;
            // Reading a node changes nothing. A group that cannot start tries for ever.
            let is_excused = matches!(action, Action::GetNode { .. })
                || world.profile.server_faults.is_about_bad_group(action, core);
            check.n_actions += u64::from(!is_excused);
            check.on_action(action, core, &world.cluster, world.now)?;
            check.on_shape(action, core, &world.policy, world.profile.node_faults.n_nodes)?;
            check.work.on_action(action, core, &world.cluster)?;
            ranks::on_action(action, core, &world.cluster)?;
            check.attempts.on_action(action);
            world.tasks.on_action(action, core, &world.cluster)?;
        }
        ranks::are_unique(core, &world.cluster, world.gen_)?;
        let requests = world.requests.iter().filter(|(n, _)| world.outstanding.contains(n));
        let actions_out = requests.map(|(_, request)| &request.action);
        let in_flight = requests_are_few(actions_out, world.policy.in_flight_max)?;
        check.recount(core, &in_flight, &world.cluster)?;
        if is_recounted {
            indexes_are_right(core)?;
        }
        tasks_are_right(core)?;
        check.plan_bounds(core, actions, world.policy.pending_max, world.now)?;
        check.snapshot_is_true(core, &world.cluster, is_recounted)?;
        check.ledger_is_kept(core, world.now)
    }

    fn on_event(&mut self, event: &Event, cluster: &Cluster) -> CheckResult {
        let (subject, is_loss) = match event {
            Event::Executor(subject, ExecutorEvent::Completed { .. })
            | Event::Executor(subject, ExecutorEvent::Lost { .. }) => (subject, true),
            Event::Executor(subject, ExecutorEvent::Deleted { .. }) => (subject, false),
            _ => return Ok(()),
        };
        let is_by_word = matches!(
            event,
            Event::Executor(
                _,
                ExecutorEvent::Lost {
                    reason: LossReason::Disconnected
                        | LossReason::HeartbeatTimeout
                        | LossReason::Killed,
                    ..
                }
            )
        );
        let Some(uid) = &subject.uid else {
            if is_by_word && self.nameless.insert(subject.id.0) {
                return Ok(());
            }
            return fail(format!("an end without a uid: {event:?}"));
        };
        self.told_ids.insert(subject.id.0, self.n_restores);
        if !self.ended.insert(uid.clone()) {
            return fail(format!("the end of {uid} is told twice: {event:?}"));
        }
        if self.doubt.is_some() {
            // The inputs come from before and after a restore, so any guess of the core is allowed.
            return Ok(());
        }
        let life = cluster.lives.get(uid);
        let was_over = life.is_some_and(|life| life.was_over);
        if !was_over && !is_by_word && start_loss(event).is_none() {
            return fail(format!("{event:?}, but it lives: {life:?}"));
        }
        let is_unseen = cluster.unlabelled.contains(uid);
        let is_there = life.is_some_and(|life| life.removed.is_none() && !life.is_erased);
        if !is_loss && is_there && !is_unseen {
            return fail(format!("{event:?}, but it is there: {life:?}"));
        }
        Ok(())
    }

    fn on_action(
        &mut self,
        action: &Action,
        core: &Reconciler,
        cluster: &Cluster,
        now: u64,
    ) -> CheckResult {
        let is_write = !matches!(
            action,
            Action::Get { .. }
                | Action::GetNode { .. }
                | Action::KeepOutput { .. }
                | Action::ReadPod { .. }
                | Action::List { .. }
                | Action::ReadLog { .. }
                | Action::Poll
                | Action::Relist
                | Action::ReserveIds { .. }
        );
        if is_write && !self.is_held {
            return fail(format!("{action:?} without the lease"));
        }
        match action {
            Action::Create { id, group, pod, .. } => {
                self.n_posts += 1;
                self.groups.on_create(group, pod)?;
                if id.0 > cluster.high_water {
                    // A restore undid the reservation, so a later process cannot know of it.
                    self.unkept_ids.insert(id.0);
                }
                if !self.had_list || !core.snapshot().is_synced() {
                    return fail(format!("{action:?} before a LIST"));
                }
                if self.stop.is_some() {
                    return fail(format!("{action:?} after the stop began"));
                }
                if let Some(&at) = self.told_ids.get(&id.0)
                    && at == cluster.n_restores
                    && !(self.is_kept && self.unkept_ids.contains(&id.0))
                    && (self.is_kept || id.0 <= self.unknowable_above)
                {
                    return fail(format!("{action:?}, but a pod of that id was seen before"));
                }
                let is_fresh = self.posted.insert(id.0, (now, group.clone())).is_none();
                if is_fresh && !core.executors().groups().contains_key(group) {
                    return fail(format!("{action:?} for no group"));
                }
            }
            Action::Delete { uid, grace_s, .. } => {
                let on_lost = |pod: &Pod| pod.uid == *uid && pod.node.as_deref() == Some(LOST_NODE);
                let pods = core.snapshot().pods();
                if *grace_s == Some(0) && !pods.into_iter().any(|pod| pod.deleting && on_lost(pod))
                {
                    return fail(format!("{action:?}, but its node may come back"));
                }
                self.on_delete(uid, core, cluster)?;
            }
            Action::ReadLog { .. } => {
                self.logs_read.retain(|at| now - at < MINUTE_MS);
                self.logs_read.push(now);
                if self.logs_read.len() > 20 {
                    return fail(format!("{action:?} is the 21st within a minute"));
                }
            }
            Action::Patch { uid, patch: Patch::Draining(..), .. } => {
                self.going.insert(uid.clone());
            }
            _ => {}
        }
        Ok(())
    }

    fn on_delete(&mut self, uid: &Uid, core: &Reconciler, cluster: &Cluster) -> CheckResult {
        if cluster.lives.get(uid).is_none_or(|life| life.is_foreign) {
            return fail(format!("delete of {uid} of somebody else's pod"));
        }
        // A LIST from before a restore may still arrive.
        if self.told_gone.contains(uid) && self.n_restores == 0 {
            return fail(format!("delete of {uid}, but it is known to be gone"));
        }
        // A stop waits for it no longer than 2 s.
        if self.stop.is_none() && self.logs_due.contains(uid) {
            return fail(format!("delete of {uid} before its log was read"));
        }
        let pod = core.snapshot().get(uid).filter(|pod| pod.phase == Phase::Failed);
        let executor = pod.and_then(|pod| core.executors().get(pod.id));
        // The label may come from a request of the process before.
        let was_counted = cluster.lives.get(uid).is_some_and(|life| life.was_counted);
        let is_told = self.ended.contains(uid) || was_counted;
        if executor.is_some_and(|e| e.uid.as_ref() == Some(uid) && e.life.ending().is_none())
            && !is_told
            && cluster.n_restores == 0
        {
            return fail(format!("delete of {uid}, and its end was not told"));
        }
        self.going.insert(uid.clone());
        Ok(())
    }

    /// Counts, slots and states equal a recount.
    fn recount(
        &mut self,
        core: &Reconciler,
        in_flight: &BTreeMap<u64, u32>,
        cluster: &Cluster,
    ) -> CheckResult {
        let executors = core.executors();
        let mut n = 0;
        for (name, group) in executors.groups().iter() {
            let (mut counts, mut slots) = (BTreeMap::new(), BTreeSet::new());
            let mut n_in_flight = 0;
            for &id in &group.members {
                n += 1;
                let Some(executor) = executors.get(id) else {
                    return fail(format!("{name} has a member {id} that is none"));
                };
                let pod = executor.uid.as_ref().and_then(|uid| core.snapshot().get(uid));
                if executor.state != executor.derive_state(pod) {
                    let should = executor.derive_state(pod);
                    return fail(format!("{id} is {:?}, should be {should:?}", executor.state));
                }
                *counts.entry(executor.state).or_insert(0_u32) += 1;
                n_in_flight += in_flight.get(&id.0).unwrap_or(&0);
                if executor.slot.is_some_and(|slot| !slots.insert(slot)) {
                    return fail(format!("slot {:?} of {name} is held twice", executor.slot));
                }
                if executor.slot.is_some() && pod.is_some_and(has_ended) && !executor.is_done {
                    return fail(format!("{id} has ended and holds slot {:?}", executor.slot));
                }
                let is_capacity =
                    matches!(executor.state, State::Requested | State::Pending | State::Running);
                if let Some(uid) = &executor.uid {
                    self.is_retained_right(uid, executor.life, cluster)?;
                    self.owned.insert(uid.clone());
                    if is_capacity && self.going.contains(uid) {
                        return fail(format!("{id} {uid} was chosen to go and is capacity again"));
                    }
                    if is_capacity && pod.is_none() {
                        return fail(format!("{id} {uid} is capacity without a pod"));
                    }
                }
            }
            slots_are_held(core, name, group)?;
            for state in [
                State::Requested,
                State::Pending,
                State::Running,
                State::Draining,
                State::Terminating,
                State::Failed,
                State::Completed,
            ] {
                if group.counts().of(state) != counts.get(&state).copied().unwrap_or(0) {
                    return fail(format!(
                        "{name}: {:?}, a recount says {counts:?}",
                        group.counts()
                    ));
                }
            }
            let said = group.tasks.throttles.n_in_flight();
            if said != n_in_flight {
                return fail(format!("{name}: {said} in flight, a recount says {n_in_flight}"));
            }
        }
        if n != executors.len() {
            return fail(format!("{n} members, {} executors", executors.len()));
        }
        Ok(())
    }

    fn plan_bounds(
        &self,
        core: &Reconciler,
        actions: &[Action],
        pending_max: u32,
        now: u64,
    ) -> CheckResult {
        let executors = core.executors();
        for action in actions {
            let Action::Create { id, group: name, .. } = action else { continue };
            // Decided by this turn: what one before has decided may wait for its first request.
            let is_fresh = executors.get(*id).is_some_and(|executor| {
                let is_first = executor.create.as_ref().is_some_and(|create| create.n_tries == 1);
                is_first && executor.known_since == Millis(now)
            });
            let Some(group) = executors.groups().get(name).filter(|_| is_fresh) else { continue };
            let (n, target) = (group.own.capacity(), group.target());
            let n_tasks = group.tasks.counts.capacity();
            let is_for_task = executors.get(*id).is_some_and(|one| one.task.is_some());
            let is_too_many = match is_for_task {
                true => group.spec.max.is_some_and(|max| target.max(n) + n_tasks > max),
                false => n > target,
            };
            if is_too_many {
                return fail(format!("{action:?} makes {n} of {target}, and {n_tasks} for tasks"));
            }
            let not_running: u32 =
                executors.groups().values().map(|g| g.counts().not_running()).sum();
            if pending_max > 0 && not_running > pending_max {
                return fail(format!("{action:?} makes {not_running} pending"));
            }
        }
        Ok(())
    }

    /// Each pod in the snapshot is as it was at the snapshot's position, or newer.
    /// `in_full`: each pod is compared, and not its version alone.
    fn snapshot_is_true(
        &mut self,
        core: &Reconciler,
        cluster: &Cluster,
        in_full: bool,
    ) -> CheckResult {
        for pod in core.snapshot().pods().filter(|pod| !is_foreign(&pod.uid, cluster)) {
            self.told_ids.insert(pod.id.0, self.n_restores);
        }
        let position = core.snapshot().position().map_or(0, |version| version.0);
        if self.doubt.is_some() || !core.snapshot().is_synced() {
            return Ok(());
        }
        for pod in core.snapshot().pods() {
            let Some(life) = cluster.lives.get(&pod.uid) else { continue };
            if core.snapshot().is_unseen(&pod.uid) {
                continue;
            }
            if life.is_erased || life.removed.is_some_and(|at| at <= position) {
                return fail(format!("{} {} at {position} is a ghost: {life:?}", pod.id, pod.uid));
            }
        }
        for stored in cluster.pods.values().filter(|stored| stored.is_labelled) {
            let pod = &stored.pod;
            let known = core.snapshot().get(&pod.uid);
            let is_told = pod.version.is_some_and(|version| version.0 <= position);
            let is_right = match in_full {
                true => known == Some(pod),
                false => known.is_some_and(|known| known.version == pod.version),
            };
            if is_told && !is_right && !self.told_gone.contains(&pod.uid) {
                return fail(format!("at {position}: {pod:?} is known as {known:?}"));
            }
        }
        Ok(())
    }

    /// A POST of unknown outcome is not forgotten while it can still take effect.
    fn ledger_is_kept(&self, core: &Reconciler, now: u64) -> CheckResult {
        for (id, at) in &self.unknown {
            let is_open = now < at + OPEN_MS;
            let is_settled = self.told_ids.contains_key(id);
            if is_open && !is_settled && core.executors().get(ExecutorId(*id)).is_none() {
                return fail(format!("executor {id} is forgotten, its create may still come"));
            }
        }
        Ok(())
    }
}
