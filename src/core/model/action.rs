//! Owns what the core wants done: values that `runtime/` carries out without a choice of its own.

use std::sync::Arc;

use crate::core::model::event::Budget;
use crate::core::model::ids::{ExecutorId, GroupName, Uid};
use crate::core::model::input::Watermark;
use crate::core::model::pod::Draining;
use crate::core::model::pod_text::{PodText, Shape};

/// What is written onto a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch {
    /// Its loss is reported and has spent its budget.
    Counted,
    /// It was chosen to go; with the key and the value of a label of the group's own.
    Draining(Draining, Option<(String, String)>),
}

/// One thing to do. Every action but `Poll` and `Relist` is answered by exactly one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// POST the pod of this executor.
    Create {
        id: ExecutorId,
        group: GroupName,
        slot: u32,
        shape: Shape,
        asked: Watermark,
        pod: Arc<PodText>,
    },
    /// DELETE this pod, this uid only; `grace_s` overrides the pod's own grace.
    Delete { uid: Uid, name: String, grace_s: Option<u32> },
    /// DELETE every executor pod of the instance; `spare_counted` leaves kept failed pods.
    DeleteAll { grace_s: u32, spare_counted: bool },
    /// GET the pod of this executor.
    Get { id: ExecutorId, asked: Watermark },
    /// GET a node: is it still there?
    GetNode { name: Box<str> },
    /// LIST, for the stop.
    List { asked: Watermark },
    /// GET the last `n_lines` lines of this pod's log; none: it has but one container.
    ReadLog { uid: Uid, name: String, container: Option<Box<str>>, n_lines: u32 },
    /// PATCH this pod, this uid only.
    Patch { uid: Uid, name: String, patch: Patch },
    /// LIST, beside the watch: whether anything has changed is to be known now.
    Poll,
    /// The snapshot is wrong: the watch has to LIST again and go on from there.
    Relist,
    /// Keep the id high water on the server.
    ReserveIds { up_to: ExecutorId },
}

/// A decision that ends the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunVerdict {
    /// The driver made no call for too long (exit 14).
    DriverSilent { silence_ms: u64 },
    /// The driver cannot be started (exit 2).
    DriverNotStarted { message: String },
    /// A failure budget is spent (exit 11).
    BudgetSpent(Budget),
    /// Our rights do not suffice, or the namespace is not there, at start (exit 3).
    NotAllowed { message: String },
    /// The API server did not answer at start (exit 3).
    NotReachable { message: String },
    /// Another driver of the application has its Lease now (exit 13): the executors are theirs to
    /// judge.
    TakenOver { holder: String },
    /// The server refuses the template of a group before any of its executors existed (exit 4).
    TemplateRefused { group: GroupName, message: String },
}
