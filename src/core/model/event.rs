//! The events that posse reports, as values. `wire/` writes them as JSON.

use std::net::IpAddr;

use crate::core::model::ids::{ExecutorId, GroupName, Uid};
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;

/// Why an executor was lost. `as_str` has the documented names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossReason {
    /// The kubelet rejected the pod: the node was full, a node label changed or a device
    /// disappeared.
    AdmissionRejected,
    /// The main container ended with an exit code other than 0.
    AppError,
    /// The main container ended with exit code 0, and posse did not end it.
    Completed,
    /// The pod cannot start as it is specified: missing command, failing init container, missing
    /// secret, or a security profile that the node does not have.
    ConfigError,
    /// The pod ran longer than its `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// The pod was deleted, but not by posse.
    Deleted,
    /// The driver lost its connection, and the pod's status does not tell why.
    Disconnected,
    /// The pod used more ephemeral storage than its own limits allow.
    DiskExceeded,
    /// Evicted: node pressure, a drain or the eviction API.
    Evicted,
    /// The image could not be pulled within `image_timeout`.
    ImageError,
    /// The driver received no heartbeat for longer than `heartbeat.timeout`.
    HeartbeatTimeout,
    /// The driver or a person ended it by a kill call.
    Killed,
    /// The executor reached the group's `max_age`. Reported as `deadline_exceeded`, but charged to
    /// no budget.
    MaxAge,
    /// The node was unreachable for too long, or was deleted.
    NodeLost,
    /// The node was shut down (graceful node shutdown, KEP-2000).
    NodeShutdown,
    /// The container exceeded its memory limit.
    OomKilled,
    /// Preempted by a pod of higher priority.
    Preempted,
    /// The executor was not running within `start_timeout`, and the pod's status does not tell why.
    StartTimeout,
    /// The pod's status does not tell the reason.
    Unknown,
}

/// The budget that a loss is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Budget {
    /// Failures of the application.
    App,
    /// Failures of the cluster.
    Cluster,
    /// Failures before the executor ran.
    Start,
}

impl LossReason {
    /// The documented name of the reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AdmissionRejected => "admission_rejected",
            Self::AppError => "app_error",
            Self::Completed => "completed",
            Self::ConfigError => "config_error",
            Self::DeadlineExceeded | Self::MaxAge => "deadline_exceeded",
            Self::Deleted => "deleted",
            Self::Disconnected => "disconnected",
            Self::DiskExceeded => "disk_exceeded",
            Self::Evicted => "evicted",
            Self::ImageError => "image_error",
            Self::HeartbeatTimeout => "heartbeat_timeout",
            Self::Killed => "killed",
            Self::NodeLost => "node_lost",
            Self::NodeShutdown => "node_shutdown",
            Self::OomKilled => "oom_killed",
            Self::Preempted => "preempted",
            Self::StartTimeout => "start_timeout",
            Self::Unknown => "unknown",
        }
    }

    /// The budget that the loss is charged to, if any.
    pub fn budget(self) -> Option<Budget> {
        match self {
            Self::AppError
            | Self::DeadlineExceeded
            | Self::DiskExceeded
            | Self::HeartbeatTimeout
            | Self::OomKilled => Some(Budget::App),
            Self::AdmissionRejected
            | Self::Evicted
            | Self::NodeLost
            | Self::NodeShutdown
            | Self::Preempted => Some(Budget::Cluster),
            Self::ConfigError | Self::ImageError | Self::StartTimeout => Some(Budget::Start),
            Self::Completed
            | Self::Deleted
            | Self::Disconnected
            | Self::Killed
            | Self::MaxAge
            | Self::Unknown => None,
        }
    }

    /// True if the application, its image or its configuration caused the loss.
    pub fn caused_by_app(self) -> bool {
        matches!(self.budget(), Some(Budget::App | Budget::Start))
    }
}

impl Budget {
    /// The documented name of the budget.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Cluster => "cluster",
            Self::Start => "start",
        }
    }
}

/// The executor that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub group: GroupName,
    pub id: ExecutorId,
    /// The pod's uid; none before the server has assigned one.
    pub uid: Option<Uid>,
    /// The pod's name.
    pub pod: String,
}

/// Why posse deleted an executor's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteCause {
    /// A pod that must not exist: a second pod with one id, a pod without posse's labels, or a pod
    /// whose create was cancelled.
    Condemned,
    /// A kill call.
    Killed,
    ScaledDown,
    Stopped,
    /// The pod found no node, and avoided nodes that may be used again, or another group had a
    /// right to its place under `pending_max`.
    Unplaced,
}

impl DeleteCause {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Condemned => "condemned",
            Self::Killed => "killed",
            Self::ScaledDown => "scaled_down",
            Self::Stopped => "stopped",
            Self::Unplaced => "unplaced",
        }
    }
}

/// One event. The writer adds `run`, `seq` and `time`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A failure budget is exhausted; the run ends.
    BudgetExhausted { budget: Budget },
    /// The server refused to create an executor, or failed to. Reported once for each cause, not for
    /// each try. `message` is the server's.
    CreateRefused { group: GroupName, cause: &'static str, message: String },
    /// The pod of an executor that posse ended is gone.
    ExecutorDeleted { subject: Subject, cause: DeleteCause },
    /// An executor is to be deleted at `until`, if it has not ended by itself before.
    ExecutorDraining { subject: Subject, cause: DeleteCause, until: Millis },
    /// The last log lines of an executor whose loss was charged to the budget `app`. Follows
    /// `ExecutorLost`. `message`: why there are no lines.
    ExecutorLog { subject: Subject, lines: Vec<String>, message: Option<String> },
    /// An executor that posse was not ending ended, or stopped being capacity.
    ExecutorLost {
        subject: Subject,
        node: Option<String>,
        reason: LossReason,
        exit_code: Option<i32>,
        message: String,
    },
    /// The first create request of an executor was sent.
    ExecutorRequested { subject: Subject },
    /// The main container runs.
    ExecutorRunning { subject: Subject, node: Option<String>, ip: Option<IpAddr> },
    /// A pod has the labels of this run's executors, but posse did not create it: it is left alone.
    /// Reported once for each pod. `message` says how posse knows.
    ForeignPod { pod: String, uid: Uid, message: String },
    /// A replacement got more memory than the template says, after an OOM kill.
    MemoryGrown { subject: Subject, memory: String },
    /// Events were dropped because the reader was too slow.
    Missed { count: u64 },
    /// New executors avoid a node that lost several executors. `reason`: that of the last loss.
    NodeAvoided { node: String, until: Millis, reason: LossReason },
    /// The API server answers again. `since`: when it had stopped.
    ServerAvailable { since: Millis },
    /// The API server does not answer. posse waits, and what runs runs on.
    ServerUnavailable { message: String },
    /// The run starts.
    Started,
    /// The run has ended.
    Stopped,
    /// The run begins to end.
    Stopping,
    /// A group's target has changed.
    TargetChanged { group: GroupName, target: u32 },
    /// Why a group waits. Reported if the reason changes.
    Waiting { group: GroupName, waiting: Waiting, until: Option<Millis>, message: Option<String> },
    /// The watch was restarted.
    WatchRestarted { cause: String },
}

impl Event {
    /// The length of the texts that may be long: messages and log lines, in bytes.
    pub fn long_text_bytes(&self) -> usize {
        match self {
            Self::CreateRefused { message, .. }
            | Self::ExecutorLost { message, .. }
            | Self::ForeignPod { message, .. }
            | Self::ServerUnavailable { message }
            | Self::WatchRestarted { cause: message } => message.len(),
            Self::ExecutorLog { lines, message, .. } => {
                let n_bytes = |line: &String| size_of::<String>() + line.len();
                lines.iter().chain(message).map(n_bytes).sum()
            }
            Self::Waiting { message, .. } => message.as_ref().map_or(0, String::len),
            Self::BudgetExhausted { .. }
            | Self::ExecutorDeleted { .. }
            | Self::ExecutorDraining { .. }
            | Self::ExecutorRequested { .. }
            | Self::ExecutorRunning { .. }
            | Self::MemoryGrown { .. }
            | Self::Missed { .. }
            | Self::NodeAvoided { .. }
            | Self::ServerAvailable { .. }
            | Self::Started
            | Self::Stopped
            | Self::Stopping
            | Self::TargetChanged { .. } => 0,
        }
    }
}
