//! The fields of a pod that posse reads, as they are on the wire.

use std::borrow::Cow;

use super::DELETION_COST;
use crate::fields::fields;
use crate::k8s::kueue;
use crate::k8s::labels::{
    APP, ATTEMPT, COMPLETED, COMPONENT, CONTAINER, COUNTED, DO_NOT_DISRUPT, DRAINING, EXECUTOR_ID,
    EXECUTOR_ID_VARIABLE, FOLDED, GROUP, INSTANCE, KEY, MAX_AGE, RESTART, SAFE_TO_EVICT, SLOT,
    TASK,
};
use posse_encoding::fields::{Fields, Value};
use posse_encoding::quantity::Quantity;

/// An exit code or signal. None if it does not fit 32 bits.
fn code<'a, V: Value<'a>>(value: &mut V) -> Result<Option<i32>, V::Error> {
    Ok(value.number()?.and_then(|number| i32::try_from(number).ok()))
}

/// A number of seconds. None if it does not fit 32 bits.
fn seconds<'a, V: Value<'a>>(value: &mut V) -> Result<Option<u32>, V::Error> {
    Ok(value.number()?.and_then(|number| u32::try_from(number).ok()))
}

/// Every field may be absent or null.
#[derive(Debug, Default)]
pub(crate) struct RawPod<'a> {
    pub(super) metadata: Option<RawMeta<'a>>,
    pub(super) spec: Option<RawSpec<'a>>,
    pub(super) status: Option<RawStatus<'a>>,
}

fields!(RawPod<'a>: |self, value|
    "metadata"(1) => self.metadata = value.fields()?,
    "spec"(2) => self.spec = value.fields()?,
    "status"(3) => self.status = value.fields()?,
);

#[derive(Debug, Default)]
pub(crate) struct RawMeta<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) uid: Cow<'a, str>,
    pub(super) resource_version: Cow<'a, str>,
    pub(super) is_deleting: bool,
    pub(super) deletion_grace_s: Option<u32>,
    /// All but that of Kueue.
    pub(super) finalizers: Vec<String>,
    /// It has the finalizer of Kueue.
    pub(super) is_held_by_queue: bool,
    pub(super) labels: Labels<'a>,
    pub(super) annotations: Annotations<'a>,
    pub(super) owner_references: Vec<RawOwner<'a>>,
}

fields!(RawMeta<'a>: |self, value|
    "name"(1) => self.name = value.text()?,
    "uid"(5) => self.uid = value.text()?,
    "resourceVersion"(6) => self.resource_version = value.text()?,
    "deletionTimestamp"(9) => self.is_deleting = value.is_given()?,
    "deletionGracePeriodSeconds"(10) => self.deletion_grace_s = seconds(value)?,
    "labels"(11) => value.entries(&mut self.labels)?,
    "annotations"(12) => value.entries(&mut self.annotations)?,
    "finalizers"(14) => {
        let told = finalizers(value.raw()?);
        self.is_held_by_queue |= told.iter().any(|one| one == kueue::FINALIZER);
        self.finalizers.extend(told.into_iter().filter(|one| one != kueue::FINALIZER));
    },
    "ownerReferences"(13) => value.items(&mut self.owner_references)?,
);

/// A list of texts in JSON, one text after the other in protobuf.
fn finalizers(raw: &[u8]) -> Vec<String> {
    match serde_json::from_slice::<Option<Vec<String>>>(raw) {
        Ok(list) => list.unwrap_or_default(),
        Err(_) => vec![String::from_utf8_lossy(raw).into_owned()],
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawOwner<'a> {
    pub(super) kind: Cow<'a, str>,
    pub(super) name: Cow<'a, str>,
    pub(super) uid: Cow<'a, str>,
    pub(super) is_controller: bool,
}

fields!(RawOwner<'a>: |self, value|
    "kind"(1) => self.kind = value.text()?,
    "name"(3) => self.name = value.text()?,
    "uid"(4) => self.uid = value.text()?,
    "controller"(6) => self.is_controller = value.is_true()?,
);

#[derive(Debug, Default)]
pub(crate) struct RawSpec<'a> {
    pub(super) node_name: Cow<'a, str>,
    pub(super) grace_s: Option<u32>,
    pub(super) deadline_s: Option<u32>,
    pub(super) containers: Vec<RawContainer<'a>>,
    pub(super) scheduling_gates: Vec<Named<'a>>,
    /// A container may end and be restarted in place, other than a native side-car or before the start.
    pub(super) restarts_in_place: bool,
    /// The names of native side-cars.
    pub(super) sidecars: Vec<Cow<'a, str>>,
}

fields!(RawSpec<'a>: |self, value|
    "nodeName"(10) => self.node_name = value.text()?,
    "terminationGracePeriodSeconds"(4) => self.grace_s = seconds(value)?,
    "activeDeadlineSeconds"(5) => self.deadline_s = seconds(value)?,
    "containers"(2) => {
        value.items(&mut self.containers)?;
        self.restarts_in_place |=
            self.containers.iter().any(|one| one.has_restart_policy || one.has_rules);
    },
    "initContainers"(20) => {
        let mut containers: Vec<RawContainer<'a>> = Vec::new();
        value.items(&mut containers)?;
        self.restarts_in_place |= containers.iter().any(|one| one.has_rules);
        let sidecars = containers.into_iter().filter(|one| one.has_restart_policy);
        self.sidecars.extend(sidecars.map(|one| one.name));
    },
    "restartPolicy"(3) => self.restarts_in_place |= is_restart_policy(value)?,
    "schedulingGates"(38) => value.items(&mut self.scheduling_gates)?,
);

#[derive(Debug, Default)]
pub(crate) struct RawContainer<'a> {
    pub(super) name: Cow<'a, str>,
    /// It has the variables that posse gives to each container of a template.
    pub(super) is_of_template: bool,
    pub(super) resources: Option<RawResources>,
    /// Its own policy is another than `Never`.
    has_restart_policy: bool,
    /// It has restart rules (KEP-5307, KEP-5532).
    has_rules: bool,
}

fn is_restart_policy<'a, V: Value<'a>>(value: &mut V) -> Result<bool, V::Error> {
    Ok(!matches!(&*value.text()?, "" | "Never"))
}

fields!(RawContainer<'a>: |self, value|
    "name"(1) => self.name = value.text()?,
    "env"(7) => value.each(&mut |variable: Option<Named<'_>>| {
        self.is_of_template |=
            variable.is_some_and(|variable| variable.name == EXECUTOR_ID_VARIABLE);
    })?,
    "resources"(8) => self.resources = value.fields()?,
    "restartPolicy"(24) => self.has_restart_policy = is_restart_policy(value)?,
    "restartPolicyRules"(25) => {
        value.each(&mut |rule: Option<Named<'_>>| self.has_rules |= rule.is_some())?;
    },
);

#[derive(Debug, Default)]
pub(crate) struct RawResources {
    pub(super) limits: RawLimits,
}

fields!(RawResources: |self, value|
    "limits"(1) => value.entries(&mut self.limits)?,
);

#[derive(Debug, Default)]
pub(crate) struct RawLimits {
    /// None if it is not a quantity.
    pub(super) memory_bytes: Option<u64>,
}

impl<'a> Fields<'a> for RawLimits {
    // An entry of a map has its key as text.
    const NUMBERS: &'static [(u32, &'static str)] = &[];

    fn field<V: Value<'a>>(&mut self, key: &str, value: &mut V) -> Result<(), V::Error> {
        if key == "memory" {
            let limit = Quantity::parse(&value.quantity()?);
            self.memory_bytes =
                limit.and_then(|limit| u64::try_from(limit.rounded_up_to_bytes()).ok());
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawStatus<'a> {
    pub(super) phase: Cow<'a, str>,
    pub(super) reason: Cow<'a, str>,
    pub(super) message: Cow<'a, str>,
    pub(super) pod_ip: Cow<'a, str>,
    pub(super) host_ip: Cow<'a, str>,
    pub(super) start_time: Cow<'a, str>,
    pub(super) conditions: Vec<RawCondition<'a>>,
    pub(super) container_statuses: Vec<RawContainerStatus<'a>>,
    pub(super) init_container_statuses: Vec<RawContainerStatus<'a>>,
}

fields!(RawStatus<'a>: |self, value|
    "phase"(1) => self.phase = value.text()?,
    "reason"(4) => self.reason = value.text()?,
    "message"(3) => self.message = value.text()?,
    "podIP"(6) => self.pod_ip = value.text()?,
    "hostIP"(5) => self.host_ip = value.text()?,
    "startTime"(7) => self.start_time = value.time()?,
    "conditions"(2) => value.items(&mut self.conditions)?,
    "containerStatuses"(8) => value.items(&mut self.container_statuses)?,
    "initContainerStatuses"(10) => value.items(&mut self.init_container_statuses)?,
);

#[derive(Debug, Default)]
pub(crate) struct RawCondition<'a> {
    pub(super) kind: Cow<'a, str>,
    pub(super) status: Cow<'a, str>,
    pub(super) since: Cow<'a, str>,
    pub(super) reason: Cow<'a, str>,
    pub(super) message: Cow<'a, str>,
}

fields!(RawCondition<'a>: |self, value|
    "type"(1) => self.kind = value.text()?,
    "status"(2) => self.status = value.text()?,
    "lastTransitionTime"(4) => self.since = value.time()?,
    "reason"(5) => self.reason = value.text()?,
    "message"(6) => self.message = value.text()?,
);

#[derive(Debug, Default)]
pub(crate) struct RawContainerStatus<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) state: Option<RawState<'a>>,
}

fields!(RawContainerStatus<'a>: |self, value|
    "name"(1) => self.name = value.text()?,
    "state"(2) => self.state = value.fields()?,
);

#[derive(Debug, Default)]
pub(crate) struct RawState<'a> {
    pub(super) is_running: bool,
    pub(super) terminated: Option<RawTerminated<'a>>,
    pub(super) waiting: Option<RawWaiting<'a>>,
}

fields!(RawState<'a>: |self, value|
    "running"(2) => self.is_running = value.is_given()?,
    "terminated"(3) => self.terminated = value.fields()?,
    "waiting"(1) => self.waiting = value.fields()?,
);

#[derive(Debug, Default)]
pub(crate) struct RawWaiting<'a> {
    pub(super) reason: Cow<'a, str>,
    pub(super) message: Cow<'a, str>,
}

fields!(RawWaiting<'a>: |self, value|
    "reason"(1) => self.reason = value.text()?,
    "message"(2) => self.message = value.text()?,
);

#[derive(Debug, Default)]
pub(crate) struct RawTerminated<'a> {
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) reason: Cow<'a, str>,
    pub(super) message: Cow<'a, str>,
    pub(super) finished_at: Cow<'a, str>,
}

fields!(RawTerminated<'a>: |self, value|
    "exitCode"(1) => self.exit_code = code(value)?,
    "signal"(2) => self.signal = code(value)?,
    "reason"(3) => self.reason = value.text()?,
    "message"(4) => self.message = value.text()?,
    "finishedAt"(6) => self.finished_at = value.time()?,
);

/// The labels that posse reads.
#[derive(Debug, Default)]
pub(crate) struct Labels<'a> {
    pub(super) app: Cow<'a, str>,
    pub(super) instance: Cow<'a, str>,
    pub(super) group: Cow<'a, str>,
    pub(super) id: Cow<'a, str>,
    pub(super) slot: Cow<'a, str>,
    pub(super) attempt: Cow<'a, str>,
    pub(super) component: Cow<'a, str>,
    pub(super) counted: Option<Cow<'a, str>>,
    pub(super) is_completed: bool,
    pub(super) is_in_queue_group: bool,
    pub(super) key: Cow<'a, str>,
}

impl<'a> Fields<'a> for Labels<'a> {
    // An entry of a map has its key as text.
    const NUMBERS: &'static [(u32, &'static str)] = &[];

    fn field<V: Value<'a>>(&mut self, key: &str, value: &mut V) -> Result<(), V::Error> {
        match key {
            APP => self.app = value.text()?,
            INSTANCE => self.instance = value.text()?,
            GROUP => self.group = value.text()?,
            EXECUTOR_ID => self.id = value.text()?,
            SLOT => self.slot = value.text()?,
            ATTEMPT => self.attempt = value.text()?,
            key if key == COMPONENT.0 => self.component = value.text()?,
            COUNTED => self.counted = Some(value.text()?),
            COMPLETED => self.is_completed = value.is_given()?,
            kueue::POD_GROUP => self.is_in_queue_group = value.is_given()?,
            KEY => self.key = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

/// The annotations that posse reads.
#[derive(Debug, Default)]
pub(crate) struct Annotations<'a> {
    pub(super) container: Cow<'a, str>,
    pub(super) deletion_cost: Cow<'a, str>,
    pub(super) do_not_disrupt: Cow<'a, str>,
    pub(super) safe_to_evict: Cow<'a, str>,
    pub(super) draining: Option<Cow<'a, str>>,
    pub(super) folded: Option<Cow<'a, str>>,
    pub(super) has_max_age: bool,
    pub(super) restart: Cow<'a, str>,
    pub(super) task: Cow<'a, str>,
}

impl<'a> Fields<'a> for Annotations<'a> {
    // An entry of a map has its key as text.
    const NUMBERS: &'static [(u32, &'static str)] = &[];

    fn field<V: Value<'a>>(&mut self, key: &str, value: &mut V) -> Result<(), V::Error> {
        match key {
            CONTAINER => self.container = value.text()?,
            DELETION_COST => self.deletion_cost = value.text()?,
            key if key == DO_NOT_DISRUPT.0 => self.do_not_disrupt = value.text()?,
            key if key == SAFE_TO_EVICT.0 => self.safe_to_evict = value.text()?,
            DRAINING => self.draining = Some(value.text()?),
            FOLDED => self.folded = Some(value.text()?),
            MAX_AGE => self.has_max_age = value.is_given()?,
            RESTART => self.restart = value.text()?,
            TASK => self.task = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

/// An object of which only the name counts.
#[derive(Debug, Default)]
pub(crate) struct Named<'a> {
    pub(super) name: Cow<'a, str>,
}

fields!(Named<'a>: |self, value|
    "name"(1) => self.name = value.text()?,
);
