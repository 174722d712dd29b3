//! Owns what posse tells the world: the events of the contract, as values. Their JSON is `wire/`'s.

use std::net::IpAddr;

use crate::core::model::ids::{ExecutorId, GroupName, Uid};
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;

/// Why an executor was lost. The names are the contract's, in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossReason {
    /// The kubelet would not have the pod: no room left on the node, a label that changed, a device
    /// that is gone.
    AdmissionRejected,
    /// The deciding container ended with a code other than 0.
    AppError,
    /// It ended with 0, unasked.
    Completed,
    /// It could not be started as it is written: no such command, a failing init container, a
    /// secret that is not there, a security profile that the node does not have.
    ConfigError,
    /// The pod ran longer than its `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// Somebody deleted it, or it vanished.
    Deleted,
    /// The driver lost it, and nothing in its pod tells why.
    Disconnected,
    /// The cluster made room: node pressure, a drain, the eviction API.
    Evicted,
    /// Its image could not be pulled in time.
    ImageError,
    /// The driver has not heard from it for too long.
    HeartbeatTimeout,
    /// The driver asked for its end.
    Killed,
    /// It grew as old as its group lets it (`max_age`): the contract's `deadline_exceeded` too, and
    /// nobody's fault.
    MaxAge,
    /// The node was out of reach for too long, or is gone.
    NodeLost,
    /// The node was shut down.
    NodeShutdown,
    /// The memory limit was reached.
    OomKilled,
    /// The cluster made room for a pod of higher priority.
    Preempted,
    /// It was not running in time, and nothing tells why.
    StartTimeout,
    /// None of the others can be read from what the server tells.
    Unknown,
}

/// The budget that a loss is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Budget {
    /// The application's own doing.
    App,
    /// The cluster's doing.
    Cluster,
    /// It never started properly.
    Start,
}

impl LossReason {
    /// The contract's name of the reason.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AdmissionRejected => "admission_rejected",
            Self::AppError => "app_error",
            Self::Completed => "completed",
            Self::ConfigError => "config_error",
            Self::DeadlineExceeded | Self::MaxAge => "deadline_exceeded",
            Self::Deleted => "deleted",
            Self::Disconnected => "disconnected",
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

    /// The budget it is charged to, where it is charged at all.
    #[must_use]
    pub fn budget(self) -> Option<Budget> {
        match self {
            Self::AppError | Self::DeadlineExceeded | Self::HeartbeatTimeout | Self::OomKilled => {
                Some(Budget::App)
            }
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

    /// True where the application (or its image, its configuration) is to blame.
    #[must_use]
    pub fn caused_by_app(self) -> bool {
        matches!(self.budget(), Some(Budget::App | Budget::Start))
    }
}

impl Budget {
    /// The contract's name of the budget.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Cluster => "cluster",
            Self::Start => "start",
        }
    }
}

/// One executor as an event names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its group.
    pub group: GroupName,
    /// Its id.
    pub id: ExecutorId,
    /// Its pod's uid; none before the server gave one.
    pub uid: Option<Uid>,
    /// Its pod's name.
    pub pod: String,
}

/// Why posse deleted an executor's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteCause {
    /// A second pod under an id, a pod behind our labels' back, or one that came after its cancel.
    Condemned,
    /// The driver or a person asked for it.
    Killed,
    /// The target fell.
    ScaledDown,
    /// The run ended.
    Stopped,
    /// It found no node while it kept away from a bad one, which may be used again.
    Unplaced,
}

impl DeleteCause {
    /// The name used in events.
    #[must_use]
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

/// One event of the contract; `run`, `seq` and `time` are added where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A failure budget is spent; the application ends.
    BudgetExhausted { budget: Budget },
    /// The server refused an executor, in its own words. Said once per cause, not once per try.
    CreateRefused { group: GroupName, cause: &'static str, message: String },
    /// An executor that posse was ending is gone.
    ExecutorDeleted { subject: Subject, cause: DeleteCause },
    /// An executor was chosen to go, and has until then to end by itself.
    ExecutorDraining { subject: Subject, cause: DeleteCause, until: Millis },
    /// The last lines of an executor that was lost by the application's doing; follows its loss.
    /// `message`: why there are none.
    ExecutorLog { subject: Subject, lines: Vec<String>, message: Option<String> },
    /// An executor stopped being capacity, and posse was not ending it.
    ExecutorLost {
        subject: Subject,
        node: Option<String>,
        reason: LossReason,
        exit_code: Option<i32>,
        message: String,
    },
    /// A create was sent for the first time.
    ExecutorRequested { subject: Subject },
    /// Its deciding container runs.
    ExecutorRunning { subject: Subject, node: Option<String>, ip: Option<IpAddr> },
    /// A create was given more memory than its template says: one before it ran out of it.
    MemoryGrown { subject: Subject, memory: String },
    /// Events were dropped for a slow reader.
    Missed { count: u64 },
    /// New executors keep away from a node, which lost several by its own doing; the last of its
    /// losses is told.
    NodeAvoided { node: String, until: Millis, reason: LossReason },
    /// The loop is about to begin.
    Started,
    /// The run is over.
    Stopped,
    /// The run is ending.
    Stopping,
    /// A group's target is another now.
    TargetChanged { group: GroupName, target: u32 },
    /// A group waits, and for what; said when the reason changes.
    Waiting { group: GroupName, waiting: Waiting, until: Option<Millis>, message: Option<String> },
    /// The watch was begun anew.
    WatchRestarted { cause: String },
}
