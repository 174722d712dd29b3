//! The control API's calls and replies as values. `wire/` parses and prints them; `control/` serves
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::ids::{ExecutorId, GroupName};
use crate::model::pod_text::{PodText, PreferredNode};
use crate::model::settings::CallFields;
use crate::model::settings::{Decommission, OnLoss, Replace, Restart, ScaleDown, SlotPolicy};
use crate::model::status::Status;
use crate::model::task::{Task, TaskStatus};

/// What a kill does to the group's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterKill {
    /// The target falls by one for each id that was live and not ending, but never below `min`.
    Lower,
    /// The target stays, so the executors are replaced.
    Replace,
    /// The target becomes this value in the same step.
    Target(u32),
}

/// What a call says about a group. It is no `GroupSpec`: an absent field keeps the value that the group has, and in a new
/// group it gets its default, so each field may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupChange {
    /// The template of the group's next pods.
    pub pod: Arc<PodText>,
    /// The requested target, before it is limited to `min..=max`.
    pub target: Option<u32>,
    pub min: Option<u32>,
    pub max: Option<u32>,
    pub scale_down: Option<ScaleDown>,
    pub replace: Option<Replace>,
    pub slots: Option<SlotPolicy>,
    pub on_loss: Option<OnLoss>,
    pub restart: Option<Restart>,
    pub completions: Option<u32>,
    pub decommission: Option<Decommission>,
    /// The call itself, for the record.
    pub call: CallFields,
}

/// One call of the control API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The driver lost its connection to this executor. posse looks for the reason.
    Disconnected {
        executor: ExecutorId,
    },
    /// The driver accepts executors now (`driver.ready: control`).
    DriverReady,
    Group(GroupName, GroupCommand),
    /// The driver received heartbeats from these executors.
    Heartbeat {
        executors: BTreeSet<ExecutorId>,
        /// How much memory some of them use, in bytes.
        memory: BTreeMap<ExecutorId, u64>,
    },
    /// These executors are idle; all other running ones are busy. Replaces the previous list.
    Idle {
        executors: BTreeSet<ExecutorId>,
    },
    /// End these executors.
    Kill {
        executors: BTreeSet<ExecutorId>,
        after: AfterKill,
        /// Also those that the driver reports as busy.
        force: bool,
        /// The driver has not heard from them for too long: they have failed.
        is_silent: bool,
        reason: Option<String>,
    },
    /// Return the status of the run.
    Status,
    /// Return the keys of the Secret that tasks still need. posse itself asks.
    TaskSecretKeys,
    /// The status for somebody who looks on: not a sign of life of the driver.
    View,
    /// The tasks of this group, or one of them, for somebody who looks on.
    ViewTasks {
        group: GroupName,
        key: Option<Arc<str>>,
    },
}

impl Command {
    /// A good reply to this call promises that the next process of the run still knows of it.
    pub fn is_recorded(&self) -> bool {
        match self {
            Self::Group(_, command) => command.is_recorded(),
            // It cancels the executor's task, or lowers a target.
            Self::Kill { after, .. } => *after != AfterKill::Replace,
            Self::Disconnected { .. }
            | Self::DriverReady
            | Self::Heartbeat { .. }
            | Self::Idle { .. }
            | Self::Status
            | Self::TaskSecretKeys
            | Self::View
            | Self::ViewTasks { .. } => false,
        }
    }
}

/// What is to be done with a group or its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupCommand {
    /// Add tasks, all of them or none.
    AddTasks { tasks: Vec<Arc<Task>> },
    /// End a task and its executor.
    CancelTask { key: Arc<str> },
    /// Delete the group and end its executors.
    Delete,
    /// Prefer these nodes for the group's next pods, instead of those before.
    Prefer { nodes: Vec<PreferredNode> },
    /// Create or change the group.
    Put { change: GroupChange },
    /// Open a task again that has ended without success.
    RetryTask { key: Arc<str> },
    /// Set the target. It is limited to `min..=max`.
    SetTarget { target: u32 },
    /// Return the state of one task, or of all.
    ShowTasks { key: Option<Arc<str>> },
}

impl GroupCommand {
    /// As for a `Command`.
    pub fn is_recorded(&self) -> bool {
        match self {
            Self::AddTasks { .. }
            | Self::CancelTask { .. }
            | Self::Delete
            | Self::Put { .. }
            | Self::RetryTask { .. }
            | Self::SetTarget { .. } => true,
            Self::Prefer { .. } | Self::ShowTasks { .. } => false,
        }
    }
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success without data.
    Done,
    /// Reply to `Kill`. Each id is in exactly one list, except ids that were ending already.
    Killed {
        killed: Vec<ExecutorId>,
        busy: Vec<ExecutorId>,
        unknown: Vec<ExecutorId>,
        /// The target now in force; none if the ids belong to no known group.
        target: Option<u32>,
    },
    /// The call is not in the record, and may be lost. Why, and what to do.
    NotRecorded { what: String },
    /// Reply to `Heartbeat` and `Idle`. `unknown`: ids without an executor.
    Noted { unknown: Vec<ExecutorId> },
    /// The call is invalid: the error message and the field of the call that it is about.
    Refused { what: String, field: &'static str },
    /// Reply to `Status` and `View`.
    Status(Box<Status>),
    /// A task with this key is known, and differs in this field.
    TaskDiffers { key: Arc<str>, field: &'static str },
    /// Reply to `AddTasks`, `CancelTask` and `ShowTasks`.
    Tasks(Vec<TaskStatus>),
    /// A limit is reached: the error message and the field of the call that it is about.
    TooMany { what: String, field: &'static str },
    /// Reply to `TaskSecretKeys`.
    TaskSecretKeys(BTreeSet<Arc<str>>),
    /// Reply to `GroupCommand::Put` and `SetTarget`: the target now in force.
    Target(u32),
    /// No executor has this id, and none had it before.
    UnknownExecutor,
    /// No group has this name.
    UnknownGroup,
    /// The group has no task with this key, or has forgotten it.
    UnknownTask,
}

impl Reply {
    /// The call was carried out, and if it was to kill, somebody was killed.
    pub fn has_effect(&self) -> bool {
        match self {
            Self::Killed { killed, .. } => !killed.is_empty(),
            Self::Done
            | Self::Noted { .. }
            | Self::Status(_)
            | Self::Tasks(_)
            | Self::TaskSecretKeys(_)
            | Self::Target(_) => true,
            Self::NotRecorded { .. }
            | Self::Refused { .. }
            | Self::TaskDiffers { .. }
            | Self::TooMany { .. }
            | Self::UnknownExecutor
            | Self::UnknownGroup
            | Self::UnknownTask => false,
        }
    }

    /// It tells what was done or what is there, and not what is wrong with the call.
    pub fn tells_of_run(&self) -> bool {
        match self {
            Self::Done
            | Self::Killed { .. }
            | Self::Noted { .. }
            | Self::Status(_)
            | Self::Tasks(_)
            | Self::TaskSecretKeys(_)
            | Self::Target(_)
            | Self::UnknownExecutor
            | Self::UnknownGroup
            | Self::UnknownTask => true,
            Self::NotRecorded { .. }
            | Self::Refused { .. }
            | Self::TaskDiffers { .. }
            | Self::TooMany { .. } => false,
        }
    }
}
