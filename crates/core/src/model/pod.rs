//! The fields of an executor's pod that decisions need. `wire/` parses them from JSON.

use std::net::IpAddr;

use crate::model::event::DeleteCause;
use crate::model::ids::{ExecutorId, GroupName, Uid, Version};
use crate::model::settings::Restart;
use crate::model::task::TaskRun;

/// `status.phase`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Accepted, but not all containers have started. Absent and unknown values count as this.
    #[default]
    Pending,
    /// Bound to a node, and at least one container runs or is starting.
    Running,
    /// All containers ended with exit code 0. Final.
    Succeeded,
    /// All containers ended, at least one of them with a failure. Final.
    Failed,
    /// The node does not answer. Deprecated; current servers no longer set it.
    Unknown,
}

impl Phase {
    /// True for a phase that a pod never leaves.
    pub fn is_final(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running | Self::Unknown => false,
        }
    }
}

/// The state of the main container. Its end is the executor's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerState {
    /// No status yet, or `waiting`.
    #[default]
    Waiting,
    /// `running`.
    Running,
    /// `terminated`; the details are in `Pod::end`.
    Ended,
}

/// Why a pod does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartProblemKind {
    /// A container cannot be created or started as specified, or crashes again and again.
    Config,
    /// An image cannot be pulled.
    Image,
    /// The scheduler finds no node (condition `PodScheduled` is False).
    Unschedulable,
    /// The pod has scheduling gates (KEP-3521).
    Gated,
    /// Its gate is a queue's, which has not admitted it.
    Queued,
    /// No scheduler has looked at the pod for some time: it has no node, and nothing says why.
    Ignored,
    /// No problem: the pod is being created.
    Creating,
}

/// Why a pod does not start, from its status. Running pods have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartProblem {
    pub kind: StartProblemKind,
    /// The message of the scheduler or the kubelet.
    pub message: Box<str>,
    /// The number of init containers that run or have ended: their images have arrived.
    pub n_started: u32,
}

/// An init container that failed, which keeps the other containers from starting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitEnd {
    pub name: Box<str>,
    /// `state.terminated.exitCode`, never 0.
    pub exit_code: i32,
    /// `state.terminated.reason`.
    pub reason: Box<str>,
    /// `state.terminated.message`.
    pub message: Box<str>,
}

/// Why a pod ended or will end, from its status. Only ended and disrupted pods have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// `status.reason`: Evicted, Preempting, NodeLost, DeadlineExceeded ...; empty if absent.
    pub pod_reason: Box<str>,
    /// `status.message`.
    pub pod_message: Box<str>,
    /// The reason of a `DisruptionTarget` condition that is True (KEP-3329), or `TerminationTarget` if Kueue's condition
    /// of this name is; empty if there is none.
    pub disruption: Box<str>,
    /// That condition's message.
    pub disruption_message: Box<str>,
    /// `state.terminated.exitCode` of the main container.
    pub exit_code: Option<i32>,
    /// `state.terminated.signal`, if it is not 0.
    pub signal: Option<i32>,
    /// `state.terminated.reason` of the main container: Completed, Error, OOMKilled ...
    pub container_reason: Box<str>,
    /// `state.terminated.message`, the termination message. The kubelet limits it to 4 KiB.
    pub container_message: Box<str>,
    /// The first init container that ended with a failure, if that ended the pod.
    pub init: Option<Box<InitEnd>>,
    /// The pod failed before any of its containers began: its node refused it.
    pub is_rejected: bool,
    /// posse set the deadline (`max_age`).
    pub has_max_age: bool,
    /// The main container has ended, and others run on.
    pub rest: Option<Rest>,
    /// Annotation `posse.dev/folded`: the indexes of other records of the group, which are gone.
    pub folded: Option<Box<str>>,
}

/// The content of annotation `posse.dev/draining`: an executor that posse ends, as a later run of
/// posse finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draining {
    pub cause: DeleteCause,
    /// The end of the drain period, in milliseconds since 1970; none: deleted at once.
    pub until_unix_ms: Option<u64>,
}

/// The largest attempt that is believed: a label is untrusted input.
pub const ATTEMPT_MAX: u32 = 1_000_000;
/// The grace period of a pod that sets none, in seconds.
pub const GRACE_DEFAULT_S: u32 = 30;

/// One executor's pod as the server last reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`. A pod with the same name and another uid is another pod.
    pub uid: Uid,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.resourceVersion`; none if it is not comparable.
    pub version: Option<Version>,
    /// Label `posse.dev/executor-id`.
    pub id: ExecutorId,
    /// Label `posse.dev/group`.
    pub group: GroupName,
    /// Label `posse.dev/slot`; none if absent or not a number.
    pub slot: Option<u32>,
    /// Label `posse.dev/attempt`: the attempt of its group (`on_loss: group`); 1 if absent or invalid.
    pub attempt: u32,
    /// The uid of the owner reference with `controller: true`, if any.
    pub owner: Option<Uid>,
    /// `status.phase`.
    pub phase: Phase,
    /// True if `metadata.deletionTimestamp` is set: the pod is terminating.
    pub deleting: bool,
    /// `spec.terminationGracePeriodSeconds`; 30 if absent.
    pub grace_s: u32,
    /// `metadata.deletionGracePeriodSeconds`; 0 if the pod is not terminating.
    pub deletion_grace_s: u32,
    /// It belongs to a group of a queue (Kueue), and has the queue's finalizer.
    pub is_held_by_queue: bool,
    /// The kubelet may restart its containers in place, which posse never asks for. Then the end of the main
    /// container is none until the whole pod ends.
    pub restarts_in_place: bool,
    /// The memory limit of its main container, as its spec has it now; 0: none.
    pub memory_limit_bytes: u64,
    /// What few pods have.
    pub rare: Option<Box<Rare>>,
    /// The main container: the one named by annotation `posse.dev/container`; in pods of 0.1 without
    /// it, the first of the template. One without a status is waiting.
    pub container: ContainerState,
    /// The name of the main container; none if the pod has no other.
    pub main_container: Option<Box<str>>,
    /// Why the pod does not start; none for a pod that runs, has ended or has no status yet.
    pub start_problem: Option<Box<StartProblem>>,
    /// Condition `Ready` is True.
    pub ready: bool,
    /// Annotation `posse.dev/draining`, perhaps written before a restart.
    pub draining: Option<Box<Draining>>,
    /// Label `posse.dev/counted`: when the reported loss was charged to its budget, in seconds
    /// since 1970; 0 if it cannot be parsed.
    pub counted: Option<u64>,
    /// Label `posse.dev/completed`: it was reported that the executor's work is done.
    pub completed: bool,
    /// Annotation `posse.dev/restart`: what its group does when an executor ends.
    pub restart: Restart,
    /// Label `posse.dev/key` and annotation `posse.dev/task`: the task that it works on.
    pub task: Option<Box<TaskRun>>,
    /// Annotation `controller.kubernetes.io/pod-deletion-cost` (KEP-2255); 0 if absent or not a
    /// number.
    pub deletion_cost: i32,
    /// Its annotations keep autoscalers from ending it (`protect`).
    pub is_protected: bool,
    /// `spec.nodeName`: set once the pod is bound.
    pub node: Option<Box<str>>,
    /// `status.podIP`.
    pub ip: Option<IpAddr>,
    /// `status.hostIP`: the node's address.
    pub host_ip: Option<IpAddr>,
    /// Set if the pod or its main container ended, or a disruption is announced.
    pub end: Option<Box<End>>,
}

/// What runs on in a pod after the end of its main container. Only a deadline ends it without deleting the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The earliest deadline, in seconds from the pod's start: with a lower one the main container would seem to have
    /// ended by it.
    pub from_s: u32,
    /// `spec.activeDeadlineSeconds`.
    pub deadline_s: Option<u32>,
}

/// The longest deadline that a server takes, in seconds.
const DEADLINE_MAX_S: u32 = 0x7fff_ffff;

impl Rest {
    /// The deadline that leaves so many seconds to it; none if the pod has an earlier one.
    pub fn deadline_after(self, grace_s: u32) -> Option<u32> {
        let deadline_s = self.from_s.saturating_add(grace_s).min(DEADLINE_MAX_S);
        self.deadline_s.is_none_or(|set| set > deadline_s).then_some(deadline_s)
    }
}

/// What few pods have, so that the others need no room for it. Empty: absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rare {
    /// `metadata.finalizers` but that of the queue, with `, ` between them: they hold the pod when it is deleted.
    pub finalizers: Box<str>,
    /// A controller of a kind that never owns executors of posse, with its name: it has taken the pod by its labels.
    pub adopter: Box<str>,
    /// Why the node has not given it the resources yet that its spec asks for since a change in place.
    pub resize_problem: Box<str>,
}

impl Pod {
    /// It terminates, and has time for it: its kubelet and each forced delete take that away before it is gone.
    pub fn has_time_to_end(&self) -> bool {
        self.deleting && self.deletion_grace_s > 0
    }

    /// The finalizers that keep this deleted pod.
    pub fn held_by(&self) -> Option<&str> {
        self.rare(|rare| &rare.finalizers).filter(|_| self.deleting)
    }

    pub fn adopter(&self) -> Option<&str> {
        self.rare(|rare| &rare.adopter)
    }

    pub fn resize_problem(&self) -> Option<&str> {
        self.rare(|rare| &rare.resize_problem)
    }

    fn rare(&self, part: impl FnOnce(&Rare) -> &str) -> Option<&str> {
        self.rare.as_deref().map(part).filter(|text| !text.is_empty())
    }

    /// The deadline that leaves so many seconds to what runs on in it, if anything does, and it has no earlier one.
    pub fn rest_deadline_s(&self, grace_s: u32) -> Option<u32> {
        self.end.as_ref()?.rest?.deadline_after(grace_s)
    }
}
