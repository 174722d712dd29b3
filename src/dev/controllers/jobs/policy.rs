//! Owns a Job's `podFailurePolicy`: what the failure of a pod means, rule by rule. Pure.

use serde_json::Value;

use super::plan::Verdict;
use crate::dev::storage::object::{array_at, text_at};

/// What the first rule that matches says; without one a failure counts.
pub(super) fn verdict(job: &Value, pod: &Value) -> Verdict {
    for (at, rule) in array_at(job, "/spec/podFailurePolicy/rules").iter().enumerate() {
        let Some(cause) = exit_code(rule, pod).or_else(|| condition(rule, pod)) else { continue };
        return match text_at(rule, "/action") {
            "Ignore" => Verdict::Ignore,
            "FailJob" => Verdict::FailJob(format!("{cause} matching FailJob rule at index {at}")),
            _ => Verdict::Count,
        };
    }
    Verdict::Count
}

fn place(pod: &Value) -> String {
    format!("{}/{}", text_at(pod, "/metadata/namespace"), text_at(pod, "/metadata/name"))
}

fn exit_code(rule: &Value, pod: &Value) -> Option<String> {
    let wanted = rule.get("onExitCodes")?;
    let name = text_at(wanted, "/containerName");
    let values = array_at(wanted, "/values");
    for list in ["/status/containerStatuses", "/status/initContainerStatuses"] {
        for container in array_at(pod, list) {
            let of = text_at(container, "/name");
            let code = container.pointer("/state/terminated/exitCode").and_then(Value::as_i64);
            let Some(code) = code.filter(|code| *code != 0 && (name.is_empty() || name == of))
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
                let pod = place(pod);
                return Some(format!("Container {of} for pod {pod} failed with exit code {code}"));
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
        let has = array_at(pod, "/status/conditions").iter().any(|condition| {
            text_at(condition, "/type") == wanted && text_at(condition, "/status") == status
        });
        if has {
            return Some(format!("Pod {} has condition {wanted}", place(pod)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_rule_that_matches_decides() {
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
        let fail = |text: &str| Verdict::FailJob(text.to_owned());
        for (pod, want) in [
            (pod("c", 42, "DisruptionTarget"), Verdict::Ignore),
            (
                pod("c", 42, "Ready"),
                fail(
                    "Container c for pod n/p failed with exit code 42 matching FailJob rule at \
                     index 1",
                ),
            ),
            (pod("d", 42, "Ready"), Verdict::Count),
            (
                pod("d", 2, "Ready"),
                fail(
                    "Container d for pod n/p failed with exit code 2 matching FailJob rule at \
                     index 3",
                ),
            ),
            (pod("d", 1, "Ready"), Verdict::Count),
        ] {
            assert_eq!(verdict(&job, &pod), want, "{pod}");
        }
    }
}
