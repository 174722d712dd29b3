//! What Kueue reads of a pod or a Job, and what it writes into a pod
//! (<https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/>).

use serde_json::{Value, json};

use posse_core::model::pod::StartProblemKind;

/// Kueue's group of APIs.
pub const API: &str = "/apis/kueue.x-k8s.io";
/// Label: the LocalQueue that admits the object.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// Label and value of a pod that Kueue looks after.
pub const MANAGED: (&str, &str) = ("kueue.x-k8s.io/managed", "true");
/// Annotation and value of a pod that Kueue counts by itself although its owner is in a queue too. Without it Kueue
/// takes the executors of a queued driver for a part of the driver, and their resources for counted.
pub const OWN_WORKLOAD: (&str, &str) = ("kueue.x-k8s.io/pod-suspending-parent", "posse");
/// Label of the pods that Kueue admits together: their group, and the name of its Workload.
pub const POD_GROUP: &str = "kueue.x-k8s.io/pod-group-name";
/// Annotation of these pods: how many they are.
pub const POD_GROUP_COUNT: &str = "kueue.x-k8s.io/pod-group-total-count";
/// Annotation and value of these pods: their role. Kueue makes a hash of the pod if there is none, and ends a group with
/// a pod of a new role: one that avoids a node, for example.
pub const ROLE: (&str, &str) = ("kueue.x-k8s.io/role-hash", "executor");
/// Annotation and value of pods that are replaced whenever they end, as those of a StatefulSet. In other groups Kueue gives
/// the quota of a pod that ended with 0 away for good, and never starts its successor.
pub const SERVING: (&str, &str) = ("kueue.x-k8s.io/pod-group-serving", "true");
/// Annotation and value of a pod of a group that nothing will take the place of: when all pods have ended, the group
/// has.
const LAST: (&str, &str) = ("kueue.x-k8s.io/retriable-in-group", "false");
/// The labels and annotations of Kueue that posse writes.
pub const OWN_KEYS: [&str; 8] =
    [QUEUE, MANAGED.0, OWN_WORKLOAD.0, POD_GROUP, POD_GROUP_COUNT, ROLE.0, SERVING.0, LAST.0];
/// The finalizer by which Kueue keeps a pod of a group until another one has taken its place.
pub(crate) const FINALIZER: &str = MANAGED.0;
/// Label of a Workload: the uid of the pod or Job that it stands for.
pub const JOB_UID: &str = "kueue.x-k8s.io/job-uid";
/// The scheduling gate of a pod that waits in a queue.
const ADMISSION_GATE: &str = "kueue.x-k8s.io/admission";

/// The metadata of a strategic merge patch by which a pod leaves its group. A deleted one loses Kueue's finalizer too.
pub fn left_group(uid: &str, is_deleted: bool) -> Value {
    let mut metadata = json!({"uid": uid, "annotations": {LAST.0: LAST.1, SERVING.0: null}});
    if is_deleted {
        metadata["$deleteFromPrimitiveList/finalizers"] = json!([FINALIZER]);
    }
    metadata
}

/// What a pod with this scheduling gate waits for.
pub fn gated(gate: &str) -> StartProblemKind {
    if gate == ADMISSION_GATE { StartProblemKind::Queued } else { StartProblemKind::Gated }
}

/// Whether a queue holds this pod, which the server has just created.
pub fn is_held(pod: &[u8]) -> bool {
    let pod: Value = serde_json::from_slice(pod).unwrap_or_default();
    let gates = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    gates.into_iter().flatten().any(|gate| gate["name"] == ADMISSION_GATE)
}
