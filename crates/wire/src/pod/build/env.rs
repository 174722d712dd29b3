//! posse's own variables in an executor's containers.

use serde_json::{Value, json};

use super::PodContext;
use crate::k8s::labels;
use posse_core::model::settings::OnLoss;

/// posse's environment variables for every container. The placeholders are filled in later.
pub(super) fn posse_env(context: &PodContext) -> Vec<Value> {
    let field = |name: &str, path: &str| {
        let from = json!({ "fieldRef": { "fieldPath": path } });
        json!({ "name": name, "valueFrom": from })
    };
    let text = |name: &str, value: &str| json!({ "name": name, "value": value });
    let mut env = vec![
        text("POSSE_APP", "{{APP}}"),
        text("POSSE_INSTANCE", "{{INSTANCE}}"),
        text("POSSE_GROUP", "{{GROUP}}"),
        text(labels::EXECUTOR_ID_VARIABLE, "{{EXECUTOR_ID}}"),
        text("POSSE_SLOT", "{{SLOT}}"),
        text("POSSE_DRIVER_HOST", "{{DRIVER_HOST}}"),
        field("POSSE_POD_NAME", "metadata.name"),
        field("POSSE_POD_IP", "status.podIP"),
        field("POSSE_NODE_NAME", "spec.nodeName"),
        field("POSSE_HOST_IP", "status.hostIP"),
    ];
    if context.driver_port.is_some() {
        env.push(text("POSSE_DRIVER_PORT", "{{DRIVER_PORT}}"));
    }
    match context.on_loss {
        OnLoss::Executor => {}
        OnLoss::Group => env.push(text("POSSE_ATTEMPT", "{{ATTEMPT}}")),
    }
    env
}
