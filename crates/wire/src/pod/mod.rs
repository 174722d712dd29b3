//! Reads a pod: the few facts that `core` needs.

use std::borrow::Cow;

use crate::control::task::parse_run;
use crate::error::WireError;
use crate::k8s::kueue;
use crate::k8s::labels::{COMPONENT, DO_NOT_DISRUPT, SAFE_TO_EVICT, Selection};
use crate::text::clipped;
use posse_core::model::ids::{ExecutorId, GroupName, STORED_ID_MAX, Uid, Version};
use posse_core::model::input::{ForeignPod, PodAnswer};
use posse_core::model::owner::{Owner, OwnerKind};
use posse_core::model::pod::{
    ATTEMPT_MAX, ContainerState, End, GRACE_DEFAULT_S, InitEnd, Phase, Pod, Rare, StartProblem,
    StartProblemKind,
};
use posse_core::model::settings::Restart;
use posse_core::policy::loss::{self, TERMINATION_TARGET};
use posse_core::policy::orphans::OrphanCandidate;
use posse_encoding::json;
use posse_encoding::protobuf::{message, message_of};

pub mod arguments;
pub mod beside;
pub mod build;
pub mod credential_files;
pub mod credential_mounts;
pub mod details;
pub mod draining;
mod fields;
pub mod memory;
pub mod node_affinity;
pub mod placeholders;
pub mod security;
mod side_cars;
pub mod slot_volume;
pub mod staged;
pub mod task;
pub mod template;
pub mod tolerations;
pub mod volumes;
pub mod webhook_changes;

pub(super) use self::fields::RawPod;
use self::fields::{
    Labels, RawCondition, RawContainer, RawContainerStatus, RawMeta, RawOwner, RawSpec, RawState,
    RawStatus, RawTerminated,
};

/// A ReplicaSet deletes pods with a lower cost first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Limit of a pod's or container's message, bytes. The kubelet has the same limit.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Limit of the message about a pod that does not start, bytes. Thousands of pods may have one.
const STUCK_BYTES_MAX: usize = 512;

/// The condition by which somebody announces that the pod will end (KEP-3329).
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Reads one pod. `PodAnswer::Ours` means only that its labels match the selection.
///
/// # Errors
/// The bytes are not a pod with a name and a uid.
pub fn parse(bytes: &[u8], selection: &Selection) -> Result<PodAnswer, WireError> {
    read_pod(bytes)?.ok_or(WireError::Missing("metadata.uid"))?.seen(selection)
}

/// Reads a pod from a body: protobuf if it begins so, else JSON. None for null.
pub(super) fn read_pod(body: &[u8]) -> Result<Option<RawPod<'_>>, WireError> {
    match message_of(body, "Pod")? {
        Some(pod) => Ok(Some(message(pod)?)),
        None => Ok(json::read(body)?),
    }
}

/// A pod that owns executors: the driver's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerFacts {
    pub uid: Uid,
    pub phase: Phase,
    /// It has a deletionTimestamp.
    pub is_deleting: bool,
    /// The Job that controls it.
    pub job: Option<Owner>,
}

impl RawPod<'_> {
    /// `metadata.resourceVersion` as text.
    pub(super) fn version_text(&self) -> Option<&str> {
        let version = self.metadata.as_ref().map(|meta| &*meta.resource_version);
        version.filter(|version| !version.is_empty())
    }

    /// The same pod. If it does not name its main container, this one is.
    fn with_main_container(mut self, name: Option<&str>) -> Self {
        let named = &mut self.metadata.get_or_insert_default().annotations.container;
        if named.is_empty() {
            *named = Cow::Owned(name.unwrap_or_default().to_owned());
        }
        self
    }

    /// The facts for `posse cleanup`.
    pub(super) fn orphan(self) -> Result<OrphanCandidate, WireError> {
        let meta = self.metadata.ok_or(WireError::Missing("items[].metadata"))?;
        if meta.name.is_empty() {
            return Err(WireError::Missing("items[].metadata.name"));
        }
        if meta.uid.is_empty() {
            return Err(WireError::Missing("items[].metadata.uid"));
        }
        let labels = meta.labels;
        let named = |text: Cow<'_, str>| Some(text.into_owned()).filter(|text| !text.is_empty());
        let is_held_by_queue = meta.is_held_by_queue && labels.is_in_queue_group;
        let (app, instance) = (named(labels.app), named(labels.instance));
        let selection = app.clone().zip(instance.clone());
        let selection = selection.map(|(app, instance)| Selection { app, instance });
        let id = selection.and_then(|selection| selection.id_of(&meta.name));
        let owner = owner(&meta.owner_references).and_then(named_owner);
        Ok(OrphanCandidate {
            phase: phase(self.status.as_ref()),
            is_held_by_queue,
            has_executor_name: id.is_some_and(|id| id.0 <= STORED_ID_MAX),
            name: meta.name.into_owned(),
            uid: Uid::new(&meta.uid),
            app,
            instance,
            owner,
        })
    }

    /// The phase, or the one that the end of the main container stands for: others may run on in the pod. Of a pod that
    /// does not name it nobody knows in which container posse runs.
    fn phase_of_main(&self) -> Phase {
        let (Some(meta), Some(spec), Some(status)) = (&self.metadata, &self.spec, &self.status)
        else {
            return phase(self.status.as_ref());
        };
        let main = &meta.annotations.container;
        let state = status.lasting_state_of(main, spec, meta.is_deleting);
        match state.and_then(|state| state.terminated.as_ref()) {
            Some(end) if end.exit_code == Some(0) => Phase::Succeeded,
            Some(_) => Phase::Failed,
            None => phase(Some(status)),
        }
    }

    /// The facts about a pod that owns others.
    pub(super) fn owner_facts(&self) -> Result<OwnerFacts, WireError> {
        let meta = self.metadata.as_ref().ok_or(WireError::Missing("metadata"))?;
        if meta.uid.is_empty() {
            return Err(WireError::Missing("metadata.uid"));
        }
        let controller = meta.owner_references.iter().find(|owner| owner.is_controller);
        let job = controller.and_then(named_owner).filter(|owner| owner.kind == OwnerKind::Job);
        Ok(OwnerFacts {
            uid: Uid::new(&meta.uid),
            phase: self.phase_of_main(),
            is_deleting: meta.is_deleting,
            job,
        })
    }

    /// The facts for the reconciler.
    pub(super) fn seen(self, selection: &Selection) -> Result<PodAnswer, WireError> {
        let meta = self.metadata.as_ref();
        if !meta.is_some_and(|meta| meta.labels.match_selector(selection)) {
            let (uid, name) = self.metadata.unwrap_or_default().uid_and_name()?;
            return Ok(PodAnswer::Foreign(ForeignPod { name: name.into(), uid }));
        }
        let mut pod = self.facts()?;
        // A name cannot be changed, a label can.
        pod.id = selection.id_of(&pod.name).unwrap_or(pod.id);
        Ok(PodAnswer::Ours(pod))
    }

    /// The facts about any pod. Without the labels of an executor the id is 0 and the group is empty.
    fn facts(self) -> Result<Pod, WireError> {
        let meta = self.metadata.unwrap_or_default();
        let (uid, name) = meta.uid_and_name()?;
        let (labels, annotations) = (meta.labels, meta.annotations);
        let spec = self.spec.unwrap_or_default();
        let status = self.status.unwrap_or_default();
        let named = Some(&*annotations.container).filter(|name| !name.is_empty());
        let main = named.unwrap_or_else(|| main_without_annotation(&spec.containers));
        let is_only = matches!(&spec.containers[..], [only] if only.name == main);
        let phase = phase(Some(&status));
        let deleting = meta.is_deleting;
        let state = status.lasting_state_of(main, &spec, deleting);
        let container = container_state(state);
        let is_live = !phase.is_final() && !deleting;
        let is_starting = container == ContainerState::Waiting && is_live;
        let gate = spec.scheduling_gates.first().map(|gate| &*gate.name);
        Ok(Pod {
            uid,
            name,
            version: Version::parse(&meta.resource_version),
            id: ExecutorId(labels.id.parse().unwrap_or(0)),
            group: GroupName::from(&*labels.group),
            slot: labels.slot.parse().ok(),
            attempt: (labels.attempt.parse().ok())
                .filter(|attempt| (1..=ATTEMPT_MAX).contains(attempt))
                .unwrap_or(1),
            owner: owner_uid(&meta.owner_references),
            phase,
            deleting,
            grace_s: spec.grace_s.unwrap_or(GRACE_DEFAULT_S),
            deletion_grace_s: meta.deletion_grace_s.unwrap_or(0),
            is_held_by_queue: meta.is_held_by_queue && labels.is_in_queue_group,
            restarts_in_place: spec.restarts_in_place,
            memory_limit_bytes: memory_limit(&spec.containers, main),
            rare: rare(&meta.finalizers, &meta.owner_references, &status),
            container,
            main_container: (!main.is_empty() && !is_only).then(|| main.into()),
            start_problem: if is_starting { status.stuck(main, state, gate) } else { None },
            ready: status.condition("Ready", "True").is_some(),
            draining: annotations.draining.map(|text| Box::new(draining::parse(&text))),
            counted: labels.counted.map(|text| text.parse().unwrap_or(0)),
            completed: labels.is_completed,
            restart: restart(&annotations.restart),
            task: parse_run(&labels.key, &annotations.task).map(Box::new),
            deletion_cost: annotations.deletion_cost.parse().unwrap_or(0),
            is_protected: annotations.do_not_disrupt == DO_NOT_DISRUPT.1
                && annotations.safe_to_evict == SAFE_TO_EVICT.1,
            node: Some(&*spec.node_name).filter(|node| !node.is_empty()).map(Box::from),
            ip: status.pod_ip.parse().ok(),
            host_ip: status.host_ip.parse().ok(),
            end: end(&status, &spec, phase, state).map(|end| {
                let rest = status.rest(&spec, main, state).filter(|_| is_live);
                let folded = annotations.folded.map(Box::from);
                Box::new(End { has_max_age: annotations.has_max_age, rest, folded, ..*end })
            }),
        })
    }
}

/// The name of the main container of a pod that posse 0.1 made: the first of its template, and a webhook
/// may have put others before it. Any other pod: the first.
fn main_without_annotation<'a>(containers: &'a [RawContainer<'_>]) -> &'a str {
    let first = containers.iter().find(|container| container.is_of_template);
    first.or_else(|| containers.first()).map_or("", |container| &container.name)
}

/// What few pods have.
fn rare(
    finalizers: &[String],
    owners: &[RawOwner<'_>],
    status: &RawStatus<'_>,
) -> Option<Box<Rare>> {
    let rare = Rare {
        finalizers: clipped(&finalizers.join(", "), STUCK_BYTES_MAX).into(),
        adopter: adopter(owners).unwrap_or_default(),
        resize_problem: status.resize_problem().unwrap_or_default(),
    };
    (rare != Rare::default()).then(|| Box::new(rare))
}

/// A controller that is none of posse's owners, a driver's pod, its Job or the Lease of a Job's run.
fn adopter(owners: &[RawOwner<'_>]) -> Option<Box<str>> {
    let controller = owners.iter().find(|owner| owner.is_controller)?;
    let kind = &*controller.kind;
    let name = clipped(&controller.name, STUCK_BYTES_MAX);
    (!matches!(kind, "" | "Job" | "Lease" | "Pod")).then(|| format!("{kind} {name}").into())
}

/// The memory limit of the container `main`; 0 without one.
fn memory_limit(containers: &[RawContainer<'_>], main: &str) -> u64 {
    let main = containers.iter().find(|container| container.name == main);
    let resources = main.and_then(|main| main.resources.as_ref());
    resources.and_then(|resources| resources.limits.memory_bytes).unwrap_or(0)
}

/// The value of annotation `posse.dev/restart`. Pods of groups with `restart: always` have none.
fn restart(text: &str) -> Restart {
    let ends = [Restart::OnFailure, Restart::Never].into_iter().find(|one| one.as_str() == text);
    ends.unwrap_or_default()
}

impl RawMeta<'_> {
    fn uid_and_name(&self) -> Result<(Uid, Box<str>), WireError> {
        match (&*self.uid, &*self.name) {
            ("", _) => Err(WireError::Missing("metadata.uid")),
            (_, "") => Err(WireError::Missing("metadata.name")),
            (uid, name) => Ok((Uid::new(uid), name.into())),
        }
    }
}

impl Labels<'_> {
    fn match_selector(&self, selection: &Selection) -> bool {
        self.app == selection.app
            && self.instance == selection.instance
            && self.component == COMPONENT.1
    }
}

impl<'a> RawStatus<'a> {
    fn condition(&self, kind: &str, status: &str) -> Option<&RawCondition<'a>> {
        let mut conditions = self.conditions.iter();
        conditions.find(|condition| condition.kind == kind && condition.status == status)
    }

    /// The state of a container, if it stays so: the kubelet restarts what has ended, until the whole pod has ended or is
    /// deleted.
    fn lasting_state_of(
        &self,
        container: &str,
        spec: &RawSpec<'_>,
        is_deleting: bool,
    ) -> Option<&RawState<'a>> {
        let restarts = spec.restarts_in_place && !phase(Some(self)).is_final() && !is_deleting;
        let status = self.container_statuses.iter().find(|status| status.name == container)?;
        status.state.as_ref().filter(|state| !restarts || state.terminated.is_none())
    }

    /// Why the kubelet has not given the pod the resources of its spec yet (KEP-1287): `Deferred`, as others use them,
    /// or `Infeasible`, as the node does not have them.
    fn resize_problem(&self) -> Option<Box<str>> {
        let pending = self.condition("PodResizePending", "True")?;
        Some(clipped(&joined(&pending.reason, &pending.message), STUCK_BYTES_MAX).into())
    }

    /// Why the pod does not start, if the status tells. `state`: the main container's.
    fn stuck(
        &self,
        main: &str,
        state: Option<&RawState<'_>>,
        gate: Option<&str>,
    ) -> Option<Box<StartProblem>> {
        let states = self.init_container_statuses.iter().filter_map(|status| status.state.as_ref());
        let n_started =
            states.filter(|state| container_state(Some(state)) != ContainerState::Waiting);
        let n_started = u32::try_from(n_started.count()).unwrap_or(u32::MAX);
        let stuck = |kind, words: String| {
            let message = clipped(&words, STUCK_BYTES_MAX).into();
            Some(Box::new(StartProblem { kind, message, n_started }))
        };
        if let Some(unplaced) = self.condition("PodScheduled", "False") {
            let words = &unplaced.message;
            return match (&*unplaced.reason, gate) {
                ("SchedulingGated", Some(gate)) => {
                    stuck(kueue::gated(gate), format!("{words} ({gate})"))
                }
                // The gates are gone, and the scheduler has not looked at the pod since then.
                ("SchedulingGated", None) => None,
                (reason, _) => stuck(StartProblemKind::Unschedulable, joined(reason, words)),
            };
        }
        let (mut creating, mut last) = (None, None);
        for status in self.init_container_statuses.iter() {
            let Some(state) = &status.state else { continue };
            let words = state.reason_and_message();
            let kind = stuck_kind(words.0);
            let name = &status.name;
            if kind != StartProblemKind::Creating {
                return stuck(kind, format!("init container {name}: {}", joined(words.0, words.1)));
            }
            if let Some(ended) = &state.terminated {
                let code = ended.exit_code.map_or_else(String::new, |code| format!(" {code}"));
                let ended = joined(&format!("exit code{code}"), &ended.reason);
                last = Some(format!("init container {name}: {ended}"));
            } else if creating.is_none() && (state.is_running || last.is_some()) {
                let what = if state.is_running { " runs" } else { " has not begun" };
                creating = Some(format!("init container {name}{what}"));
            }
        }
        let (reason, message) = state.map_or(("", ""), RawState::reason_and_message);
        // The reason does not say which of them the others wait for.
        let last = last.filter(|_| matches!(reason, "" | "PodInitializing"));
        let creating = creating.or(last);
        let kind = stuck_kind(reason);
        let words = format!("container {main}: {}", joined(reason, message));
        match (kind, creating) {
            (StartProblemKind::Creating, Some(creating)) => stuck(kind, creating),
            (StartProblemKind::Creating, None) if reason.is_empty() => None,
            (kind, _) => stuck(kind, words),
        }
    }
}

impl RawState<'_> {
    /// Reason and message of a waiting container.
    fn reason_and_message(&self) -> (&str, &str) {
        self.waiting.as_ref().map_or(("", ""), |waiting| (&waiting.reason, &waiting.message))
    }
}

/// Classifies the kubelet's reason of a waiting container. A newer kubelet may have others, which
/// need not be errors: posse shows them, and guesses nothing.
fn stuck_kind(reason: &str) -> StartProblemKind {
    match reason {
        "ErrImageNeverPull"
        | "ErrImagePull"
        | "ImageInspectError"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => StartProblemKind::Image,
        "ConfigPodSandboxError"
        | "ContainerCannotRun"
        | "CrashLoopBackOff"
        | "CreateContainerConfigError"
        | "CreateContainerError"
        | "CreatePodSandboxError"
        | "KillContainerError"
        | "KillPodSandboxError"
        | "PostStartHookError"
        | "PreCreateHookError"
        | "PreStartHookError"
        | "RunContainerError"
        | "RunInitContainerError"
        | "SetupNetworkError"
        | "StartError"
        | "TeardownNetworkError"
        | "VerifyNonRootError" => StartProblemKind::Config,
        _ => StartProblemKind::Creating,
    }
}

fn joined(reason: &str, message: &str) -> String {
    if message.is_empty() { reason.to_owned() } else { format!("{reason}, {message}") }
}

fn container_state(state: Option<&RawState<'_>>) -> ContainerState {
    match state {
        Some(state) if state.terminated.is_some() => ContainerState::Ended,
        Some(state) if state.is_running => ContainerState::Running,
        Some(_) | None => ContainerState::Waiting,
    }
}

fn end(
    status: &RawStatus<'_>,
    spec: &RawSpec<'_>,
    phase: Phase,
    state: Option<&RawState<'_>>,
) -> Option<Box<End>> {
    let terminated = state.and_then(|state| state.terminated.as_ref());
    let disruption = disruption(status, state);
    // The pod's own reason (NodeLost) may be set before the phase changes.
    let has_reason = !status.reason.is_empty();
    if !phase.is_final() && terminated.is_none() && disruption.is_none() && !has_reason {
        return None;
    }
    let (disruption, disruption_message) = disruption.unwrap_or_default();
    let (pod_reason, pod_message) = status.reason_of_main(spec, state);
    // A container that never began gets a status that the kubelet makes up when its pod fails (1.22): an init
    // container that failed says why.
    let has_said = terminated.is_some_and(|one| !is_made_up(one));
    let init =
        if phase == Phase::Failed && !has_said { init_end(status, &spec.sidecars) } else { None };
    let terminated = terminated.filter(|_| init.is_none());
    let containers = status.container_statuses.iter().chain(&status.init_container_statuses);
    let mut states = containers.filter_map(|container| container.state.as_ref());
    let has_begun = states.any(|state| container_state(Some(state)) != ContainerState::Waiting);
    Some(Box::new(End {
        pod_reason: pod_reason.into(),
        pod_message: clipped(pod_message, MESSAGE_BYTES_MAX).into(),
        disruption: disruption.into(),
        disruption_message: clipped(&disruption_message, MESSAGE_BYTES_MAX).into(),
        exit_code: terminated.and_then(|t| t.exit_code),
        signal: terminated.and_then(|t| t.signal).filter(|&signal| signal != 0),
        container_reason: terminated.map_or("", |t| &t.reason).into(),
        container_message: clipped(terminated.map_or("", |t| &t.message), MESSAGE_BYTES_MAX).into(),
        init,
        is_rejected: phase == Phase::Failed && !has_begun,
        has_max_age: false,
        rest: None,
        folded: None,
    }))
}

/// The kubelet did not find the container any more, and made its exit code up.
fn is_made_up(terminated: &RawTerminated<'_>) -> bool {
    loss::is_made_up(&terminated.reason, terminated.exit_code)
}

/// The condition by which somebody announces that the pod will end: its reason and message. Of Kueue's condition the
/// type is the reason, because Kueue's reasons are texts made of several words.
fn disruption<'a>(
    status: &'a RawStatus<'_>,
    state: Option<&RawState<'_>>,
) -> Option<(&'a str, String)> {
    let said = status.condition(DISRUPTION_TARGET, "True");
    if let Some(said) = said.filter(|_| !status.kubelet_ended_rest(state)) {
        let reason = if said.reason.is_empty() { DISRUPTION_TARGET } else { &said.reason };
        return Some((reason, said.message.to_string()));
    }
    let said = status.condition(TERMINATION_TARGET, "True")?;
    Some((TERMINATION_TARGET, joined(&said.reason, &said.message)))
}

/// The first init container that failed, or of which the kubelet does not know how it ended. A side-car fails nothing:
/// it ends because others have.
fn init_end(status: &RawStatus<'_>, sidecars: &[Cow<'_, str>]) -> Option<Box<InitEnd>> {
    let is_sidecar = |status: &&RawContainerStatus<'_>| sidecars.contains(&status.name);
    let statuses = status.init_container_statuses.iter().filter(|status| !is_sidecar(status));
    let failed = |status: &RawContainerStatus<'_>, is_wanted: fn(&RawTerminated<'_>) -> bool| {
        let terminated = status.state.as_ref()?.terminated.as_ref();
        let terminated = terminated.filter(|terminated| is_wanted(terminated))?;
        let exit_code = terminated.exit_code.filter(|&code| code != 0)?;
        Some(InitEnd {
            name: (*status.name).into(),
            exit_code,
            reason: (*terminated.reason).into(),
            message: clipped(&terminated.message, MESSAGE_BYTES_MAX).into(),
        })
    };
    let said = statuses.clone().find_map(|status| failed(status, |one| !is_made_up(one)));
    let mut statuses = statuses;
    said.or_else(|| statuses.find_map(|status| failed(status, is_made_up))).map(Box::new)
}

fn phase(status: Option<&RawStatus<'_>>) -> Phase {
    match status.map_or("", |status| &status.phase) {
        "Running" => Phase::Running,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        "Unknown" => Phase::Unknown,
        _ => Phase::Pending,
    }
}

fn owner_uid(owners: &[RawOwner<'_>]) -> Option<Uid> {
    owner(owners).filter(|owner| !owner.uid.is_empty()).map(|owner| Uid::new(&owner.uid))
}

/// The owner by its name, if it is a driver's.
fn named_owner(owner: &RawOwner<'_>) -> Option<Owner> {
    let kind = match &*owner.kind {
        "Pod" => OwnerKind::Pod,
        "Job" => OwnerKind::Job,
        _ => return None,
    };
    let is_whole = !owner.name.is_empty() && !owner.uid.is_empty();
    is_whole.then(|| Owner { kind, name: owner.name.to_string(), uid: Uid::new(&owner.uid) })
}

/// What a pod ends with: its controller, or the Job beside the Lease of a run.
fn owner<'a, 'b>(owners: &'b [RawOwner<'a>]) -> Option<&'b RawOwner<'a>> {
    let controller = owners.iter().find(|owner| owner.is_controller)?;
    let of_lease = || owners.iter().find(|owner| owner.kind == "Job");
    if controller.kind == "Lease" { of_lease() } else { Some(controller) }
}

#[cfg(test)]
mod kubelet_ends_tests;
#[cfg(test)]
mod tests;
