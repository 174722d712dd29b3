//! The status of a run as the status call returns it. `wire/` writes it as JSON.

use std::net::IpAddr;
use std::sync::Arc;

use crate::model::ids::{ExecutorId, GroupName, Uid};
use crate::model::named::named;
use crate::model::settings::ScaleDown;
use crate::model::waiting::{Limits, Waiting};
use posse_base::time::Millis;

named! {
    /// The state of an executor. `as_str` has the documented names.
    #[derive(PartialOrd, Ord)]
    pub enum State {
        /// Requested; its pod was not seen yet.
        Requested = "requested",
        /// The pod exists; its main container does not run yet.
        Pending = "pending",
        /// The main container runs.
        Running = "running",
        /// posse ends it, or will do so because its driver has lost it; not deleted yet. Not capacity.
        Draining = "draining",
        /// The pod has a deletionTimestamp, or has ended and is being deleted. Not capacity.
        Terminating = "terminating",
        /// Failed, and its pod is retained (`keep_failed`).
        Failed = "failed",
        /// Its main container ended with 0, and its work is done (`restart`). Its pod stays as the record.
        Completed = "completed",
    }
}

/// The status of one group: a copy that other threads read, while the group itself (`state::executors::Group`) is the
/// reconciler's alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    pub group: GroupName,
    pub target: u32,
    /// How many executors it should have: the target, and one for each task that may run, up to `max`.
    pub wanted: u32,
    pub min: u32,
    /// None: no maximum.
    pub max: Option<u32>,
    pub requested: u32,
    pub pending: u32,
    pub running: u32,
    /// Those of the running ones whose pods are ready.
    pub ready: u32,
    pub draining: u32,
    pub terminating: u32,
    pub failed: u32,
    /// The executors whose work is done, also those whose pods are gone.
    pub completed: u32,
    /// `completions` of the group, if it has one.
    pub completions: Option<u32>,
    /// Tasks that have not ended.
    pub open_tasks: usize,
    /// Tasks that have ended and are remembered.
    pub ended_tasks: usize,
    /// The number of the group's attempt, from 1; none without `on_loss: group`.
    pub attempt: Option<u32>,
    /// Losses reported since the start of the run.
    pub lost: u64,
    pub scale_down: ScaleDown,
    /// Why nothing more is done for the group now; none if it is at its target.
    pub waiting: Option<Waiting>,
    /// Since when it waits for that.
    pub since: Option<Millis>,
    /// When the wait ends by itself, if it does.
    pub until: Option<Millis>,
    /// The server's message about what the group waits for.
    pub message: Option<String>,
    /// All that holds it back.
    pub limits: Limits,
}

/// The status of one executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorStatus {
    pub id: ExecutorId,
    pub group: GroupName,
    /// None if an adopted pod has no slot label, or another executor has the same slot.
    pub slot: Option<u32>,
    /// The key of the task that it works on.
    pub key: Option<Arc<str>>,
    pub uid: Option<Uid>,
    pub state: State,
    /// It runs, its pod is ready (condition `Ready`), and with `heartbeat.timeout` the driver has
    /// reported it.
    pub ready: bool,
    pub node: Option<Box<str>>,
    pub ip: Option<IpAddr>,
    /// The node's address.
    pub host_ip: Option<IpAddr>,
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
    /// What the run is told outlives this process.
    pub is_recorded: bool,
    /// The driver process, which the core does not know: `run` adds it.
    pub driver: Option<DriverStatus>,
}

/// The driver process of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverStatus {
    /// When it started, or when it ended.
    pub since: Millis,
    pub pid: u32,
    /// The exit code, if it has ended; 128 + signal number if a signal killed it.
    pub exit_code: Option<u8>,
}
