//! Owns what the driver or a person can ask of the core while it runs, and what it answers. Reading
//! and printing them is `wire/`'s; who asks, and over what, is `control/`'s.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::core::model::ids::{ExecutorId, GroupName};
use crate::core::model::pod_text::PodText;
use crate::core::model::status::Status;
use crate::core::policy::settings::{Replace, ScaleDown};

/// What becomes of the target when executors are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterKill {
    /// It falls by one for each id that was live and not ending, never below `min`.
    Lower,
    /// It stays: they are replaced.
    Replace,
    /// It becomes this, in the same step.
    Target(u32),
}

/// What a group is to be. What is left out stays as it is; of a new group it is the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupChange {
    /// What its next pods are.
    pub pod: Arc<PodText>,
    /// Before it is brought between `min` and `max`.
    pub target: Option<u32>,
    pub min: Option<u32>,
    pub max: Option<u32>,
    pub scale_down: Option<ScaleDown>,
    pub replace: Option<Replace>,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The driver has lost this executor: the reason is to be found out.
    Disconnected { executor: ExecutorId },
    /// The group is over: its executors end.
    DeleteGroup { group: GroupName },
    /// The driver takes executors now: releases `driver.ready: control`.
    DriverReady,
    /// The driver heard from these.
    Heartbeat { executors: BTreeSet<ExecutorId> },
    /// These have nothing to do; whoever else runs is busy. Replaces what was said before.
    Idle { executors: BTreeSet<ExecutorId> },
    /// End these executors; without `force` those that the driver calls busy are spared.
    Kill { executors: BTreeSet<ExecutorId>, after: AfterKill, force: bool, reason: Option<String> },
    /// Makes a group, or changes what there is of it.
    PutGroup { group: GroupName, change: GroupChange },
    /// A group's new target, before it is brought between `min` and `max`.
    SetTarget { group: GroupName, target: u32 },
    /// The whole picture.
    Status,
}

/// Its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// There is nothing more to say.
    Done,
    /// To `Kill`: each id is in one of the lists, or was ending already.
    Killed {
        killed: Vec<ExecutorId>,
        busy: Vec<ExecutorId>,
        unknown: Vec<ExecutorId>,
        /// The target now in force; none where the ids belong to no group that is known.
        target: Option<u32>,
    },
    /// To `Heartbeat` and `Idle`: taken, but for the ids that no executor has.
    Noted { unknown: Vec<ExecutorId> },
    /// It cannot be done as asked: what is wrong, and with which field of the call.
    Refused { what: String, field: &'static str },
    /// To `Status`.
    Status(Status),
    /// To `PutGroup` and `SetTarget`: the target now in force.
    Target(u32),
    /// There is no such executor, and none of that id was.
    UnknownExecutor,
    /// There is no such group.
    UnknownGroup,
}
