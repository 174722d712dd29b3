//! Owns the slim pod: the few facts about an executor's pod that decisions need. Parsing it from
//! JSON is `wire/`'s; what follows from it is `snapshot`'s and `loss`'s.

use std::net::IpAddr;

use crate::core::model::event::DeleteCause;
use crate::core::model::ids::{ExecutorId, GroupName, Uid, Version};

/// `status.phase`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Accepted, not all containers have started. Absent and unheard-of values count as this.
    #[default]
    Pending,
    /// Bound, and at least one container runs or starts.
    Running,
    /// Every container ended with 0. Final.
    Succeeded,
    /// Ended, at least one container not with 0, or ended by the system. Final.
    Failed,
    /// The node is out of reach. Obsolete, some servers still write it.
    Unknown,
}

impl Phase {
    /// True for a phase that no pod leaves again.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running | Self::Unknown => false,
        }
    }
}

/// The state of the container whose end decides about the executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerState {
    /// No status yet, or `waiting`.
    #[default]
    Waiting,
    /// `running`.
    Running,
    /// `terminated`; the particulars are in `Pod::end`.
    Ended,
}

/// What keeps a pod from starting. In the order in which a group tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartProblemKind {
    /// A container cannot be made or started as it is written, or falls over again and again.
    Config,
    /// An image cannot be pulled.
    Image,
    /// The scheduler finds no node (condition `PodScheduled` is False).
    Unschedulable,
    /// It has scheduling gates: somebody holds it back on purpose.
    Gated,
    /// Nothing but the usual way so far.
    Creating,
}

/// What keeps a pod from starting, as the server tells it. Pods that run have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartProblem {
    pub kind: StartProblemKind,
    /// The scheduler's or the kubelet's own words.
    pub words: Box<str>,
}

/// How an init container failed, which keeps all others from starting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitEnd {
    /// Its name.
    pub name: Box<str>,
    /// `state.terminated.exitCode`, never 0.
    pub exit_code: i32,
    /// `state.terminated.reason`.
    pub reason: Box<str>,
    /// `state.terminated.message`.
    pub message: Box<str>,
}

/// Why a pod ended or is about to, as the server tells it. Only pods in trouble carry one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// `status.reason`: Evicted, Preempting, NodeLost, DeadlineExceeded ...; empty where absent.
    pub pod_reason: Box<str>,
    /// `status.message`.
    pub pod_message: Box<str>,
    /// The reason of a `DisruptionTarget` condition that is True; empty where there is none.
    pub disruption: Box<str>,
    /// That condition's message.
    pub disruption_message: Box<str>,
    /// `state.terminated.exitCode` of the deciding container.
    pub exit_code: Option<i32>,
    /// `state.terminated.signal`, where it is not 0.
    pub signal: Option<i32>,
    /// `state.terminated.reason` of the deciding container: Completed, Error, OOMKilled ...
    pub container_reason: Box<str>,
    /// `state.terminated.message` (the termination message), at most 4 KiB as the kubelet caps it.
    pub container_message: Box<str>,
    /// The first init container that ended with a code other than 0, where that ended the pod.
    pub init: Option<Box<InitEnd>>,
    /// Another container's name, where its end is the executor's (`sidecar_failure: fail`): code,
    /// signal, reason and message are that one's then.
    pub sidecar: Option<Box<str>>,
    /// Its deadline was posse's own (`max_age`).
    pub is_aged: bool,
}

/// That and how an executor was chosen to go, as its pod tells a later run of posse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draining {
    pub cause: DeleteCause,
    /// It has until then to end by itself, in milliseconds since 1970; none: it goes at once.
    pub until_unix_ms: Option<u64>,
}

/// One executor pod as the server last told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`: identity. Same name and another uid is another pod.
    pub uid: Uid,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.resourceVersion`; none where it is not comparable.
    pub version: Option<Version>,
    /// Label `posse.dev/executor-id`.
    pub id: ExecutorId,
    /// Label `posse.dev/group`.
    pub group: GroupName,
    /// Label `posse.dev/slot`; none where absent or not a number.
    pub slot: Option<u32>,
    /// The uid of the owner reference with `controller: true`, where there is one.
    pub owner: Option<Uid>,
    /// `status.phase`.
    pub phase: Phase,
    /// A `metadata.deletionTimestamp` is set: the pod is on its way out.
    pub deleting: bool,
    /// The deciding container: the one named by annotation `posse.dev/container`, else the first.
    pub container: ContainerState,
    /// The name of that container; none where the pod has but one.
    pub decider: Option<Box<str>>,
    /// What keeps it from starting; none for a pod that runs, is over, or tells nothing.
    pub stuck: Option<Box<StartProblem>>,
    /// Condition `Ready` is True.
    pub ready: bool,
    /// Annotation `posse.dev/draining`: chosen to go, before a restart perhaps.
    pub draining: Option<Box<Draining>>,
    /// Label `posse.dev/counted`: when its loss, reported by then, had spent its budget, seconds since
    /// 1970; 0 where that cannot be read.
    pub counted: Option<u64>,
    /// Annotation `controller.kubernetes.io/pod-deletion-cost`; 0 where absent or not a number.
    pub deletion_cost: i32,
    /// `spec.nodeName`: set once the pod is bound.
    pub node: Option<Box<str>>,
    /// `status.podIP`.
    pub ip: Option<IpAddr>,
    /// Set where the pod or its deciding container ended, or a disruption is announced.
    pub end: Option<Box<End>>,
}

/// A pod as an owner reference names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerPod {
    pub name: String,
    pub uid: Uid,
}
