//! Owns the settings that decisions depend on, already checked. Reading them is `wire/`'s.

use std::sync::Arc;

use crate::core::model::ids::GroupName;
use crate::core::model::pod_text::PodText;

/// Which executors a lower target may end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleDown {
    /// Any, in the written order.
    #[default]
    Any,
    /// Only those that do not run; running ones end by a kill call.
    Pending,
}

/// When a lost executor's successor is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replace {
    /// As soon as it is on its way out.
    #[default]
    Terminating,
    /// When its pod is really gone (full quotas).
    Gone,
}

/// How a running executor leaves that was chosen to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decommission {
    /// It is deleted after so long, where it has not ended by itself; milliseconds, never 0.
    pub after_ms: u64,
    /// Key and value of a label that its pod gets.
    pub label: Option<(String, String)>,
}

/// One group as the core sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    pub name: GroupName,
    pub target: u32,
    pub min: u32,
    /// None: no upper bound.
    pub max: Option<u32>,
    pub scale_down: ScaleDown,
    pub replace: Replace,
    /// What the deciding container's memory grows to after it ran out, step by step; empty: never.
    pub memory_steps: Vec<String>,
    /// None: whoever is chosen to go is deleted at once.
    pub decommission: Option<Decommission>,
    /// From the file or the flags (a refusal before any of its executors existed ends the run).
    pub from_file: bool,
    /// What its pods are; none: not known to this run, so none can be made.
    pub pod: Option<Arc<PodText>>,
}

impl GroupSpec {
    /// A group of none, without bounds, whose pods are not known.
    #[must_use]
    pub fn bare(name: GroupName) -> Self {
        Self {
            name,
            target: 0,
            min: 0,
            max: None,
            scale_down: ScaleDown::Any,
            replace: Replace::Terminating,
            memory_steps: Vec::new(),
            decommission: None,
            from_file: false,
            pod: None,
        }
    }
}

/// `failures.app` and its sisters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureLimit {
    /// The larger of 10 and twice the highest target within the window.
    Auto,
    /// The application ends when there are more.
    Max(u32),
    /// Never ends the application.
    Off,
}

/// `bad_nodes`: when new executors keep away from a node. Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadNodes {
    /// So many losses by the node's own doing within the window; 0: off.
    pub losses: u32,
    pub window_ms: u64,
    pub avoid_for_ms: u64,
    /// Never more than this many thousandths of the nodes seen.
    pub share_permille: u32,
}

impl Default for BadNodes {
    fn default() -> Self {
        Self { losses: 3, window_ms: 600_000, avoid_for_ms: 1_800_000, share_permille: 250 }
    }
}

/// The settings that decisions depend on. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub in_flight_max: u32,
    /// 0: no limit.
    pub pending_max: u32,
    /// A group's executors that the scheduler has called Unschedulable for over 2 min; 0: no limit.
    pub unschedulable_max: u32,
    /// From a pod's binding to the run of its deciding container; 0: no limit.
    pub start_timeout_ms: u64,
    /// From the first refusal of an image; 0: no limit.
    pub image_timeout_ms: u64,
    /// From the scheduler's first word that there is no node; 0: no limit.
    pub unschedulable_timeout_ms: u64,
    pub adopt_hold_ms: u64,
    pub bad_nodes: BadNodes,
    pub failures_app: FailureLimit,
    pub failures_cluster: FailureLimit,
    pub failures_start: FailureLimit,
    pub failures_window_ms: u64,
    pub keep_failed: u32,
    /// Lines of the log told after a loss by the application's doing; 0: none.
    pub log_lines: u32,
    /// What the executors get to end at stop.
    pub stop_timeout_ms: u64,
    /// An executor that the driver has not heard from for so long is lost; 0: never.
    pub heartbeat_timeout_ms: u64,
    /// So long the reason is looked for when the driver says that it lost an executor.
    pub reason_wait_ms: u64,
    /// A driver that makes no call for so long is gone; 0: it may be silent.
    pub driver_silence_ms: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            in_flight_max: 32,
            pending_max: 0,
            unschedulable_max: 0,
            start_timeout_ms: 10 * 60_000,
            image_timeout_ms: 5 * 60_000,
            unschedulable_timeout_ms: 0,
            adopt_hold_ms: 5 * 60_000,
            bad_nodes: BadNodes::default(),
            failures_app: FailureLimit::Auto,
            failures_cluster: FailureLimit::Off,
            failures_start: FailureLimit::Off,
            failures_window_ms: 60 * 60_000,
            keep_failed: 5,
            log_lines: 0,
            stop_timeout_ms: 10_000,
            heartbeat_timeout_ms: 0,
            reason_wait_ms: 30_000,
            driver_silence_ms: 0,
        }
    }
}
