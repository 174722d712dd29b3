//! Validates pods and pod templates, and the updates of pods.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, container, join, one_of, volume};
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};

/// Validates a new or changed pod without its metadata.
pub(super) fn check(pod: &Value, causes: &mut Causes) {
    check_spec(&pod["spec"], "spec", causes);
}

/// Validates the template of a workload.
pub(super) fn check_template(template: &Value, path: &str, causes: &mut Causes) {
    // The real server's path does not contain `metadata`.
    let metadata = &template["metadata"];
    super::metadata::labels(&metadata["labels"], &join(path, "labels"), causes);
    let at = join(path, "annotations");
    super::metadata::annotations(&metadata["annotations"], &at, causes);
    check_spec(&template["spec"], &join(path, "spec"), causes);
}

fn check_spec(spec: &Value, path: &str, causes: &mut Causes) {
    let volumes = volume::check_all(spec, &join(path, "volumes"), causes);
    let containers = array_at(spec, "/containers");
    let field = join(path, "containers");
    if containers.is_empty() {
        causes.push(Cause::required(&field, ""));
    }
    let mut taken = BTreeSet::new();
    container::check_list(containers, &field, &mut taken, &volumes, causes);
    let init = array_at(spec, "/initContainers");
    container::check_list(init, &join(path, "initContainers"), &mut taken, &volumes, causes);
    one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"], path, causes);
    super::metadata::labels(&spec["nodeSelector"], &join(path, "nodeSelector"), causes);
}

/// In a pod's spec only images, the deadline and tolerations may change, and scheduling gates may go.
pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Causes) {
    let gates = |pod| array_at(pod, "/spec/schedulingGates");
    if let Some(gate) = gates(new).iter().find(|gate| !gates(old).contains(gate)) {
        let detail = format!(
            "only deletion is allowed, but found new scheduling gate '{}'",
            text_at(gate, "/name")
        );
        causes.push(Cause::forbidden("spec.schedulingGates", &detail));
    }
    if frozen(old) != frozen(new) {
        let detail = "pod updates may not change fields other than \
                      `spec.containers[*].image`,`spec.initContainers[*].image`,\
                      `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
                      tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 \
                      if it was previously negative)";
        causes.push(Cause::forbidden("spec", detail));
    }
}

/// The spec without the mutable fields.
fn frozen(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("activeDeadlineSeconds");
        fields.remove("schedulingGates");
        fields.remove("tolerations");
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(fields) = container.as_object_mut() {
                fields.remove("image");
            }
        }
    }
    spec
}
