//! The objects of a driver in the cluster, in the order of their creation.

use std::fmt;

use serde_json::{Value, json};

use crate::driver_pod::{self, DriverPodParts, driver_pod};
use crate::plan::Plan;
use posse_encoding::yaml::Node;
use posse_wire::config::DriverKind;
use posse_wire::control::task_secrets::secret_name;
use posse_wire::k8s::labels::{APP, DRIVER, LEADER};
use posse_wire::pod::template::TemplateError;

/// ServiceAccount, Role and RoleBinding with exactly the permissions that posse needs.
const RBAC: &str = include_str!("../../../../deploy/rbac.yaml");

/// A driver's objects.
#[derive(Clone, PartialEq)]
pub struct Manifests {
    /// The objects that must exist before the driver.
    pub parts: Vec<Value>,
    /// The Job or Pod that owns the other objects.
    pub workload: Value,
    /// The pod that the Job creates, for a dry run.
    pub pod: Value,
    /// A warning for each replaced field of the template.
    pub warnings: Vec<String>,
}

impl fmt::Debug for Manifests {
    /// Without the objects: their environment may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manifests").field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

impl Manifests {
    /// All objects in the order of their creation.
    pub fn all(&self) -> impl Iterator<Item = &Value> {
        self.parts.iter().chain([&self.workload])
    }
}

/// Builds the objects of a driver.
///
/// # Errors
/// A field of the driver's template has the wrong type.
pub fn manifests(plan: &Plan) -> Result<Manifests, TemplateError> {
    let mut parts = if plan.create_rbac { rbac(plan)? } else { Vec::new() };
    let fixed = driver_pod::parts();
    parts.push(object("v1", "ConfigMap", plan.metadata(), "data", plan.files.data().into()));
    if let Some(data) = plan.pod_files.data() {
        parts.push(object("v1", "Secret", plan.metadata(), "data", data));
    }
    // The Service publishes addresses that are not ready: executors may connect before the driver's
    // container is ready.
    let mut service = fixed["service"].clone();
    service["selector"] = json!({ APP: plan.app, DRIVER.0: DRIVER.1, LEADER.0: LEADER.1 });
    parts.push(object("v1", "Service", plan.metadata(), "spec", service));
    let mut parts_of_pod = driver_pod(plan)?;
    plan.common.lay_under(&mut parts_of_pod.metadata);
    let DriverPodParts { metadata, spec, warnings } = &parts_of_pod;
    let mut pod = object("v1", "Pod", json!(metadata), "spec", json!(spec));
    pod["metadata"]["namespace"] = json!(plan.namespace);
    pod["metadata"]["name"] = json!(plan.name());
    let mut workload = match plan.pod.kind {
        DriverKind::Job => job(plan, &parts_of_pod, &fixed["job"]),
        DriverKind::Pod => {
            let mut workload = pod.clone();
            let ours = plan.workload_metadata();
            for map in ["annotations", "labels"] {
                for (key, value) in ours[map].as_object().into_iter().flatten() {
                    workload["metadata"][map][key] = value.clone();
                }
            }
            workload
        }
    };
    for object in parts.iter_mut().chain([&mut workload]) {
        plan.common.lay_under_object(object);
    }
    Ok(Manifests { parts, workload, pod, warnings: warnings.clone() })
}

/// The Job. It is deleted ten minutes after its end, so that a user can inspect it. It replaces a pod
/// as soon as that is terminating: on a lost node it would terminate for ever. A `podFailurePolicy`
/// does not permit this (`podReplacementPolicy` must then be `Failed`), so posse itself decides in the
/// pod which failures count (`run/job_pod.rs`). Until it runs, and if it may not patch the Job,
/// every pod that ends counts.
fn job(plan: &Plan, pod: &DriverPodParts, fixed: &Value) -> Value {
    let mut spec = fixed.clone();
    // The field is a signed number of 32 bits.
    spec["backoffLimit"] = json!(plan.pod.retries.min(i32::MAX.unsigned_abs()));
    if plan.pod.standby > 0 {
        // Without `completions`, the first pod that ends with 0 is the end of all.
        spec["parallelism"] = json!(plan.pod.standby + 1);
    }
    spec["template"] = json!({ "metadata": pod.metadata, "spec": pod.spec });
    if plan.pod.deadline_ms > 0 {
        spec["activeDeadlineSeconds"] = json!(plan.pod.deadline_ms.div_ceil(1_000));
    }
    object("batch/v1", "Job", plan.workload_metadata(), "spec", spec)
}

fn object(version: &str, kind: &str, metadata: Value, key: &str, value: Value) -> Value {
    json!({ "apiVersion": version, "kind": kind, "metadata": metadata, key: value })
}

/// The permissions for the Secrets of credentials and of tasks. Kubernetes cannot limit `create` to names.
fn secret_rules(plan: &Plan) -> Vec<Value> {
    let rule =
        |verbs: &[&str]| json!({ "apiGroups": [""], "resources": ["secrets"], "verbs": verbs });
    let of_names = |names: &[String], change: &str| {
        let mut rule = rule(&["delete", "get", change]);
        rule["resourceNames"] = json!(names);
        (!names.is_empty()).then_some(rule)
    };
    let of_tasks = plan.task_secrets.then(|| secret_name(&plan.app));
    let changes =
        [of_names(&plan.credential_secrets, "update"), of_names(of_tasks.as_slice(), "patch")];
    let changes: Vec<Value> = changes.into_iter().flatten().collect();
    let create = (!changes.is_empty()).then(|| rule(&["create"]));
    create.into_iter().chain(changes).collect()
}

/// The objects of `deploy/rbac.yaml`, renamed for this application.
fn rbac(plan: &Plan) -> Result<Vec<Value>, TemplateError> {
    RBAC.split("\n---\n")
        .map(|text| {
            let node = Node::read(text)
                .map_err(|error| plan.template.fail("deploy/rbac.yaml", error.message))?;
            let mut object = node.to_json();
            object["metadata"] = plan.metadata();
            if let Some(rules) = object["rules"].as_array_mut() {
                for rule in rules.iter_mut() {
                    if let Some(names) = rule.get_mut("resourceNames") {
                        *names = json!([plan.name()]);
                    }
                }
                rules.extend(plan.rules.iter().map(|rule| rule.to_json()));
                rules.extend(secret_rules(plan));
            }
            for key in ["roleRef", "subjects"] {
                let named = match object.get_mut(key) {
                    Some(Value::Array(list)) => list.first_mut(),
                    other => other,
                };
                if let Some(named) = named {
                    named["name"] = json!(plan.name());
                }
            }
            Ok(object)
        })
        .collect()
}

#[cfg(test)]
mod tests;
