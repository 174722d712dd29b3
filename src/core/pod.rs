//! Owns the slim pod: the few facts about an executor's pod that decisions need. Parsing it from
//! JSON is `wire/`'s; what follows from it is `snapshot`'s and `loss`'s.

use std::net::IpAddr;

use crate::core::ids::{ExecutorId, GroupName, Uid, Version};

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
    /// Condition `PodScheduled` is False with reason `Unschedulable`.
    pub unschedulable: bool,
    /// Condition `Ready` is True.
    pub ready: bool,
    /// Annotation `posse.dev/draining` is there: chosen to go, before a restart perhaps.
    pub draining: bool,
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
