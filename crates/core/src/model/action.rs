//! The actions that the core requests. `run/` executes them without decisions of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::event::{Budget, Exhaustion};
use crate::model::fact::Fact;
use crate::model::ids::{ExecutorId, GroupName, Uid};
use crate::model::input::Watermark;
use crate::model::pod::Draining;
use crate::model::pod_text::{PodOverrides, PodText};
use crate::model::task::TaskOutput;

/// A change of a pod's labels and annotations. `rest_deadline_s`: the pod stays as a record, and what runs on in it
/// has to end then (`End::rest`). `folded`: it takes other records over (`End::folded`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch {
    /// Label `posse.dev/completed`: it was reported that the executor's work is done.
    Completed { rest_deadline_s: Option<u32>, folded: Option<String> },
    /// Label `posse.dev/counted`: the loss was reported and charged to its budget.
    Counted { rest_deadline_s: Option<u32>, folded: Option<String> },
    /// The queue needs the pod no more: no successor takes its place in the group. `is_deleted`: the queue's
    /// finalizer is removed too, so that the pod can go.
    LeftQueue { is_deleted: bool },
    /// Annotation `posse.dev/draining`, and the key and value of the group's own `decommission`
    /// label.
    Draining(Draining, Option<(String, String)>),
}

/// One action. Each one except `Poll` and `Relist` is answered by exactly one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// POST the pod of this executor.
    Create {
        id: ExecutorId,
        group: GroupName,
        slot: u32,
        overrides: PodOverrides,
        watermark: Watermark,
        pod: Arc<PodText>,
    },
    /// DELETE this pod, with its uid as a precondition. `grace_s` replaces the pod's own grace
    /// period.
    Delete { uid: Uid, name: String, grace_s: Option<u32> },
    /// GET the pod of this executor.
    Get { id: ExecutorId, watermark: Watermark },
    /// GET a node, to learn whether it still exists.
    GetNode { name: Box<str> },
    /// DELETE those claims of these slots that live as long as the run: nobody needs them any more.
    GiveUpClaims { slots: Vec<(GroupName, BTreeSet<u32>)> },
    /// GET the log of an ended task, and keep its end. `n_skipped`: so many others are not kept, because too many wait.
    KeepOutput { output: TaskOutput, n_skipped: u32 },
    /// LIST during the stop.
    List { watermark: Watermark },
    /// GET the last `n_lines` lines of this pod's log. `container`: none if the pod has only one.
    ReadLog { uid: Uid, name: String, container: Option<Box<str>>, n_lines: u32 },
    /// GET the pod of this executor, which the driver has lost.
    ReadPod { id: ExecutorId, watermark: Watermark },
    /// PATCH this pod, with its uid as a precondition.
    Patch { uid: Uid, name: String, patch: Patch },
    /// LIST in addition to the watch, because a decision needs the current state now.
    Poll,
    /// PATCH the annotations that keep autoscalers from ending this pod, or remove them, with its uid as a
    /// precondition.
    Protect { id: ExecutorId, uid: Uid, name: String, is_protected: bool },
    /// Write these facts into the record.
    Record { facts: Vec<Fact> },
    /// The snapshot is invalid: the watcher must LIST and then watch from that version.
    Relist,
    /// PATCH the main container's memory to this step of `pod`, in place, with the pod's uid as a precondition.
    Resize { id: ExecutorId, uid: Uid, name: String, step: u32, pod: Arc<PodText> },
    /// Store the id high water on the server.
    ReserveIds { up_to: ExecutorId },
}

/// A decision that ends the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunVerdict {
    /// All groups have done their work (exit 0), or some of it was given up (exit 10).
    AllEnded { n_given_up: u32 },
    /// The driver made no call for longer than `driver.silence` (exit 14).
    DriverSilent { silence_ms: u64 },
    /// The driver cannot be started (exit 2).
    DriverNotStarted { message: String },
    /// A failure budget is exhausted (exit 11).
    BudgetExhausted { budget: Budget, why: Exhaustion },
    /// Missing permissions or a missing namespace at start (exit 3).
    NotAllowed { message: String },
    /// The API server did not answer at start (exit 3).
    NotReachable { message: String },
    /// Another driver of the application holds the application's Lease (exit 13). The executors are
    /// left to that driver.
    TakenOver { holder: String },
    /// The server refuses a group's template before any executor of the group existed (exit 4).
    TemplateRefused { group: GroupName, message: String },
}
