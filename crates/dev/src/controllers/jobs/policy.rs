//! A Job's `podFailurePolicy`: the action for a failed pod. Pure.

use serde_json::Value;

use super::plan::FailureAction;
use crate::storage::object::{array_at, condition_of, text_at};

/// The action of the first rule that matches. Without one, the failure counts.
pub(super) fn failure_action(job: &Value, pod: &Value) -> FailureAction {
    for (at, rule) in array_at(job, "/spec/podFailurePolicy/rules").iter().enumerate() {
        let Some(cause) = exit_code(rule, pod).or_else(|| condition(rule, pod)) else { continue };
        return match text_at(rule, "/action") {
            "Ignore" => FailureAction::Ignore,
            "FailJob" => {
                FailureAction::FailJob(format!("{cause} matching FailJob rule at index {at}"))
            }
            _ => FailureAction::Count,
        };
    }
    FailureAction::Count
}

fn full_name(pod: &Value) -> String {
    format!("{}/{}", text_at(pod, "/metadata/namespace"), text_at(pod, "/metadata/name"))
}

fn exit_code(rule: &Value, pod: &Value) -> Option<String> {
    let wanted = rule.get("onExitCodes")?;
    let name = text_at(wanted, "/containerName");
    let values = array_at(wanted, "/values");
    for list in ["/status/containerStatuses", "/status/initContainerStatuses"] {
        for container in array_at(pod, list) {
            let container_name = text_at(container, "/name");
            let code = container.pointer("/state/terminated/exitCode").and_then(Value::as_i64);
            let Some(code) =
                code.filter(|code| *code != 0 && (name.is_empty() || name == container_name))
            else {
                continue;
            };
            let listed = values.iter().any(|value| value.as_i64() == Some(code));
            let matches = match text_at(wanted, "/operator") {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            };
            if matches {
                let pod = full_name(pod);
                return Some(format!(
                    "Container {container_name} for pod {pod} failed with exit code {code}"
                ));
            }
        }
    }
    None
}

fn condition(rule: &Value, pod: &Value) -> Option<String> {
    for pattern in array_at(rule, "/onPodConditions") {
        let wanted = text_at(pattern, "/type");
        let status = match text_at(pattern, "/status") {
            "" => "True",
            status => status,
        };
        if condition_of(pod, wanted) == status {
            return Some(format!("Pod {} has condition {wanted}", full_name(pod)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_matching_rule_applies() {
        let job = json!({ "spec": { "podFailurePolicy": { "rules": [
            { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] },
            { "action": "FailJob",
              "onExitCodes": { "containerName": "c", "operator": "In", "values": [42] } },
            { "action": "Count", "onExitCodes": { "operator": "NotIn", "values": [1, 2] } },
            { "action": "FailJob", "onExitCodes": { "operator": "In", "values": [2] } },
        ]}}});
        let pod = |name: &str, code: i64, condition: &str| {
            json!({
                "metadata": { "name": "p", "namespace": "n" },
                "status": {
                    "conditions": [{ "type": condition, "status": "True" }],
                    "containerStatuses": [
                        { "name": name, "state": { "terminated": { "exitCode": code } } },
                    ],
                },
            })
        };
        let fail = |text: &str| FailureAction::FailJob(text.to_owned());
        for (pod, want) in [
            (pod("c", 42, "DisruptionTarget"), FailureAction::Ignore),
            (
                pod("c", 42, "Ready"),
                fail(
                    "Container c for pod n/p failed with exit code 42 matching FailJob rule at \
                     index 1",
                ),
            ),
            (pod("d", 42, "Ready"), FailureAction::Count),
            (
                pod("d", 2, "Ready"),
                fail(
                    "Container d for pod n/p failed with exit code 2 matching FailJob rule at \
                     index 3",
                ),
            ),
            (pod("d", 1, "Ready"), FailureAction::Count),
        ] {
            assert_eq!(failure_action(&job, &pod), want, "{pod}");
        }
    }
}
