//! Owns the reasons for doing nothing. Who waits for what is `plan`'s.

/// Why nothing (more) is done for a group now. The names are the contract's, in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiting {
    /// What was adopted is kept until its target was set in this run, or the hold is over.
    AdoptHold,
    /// Its executors died young; one is sent to see.
    Backoff,
    /// Containers cannot be made or started as they are written.
    ConfigError,
    /// The driver has not said that it is ready.
    DriverReady,
    /// Nothing is known yet: the first LIST is not complete.
    FirstList,
    /// Somebody holds its pods back by scheduling gates.
    Gated,
    /// The next block of ids is not reserved yet.
    Ids,
    /// Images cannot be pulled.
    ImageError,
    /// As many requests are under way as the server takes now.
    InFlight,
    /// The instance is not ours now.
    Lease,
    /// `allocation.pending_max` is reached.
    PendingLimit,
    /// The server refuses the template or our rights for good; asked again now and then.
    Permanent,
    /// A quota is full.
    Quota,
    /// A lost executor's successor waits until its predecessor is gone (`replace: gone`).
    ReplaceGone,
    /// The target is below what runs, and the group's own driver chooses whom to end.
    ScaleDownPending,
    /// The snapshot is known to be wrong; a new one is on its way.
    StaleSnapshot,
    /// The server is overloaded or out of reach.
    Server,
    /// An executor was not running in time; one is sent to see.
    StartTimeout,
    /// What its pods are is not known to this run: it was found, and not PUT again.
    Template,
    /// The scheduler finds no node.
    Unschedulable,
}

impl Waiting {
    /// The name used in events and status.
    #[must_use]
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
            Self::Template => "template",
            Self::Unschedulable => "unschedulable",
        }
    }
}
