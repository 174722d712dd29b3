//! Tasks in a simulated cluster: a driver that says its keys again and again, and what must hold for
//! each key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::command::{Command, GroupCommand, Reply};
use posse_core::model::event::{Event, GroupEvent};
use posse_core::model::ids::{ExecutorId, GroupName, Uid};
use posse_core::model::input::Input;
use posse_core::model::pod::{ContainerState, Pod};
use posse_core::model::settings::{GroupSpec, Limit, RecordUse};
use posse_core::model::task::{After, Task, TaskArray, TaskOutcome, TaskState};
use posse_core::reconciler::Reconciler;
use posse_core::state::executors::{Executor, has_ended};

use super::check::{CheckResult, fail};
use super::cluster::Cluster;
use super::faults::{Profile, at, policy};
use super::groups::group;
use super::node::LATE_IMAGE;
use super::trace::trace;
use super::world::{CALM_MS, World};

/// The most keys of a world.
const KEYS_MAX: usize = 40;

type Key = (GroupName, Arc<str>);

/// The driver's side: what it has said, and what it was told.
#[derive(Debug, Default)]
pub struct TaskDriver {
    pub is_there: bool,
    said: Vec<(GroupName, Arc<Task>)>,
    /// The keys whose end this process has told, and after how many attempts.
    told: BTreeMap<Key, u32>,
    /// Those that were opened again: a late pod of the next attempt may do that once more for another process.
    again: BTreeSet<Key>,
    cancelled: BTreeSet<Key>,
    /// The executors of ended tasks whose output this process has not kept yet.
    unkept: BTreeSet<ExecutorId>,
    /// Those whose output it has kept.
    kept: BTreeSet<ExecutorId>,
    /// Outputs that are being read, by the pod.
    read: BTreeMap<Uid, ExecutorId>,
    /// The new tasks of calls of this process, by the change after which they are in the record.
    unrecorded: Vec<(u64, Vec<Key>)>,
    /// The tasks that a call has added and the record has. Nobody says them again.
    recorded: BTreeSet<Key>,
    /// How tasks have ended, as any process has told it last.
    outcomes: BTreeMap<Key, TaskOutcome>,
    /// Those that a restore may have undone, until a process that began since tells them.
    undone: BTreeSet<Key>,
    /// How many restores there were when this process began.
    n_restores: u32,
    /// Those that any process has told as succeeded. Without a record a call can cancel one before a process knows its
    /// pod, and the next process knows again that it has succeeded.
    succeeded: BTreeSet<Key>,
}

impl TaskDriver {
    /// Another process may tell an end again. It does not know what a restore has undone.
    pub fn on_start(&mut self, n_restores: u32) {
        if n_restores > std::mem::replace(&mut self.n_restores, n_restores) {
            self.undone = self.outcomes.keys().cloned().collect();
        }
        self.told.clear();
        self.unkept.clear();
        self.kept.clear();
        self.read.clear();
    }

    /// The process ends: what it had acknowledged by then stays known.
    pub fn on_kill(&mut self, core: &Reconciler) {
        let (_, n_recorded) = core.recorded();
        for (n, keys) in std::mem::take(&mut self.unrecorded) {
            self.recorded.extend(keys.into_iter().filter(|_| n <= n_recorded));
        }
    }

    /// A process knows what an earlier one had acknowledged, and which of it had ended.
    pub fn are_restored(&self, core: &Reconciler, cluster: &Cluster) {
        for (name, key) in self.recorded.iter().filter(|_| cluster.n_restores == 0) {
            let tasks = &core.executors().groups()[name].tasks;
            assert!(tasks.is_known(key), "{key} was acknowledged, and is not known");
            let has_ended = cluster.has_recorded_end(name, key);
            assert!(!has_ended || tasks.ended(key).is_some(), "{key} had ended");
        }
    }

    pub fn on_input(&mut self, input: &Input) {
        if let Input::OutputKept { uid } = input
            && let Some(id) = self.read.remove(uid)
        {
            self.unkept.remove(&id);
            self.kept.insert(id);
        }
    }

    /// The output of an ended task is kept before its pod is deleted, a few at a time.
    fn keeps_outputs(&mut self, action: &Action, core: &Reconciler) -> CheckResult {
        match action {
            Action::KeepOutput { output, .. } => {
                self.read.insert(output.uid.clone(), output.executor);
                match self.read.len() > 4 {
                    true => fail(format!("{action:?} is the fifth at a time")),
                    false => Ok(()),
                }
            }
            Action::Delete { uid, .. } => {
                let id = core.snapshot().get(uid).map(|pod| pod.id);
                match id.is_some_and(|id| self.unkept.contains(&id)) {
                    true => fail(format!("{action:?} before its task's output was kept")),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// All outputs were kept, where nobody disturbs it.
    pub fn are_kept(&self) -> CheckResult {
        match self.unkept.is_empty() {
            true => Ok(()),
            false => fail(format!("outputs are not kept: {:?}", self.unkept)),
        }
    }

    pub fn on_event(&mut self, event: &Event, cluster: &Cluster) -> CheckResult {
        let Event::Group(group, GroupEvent::TaskEnded { key, executor, end, attempts }) = event
        else {
            return Ok(());
        };
        let key = (group.clone(), Arc::clone(key));
        let before = self.told.insert(key.clone(), *attempts);
        if before.is_some_and(|before| before >= *attempts || !self.again.contains(&key)) {
            return fail(format!("{event:?} was told before"));
        }
        let earlier = self.outcomes.insert(key.clone(), end.outcome);
        self.undone.remove(&key);
        if end.outcome == TaskOutcome::Succeeded {
            self.succeeded.insert(key.clone());
        }
        let has_output = matches!(end.outcome, TaskOutcome::Failed | TaskOutcome::Succeeded);
        let is_of_it = |pod: &Pod| pod.task.as_ref().is_some_and(|run| run.task.key == key.1);
        let mut pods = cluster.pods.values().map(|stored| &stored.pod);
        let mut of_pod = |id: &ExecutorId| pods.any(|pod| pod.id == *id && is_of_it(pod));
        let is_new = |id: &ExecutorId| !self.kept.contains(id);
        // A restore begins pods again whose output an earlier process has kept.
        let has_output = has_output && cluster.n_restores == 0;
        self.unkept.extend(executor.filter(|id| has_output && of_pod(id) && is_new(id)));
        // What it comes after may have been begun again since it was skipped.
        let is_skipped = end.outcome == TaskOutcome::Skipped;
        if is_skipped
            && earlier != Some(end.outcome)
            && self.allowed(&key.0, &key.1, false) == Some(true)
        {
            return fail(format!("{event:?}, but all that it comes after has ended well"));
        }
        if cluster.n_restores == 0 && end.outcome == TaskOutcome::Succeeded {
            let code = |pod: &Pod| pod.end.as_ref().and_then(|end| end.exit_code);
            let of_it = cluster.pods.values().map(|s| &s.pod).find(|pod| Some(pod.id) == *executor);
            if of_it.is_some_and(|pod| code(pod) != Some(0)) {
                return fail(format!("{event:?}, but {of_it:?}"));
            }
        }
        // A process that has skipped a task ends its pod so that the next one finds it cancelled.
        let may_be_cancelled =
            earlier == Some(TaskOutcome::Skipped) || self.cancelled.contains(&key);
        if end.outcome == TaskOutcome::Cancelled && !may_be_cancelled {
            return fail(format!("{event:?}, but nobody has cancelled it"));
        }
        Ok(())
    }

    /// True if all that the task comes after has ended so that it may start, false if something has ended otherwise.
    /// `of_any_process`: if any process has told that it has succeeded, that counts.
    fn allowed(&self, name: &GroupName, key: &str, of_any_process: bool) -> Option<bool> {
        let (_, task) =
            self.said.iter().find(|(group, task)| group == name && &*task.key == key)?;
        let each = task.after.iter().map(|(other, after)| {
            let other = (name.clone(), Arc::clone(other));
            let outcome = self.outcomes.get(&other).filter(|_| !self.undone.contains(&other))?;
            Some(after.allows(*outcome) || of_any_process && self.succeeded.contains(&other))
        });
        let each: Vec<Option<bool>> = each.collect();
        if each.contains(&Some(false)) {
            return Some(false);
        }
        each.iter().all(Option::is_some).then_some(true)
    }

    /// No executor is created for a task while another one can still run, as far as the core knows, nor before what it
    /// comes after has ended.
    pub fn on_action(
        &mut self,
        action: &Action,
        core: &Reconciler,
        cluster: &Cluster,
    ) -> CheckResult {
        self.keeps_outputs(action, core)?;
        let Action::Create { id, group: name, overrides, .. } = action else { return Ok(()) };
        let Some(run) = &overrides.task else { return Ok(()) };
        if cluster.n_restores > 0 {
            return Ok(());
        }
        let key = &run.task.key;
        let of_group = (name.clone(), Arc::clone(key));
        if self.told.contains_key(&of_group) && !self.again.contains(&of_group) {
            return fail(format!("{action:?}, but the task has ended"));
        }
        let is_recorded = self.recorded.contains(&of_group);
        if self.allowed(name, key, !is_recorded) != Some(true) {
            return fail(format!("{action:?}, but what it comes after has not ended well"));
        }
        if let Some(array) = run.task.array.as_ref() {
            let of_it = core.executors().groups()[name].tasks.n_busy_of(&array.name);
            let create = core.executors().get(*id).and_then(|one| one.create.as_deref());
            let is_first = create.is_some_and(|create| create.n_tries <= 1);
            if is_first && array.max.is_some_and(|max| of_it > max) {
                return fail(format!("{action:?}: {of_it} of the array run"));
            }
        }
        let is_of_it = |executor: &Executor| {
            let is_key = executor.task.as_ref().is_some_and(|run| run.task.key == *key);
            is_key && executor.group == *name
        };
        for (other_id, other) in core.executors().iter().filter(|(_, other)| is_of_it(other)) {
            let pod = other.uid.as_ref().and_then(|uid| core.snapshot().get(uid));
            let can_run = match pod {
                Some(pod) => !has_ended(pod),
                None => other.create.is_some() && other.uid.is_none(),
            };
            if other_id != *id && can_run {
                return fail(format!("{action:?}, but {other_id} works on it: {other:?}"));
            }
        }
        Ok(())
    }
}

/// What the core keeps about tasks equals a recount.
pub fn tasks_are_right(core: &Reconciler) -> CheckResult {
    let executors = core.executors();
    for (name, group) in executors.groups().iter() {
        let with_task = |id: &&_| executors.get(**id).is_some_and(|one| one.task.is_some());
        let states = group.members.iter().filter(with_task);
        let capacity = states.filter(|id| {
            use posse_core::model::status::State::{Pending, Requested, Running};
            let state = executors.get(**id).map(|one| one.state);
            matches!(state, Some(Pending | Requested | Running))
        });
        let (n, known) = (u32::try_from(capacity.count()).unwrap(), group.tasks.counts.capacity());
        if n != known {
            return fail(format!("{name}: {known} work on tasks, a recount says {n}"));
        }
        let tasks = &group.tasks;
        let mut n_ready = 0;
        let mut n_free = 0;
        for key in tasks.open_keys() {
            let open = tasks.open(key).unwrap();
            let Some(id) = open.executor else {
                n_ready += u32::from(open.held_by().is_none());
                continue;
            };
            // One that was opened again may wait for another task beside its last executor.
            n_free += usize::from(open.held_by().is_none());
            let of_it = executors.get(id).and_then(|one| one.task.as_ref());
            if of_it.is_none_or(|run| run.task.key != *key) {
                return fail(format!("{name}: {key} has executor {id}, which has {of_it:?}"));
            }
        }
        let n_waiting = u32::try_from(tasks.n_free() - n_free).unwrap();
        if n_waiting != tasks.n_ready() || n_ready < n_waiting {
            return fail(format!("{name}: {} ready, a recount says {n_ready}", tasks.n_ready()));
        }
    }
    Ok(())
}

fn keys_of(name: &GroupName, tasks: &[Arc<Task>]) -> Vec<Key> {
    tasks.iter().map(|task| (name.clone(), Arc::clone(&task.key))).collect()
}

fn is_running(pod: &Pod) -> bool {
    pod.container == ContainerState::Running && !has_ended(pod)
}

impl World {
    /// A world of groups that get tasks, with all faults but a stop.
    pub fn with_tasks(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7461_736B);
        let mut profile = Profile::draw_with_work(&mut rng);
        profile.group_calls = 4 + rng.below(20);
        let policy = policy(&mut rng);
        let policy = posse_core::model::settings::Policy { failures_app: Limit::Off, ..policy };
        let groups = (0..profile.n_groups).map(|i| {
            let target = u32::try_from(rng.below(3)).unwrap();
            let max = rng.chance(40).then(|| target + 1 + u32::try_from(rng.below(6)).unwrap());
            GroupSpec { target, min: 0, max, ..group(&format!("g{i}"), &mut rng) }
        });
        let groups: Vec<GroupSpec> = groups.collect();
        let mut world = Self::with(rng, profile, policy, groups);
        world.calls_rng = Rng::new(seed.rotate_left(16));
        world.tasks.is_there = true;
        // With an owner a process knows a pod that a request of the process before makes late.
        world.cluster.owner = Some(Uid::new("driver"));
        world
    }

    /// The same with a record, so that nobody says a task again that was acknowledged. Half of the kills take the driver's
    /// pod, and all executors with it.
    pub fn with_recorded_tasks(seed: u64) -> Self {
        let mut world = Self::with_tasks(seed);
        world.policy.record = RecordUse::On;
        world
    }

    /// The driver says some new keys, and all that it has said before. Now and then it cancels one.
    pub fn say_tasks(&mut self, n_new: u64) -> CheckResult {
        let rng = &mut self.calls_rng;
        for _ in 0..n_new {
            let name = self.groups[at(rng, self.groups.len() as u64)].name.clone();
            let n = self.tasks.said.len();
            if n < KEYS_MAX {
                let retries = [0, 0, 1, 5][at(rng, 4)];
                let of_group = self.tasks.said.iter().filter(|(group, _)| *group == name);
                let others: Vec<Arc<str>> =
                    of_group.map(|(_, task)| Arc::clone(&task.key)).collect();
                let n_after = if others.is_empty() { 0 } else { rng.below(3) };
                let after = (0..n_after).map(|_| {
                    let other = Arc::clone(&others[at(rng, others.len() as u64)]);
                    (other, if rng.chance(50) { After::Ok } else { After::Any })
                });
                let after = after.collect();
                let key = format!("t{n}").into();
                let array = rng.chance(30).then(|| TaskArray {
                    name: "array".into(),
                    index: u32::try_from(n).unwrap(),
                    max: rng.chance(80).then_some(2),
                });
                let image = [None, None, Some("other"), Some(LATE_IMAGE)][n % 4];
                let image = image.map(str::to_owned);
                let task = Task { key, retries, after, array, image, ..Task::default() };
                self.tasks.said.push((name, Arc::new(task)));
            }
        }
        let n_said = self.tasks.said.len();
        let again = (n_new > 0 && n_said > 0 && rng.chance(30)).then(|| at(rng, n_said as u64));
        let cancelled = (n_new > 0 && n_said > 0 && rng.chance(20)).then(|| at(rng, n_said as u64));
        let Some(core) = &mut self.core else { return Ok(()) };
        let now = Millis(self.now);
        let is_recorded = self.policy.record == RecordUse::On && self.cluster.n_restores == 0;
        for spec in &self.groups {
            let is_told = |name: &GroupName, task: &Task| {
                let of_task = (name.clone(), Arc::clone(&task.key));
                is_recorded && self.tasks.recorded.contains(&of_task)
            };
            let of_group = self.tasks.said.iter();
            let of_group =
                of_group.filter(|(name, task)| *name == spec.name && !is_told(name, task));
            let tasks: Vec<Arc<Task>> = of_group.map(|(_, task)| Arc::clone(task)).collect();
            let keys = keys_of(&spec.name, &tasks);
            let reply = core
                .command(Command::Group(spec.name.clone(), GroupCommand::AddTasks { tasks }), now);
            if is_recorded && matches!(reply, Reply::Tasks(_)) {
                self.tasks.unrecorded.push((core.recorded().0, keys));
            }
            let group = core.executors().groups().get(&spec.name);
            let is_full =
                group.is_some_and(|group| group.spec.max.is_some_and(|max| group.target() >= max));
            let is_right = match reply {
                Reply::Tasks(_) => true,
                Reply::Refused { field, .. } => is_full && field == "executors",
                _ => false,
            };
            if !is_right {
                return fail(format!("{reply:?} to known and new keys"));
            }
        }
        if let Some((group, task)) = cancelled.map(|i| self.tasks.said[i].clone()) {
            trace(|| format!("{:>9}   <- cancel {}", self.now, task.key));
            let key = Arc::clone(&task.key);
            self.tasks.cancelled.insert((group.clone(), Arc::clone(&key)));
            core.command(Command::Group(group, GroupCommand::CancelTask { key }), now);
        }
        again.into_iter().for_each(|i| self.run_again(i));
        self.wake();
        Ok(())
    }

    /// A call opens this task again, if its end was told: one whose end is on its way would be told twice in one turn.
    fn run_again(&mut self, i: usize) {
        let (group, task) = self.tasks.said[i].clone();
        let of_task = (group.clone(), Arc::clone(&task.key));
        let Some(core) = self.core.as_mut().filter(|_| self.tasks.told.contains_key(&of_task))
        else {
            return;
        };
        trace(|| format!("{:>9}   <- again {}", self.now, task.key));
        let tasks = core.executors().groups().get(&group).map(|group| &group.tasks);
        let is_over = tasks.is_some_and(|tasks| tasks.ended(&task.key).is_some());
        let key = Arc::clone(&task.key);
        let command = Command::Group(group, GroupCommand::RetryTask { key });
        // Else it has succeeded, or its group has no room.
        if matches!(core.command(command, Millis(self.now)), Reply::Tasks(_)) && is_over {
            self.tasks.told.remove(&of_task);
            self.tasks.again.insert(of_task);
        }
    }

    /// Faults, and then time for all tasks.
    pub fn run_tasks(&mut self) -> CheckResult {
        let calm = self.schedule_faults();
        self.run_until(calm)?;
        // The last call may have set a target that leaves no room.
        for i in 0..self.groups.len() {
            let name = self.groups[i].name.clone();
            self.core.as_mut().unwrap().set_target(&name, 0, Millis(self.now));
        }
        self.say_tasks(5)?;
        self.run_until(calm + 3 * CALM_MS)?;
        self.all_have_ended()?;
        self.run_last_stop()
    }

    fn all_have_ended(&mut self) -> CheckResult {
        let Some(core) = &mut self.core else { return fail("no process".to_owned()) };
        for (group, task) in &self.tasks.said {
            let (name, key) = (group.clone(), Some(Arc::clone(&task.key)));
            let reply = core
                .command(Command::Group(name, GroupCommand::ShowTasks { key }), Millis(self.now));
            let Reply::Tasks(all) = &reply else { return fail(format!("{}: {reply:?}", task.key)) };
            let key = (group.clone(), Arc::clone(&task.key));
            if !matches!(all[0].state, TaskState::Ended(_)) {
                let waiting =
                    core.executors().groups().get(group).map(|g| (g.wait.clone(), g.counts()));
                return fail(format!("{reply:?}: not ended, {waiting:?}"));
            }
            // All were said again after the last start, but for those in the record.
            if !self.tasks.told.contains_key(&key) && !self.tasks.recorded.contains(&key) {
                return fail(format!("{reply:?}: the end was not told"));
            }
        }
        // Each task has had its time, so nothing works on one.
        let left = self.cluster.pods.values().map(|s| &s.pod);
        let working = left.filter(|pod| pod.task.is_some() && is_running(pod)).count();
        if working > 0 {
            return fail(format!("{working} pods still work on tasks"));
        }
        Ok(())
    }
}
