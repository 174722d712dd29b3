//! The tasks of one group: those that are open, and the end of those that are over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::fact::Progress;
use crate::model::ids::ExecutorId;
use crate::model::task::{AFTER, Shape, Task, TaskEnd, TaskOutcome, TaskRun};
use crate::state::counts::Counts;
use crate::state::ready_tasks::{Place, ReadyTasks};
use crate::state::records::Records;
use crate::state::tasks::prior_arrays::{Arrays, Prior};
use crate::state::throttle::Throttles;
use posse_base::time::Millis;

mod leaving;
mod order;
mod prior_arrays;

/// A refused task fails only after this time if nothing else of its group shows whose fault it is: a webhook may
/// refuse all pods for a while.
const REFUSED_ALONE_MS: u64 = 240_000;

/// A task that has not ended.
#[derive(Clone, Debug)]
pub struct OpenTask {
    pub task: Arc<Task>,
    /// The executor that works on it. It stays until its pod can no longer run, so that no two
    /// executors ever work on one task.
    pub executor: Option<ExecutorId>,
    pub attempts: u32,
    retries_left: u32,
    /// How many failed starts were charged to nodes, and not to its retries. Not kept over a restart.
    n_spared: u32,
    /// How often a call has opened it again.
    round: u32,
    /// Its place in the order in which executors are created.
    place: Place,
    /// The place that it had first: what it comes after has a lower one.
    first_order: u64,
    /// Its own pod was refused.
    refused: Option<Refused>,
    /// What of what it comes after is open.
    held: BTreeSet<Prior>,
}

impl OpenTask {
    /// How many tasks and arrays hold it, and the first of them.
    pub fn held_by(&self) -> Option<(usize, Arc<str>)> {
        self.held.first().map(|first| (self.held.len(), Arc::clone(first.name())))
    }
}

/// The server refuses the pod of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// When it was refused for the first time.
    pub since: Millis,
    pub times: u32,
    /// How many pods of the group were accepted until then.
    pub n_accepted: u64,
}

/// A task that is over.
#[derive(Clone, Debug)]
pub struct EndedTask {
    pub task: Arc<Task>,
    pub end: TaskEnd,
    pub executor: Option<ExecutorId>,
    pub attempts: u32,
    round: u32,
    /// The place that it had first; 0 if only its pod is known.
    first_order: u64,
    /// This process has reported the end.
    is_reported: bool,
}

/// What an adopted pod is to its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// It works on the task.
    Current,
    /// The call that names the task came before the pod was seen, and the pod has ended it.
    Ended,
    /// The task is known already, and needs nothing more.
    Known,
    /// The pod is the record of a task that was not known: an earlier process has reported its end.
    Recorded,
    /// Another executor works on the task, or the task is over: this one must end.
    Second,
}

/// The tasks of one group, by key.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    open: BTreeMap<Arc<str>, OpenTask>,
    ended: BTreeMap<Arc<str>, EndedTask>,
    /// Open tasks without an executor that come after no open one.
    ready: ReadyTasks,
    /// The tasks that come after an open one, by its key.
    next: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    arrays: Arrays,
    n_held: usize,
    /// The bytes of the open ones.
    n_bytes: usize,
    /// How many have failed or were skipped, also those that are forgotten, and were not opened again.
    n_failed: u32,
    next_order: u64,
    /// What slows down the executors of the group, by shape.
    pub throttles: Throttles,
    /// The executors that work on tasks, also on those of a deleted group of this name.
    pub counts: Counts,
    /// The executors of ended tasks that can still run, by the key of the task: those of a deleted group of this
    /// name, and of a task that is opened again.
    pub leaving: BTreeMap<Arc<str>, ExecutorId>,
    /// The pods that stay as the records of ended tasks.
    pub records: Records,
}

impl Tasks {
    pub fn n_open(&self) -> usize {
        self.open.len()
    }

    /// The bytes of the open ones.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    pub fn n_ended(&self) -> usize {
        self.ended.len()
    }

    /// How many have ended without success, but for the cancelled ones.
    pub fn n_failed(&self) -> u32 {
        self.n_failed
    }

    /// How many open tasks may have an executor.
    pub fn n_free(&self) -> usize {
        self.open.len() - self.n_held - self.ready.n_waiting()
    }

    /// How many tasks of this array have an executor.
    pub fn n_busy_of(&self, array: &str) -> u32 {
        self.ready.n_busy_of(array)
    }

    /// How many tasks of each shape need an executor.
    pub fn ready_shapes(&self) -> impl Iterator<Item = (Shape, u32)> {
        self.ready.shapes().map(|(shape, n)| (shape, u32::try_from(n).unwrap_or(u32::MAX)))
    }

    /// The place of the first task of this shape that needs an executor, in the order of the calls.
    pub fn first_ready(&self, shape: Shape) -> Option<u64> {
        self.ready.first(shape)
    }

    /// How many tasks need an executor.
    pub fn n_ready(&self) -> u32 {
        u32::try_from(self.ready.n_ready()).unwrap_or(u32::MAX)
    }

    pub fn open(&self, key: &str) -> Option<&OpenTask> {
        self.open.get(key)
    }

    pub fn ended(&self, key: &str) -> Option<&EndedTask> {
        self.ended.get(key)
    }

    /// The keys of all tasks: the open ones first.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.open.keys().chain(self.ended.keys())
    }

    /// The tasks that are open or that a call can open again.
    pub fn all_that_may_run(&self) -> impl Iterator<Item = &Arc<Task>> {
        let may_run = |ended: &&EndedTask| ended.end.outcome != TaskOutcome::Succeeded;
        let ended = self.ended.values().filter(may_run).map(|ended| &ended.task);
        self.open.values().map(|open| &open.task).chain(ended)
    }

    pub fn open_keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.open.keys()
    }

    /// The first field in which this task differs from what its key was given with before.
    pub fn difference(&self, task: &Task) -> Option<&'static str> {
        let ended = self.ended.get(&task.key);
        let (before, attempts) = match ended {
            Some(ended) => (&ended.task, ended.attempts),
            None => self.open.get(&task.key).map(|open| (&open.task, open.attempts))?,
        };
        // One that has succeeded does not run again, so nobody keeps its values.
        let has_values = ended.is_none_or(|one| one.end.outcome != TaskOutcome::Succeeded);
        let digest = if has_values { Task::digest } else { Task::digest_without_keys };
        let field = digest(before).difference(&digest(task));
        field.filter(|&field| field != AFTER || attempts == 0)
    }

    pub fn is_known(&self, key: &str) -> bool {
        self.open.contains_key(key) || self.ended.contains_key(key)
    }

    /// Adds a task whose key is new. It waits for the executor that an older one with its key left. Gives the end of a
    /// task that comes too late to start: the caller then ends it.
    pub fn add(&mut self, task: Arc<Task>) -> Option<TaskEnd> {
        let shape = self.throttles.claim(task.shape());
        self.throttles.on_task_open(shape);
        let place = Place { order: self.take_order(), shape };
        let key = Arc::clone(&task.key);
        let retries_left = task.retries;
        let executor = self.leaving.remove(&key);
        let (held, end) = self.hold(&task, place.order);
        if let Some(array) = &task.array {
            self.arrays.on_open(&array.name, place.order);
        }
        self.n_held += usize::from(!held.is_empty());
        if executor.is_some() {
            self.ready.on_busy(&task);
        } else if held.is_empty() {
            self.ready.insert(place, &task);
        }
        let attempts = 0;
        self.n_bytes += task.n_bytes();
        let open = OpenTask {
            task,
            executor,
            attempts,
            retries_left,
            n_spared: 0,
            round: 0,
            place,
            first_order: place.order,
            refused: None,
            held,
        };
        self.open.insert(key, open);
        end
    }

    /// A task whose end an earlier process has recorded. `first_order`: the place that it had first.
    pub fn restore_ended(
        &mut self,
        (first_order, task): (u64, &Arc<Task>),
        (end, executor): (TaskEnd, Option<ExecutorId>),
        (attempts, round): (u32, u32),
    ) {
        let ended = EndedTask::new(task, executor, attempts, end);
        self.insert_ended(EndedTask { round, first_order, ..ended });
    }

    fn insert_ended(&mut self, ended: EndedTask) {
        let EndedTask { task, end, first_order, .. } = &ended;
        self.n_failed = self.n_failed.saturating_add(end.outcome.is_failure().into());
        if let Some(array) = &task.array {
            let is_good = end.outcome == TaskOutcome::Succeeded;
            self.arrays.on_ended(&array.name, &task.key, *first_order, is_good);
        }
        self.ended.insert(Arc::clone(&task.key), ended);
    }

    /// An ended task is opened again or forgotten.
    fn remove_ended(&mut self, key: &str) -> Option<EndedTask> {
        let ended = self.ended.remove(key)?;
        if let Some(array) = &ended.task.array {
            self.arrays.on_ended_removed(&array.name, key);
        }
        Some(ended)
    }

    /// The next task comes at this place in the order, as it did in an earlier process, or behind the last one.
    pub fn resume_order(&mut self, order: u64) {
        self.next_order = self.next_order.max(order.saturating_sub(1));
    }

    /// How far a task has come. `has_pod`: the attempt that is under way has one.
    pub fn progress(&self, key: &str, has_pod: bool) -> Option<Progress> {
        if let Some(ended) = self.ended.get(key) {
            let EndedTask { end, executor, attempts, round, .. } = ended;
            let end = Some((end.clone(), *executor));
            return Some(Progress { attempts: *attempts, retries_left: 0, round: *round, end });
        }
        let open = self.open.get(key)?;
        let is_attempt = open.executor.is_none() || has_pod;
        let attempts = open.attempts.saturating_sub(u32::from(!is_attempt));
        let (retries_left, round) = (open.retries_left, open.round);
        Some(Progress { attempts, retries_left, round, end: None })
    }

    /// A task and the place in the order that it had first.
    pub fn recorded(&self, key: &str) -> Option<(u64, Arc<Task>)> {
        match self.open.get(key) {
            Some(open) => Some((open.first_order, Arc::clone(&open.task))),
            None => self.ended.get(key).map(|ended| (ended.first_order, Arc::clone(&ended.task))),
        }
    }

    /// An open task is as far as an earlier process has recorded.
    pub fn restore_progress(&mut self, key: &str, progress: &Progress) {
        if let Some(open) = self.open.get_mut(key) {
            open.attempts = progress.attempts;
            (open.retries_left, open.round) = (progress.retries_left, progress.round);
        }
    }

    fn take_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    /// The next attempt at a task of this shape, for this new executor.
    pub fn start_next(&mut self, shape: Shape, id: ExecutorId) -> Option<TaskRun> {
        let task = self.ready.pop(shape)?;
        let open = self.open.get_mut(&task.key)?;
        self.ready.on_busy(&task);
        open.executor = Some(id);
        open.attempts = open.attempts.saturating_add(1);
        let (attempt, retries_left, round) = (open.attempts, open.retries_left, open.round);
        Some(TaskRun { task, attempt, retries_left, round })
    }

    /// This executor can no longer run, so the task may get the next one. `had_pod`: it was an
    /// attempt.
    pub fn release(&mut self, key: &str, id: ExecutorId, had_pod: bool) {
        if self.leaving.get(key) == Some(&id) {
            self.leaving.remove(key);
        }
        let Some(open) = self.open.get_mut(key).filter(|open| open.executor == Some(id)) else {
            return;
        };
        open.executor = None;
        open.attempts = open.attempts.saturating_sub(u32::from(!had_pod));
        if open.held.is_empty() {
            self.ready.insert(open.place, &open.task);
        }
        // Last, so that the next attempt comes before others of its array.
        self.ready.on_idle(&open.task);
    }

    /// The pod of this task was refused: puts it behind all others, so that it does not hold them up.
    /// `n_accepted`: how many pods of the group were accepted so far.
    pub fn refuse(&mut self, key: &str, n_accepted: u64, now: Millis) -> Option<Refused> {
        let order = self.take_order();
        let open = self.open.get_mut(key)?;
        open.place.order = order;
        let refused = open.refused.get_or_insert(Refused { since: now, times: 0, n_accepted });
        refused.times = refused.times.saturating_add(1);
        Some(*refused)
    }

    /// True if the server has refused this task often and for long enough, and no other task could be tried.
    pub fn is_refused_alone(&self, key: &str, now: Millis) -> bool {
        self.open.get(key).is_some_and(|open| {
            let for_long = |refused: Refused| {
                refused.times > open.retries_left && now.since(refused.since) >= REFUSED_ALONE_MS
            };
            self.n_free() == 1 && open.refused.is_some_and(for_long)
        })
    }

    /// True if this executor works on the task as it is open now, and not on one of this key that was over before.
    pub fn is_current(&self, run: &TaskRun, id: ExecutorId) -> bool {
        self.open.get(&run.task.key).is_some_and(|open| {
            (open.executor, open.attempts, open.round) == (Some(id), run.attempt, run.round)
        })
    }

    /// True if the task of this executor's attempt is over, and no pod has told how. A call may have opened it again since.
    /// `is_lost`: its loss was reported while its pod lives on; else a pod that has told the end runs again since a restore.
    pub fn is_last_word(&self, run: &TaskRun, id: ExecutorId, is_lost: bool) -> bool {
        let key = &*run.task.key;
        let is_told = |ended: &EndedTask| {
            let has_pod = matches!(ended.end.outcome, TaskOutcome::Failed | TaskOutcome::Succeeded);
            has_pod && ended.executor.is_some_and(|teller| teller != id || !is_lost)
        };
        match self.open.get(key) {
            Some(open) => open.round > run.round,
            None => !self.ended.get(key).is_some_and(is_told),
        }
    }

    /// A node kept the executor of this task from starting. True if that costs the task nothing, as up to `most` times.
    pub fn spare(&mut self, run: &TaskRun, id: ExecutorId, most: u32) -> bool {
        let is_current = self.is_current(run, id);
        let open =
            self.open.get_mut(&run.task.key).filter(|open| is_current && open.n_spared < most);
        let is_spared = open.is_some();
        open.into_iter().for_each(|open| open.n_spared += 1);
        is_spared
    }

    /// The application failed. True if the task gets another attempt.
    pub fn take_retry(&mut self, run: &TaskRun, id: ExecutorId) -> bool {
        let is_current = self.is_current(run, id);
        match self.open.get_mut(&run.task.key).filter(|_| is_current) {
            Some(open) if open.retries_left > 0 => {
                open.retries_left -= 1;
                true
            }
            Some(_) => false,
            // Another executor works on it, or it is over.
            None => true,
        }
    }

    /// The task is over. None if it is not open.
    pub fn end(&mut self, key: &str, end: TaskEnd) -> Option<(Arc<str>, &EndedTask)> {
        let OpenTask { task, executor, attempts, round, place, held, first_order, .. } =
            self.open.remove(key)?;
        match executor {
            Some(_) => self.ready.on_idle(&task),
            None => self.ready.remove(place, &task),
        }
        self.throttles.on_task_over(place.shape);
        self.n_held -= usize::from(!held.is_empty());
        self.n_bytes -= task.n_bytes();
        let key = Arc::clone(&task.key);
        let ended = EndedTask::new(&task, executor, attempts, end);
        self.insert_ended(EndedTask { round, is_reported: true, first_order, ..ended });
        self.ended.get(&key).map(|ended| (key, ended))
    }

    /// Marks the end of this task as reported. None if it is open, or if this process has reported
    /// it before.
    pub fn report(&mut self, key: &str) -> Option<&EndedTask> {
        let ended = self.ended.get_mut(key).filter(|ended| !ended.is_reported)?;
        ended.is_reported = true;
        Some(ended)
    }

    /// Opens a task again that has ended without success, and gives its end as `add` does. None if there is no such task.
    /// `leaving`: its last executor, which can still run: the task waits for its end.
    pub fn reopen(&mut self, key: &str, leaving: Option<ExecutorId>) -> Option<Option<TaskEnd>> {
        let task = Arc::clone(&self.ended.get(key)?.task);
        if let Some(id) = leaving {
            self.leaving.insert(Arc::clone(&task.key), id);
        }
        let EndedTask { attempts, round, end, .. } = self.remove_ended(key)?;
        self.n_failed = self.n_failed.saturating_sub(end.outcome.is_failure().into());
        let end = self.add(task);
        if let Some(open) = self.open.get_mut(key) {
            (open.attempts, open.round) = (attempts, round.saturating_add(1));
        }
        Some(end)
    }

    /// Forgets an ended task.
    pub fn forget(&mut self, key: &str) {
        self.remove_ended(key);
    }

    /// A pod of an earlier process works or worked on this task. `is_live`: it has not ended.
    pub fn adopt(&mut self, run: &TaskRun, id: ExecutorId, is_live: bool) -> Adopted {
        let key = &run.task.key;
        // One that lives on beside what is known of the task is late, also if its attempt is over.
        let other = if is_live { Adopted::Second } else { Adopted::Known };
        if self.ended.contains_key(key) {
            return other;
        }
        if !self.open.contains_key(key) {
            // Its pod does not carry what it came after. Of a known task it says nothing new: anybody can change it.
            let _none = self.add(Arc::clone(&run.task));
        }
        let Some(open) = self.open.get_mut(key) else { return Adopted::Known };
        if open.executor.is_some() || (run.round, run.attempt) < (open.round, open.attempts) {
            if is_live && run.round < open.round {
                // A call has opened the task again since.
                self.leave(key, id);
            }
            return other;
        }
        self.ready.remove(open.place, &open.task);
        (open.attempts, open.retries_left) = (run.attempt, run.retries_left);
        open.round = run.round;
        open.executor = Some(id);
        self.ready.on_busy(&open.task);
        // What it comes after had ended when the pod was created.
        self.n_held -= usize::from(!open.held.is_empty());
        open.held.clear();
        Adopted::Current
    }

    /// The pod of an earlier process is the record of this task, whose end was reported.
    pub fn adopt_record(&mut self, run: &TaskRun, id: ExecutorId, end: TaskEnd) -> Adopted {
        let key = &run.task.key;
        match self.open.get_mut(key) {
            Some(open) if open.executor.is_none() && run.round >= open.round => {
                self.ready.remove(open.place, &open.task);
                (open.attempts, open.executor) = (run.attempt, Some(id));
                open.round = run.round;
                self.ready.on_busy(&open.task);
                Adopted::Ended
            }
            Some(_) => Adopted::Known,
            None if self.ended.contains_key(key) => Adopted::Known,
            None => {
                let ended = EndedTask::new(&run.task, Some(id), run.attempt, end);
                self.insert_ended(EndedTask { round: run.round, ..ended });
                Adopted::Recorded
            }
        }
    }

    /// Forgets an end that is found before the pod of this attempt if a call has opened the task again since. True if so.
    pub fn forget_before(&mut self, run: &TaskRun) -> bool {
        let key = &run.task.key;
        let ended = self.ended.get(key).filter(|ended| ended.round < run.round);
        let Some(is_failure) = ended.map(|ended| ended.end.outcome.is_failure()) else {
            return false;
        };
        self.remove_ended(key);
        self.n_failed = self.n_failed.saturating_sub(is_failure.into());
        true
    }
}

impl EndedTask {
    fn new(task: &Arc<Task>, executor: Option<ExecutorId>, attempts: u32, end: TaskEnd) -> Self {
        let task = Arc::clone(task);
        Self { task, end, executor, attempts, round: 0, first_order: 0, is_reported: false }
    }
}
