//! What posse may need, as the rules of a Role. `deploy/rbac.yaml` has them, those that depend on the settings as comments.

use serde_json::{Value, json};

/// What may be done with one kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The API group; empty for the core one.
    pub group: &'static str,
    /// With its subresource: `pods/log`.
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
}

const fn rule(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Rule {
    Rule { group, resource, verbs }
}

pub const PODS: Rule = rule("", "pods", &["list", "watch", "create", "delete", "get", "patch"]);
pub const LEASES: Rule = rule("coordination.k8s.io", "leases", &["get", "create", "update"]);
/// About the driver's pod.
pub const EVENTS: Rule = rule("events.k8s.io", "events", &["create"]);
/// For `failures.log_lines` and `task_output`.
pub const LOGS: Rule = rule("", "pods/log", &["get"]);
/// For `oom_growth.grow_at`.
pub const RESIZE: Rule = rule("", "pods/resize", &["patch"]);
/// For a record in ConfigMaps.
pub const RECORD: Rule = rule("", "configmaps", &["create", "delete", "get", "list", "update"]);
/// For a page, where there is a metrics API.
pub const USAGE: Rule = rule("metrics.k8s.io", "pods", &["list"]);
/// For `volumes_per_slot`.
pub const VOLUMES: Rule = rule("", "persistentvolumeclaims", &["create", "get", "list", "delete"]);

impl Rule {
    /// For the PodGroups of a gang, in this API group.
    pub const fn pod_groups(group: &'static str) -> Self {
        rule(group, "podgroups", &["create", "delete"])
    }

    /// As a Role has it.
    pub fn to_json(self) -> Value {
        json!({ "apiGroups": [self.group], "resources": [self.resource], "verbs": self.verbs })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use posse_encoding::yaml::Node;

    /// `text`: an account, its Role and more.
    #[track_caller]
    fn check(text: &str, ours: &[Rule]) {
        let text = text.split("\n---\n").nth(1).unwrap();
        // A rule as a comment is a rule, too.
        let text = text.replace("\n  # - ", "\n  - ").replace("\n  #   ", "\n    ");
        let role = Node::read(&text).unwrap().to_json();
        let mut written: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        let words = |rule: &'_ Value, key: &str| rule[key].as_array().unwrap().clone();
        for rule in role["rules"].as_array().unwrap() {
            let kind = format!("{} {}", words(rule, "apiGroups")[0], words(rule, "resources")[0]);
            let verbs = rule["verbs"].as_array().unwrap().iter().filter_map(Value::as_str);
            written.entry(kind).or_default().extend(verbs);
        }
        let ours = ours.iter().map(|one| {
            (
                format!("{} {}", json!(one.group), json!(one.resource)),
                one.verbs.iter().copied().collect(),
            )
        });
        assert_eq!(written, ours.collect());
    }

    #[test]
    fn the_roles_of_deploy_have_these_rules() {
        // Names limit these two.
        let secrets = rule("", "secrets", &["create", "delete", "get", "patch", "update"]);
        let jobs = rule("batch", "jobs", &["get", "patch"]);
        let pod_groups = Rule::pod_groups("scheduling.volcano.sh");
        let ours =
            [PODS, pod_groups, LEASES, EVENTS, LOGS, RESIZE, RECORD, USAGE, VOLUMES, secrets, jobs];
        check(include_str!("../../../../deploy/rbac.yaml"), &ours);
        let cleanup = [
            rule("", "pods", &["delete", "get", "list", "patch"]),
            rule("batch", "jobs", &["get"]),
            rule("coordination.k8s.io", "leases", &["delete", "get", "list"]),
            rule("scheduling.volcano.sh", "podgroups", &["deletecollection"]),
        ];
        check(include_str!("../../../../deploy/cleanup.yaml"), &cleanup);
    }
}
