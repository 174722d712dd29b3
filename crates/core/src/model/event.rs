//! The events that posse reports, as values. `wire/` writes them as JSON.

use std::net::IpAddr;
use std::sync::Arc;

use crate::model::act::Act;
use crate::model::ids::{ExecutorId, GroupName, Uid};
use crate::model::named::named;
use crate::model::takeover::Takeover;
use crate::model::task::TaskEnd;
use crate::model::waiting::Waiting;
use posse_base::time::Millis;

named! {
    /// Why an executor was lost. `as_str` has the documented names.
    #[derive(PartialOrd, Ord)]
    pub enum LossReason {
        /// The kubelet rejected the pod: the node was full, a node label changed or a device
        /// disappeared.
        AdmissionRejected = "admission_rejected",
        /// The main container ended with an exit code other than 0.
        AppError = "app_error",
        /// The main container ended with exit code 0, and posse did not end it.
        Completed = "completed",
        /// The pod cannot start as it is specified: missing command, failing init container, missing
        /// secret, or a security profile that the node does not have.
        ConfigError = "config_error",
        /// The pod ran longer than its `activeDeadlineSeconds`.
        DeadlineExceeded = "deadline_exceeded",
        /// The pod was deleted, but not by posse.
        Deleted = "deleted",
        /// The driver lost its connection, and the pod's status does not tell why.
        Disconnected = "disconnected",
        /// The pod used more ephemeral storage than its own limits allow.
        DiskExceeded = "disk_exceeded",
        /// Evicted: node pressure, a drain or the eviction API.
        Evicted = "evicted",
        /// The image could not be pulled within half of `start_timeout`.
        ImageError = "image_error",
        /// The driver received no heartbeat for longer than `heartbeat.timeout`, or says so in a kill call.
        HeartbeatTimeout = "heartbeat_timeout",
        /// The driver or a person ended it by a kill call.
        Killed = "killed",
        /// The executor reached the group's `max_age`. Reported as `deadline_exceeded`, but charged to
        /// no budget.
        MaxAge = "deadline_exceeded",
        /// The node was unreachable for too long, or was deleted.
        NodeLost = "node_lost",
        /// The node was shut down (graceful node shutdown, KEP-2000).
        NodeShutdown = "node_shutdown",
        /// The container exceeded its memory limit, or the kubelet evicted its pod because the node had little
        /// memory and the container used more than it asked for.
        OomKilled = "oom_killed",
        /// Preempted by a pod of higher priority.
        Preempted = "preempted",
        /// The executor was not running within `start_timeout`, and the pod's status does not tell why.
        StartTimeout = "start_timeout",
        /// The pod's status does not tell the reason.
        Unknown = "unknown",
    }
}

named! {
    /// The budget that a loss is charged to.
    #[derive(PartialOrd, Ord)]
    pub enum Budget {
        /// Failures of the application.
        App = "app",
        /// Failures of the cluster.
        Cluster = "cluster",
        /// Failures before the executor ran.
        Start = "start",
    }
}

impl LossReason {
    /// The budget that a loss for this reason is charged to, unless one node is to blame for it.
    pub fn budget(self) -> Option<Budget> {
        match self {
            Self::AppError
            | Self::DeadlineExceeded
            | Self::DiskExceeded
            | Self::HeartbeatTimeout
            | Self::OomKilled => Some(Budget::App),
            // What the application did not do, may go on for ever.
            Self::AdmissionRejected
            | Self::Completed
            | Self::Deleted
            | Self::Disconnected
            | Self::Evicted
            | Self::NodeLost
            | Self::NodeShutdown
            | Self::Preempted
            | Self::Unknown => Some(Budget::Cluster),
            Self::ConfigError | Self::ImageError | Self::StartTimeout => Some(Budget::Start),
            // Somebody asked for it.
            Self::Killed | Self::MaxAge => None,
        }
    }

    /// True if the application, its image or its configuration caused the loss.
    pub fn caused_by_app(self) -> bool {
        self.budget().is_some_and(Budget::is_of_app)
    }

    /// True if posse ended the executor, by the driver's word or by its age.
    pub fn is_by_posse(self) -> bool {
        matches!(self, Self::Disconnected | Self::Killed | Self::MaxAge)
    }
}

impl Budget {
    /// True if it counts what the application, its image or its configuration caused.
    pub fn is_of_app(self) -> bool {
        matches!(self, Self::App | Self::Start)
    }
}

/// Why a failure budget ends the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exhaustion {
    /// More executors were lost within the window than it allows.
    Losses,
    /// By `auto`: so many executors of the group, one after the other, failed within a minute.
    CrashLoop { group: GroupName, n_tries: u32 },
    /// By `auto`: executors of the group fail to start, and none has run for so long.
    NeverStarted { group: GroupName, ms: u64 },
}

named! {
    /// Why a watch was restarted, for counters: the text of the event `watch_restarted` has the details.
    #[derive(PartialOrd, Ord)]
    pub enum RestartKind {
        /// The connection was cut.
        Cut = "cut",
        /// The version was too old (410).
        Expired = "expired",
        /// No byte arrived within the idle timeout.
        Idle = "idle",
        /// A line was invalid or too long.
        InvalidLine = "invalid_line",
        /// The LIST failed.
        ListFailed = "list_failed",
        /// The inbox was full.
        Overrun = "overrun",
        /// The server refused the watch, or was not reached.
        Refused = "refused",
        /// A resourceVersion rollback.
        Rollback = "rollback",
        /// The server sent an ERROR event.
        ServerError = "server_error",
        /// The server ended the watch at once, without an event.
        Short = "short",
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

named! {
    /// Why posse deleted an executor's pod.
    pub enum DeleteCause {
        /// A call cancelled its task.
        Cancelled = "cancelled",
        /// A pod that must not exist: a second pod with one id, a pod without posse's labels, or a pod
        /// whose create was cancelled.
        Condemned = "condemned",
        /// Fewer executors than `gang.min` ran together for too long, so posse gave all of them back.
        GangGivenBack = "gang_given_back",
        /// Another executor of its group was lost (`on_loss: group`).
        GroupRestarted = "group_restarted",
        /// A kill call.
        Killed = "killed",
        ScaledDown = "scaled_down",
        Stopped = "stopped",
        /// The pod found no node, and avoided nodes that may be used again, or another group had a
        /// right to its place under `pending_max`.
        Unplaced = "unplaced",
    }
}

/// One event. The writer adds `run`, `seq` and `time`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Run(RunEvent),
    Cluster(ClusterEvent),
    Group(GroupName, GroupEvent),
    Executor(Subject, ExecutorEvent),
}

/// An event of the whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// A call has changed the run.
    Acted(Act),
    /// A failure budget is exhausted; the run ends.
    BudgetExhausted { budget: Budget, why: Exhaustion },
    /// Credentials could not be renewed. The next try is at `until`.
    CredentialsFailed { name: String, message: String, until: Millis },
    /// Credentials were renewed and stored. `expires`: none if nobody knows. They are renewed again at
    /// `until`.
    CredentialsRenewed { name: String, expires: Option<Millis>, until: Millis },
    /// The run goes on with executors of an earlier process: the first of them by id, and how many there are.
    Adopted { executors: Vec<ExecutorId>, count: usize },
    /// Events were dropped because the reader was too slow.
    Missed { count: u64 },
    /// The run starts.
    Started,
    /// The run has ended. `count`: pods that are not confirmed deleted.
    Stopped { count: usize },
    /// The run begins to end.
    Stopping,
    /// This process stood by, and goes on with the run of another.
    TookOver(Takeover),
}

/// An event of the API server, of a node, or of a pod that is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterEvent {
    /// A pod has the labels of this run's executors, but posse did not create it: it is left alone.
    /// Reported once for each pod. `message` says how posse knows.
    ForeignPod { pod: String, uid: Uid, message: String },
    /// New executors avoid a node that lost several executors. `reason`: that of the last loss.
    NodeAvoided { node: String, until: Millis, reason: LossReason },
    /// Requests to the API server succeed again. `since`: when they began to fail.
    ServerAvailable { since: Millis },
    /// Requests to the API server fail: it does not answer, or it refuses. posse tries again, and what runs
    /// runs on.
    ServerUnavailable { message: String },
    /// The watch was restarted.
    WatchRestarted { kind: RestartKind, cause: String },
}

/// An event of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupEvent {
    /// The server refused to create an executor, or failed to. Reported once for each cause, not for
    /// each try. `message` is the server's.
    CreateRefused { cause: &'static str, message: String },
    /// Too few executors ran together for too long (`gang`): posse ends all of them, and creates none until
    /// `until`. `running` of `min` ran.
    GangGivenBack { running: u32, min: u32, until: Millis },
    /// As many executors as the gang needs run together, for the first time or again.
    GangRunning { running: u32, min: u32 },
    /// A loss ends all executors of the group (`on_loss: group`). `attempt`: the number of the next
    /// attempt; the first one is 1.
    Restarted { attempt: u32 },
    /// The group's target has changed.
    TargetChanged { target: u32 },
    /// A task has ended, once for each key in a process. `executor`: the one that worked on it last.
    TaskEnded { key: Arc<str>, executor: Option<ExecutorId>, attempts: u32, end: TaskEnd },
    /// An executor with work is not protected any more (`protect: busy`), or, without an executor, none is.
    /// `message` says why.
    Unprotected { executor: Option<ExecutorId>, message: String },
    /// Why the group waits. Reported if the reason changes.
    Waiting { waiting: Waiting, until: Option<Millis>, message: Option<String> },
}

/// An event of one executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutorEvent {
    /// Its main container ended with 0, and its work is done (`restart`).
    Completed { node: Option<String> },
    /// posse ended it, and its pod is gone.
    Deleted { cause: DeleteCause },
    /// It is to be deleted at `until`, if it has not ended by itself before.
    Draining { cause: DeleteCause, until: Millis },
    /// Somebody else has announced its end, and it still runs: it has until `deadline` at least. Comes once, before
    /// `Lost`. `reason`: that of the loss, as far as it can be known before.
    Ending { node: Option<String>, reason: LossReason, message: String, deadline: Millis },
    /// Its last log lines, after a loss that was charged to the budget `app`. Follows `Lost`.
    /// `message`: why there are no lines.
    Log { lines: Vec<String>, message: Option<String> },
    /// It ended or stopped being capacity, and posse was not ending it.
    /// `budget`: the one that it was charged to, or would be if it were not the loss of a task.
    Lost {
        node: Option<String>,
        reason: LossReason,
        budget: Option<Budget>,
        exit_code: Option<i32>,
        message: String,
    },
    /// It gets more memory than the template says: it replaces another one that was killed for its memory, or it runs
    /// and uses nearly all that it has. `message`: why it does not have it yet, or does not get it.
    MemoryGrown { memory: String, message: Option<String> },
    /// It runs and is ready for the first time: its pod is (condition `Ready`), and with
    /// `heartbeat.timeout` the driver has reported it.
    Ready,
    /// Its first create request was sent.
    Requested,
    /// Its main container runs.
    Running {
        node: Option<String>,
        ip: Option<IpAddr>,
        host_ip: Option<IpAddr>,
        /// When it was requested; none if an earlier run did that.
        requested_at: Option<Millis>,
    },
    /// It was created in `slot` although slot `skipped` is lower and its volumes are there: the
    /// executor that has it did not end within a minute.
    SlotSkipped { slot: u32, skipped: u32, held_by: ExecutorId },
}

impl Event {
    /// The length of the texts that may be long: messages and log lines, in bytes.
    pub fn long_text_bytes(&self) -> usize {
        match self {
            Self::Run(event) => match event {
                RunEvent::Acted(act) => act.message.len(),
                RunEvent::CredentialsFailed { message, .. } => message.len(),
                RunEvent::Adopted { .. }
                | RunEvent::BudgetExhausted { .. }
                | RunEvent::CredentialsRenewed { .. }
                | RunEvent::Missed { .. }
                | RunEvent::Started
                | RunEvent::Stopped { .. }
                | RunEvent::Stopping
                | RunEvent::TookOver(_) => 0,
            },
            Self::Cluster(event) => match event {
                ClusterEvent::ForeignPod { message, .. }
                | ClusterEvent::ServerUnavailable { message }
                | ClusterEvent::WatchRestarted { cause: message, .. } => message.len(),
                ClusterEvent::NodeAvoided { .. } | ClusterEvent::ServerAvailable { .. } => 0,
            },
            Self::Group(_, event) => match event {
                GroupEvent::CreateRefused { message, .. }
                | GroupEvent::Unprotected { message, .. } => message.len(),
                GroupEvent::Waiting { message, .. } => message.as_ref().map_or(0, String::len),
                GroupEvent::GangGivenBack { .. }
                | GroupEvent::GangRunning { .. }
                | GroupEvent::Restarted { .. }
                | GroupEvent::TargetChanged { .. }
                | GroupEvent::TaskEnded { .. } => 0,
            },
            Self::Executor(_, event) => match event {
                ExecutorEvent::Log { lines, message } => {
                    let n_bytes = |line: &String| size_of::<String>() + line.len();
                    lines.iter().chain(message).map(n_bytes).sum()
                }
                ExecutorEvent::Ending { message, .. } | ExecutorEvent::Lost { message, .. } => {
                    message.len()
                }
                ExecutorEvent::MemoryGrown { message, .. } => {
                    message.as_ref().map_or(0, String::len)
                }
                ExecutorEvent::Completed { .. }
                | ExecutorEvent::Deleted { .. }
                | ExecutorEvent::Draining { .. }
                | ExecutorEvent::Ready
                | ExecutorEvent::Requested
                | ExecutorEvent::Running { .. }
                | ExecutorEvent::SlotSkipped { .. } => 0,
            },
        }
    }
}
