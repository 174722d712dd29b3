//! Reads any pod as commands show it: the facts that the reconciler has, and what only people want to know.

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::side_cars::rest;
use super::{RawPod, stuck_kind};
use crate::error::WireError;
use crate::k8s::labels::DRIVER_DIR;
use crate::k8s::object::{Condition, Meta, or_default};
use posse_core::model::pod::{ContainerState, Phase, Pod, StartProblemKind};
use posse_core::policy::resource_hours::Reserved;
use posse_core::state::executors::has_ended;
use posse_encoding::amounts::pod_requests;
use posse_encoding::json;
use posse_encoding::quantity::Quantity;

#[derive(Clone, Debug)]
pub struct PodDetails {
    pub meta: Meta,
    /// The same pod as the reconciler sees it. The labels of an executor may be missing.
    pub facts: Pod,
    /// The name of the container that runs the driver or executor; empty if the pod has no container.
    pub main: String,
    pub spec: PodSpec,
    pub status: PodStatus,
}

/// What its containers are.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    active_deadline_seconds: Option<u32>,
    #[serde(deserialize_with = "or_default")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    ephemeral_containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    volumes: Vec<Volume>,
    /// What it takes from its node.
    #[serde(skip)]
    pub reserved: Reserved,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Volume {
    name: String,
    image: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: String,
    #[serde(deserialize_with = "or_default")]
    command: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    volume_mounts: Vec<VolumeMount>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VolumeMount {
    mount_path: String,
}

/// What the kubelet and the scheduler said.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
    /// When a node began to prepare it.
    pub start_time: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
    #[serde(deserialize_with = "or_default")]
    pub container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    pub name: String,
    pub restart_count: u64,
    #[serde(deserialize_with = "or_default")]
    pub state: State,
}

/// One of the three is set, or none yet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct State {
    pub waiting: Option<Waiting>,
    pub running: Option<Running>,
    pub terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Waiting {
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Running {
    pub started_at: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Terminated {
    pub exit_code: Option<i32>,
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
    pub finished_at: Option<String>,
}

/// The parts that only this reader needs.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Shown {
    #[serde(deserialize_with = "or_default")]
    metadata: Meta,
    #[serde(deserialize_with = "or_default")]
    spec: Map<String, Value>,
    #[serde(deserialize_with = "or_default")]
    status: PodStatus,
}

impl PodDetails {
    /// Reads a pod.
    ///
    /// # Errors
    /// The bytes are not a pod in JSON with a name and a uid.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let Shown { metadata: meta, spec, status } = serde_json::from_slice(bytes)?;
        let reserved = reserved(&spec);
        let spec = PodSpec { reserved, ..PodSpec::deserialize(spec)? };
        let raw: RawPod<'_> = json::read(bytes)?.ok_or(WireError::Missing("metadata.uid"))?;
        let facts = raw.with_main_container(spec.driver()).facts()?;
        let first = || spec.containers.first().map_or("", |container| &container.name);
        let main = facts.main_container.as_deref().unwrap_or_else(first).to_owned();
        Ok(Self { meta, facts, main, spec, status })
    }

    pub fn name(&self) -> &str {
        &self.meta.name
    }

    pub fn uid(&self) -> &str {
        &self.meta.uid
    }

    /// The phase as Kubernetes writes it.
    pub fn phase(&self) -> &'static str {
        match self.facts.phase {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
            Phase::Unknown => "Unknown",
        }
    }

    /// True if its phase never changes again.
    pub fn is_final(&self) -> bool {
        self.facts.phase.is_final()
    }

    /// True if its main container has ended, or the whole pod. Others may run on in it.
    pub fn has_ended(&self) -> bool {
        has_ended(&self.facts)
    }

    /// True if its main container has ended with 0: no phase tells that where others run on, or have failed.
    pub fn has_succeeded(&self) -> bool {
        match self.facts.container {
            ContainerState::Ended => {
                self.facts.end.as_ref().is_some_and(|end| end.exit_code == Some(0))
            }
            ContainerState::Running | ContainerState::Waiting => {
                self.facts.phase == Phase::Succeeded
            }
        }
    }

    /// True if it has not ended and is not being deleted.
    pub fn is_live(&self) -> bool {
        !self.has_ended() && !self.facts.deleting
    }

    /// True if it runs, or its main container does: a kubelet calls a pod Pending while another container waits.
    pub fn runs(&self) -> bool {
        self.facts.phase == Phase::Running || self.facts.container == ContainerState::Running
    }

    /// The containers beside the main one that have not ended with 0. Native side-cars, which the kubelet ends, are
    /// none.
    pub fn rest(&self) -> impl Iterator<Item = &ContainerStatus> {
        let others = self.status.container_statuses.iter();
        others.filter(|status| {
            let end = status.state.terminated.as_ref();
            status.name != self.main && end.is_none_or(|end| end.exit_code != Some(0))
        })
    }

    /// The deadline for what runs on in the pod after the end of its main container, which is now. `None` if it has
    /// an earlier one, or nothing runs on.
    pub fn rest_deadline_s(&self, now: Timestamp) -> Option<u32> {
        self.rest().find(|status| status.state.terminated.is_none())?;
        let start = self.status.start_time.as_deref().and_then(|text| text.parse().ok());
        rest(start, now, self.spec.active_deadline_seconds).deadline_after(self.facts.grace_s)
    }

    /// How often the main container was restarted.
    pub fn restarts(&self) -> u64 {
        let mut statuses = self.status.container_statuses.iter();
        statuses.find(|status| status.name == self.main).map_or(0, |status| status.restart_count)
    }

    /// Why it does not run yet, in the word of the scheduler or the kubelet.
    pub fn pending_reason(&self) -> Option<&str> {
        let unscheduled =
            |found: &&Condition| found.kind == "PodScheduled" && found.status == "False";
        let condition = self.status.conditions.iter().find(unscheduled);
        let reason =
            condition.map(|found| found.reason.as_str()).filter(|reason| !reason.is_empty());
        reason.or_else(|| self.waiting().map(|waiting| waiting.reason.as_str()))
    }

    /// When its main container ended, if it has.
    pub fn finished_at(&self) -> Option<&str> {
        let status = self.status.of_container(&self.main)?;
        status.state.terminated.as_ref()?.finished_at.as_deref()
    }

    /// The first container that waits for something, init containers first.
    pub fn waiting(&self) -> Option<&Waiting> {
        let PodStatus { init_container_statuses, container_statuses, .. } = &self.status;
        let all = init_container_statuses.iter().chain(container_statuses);
        let mut waiting = all.filter_map(|status| status.state.waiting.as_ref());
        // PodInitializing only says that init containers are not done.
        waiting.find(|waits| !matches!(waits.reason.as_str(), "" | "PodInitializing"))
    }
}

impl PodSpec {
    /// The container with our mount, as only a driver has it. The annotation of a pod goes before.
    fn driver(&self) -> Option<&str> {
        let has_mount = |container: &&Container| {
            container.volume_mounts.iter().any(|mount| mount.mount_path == DRIVER_DIR)
        };
        self.containers.iter().find(has_mount).map(|container| container.name.as_str())
    }

    /// The first word of a container's command, if it has one of its own.
    pub fn program(&self, container: &str) -> Option<&str> {
        let found = self.containers.iter().find(|one| one.name == container)?;
        found.command.first().map(String::as_str)
    }

    /// True if the volume of this name is an image.
    pub fn has_image_volume(&self, name: &str) -> bool {
        self.volumes.iter().any(|volume| volume.name == name && volume.image.is_some())
    }

    /// The names of all containers.
    pub fn container_names(&self) -> Vec<&str> {
        let Self { containers, init_containers, ephemeral_containers, .. } = self;
        let all = containers.iter().chain(init_containers).chain(ephemeral_containers);
        all.map(|container| container.name.as_str()).collect()
    }
}

fn reserved(spec: &Map<String, Value>) -> Reserved {
    let requests = pod_requests(spec);
    let of = |name, unit: Quantity| {
        let amount = requests.get(name).map_or(0, |amount| amount.divided(unit));
        u64::try_from(amount).unwrap_or(u64::MAX)
    };
    let milli = Quantity::parse("1m");
    Reserved {
        cpu_milli: milli.map_or(0, |milli| of("cpu", milli)),
        memory_bytes: of("memory", Quantity::whole(1)),
    }
}

impl PodStatus {
    /// The status of a container of any kind.
    pub fn of_container(&self, name: &str) -> Option<&ContainerStatus> {
        let others = self.init_container_statuses.iter().chain(&self.ephemeral_container_statuses);
        self.container_statuses.iter().chain(others).find(|status| status.name == name)
    }
}

impl Waiting {
    /// What kind of problem the reason is.
    pub fn problem(&self) -> StartProblemKind {
        stuck_kind(&self.reason)
    }
}

#[cfg(test)]
mod tests {
    use posse_core::model::pod::ContainerState;
    use serde_json::json;

    use super::*;
    use crate::k8s::labels::CONTAINER;

    fn named(main: Option<&str>, containers: Value, status: Value) -> PodDetails {
        let annotations = main.map(|main| json!({CONTAINER: main}));
        let pod = json!({"metadata": {"name": "p", "uid": "u", "annotations": annotations},
            "spec": {"containers": containers}, "status": status});
        PodDetails::parse(pod.to_string().as_bytes()).unwrap()
    }

    fn pod(containers: Value, status: Value) -> PodDetails {
        named(None, containers, status)
    }

    #[test]
    fn what_a_pod_reserves_and_why_it_does_not_run() {
        let asks = |cpu: Value, memory: Value| json!({"name": "a", "resources": {"requests": {"cpu": cpu, "memory": memory}}});
        let two = pod(
            json!([asks(json!("1500m"), json!("1Gi")), asks(json!(1), json!("-1"))]),
            json!({}),
        );
        let want = Reserved { cpu_milli: 2_500, memory_bytes: 1 << 30 };
        assert_eq!((two.spec.reserved, two.pending_reason()), (want, None));
        let none = pod(
            json!([{"name": "a", "resources": null}]),
            json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}),
        );
        assert_eq!(
            (none.spec.reserved, none.pending_reason()),
            (Reserved::default(), Some("Unschedulable"))
        );
        let pulls = json!([{"name": "a", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]);
        let pulling = pod(json!([{"name": "a"}]), json!({"containerStatuses": pulls}));
        assert_eq!(pulling.pending_reason(), Some("ImagePullBackOff"));
        let ended = json!([{"name": "a", "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:00Z"}}}]);
        let ended = pod(json!([{"name": "a"}]), json!({"containerStatuses": ended}));
        assert_eq!(ended.finished_at(), Some("2026-01-01T00:00:00Z"));
    }

    #[test]
    fn the_main_container_is_found_behind_others() {
        let mounted = json!({"name": "b", "volumeMounts": [{"mountPath": DRIVER_DIR}]});
        let ours = json!({"name": "e", "env": [{"name": "POSSE_EXECUTOR_ID", "value": "1"}]});
        for (main, containers, want) in [
            (None, json!([{"name": "a"}, mounted, {"name": "d"}]), "b"),
            (Some("d"), json!([{"name": "a"}, mounted, {"name": "d"}]), "d"),
            (Some("c"), json!([{"name": "a"}, {"name": "c"}]), "c"),
            (None, json!([{"name": "a"}, ours]), "e"),
            (None, json!([{"name": "a"}, {"name": "d"}]), "a"),
            // Somebody took it out: no other one takes its place.
            (Some("c"), json!([{"name": "a"}, {"name": "d"}]), "c"),
            (Some("c"), json!([{"name": "a"}]), "c"),
            (None, json!(null), ""),
        ] {
            assert_eq!(named(main, containers, json!({})).main, want);
        }
    }

    #[test]
    fn the_facts_are_those_of_the_main_container() {
        let ended = |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error"}});
        let containers = json!([{"name": "proxy"},
            {"name": "driver", "command": ["posse", "run"], "volumeMounts": [{"mountPath": DRIVER_DIR}]}]);
        let one = pod(
            containers,
            json!({"phase": "Failed", "containerStatuses": [
                {"name": "proxy", "state": ended(0)},
                {"name": "driver", "restartCount": 2, "state": ended(3)}]}),
        );
        let end = one.facts.end.as_deref().unwrap();
        assert_eq!((end.exit_code, one.facts.container), (Some(3), ContainerState::Ended));
        assert_eq!((one.restarts(), one.phase(), one.is_live()), (2, "Failed", false));
        assert_eq!(one.spec.program("driver"), Some("posse"));
        assert_eq!((one.spec.program("proxy"), one.waiting().is_none()), (None, true));
    }

    #[test]
    fn the_first_container_that_waits_is_an_init_container() {
        let waits = |reason: &str| json!({"name": "x", "state": {"waiting": {"reason": reason}}});
        let one = pod(
            json!([{"name": "x"}]),
            json!({"containerStatuses": [waits("PodInitializing"), waits("CreateContainerError")],
                "initContainerStatuses": [waits("RegistryUnavailable")]}),
        );
        let first = one.waiting().unwrap();
        assert_eq!(first.problem(), StartProblemKind::Image);
        assert_eq!(first.reason, "RegistryUnavailable");
        for broken in ["null", "[]", r#"{"metadata":{"name":"p"}}"#, r#"{"spec":{"containers":7}}"#]
        {
            assert!(PodDetails::parse(broken.as_bytes()).is_err(), "{broken}");
        }
    }
}
