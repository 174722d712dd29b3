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
    /// The driver is not ready yet.
    DriverReady,
    /// The first LIST is not complete.
    FirstList,
    /// The pods have scheduling gates.
    Gated,
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
    /// More executors run than the target, and the driver chooses which to end (`scale_down:
    /// pending`).
    ScaleDownPending,
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
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AdoptHold => "adopt_hold",
            Self::Backoff => "backoff",
            Self::ConfigError => "config_error",
            Self::DriverReady => "driver_ready",
            Self::FirstList => "first_list",
            Self::Gated => "gated",
            Self::Ids => "ids",
            Self::ImageError => "image_error",
            Self::InFlight => "in_flight",
            Self::Lease => "lease",
            Self::PendingLimit => "pending_limit",
            Self::Permanent => "permanent",
            Self::Quota => "quota",
            Self::ReplaceGone => "replace_gone",
            Self::ScaleDownPending => "scale_down_pending",
            Self::Server => "server",
            Self::StartTimeout => "start_timeout",
            Self::StaleSnapshot => "stale_snapshot",
            Self::Stopping => "stopping",
            Self::Template => "template",
            Self::Unschedulable => "unschedulable",
        }
    }
}
