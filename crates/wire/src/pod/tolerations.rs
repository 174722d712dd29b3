//! How long a pod stays bound to a node that does not answer.

use serde_json::{Map, Value, json};

use crate::pod::template::{Template, TemplateError};

/// The DefaultTolerationSeconds admission plugin adds tolerations of 300 s for these taints.
pub(crate) const NODE_TAINTS: [&str; 2] =
    ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// How long a pod stays on a lost node, in seconds.
const SECONDS: u64 = 60;

/// Adds a toleration for each taint of a lost node, unless the template has one.
///
/// # Errors
/// The template's list of tolerations has the wrong type.
pub fn add(template: &Template, spec: &mut Map<String, Value>) -> Result<(), TemplateError> {
    let list = template.list(spec, "tolerations", "spec.tolerations")?;
    for taint in NODE_TAINTS {
        let covers = |toleration: &Value| {
            let text = |key| toleration.get(key).and_then(Value::as_str).unwrap_or_default();
            matches!(text("effect"), "" | "NoExecute")
                && (text("key") == taint || text("key").is_empty())
        };
        if !list.iter().any(covers) {
            list.push(json!({
                "key": taint,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": SECONDS,
            }));
        }
    }
    Ok(())
}
