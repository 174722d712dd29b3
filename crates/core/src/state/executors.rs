//! The table of executors and groups. Keeps the counts by state current, so that the cost of a turn
//! depends only on what changed.
//!
//! Always true after a turn: each executor is a member of one group, which exists, and is counted there once; and whose
//! pod is retained is in the table.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::model::fact::EndedWork;
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::pod::Pod;
use crate::model::status::ExecutorBlock;
use crate::model::task::Shape;
use crate::state::ended_indexes::Folded;
pub use crate::state::executor::{Executor, Resize, has_ended};
pub use crate::state::group::Group;
use crate::state::ledger::Create;
pub use crate::state::life::{Ending, Life, Start};
use crate::state::ranges::Ranges;
use crate::state::retained::{EndedTasks, RetainedPods};
use crate::state::slots::Slots;
use crate::state::snapshot::Snapshot;
use crate::state::throttle::Throttle;
use crate::state::victim_order::VictimOrder;
use crate::state::work::Work;
use posse_base::time::Millis;

/// The highest id that belongs to the same block of the status.
fn highest_in_block(id: ExecutorId) -> ExecutorId {
    ExecutorId(id.0 | (BLOCK_IDS - 1))
}

/// The ids of a block of the status; a power of two.
const BLOCK_IDS: u64 = 64;

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
    groups: BTreeMap<GroupName, Group>,
    /// The groups of the configuration that a call has deleted, with the target that they have there.
    pub(crate) deleted: BTreeMap<GroupName, u32>,
    /// The ids of executors that calls have ended, as long as pods of theirs may be there.
    pub(crate) dismissed: BTreeMap<GroupName, Ranges>,
    /// The ended work of groups that nobody has made since: the attempt, and which indexes, by their block.
    pub(crate) unclaimed_work: BTreeMap<GroupName, BTreeMap<u32, (u32, EndedWork)>>,
    pub(crate) retained: RetainedPods,
    pub(crate) ended_tasks: EndedTasks,
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

    /// Its slot, if the next executor of this slot goes on with its work.
    pub fn kept_slot(&self, id: ExecutorId) -> Option<u32> {
        let executor = self.get(id)?;
        executor.slot.filter(|_| self.home(executor).spec.has_own_slots())
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
    /// With the last one goes its group, if that is over. False if it was not there.
    pub fn remove(&mut self, id: ExecutorId) -> bool {
        let is_indexed = self.group_of(id).is_some_and(|group| group.spec.completions.is_some());
        if let Some(executor) = self.by_id.get_mut(&id) {
            executor.is_done &= is_indexed;
        }
        self.release_slot(id);
        self.on_change(id);
        self.open_creates.remove(&id);
        let Some(executor) = self.by_id.remove(&id) else { return false };
        let group = self.groups.get_mut(&executor.group).expect("a member's group stays");
        group.counts_of(&executor).into_iter().for_each(|counts| counts.remove(executor.state));
        group.n_ready -= u32::from(executor.is_ready);
        group.members.remove(&id);
        group.records.remove(id);
        group.tasks.records.remove(id);
        self.retained.forget(id);
        if let Some(place) = &executor.place {
            group.order.remove(place);
        }
        group.note_start(id, executor.shape, executor.start, Start::default());
        group.tasks.throttles.of_mut(executor.shape).places.remove(id);
        if group.is_over() {
            self.groups.remove(&executor.group);
        }
        true
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
        group.recorded_ends.clear();
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

    pub fn throttle_of(&mut self, id: ExecutorId) -> Option<&mut Throttle> {
        let executor = self.by_id.get(&id)?;
        let group = self.groups.get_mut(&executor.group)?;
        Some(group.tasks.throttles.of_mut(executor.shape))
    }

    /// This executor says nothing about a crash loop.
    pub fn discard_probe(&mut self, id: ExecutorId) {
        if let Some(throttle) = self.throttle_of(id) {
            throttle.backoff.discard_probe(id);
        }
    }

    /// The group of an executor.
    pub fn home(&self, executor: &Executor) -> &Group {
        self.groups.get(&executor.group).expect("a member's group stays")
    }

    /// The executors of a group that are for its target, and not for tasks.
    pub fn own(&self, group: &Group) -> impl Iterator<Item = (ExecutorId, &Executor)> {
        let members = group.members.iter().filter_map(|&id| Some((id, self.get(id)?)));
        members.filter(|(_, executor)| executor.task.is_none())
    }

    pub fn groups(&self) -> &BTreeMap<GroupName, Group> {
        &self.groups
    }

    pub fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.values_mut()
    }

    pub fn group_mut(&mut self, name: &GroupName) -> Option<&mut Group> {
        self.groups.get_mut(name)
    }

    pub fn group_or_insert(&mut self, name: GroupName, new: impl FnOnce() -> Group) -> &mut Group {
        self.groups.entry(name).or_insert_with(new)
    }

    /// Removes groups that are over. Not called before the first LIST, whose pods may belong to them.
    pub fn forget_empty_groups(&mut self) {
        self.groups.retain(|_, group| !group.is_over());
    }

    pub fn group_of(&mut self, id: ExecutorId) -> Option<&mut Group> {
        let executor = self.by_id.get(&id)?;
        self.groups.get_mut(&executor.group)
    }

    /// The pod of this executor was retained before a restart. Its place is by the time in its label.
    pub fn retain_since(&mut self, id: ExecutorId, at: u64, pods: &Snapshot) {
        let Self { by_id, retained, .. } = self;
        let is_later = |other_id: &ExecutorId| {
            let pod = by_id.get(other_id).and_then(|other| other.pod(pods));
            pod.and_then(|pod| pod.counted).is_none_or(|other| (other, *other_id) > (at, id))
        };
        retained.insert(id, is_later);
    }

    /// The pod of this executor stays as a record. `is_earlier`: of work that an earlier run did.
    pub fn insert_record(&mut self, id: ExecutorId, is_earlier: bool) {
        let has_task = self.by_id.get(&id).is_some_and(|executor| executor.task.is_some());
        if let Some(group) = self.group_of(id) {
            let records = if has_task { &mut group.tasks.records } else { &mut group.records };
            records.insert(id, is_earlier);
        }
    }

    /// The pod of this executor is no longer retained or a record.
    pub fn forget_record(&mut self, id: ExecutorId) {
        self.retained.forget(id);
        if let Some(group) = self.group_of(id) {
            group.records.remove(id);
            group.tasks.records.remove(id);
        }
    }

    /// A task has ended. The oldest ended ones that are forgotten for it.
    pub fn note_ended_task(
        &mut self,
        name: GroupName,
        key: Arc<str>,
    ) -> Vec<(GroupName, Arc<str>)> {
        let task = self.groups.get(&name).and_then(|group| group.tasks.recorded(&key));
        let n_bytes = task.map_or(0, |(_, task)| task.n_bytes());
        self.ended_tasks.push(name, key, n_bytes);
        let mut forgotten = Vec::new();
        while let Some((name, key)) = self.ended_tasks.pop_beyond() {
            if let Some(group) = self.groups.get_mut(&name) {
                group.tasks.forget(&key);
                forgotten.push((name, key));
            }
        }
        forgotten
    }

    pub fn check(&self) {
        let n_members: usize = self.groups.values().map(|group| group.members.len()).sum();
        debug_assert_eq!(n_members, self.by_id.len(), "an executor is in no group, or in two");
        for (name, group) in &self.groups {
            let n_counted = group.counts().n() as usize;
            debug_assert_eq!(n_counted, group.members.len(), "{name} counts other executors");
        }
        debug_assert!(
            self.retained.iter().all(|id| self.by_id.contains_key(&id)),
            "who is not in the table is retained"
        );
    }
}
