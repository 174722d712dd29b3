//! The status of a run as the status call returns it. `wire/` writes it as JSON.

use std::net::IpAddr;
use std::sync::Arc;

use crate::core::model::ids::{ExecutorId, GroupName, Uid};
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;

/// The state of an executor. `as_str` has the documented names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Requested; its pod was not seen yet.
    Requested,
    /// The pod exists; its main container does not run yet.
    Pending,
    /// The main container runs.
    Running,
    /// posse ends it; not deleted yet. Not capacity.
    Draining,
    /// The pod has a deletionTimestamp, or has ended and is being deleted. Not capacity.
    Terminating,
    /// Failed, and its pod is retained (`keep_failed`).
    Failed,
}

impl State {
    /// The documented name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Terminating => "terminating",
            Self::Failed => "failed",
        }
    }
}

/// The status of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    pub group: GroupName,
    pub target: u32,
    pub min: u32,
    /// None: no maximum.
    pub max: Option<u32>,
    pub requested: u32,
    pub pending: u32,
    pub running: u32,
    pub draining: u32,
    pub terminating: u32,
    pub failed: u32,
    /// Why nothing more is done for the group now; none if it is at its target.
    pub waiting: Option<Waiting>,
    /// Since when it waits for that.
    pub since: Option<Millis>,
    /// When the wait ends by itself, if it does.
    pub until: Option<Millis>,
    /// The server's message about what the group waits for.
    pub message: Option<String>,
}

/// The status of one executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorStatus {
    pub id: ExecutorId,
    pub group: GroupName,
    /// None if an adopted pod has no slot label, or another executor has the same slot.
    pub slot: Option<u32>,
    pub uid: Option<Uid>,
    pub state: State,
    pub node: Option<Box<str>>,
    pub ip: Option<IpAddr>,
    /// When the executor entered the state.
    pub since: Millis,
}

/// The executors of a range of ids, by id. All statuses share a block until one of its executors changes.
pub type ExecutorBlock = Arc<[ExecutorStatus]>;

/// The API server does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When the first request failed, or was sent and not answered.
    pub since: Millis,
    /// The last failure, in the server's or the network's words.
    pub message: String,
}

/// The status of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub groups: Vec<GroupStatus>,
    /// A pod's name is this prefix followed by the executor's id.
    pub pod_prefix: String,
    /// All executors, by id.
    pub executors: Vec<ExecutorBlock>,
    /// The nodes that new executors avoid, each with the end of that time.
    pub avoided_nodes: Vec<(String, Millis)>,
    pub outage: Option<Outage>,
}
