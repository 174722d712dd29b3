//! Owns what a driver consists of in the cluster: its objects, in the order in which they are made.
//! The pod itself is `driver_pod.rs`'s.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::submit::driver_pod::{self, DriverPodParts, driver_pod};
use crate::submit::plan::Plan;
use crate::wire::config::DriverKind;
use crate::wire::labels::{APP, DRIVER};
use crate::wire::staged::TICKET_KEY;
use crate::wire::template::TemplateError;
use crate::wire::yaml::Node;

/// ServiceAccount, Role and RoleBinding with the rights that posse needs, and no others.
const RBAC: &str = include_str!("../../deploy/rbac.yaml");

/// A driver's objects.
#[derive(Clone, PartialEq)]
pub struct Manifests {
    /// What has to be there before the driver is, in the order of their making.
    pub parts: Vec<Value>,
    /// The Job or Pod that all others belong to.
    pub workload: Value,
    /// The pod that it comes to, to be shown to the server beforehand.
    pub pod: Value,
    /// What of the template was replaced, one sentence each.
    pub warnings: Vec<String>,
}

impl fmt::Debug for Manifests {
    /// Without the objects: an environment in them may hold what is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manifests").field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

impl Manifests {
    /// All of them in the order of their making.
    pub fn all(&self) -> impl Iterator<Item = &Value> {
        self.parts.iter().chain([&self.workload])
    }
}

/// Makes the objects of a driver.
///
/// # Errors
/// A field of the driver's template that is not what it should be.
pub fn manifests(plan: &Plan) -> Result<Manifests, TemplateError> {
    let mut parts = if plan.create_rbac { rbac(plan)? } else { Vec::new() };
    let fixed = driver_pod::parts();
    parts.push(object("v1", "ConfigMap", plan.metadata(), "data", plan.files.data().into()));
    if let Some(ticket) = &plan.ticket {
        let data = json!({ TICKET_KEY: BASE64_STANDARD.encode(ticket.to_json()) });
        parts.push(object("v1", "Secret", plan.metadata(), "data", data));
    }
    // Addresses are told early: executors may dial before the driver's container counts as ready.
    let mut service = fixed["service"].clone();
    service["selector"] = json!({ APP: plan.app, DRIVER.0: DRIVER.1 });
    parts.push(object("v1", "Service", plan.metadata(), "spec", service));
    let parts_of_pod = driver_pod(plan)?;
    let DriverPodParts { metadata, spec, container: _, warnings } = &parts_of_pod;
    let mut pod = object("v1", "Pod", json!(metadata), "spec", json!(spec));
    pod["metadata"]["namespace"] = json!(plan.namespace);
    pod["metadata"]["name"] = json!(plan.name());
    let workload = match plan.pod.kind {
        DriverKind::Job => job(plan, &parts_of_pod, &fixed["job"]),
        DriverKind::Pod => {
            let mut workload = pod.clone();
            let ours = plan.workload_metadata();
            let annotations = ours["annotations"].as_object().cloned().unwrap_or_default();
            for (key, value) in annotations {
                workload["metadata"]["annotations"][key] = value;
            }
            workload
        }
    };
    Ok(Manifests { parts, workload, pod, warnings: warnings.clone() })
}

/// A Job that is over is kept for ten minutes: time to look at it. Its policy: a disruption is no
/// failure; nor is 13, by which posse says that another driver of the application has taken over;
/// 2, 4 and 11 are posse's own codes that another try comes to again (a mistake in what it was given,
/// a template that the server refuses, a spent failure budget). A server that knows neither policy
/// leaves them out.
fn job(plan: &Plan, pod: &DriverPodParts, fixed: &Value) -> Value {
    let mut spec = fixed.clone();
    let rules = spec["podFailurePolicy"]["rules"].as_array_mut().into_iter().flatten();
    for codes in rules.filter_map(|rule| rule.get_mut("onExitCodes")) {
        codes["containerName"] = json!(pod.container);
    }
    spec["backoffLimit"] = json!(plan.pod.retries);
    spec["template"] = json!({ "metadata": pod.metadata, "spec": pod.spec });
    if plan.pod.deadline_ms > 0 {
        spec["activeDeadlineSeconds"] = json!(plan.pod.deadline_ms.div_ceil(1_000));
    }
    object("batch/v1", "Job", plan.workload_metadata(), "spec", spec)
}

fn object(version: &str, kind: &str, metadata: Value, key: &str, value: Value) -> Value {
    json!({ "apiVersion": version, "kind": kind, "metadata": metadata, key: value })
}

/// The fields of a Job that the server's answer to it must have, or it does not know them.
pub const NEWER_FIELDS: [&str; 2] = ["podFailurePolicy", "podReplacementPolicy"];

/// The objects of `deploy/rbac.yaml` under this application's name.
fn rbac(plan: &Plan) -> Result<Vec<Value>, TemplateError> {
    RBAC.split("\n---\n")
        .map(|text| {
            let node = Node::read(text)
                .map_err(|mistake| plan.template.fail("deploy/rbac.yaml", mistake.message))?;
            let mut object = node.to_json();
            object["metadata"] = plan.metadata();
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
