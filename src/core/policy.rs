//! Owns the settings that decisions depend on, already checked. Reading them is `wire/`'s.

use crate::core::ids::GroupName;

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
    /// From the file or the flags (a refusal before any of its executors existed ends the run).
    pub from_file: bool,
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

/// The settings that decisions depend on. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub in_flight_max: u32,
    /// 0: no limit.
    pub pending_max: u32,
    /// A group's executors that the scheduler has called Unschedulable for over 2 min; 0: no limit.
    pub unschedulable_max: u32,
    pub adopt_hold_ms: u64,
    pub failures_app: FailureLimit,
    pub failures_cluster: FailureLimit,
    pub failures_start: FailureLimit,
    pub failures_window_ms: u64,
    pub keep_failed: u32,
    /// Lines of the log told after a loss by the application's doing; 0: none.
    pub log_lines: u32,
    /// What the executors get to end at stop.
    pub stop_timeout_ms: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            in_flight_max: 32,
            pending_max: 0,
            unschedulable_max: 0,
            adopt_hold_ms: 5 * 60_000,
            failures_app: FailureLimit::Auto,
            failures_cluster: FailureLimit::Off,
            failures_start: FailureLimit::Off,
            failures_window_ms: 60 * 60_000,
            keep_failed: 5,
            log_lines: 0,
            stop_timeout_ms: 10_000,
        }
    }
}
