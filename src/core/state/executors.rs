//! The table of executors and groups. Keeps the counts by state current, so that the cost of a turn
//! depends only on what changed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::core::model::event::DeleteCause;
use crate::core::model::ids::{ExecutorId, GroupName, Uid};
use crate::core::model::pod::{ContainerState, Pod, StartProblemKind};
use crate::core::model::status::{ExecutorBlock, ExecutorStatus, State};
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;
use crate::core::policy::memory_scaling::MemoryScaling;
use crate::core::policy::settings::GroupSpec;
use crate::core::policy::throttle::CreateThrottle;
use crate::core::policy::victims::Rank;
use crate::core::state::ledger::Create;
use crate::core::state::retries::Retries;
use crate::core::state::slots::Slots;
use crate::core::state::snapshot::Snapshot;

/// How far a pending executor has come, by our own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// When it was first seen bound to a node.
    pub bound_since: Option<Millis>,
    /// Why it does not start, and since when.
    pub problem: Option<(StartProblemKind, Millis)>,
    /// The number of init containers that were seen started.
    pub n_started: u32,
}

/// What posse decided about an executor, and what it reported. Together with the pod this
/// determines the executor's `State`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It counts as capacity, if its pod allows.
    Wanted,
    /// Its create was cancelled before its pod was seen.
    Cancelled,
    /// posse ends it. Its end is not a loss.
    Ending(Ending),
    /// Its loss was reported, in this run or before a restart. It is never capacity again.
    /// `ending`: posse ends what is left of it.
    Lost { ending: Option<Ending> },
    /// It failed, its loss was reported, and its pod is retained.
    Retained,
    /// Its pod is gone. The entry stays only because the answer to its create is still open.
    Gone,
}

impl Life {
    /// How posse ends it, if it does.
    pub fn ending(self) -> Option<Ending> {
        match self {
            Self::Ending(ending) => Some(ending),
            Self::Lost { ending } => ending,
            Self::Cancelled | Self::Gone | Self::Retained | Self::Wanted => None,
        }
    }

    /// True if its loss was reported.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Retained)
    }

    /// The life after posse decided to end the executor.
    #[must_use]
    pub fn ended_by(self, ending: Ending) -> Self {
        match self {
            Self::Cancelled | Self::Ending(_) | Self::Wanted => Self::Ending(ending),
            Self::Lost { .. } | Self::Retained => Self::Lost { ending: Some(ending) },
            Self::Gone => Self::Gone,
        }
    }

    /// The life after the executor's loss was reported.
    #[must_use]
    pub fn lost(self) -> Self {
        match self {
            Self::Gone | Self::Retained => self,
            Self::Cancelled | Self::Ending(_) | Self::Lost { .. } | Self::Wanted => {
                Self::Lost { ending: self.ending() }
            }
        }
    }
}

/// The end of an executor by posse's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    pub cause: DeleteCause,
    /// The executor may end by itself until then; it is deleted afterwards.
    pub drain_until: Option<Millis>,
}

impl Ending {
    /// An end without a drain period.
    pub fn now(cause: DeleteCause) -> Self {
        Self { cause, drain_until: None }
    }
}

/// One executor, from before its create is sent until its pod is gone.
#[derive(Clone, Debug)]
pub struct Executor {
    pub group: GroupName,
    /// None after it has ended, if another executor has the same slot, or if an adopted pod has no
    /// slot label.
    pub slot: Option<u32>,
    /// The uid of its only pod.
    pub uid: Option<Uid>,
    /// Set before `Executors::insert`, removed by `Executors::take_create`.
    pub create: Option<Box<Create>>,
    pub life: Life,
    /// When its main container was first seen running.
    pub running_since: Option<Millis>,
    pub is_adopted: bool,
    /// Default unless the state is pending.
    pub start: Start,
    /// When the first node may be used again that it was created to avoid.
    pub avoids_until: Option<Millis>,
    /// The memory step with which it was created; 0: the template's own memory.
    pub memory_step: u32,
    pub state: State,
    pub since: Millis,
    /// Its rank in its group's order; none if it is ending.
    rank: Option<Rank>,
}

impl Executor {
    /// A new entry, which is not counted yet.
    pub fn new(group: GroupName, now: Millis) -> Self {
        Self {
            group,
            slot: None,
            uid: None,
            create: None,
            life: Life::Wanted,
            running_since: None,
            is_adopted: false,
            start: Start::default(),
            avoids_until: None,
            memory_step: 0,
            state: State::Requested,
            since: now,
            rank: None,
        }
    }

    /// The state that follows from the entry and its pod.
    pub fn derive_state(&self, pod: Option<&Pod>) -> State {
        match (self.life, pod) {
            (Life::Retained, _) => State::Failed,
            // After a resourceVersion rollback the pod may exist again, to be deleted once more.
            (Life::Gone, _) | (Life::Lost { .. }, None) => State::Terminating,
            (_, Some(pod)) if has_ended(pod) || pod.deleting => State::Terminating,
            (Life::Cancelled | Life::Ending(_), _) | (Life::Lost { .. }, Some(_)) => {
                State::Draining
            }
            (Life::Wanted, None) => State::Requested,
            (Life::Wanted, Some(pod)) => match pod.container {
                ContainerState::Running => State::Running,
                ContainerState::Ended | ContainerState::Waiting => State::Pending,
            },
        }
    }

    /// What the status shows of it.
    pub fn status(&self, id: ExecutorId, pod: Option<&Pod>) -> ExecutorStatus {
        ExecutorStatus {
            id,
            group: self.group.clone(),
            slot: self.slot,
            uid: self.uid.clone(),
            state: self.state,
            node: pod.and_then(|pod| pod.node.clone()),
            ip: pod.and_then(|pod| pod.ip),
            since: self.since,
        }
    }

    /// True if the create was cancelled before its pod was seen: such a pod is deleted.
    pub fn is_cancelled(&self) -> bool {
        self.uid.is_none() && matches!(self.life, Life::Cancelled | Life::Lost { .. })
    }
}

/// True if the pod or its main container has ended.
pub fn has_ended(pod: &Pod) -> bool {
    pod.phase.is_final() || pod.container == ContainerState::Ended
}

/// The number of executors of a group by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    by_state: [u32; 6],
}

impl Counts {
    /// The number in `state`.
    pub fn of(&self, state: State) -> u32 {
        self.by_state[state as usize]
    }

    /// The number that count as capacity: they run, or will run.
    pub fn capacity(&self) -> u32 {
        self.not_running() + self.of(State::Running)
    }

    /// The number that do not run yet.
    pub fn not_running(&self) -> u32 {
        self.of(State::Requested) + self.of(State::Pending)
    }
}

/// The highest id that belongs to the same block of the status.
fn highest_in_block(id: ExecutorId) -> ExecutorId {
    ExecutorId(id.0 | (BLOCK_IDS - 1))
}

/// The ids of a block of the status; a power of two.
const BLOCK_IDS: u64 = 64;

/// The number of start problem kinds; none has the last, `Creating`.
const PROBLEM_KINDS: usize = StartProblemKind::Creating as usize + 1;

/// One group.
#[derive(Clone, Debug)]
pub struct Group {
    pub spec: GroupSpec,
    /// The target was set in this run, so surplus executors may be ended.
    pub is_target_set: bool,
    /// The group comes from the file or was created in this run; false: it is known only from
    /// adopted pods.
    pub is_known: bool,
    /// The group was deleted: it is removed once its executors are gone.
    pub is_removed: bool,
    /// At least one of its pods was seen.
    pub had_pods: bool,
    pub counts: Counts,
    pub members: BTreeSet<ExecutorId>,
    /// The executors that may be ended when the target falls, in this order.
    pub order: BTreeSet<Rank>,
    /// The number of ending members that nothing replaces, because the target fell.
    n_surplus: u32,
    /// Create requests in flight.
    pub n_in_flight: u32,
    /// Failed creates that are sent again.
    pub retries: Retries,
    pub slots: Slots,
    pub throttle: CreateThrottle,
    /// Pending executors with a start problem, by `StartProblemKind`, and since when they have it.
    start_problems: [BTreeSet<(Millis, ExecutorId)>; PROBLEM_KINDS],
    /// Executors that are Unschedulable for longer than a group should wait for them.
    pub long_unschedulable: BTreeSet<ExecutorId>,
    pub memory_scaling: MemoryScaling,
    /// When executors were lost because of missing heartbeats, within the timeout.
    pub heartbeat_losses: VecDeque<Millis>,
    /// What the last plan waits for, and until when.
    pub waiting: Option<(Waiting, Option<Millis>)>,
    /// Since when it waits for that.
    pub waiting_since: Millis,
    /// The server's message for the refusal or failure that throttles the group.
    pub refusal: Option<String>,
}

impl Group {
    /// A group without executors.
    pub fn new(spec: GroupSpec, is_known: bool) -> Self {
        Self {
            spec,
            is_target_set: false,
            is_known,
            is_removed: false,
            had_pods: false,
            counts: Counts::default(),
            members: BTreeSet::new(),
            order: BTreeSet::new(),
            n_surplus: 0,
            n_in_flight: 0,
            retries: Retries::default(),
            slots: Slots::default(),
            throttle: CreateThrottle::default(),
            start_problems: Default::default(),
            long_unschedulable: BTreeSet::new(),
            memory_scaling: MemoryScaling::default(),
            heartbeat_losses: VecDeque::new(),
            waiting: None,
            waiting_since: Millis::ZERO,
            refusal: None,
        }
    }

    /// An executor with the most important start problem, if any.
    pub fn first_problem(&self) -> Option<ExecutorId> {
        self.start_problems.iter().find_map(|ids| Some(ids.first()?.1))
    }

    /// The pending executors with this start problem; the one that has it for longest comes first.
    pub fn with_problem(&self, kind: StartProblemKind) -> &BTreeSet<(Millis, ExecutorId)> {
        &self.start_problems[kind as usize]
    }

    /// The target in force; 0 for a deleted group.
    pub fn target(&self) -> u32 {
        if self.is_removed { 0 } else { self.spec.target }
    }

    /// The number of pods that must go before executors are created with `replace: gone`. The pods of
    /// the group are then never more than they were, so a full quota suffices.
    pub fn n_awaited_ends(&self) -> u32 {
        self.n_ending().saturating_sub(self.n_surplus)
    }

    /// Call it after each plan: ending members beyond the missing ones are surplus, which replacements of
    /// others must not wait for (a drain may take hours).
    pub fn note_surplus(&mut self) {
        let missing = self.target().saturating_sub(self.counts.capacity());
        let n_unneeded = self.n_ending().saturating_sub(missing);
        self.n_surplus = self.n_surplus.min(self.n_ending()).max(n_unneeded);
    }

    /// The target rose by `n`: as many new executors wait for surplus ones that still end.
    pub fn on_target_raised(&mut self, n: u32) {
        self.n_surplus = self.n_surplus.saturating_sub(n);
    }

    fn n_ending(&self) -> u32 {
        self.counts.of(State::Terminating) + self.counts.of(State::Draining)
    }

    fn note_problem(&mut self, id: ExecutorId, before: Start, after: Start) {
        if before.problem == after.problem {
            return;
        }
        self.long_unschedulable.remove(&id);
        if let Some((kind, since)) = before.problem {
            self.start_problems[kind as usize].remove(&(since, id));
        }
        if let Some((kind, since)) = after.problem {
            self.start_problems[kind as usize].insert((since, id));
        }
    }

    /// True if it has no executors and is neither configured nor targeted, so it can be removed.
    pub fn is_over(&self) -> bool {
        let is_unwanted = self.is_removed || !(self.is_known || self.is_target_set);
        is_unwanted && self.members.is_empty()
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
    /// The blocks of the status in which nothing has changed, by the highest id that belongs to each.
    status_blocks: BTreeMap<ExecutorId, ExecutorBlock>,
    pub groups: BTreeMap<GroupName, Group>,
}

impl Executors {
    pub fn get(&self, id: ExecutorId) -> Option<&Executor> {
        self.n_visits.set(self.n_visits.get() + 1);
        self.by_id.get(&id)
    }

    /// The executor, to be changed. Call `refresh_state` afterwards if its state may change.
    pub fn get_mut(&mut self, id: ExecutorId) -> Option<&mut Executor> {
        self.on_change(id);
        self.by_id.get_mut(&id)
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
                    executor.status(id, executor.uid.as_ref().and_then(|uid| snapshot.get(uid)))
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
        executor.rank = Rank::of(id, executor.state, pod);
        let group = self.groups.get_mut(&executor.group).expect("the group exists");
        group.counts.by_state[executor.state as usize] += 1;
        group.members.insert(id);
        group.order.extend(executor.rank);
        if executor.create.is_some() {
            self.open_creates.insert(id);
        }
        let before = self.by_id.insert(id, executor);
        debug_assert!(before.is_none(), "executor {id} is in the table already");
    }

    /// Updates the executor's state and the counts after a change of the executor or its pod.
    /// Returns the previous state if it changed.
    pub fn refresh_state(
        &mut self,
        id: ExecutorId,
        pod: Option<&Pod>,
        now: Millis,
    ) -> Option<State> {
        let executor = self.by_id.get_mut(&id)?;
        let (before, state) = (executor.state, executor.derive_state(pod));
        let rank = Rank::of(id, state, pod);
        if before == state && executor.rank == rank {
            return None;
        }
        let group = self.groups.get_mut(&executor.group).expect("a member's group stays");
        if let Some(rank) = std::mem::replace(&mut executor.rank, rank) {
            group.order.remove(&rank);
        }
        group.order.extend(rank);
        if before == state {
            return None;
        }
        self.status_blocks.remove(&highest_in_block(id));
        (executor.state, executor.since) = (state, now);
        let start = std::mem::take(&mut executor.start);
        group.note_problem(id, start, Start::default());
        group.counts.by_state[before as usize] -= 1;
        group.counts.by_state[state as usize] += 1;
        Some(before)
    }

    /// Updates how far a pending executor has come.
    pub fn set_start(&mut self, id: ExecutorId, start: Start) {
        let Some(executor) = self.by_id.get_mut(&id) else { return };
        let before = std::mem::replace(&mut executor.start, start);
        if let Some(group) = self.groups.get_mut(&executor.group) {
            group.note_problem(id, before, start);
        }
    }

    /// Frees the slot of an executor that has ended: its successor has the same rank.
    pub fn release_slot(&mut self, id: ExecutorId) {
        if let Some(executor) = self.by_id.get_mut(&id)
            && let Some(slot) = executor.slot.take()
            && let Some(group) = self.groups.get_mut(&executor.group)
        {
            group.slots.release(slot);
            self.on_change(id);
        }
    }

    /// Removes the executor and frees its slot.
    pub fn remove(&mut self, id: ExecutorId) -> Option<Executor> {
        self.release_slot(id);
        self.on_change(id);
        self.open_creates.remove(&id);
        let executor = self.by_id.remove(&id)?;
        let group = self.groups.get_mut(&executor.group).expect("a member's group stays");
        group.counts.by_state[executor.state as usize] -= 1;
        group.members.remove(&id);
        if let Some(rank) = &executor.rank {
            group.order.remove(rank);
        }
        group.note_problem(id, executor.start, Start::default());
        Some(executor)
    }

    /// The ranks of these executors that belong to the group.
    pub fn ranks<'a>(
        &'a self,
        group: &'a GroupName,
        ids: impl Iterator<Item = ExecutorId> + 'a,
    ) -> impl Iterator<Item = Rank> + 'a {
        let executors = ids.filter_map(|id| self.by_id.get(&id));
        executors.filter(move |executor| executor.group == *group).filter_map(|one| one.rank)
    }

    pub fn group_of(&mut self, id: ExecutorId) -> Option<&mut Group> {
        let executor = self.by_id.get(&id)?;
        self.groups.get_mut(&executor.group)
    }
}
