//! The record of the run: what it was told and its pods do not show. A change is noted where it happens. The turn
//! sends what has changed, as it is then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Reconciler;
use crate::model::action::{Action, RunVerdict};
use crate::model::command::{GroupChange, Reply};
use crate::model::fact::{EndedWork, Fact, Knowledge, Progress, Target, Topic};
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::input::RecordError;
use crate::model::settings::{GroupSpec, RecordUse};
use crate::model::task::{TASKS_BYTES_MAX, Task};
use crate::state::executors::Group;
use crate::state::work::Work;
use posse_base::time::Millis;

/// What a record says about the ended work of a group.
fn work_topics(name: &GroupName, ended: &EndedWork) -> impl Iterator<Item = Topic> {
    ended.blocks().into_iter().map(|block| Topic::Work(name.clone(), block))
}

/// What a record says about the tasks of a group, by key.
type Tasks = BTreeMap<(GroupName, Arc<str>), (u64, Arc<Task>)>;

impl Reconciler {
    pub fn has_record(&self) -> bool {
        self.policy.record == RecordUse::On
    }

    /// How many changes there were that belong into the record, and how many of them are in it.
    pub fn recorded(&self) -> (u64, u64) {
        (self.unrecorded.n_changes(), self.unrecorded.n_recorded())
    }

    /// The change that the record must have before a recorded call gets this reply. A call that changes nothing may be the
    /// repetition of one that did.
    pub fn awaited_change(&self, reply: &Reply) -> Option<u64> {
        let (n_changes, n_recorded) = self.recorded();
        (reply.tells_of_run() && n_changes > n_recorded).then_some(n_changes)
    }

    /// Something about this topic has changed. What a stop does to the run changes nothing of what is left to do.
    pub(super) fn note_fact(&mut self, topic: Topic) {
        if !self.end.is_stopping() {
            self.note_end(topic);
        }
    }

    /// Something has ended by itself. That counts in a stop too.
    pub(super) fn note_end(&mut self, topic: Topic) {
        if self.has_record() {
            self.unrecorded.note(topic);
        }
    }

    /// What a group has completed is worth nothing any more.
    pub(super) fn forget_work(&mut self, name: &GroupName) {
        let unclaimed = self.executors.unclaimed_work.remove(name).unwrap_or_default();
        let unclaimed = unclaimed.into_keys().map(|block| Topic::Work(name.clone(), block));
        let Some(group) = self.executors.groups().get(name) else { return };
        let topics: Vec<Topic> = work_topics(name, &group.ended).chain(unclaimed).collect();
        topics.into_iter().for_each(|topic| self.note_fact(topic));
        self.executors.forget_work(name);
    }

    pub(super) fn note_task(&mut self, group: &GroupName, key: &Arc<str>) {
        self.note_fact(Topic::Task(group.clone(), Arc::clone(key)));
        self.note_progress(group, key);
    }

    pub(super) fn note_progress(&mut self, group: &GroupName, key: &Arc<str>) {
        self.note_fact(Topic::Progress(group.clone(), Arc::clone(key)));
    }

    /// The task of this executor has begun an attempt. As long as the pod is there it tells that, so no write is made for it
    /// alone.
    pub(super) fn note_attempt(&mut self, id: ExecutorId) {
        if self.has_record()
            && !self.end.is_stopping()
            && let Some((group, run)) = self.task_of(id)
        {
            self.unrecorded.note_later(Topic::Progress(group, Arc::clone(&run.task.key)));
        }
    }

    /// A driver that begins anew sets its targets itself.
    pub(super) fn records_targets(&self) -> bool {
        self.has_record() && self.policy.outlives_driver
    }

    pub(super) fn note_target(&mut self, group: &GroupName) {
        if self.records_targets() {
            self.note_end(Topic::Target(group.clone()));
        }
    }

    /// The same of its groups.
    pub(super) fn note_group(&mut self, group: &GroupName) {
        if self.policy.outlives_driver {
            self.note_fact(Topic::Group(group.clone()));
        }
    }

    /// The record may have lost its last writes, so it gets all that is known.
    pub(super) fn note_everything(&mut self) {
        if !self.has_record() {
            return;
        }
        self.unrecorded.doubt();
        let dismissed = self.executors.dismissed.keys();
        let mut topics: Vec<Topic> = dismissed.cloned().map(Topic::Dismissed).collect();
        for (name, group) in self.executors.groups() {
            topics.extend([Topic::Group, Topic::Target].map(|topic| topic(name.clone())));
            topics.extend(work_topics(name, &group.ended));
            for key in group.tasks.keys() {
                topics.push(Topic::Task(name.clone(), Arc::clone(key)));
                topics.push(Topic::Progress(name.clone(), Arc::clone(key)));
            }
        }
        for (name, blocks) in &self.executors.unclaimed_work {
            topics.extend(blocks.keys().map(|&block| Topic::Work(name.clone(), block)));
        }
        topics.into_iter().for_each(|topic| self.note_fact(topic));
    }

    /// Why the open tasks cannot have so many more bytes.
    pub(super) fn refuse_bytes(&self, n_new: usize) -> Option<Reply> {
        let groups = self.executors.groups().values();
        let n_bytes: usize = groups.map(|group| group.tasks.n_bytes()).sum();
        (n_bytes + n_new > TASKS_BYTES_MAX).then(|| {
            let what = format!(
                "the open tasks have {n_bytes} bytes, the new ones {n_new}, and the maximum is {TASKS_BYTES_MAX}: move what \
                 is equal into the template, or wait until some have ended"
            );
            Reply::TooMany { what, field: "executors" }
        })
    }

    /// Sends what has changed, unless a write is under way. Without the Lease another process may write the record.
    pub(super) fn send_facts(&mut self, now: Millis) {
        if !self.gates.is_lease_held() {
            return;
        }
        if let Some(topics) = self.unrecorded.begin(now) {
            let facts = topics.into_iter().map(|topic| self.fact(topic)).collect();
            self.out.act(Action::Record { facts });
        } else if let Some(at) = self.unrecorded.due() {
            self.due.add_turn(at);
        }
    }

    pub(super) fn on_recorded(&mut self, answer: Result<(), RecordError>, now: Millis) {
        self.unrecorded.end(answer.is_ok(), now);
        if let Err(RecordError { why, is_taken_over: true }) = answer {
            self.end.decide(RunVerdict::TakenOver { holder: why });
        }
    }

    /// What is not known to be in the record, for a last write at the end of the run.
    pub fn take_unrecorded(&mut self) -> Vec<Fact> {
        self.unrecorded.take_all().into_iter().map(|topic| self.fact(topic)).collect()
    }

    fn fact(&self, topic: Topic) -> Fact {
        let knowledge = self.knowledge(&topic);
        Fact { topic, knowledge }
    }

    fn knowledge(&self, topic: &Topic) -> Option<Knowledge> {
        match topic {
            Topic::Dismissed(name) => {
                let ids = self.executors.dismissed.get(name)?;
                Some(Knowledge::Dismissed(ids.iter().collect()))
            }
            Topic::Group(name) => {
                let calls = &self.live_group(name)?.calls;
                (!calls.is_empty()).then(|| Knowledge::Group(calls.clone()))
            }
            Topic::Progress(name, key) => {
                let tasks = &self.live_group(name)?.tasks;
                let executor = tasks.open(key).and_then(|open| open.executor);
                let executor = executor.and_then(|id| self.executors.get(id));
                let has_pod = executor.is_some_and(|executor| executor.uid.is_some());
                tasks.progress(key, has_pod).map(Knowledge::Progress)
            }
            Topic::Target(name) => {
                if let Some(&of_file) = self.executors.deleted.get(name) {
                    let deleted = Target { of_file, is_deleted: true, ..Target::default() };
                    return Some(Knowledge::Target(deleted));
                }
                let group = self.live_group(name)?;
                let mut known = Target {
                    target: group.spec.target,
                    of_file: group.of_file.unwrap_or_default(),
                    is_deleted: group.is_anew,
                    ..Target::default()
                };
                if group.spec.completions.is_none() {
                    let done = self.executors.own(group).filter(|(_, executor)| executor.is_done);
                    known.n_completed = group.work.n_completed();
                    known.n_given_up = group.work.n_given_up();
                    known.ended = done.map(|(id, _)| id).collect();
                    known.ended.extend(&group.recorded_ends);
                }
                Some(Knowledge::Target(known))
            }
            Topic::Task(name, key) => {
                let (order, task) = self.live_group(name)?.tasks.recorded(key)?;
                Some(Knowledge::Task { order, task })
            }
            Topic::Work(name, block) => {
                if let Some(blocks) = self.executors.unclaimed_work.get(name) {
                    let (attempt, ended) = blocks.get(block)?.clone();
                    return Some(Knowledge::Work { attempt, ended });
                }
                let group =
                    self.live_group(name).filter(|group| group.spec.completions.is_some())?;
                let attempt = group.attempts.current();
                let ended = group.ended.of_block(*block);
                let is_told = ended != EndedWork::default() || *block == 0 && attempt > 1;
                is_told.then_some(Knowledge::Work { attempt, ended })
            }
        }
    }

    /// Deletes the groups of the file that calls have deleted in an earlier process. Called first.
    pub fn restore_deleted(&mut self, facts: &[Fact], now: Millis) {
        for fact in facts {
            let (Topic::Target(name), Some(Knowledge::Target(known))) =
                (&fact.topic, &fact.knowledge)
            else {
                continue;
            };
            let group = self.executors.groups().get(name);
            if known.is_deleted && group.is_some_and(|one| one.of_file == Some(known.of_file)) {
                self.delete_group(name, now);
            }
        }
    }

    /// Takes over what calls have said about a group to an earlier process. Called before `restore`.
    pub fn restore_group(&mut self, name: GroupName, change: GroupChange, now: Millis) -> Reply {
        debug_assert!(!self.had_first_list(), "the record is restored first");
        self.put_group(name, change, true, now)
    }

    /// Takes over the rest of what an earlier process has recorded. Called before the first input.
    pub fn restore(&mut self, facts: Vec<Fact>, now: Millis) {
        debug_assert!(!self.had_first_list(), "the record is restored first");
        let mut tasks = Tasks::new();
        let mut progress = BTreeMap::new();
        // Their ids are not used again. A Lease that was deleted or restored may have forgotten them.
        facts.iter().filter_map(Fact::last_id).for_each(|id| self.ours.on_earlier(id));
        for Fact { topic, knowledge } in facts {
            match (topic, knowledge) {
                (Topic::Task(name, key), Some(Knowledge::Task { order, task })) => {
                    tasks.insert((name, key), (order, task));
                }
                (Topic::Progress(name, key), Some(Knowledge::Progress(known))) => {
                    progress.insert((name, key), known);
                }
                (Topic::Target(name), Some(Knowledge::Target(known))) => {
                    self.restore_target(&name, known, now);
                }
                (Topic::Work(name, block), Some(Knowledge::Work { attempt, ended })) => {
                    self.restore_work(name, block, attempt, &ended);
                }
                (Topic::Dismissed(name), Some(Knowledge::Dismissed(ids))) => {
                    self.restore_dismissed(&name, ids);
                }
                (
                    Topic::Dismissed(_)
                    | Topic::Group(_)
                    | Topic::Progress(..)
                    | Topic::Target(_)
                    | Topic::Task(..)
                    | Topic::Work(..),
                    None | Some(_),
                ) => {}
            }
        }
        self.restore_tasks(tasks, &progress);
    }

    fn restore_target(&mut self, name: &GroupName, known: Target, now: Millis) {
        let Some(group) = self.executors.group_mut(name) else { return };
        if group.of_file.unwrap_or_default() != known.of_file {
            return;
        }
        let work = Work::new(known.n_completed, known.n_given_up);
        if group.spec.completions.is_none() && work.n_ended() > 0 {
            (group.work, group.recorded_ends) = (work, known.ended);
            group.spec.min = group.spec.min.min(known.target);
        }
        // An older posse without a record may have set another one meanwhile, so what runs stays.
        self.change_target(name, known.target, now);
    }

    fn restore_work(&mut self, name: GroupName, block: u32, attempt: u32, ended: &EndedWork) {
        let group = self.executors.groups().get(&name);
        if group.is_none_or(|group| group.spec.completions.is_none()) {
            let blocks = self.executors.unclaimed_work.entry(name).or_default();
            blocks.insert(block, (attempt, ended.clone()));
            return;
        }
        self.find_attempt(&name, attempt);
        let Some(group) = self.executors.groups().get(&name) else { return };
        let done = self.executors.own(group).filter(|(_, executor)| executor.is_done);
        let told: BTreeSet<u32> = done.filter_map(|(_, executor)| executor.slot).collect();
        let Some(group) = self.executors.group_mut(&name) else { return };
        if attempt < group.attempts.current() {
            return self.note_fact(Topic::Work(name, block));
        }
        for (indexes, is_completed) in [(&ended.completed, true), (&ended.given_up, false)] {
            for &index in indexes {
                if group.ended.insert(index, is_completed) {
                    // A pod that has the slot may have been counted when it was found.
                    let is_new = group.slots.claim(index);
                    if is_new || !told.contains(&index) {
                        group.work.on_end(is_completed);
                    }
                }
            }
        }
    }

    /// A call has made this group again: what an earlier process has done of it is done.
    pub(super) fn claim_work(&mut self, name: &GroupName) {
        let group = self.executors.groups().get(name);
        if group.is_none_or(|group| group.spec.completions.is_none()) {
            return;
        }
        let Some(blocks) = self.executors.unclaimed_work.remove(name) else { return };
        for (block, (attempt, ended)) in blocks {
            self.restore_work(name.clone(), block, attempt, &ended);
        }
    }

    fn restore_tasks(
        &mut self,
        tasks: Tasks,
        progress: &BTreeMap<(GroupName, Arc<str>), Progress>,
    ) {
        let mut open = Vec::new();
        // First those that have ended: the others may come after them.
        let mut tasks: Vec<_> = tasks.into_iter().collect();
        tasks.sort_by_key(|(_, (order, _))| *order);
        for ((name, key), (order, task)) in tasks {
            let known = progress.get(&(name.clone(), Arc::clone(&key)));
            let new = || Group::new(GroupSpec::bare(name.clone()), false);
            let group = self.executors.group_or_insert(name.clone(), new);
            if group.tasks.is_known(&key) {
                continue;
            }
            let Some(Progress { end: Some(end), attempts, round, .. }) = known else {
                open.push((name, key, order, task));
                continue;
            };
            group.tasks.restore_ended((order, &task), end.clone(), (*attempts, *round));
            self.note_ended_task(&name, key);
        }
        // A kill came between the removal of a task and that of its progress.
        let is_there = |(name, key): &&(GroupName, Arc<str>)| {
            self.executors.groups().get(name).is_some_and(|group| group.tasks.is_known(key))
        };
        let is_open: BTreeSet<_> = open.iter().map(|(name, key, ..)| (name, key)).collect();
        let left: Vec<_> = progress
            .keys()
            .filter(|of| !is_there(of) && !is_open.contains(&(&of.0, &of.1)))
            .cloned()
            .collect();
        left.iter().for_each(|(name, key)| self.note_progress(name, key));
        for (name, key, order, task) in open {
            let Some(group) = self.executors.group_mut(&name) else { continue };
            group.tasks.resume_order(order);
            let end = group.tasks.add(task);
            if let Some(known) = progress.get(&(name.clone(), Arc::clone(&key))) {
                group.tasks.restore_progress(&key, known);
            }
            if let Some(end) = end {
                self.end_task(&name, &key, end);
            }
        }
    }
}
