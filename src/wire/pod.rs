//! Owns reading a pod: the few facts that decisions need, taken from the bytes without building the
//! rest. Decides nothing about the pod; the meaning of the facts is `core/`'s.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;

use crate::core::model::ids::{ExecutorId, GroupName, Uid, Version};
use crate::core::model::input::{ForeignPod, PodAnswer};
use crate::core::model::pod::OwnerPod;
use crate::core::model::pod::{
    ContainerState, End, InitEnd, Phase, Pod, StartProblem, StartProblemKind,
};
use crate::core::policy::orphans::OrphanCandidate;
use crate::wire::draining;
use crate::wire::json::{Bad, Json};
use crate::wire::labels::{COMPONENT, Selection};

mod raw;

pub(super) use self::raw::{Fields, RawPod, object};
use self::raw::{
    Labels, RawCondition, RawContainerStatus, RawOwner, RawState, RawStatus, RawTerminated,
};

/// What ReplicaSets and their users call the price of a pod's end.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// A message of a pod or container is kept up to here, as the kubelet caps its own, in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// What is kept of the words about a pod that does not start, in bytes: thousands may not at a time.
const WORDS_BYTES_MAX: usize = 512;

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Not JSON, or not of the expected shape; the parser's words, with line and column.
    Json(String),
    /// A field that every object has is absent.
    Missing(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(problem) => f.write_str(problem),
            Self::Missing(field) => write!(f, "{field} is missing"),
        }
    }
}

impl std::error::Error for WireError {}

impl From<Bad> for WireError {
    fn from(bad: Bad) -> Self {
        Self::Json(format!("expected {} after {} bytes", bad.expected, bad.at))
    }
}

impl From<serde_json::Error> for WireError {
    fn from(e: serde_json::Error) -> Self {
        Self::Json(e.to_string())
    }
}

/// Reads one pod: ours where its labels match the selection and carry an id and a group.
///
/// # Errors
/// When the bytes are not a pod with a name and a uid.
pub fn parse(bytes: &[u8], selection: &Selection) -> Result<PodAnswer, WireError> {
    let mut json = Json::new(bytes)?;
    let pod: RawPod<'_> = object(&mut json)?.ok_or(WireError::Missing("metadata.uid"))?;
    json.end()?;
    pod.seen(selection)
}

/// A string of the input: borrowed from it where it holds no escape.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

impl<'a> Text<'a> {
    /// A string; none for null.
    pub(super) fn read(json: &mut Json<'a>) -> Result<Option<Self>, Bad> {
        Ok(json.text()?.map(Self))
    }

    fn boxed(&self) -> Box<str> {
        Box::from(&*self.0)
    }
}

impl RawPod<'_> {
    /// `metadata.resourceVersion` as it is written.
    pub(super) fn version_text(&self) -> Option<&str> {
        self.metadata.as_ref()?.resource_version.as_ref().map(|text| &*text.0)
    }

    /// What it is to a cleanup.
    pub(super) fn leftover(self) -> Result<OrphanCandidate, WireError> {
        let meta = self.metadata.ok_or(WireError::Missing("items[].metadata"))?;
        let name = meta.name.ok_or(WireError::Missing("items[].metadata.name"))?;
        let uid = meta.uid.ok_or(WireError::Missing("items[].metadata.uid"))?;
        let labels = meta.labels.unwrap_or_default();
        let named = |text: Option<Text<'_>>| {
            text.map(|text| text.0.into_owned()).filter(|text| !text.is_empty())
        };
        let owner = meta.owner_references.into_iter().find(|owner| owner.is_controller);
        let owner = owner.filter(|owner| text_of(owner.kind.as_ref()) == "Pod");
        let phase = phase(self.status.as_ref().and_then(|status| status.phase.as_ref()));
        Ok(OrphanCandidate {
            phase,
            name: name.0.into_owned(),
            uid: Uid::new(&uid.0),
            app: named(labels.app),
            instance: named(labels.instance),
            owner: owner.and_then(|owner| {
                Some(OwnerPod { name: owner.name?.0.into_owned(), uid: Uid::new(&owner.uid?.0) })
            }),
        })
    }

    /// What it is as an owner.
    pub(super) fn uid_and_phase(&self) -> Result<(Uid, Phase), WireError> {
        let uid = self.metadata.as_ref().and_then(|meta| meta.uid.as_ref());
        let uid = uid.ok_or(WireError::Missing("metadata.uid"))?;
        let text = self.status.as_ref().and_then(|status| status.phase.as_ref());
        Ok((Uid::new(&uid.0), phase(text)))
    }

    /// What it is to us.
    pub(super) fn seen(self, selection: &Selection) -> Result<PodAnswer, WireError> {
        let meta = self.metadata.unwrap_or_default();
        let uid = match meta.uid.as_ref().map(|uid| &*uid.0) {
            Some(uid) if !uid.is_empty() => Uid::new(uid),
            Some(_) | None => return Err(WireError::Missing("metadata.uid")),
        };
        let name = match meta.name.as_ref() {
            Some(name) if !name.0.is_empty() => name.boxed(),
            Some(_) | None => return Err(WireError::Missing("metadata.name")),
        };
        let labels = meta.labels.unwrap_or_default();
        let Some((id, group)) = labels.identity(selection) else {
            return Ok(PodAnswer::Foreign(ForeignPod { name: name.into(), uid }));
        };
        let annotations = meta.annotations.unwrap_or_default();
        let spec = self.spec.unwrap_or_default();
        let status = self.status.unwrap_or_default();
        let containers = spec.containers;
        let deciding = annotations.container.or(containers.name);
        let mut state = status.state_of(deciding.as_ref());
        let phase = phase(status.phase.as_ref());
        let mut sidecar = None;
        if text_of(annotations.sidecar_failure.as_ref()) == "fail"
            && let Some((name, failed)) = status.failed_sidecar(deciding.as_ref(), state)
        {
            (state, sidecar) = (Some(failed), Some(Box::from(name)));
        }
        let container = container_state(state);
        let deleting = meta.is_deleting;
        let is_starting = container == ContainerState::Waiting && !phase.is_final() && !deleting;
        let gate = spec.scheduling_gates.name.as_ref();
        Ok(PodAnswer::Ours(Pod {
            uid,
            name,
            version: meta.resource_version.as_ref().and_then(|text| Version::parse(&text.0)),
            id,
            group,
            slot: number(labels.slot.as_ref()),
            owner: controller(&meta.owner_references),
            phase,
            deleting,
            container,
            main_container: deciding.as_ref().filter(|_| containers.has_others).map(Text::boxed),
            start_problem: if is_starting {
                status.stuck(deciding.as_ref(), state, gate)
            } else {
                None
            },
            ready: status.condition("Ready", "True").is_some(),
            draining: annotations.draining.map(|text| Box::new(draining::parse(&text.0))),
            counted: labels.counted.as_ref().map(|text| text.0.parse().unwrap_or(0)),
            deletion_cost: number(annotations.deletion_cost.as_ref()).unwrap_or(0),
            node: spec.node_name.as_ref().filter(|node| !node.0.is_empty()).map(Text::boxed),
            ip: number(status.pod_ip.as_ref()),
            end: end(&status, phase, state, sidecar).map(|end| {
                let has_max_age = annotations.max_age.is_some();
                Box::new(End { has_max_age, ..*end })
            }),
        }))
    }
}

impl Labels<'_> {
    fn identity(&self, selection: &Selection) -> Option<(ExecutorId, GroupName)> {
        let ours = text_of(self.app.as_ref()) == selection.app
            && text_of(self.instance.as_ref()) == selection.instance
            && text_of(self.component.as_ref()) == COMPONENT.1;
        let id = number(self.id.as_ref()).filter(|&id| id > 0)?;
        let group = text_of(self.group.as_ref());
        (ours && !group.is_empty()).then(|| (ExecutorId(id), GroupName::from(group)))
    }
}

impl<'a> RawStatus<'a> {
    fn condition(&self, kind: &str, status: &str) -> Option<&RawCondition<'a>> {
        self.conditions.iter().find(|condition| {
            text_of(condition.kind.as_ref()) == kind && text_of(condition.status.as_ref()) == status
        })
    }

    fn state_of(&self, container: Option<&Text<'_>>) -> Option<&RawState<'a>> {
        let name = &*container?.0;
        let statuses = self.container_statuses.iter();
        statuses.into_iter().find(|status| text_of(status.name.as_ref()) == name)?.state.as_ref()
    }

    /// The first other container that ended badly, where that was not for the deciding one's end
    /// (`decided`). A native side-car is begun again as long as the pod lives, and is ended with it.
    fn failed_sidecar(
        &self,
        deciding: Option<&Text<'_>>,
        decided: Option<&RawState<'a>>,
    ) -> Option<(&str, &RawState<'a>)> {
        let decided = decided.and_then(|state| state.terminated.as_ref());
        if decided.is_some_and(|end| end.exit_code != Some(0)) {
            return None;
        }
        let failed = |status: &'_ &RawContainerStatus<'a>| {
            let end = status.state.as_ref().and_then(|state| state.terminated.as_ref());
            end.is_some_and(|end| end.exit_code.is_some_and(|code| code != 0))
        };
        let is_first = |status: &&RawContainerStatus<'a>| {
            let time = |end: Option<&RawTerminated<'_>>| {
                text_of(end.and_then(|end| end.finished_at.as_ref())).to_owned()
            };
            let state = status.state.as_ref();
            time(state.and_then(|state| state.terminated.as_ref())) < time(decided)
        };
        let others = self.container_statuses.iter();
        let natives = self.init_container_statuses.iter();
        others
            .filter(|status| Some(text_of(status.name.as_ref())) != deciding.map(|name| &*name.0))
            .chain(natives.filter(is_first))
            .find(failed)
            .and_then(|status| Some((text_of(status.name.as_ref()), status.state.as_ref()?)))
    }

    /// What keeps the pod from starting, where anything tells. `state`: the deciding container's.
    fn stuck(
        &self,
        deciding: Option<&Text<'_>>,
        state: Option<&RawState<'_>>,
        gate: Option<&Text<'_>>,
    ) -> Option<Box<StartProblem>> {
        let stuck = |kind, words: String| {
            let words = clipped(&words, WORDS_BYTES_MAX).into();
            Some(Box::new(StartProblem { kind, message: words }))
        };
        if let Some(unplaced) = self.condition("PodScheduled", "False") {
            let words = text_of(unplaced.message.as_ref());
            return match (text_of(unplaced.reason.as_ref()), gate) {
                ("SchedulingGated", gate) => {
                    stuck(StartProblemKind::Gated, format!("{words} ({})", text_of(gate)))
                }
                (reason, _) => stuck(StartProblemKind::Unschedulable, joined(reason, words)),
            };
        }
        let mut creating = None;
        for status in self.init_container_statuses.iter() {
            let Some(state) = &status.state else { continue };
            let words = state.trouble();
            let kind = stuck_kind(words.0);
            let name = text_of(status.name.as_ref());
            if kind != StartProblemKind::Creating {
                return stuck(kind, format!("init container {name}: {}", joined(words.0, words.1)));
            }
            if state.is_running && creating.is_none() {
                creating = Some(format!("init container {name} runs"));
            }
        }
        let (reason, message) = state.map_or(("", ""), RawState::trouble);
        let kind = stuck_kind(reason);
        let words = format!("container {}: {}", text_of(deciding), joined(reason, message));
        match (kind, creating) {
            (StartProblemKind::Creating, Some(creating)) => stuck(kind, creating),
            (StartProblemKind::Creating, None) if reason.is_empty() => None,
            (kind, _) => stuck(kind, words),
        }
    }
}

impl RawState<'_> {
    /// Reason and message of a container that waits.
    fn trouble(&self) -> (&str, &str) {
        let waiting = self.waiting.as_ref();
        let reason = text_of(waiting.and_then(|waiting| waiting.reason.as_ref()));
        (reason, text_of(waiting.and_then(|waiting| waiting.message.as_ref())))
    }
}

/// What a kubelet's reason for a container that waits comes to. Words that are not known are
/// trouble: what goes well has only these three.
fn stuck_kind(reason: &str) -> StartProblemKind {
    match reason {
        "" | "ContainerCreating" | "PodInitializing" => StartProblemKind::Creating,
        "ErrImageNeverPull"
        | "ErrImagePull"
        | "ImageInspectError"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => StartProblemKind::Image,
        _ => StartProblemKind::Config,
    }
}

/// A reason and its message.
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
    phase: Phase,
    state: Option<&RawState<'_>>,
    sidecar: Option<Box<str>>,
) -> Option<Box<End>> {
    let terminated = state.and_then(|state| state.terminated.as_ref());
    let disruption = status.condition("DisruptionTarget", "True");
    // A reason of the pod itself tells of trouble (NodeLost) before the phase does.
    let troubled = !text_of(status.reason.as_ref()).is_empty();
    if !phase.is_final() && terminated.is_none() && disruption.is_none() && !troubled {
        return None;
    }
    let disruption_message = disruption.map_or("", |said| text_of(said.message.as_ref()));
    let disruption = disruption.map_or("", |condition| match text_of(condition.reason.as_ref()) {
        "" => "DisruptionTarget",
        reason => reason,
    });
    Some(Box::new(End {
        pod_reason: text_of(status.reason.as_ref()).into(),
        pod_message: clipped(text_of(status.message.as_ref()), MESSAGE_BYTES_MAX).into(),
        disruption: disruption.into(),
        disruption_message: clipped(disruption_message, MESSAGE_BYTES_MAX).into(),
        exit_code: terminated.and_then(|t| t.exit_code),
        signal: terminated.and_then(|t| t.signal).filter(|&signal| signal != 0),
        container_reason: text_of(terminated.and_then(|t| t.reason.as_ref())).into(),
        container_message: clipped(
            text_of(terminated.and_then(|t| t.message.as_ref())),
            MESSAGE_BYTES_MAX,
        )
        .into(),
        // A side-car's code decides nothing: only where nothing else has ended is one to blame.
        init: if terminated.is_none() && phase == Phase::Failed { init_end(status) } else { None },
        sidecar,
        has_max_age: false,
    }))
}

/// The first init container that failed.
fn init_end(status: &RawStatus<'_>) -> Option<Box<InitEnd>> {
    let statuses = &status.init_container_statuses;
    let failed = |status: &RawContainerStatus<'_>| {
        let terminated = status.state.as_ref()?.terminated.as_ref()?;
        let exit_code = terminated.exit_code.filter(|&code| code != 0)?;
        let message = text_of(terminated.message.as_ref());
        Some(InitEnd {
            name: text_of(status.name.as_ref()).into(),
            exit_code,
            reason: text_of(terminated.reason.as_ref()).into(),
            message: clipped(message, MESSAGE_BYTES_MAX).into(),
        })
    };
    statuses.iter().find_map(failed).map(Box::new)
}

fn phase(text: Option<&Text<'_>>) -> Phase {
    match text_of(text) {
        "Running" => Phase::Running,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        "Unknown" => Phase::Unknown,
        _ => Phase::Pending,
    }
}

fn controller(owners: &[RawOwner<'_>]) -> Option<Uid> {
    let owner = owners.iter().find(|owner| owner.is_controller)?;
    owner.uid.as_ref().map(|uid| Uid::new(&uid.0))
}

fn text_of<'t>(text: Option<&'t Text<'_>>) -> &'t str {
    text.map_or("", |text| &text.0)
}

/// Whatever is written as text and read as something else; none where it does not parse.
fn number<T: std::str::FromStr>(text: Option<&Text<'_>>) -> Option<T> {
    text?.0.parse().ok()
}

/// The longest beginning of `text` with at most `bytes_max` bytes.
pub(super) fn clipped(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests;
