//! Owns the names of labels, annotations and fields that posse writes, and the selection by them.

/// Whose executor: the application.
pub const APP: &str = "posse.dev/app";
/// Whose executor: the run of the application.
pub const INSTANCE: &str = "posse.dev/instance";
/// Its group.
pub const GROUP: &str = "posse.dev/group";
/// Its id.
pub const EXECUTOR_ID: &str = "posse.dev/executor-id";
/// Its slot.
pub const SLOT: &str = "posse.dev/slot";
/// Its loss has been reported and has spent its budget.
pub const COUNTED: &str = "posse.dev/counted";
/// Annotation: chosen to go, why, and until when it has time.
pub const DRAINING: &str = "posse.dev/draining";
/// Annotation: the container whose end decides, where it is not the first.
pub const CONTAINER: &str = "posse.dev/container";
/// Annotation, with the value `fail`: any other container's failure is the executor's end, too.
pub const SIDECAR_FAILURE: &str = "posse.dev/sidecar-failure";
/// Annotation: the deadline in its spec is posse's own, and how long that is.
pub const MAX_AGE: &str = "posse.dev/max-age";
/// Annotation on the Lease or the driver pod: ids up to here may have been given.
pub const ID_HIGH_WATER: &str = "posse.dev/id-high-water";
/// The standard label for who manages an object, and our value of it.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "posse");
/// The standard label for an object's part in the application, and our value of it.
pub const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "executor");
/// The same of all that a driver in the cluster consists of.
pub const DRIVER: (&str, &str) = ("app.kubernetes.io/component", "driver");
/// Annotation on what `posse submit` makes: which call made it.
pub const SUBMISSION: &str = "posse.dev/submission";
/// Annotation on a driver's Job or pod: how many executors its configuration asks for at start.
pub const EXECUTORS: &str = "posse.dev/executors";
/// The field manager on every write.
pub const FIELD_MANAGER: &str = "posse";

/// One instance of one application: whose executors are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    pub app: String,
    pub instance: String,
}

impl Selection {
    /// The label selector that finds this instance's executors and nothing else.
    #[must_use]
    pub fn selector(&self) -> String {
        format!("{APP}={},{INSTANCE}={},{}={}", self.app, self.instance, COMPONENT.0, COMPONENT.1)
    }

    /// What the names of this instance's pods begin with; the id follows.
    #[must_use]
    pub fn pod_prefix(&self) -> String {
        format!("{}-{}-exec-", self.app, self.instance)
    }

    /// The name of the pod of executor `id`.
    #[must_use]
    pub fn pod_name(&self, id: u64) -> String {
        format!("{}{id}", self.pod_prefix())
    }
}
