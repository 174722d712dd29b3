//! Owns the table of executors and groups, and keeps the counts by state right, so that a turn
//! costs what changed. Decides nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::core::model::event::DeleteCause;
use crate::core::model::ids::{ExecutorId, GroupName, Uid};
use crate::core::model::pod::{ContainerState, Pod, StartProblemKind};
use crate::core::model::status::State;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;
use crate::core::policy::memory_scaling::MemoryScaling;
use crate::core::policy::settings::GroupSpec;
use crate::core::policy::throttle::CreateThrottle;
use crate::core::state::ledger::Create;
use crate::core::state::slots::Slots;

/// How far a pending executor has come, by our own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// When it was first seen bound to a node.
    pub bound_since: Option<Millis>,
    /// What keeps it from starting, and since when.
    pub stuck: Option<(StartProblemKind, Millis)>,
}

/// What posse decided about an executor, and what it reported. Together with the pod this makes
/// the executor's `State`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is capacity, as far as its pod allows.
    Wanted,
    /// Its create was given up before its pod was seen.
    Cancelled,
    /// Posse ends it. Its end is not a loss.
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
    #[must_use]
    pub fn ending(self) -> Option<Ending> {
        match self {
            Self::Ending(ending) => Some(ending),
            Self::Lost { ending } => ending,
            Self::Cancelled | Self::Gone | Self::Retained | Self::Wanted => None,
        }
    }

    /// True if its loss was reported.
    #[must_use]
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Retained)
    }

    /// The life after posse decided to end it.
    #[must_use]
    pub fn ended_by(self, ending: Ending) -> Self {
        match self {
            Self::Cancelled | Self::Ending(_) | Self::Wanted => Self::Ending(ending),
            Self::Lost { .. } | Self::Retained => Self::Lost { ending: Some(ending) },
            Self::Gone => Self::Gone,
        }
    }

    /// The life after its loss was reported.
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
    #[must_use]
    pub fn now(cause: DeleteCause) -> Self {
        Self { cause, drain_until: None }
    }
}

/// One executor, from before its create is sent until its pod is gone.
#[derive(Clone, Debug)]
pub struct Executor {
    pub group: GroupName,
    /// None where another executor claims the same slot, or an adopted pod has no such label.
    pub slot: Option<u32>,
    /// Its one pod.
    pub uid: Option<Uid>,
    pub create: Option<Box<Create>>,
    pub life: Life,
    /// When its container was first seen running; none also where it ran before we looked.
    pub running_since: Option<Millis>,
    pub is_adopted: bool,
    /// Empty for one that is not pending.
    pub start: Start,
    /// It was created to keep away from nodes, the first of which may be used again then.
    pub avoids_until: Option<Millis>,
    /// Which step of its group's memory it was created with; 0: the template's own.
    pub memory_step: u32,
    pub state: State,
    pub since: Millis,
}

impl Executor {
    /// A fresh entry, counted nowhere yet.
    #[must_use]
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
        }
    }

    /// The state that the entry and its pod (where there is one) add up to.
    #[must_use]
    pub fn derive(&self, pod: Option<&Pod>) -> State {
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

    /// True if the create was given up before its pod was seen: whatever comes of it is deleted.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.uid.is_none() && matches!(self.life, Life::Cancelled | Life::Lost { .. })
    }
}

/// True where the pod, or the container that decides, has ended.
#[must_use]
pub fn has_ended(pod: &Pod) -> bool {
    pod.phase.is_final() || pod.container == ContainerState::Ended
}

/// How many executors of a group are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    by_state: [u32; 6],
}

impl Counts {
    /// How many are in `state`.
    #[must_use]
    pub fn of(&self, state: State) -> u32 {
        self.by_state[state as usize]
    }

    /// How many can do work now or soon.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.not_running() + self.of(State::Running)
    }

    /// How many are on their way to running.
    #[must_use]
    pub fn not_running(&self) -> u32 {
        self.of(State::Requested) + self.of(State::Pending)
    }
}

/// The kinds of trouble that a group keeps account of.
const STUCK_KINDS: usize = StartProblemKind::Creating as usize;

/// One group.
#[derive(Clone, Debug)]
pub struct Group {
    pub spec: GroupSpec,
    /// Its target was set in this run, or nothing was adopted: surplus may go.
    pub is_target_set: bool,
    /// It stands in the file or was made in this run; false: known from adopted pods alone.
    pub is_known: bool,
    /// Somebody deleted it: it is forgotten once its executors are gone.
    pub is_removed: bool,
    /// At least one pod of it was ever seen.
    pub had_pods: bool,
    pub counts: Counts,
    pub members: BTreeSet<ExecutorId>,
    /// Creates under way.
    pub n_in_flight: u32,
    pub slots: Slots,
    pub throttle: CreateThrottle,
    /// Executors whose start is in trouble, by the kind of it (`Creating` is none).
    pub stuck: [BTreeSet<ExecutorId>; STUCK_KINDS],
    pub memory_scaling: MemoryScaling,
    /// When executors of it were lost for a silence of theirs, within the time-out.
    pub silenced: VecDeque<Millis>,
    /// What the last plan waits for, and until when.
    pub waiting: Option<(Waiting, Option<Millis>)>,
    /// The server's words for the refusal that holds the group back.
    pub refusal: Option<String>,
}

impl Group {
    /// A group without executors.
    #[must_use]
    pub fn new(spec: GroupSpec, is_known: bool) -> Self {
        Self {
            spec,
            is_target_set: false,
            is_known,
            is_removed: false,
            had_pods: false,
            counts: Counts::default(),
            members: BTreeSet::new(),
            n_in_flight: 0,
            slots: Slots::default(),
            throttle: CreateThrottle::default(),
            stuck: Default::default(),
            memory_scaling: MemoryScaling::default(),
            silenced: VecDeque::new(),
            waiting: None,
            refusal: None,
        }
    }

    /// One whose start is in trouble, of the kind that weighs most, where there is any.
    #[must_use]
    pub fn first_problem(&self) -> Option<ExecutorId> {
        self.stuck.iter().find_map(|ids| ids.first().copied())
    }

    fn note_problem(&mut self, id: ExecutorId, before: Start, after: Start) {
        let place = |start: Start| start.stuck.map(|(kind, _)| kind as usize);
        if let Some(ids) = place(before).and_then(|kind| self.stuck.get_mut(kind)) {
            ids.remove(&id);
        }
        if let Some(ids) = place(after).and_then(|kind| self.stuck.get_mut(kind)) {
            ids.insert(id);
        }
    }

    /// Nothing is left of it, and nobody wants anything of it: it is forgotten.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_unwanted = self.is_removed || !(self.is_known || self.is_target_set);
        is_unwanted && self.members.is_empty()
    }
}

/// Executors by id, groups by name.
#[derive(Clone, Debug, Default)]
pub struct Executors {
    by_id: BTreeMap<ExecutorId, Executor>,
    pub groups: BTreeMap<GroupName, Group>,
}

impl Executors {
    /// The executor of that id.
    #[must_use]
    pub fn get(&self, id: ExecutorId) -> Option<&Executor> {
        self.by_id.get(&id)
    }

    /// The executor of that id, to be changed; `settle` must follow where its state may change.
    pub fn get_mut(&mut self, id: ExecutorId) -> Option<&mut Executor> {
        self.by_id.get_mut(&id)
    }

    /// Every executor, by id.
    pub fn iter(&self) -> impl Iterator<Item = (ExecutorId, &Executor)> {
        self.by_id.iter().map(|(&id, executor)| (id, executor))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// True where there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Puts a fresh executor into its group, which must exist.
    pub fn insert(&mut self, id: ExecutorId, mut executor: Executor, pod: Option<&Pod>) {
        executor.state = executor.derive(pod);
        let group = self.groups.get_mut(&executor.group).expect("the group was made before");
        group.counts.by_state[executor.state as usize] += 1;
        group.members.insert(id);
        let before = self.by_id.insert(id, executor);
        debug_assert!(before.is_none(), "executor {id} stands in the table already");
    }

    /// Brings the executor's state and the counts in line with what it and its pod are now.
    /// Answers the state before, where it is another now.
    pub fn refresh_state(
        &mut self,
        id: ExecutorId,
        pod: Option<&Pod>,
        now: Millis,
    ) -> Option<State> {
        let executor = self.by_id.get_mut(&id)?;
        let (before, state) = (executor.state, executor.derive(pod));
        if before == state {
            return None;
        }
        (executor.state, executor.since) = (state, now);
        let group = self.groups.get_mut(&executor.group).expect("a member's group stays");
        let start = std::mem::take(&mut executor.start);
        group.note_problem(id, start, Start::default());
        group.counts.by_state[before as usize] -= 1;
        group.counts.by_state[state as usize] += 1;
        Some(before)
    }

    /// Notes how far a pending executor has come.
    pub fn set_start(&mut self, id: ExecutorId, start: Start) {
        let Some(executor) = self.by_id.get_mut(&id) else { return };
        let before = std::mem::replace(&mut executor.start, start);
        if let Some(group) = self.groups.get_mut(&executor.group) {
            group.note_problem(id, before, start);
        }
    }

    /// Takes the executor out; its slot is free again.
    pub fn remove(&mut self, id: ExecutorId) -> Option<Executor> {
        let executor = self.by_id.remove(&id)?;
        let group = self.groups.get_mut(&executor.group).expect("a member's group stays");
        group.counts.by_state[executor.state as usize] -= 1;
        group.members.remove(&id);
        group.note_problem(id, executor.start, Start::default());
        if let Some(slot) = executor.slot {
            group.slots.release(slot);
        }
        Some(executor)
    }

    /// The group of executor `id`.
    pub fn group_of(&mut self, id: ExecutorId) -> Option<&mut Group> {
        let executor = self.by_id.get(&id)?;
        self.groups.get_mut(&executor.group)
    }
}
