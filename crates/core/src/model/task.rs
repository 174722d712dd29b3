//! Tasks: work that runs once, in an executor of its own, under a key that the caller chose.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::model::ids::{ExecutorId, GroupName, Uid};
use crate::model::named::named;
use posse_base::text::sanitize;

/// The most tasks of a run that may be open at a time, over all groups.
pub const OPEN_TASKS_MAX: usize = 20_000;
/// The most ended tasks that a run remembers, over all groups. The oldest ones are forgotten first.
pub const ENDED_TASKS_MAX: usize = 20_000;
/// The most bytes of the open tasks of a run, and of the ended ones that it remembers: all of them are in its memory and in
/// its record.
pub const TASKS_BYTES_MAX: usize = 32 << 20;
/// The longest key, in bytes: the key is a label of the pod.
pub const KEY_BYTES_MAX: usize = 63;
/// The longest message about the end of a task, in bytes.
pub const TASK_MESSAGE_BYTES_MAX: usize = 512;
/// The most retries of a task.
pub const RETRIES_MAX: u32 = 100;

/// The most bytes that a task adds to the pod of its group: its fields, and the annotation with them, whose quotes are
/// escaped twice. The contents of a task have at most 32 KiB.
pub const TASK_IN_POD_BYTES_MAX: usize = 128 << 10;

named! {
    /// How another task must have ended before one that comes after it may start.
    #[derive(Hash)]
    pub enum After {
        /// It has succeeded. If it ends otherwise, this task is skipped.
        Ok = "ok",
        Any = "any",
    }
}

impl After {
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|after| after.as_str() == name)
    }

    pub fn allows(self, outcome: TaskOutcome) -> bool {
        self == Self::Any || outcome == TaskOutcome::Succeeded
    }
}

/// The place of a task in an array: tasks of one command that know their index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaskArray {
    pub name: Arc<str>,
    pub index: u32,
    /// How many tasks of the array may run at a time; none: all.
    pub max: Option<u32>,
}

/// What a call asks for: the key, and what differs from the group's template.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Task {
    pub key: Arc<str>,
    /// Variables of the main container, by name. They replace those of the template.
    pub env: BTreeMap<String, String>,
    /// Variables whose values are in the Secret of the application's tasks: by name, the key there.
    pub secret_env: BTreeMap<String, Arc<str>>,
    /// Files of the main container, whose contents are in the same Secret: by path, the key there.
    pub files: BTreeMap<String, Arc<str>>,
    /// The image of the main container; none: that of the template. So are the next ones.
    pub image: Option<String>,
    pub command: Option<Vec<String>>,
    pub args: Option<Vec<String>>,
    /// Request and limit of the main container's CPU.
    pub cpu: Option<String>,
    /// Request and limit of the main container's memory.
    pub memory: Option<String>,
    /// Requests and limits of further resources of the main container.
    pub resources: BTreeMap<String, String>,
    /// Labels that the pod's node must have, beside those of the template.
    pub node_selector: BTreeMap<String, String>,
    /// How many failures of the application's own doing lead to another attempt.
    pub retries: u32,
    /// How long an attempt may take, in seconds; none: as long as the group's pods.
    pub deadline_s: Option<u32>,
    pub array: Option<TaskArray>,
    /// The tasks and whole arrays that must have ended before. A pod does not carry them: they had ended when it was
    /// created.
    pub after: BTreeMap<Arc<str>, After>,
}

/// What of a task decides whether its pod can start. Tasks of one shape share a throttle, so that a shape that cannot
/// start holds up no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape(u64);

impl Shape {
    /// That of the group's template, which its own executors have too.
    pub const TEMPLATE: Self = Self(0);
}

impl fmt::Debug for Task {
    /// Without environment and arguments, because they may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Task {
    /// Of a command only the program counts: the words behind it say what it does, and nothing about its start.
    pub fn shape(&self) -> Shape {
        let Self { image, command, cpu, memory, resources, node_selector, .. } = self;
        let program = command.as_ref().and_then(|words| words.first());
        let facts = (image, program, cpu, memory, resources, node_selector);
        let is_template = [image, cpu, memory].iter().all(|own| own.is_none())
            && program.is_none()
            && resources.is_empty()
            && node_selector.is_empty();
        if is_template { Shape::TEMPLATE } else { Shape(hash(&facts).max(1)) }
    }

    /// The keys of the Secret that the task needs.
    pub fn secret_keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.secret_env.values().chain(self.files.values())
    }

    /// About how many bytes it takes in memory and in the record.
    pub fn n_bytes(&self) -> usize {
        let Self { key, env, secret_env, files, image, command, args, cpu, memory, .. } = self;
        let Self { resources, node_selector, after, .. } = self;
        let maps = [env, resources, node_selector];
        let maps = maps.into_iter().flatten().map(|(name, value)| name.len() + value.len());
        let keys = [secret_env, files];
        let keys = keys.into_iter().flatten().map(|(name, key)| name.len() + key.len());
        let words = [command, args].into_iter().flatten().flatten().map(String::len);
        let texts = [image, cpu, memory].into_iter().flatten().map(String::len);
        let after = after.keys().map(|key| key.len());
        key.len() + maps.chain(keys).chain(words).chain(texts).chain(after).sum::<usize>()
    }

    /// A short form of the contents, to compare them with another call.
    pub fn digest(&self) -> TaskDigest {
        self.digest_with(hash(&self.secret_env), hash(&self.files))
    }

    /// The same of a task whose values may be gone: when they are stored again they have other keys.
    pub fn digest_without_keys(&self) -> TaskDigest {
        let names = |keys: &BTreeMap<String, Arc<str>>| hash(&keys.keys().collect::<Vec<_>>());
        self.digest_with(names(&self.secret_env), names(&self.files))
    }

    fn digest_with(&self, secret_env: u64, files: u64) -> TaskDigest {
        let Self { key: _, env, image, command, args, cpu, memory, resources, .. } = self;
        let Self { node_selector, retries, deadline_s, array, after, .. } = self;
        TaskDigest([
            hash(args),
            hash(array),
            hash(command),
            hash(cpu),
            hash(deadline_s),
            hash(env),
            files,
            hash(image),
            hash(memory),
            hash(node_selector),
            hash(resources),
            hash(retries),
            secret_env,
            hash(after),
        ])
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The fields of a task, in the order of its digest.
const FIELDS: [&str; N_FIELDS] = [
    "args",
    "array",
    "command",
    "cpu",
    "deadline",
    "env",
    "files",
    "image",
    "memory",
    "node_selector",
    "resources",
    "retries",
    "secret_env",
    AFTER,
];
const N_FIELDS: usize = 14;
/// It says when a task starts, and so nothing about one that has started. It is the last field, so that a
/// difference in it is the only one.
pub const AFTER: &str = "after";
/// The reason for the end of a task whose pod the server refuses.
pub const REFUSED: &str = "refused";

/// One hash for each field of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskDigest([u64; N_FIELDS]);

impl TaskDigest {
    /// The first field in which the two differ.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let i = self.0.iter().zip(&other.0).position(|(a, b)| a != b)?;
        FIELDS.get(i).copied()
    }
}

/// One attempt at a task, as its pod has it in an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRun {
    pub task: Arc<Task>,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// How many more failures lead to another attempt.
    pub retries_left: u32,
    /// How often a call has opened the task again.
    pub round: u32,
}

named! {
    /// How a task has ended.
    pub enum TaskOutcome {
        /// A call cancelled it.
        Cancelled = "cancelled",
        /// The application failed, and no retry was left; or the server refuses the task's pod.
        Failed = "failed",
        /// It never started, because of the end of a task that it was to come after.
        Skipped = "skipped",
        /// The main container ended with 0.
        Succeeded = "succeeded",
    }
}

/// How far a task has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// A task that it comes after has not ended.
    Held,
    /// It has no executor yet, or its last one has not ended yet.
    Waiting,
    /// Its executor is requested or pending.
    Pending,
    Running,
    Ended(TaskOutcome),
}

impl TaskState {
    /// The documented name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Ended(outcome) => outcome.as_str(),
        }
    }
}

impl TaskOutcome {
    /// The work was to be done, and is not.
    pub fn is_failure(self) -> bool {
        match self {
            Self::Failed | Self::Skipped => true,
            Self::Cancelled | Self::Succeeded => false,
        }
    }
}

/// How a task ended, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEnd {
    pub outcome: TaskOutcome,
    /// The exit code of the last attempt; none if it has none.
    pub exit_code: Option<i32>,
    /// The reason for the loss of the last executor, or `refused`, or `after`; none if a call cancelled the task, or if
    /// it succeeded.
    pub reason: Option<&'static str>,
    /// More about the reason, in words.
    pub message: Option<Arc<str>>,
}

impl TaskEnd {
    pub const CANCELLED: Self =
        Self { outcome: TaskOutcome::Cancelled, exit_code: None, reason: None, message: None };
    pub const SUCCEEDED: Self =
        Self { outcome: TaskOutcome::Succeeded, exit_code: Some(0), reason: None, message: None };

    /// The server refuses the pod of the task alone.
    pub fn refused(message: &str) -> Self {
        Self::failed(None, REFUSED, message)
    }

    pub fn failed(exit_code: Option<i32>, reason: &'static str, message: &str) -> Self {
        let message = sanitize(message, TASK_MESSAGE_BYTES_MAX);
        Self {
            outcome: TaskOutcome::Failed,
            exit_code,
            reason: Some(reason),
            message: (!message.is_empty()).then(|| message.into()),
        }
    }

    /// The end of a task that was to come after this one. `key`: the one that ended so.
    pub fn of_next(&self, key: &str) -> Self {
        // The first one of a chain is the one that a person has to look at.
        let message = match self.outcome {
            TaskOutcome::Skipped => self.message.clone(),
            TaskOutcome::Cancelled | TaskOutcome::Failed | TaskOutcome::Succeeded => None,
        };
        let message =
            message.unwrap_or_else(|| format!("task {key} {}", self.outcome.as_str()).into());
        Self {
            outcome: TaskOutcome::Skipped,
            exit_code: None,
            reason: Some(AFTER),
            message: Some(message),
        }
    }
}

/// The output of an ended task, and where it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutput {
    pub group: GroupName,
    pub key: Arc<str>,
    /// The executor of the last attempt. Of two of a task, the higher one is the later.
    pub executor: ExecutorId,
    pub uid: Uid,
    /// The name of its pod.
    pub pod: String,
    /// None: the pod has only one.
    pub container: Option<Box<str>>,
    /// An earlier process has told the end of the task, and may have kept the output.
    pub is_earlier: bool,
}

/// What a call answers about one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    pub task: Arc<Task>,
    pub state: TaskState,
    /// The executor that works or worked on it last.
    pub executor: Option<ExecutorId>,
    /// How many pods have worked on it.
    pub attempts: u32,
    /// How many tasks and arrays hold it, and the first of them.
    pub held_by: Option<(usize, Arc<str>)>,
    /// Why its pod does not start, in the words of the scheduler or the kubelet.
    pub start_problem: Option<Arc<str>>,
    /// None while it is open.
    pub end: Option<TaskEnd>,
}
