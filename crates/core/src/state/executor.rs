//! One executor: how far it has come, and what was told of it.

use std::sync::Arc;

use crate::model::ids::{ExecutorId, GroupName, Uid};
use crate::model::pod::{ContainerState, Pod};
use crate::model::settings::GroupSpec;
use crate::model::status::{ExecutorStatus, State};
use crate::model::task::{Shape, TaskRun};
use crate::state::ledger::Create;
use crate::state::life::{Life, Start};
use crate::state::snapshot::Snapshot;
use crate::state::victim_order::VictimOrder;
use posse_base::time::Millis;

/// One executor, from before its create is sent until its pod is gone.
#[derive(Clone, Debug)]
pub struct Executor {
    pub group: GroupName,
    /// None after it has ended, if another executor has the same slot, or if an adopted pod has no
    /// slot label.
    pub slot: Option<u32>,
    /// The uid of its only pod.
    pub uid: Option<Uid>,
    /// The attempt of its group, from 1.
    pub attempt: u32,
    /// Set before `Executors::insert`, removed by `Executors::take_create`.
    pub create: Option<Box<Create>>,
    pub life: Life,
    /// When its main container was first seen running.
    pub running_since: Option<Millis>,
    pub is_adopted: bool,
    /// When its entry was made: when it was requested, or adopted.
    pub known_since: Millis,
    /// Its work is done or given up, so nothing takes its place, and it keeps its slot.
    pub is_done: bool,
    /// The task that it works on, beside the group's target. It has no slot.
    pub task: Option<Box<TaskRun>>,
    /// By which throttle of the group it is created. Set by `Executors::insert`.
    pub shape: Shape,
    /// Default unless the state is pending.
    pub start: Start,
    /// When the first node may be used again that it was created to avoid.
    pub avoids_until: Option<Millis>,
    /// The step of its memory; 0: the template's own.
    pub memory_step: u32,
    /// The limit of its main container's memory; 0: not known, or it has none.
    pub memory_limit_bytes: u64,
    /// The last change of its memory in place.
    pub resize: Option<Box<Resize>>,
    pub state: State,
    /// The driver is to report it, and has not done so yet. Until then it is not ready.
    pub awaits_heartbeat: bool,
    /// Its driver has lost the connection to it. Its pod is looked at for the reason, and then it ends.
    pub is_disconnected: bool,
    /// It runs, its pod is ready, and no heartbeat is awaited.
    pub is_ready: bool,
    /// It was reported as ready.
    pub was_ready: bool,
    /// When somebody else will end it, as was reported.
    pub end_told: Option<Millis>,
    pub since: Millis,
    /// Its place in its group's order; none if it is ending.
    pub(super) place: Option<VictimOrder>,
}

/// A change of an executor's memory in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// No further change before.
    pub not_before: Millis,
    /// How often in a row it was refused.
    pub n_refused: u32,
    /// The step that it grows to, and its limit, as the pod has it and in bytes.
    pub step: u32,
    pub limit: String,
    pub limit_bytes: u64,
    /// Why it does not have it, as it was told last.
    pub told: Option<Box<str>>,
}

impl Executor {
    /// A new entry, which is not counted yet.
    pub fn new(group: GroupName, now: Millis) -> Self {
        Self {
            group,
            slot: None,
            uid: None,
            attempt: 1,
            create: None,
            life: Life::Wanted,
            running_since: None,
            is_adopted: false,
            known_since: now,
            is_done: false,
            task: None,
            shape: Shape::TEMPLATE,
            start: Start::default(),
            avoids_until: None,
            memory_step: 0,
            memory_limit_bytes: 0,
            resize: None,
            state: State::Requested,
            awaits_heartbeat: false,
            is_disconnected: false,
            is_ready: false,
            was_ready: false,
            end_told: None,
            since: now,
            place: None,
        }
    }

    /// False if this pod is not the result of our create, although it may have its name: an earlier process has sent
    /// another one with the same id.
    pub fn may_have_made(&self, pod: &Pod) -> bool {
        let is_other_slot = self.slot.zip(pod.slot).is_some_and(|(ours, of_pod)| ours != of_pod);
        let is_other_task = pod
            .task
            .as_ref()
            .is_some_and(|run| self.task.as_ref().is_none_or(|ours| ours.task.key != run.task.key));
        self.group == pod.group && !is_other_slot && !is_other_task
    }

    /// It was created to avoid nodes that may not be used yet.
    pub fn avoids_nodes(&self, now: Millis) -> bool {
        self.avoids_until.is_some_and(|until| until > now)
    }

    /// The state that follows from the entry and its pod.
    pub fn derive_state(&self, pod: Option<&Pod>) -> State {
        match (self.life, pod) {
            (Life::Retained, _) => State::Failed,
            (Life::Completed, Some(pod)) if !pod.deleting => State::Completed,
            // After a resourceVersion rollback the pod may exist again, to be deleted once more.
            (Life::Completed | Life::Gone, _) | (Life::Lost { .. }, None) => State::Terminating,
            (_, Some(pod)) if has_ended(pod) || pod.deleting => State::Terminating,
            (Life::Cancelled | Life::Ending(_), _) | (Life::Lost { .. }, Some(_)) => {
                State::Draining
            }
            (Life::Wanted, None) => State::Requested,
            (Life::Wanted, Some(_)) if self.is_disconnected => State::Draining,
            (Life::Wanted, Some(pod)) => match pod.container {
                ContainerState::Running => State::Running,
                ContainerState::Ended | ContainerState::Waiting => State::Pending,
            },
        }
    }

    /// Its pod, as the snapshot has it.
    pub fn pod<'a>(&self, pods: &'a Snapshot) -> Option<&'a Pod> {
        pods.get(self.uid.as_ref()?)
    }

    /// It ends, and its slot is worth to wait for.
    pub(super) fn is_awaited_in_slot(&self) -> bool {
        matches!(self.state, State::Draining | State::Terminating) && !self.is_done
    }

    /// It is ready, which was not told yet.
    pub fn take_ready(&mut self) -> bool {
        self.is_ready && !std::mem::replace(&mut self.was_ready, true)
    }

    pub(super) fn note_ready(&mut self, pod: Option<&Pod>, n_ready: &mut u32) {
        let was_ready = self.is_ready;
        self.is_ready = self.state == State::Running
            && !self.awaits_heartbeat
            && pod.is_some_and(|pod| pod.ready);
        *n_ready = *n_ready + u32::from(self.is_ready) - u32::from(was_ready);
    }

    /// Its place in the order of victims; none if it is ending, or works on a task.
    pub fn victim_order(
        &self,
        id: ExecutorId,
        pod: Option<&Pod>,
        spec: &GroupSpec,
    ) -> Option<VictimOrder> {
        if self.task.is_some() {
            return None;
        }
        let cost = pod.map(|pod| pod.deletion_cost);
        let place = VictimOrder::of(id, self.state, self.is_ready, cost)?;
        Some(if spec.has_stable_slots() { VictimOrder::by_slot(id, self.slot) } else { place })
    }

    /// What the status shows of it.
    pub fn status(&self, id: ExecutorId, pod: Option<&Pod>) -> ExecutorStatus {
        ExecutorStatus {
            id,
            group: self.group.clone(),
            slot: self.slot,
            key: self.task.as_ref().map(|run| Arc::clone(&run.task.key)),
            uid: self.uid.clone(),
            state: self.state,
            ready: self.is_ready,
            node: pod.and_then(|pod| pod.node.clone()),
            ip: pod.and_then(|pod| pod.ip),
            host_ip: pod.and_then(|pod| pod.host_ip),
            since: self.since,
        }
    }

    /// Its task says how much memory it has, so the group's memory does not grow with it.
    pub fn has_own_memory(&self) -> bool {
        self.task.as_ref().is_some_and(|run| run.task.memory.is_some())
    }

    /// True if the create was cancelled before its pod was seen: such a pod is deleted.
    pub fn is_cancelled(&self) -> bool {
        self.uid.is_none() && matches!(self.life, Life::Cancelled | Life::Lost { .. })
    }
}

/// True if the pod or its main container has ended, or a side-car whose end ends the executor.
pub fn has_ended(pod: &Pod) -> bool {
    pod.phase.is_final() || pod.container == ContainerState::Ended
}
