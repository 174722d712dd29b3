//! The reasons why nothing is done for a group.

/// Why nothing (more) is done for a group now. `as_str` has the documented names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiting {
    /// Adopted executors are kept until the group's target was set in this run, or `adopt_hold` is
    /// over.
    AdoptHold,
    /// Crash loop: one executor is created as a probe.
    Backoff,
    /// Containers cannot be created or started as specified.
    ConfigError,
    /// Credentials are not there yet, or have expired.
    Credentials,
    /// The driver is not ready yet.
    DriverReady,
    /// The first LIST is not complete.
    FirstList,
    /// The pods have scheduling gates.
    Gated,
    /// Tasks wait for others to end: the group's `max` is reached.
    GroupMax,
    /// The next attempt waits until all executors of the one before have ended (`on_loss: group`).
    GroupRestart,
    /// The next block of ids is not reserved yet.
    Ids,
    /// Images cannot be pulled.
    ImageError,
    /// The create window is full.
    InFlight,
    /// The instance's Lease is not held.
    Lease,
    /// `allocation.pending_max` is reached.
    PendingLimit,
    /// The server refuses the template, or a permission is missing. Retried rarely.
    Permanent,
    /// A quota is full.
    Quota,
    /// The replacement waits until the pod of the lost executor is gone (`replace: gone`).
    ReplaceGone,
    /// The command that sets the target fails; the last target stays.
    ScaleCommand,
    /// More executors run than the target, and the driver chooses which to end (`scale_down:
    /// pending`).
    ScaleDownPending,
    /// The replacement waits until the executor that has its slot has ended (`slots: stable`).
    Slot,
    /// The snapshot is invalid until the next LIST.
    StaleSnapshot,
    /// The server fails, or is overloaded or unreachable: creates are sent again.
    Server,
    /// An executor was not running within `start_timeout`; one is created as a probe.
    StartTimeout,
    /// The run is ending.
    Stopping,
    /// The group's template is not known: its pods were adopted, and the group was not PUT in this
    /// run.
    Template,
    /// The scheduler finds no node.
    Unschedulable,
}

impl Waiting {
    /// All reasons.
    pub const ALL: [Self; 26] = [
        Self::AdoptHold,
        Self::Backoff,
        Self::ConfigError,
        Self::Credentials,
        Self::DriverReady,
        Self::FirstList,
        Self::Gated,
        Self::GroupMax,
        Self::GroupRestart,
        Self::Ids,
        Self::ImageError,
        Self::InFlight,
        Self::Lease,
        Self::PendingLimit,
        Self::Permanent,
        Self::Quota,
        Self::ReplaceGone,
        Self::ScaleCommand,
        Self::ScaleDownPending,
        Self::Server,
        Self::Slot,
        Self::StartTimeout,
        Self::StaleSnapshot,
        Self::Stopping,
        Self::Template,
        Self::Unschedulable,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::AdoptHold => "adopt_hold",
            Self::Backoff => "backoff",
            Self::ConfigError => "config_error",
            Self::Credentials => "credentials",
            Self::DriverReady => "driver_ready",
            Self::FirstList => "first_list",
            Self::Gated => "gated",
            Self::GroupMax => "max",
            Self::GroupRestart => "group_restart",
            Self::Ids => "ids",
            Self::ImageError => "image_error",
            Self::InFlight => "in_flight",
            Self::Lease => "lease",
            Self::PendingLimit => "pending_limit",
            Self::Permanent => "permanent",
            Self::Quota => "quota",
            Self::ReplaceGone => "replace_gone",
            Self::ScaleCommand => "scale_command",
            Self::ScaleDownPending => "scale_down_pending",
            Self::Server => "server",
            Self::StartTimeout => "start_timeout",
            Self::Slot => "slot",
            Self::StaleSnapshot => "stale_snapshot",
            Self::Stopping => "stopping",
            Self::Template => "template",
            Self::Unschedulable => "unschedulable",
        }
    }

    /// What the group waits for, and an explanation, which may be empty. For sentences such as `waiting
    /// for quota`.
    pub fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::AdoptHold => {
                ("its target to be set again", "until then, adopted executors are kept")
            }
            Self::Backoff => {
                ("a backoff", "its executors crashed soon after the start; one is tried at a time")
            }
            Self::ConfigError => (
                "a valid container configuration",
                "containers cannot be started as configured; one executor is tried at a time",
            ),
            Self::Credentials => (
                "valid credentials",
                "they are not there yet, or have expired and cannot be renewed now",
            ),
            Self::DriverReady => ("the driver", "it has not reported that it is ready"),
            Self::FirstList => ("the first list", "the existing pods are not known yet"),
            Self::Gated => {
                ("scheduling gates to be removed", "another component added them to the pods")
            }
            Self::GroupMax => ("other tasks to end", "the group's max is reached"),
            Self::GroupRestart => (
                "the executors of the attempt before to end",
                "a loss restarts the whole group (on_loss: group)",
            ),
            Self::Ids => ("executor ids", "the next block of ids is not reserved yet"),
            Self::ImageError => ("an image that can be pulled", "one executor is tried at a time"),
            Self::InFlight => ("answers", "the limit of concurrent requests is reached"),
            Self::Lease => ("the lease", "this run does not hold it now"),
            Self::PendingLimit => ("pending executors to run", "allocation.pending_max is reached"),
            Self::Permanent => (
                "a valid template or the permissions",
                "the server refuses the pods; retried from time to time",
            ),
            Self::Quota => ("quota", ""),
            Self::ReplaceGone => ("lost executors to be deleted", "replace: gone"),
            Self::ScaleCommand => {
                ("the command that sets its target", "it fails, and the last target stays")
            }
            Self::ScaleDownPending => (
                "the driver to end executors",
                "with scale_down: pending, posse deletes no running executors",
            ),
            Self::Server => {
                ("the API server", "creates fail, or the server is overloaded or unreachable")
            }
            Self::Slot => ("a slot", "the executor that has it has not ended yet"),
            Self::StartTimeout => (
                "executors that start in time",
                "allocation.start_timeout was exceeded; one executor is tried at a time",
            ),
            Self::StaleSnapshot => ("a new list", "the known state is outdated"),
            Self::Stopping => ("nothing", "the run is ending"),
            Self::Template => (
                "its template",
                "the group is not in this run's file: PUT it again by the control API",
            ),
            Self::Unschedulable => ("the scheduler", "it finds no node for some pods"),
        }
    }
}
