//! Owns what a driver consists of in the cluster: its objects, in the order in which they are made.
//! The pod itself is `driver_pod.rs`'s.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::submit::driver_pod::{DriverPodParts, driver_pod};
use crate::submit::plan::Plan;
use crate::wire::config::DriverKind;
use crate::wire::labels::{APP, DRIVER};
use crate::wire::staged::TICKET_KEY;
use crate::wire::template::TemplateError;
use crate::wire::yaml::Node;

/// A Job that is over is kept for so long, seconds: time to look at it.
const KEEP_FINISHED_S: u32 = 600;
/// posse's own codes that another try comes to again: a mistake in what it was given, a template
/// that the server refuses, a spent failure budget.
const FINAL_CODES: [u8; 3] = [2, 4, 11];
/// posse's own code where another driver of the application has taken over: that one goes on.
const TAKEN_OVER: u8 = 13;

/// ServiceAccount, Role and RoleBinding with the rights that posse needs, and no others.
const RBAC: &str = include_str!("../../deploy/rbac.yaml");

/// A driver's objects.
#[derive(Clone, PartialEq)]
pub struct Manifests {
    /// What has to be there before the driver is, in the order of their making.
    pub parts: Vec<Value>,
    /// The Job or Pod that all others belong to.
    pub keeper: Value,
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
        self.parts.iter().chain([&self.keeper])
    }
}

/// Makes the objects of a driver.
///
/// # Errors
/// A field of the driver's template that is not what it should be.
pub fn manifests(plan: &Plan) -> Result<Manifests, TemplateError> {
    let mut parts = if plan.create_rbac { rbac(plan)? } else { Vec::new() };
    parts.push(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": plan.metadata(),
        "data": plan.files.data(),
    }));
    if let Some(ticket) = &plan.ticket {
        parts.push(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": plan.metadata(), "type": "Opaque",
            "data": { TICKET_KEY: BASE64_STANDARD.encode(ticket.to_json()) },
        }));
    }
    parts.push(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": plan.metadata(),
        // Executors may dial before the driver's container counts as ready.
        "spec": { "clusterIP": "None", "publishNotReadyAddresses": true,
                  "selector": { APP: plan.app, DRIVER.0: DRIVER.1 } },
    }));
    let parts_of_pod = driver_pod(plan)?;
    let DriverPodParts { metadata, spec, container: _, warnings } = &parts_of_pod;
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    pod["metadata"]["namespace"] = json!(plan.namespace);
    pod["metadata"]["name"] = json!(plan.name());
    let keeper = match plan.pod.kind {
        DriverKind::Job => job(plan, &parts_of_pod),
        DriverKind::Pod => {
            let mut keeper = pod.clone();
            let ours = plan.keeper_metadata();
            let annotations = ours["annotations"].as_object().cloned().unwrap_or_default();
            for (key, value) in annotations {
                keeper["metadata"]["annotations"][key] = value;
            }
            keeper
        }
    };
    Ok(Manifests { parts, keeper, pod, warnings: warnings.clone() })
}

fn job(plan: &Plan, pod: &DriverPodParts) -> Value {
    let container = &pod.container;
    let on_codes = |action: &str, codes: &[u8]| {
        json!({ "action": action, "onExitCodes":
            { "containerName": container, "operator": "In", "values": codes } })
    };
    let mut spec = json!({
        "backoffLimit": plan.pod.retries,
        "ttlSecondsAfterFinished": KEEP_FINISHED_S,
        // Servers that do not know these two leave them out: then a drain counts as a failure.
        "podFailurePolicy": { "rules": [
            { "action": "Ignore",
              "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
            on_codes("Ignore", &[TAKEN_OVER]),
            on_codes("FailJob", &FINAL_CODES),
        ] },
        "podReplacementPolicy": "Failed",
        "template": { "metadata": pod.metadata, "spec": pod.spec },
    });
    if plan.pod.deadline_ms > 0 {
        spec["activeDeadlineSeconds"] = json!(plan.pod.deadline_ms.div_ceil(1_000));
    }
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": plan.keeper_metadata(),
            "spec": spec })
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
