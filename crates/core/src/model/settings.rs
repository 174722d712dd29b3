//! The settings that decisions depend on. `wire/` reads and checks them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::ids::GroupName;
use crate::model::named::named;
use crate::model::pod_text::PodText;

/// The fields of a call as it was sent: JSON by name.
pub type CallFields = BTreeMap<Box<str>, Arc<str>>;

/// The largest number of executors that a group may have as its target, minimum or maximum. A cluster
/// has at most 150,000 pods (Kubernetes' documented limit), so a larger number is a mistake.
pub const EXECUTORS_MAX: u32 = 1_000_000;

named! {
    /// Which executors may be ended when the target falls.
    #[derive(Default)]
    pub enum ScaleDown {
        /// Any, in the order of `policy::victims`.
        #[default]
        Any = "any",
        /// Only executors that do not run. Running ones are ended by kill calls.
        Pending = "pending",
    }
}

/// When the replacement of a lost executor is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replace {
    /// As soon as its pod is terminating.
    #[default]
    Terminating,
    /// When its pod is gone (for full quotas).
    Gone,
}

named! {
    /// Whether an executor that ends by itself is replaced. What the cluster ends always is.
    #[derive(Default)]
    pub enum Restart {
        /// Always.
        #[default]
        Always = "always",
        /// If it failed. Exit code 0 of its main container means that its work is done.
        OnFailure = "on-failure",
        /// Never: if the application failed, the work is given up.
        Never = "never",
    }
}

/// Which slot a new executor gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotPolicy {
    /// The lowest one that is free. It may be above the target while others end.
    #[default]
    Lowest,
    /// One below the target. If all of these are taken, the create waits.
    Stable,
}

/// What a loss ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// The lost executor alone, which is replaced.
    #[default]
    Executor,
    /// All executors of its group, which begin together again.
    Group,
}

/// How a running executor is ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decommission {
    /// The drain period in milliseconds, never 0: the executor is deleted afterwards if it has not
    /// ended by itself.
    pub after_ms: u64,
    /// Key and value of a label that the pod gets.
    pub label: Option<(String, String)>,
    /// The drain period begins with SIGTERM: the pod is deleted with this period as its grace period.
    pub by_term: bool,
}

/// Which executors autoscalers shall not end (`protect`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protect {
    #[default]
    Off,
    /// Those that have work by the driver's idle lists.
    Busy,
    /// All: their pods are created so.
    Always,
}

/// Whether executors are of use only together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Together {
    /// Each executor is of use alone.
    #[default]
    No,
    /// Fewer than `min`, which is at least 1, are of no use. posse gives all executors back if too few of them run
    /// together for this long, in milliseconds, never 0; none: the cluster's scheduler starts them together, and holds
    /// nothing while they wait.
    Gang { min: u32, give_back_after_ms: Option<u64> },
    /// A queue admits all executors together or none (`queue_group`): their number never changes, and each has a slot
    /// of its own.
    Queue,
}

/// The settings of one group that are in force. This is all that the core decides by: it knows the template as finished
/// text only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSpec {
    pub name: GroupName,
    pub target: u32,
    pub min: u32,
    /// None: no maximum.
    pub max: Option<u32>,
    pub scale_down: ScaleDown,
    pub replace: Replace,
    pub slots: SlotPolicy,
    pub on_loss: OnLoss,
    pub restart: Restart,
    /// How many executors must end with 0; never 0, and only if `restart` is not `Always`. None: each
    /// one that does lowers the target by one.
    pub completions: Option<u32>,
    pub together: Together,
    pub protect: Protect,
    /// None: executors are deleted at once, without a drain period.
    pub decommission: Option<Decommission>,
    /// True if the group comes from the file or the flags. A refusal before any of its executors
    /// existed ends the run.
    pub from_file: bool,
    /// The names of the credentials that its executors get; none: all.
    pub credentials: Option<Vec<String>>,
    /// A command sets the target (`scale`), and no call may.
    pub is_scaled: bool,
    /// The template; none: not known to this run, so no pod can be created.
    pub pod: Option<Arc<PodText>>,
}

impl GroupSpec {
    /// A group with target 0, without bounds and without a template.
    pub fn bare(name: GroupName) -> Self {
        Self { name, ..Self::default() }
    }

    /// Each slot has volumes of its own, so an executor without a slot cannot be created.
    pub fn has_volumes(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| !pod.claims.is_empty())
    }

    /// A slot whose work is done needs its claims no more: nobody comes after its executor, and no run.
    pub fn gives_up_claims(&self) -> bool {
        let mut claims = self.pod.iter().flat_map(|pod| &pod.claims);
        claims.any(|claim| claim.is_of_run) && self.completions.is_some() && !self.restarts_whole()
    }

    pub fn protects_busy(&self) -> bool {
        self.protect == Protect::Busy
    }

    /// How many steps the main container's memory may grow after OOM kills.
    pub fn n_memory_steps(&self) -> u32 {
        let n = self.pod.as_ref().map_or(0, |pod| pod.memory_steps().len());
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// The key by which executors have the slots from 0 to one below the target, and that with its value.
    pub fn slot_key(&self) -> Option<(&'static str, &'static str)> {
        if self.restarts_whole() {
            Some(("on_loss", "`on_loss: group`"))
        } else if self.together == Together::Queue {
            Some(("queue_group", "`queue_group: true`"))
        } else {
            (self.slots == SlotPolicy::Stable).then_some(("slots", "`slots: stable`"))
        }
    }

    /// True if executors have the slots from 0 to one below the target.
    pub fn has_stable_slots(&self) -> bool {
        self.slot_key().is_some()
    }

    /// True if no two executors may have one slot.
    pub fn has_own_slots(&self) -> bool {
        self.completions.is_some() || self.has_stable_slots()
    }

    /// True if the loss of one executor ends the others.
    pub fn restarts_whole(&self) -> bool {
        self.on_loss == OnLoss::Group
    }

    /// True if one executor alone can do nothing.
    pub fn works_together(&self) -> bool {
        self.restarts_whole() || self.together != Together::No
    }

    /// True if one executor alone does not even start: a queue or scheduler starts several together.
    pub fn starts_together(&self) -> bool {
        matches!(self.together, Together::Queue | Together::Gang { give_back_after_ms: None, .. })
    }

    /// The key of a setting that excludes stable slots, and what to do. `replace`, `slots`: as they were
    /// given; none: they were not.
    pub fn conflict(
        &self,
        replace: Option<Replace>,
        slots: Option<SlotPolicy>,
    ) -> Option<(&'static str, String)> {
        let (_, by) = self.slot_key()?;
        let (key, what) = if self.restarts_whole() && slots == Some(SlotPolicy::Lowest) {
            ("slots", "the next attempt has the slots of the one before; leave `slots` out")
        } else if slots == Some(SlotPolicy::Lowest) {
            ("slots", "a successor has the slot of the lost executor; leave `slots` out")
        } else if replace == Some(Replace::Terminating) {
            let what = "a replacement gets the slot of the lost executor, so it must wait until that \
                        one has ended; leave `replace` out, or write `replace: gone`";
            ("replace", what)
        } else if self.scale_down == ScaleDown::Pending {
            let what = "a lower target ends the executors with the highest slots, also if they run; \
                        leave `scale_down` out";
            ("scale_down", what)
        } else if self.restart == Restart::Never && self.restarts_whole() {
            ("restart", "a failed executor is not given up; write `restart: on-failure`")
        } else if self.restart != Restart::Always && self.completions.is_none() {
            let what = "without `completions` each executor that completes lowers the target, which \
                        ends the one with the highest slot; write `completions: N`";
            ("restart", what)
        } else {
            return None;
        };
        Some((key, format!("excludes {by}: {what}")))
    }
}

/// What is wrong with this value of `completions`, in a file or in a call.
pub fn completions_error(completions: u32, restart: Restart) -> Option<&'static str> {
    if completions == 0 {
        Some("must be at least 1")
    } else if restart == Restart::Always {
        Some(
            "needs `restart: on-failure` or `restart: never`: otherwise executors that end are \
             replaced for ever",
        )
    } else {
        None
    }
}

/// A limit of failures (`failures.app` and its like) that a user can set, switch off, or leave to posse. More of them
/// end the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// What `Budgets` says.
    Auto,
    Max(u32),
    Off,
}

/// `bad_nodes`: when new executors avoid a node. Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadNodes {
    /// The number of losses within the window that the node caused; 0: off.
    pub losses: u32,
    pub window_ms: u64,
    pub avoid_for_ms: u64,
    /// The largest share of the known nodes that may be avoided, in thousandths.
    pub share_permille: u32,
}

impl Default for BadNodes {
    fn default() -> Self {
        Self { losses: 3, window_ms: 600_000, avoid_for_ms: 1_800_000, share_permille: 250 }
    }
}

/// Settings of the run. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub in_flight_max: u32,
    /// 0: no limit.
    pub pending_max: u32,
    /// From a pod's binding until its main container runs; 0: no limit.
    pub start_timeout_ms: u64,
    pub adopt_hold_ms: u64,
    pub bad_nodes: BadNodes,
    pub failures_app: Limit,
    pub failures_cluster: Limit,
    pub failures_start: Limit,
    pub failures_window_ms: u64,
    pub keep_failed: u32,
    /// How many log lines are reported after a loss that the application caused; 0: none.
    pub log_lines: u32,
    /// The output of ended tasks is kept.
    pub keeps_task_output: bool,
    pub record: RecordUse,
    /// The grace period of the executors at stop.
    pub stop_timeout_ms: u64,
    /// An executor without a heartbeat for this long is lost; 0: never.
    pub heartbeat_timeout_ms: u64,
    /// A driver that makes no call for this long is gone; 0: no limit.
    pub driver_silence_ms: u64,
    /// Executors, groups and targets outlive the driver: it has no program, or one that finds them again.
    pub outlives_driver: bool,
    /// A driver program begins anew in the next pod of its Job: of the executors that it finds, those that work on a task or
    /// an index go on, and the others end.
    pub begins_anew: bool,
    /// The run ends when the work of all groups has ended, because no driver decides.
    pub ends_with_work: bool,
    /// The run ends when it has had nothing to do for so long: no open task and no executor of its own; 0: never.
    pub idle_end_ms: u64,
    /// The names of the credentials that executors need.
    pub credentials: Vec<String>,
}

/// Whether the run has a record of what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordUse {
    /// Nothing is recorded: tasks end with posse.
    Off,
    On,
    /// It is wanted and cannot be written, so no task is accepted. Why, and what to do.
    Missing(String),
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            in_flight_max: 32,
            pending_max: 0,
            start_timeout_ms: 10 * 60_000,
            adopt_hold_ms: 5 * 60_000,
            bad_nodes: BadNodes::default(),
            failures_app: Limit::Auto,
            failures_cluster: Limit::Off,
            failures_start: Limit::Auto,
            failures_window_ms: 60 * 60_000,
            keep_failed: 5,
            log_lines: 0,
            keeps_task_output: false,
            record: RecordUse::Off,
            stop_timeout_ms: 10_000,
            heartbeat_timeout_ms: 0,
            driver_silence_ms: 0,
            outlives_driver: false,
            begins_anew: false,
            ends_with_work: false,
            idle_end_ms: 0,
            credentials: Vec::new(),
        }
    }
}

impl Policy {
    /// From the first failed image pull until the main container runs; 0: no limit.
    pub fn image_timeout_ms(&self) -> u64 {
        self.start_timeout_ms / 2
    }
}
