//! What a server, or a webhook of it, may not change in a pod.

use crate::error::WireError;
use crate::k8s::object::Meta;
use crate::names::is_posse_key;
use crate::pod::read_pod;

const RESTARTS: &str = "the server adds a restartPolicy or restartPolicyRules (a mutating webhook), by which the \
                        kubelet would restart containers in place: posse would delete the pod";
const LABELS: &str = "the server accepts the pod but changes posse's labels (a mutating webhook): posse could not \
                      find the pod again";

/// Why posse could not work with the pod that the server would create; `None`: it could. Both bodies are JSON.
///
/// # Errors
/// A body is not a pod.
pub fn unusable_change(sent: &[u8], answer: &[u8]) -> Result<Option<&'static str>, WireError> {
    if restarts_in_place(answer)? && !restarts_in_place(sent)? {
        return Ok(Some(RESTARTS));
    }
    let (sent, answer) = (Meta::parse(sent)?, Meta::parse(answer)?);
    let mut ours = sent.labels.iter().filter(|(key, _)| is_posse_key(key));
    Ok(ours.any(|(key, value)| answer.label(key) != Some(value)).then_some(LABELS))
}

fn restarts_in_place(pod: &[u8]) -> Result<bool, WireError> {
    let spec = read_pod(pod)?.and_then(|pod| pod.spec);
    Ok(spec.is_some_and(|spec| spec.restarts_in_place))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_webhook_may_not_change() {
        let sent = json!({
            "metadata": { "labels": {
                "app.kubernetes.io/component": "executor", "app.kubernetes.io/managed-by": "posse",
                "posse.dev/app": "a", "team": "x",
            } },
            "spec": { "restartPolicy": "Never", "containers": [{ "name": "main" }] },
        });
        let rows = [
            ("/metadata/labels/team", json!("y"), None),
            ("/metadata/labels/posse.dev~1app", json!("b"), Some(LABELS)),
            ("/metadata/labels/app.kubernetes.io~1component", json!("worker"), Some(LABELS)),
            ("/metadata/labels", json!({}), Some(LABELS)),
            ("/spec/restartPolicy", json!("Always"), Some(RESTARTS)),
            (
                "/spec/containers/0",
                json!({ "name": "main", "restartPolicy": "OnFailure" }),
                Some(RESTARTS),
            ),
            ("/spec/containers/0", json!({ "name": "main", "image": "other" }), None),
        ];
        for (place, value, want) in rows {
            let mut answer = sent.clone();
            *answer.pointer_mut(place).unwrap() = value;
            let found = unusable_change(sent.to_string().as_bytes(), answer.to_string().as_bytes());
            assert_eq!(found, Ok(want), "{place}");
            // What was asked for is no change.
            let found =
                unusable_change(answer.to_string().as_bytes(), answer.to_string().as_bytes());
            assert_eq!(found, Ok(None), "{place}");
        }
    }
}
