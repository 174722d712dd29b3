//! The reasons why nothing is done for a group.

use posse_base::time::Millis;

/// A reason to do less than is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How many may be created, or ended, at most.
    pub at_most: u32,
    pub waiting: Waiting,
    /// When it ends by itself, if it does.
    pub until: Option<Millis>,
}

/// A limit that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub limit: Limit,
    /// How many are wanted of what it limits.
    pub of: u32,
    /// Others are tighter, so it holds nothing back now.
    pub is_loose: bool,
}

impl Held {
    /// Only this is told.
    fn is_told(&self) -> bool {
        !self.is_loose && !self.limit.waiting.is_pace()
    }
}

/// All that holds back a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// How many it would create without these limits; 0: there are none. Creates that have failed count too.
    pub n_creates: u32,
    /// Why it does not, the tightest first.
    pub creates: Vec<Held>,
    /// The same for executors that are too many.
    pub n_ends: u32,
    pub ends: Vec<Limit>,
    /// Why executors do not come that were asked for. These limit nothing.
    pub starts: Vec<Limit>,
}

impl Limits {
    /// What is told of it: what limits most. The normal pace is told only if there is nothing else.
    pub fn told(&self) -> Option<Limit> {
        let told = self.creates.iter().find(|held| held.is_told()).map(|held| held.limit);
        let pace = || self.creates.iter().find(|held| !held.is_loose).map(|held| held.limit);
        let others = self.ends.first().or_else(|| self.starts.first()).copied();
        told.or(others).or_else(pace)
    }

    /// When limits end by themselves.
    pub fn untils(&self) -> impl Iterator<Item = Millis> {
        let creates = self.creates.iter().map(|held| &held.limit);
        creates.chain(&self.ends).chain(&self.starts).filter_map(|limit| limit.until)
    }
}

/// A reason that comes back within this time has gone on: while a probe of a quota is under way, or for the moment in
/// which a pod that ended has left room for one other, nothing is waited for.
pub const RESUMED_MS: u64 = 10_000;

/// The documented name of a reason, what the group waits for, and an explanation, which may be empty.
type Words = (&'static str, &'static str, &'static str);

/// Reasons, each with its words.
macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$of:meta])* $reason:ident: $word:literal, $what:literal, $why:literal;)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$of])* $reason),+ }

        impl $name {
            const ALL: &[Self] = &[$(Self::$reason),+];

            fn words(self) -> Words {
                match self { $(Self::$reason => ($word, $what, $why)),+ }
            }
        }
    };
}

/// Why nothing (more) is done for a group now. `as_str` has the documented names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    Run(RunWait),
    Server(ServerWait),
    Start(StartWait),
    Group(GroupWait),
}

reasons! {
    /// What this run lacks itself.
    RunWait {
        /// Credentials are not there yet, or have expired.
        Credentials: "credentials", "valid credentials",
            "they are not there yet, or have expired and cannot be renewed now";
        /// The driver is not ready yet.
        DriverReady: "driver_ready", "the driver", "it has not reported that it is ready";
        /// The first LIST is not complete.
        FirstList: "first_list", "the first list", "the existing pods are not known yet";
        /// The next block of ids is not reserved yet.
        Ids: "ids", "executor ids", "the next block of ids is not reserved yet";
        /// The instance's Lease is not held.
        Lease: "lease", "the lease", "this run does not hold it now";
        /// The snapshot is invalid until the next LIST.
        StaleSnapshot: "stale_snapshot", "a new list", "the known state is outdated";
        /// The run is ending.
        Stopping: "stopping", "nothing", "the run is ending";
    }
}

reasons! {
    /// How creates fare with the server.
    ServerWait {
        /// The server fails, or is overloaded or unreachable: creates are sent again.
        Failing: "server", "the API server to accept its pods",
            "creates fail, or the server is overloaded or unreachable";
        /// The create window is full.
        InFlight: "in_flight", "answers", "the limit of concurrent requests is reached";
        /// The server refuses the template, or a permission is missing. Retried rarely.
        Permanent: "permanent", "a valid template, what it names, or the permissions",
            "the server refuses the pods; retried from time to time";
        /// A quota is full.
        Quota: "quota", "quota", "";
    }
}

reasons! {
    /// Why executors that were requested do not run, or not for long.
    StartWait {
        /// Containers cannot be created or started as specified.
        ConfigError: "config_error", "a valid container configuration",
            "containers cannot be started as configured; one executor is tried at a time";
        /// Crash loop: one executor is created as a probe.
        CrashLoop: "backoff", "a backoff",
            "its executors crashed soon after the start; one is tried at a time";
        /// The pods have scheduling gates.
        Gated: "gated", "scheduling gates to be removed",
            "another component added them to the pods";
        /// Images cannot be pulled.
        ImageError: "image_error", "an image that can be pulled", "one executor is tried at a time";
        /// A queue has not admitted the pods.
        Queue: "queue", "its queue", "the queue has not admitted some pods";
        /// An executor was not running within `start_timeout`; one is created as a probe.
        Timeout: "start_timeout", "executors that start in time",
            "allocation.start_timeout was exceeded; one executor is tried at a time";
        /// The scheduler finds no node.
        Unschedulable: "unschedulable", "the scheduler", "it finds no node for some pods";
    }
}

reasons! {
    /// What settings of the group or the run ask for, or what only the driver or a person can do.
    GroupWait {
        /// Adopted executors are kept until the group's target was set in this run, or `adopt_hold` is
        /// over.
        AdoptHold: "adopt_hold", "its target to be set again",
            "until then, adopted executors are kept";
        /// Fewer executors than `gang.min` run together, or posse has given them back and tries again later.
        Gang: "gang", "its gang",
            "fewer executors than gang.min run together, and fewer are of no use";
        /// Tasks wait for others to end: the group's `max` is reached.
        Max: "max", "a lower target or other tasks to end",
            "its target and tasks reach the group's max";
        /// `allocation.pending_max` is reached.
        PendingLimit: "pending_limit", "pending executors to run",
            "allocation.pending_max is reached";
        /// The replacement waits until the pod of the lost executor is gone (`replace: gone`).
        ReplaceGone: "replace_gone", "lost executors to be deleted", "replace: gone";
        /// The next attempt waits until all executors of the one before have ended (`on_loss: group`).
        Restart: "group_restart", "the executors of the attempt before to end",
            "a loss restarts the whole group (on_loss: group)";
        /// The command that sets the target fails; the last target stays.
        ScaleCommand: "scale_command", "the command that sets its target",
            "it fails, and the last target stays";
        /// More executors run than the target, and the driver chooses which to end (`scale_down:
        /// pending`).
        ScaleDownPending: "scale_down_pending", "the driver to end executors",
            "with scale_down: pending, posse deletes no running executors";
        /// The replacement waits until the executor that has its slot has ended (`slots: stable`).
        Slot: "slot", "a slot", "the executor that has it has not ended yet";
        /// The group's template is not known: its pods were adopted, and the group was not PUT in this
        /// run.
        Template: "template", "its template",
            "the group is not in this run's file: PUT it again by the control API";
    }
}

impl Waiting {
    /// All reasons.
    pub fn all() -> impl Iterator<Item = Self> {
        let run = RunWait::ALL.iter().map(|&wait| Self::Run(wait));
        let server = ServerWait::ALL.iter().map(|&wait| Self::Server(wait));
        let start = StartWait::ALL.iter().map(|&wait| Self::Start(wait));
        let group = GroupWait::ALL.iter().map(|&wait| Self::Group(wait));
        run.chain(server).chain(start).chain(group)
    }

    /// The documented name.
    pub fn as_str(self) -> &'static str {
        self.words().0
    }

    /// What the group waits for, and an explanation, which may be empty. For sentences such as `waiting
    /// for quota`.
    pub fn describe(self) -> (&'static str, &'static str) {
        let (_, what, why) = self.words();
        (what, why)
    }

    /// A full window or group: no reason that a person could act on.
    pub fn is_pace(self) -> bool {
        matches!(self, Self::Group(GroupWait::Max) | Self::Server(ServerWait::InFlight))
    }

    /// posse tries whether it still holds.
    pub fn is_probed(self) -> bool {
        matches!(self, Self::Server(_) | Self::Start(_)) && !self.is_pace()
    }

    fn words(self) -> Words {
        match self {
            Self::Run(wait) => wait.words(),
            Self::Server(wait) => wait.words(),
            Self::Start(wait) => wait.words(),
            Self::Group(wait) => wait.words(),
        }
    }
}
