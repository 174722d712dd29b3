//! Owns what the core is told: one closed enum. Who tells it, and over which channel, is
//! `runtime/`'s.

use crate::core::model::ids::{ExecutorId, Uid, Version};
use crate::core::model::pod::Pod;
use crate::core::model::refusal::Refusal;

/// What had been applied before a request was sent. An answer to it that lies below `position`
/// means that the server's history went back; an answer of another epoch is no longer believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    /// Counts the times that history went back.
    pub epoch: u32,
    /// The highest version applied so far in this epoch.
    pub position: Option<Version>,
}

/// Who asked for a LIST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListSource {
    /// The slow independent witness.
    Poll,
    /// The stop, which lists until nothing is left.
    Stop,
    /// The watch, before it begins (again).
    Watch,
}

/// A whole LIST, all pages of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    pub source: ListSource,
    pub pods: Vec<Pod>,
    /// The list's own resourceVersion; none where it is not comparable.
    pub version: Option<Version>,
    /// What was applied before the first page was asked for.
    pub asked: Watermark,
}

/// One line of the watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodEvent {
    /// ADDED or MODIFIED: the pod is like this now.
    Applied(Pod),
    /// BOOKMARK: everything up to here has been told.
    Bookmark(Version),
    /// DELETED: the pod is gone; its version is that of the deletion.
    Deleted(Pod),
}

/// A pod that stands under a name of ours but is not ours by its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    pub name: String,
    pub uid: Uid,
}

/// A pod as a single answer tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Its labels do not match our selection.
    Foreign(Foreign),
    /// One of ours.
    Ours(Pod),
}

/// What the core is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The answer to an `Action::Create`.
    Created { id: ExecutorId, asked: Watermark, answer: Result<Seen, Refusal> },
    /// The answer to an `Action::Delete`: the pod as it is on its way out, or none where the
    /// server only said that it is done.
    Deleted { uid: Uid, answer: Result<Option<Pod>, Refusal> },
    /// The answer to an `Action::DeleteAll`.
    DeletedAll { answer: Result<(), Refusal> },
    /// The answer to an `Action::Get`.
    Got { id: ExecutorId, asked: Watermark, answer: Result<Seen, Refusal> },
    /// The answer to an `Action::GetNode`; `Ok` where the node is there.
    GotNode { name: Box<str>, answer: Result<(), Refusal> },
    /// The driver wants its executors now.
    DriverReady,
    /// The ids up to here (inclusive) are reserved on the server: none of them is lost to a restart.
    IdsReserved { up_to: ExecutorId },
    /// The instance is ours (again), or is not (any more). `high_water`: what the server keeps, so
    /// that ids which another holder may have given meanwhile are not given again.
    Lease { held: bool, high_water: Option<ExecutorId> },
    /// A whole LIST.
    List(List),
    /// The stop's LIST was refused.
    ListRefused { refusal: Refusal },
    /// The answer to an `Action::ReadLog`: lines that are harmless and bounded.
    LogRead { uid: Uid, answer: Result<Vec<String>, Refusal> },
    /// The answer to an `Action::Patch`.
    Patched { uid: Uid, answer: Result<(), Refusal> },
    /// Lines of the watch in their order; the last word on each uid only.
    Watch { epoch: u32, events: Vec<PodEvent> },
    /// The watch is down or up again; `cause` says why it was begun anew.
    WatchRestarted { cause: String },
}
