//! What owns the pods of a run.

use crate::model::ids::Uid;

/// What owns the executors of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnerKind {
    /// The driver's pod.
    Pod,
    /// The Job of the driver's pods: its executors outlive each of them.
    Job,
}

/// What an owner reference names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub kind: OwnerKind,
    pub name: String,
    pub uid: Uid,
}
