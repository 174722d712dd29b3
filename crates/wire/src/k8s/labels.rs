//! Names of the labels, annotations and the field manager that posse writes, and the label selector
//! of an instance.

use posse_core::model::ids::ExecutorId;

/// Prefix of posse's own labels and annotations.
pub const PREFIX: &str = "posse.dev/";
/// Label: application.
pub const APP: &str = "posse.dev/app";
/// Label: instance (one run of the application).
pub const INSTANCE: &str = "posse.dev/instance";
/// Label: group.
pub const GROUP: &str = "posse.dev/group";
/// Label: executor id.
pub const EXECUTOR_ID: &str = "posse.dev/executor-id";
/// Label: slot.
pub const SLOT: &str = "posse.dev/slot";
/// Label: the attempt of the group, from 1 (`on_loss: group`).
pub const ATTEMPT: &str = "posse.dev/attempt";
/// Label: posse has reported the loss and charged it to a budget.
pub const COUNTED: &str = "posse.dev/counted";
/// Label: posse has reported that the executor's work is done.
pub const COMPLETED: &str = "posse.dev/completed";
/// Label: the key of the task that the executor works on.
pub const KEY: &str = "posse.dev/key";
/// Annotation on the record of an index: those of its group whose pods are gone, such as `0-3,7`.
pub const FOLDED: &str = "posse.dev/folded";
/// Annotation: that task, and which attempt at it this is.
pub const TASK: &str = "posse.dev/task";
/// Annotation: what the group does when an executor ends (`on-failure` or `never`).
pub const RESTART: &str = "posse.dev/restart";
/// Annotation: the executor drains; the value says why and until when.
pub const DRAINING: &str = "posse.dev/draining";
/// Annotation: name of the main container. Pods made by 0.1 have it only if it was not the first of the
/// template.
pub const CONTAINER: &str = "posse.dev/container";
/// Variable of each container of a template: the executor's id. What a webhook adds does not have it.
pub const EXECUTOR_ID_VARIABLE: &str = "POSSE_EXECUTOR_ID";
/// Annotation: posse set the deadline in the pod's spec; the value is its length.
pub const MAX_AGE: &str = "posse.dev/max-age";
/// Annotation on the Lease or the driver pod: the ids up to this one may be in use.
pub const ID_HIGH_WATER: &str = "posse.dev/id-high-water";
/// Annotation: the version of what posse keeps in this object, a whole number. Absent: 1, the only one so far.
pub const FORMAT: &str = "posse.dev/format";
/// Standard label: the program that manages an object.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "posse");
/// Standard label: the object's role in the application. Here: an executor.
pub const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "executor");
/// The same label on the claims of `volumes_per_slot`.
pub const VOLUME: (&str, &str) = ("app.kubernetes.io/component", "volume");
/// The same label on everything that belongs to a driver.
pub const DRIVER: (&str, &str) = ("app.kubernetes.io/component", "driver");
/// The same label on the ConfigMaps of the run's record.
pub const RECORD: (&str, &str) = ("app.kubernetes.io/component", "record");
/// The same label on the Secrets of `credentials`.
pub const CREDENTIALS: (&str, &str) = ("app.kubernetes.io/component", "credentials");
/// Annotation on the objects of `posse submit`: which call created them.
pub const SUBMISSION: &str = "posse.dev/submission";
/// Annotation on a driver's Job or pod: how many executors its configuration starts with.
pub const EXECUTORS: &str = "posse.dev/executors";
/// Label on the pod of a driver that acts. Its Service leads to it, and to none that stands by.
pub const LEADER: (&str, &str) = ("posse.dev/leader", "true");
/// Annotation on a driver's pod that has taken over: from which pod, why, when, and how long that took.
pub const TAKEOVER: &str = "posse.dev/takeover";
/// Annotation on a driver's Job that posse ended: the application's exit code.
pub const EXIT_CODE: &str = "posse.dev/exit-code";
/// Annotation of a Job: a run of it has had a record.
pub const RECORDED: &str = "posse.dev/recorded";
/// The same: a run of it has had all Leases that it asks for.
pub const LEASED: &str = "posse.dev/leased";
/// Where the driver's container has its configuration mounted. No other container has this mount.
pub const DRIVER_DIR: &str = "/etc/posse";
/// Annotation by which Karpenter leaves a pod, and so its node, alone.
pub const DO_NOT_DISRUPT: (&str, &str) = ("karpenter.sh/do-not-disrupt", "true");
/// The same for the cluster autoscaler.
pub const SAFE_TO_EVICT: (&str, &str) = ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false");
/// The field manager of every write.
pub const FIELD_MANAGER: &str = "posse";

/// One instance of one application.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selection {
    pub app: String,
    pub instance: String,
}

impl Selection {
    /// The label selector that matches this instance's executors only.
    pub fn selector(&self) -> String {
        format!("{APP}={},{INSTANCE}={},{}={}", self.app, self.instance, COMPONENT.0, COMPONENT.1)
    }

    /// Prefix of the pod names of this instance. The id follows.
    pub fn pod_prefix(&self) -> String {
        format!("{}-{}-exec-", self.app, self.instance)
    }

    /// The executor's id in a pod's name; none if it is not the name of an executor.
    pub fn id_of(&self, pod_name: &str) -> Option<ExecutorId> {
        let rest = pod_name.strip_prefix(&self.app)?.strip_prefix('-')?;
        let id = rest.strip_prefix(&self.instance)?.strip_prefix("-exec-")?;
        let is_id = id.starts_with(|c: char| c.is_ascii_digit() && c != '0');
        id.parse().ok().filter(|_| is_id).map(ExecutorId)
    }

    /// Name of executor `id`'s pod.
    pub fn pod_name(&self, id: u64) -> String {
        format!("{}{id}", self.pod_prefix())
    }
}

/// The label selector of posse's objects with this role (`VOLUME`, `CREDENTIALS`): of an application
/// and an instance, or of all of them.
pub fn component_selector(
    (label, role): (&str, &str),
    app: Option<&str>,
    instance: Option<&str>,
) -> String {
    let mut selector = format!("{}={},{label}={role}", MANAGED_BY.0, MANAGED_BY.1);
    for (label, value) in [(APP, app), (INSTANCE, instance)] {
        if let Some(value) = value {
            selector.push_str(&format!(",{label}={value}"));
        }
    }
    selector
}

/// The label selector of an application's executors, of all instances.
pub fn executor_selector(app: &str) -> String {
    format!("{APP}={app},{}={}", COMPONENT.0, COMPONENT.1)
}
