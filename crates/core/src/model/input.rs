//! The inputs of the core, as one closed enum. `run/` produces them.

use std::collections::BTreeSet;

use crate::model::event::RestartKind;
use crate::model::ids::{ExecutorId, GroupName, Uid, Version};
use crate::model::pod::Pod;
use crate::model::refusal::Refusal;
use posse_base::time::Millis;

/// What had been applied before a request was sent. An answer to that request below `position`
/// proves a resourceVersion rollback. An answer with another epoch is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    /// The number of resourceVersion rollbacks so far.
    pub epoch: u32,
    /// The highest version applied in this epoch.
    pub position: Option<Version>,
}

/// Who requested a LIST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListSource {
    /// The slow poll, which is independent of the watch.
    Poll,
    /// The stop, which repeats the LIST until no pod is left.
    Stop,
    /// The watcher, before each (re)start of the watch.
    Watch,
}

/// Which page of a LIST this is. All pages of a LIST show one revision, because `continue` keeps it
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// 0 is the first page.
    pub number: u32,
    pub is_last: bool,
}

impl ListPage {
    /// A LIST in one piece.
    pub const WHOLE: Self = Self { number: 0, is_last: true };
}

/// A LIST, or one page of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    pub source: ListSource,
    pub page: ListPage,
    pub pods: Vec<Pod>,
    /// The list's own resourceVersion; none if it is not comparable.
    pub version: Option<Version>,
    /// What had been applied before the first page was requested.
    pub watermark: Watermark,
}

impl List {
    /// A LIST in one piece.
    pub fn whole(
        source: ListSource,
        pods: Vec<Pod>,
        version: Option<Version>,
        watermark: Watermark,
    ) -> Self {
        Self { source, page: ListPage::WHOLE, pods, version, watermark }
    }
}

/// One event of the watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodEvent {
    /// ADDED or MODIFIED, with the pod's new state.
    Applied(Pod),
    /// BOOKMARK: all events up to this version were sent.
    Bookmark(Version),
    /// DELETED. The pod's version is that of the deletion.
    Deleted(Pod),
}

/// A pod whose labels do not match our selector, although it has the name that we asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignPod {
    pub name: String,
    pub uid: Uid,
}

/// The pod in the answer to a create or a GET.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and nearly all are ours")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAnswer {
    /// Its labels do not match our selector.
    Foreign(ForeignPod),
    /// Its labels match our selector. Only the core decides whether posse created it.
    Ours(Pod),
}

/// Why the record was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordError {
    /// In words, with what to do.
    pub why: String,
    /// Another posse writes it now.
    pub is_taken_over: bool,
}

impl RecordError {
    pub fn failed(why: String) -> Self {
        Self { why, is_taken_over: false }
    }
}

/// The end of one run of the command that renews credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The entry of `credentials`.
    pub name: String,
    /// When the stored credentials expire (none if nobody knows), or why the renewal failed.
    pub outcome: Result<Option<Millis>, String>,
    /// When the next renewal is due.
    pub next_at: Millis,
}

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The answer to an `Action::GiveUpClaims`: so many are deleted now.
    ClaimsGivenUp { n: usize },
    /// The answer to an `Action::Create`.
    Created { id: ExecutorId, watermark: Watermark, answer: Result<PodAnswer, Refusal> },
    /// Credentials were renewed, or could not be.
    Credentials(Renewal),
    /// The answer to an `Action::Delete`: the terminating pod, or none if the answer is only a
    /// status.
    Deleted { uid: Uid, answer: Result<Option<Pod>, Refusal> },
    /// The answer to an `Action::Get`.
    Got { id: ExecutorId, watermark: Watermark, answer: Result<PodAnswer, Refusal> },
    /// The answer to an `Action::GetNode`; `Ok` if the node exists.
    GotNode { name: Box<str>, answer: Result<(), Refusal> },
    /// Why the driver's port does not make it ready, although somebody listens there; None: nobody does.
    DriverPort { problem: Option<String> },
    /// The driver accepts executors now.
    DriverReady,
    /// An `Action::ReserveIds` was dropped, because the thread for it was busy.
    IdsNotReserved { up_to: ExecutorId },
    /// Ids up to here (inclusive) are reserved on the server, so a restart does not reuse them.
    IdsReserved { up_to: ExecutorId },
    /// The instance's Lease is held, or is not. `high_water`: what the server has stored, because
    /// another holder may have used ids meanwhile.
    Lease { held: bool, high_water: Option<ExecutorId> },
    /// A LIST, or a page of one. The pages of a source's LIST come in order; those of another source may come in
    /// between.
    List(List),
    /// The stop's LIST failed.
    ListRefused { refusal: Refusal },
    /// The command of a group's `scale` gave a target (none: it stays), or failed. The error is a phrase that begins with a verb.
    ScaleRead { group: GroupName, outcome: Result<Option<u32>, String> },
    /// The command of `driver.idle` has named the executors without work; valid for so long, in milliseconds.
    IdleRead { executors: BTreeSet<ExecutorId>, valid_ms: u64 },
    /// The answer to an `Action::ReadLog`: sanitized lines of bounded length.
    LogRead { uid: Uid, answer: Result<Vec<String>, Refusal> },
    /// No request since then was answered, as another thread reports.
    NoAnswer { since: Millis, message: String },
    /// The answer to an `Action::KeepOutput`, also if the output could not be had.
    OutputKept { uid: Uid },
    /// The answer to an `Action::Patch`.
    Patched { uid: Uid, answer: Result<(), Refusal> },
    /// The answer to an `Action::ReadPod`.
    PodRead { id: ExecutorId, watermark: Watermark, answer: Result<PodAnswer, Refusal> },
    /// The answer to an `Action::Protect`.
    Protected { id: ExecutorId, uid: Uid, answer: Result<(), Refusal> },
    /// Nobody ends the pods of this process's own node, not even its own: their kubelet is dead.
    OwnNodeLost { node: Box<str> },
    /// The answer to an `Action::Record`.
    Recorded { answer: Result<(), RecordError> },
    /// The answer to an `Action::Resize`.
    Resized { id: ExecutorId, uid: Uid, answer: Result<(), Refusal> },
    /// A LIST or WATCH request of the watch or the poll failed.
    ReadRefused { refusal: Refusal },
    /// The server accepted a WATCH request after it had refused one.
    WatchOpened,
    /// Events of the watch in order; only the last event of each uid.
    Watch { epoch: u32, events: Vec<PodEvent> },
    /// The watch was restarted; `cause` says why.
    WatchRestarted { kind: RestartKind, cause: String },
}
