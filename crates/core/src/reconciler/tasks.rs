//! Tasks: the calls that add, show and cancel them, and what the ends of their executors mean for
//! them. A task gets its next executor when the last one can no longer run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::Reconciler;
use crate::model::command::Reply;
use crate::model::event::{DeleteCause, Event, GroupEvent};
use crate::model::fact::Topic;
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::pod::Pod;
use crate::model::pod_text::ETCD_BYTES_MAX;
use crate::model::refusal::Refusal;
use crate::model::settings::{GroupSpec, RecordUse};
use crate::model::status::State;
use crate::model::task::{
    OPEN_TASKS_MAX, Shape, TASK_IN_POD_BYTES_MAX, TASK_MESSAGE_BYTES_MAX, Task, TaskEnd,
    TaskOutcome, TaskRun, TaskState, TaskStatus,
};
use crate::policy::loss::{Loss, classify};
use crate::state::create_backoff::BackoffCause;
use crate::state::executors::Group;
use crate::state::tasks::{EndedTask, Tasks};
use posse_base::text::sanitize;
use posse_base::time::Millis;

impl Reconciler {
    /// Adds tasks to a group, all of them or none. A task that is known already stays as it is.
    pub(super) fn add_tasks(&mut self, name: &GroupName, tasks: Vec<Arc<Task>>) -> Reply {
        let Some(group) = self.live_group(name) else { return Reply::UnknownGroup };
        if let Some((_, key)) = needs_slots(&group.spec) {
            let what =
                format!("group {name} has {key}, and tasks have no slot: use a group without it");
            return Reply::Refused { what, field: "executors" };
        }
        if let RecordUse::Missing(why) = &self.policy.record {
            let what = format!("cannot be recorded, and would be lost with posse: {why}");
            return Reply::Refused { what, field: "executors" };
        }
        let mut new = match new_tasks(name, &group.tasks, &tasks) {
            Ok(new) => new,
            Err(reply) => return reply,
        };
        if let Some(reply) = no_room(name, &group.spec) {
            return reply;
        }
        if let Some(reply) = new.values().find_map(|task| misplaced_file(name, &group.spec, task)) {
            return reply;
        }
        let n_new = new.len();
        if let Some(reply) = self.refuse_more(name, n_new) {
            return reply;
        }
        if let Some(reply) = self.refuse_bytes(new.values().map(|task| task.n_bytes()).sum()) {
            return reply;
        }
        if let Some(group) = self.executors.group_mut(name) {
            group.on_target_raised(u32::try_from(n_new).unwrap_or(u32::MAX));
        }
        // In the order of the call.
        for task in &tasks {
            let Some(task) = new.remove(&task.key) else { continue };
            let key = Arc::clone(&task.key);
            self.note_fact(Topic::Task(name.clone(), Arc::clone(&key)));
            let group = self.executors.group_mut(name);
            if let Some(end) = group.and_then(|group| group.tasks.add(task)) {
                self.end_task(name, &key, end);
            }
        }
        for task in &tasks {
            self.report_recorded(name, &task.key);
        }
        let keys = tasks.iter().map(|task| &task.key);
        Reply::Tasks(keys.filter_map(|key| self.task_status(name, key)).collect())
    }

    /// Why a group cannot have so many more open tasks.
    fn refuse_more(&self, name: &GroupName, n_new: usize) -> Option<Reply> {
        let n_open: usize =
            self.executors.groups().values().map(|group| group.tasks.n_open()).sum();
        if n_open + n_new > OPEN_TASKS_MAX {
            let what = format!(
                "{n_open} tasks are open, {n_new} are new, and the maximum is {OPEN_TASKS_MAX}: add \
                 fewer, or wait until some have ended"
            );
            return Some(Reply::TooMany { what, field: "executors" });
        }
        let group = self.executors.groups().get(name)?;
        if n_new > 0
            && let Some(max) = Group::max_without_room_for_tasks(group.target(), group.spec.max)
        {
            let what = format!(
                "group {name} has the target {} and `max: {max}`, which leaves tasks no room: lower the target, \
                 raise max, or add the tasks to another group",
                group.target()
            );
            return Some(Reply::Refused { what, field: "executors" });
        }
        None
    }

    /// Why the target of a group with open tasks cannot be raised so far: they would wait as long as the
    /// target's executors run.
    pub(super) fn target_conflict(
        &self,
        name: &GroupName,
        target: u32,
        max: Option<u32>,
    ) -> Option<Reply> {
        let group = self.live_group(name)?;
        let n_open = group.tasks.n_open();
        if n_open == 0 || target <= group.target() {
            return None;
        }
        let max = Group::max_without_room_for_tasks(target, max.or(group.spec.max))?;
        let what = format!(
            "leaves the {n_open} open tasks no room under `max: {max}`: set a lower target, raise max, or wait \
             until the tasks have ended"
        );
        Some(Reply::Refused { what, field: "target" })
    }

    /// One task of a group, or all of them.
    pub(super) fn show_tasks(&self, name: &GroupName, key: Option<&str>) -> Reply {
        let Some(group) = self.live_group(name) else { return Reply::UnknownGroup };
        match key {
            Some(key) => match self.task_status(name, key) {
                Some(status) => Reply::Tasks(vec![status]),
                None => Reply::UnknownTask,
            },
            None => {
                let keys = group.tasks.keys();
                Reply::Tasks(keys.filter_map(|key| self.task_status(name, key)).collect())
            }
        }
    }

    /// The keys of the Secret that tasks still need: open ones, and those that a call may open again.
    pub(super) fn task_secret_keys(&self) -> BTreeSet<Arc<str>> {
        let groups = self.executors.groups().values();
        let tasks = groups.flat_map(|group| group.tasks.all_that_may_run());
        tasks.flat_map(|task| task.secret_keys()).cloned().collect()
    }

    /// Ends a task and its executor.
    pub(super) fn cancel_task(&mut self, name: &GroupName, key: &str, now: Millis) -> Reply {
        let Some(group) = self.live_group(name) else { return Reply::UnknownGroup };
        let executor = group.tasks.open(key).and_then(|open| open.executor);
        self.end_task(name, key, TaskEnd::CANCELLED);
        if let Some(id) = executor {
            self.decommission(id, DeleteCause::Cancelled, now);
        }
        self.show_tasks(name, Some(key))
    }

    /// Opens a task again that has ended without success. An open one stays as it is.
    pub(super) fn retry_task(&mut self, name: &GroupName, key: &str) -> Reply {
        let Some(group) = self.live_group(name) else { return Reply::UnknownGroup };
        if group.tasks.ended(key).is_some_and(|ended| ended.end.outcome == TaskOutcome::Succeeded) {
            let what = format!("task {key} has succeeded");
            return Reply::Refused { what, field: "key" };
        }
        if group.tasks.ended(key).is_some() {
            if let Some(reply) = self.refuse_more(name, 1) {
                return reply;
            }
            let leaving = self.executor_of_ended(name, key);
            let group = self.executors.group_mut(name);
            let end = group.and_then(|group| group.tasks.reopen(key, leaving));
            self.executors.ended_tasks.forget(name, key);
            self.note_task(name, &Arc::from(key));
            if let Some(Some(end)) = end {
                self.end_task(name, key, end);
            }
        }
        self.show_tasks(name, Some(key))
    }

    /// The executor of this ended task, if it can still run: a cancelled one has a grace period, and a create of unknown
    /// outcome may take effect late.
    fn executor_of_ended(&self, name: &GroupName, key: &str) -> Option<ExecutorId> {
        let id = self.executors.groups().get(name)?.tasks.ended(key)?.executor?;
        self.executors.get(id).filter(|executor| self.can_run(executor)).map(|_| id)
    }

    /// The group, unless a call has deleted it.
    pub(super) fn live_group(&self, name: &GroupName) -> Option<&Group> {
        self.executors.groups().get(name).filter(|group| !group.is_removed)
    }

    fn task_status(&self, name: &GroupName, key: &str) -> Option<TaskStatus> {
        let tasks = &self.executors.groups().get(name)?.tasks;
        if let Some(open) = tasks.open(key) {
            let executor = open.executor.and_then(|id| self.executors.get(id));
            let pod = executor.and_then(|executor| executor.pod(&self.snapshot));
            let problem = pod.and_then(|pod| pod.start_problem.as_ref());
            let state = match executor.map(|executor| executor.state) {
                Some(State::Requested | State::Pending) => TaskState::Pending,
                Some(State::Running) => TaskState::Running,
                None if open.held_by().is_some() => TaskState::Held,
                Some(State::Completed | State::Draining | State::Failed | State::Terminating)
                | None => TaskState::Waiting,
            };
            let start_problem =
                problem.map(|problem| sanitize(&problem.message, TASK_MESSAGE_BYTES_MAX).into());
            return Some(TaskStatus {
                task: Arc::clone(&open.task),
                state,
                executor: open.executor,
                attempts: open.attempts,
                held_by: open.held_by(),
                start_problem,
                end: None,
            });
        }
        let ended = tasks.ended(key)?;
        Some(TaskStatus {
            task: Arc::clone(&ended.task),
            state: TaskState::Ended(ended.end.outcome),
            executor: ended.executor,
            attempts: ended.attempts,
            held_by: None,
            start_problem: None,
            end: Some(ended.end.clone()),
        })
    }

    /// Reports the end of a task and of those that are over with it, once, and forgets the oldest ended ones.
    pub(super) fn end_task(&mut self, name: &GroupName, key: &str, end: TaskEnd) {
        let mut ends = VecDeque::from([(Arc::from(key), end)]);
        while let Some((key, end)) = ends.pop_front() {
            let Some(group) = self.executors.group_mut(name) else { return };
            let Some((key, ended)) = group.tasks.end(&key, end) else { continue };
            let event = task_ended(name, &key, ended);
            let end = ended.end.clone();
            ends.extend(group.tasks.free_next(&key, &end));
            self.out.tell(event);
            self.note_end(Topic::Progress(name.clone(), Arc::clone(&key)));
            self.note_ended_task(name, key);
        }
    }

    /// Reports an end that only the record of an earlier process tells, to a client that adds the
    /// task again. A kill may have ended that process before anybody read its event.
    fn report_recorded(&mut self, name: &GroupName, key: &Arc<str>) {
        let Some(group) = self.executors.group_mut(name) else { return };
        if let Some(ended) = group.tasks.report(key) {
            self.out.tell(task_ended(name, key, ended));
        }
    }

    pub(super) fn note_ended_task(&mut self, name: &GroupName, key: Arc<str>) {
        for (name, key) in self.executors.note_ended_task(name.clone(), key) {
            self.note_task(&name, &key);
        }
    }

    /// The attempt that this executor makes at a task, if it works on one.
    pub(super) fn task_of(&self, id: ExecutorId) -> Option<(GroupName, TaskRun)> {
        let executor = self.executors.get(id)?;
        let run = executor.task.as_deref()?;
        Some((executor.group.clone(), run.clone()))
    }

    pub(super) fn has_task(&self, id: ExecutorId) -> bool {
        self.executors.get(id).is_some_and(|executor| executor.task.is_some())
    }

    /// The task of this executor is over, and without a record only the executor's pod tells that to the next process.
    pub(super) fn has_last_word(&self, id: ExecutorId) -> bool {
        let is_lost = self.executors.get(id).is_some_and(|executor| executor.life.is_lost());
        self.task_of(id).is_some_and(|(name, run)| {
            let group = self.executors.groups().get(&name);
            group.is_some_and(|group| group.tasks.is_last_word(&run, id, is_lost))
        })
    }

    /// Ends the task that this executor works on, and keeps the executor's pod as the record. The
    /// executor of another attempt changes nothing.
    pub(super) fn end_task_of(&mut self, id: ExecutorId, end: TaskEnd, now: Millis) {
        let Some((name, run)) = self.task_of(id) else { return };
        let group = self.executors.groups().get(&name);
        if group.is_some_and(|group| group.tasks.is_current(&run, id)) {
            let is_done = end.outcome != TaskOutcome::Cancelled;
            if is_done {
                self.keep_output(id, false);
            }
            self.end_task(&name, &run.task.key, end);
            self.change(id, now, |executor| executor.is_done = is_done);
        }
    }

    /// The executor of a task was lost. True if the task failed with it.
    pub(super) fn lose_task(&mut self, id: ExecutorId, loss: &Loss, now: Millis) -> bool {
        let Some((name, run)) = self.task_of(id).filter(|_| loss.caused_by_app()) else {
            return false;
        };
        let group = self.executors.group_mut(&name);
        if group.is_none_or(|group| group.tasks.take_retry(&run, id)) {
            self.note_progress(&name, &run.task.key);
            return false;
        }
        self.end_task_of(id, failed(loss), now);
        true
    }

    /// The server refuses the pod of this executor. None if that ends its task, and nothing is slowed down:
    /// the server has accepted another pod of the group since it first refused this one, or no other could
    /// show whose fault it is.
    pub(super) fn refuse_task(
        &mut self,
        id: ExecutorId,
        refusal: &Refusal,
        now: Millis,
    ) -> Option<BackoffCause> {
        let Some((name, run)) = self.task_of(id) else { return Some(BackoffCause::Permanent) };
        let key = &run.task.key;
        let shape = self.executors.get(id).map_or(Shape::TEMPLATE, |executor| executor.shape);
        let group = self.executors.group_mut(&name)?;
        let n_accepted = group.n_accepted;
        let refused = group.tasks.refuse(key, n_accepted, now);
        let throttle = group.tasks.throttles.of_mut(shape);
        let is_its_fault = throttle.on_task_refused(n_accepted)
            || refused.is_some_and(|refused| refused.n_accepted < n_accepted);
        let is_alone = group.target() == 0 && group.tasks.is_refused_alone(key, now);
        if is_its_fault || is_alone {
            group.tasks.release(key, id, false);
            self.end_task(&name, key, TaskEnd::refused(&refusal.message));
            return None;
        }
        // Another task may show soon whose fault it is.
        Some(if n_accepted == 0 { BackoffCause::Permanent } else { BackoffCause::MayPass })
    }

    /// This executor can no longer run: its task, if it is open, gets the next one.
    pub(super) fn release_task(&mut self, id: ExecutorId) {
        let Some((name, run)) = self.task_of(id) else { return };
        let had_pod = self.executors.get(id).is_some_and(|executor| executor.uid.is_some());
        if let Some(group) = self.executors.group_mut(&name) {
            group.tasks.release(&run.task.key, id, had_pod);
            self.note_progress(&name, &run.task.key);
        }
    }

    /// The group is deleted, and its tasks with it.
    pub(super) fn cancel_all_tasks(&mut self, name: &GroupName) {
        let Some(group) = self.executors.group_mut(name) else { return };
        let keys: Vec<Arc<str>> = group.tasks.open_keys().cloned().collect();
        let all: Vec<Arc<str>> = group.tasks.keys().cloned().collect();
        for key in keys {
            // Nobody can ask for it any more, so it takes no place among the remembered ones.
            if let Some((key, ended)) = group.tasks.end(&key, TaskEnd::CANCELLED) {
                self.out.tell(task_ended(name, &key, ended));
            }
        }
        self.executors.ended_tasks.forget_group(name);
        let Some(group) = self.executors.groups().get(name) else { return };
        let left = group.members.iter().filter_map(|&id| {
            let executor = self.executors.get(id).filter(|one| self.can_run(one))?;
            Some((Arc::clone(&executor.task.as_ref()?.task.key), id))
        });
        let leaving = left.collect();
        if let Some(group) = self.executors.group_mut(name) {
            group.tasks.clear(leaving);
        }
        all.iter().for_each(|key| self.note_task(name, key));
    }
}

/// The key that gives each executor of the group a slot of its own, and its value. By the template a task would
/// stand for slot 0: it would share the volumes of that slot, or be a second rank 0.
pub(super) fn needs_slots(group: &GroupSpec) -> Option<(&'static str, &'static str)> {
    let volumes = group.has_volumes().then_some(("volumes_per_slot", "volumes_per_slot"));
    volumes.or_else(|| group.slot_key())
}

/// Why the group's template has no room for the contents of a task.
fn no_room(name: &GroupName, group: &GroupSpec) -> Option<Reply> {
    let n_bytes = group.pod.as_ref()?.n_bytes();
    (n_bytes + TASK_IN_POD_BYTES_MAX > ETCD_BYTES_MAX).then(|| {
        let what = format!(
            "the pod of group {name} has {n_bytes} bytes, and with a task it can be too large for etcd (1.5 MiB): make \
             its template smaller"
        );
        Reply::Refused { what, field: "executors" }
    })
}

/// Why the group's template has no place for a file of the task.
fn misplaced_file(name: &GroupName, group: &GroupSpec, task: &Task) -> Option<Reply> {
    let pod = group.pod.as_ref()?;
    let (file, mount) =
        task.files.keys().find_map(|file| Some((file, pod.mount_in_place_of(file)?)))?;
    let what = format!(
        "task {}: {file} is no place for a file, because the template of group {name} has a volume at {mount}: take \
         another path",
        task.key
    );
    Some(Reply::Refused { what, field: "files" })
}

/// The tasks of a call whose keys are new, by key.
fn new_tasks(
    name: &GroupName,
    tasks: &Tasks,
    told: &[Arc<Task>],
) -> Result<BTreeMap<Arc<str>, Arc<Task>>, Reply> {
    let mut new: BTreeMap<Arc<str>, Arc<Task>> = BTreeMap::new();
    let mut new_arrays: BTreeSet<Arc<str>> = BTreeSet::new();
    for task in told {
        let twin = new.get(&task.key);
        let difference = twin.and_then(|twin| twin.digest().difference(&task.digest()));
        if let Some(field) = difference.or_else(|| tasks.difference(task)) {
            return Err(Reply::TaskDiffers { key: Arc::clone(&task.key), field });
        }
        if twin.is_some() || tasks.is_known(&task.key) {
            continue;
        }
        // Only tasks that are there already: so the order can have no circle.
        let is_known = |name: &Arc<str>| {
            tasks.is_prior(name) || new.contains_key(name) || new_arrays.contains(name)
        };
        if let Some(other) = task.after.keys().find(|&name| !is_known(name)) {
            let what = format!(
                "task {} is to come after {other}, and group {name} has no task or array {other} before it, or has \
                 forgotten it",
                task.key
            );
            return Err(Reply::Refused { what, field: "executors" });
        }
        new_arrays.extend(task.array.iter().map(|array| Arc::clone(&array.name)));
        new.insert(Arc::clone(&task.key), Arc::clone(task));
    }
    Ok(new)
}

fn task_ended(group: &GroupName, key: &Arc<str>, ended: &EndedTask) -> Event {
    let (end, executor, attempts) = (ended.end.clone(), ended.executor, ended.attempts);
    Event::Group(
        group.clone(),
        GroupEvent::TaskEnded { key: Arc::clone(key), executor, attempts, end },
    )
}

/// How the task of a record ended.
pub(super) fn end_of_record(pod: &Pod) -> TaskEnd {
    if pod.completed {
        return TaskEnd::SUCCEEDED;
    }
    failed(&classify(pod, false))
}

fn failed(loss: &Loss) -> TaskEnd {
    TaskEnd::failed(loss.exit_code, loss.reason.as_str(), &loss.message)
}
