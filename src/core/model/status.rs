//! Owns the picture of the run that status calls answer with. Its JSON is `wire/`'s.

use std::net::IpAddr;

use crate::core::model::ids::{ExecutorId, GroupName, Uid};
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;

/// Where an executor is in its life. The names are the contract's, in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Asked for; no pod has been seen yet.
    Requested,
    /// A pod whose deciding container does not run yet.
    Pending,
    /// The deciding container runs.
    Running,
    /// Chosen to go: no capacity any more, not yet deleted.
    Draining,
    /// On its way out: a deletionTimestamp is set, or it ended and its delete is under way.
    Terminating,
    /// Ended badly, and kept as evidence.
    Failed,
}

impl State {
    /// The contract's name of the state.
    #[must_use]
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

/// One group in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    pub group: GroupName,
    pub target: u32,
    pub min: u32,
    /// None: no upper bound.
    pub max: Option<u32>,
    pub requested: u32,
    pub pending: u32,
    pub running: u32,
    pub draining: u32,
    pub terminating: u32,
    pub failed: u32,
    /// Why nothing more is being done for it now; none where it is at its target.
    pub waiting: Option<Waiting>,
    /// When the wait ends by itself.
    pub until: Option<Millis>,
    /// The server's words for what holds the group back.
    pub message: Option<String>,
}

/// One executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorStatus {
    pub id: ExecutorId,
    pub group: GroupName,
    /// None where an adopted pod does not tell, or another holds the same.
    pub slot: Option<u32>,
    pub pod: String,
    pub uid: Option<Uid>,
    pub state: State,
    pub node: Option<String>,
    pub ip: Option<IpAddr>,
    /// When it entered the state.
    pub since: Millis,
}

/// The whole picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub groups: Vec<GroupStatus>,
    pub executors: Vec<ExecutorStatus>,
    /// The nodes that new executors keep away from, each with the time until when.
    pub avoided_nodes: Vec<(String, Millis)>,
}
