//! What Kueue reads of a pod or a Job, and what it writes into a pod
//! (<https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/>).

use serde_json::Value;

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
/// Label of a Workload: the uid of the pod or Job that it stands for.
pub const JOB_UID: &str = "kueue.x-k8s.io/job-uid";
/// The scheduling gate of a pod that waits in a queue.
const ADMISSION_GATE: &str = "kueue.x-k8s.io/admission";

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
