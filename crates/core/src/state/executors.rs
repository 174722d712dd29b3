//! The table of executors and groups. Keeps the counts by state current, so that the cost of a turn
//! depends only on what changed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::model::fact::EndedWork;
use crate::model::ids::{ExecutorId, GroupName, Uid};
use crate::model::pod::Pod;
use crate::model::pod_text::PreferredNode;
use crate::model::settings::CallFields;
use crate::model::settings::GroupSpec;
use crate::model::status::{ExecutorBlock, State};
use crate::model::task::Shape;
use crate::state::attempts::Attempts;
use crate::state::counts::Counts;
pub use crate::state::executor::{Executor, Resize, has_ended};
use crate::state::folded::Folded;
use crate::state::gang::GangState;
use crate::state::heartbeat_losses::HeartbeatLosses;
use crate::state::ledger::Create;
pub use crate::state::life::{Ending, Life, Start};
use crate::state::memory_scaling::MemoryScaling;
use crate::state::plan_wait::PlanWait;
use crate::state::records::Records;
use crate::state::retries::Retries;
use crate::state::slot_waits::SlotWaits;
use crate::state::slots::Slots;
use crate::state::snapshot::Snapshot;
use crate::state::start_problems::StartProblems;
use crate::state::tasks::Tasks;
use crate::state::throttle::{Throttle, Throttles};
use crate::state::victim_order::VictimOrder;
use crate::state::work::Work;
use posse_base::time::Millis;

/// The highest id that belongs to the same block of the status.
fn highest_in_block(id: ExecutorId) -> ExecutorId {
    ExecutorId(id.0 | (BLOCK_IDS - 1))
}

/// The ids of a block of the status; a power of two.
const BLOCK_IDS: u64 = 64;

/// One group: its settings, its executors, and what the past says about them.
#[derive(Clone, Debug, Default)]
pub struct Group {
    pub spec: GroupSpec,
    /// The target that the configuration has.
    pub(crate) of_file: u32,
    /// The target was set in this run, so surplus executors may be ended.
    pub(crate) is_target_set: bool,
    /// The group comes from the file or was created in this run; false: it is known only from
    /// adopted pods.
    pub(crate) is_known: bool,
    /// The group was deleted: it is removed once its executors are gone.
    pub(crate) is_removed: bool,
    /// What calls have said about it.
    pub(crate) calls: CallFields,
    /// When its first executor was requested or adopted.
    pub(crate) wanted_since: Option<Millis>,
    /// An executor has run, so executors can start.
    pub(crate) has_run: bool,
    /// How many of its creates the server accepted, and how many pods were adopted.
    pub(crate) n_accepted: u64,
    /// The executors of its target. Those of tasks are counted with them.
    pub own: Counts,
    pub tasks: Tasks,
    /// The running executors whose pods are ready.
    pub n_ready: u32,
    pub members: BTreeSet<ExecutorId>,
    /// The executors that may be ended when the target falls, in this order.
    pub order: BTreeSet<VictimOrder>,
    /// The number of ending members that nothing replaces, because the target fell.
    n_surplus: u32,
    /// Losses reported since the start of the run.
    pub(crate) n_lost: u64,
    /// Failed creates that are sent again.
    pub retries: Retries,
    pub slots: Slots,
    pub slot_waits: SlotWaits,
    pub(crate) attempts: Attempts,
    pub gang: GangState,
    /// The nodes for its next executors.
    pub preferred: Arc<Vec<PreferredNode>>,
    pub problems: StartProblems,
    pub(crate) memory_scaling: MemoryScaling,
    pub work: Work,
    /// With `completions`: the indexes whose work has ended.
    pub(crate) ended: EndedWork,
    /// The pods that stay as the records of work that has ended.
    pub(crate) records: Records,
    /// The work that they tell of, and whose own pods give way.
    pub(crate) folded: Folded,
    /// The pods that are deleted as soon as a record tells of their work, and how many of them the label tells of
    /// that is being written to this pod.
    pub(crate) folding: Vec<Uid>,
    pub(crate) folding_sent: Option<(Uid, usize)>,
    pub(crate) heartbeat_losses: HeartbeatLosses,
    pub wait: PlanWait,
    /// Why the command that sets the target failed.
    pub(crate) scale_error: Option<String>,
    /// The server's message for the refusal or failure that slows the group down.
    pub(crate) refusal: Option<String>,
}

impl Group {
    /// A group without executors.
    pub fn new(spec: GroupSpec, is_known: bool) -> Self {
        Self { of_file: spec.target, spec, is_known, ..Self::default() }
    }

    /// The target in force; 0 for a deleted group, and never more than the work that is left.
    pub fn target(&self) -> u32 {
        if self.is_removed { 0 } else { self.spec.target.min(self.n_left()) }
    }

    /// How many executors must still end for `completions`; `u32::MAX` without it.
    pub fn n_left(&self) -> u32 {
        self.spec.completions.map_or(u32::MAX, |n| n.saturating_sub(self.work.n_ended()))
    }

    /// All of its executors.
    pub fn counts(&self) -> Counts {
        self.own.plus(&self.tasks.counts)
    }

    /// The counts in which this executor is: by what it is for, and by its shape.
    fn counts_of(&mut self, executor: &Executor) -> [&mut Counts; 2] {
        let Tasks { counts, throttles, .. } = &mut self.tasks;
        let by_use = if executor.task.is_some() { counts } else { &mut self.own };
        [by_use, &mut throttles.of_mut(executor.shape).counts]
    }

    /// How far the start of an executor has come.
    fn note_start(&mut self, id: ExecutorId, shape: Shape, before: Start, after: Start) {
        self.problems.on_change(id, before, after);
        self.tasks.throttles.of_mut(shape).problems.on_change(id, before, after);
    }

    /// An executor has come into this state.
    fn note_place(
        &mut self,
        id: ExecutorId,
        shape: Shape,
        state: State,
        pod: Option<&Pod>,
        now: Millis,
    ) {
        let places = &mut self.tasks.throttles.of_mut(shape).places;
        match pod.and_then(|pod| pod.node.as_deref()).filter(|_| state == State::Running) {
            Some(node) => places.add(id, node, now),
            None => places.remove(id),
        }
    }

    /// True if the group is a gang of which too few run.
    pub fn has_incomplete_gang(&self) -> bool {
        self.spec.gang.is_some() && !self.gang.is_complete()
    }

    /// A create of something is slowed down.
    pub fn is_slowed_down(&self) -> bool {
        self.tasks.throttles.all().any(|throttle| throttle.backoff.cause().is_some())
    }

    /// The number of pods that must go before executors are created with `replace: gone`. The pods of
    /// the group are then never more than they were, so a full quota suffices.
    pub fn n_awaited_ends(&self) -> u32 {
        self.n_ending().saturating_sub(self.n_surplus)
    }

    /// Call it after each plan: ending members beyond the missing ones are surplus, which replacements of
    /// others must not wait for (a drain may take hours).
    pub fn note_surplus(&mut self) {
        let missing = self.wanted().saturating_sub(self.counts().capacity());
        let n_unneeded = self.n_ending().saturating_sub(missing);
        self.n_surplus = self.n_surplus.min(self.n_ending()).max(n_unneeded);
    }

    /// The target rose by `n`: as many new executors wait for surplus ones that still end.
    pub fn on_target_raised(&mut self, n: u32) {
        self.n_surplus = self.n_surplus.saturating_sub(n);
    }

    fn n_ending(&self) -> u32 {
        let counts = self.counts();
        counts.of(State::Terminating) + counts.of(State::Draining)
    }
}

/// Executors by id, groups by name.
#[derive(Clone, Debug, Default)]
pub struct Executors {
    by_id: BTreeMap<ExecutorId, Executor>,
    /// Executors with a create in the ledger.
    open_creates: BTreeSet<ExecutorId>,
    /// How many executors were given out: tests check that a turn does not visit all.
    n_visits: Cell<u64>,
    n_missing: u64,
    /// The blocks of the status in which nothing has changed, by the highest id that belongs to each.
    status_blocks: BTreeMap<ExecutorId, ExecutorBlock>,
    pub groups: BTreeMap<GroupName, Group>,
}

impl Executors {
    pub fn get(&self, id: ExecutorId) -> Option<&Executor> {
        self.n_visits.set(self.n_visits.get() + 1);
        self.by_id.get(&id)
    }

    /// Changes an executor, which must be in the table. What follows is derived when `change` returns: its state, the
    /// counts, its place among the victims, and what the status shows.
    pub fn change<T: Default>(
        &mut self,
        id: ExecutorId,
        pods: &Snapshot,
        now: Millis,
        change: impl FnOnce(&mut Executor) -> T,
    ) -> T {
        self.on_change(id);
        let Some(executor) = self.by_id.get_mut(&id) else {
            self.note_missing(id);
            return T::default();
        };
        let group = self.groups.get_mut(&executor.group).expect("a member's group stays");
        let (before, start) = (executor.state, executor.start);
        let was_awaited = executor.is_awaited_in_slot();
        let result = change(executor);
        let pod = executor.pod(pods);
        executor.state = executor.derive_state(pod);
        executor.note_ready(pod, &mut group.n_ready);
        let place = executor.victim_order(id, pod, &group.spec);
        if executor.place != place {
            if let Some(place) = std::mem::replace(&mut executor.place, place) {
                group.order.remove(&place);
            }
            group.order.extend(place);
        }
        let is_new_state = executor.state != before;
        if is_new_state {
            (executor.since, executor.start) = (now, Start::default());
            for counts in group.counts_of(executor) {
                counts.remove(before);
                counts.add(executor.state);
            }
            group.note_place(id, executor.shape, executor.state, pod, now);
        }
        group.note_start(id, executor.shape, start, executor.start);
        group.note_slot_wait(id, executor, was_awaited, now);
        result
    }

    /// An executor that must be in the table is not: posse has a defect, and goes on without it.
    pub fn note_missing(&mut self, id: ExecutorId) {
        self.n_missing += 1;
        debug_assert!(self.by_id.contains_key(&id), "executor {id} is not in the table");
    }

    /// How often an executor was missing that must be in the table.
    pub fn n_missing(&self) -> u64 {
        self.n_missing
    }

    /// Every executor, by id.
    pub fn iter(&self) -> impl Iterator<Item = (ExecutorId, &Executor)> {
        let n_visits = &self.n_visits;
        self.by_id.iter().inspect(|_| n_visits.set(n_visits.get() + 1)).map(|(&id, one)| (id, one))
    }

    /// How many executors `get` and `iter` have given out so far.
    pub fn n_visits(&self) -> u64 {
        self.n_visits.get()
    }

    /// The creates in the ledger.
    pub fn creates(&self) -> impl Iterator<Item = &Create> {
        self.open_creates.iter().filter_map(|id| self.by_id.get(id)?.create.as_deref())
    }

    /// Removes an executor's create from the ledger.
    pub fn take_create(&mut self, id: ExecutorId) -> Option<Box<Create>> {
        self.open_creates.remove(&id);
        self.by_id.get_mut(&id)?.create.take()
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The executor or its pod has changed, so the status has to show it anew.
    pub fn on_change(&mut self, id: ExecutorId) {
        self.status_blocks.remove(&highest_in_block(id));
    }

    /// A pod has changed. Its name tells of which executor it is; anybody can change its labels.
    pub fn on_pod_change(&mut self, pod_prefix: &str, pod: &Pod) {
        let id = pod.name.strip_prefix(pod_prefix).and_then(|id| id.parse().ok());
        if let Some(id) = id {
            self.on_change(ExecutorId(id));
        }
    }

    /// What the status shows of all executors. Only blocks with a change are built.
    pub fn status_blocks(&mut self, snapshot: &Snapshot) -> Vec<ExecutorBlock> {
        let Self { by_id, n_visits, status_blocks, .. } = self;
        let mut blocks = Vec::with_capacity(status_blocks.len());
        let mut after = Bound::Unbounded;
        while let Some((&first, _)) = by_id.range((after, Bound::Unbounded)).next() {
            let last = highest_in_block(first);
            let build = || {
                let block = by_id.range(first..=last).map(|(&id, executor)| {
                    n_visits.set(n_visits.get() + 1);
                    executor.status(id, executor.pod(snapshot))
                });
                block.collect()
            };
            blocks.push(Arc::clone(status_blocks.entry(last).or_insert_with(build)));
            after = Bound::Excluded(last);
        }
        blocks
    }

    /// Inserts a new executor into its group, which must exist.
    pub fn insert(&mut self, id: ExecutorId, mut executor: Executor, pod: Option<&Pod>) {
        self.on_change(id);
        executor.state = executor.derive_state(pod);
        let group = self.groups.get_mut(&executor.group).expect("the group exists");
        let shape = executor.task.as_ref().map_or(Shape::TEMPLATE, |run| run.task.shape());
        executor.shape = group.tasks.throttles.claim(shape);
        group.wanted_since.get_or_insert(executor.known_since);
        group.note_place(id, executor.shape, executor.state, pod, executor.known_since);
        executor.note_ready(pod, &mut group.n_ready);
        executor.place = executor.victim_order(id, pod, &group.spec);
        group.counts_of(&executor).into_iter().for_each(|counts| counts.add(executor.state));
        group.members.insert(id);
        group.note_slot_wait(id, &executor, false, executor.known_since);
        group.order.extend(executor.place);
        if executor.create.is_some() {
            self.open_creates.insert(id);
        }
        let before = self.by_id.insert(id, executor);
        debug_assert!(before.is_none(), "executor {id} is in the table already");
    }

    /// Frees the slot of an executor that has ended, unless its work is done: its successor has the
    /// same rank.
    pub fn release_slot(&mut self, id: ExecutorId) {
        let Some(executor) = self.by_id.get_mut(&id) else { return };
        let Some(group) = self.groups.get_mut(&executor.group) else { return };
        group.attempts.on_ended(id);
        group.slots.forget_late(id);
        if !executor.is_done
            && let Some(slot) = executor.slot.take()
        {
            let late = group.slots.release(slot);
            group.slot_waits.end(slot);
            self.on_change(id);
            if let Some(id) = late
                && let Some(late) = self.by_id.get_mut(&id)
            {
                late.slot = Some(slot);
                self.on_change(id);
            }
        }
    }

    /// Removes the executor and frees its slot, unless that is the index of work that is done.
    pub fn remove(&mut self, id: ExecutorId) -> Option<Executor> {
        let is_indexed = self.group_of(id).is_some_and(|group| group.spec.completions.is_some());
        if let Some(executor) = self.by_id.get_mut(&id) {
            executor.is_done &= is_indexed;
        }
        self.release_slot(id);
        self.on_change(id);
        self.open_creates.remove(&id);
        let executor = self.by_id.remove(&id)?;
        let group = self.groups.get_mut(&executor.group).expect("a member's group stays");
        group.counts_of(&executor).into_iter().for_each(|counts| counts.remove(executor.state));
        group.n_ready -= u32::from(executor.is_ready);
        group.members.remove(&id);
        group.records.remove(id);
        group.tasks.records.remove(id);
        if let Some(place) = &executor.place {
            group.order.remove(place);
        }
        group.note_start(id, executor.shape, executor.start, Start::default());
        group.tasks.throttles.of_mut(executor.shape).places.remove(id);
        Some(executor)
    }

    /// Sorts the group's victims again, because its settings have changed.
    pub fn sort_victims(&mut self, name: &GroupName, snapshot: &Snapshot) {
        let Some(group) = self.groups.get_mut(name) else { return };
        group.order.clear();
        for id in &group.members {
            let Some(executor) = self.by_id.get_mut(id) else { continue };
            executor.place = executor.victim_order(*id, executor.pod(snapshot), &group.spec);
            group.order.extend(executor.place);
        }
    }

    /// The places of these executors that belong to the group.
    pub fn places<'a>(
        &'a self,
        group: &'a GroupName,
        ids: impl Iterator<Item = ExecutorId> + 'a,
    ) -> impl Iterator<Item = VictimOrder> + 'a {
        let executors = ids.filter_map(|id| self.by_id.get(&id));
        executors.filter(move |executor| executor.group == *group).filter_map(|one| one.place)
    }

    /// Forgets what a group has done: it is deleted, or restarted as a whole. A new group with its name,
    /// or its next attempt, begins anew.
    pub fn forget_work(&mut self, name: &GroupName) {
        let Some(group) = self.groups.get_mut(name) else { return };
        group.work = Work::default();
        group.ended = EndedWork::default();
        group.slots = Slots::default();
        group.folded = Folded::default();
        for id in &group.members {
            let Some(executor) = self.by_id.get_mut(id).filter(|one| one.task.is_none()) else {
                continue;
            };
            executor.is_done = false;
            executor.slot = executor.slot.filter(|&slot| group.slots.claim(slot));
        }
    }

    /// The throttle of an executor.
    pub fn throttle_of(&mut self, id: ExecutorId) -> Option<&mut Throttle> {
        let (throttles, shape) = self.throttles_of(id)?;
        Some(throttles.of_mut(shape))
    }

    /// This executor says nothing about a crash loop.
    pub fn discard_probe(&mut self, id: ExecutorId) {
        if let Some(throttle) = self.throttle_of(id) {
            throttle.backoff.discard_probe(id);
        }
    }

    /// The throttles of an executor's group, and its shape.
    pub fn throttles_of(&mut self, id: ExecutorId) -> Option<(&mut Throttles, Shape)> {
        let executor = self.by_id.get(&id)?;
        let group = self.groups.get_mut(&executor.group)?;
        Some((&mut group.tasks.throttles, executor.shape))
    }

    pub fn group_of(&mut self, id: ExecutorId) -> Option<&mut Group> {
        let executor = self.by_id.get(&id)?;
        self.groups.get_mut(&executor.group)
    }
}
