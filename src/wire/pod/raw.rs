//! The fields of a pod that posse reads, as they are on the wire.

use super::{DELETION_COST, Text};
use crate::wire::json::{Json, JsonError};
use crate::wire::labels::{
    APP, ATTEMPT, COMPLETED, COMPONENT, CONTAINER, COUNTED, DRAINING, EXECUTOR_ID, GROUP, INSTANCE,
    KEY, MAX_AGE, RESTART, SIDECAR_FAILURE, SLOT, TASK,
};

/// A struct that is filled key by key.
pub(crate) trait Fields<'a>: Default {
    /// Reads the value of `key`, or leaves it to be skipped.
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError>;
}

/// An object. None for null.
pub(crate) fn object<'a, T: Fields<'a>>(json: &mut Json<'a>) -> Result<Option<T>, JsonError> {
    let mut whole = T::default();
    let is_given = json.object(&mut |key, json| whole.field(key, json))?;
    Ok(is_given.then_some(whole))
}

/// A list of objects.
fn objects<'a, T: Fields<'a>>(json: &mut Json<'a>) -> Result<Vec<T>, JsonError> {
    let mut all = Vec::new();
    json.list(&mut |json| {
        all.extend(object(json)?);
        Ok(())
    })?;
    Ok(all)
}

/// An exit code or signal. None if it does not fit 32 bits.
fn code(json: &mut Json<'_>) -> Result<Option<i32>, JsonError> {
    Ok(json.number()?.and_then(|number| i32::try_from(number).ok()))
}

/// A number of seconds. None if it does not fit 32 bits.
fn seconds(json: &mut Json<'_>) -> Result<Option<u32>, JsonError> {
    Ok(json.number()?.and_then(|number| u32::try_from(number).ok()))
}

/// Every field may be absent or null.
#[derive(Debug, Default)]
pub(crate) struct RawPod<'a> {
    pub(super) metadata: Option<RawMeta<'a>>,
    pub(super) spec: Option<RawSpec<'a>>,
    pub(super) status: Option<RawStatus<'a>>,
}

impl<'a> Fields<'a> for RawPod<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            "metadata" => self.metadata = object(json)?,
            "spec" => self.spec = object(json)?,
            "status" => self.status = object(json)?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawMeta<'a> {
    pub(super) name: Option<Text<'a>>,
    pub(super) uid: Option<Text<'a>>,
    pub(super) resource_version: Option<Text<'a>>,
    pub(super) is_deleting: bool,
    pub(super) deletion_grace_s: Option<u32>,
    pub(super) labels: Option<Labels<'a>>,
    pub(super) annotations: Option<Annotations<'a>>,
    pub(super) owner_references: Vec<RawOwner<'a>>,
}

impl<'a> Fields<'a> for RawMeta<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            "name" => self.name = Text::read(json)?,
            "uid" => self.uid = Text::read(json)?,
            "resourceVersion" => self.resource_version = Text::read(json)?,
            "deletionTimestamp" => self.is_deleting = json.is_given()?,
            "deletionGracePeriodSeconds" => self.deletion_grace_s = seconds(json)?,
            "labels" => self.labels = object(json)?,
            "annotations" => self.annotations = object(json)?,
            "ownerReferences" => self.owner_references = objects(json)?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawOwner<'a> {
    pub(super) kind: Option<Text<'a>>,
    pub(super) name: Option<Text<'a>>,
    pub(super) uid: Option<Text<'a>>,
    pub(super) is_controller: bool,
}

impl<'a> Fields<'a> for RawOwner<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            "kind" => self.kind = Text::read(json)?,
            "name" => self.name = Text::read(json)?,
            "uid" => self.uid = Text::read(json)?,
            "controller" => self.is_controller = json.is_true()?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawSpec<'a> {
    pub(super) node_name: Option<Text<'a>>,
    pub(super) grace_s: Option<u32>,
    pub(super) containers: First<'a>,
    pub(super) scheduling_gates: First<'a>,
}

impl<'a> Fields<'a> for RawSpec<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            "nodeName" => self.node_name = Text::read(json)?,
            "terminationGracePeriodSeconds" => self.grace_s = seconds(json)?,
            "containers" => self.containers = First::read(json)?,
            "schedulingGates" => self.scheduling_gates = First::read(json)?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawStatus<'a> {
    pub(super) phase: Option<Text<'a>>,
    pub(super) reason: Option<Text<'a>>,
    pub(super) message: Option<Text<'a>>,
    pub(super) pod_ip: Option<Text<'a>>,
    pub(super) host_ip: Option<Text<'a>>,
    pub(super) conditions: Vec<RawCondition<'a>>,
    pub(super) container_statuses: Vec<RawContainerStatus<'a>>,
    pub(super) init_container_statuses: Vec<RawContainerStatus<'a>>,
}

impl<'a> Fields<'a> for RawStatus<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            "phase" => self.phase = Text::read(json)?,
            "reason" => self.reason = Text::read(json)?,
            "message" => self.message = Text::read(json)?,
            "podIP" => self.pod_ip = Text::read(json)?,
            "hostIP" => self.host_ip = Text::read(json)?,
            "conditions" => self.conditions = objects(json)?,
            "containerStatuses" => self.container_statuses = objects(json)?,
            "initContainerStatuses" => self.init_container_statuses = objects(json)?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawCondition<'a> {
    pub(super) kind: Option<Text<'a>>,
    pub(super) status: Option<Text<'a>>,
    pub(super) reason: Option<Text<'a>>,
    pub(super) message: Option<Text<'a>>,
}

impl<'a> Fields<'a> for RawCondition<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            "type" => self.kind = Text::read(json)?,
            "status" => self.status = Text::read(json)?,
            "reason" => self.reason = Text::read(json)?,
            "message" => self.message = Text::read(json)?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawContainerStatus<'a> {
    pub(super) name: Option<Text<'a>>,
    pub(super) state: Option<RawState<'a>>,
}

impl<'a> Fields<'a> for RawContainerStatus<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            "name" => self.name = Text::read(json)?,
            "state" => self.state = object(json)?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawState<'a> {
    pub(super) is_running: bool,
    pub(super) terminated: Option<RawTerminated<'a>>,
    pub(super) waiting: Option<RawWaiting<'a>>,
}

impl<'a> Fields<'a> for RawState<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            "running" => self.is_running = json.is_given()?,
            "terminated" => self.terminated = object(json)?,
            "waiting" => self.waiting = object(json)?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawWaiting<'a> {
    pub(super) reason: Option<Text<'a>>,
    pub(super) message: Option<Text<'a>>,
}

impl<'a> Fields<'a> for RawWaiting<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            "reason" => self.reason = Text::read(json)?,
            "message" => self.message = Text::read(json)?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RawTerminated<'a> {
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) reason: Option<Text<'a>>,
    pub(super) message: Option<Text<'a>>,
    pub(super) finished_at: Option<Text<'a>>,
}

impl<'a> Fields<'a> for RawTerminated<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            "exitCode" => self.exit_code = code(json)?,
            "signal" => self.signal = code(json)?,
            "reason" => self.reason = Text::read(json)?,
            "message" => self.message = Text::read(json)?,
            "finishedAt" => self.finished_at = Text::read(json)?,
            _ => {}
        }
        Ok(())
    }
}

/// The labels that posse reads.
#[derive(Debug, Default)]
pub(crate) struct Labels<'a> {
    pub(super) app: Option<Text<'a>>,
    pub(super) instance: Option<Text<'a>>,
    pub(super) group: Option<Text<'a>>,
    pub(super) id: Option<Text<'a>>,
    pub(super) slot: Option<Text<'a>>,
    pub(super) attempt: Option<Text<'a>>,
    pub(super) component: Option<Text<'a>>,
    pub(super) counted: Option<Text<'a>>,
    pub(super) is_completed: bool,
    pub(super) key: Option<Text<'a>>,
}

impl<'a> Fields<'a> for Labels<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            APP => self.app = Text::read(json)?,
            INSTANCE => self.instance = Text::read(json)?,
            GROUP => self.group = Text::read(json)?,
            EXECUTOR_ID => self.id = Text::read(json)?,
            SLOT => self.slot = Text::read(json)?,
            ATTEMPT => self.attempt = Text::read(json)?,
            key if key == COMPONENT.0 => self.component = Text::read(json)?,
            COUNTED => self.counted = Text::read(json)?,
            COMPLETED => self.is_completed = json.is_given()?,
            KEY => self.key = Text::read(json)?,
            _ => {}
        }
        Ok(())
    }
}

/// The annotations that posse reads.
#[derive(Debug, Default)]
pub(crate) struct Annotations<'a> {
    pub(super) container: Option<Text<'a>>,
    pub(super) deletion_cost: Option<Text<'a>>,
    pub(super) sidecar_failure: Option<Text<'a>>,
    pub(super) draining: Option<Text<'a>>,
    pub(super) max_age: Option<Text<'a>>,
    pub(super) restart: Option<Text<'a>>,
    pub(super) task: Option<Text<'a>>,
}

impl<'a> Fields<'a> for Annotations<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), JsonError> {
        match key {
            CONTAINER => self.container = Text::read(json)?,
            DELETION_COST => self.deletion_cost = Text::read(json)?,
            SIDECAR_FAILURE => self.sidecar_failure = Text::read(json)?,
            DRAINING => self.draining = Text::read(json)?,
            MAX_AGE => self.max_age = Text::read(json)?,
            RESTART => self.restart = Text::read(json)?,
            TASK => self.task = Text::read(json)?,
            _ => {}
        }
        Ok(())
    }
}

/// The name of the first container in a list, and whether there are more.
#[derive(Debug, Default)]
pub(crate) struct First<'a> {
    pub(super) name: Option<Text<'a>>,
    pub(super) has_others: bool,
}

impl<'a> First<'a> {
    fn read(json: &mut Json<'a>) -> Result<Self, JsonError> {
        let (mut first, mut n_items) = (Self::default(), 0_usize);
        json.list(&mut |json| {
            n_items += 1;
            first.has_others = n_items > 1;
            if n_items > 1 {
                return Ok(());
            }
            json.object(&mut |key, json| {
                if key == "name" {
                    first.name = Text::read(json)?;
                }
                Ok(())
            })
            .map(drop)
        })?;
        Ok(first)
    }
}
