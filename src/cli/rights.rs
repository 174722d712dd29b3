//! Owns what rights posse needs, and for what; asks the server which of them we have. Advice to one
//! whose run ended for a missing right, and the role that would grant what is missing.

use std::collections::BTreeMap;

use log::{debug, error};

use crate::cli::settings::RunSettings;
use crate::core::model::refusal::Refusal;
use crate::kube::api::preflight::version;
use crate::kube::api::reviews::access_review;
use crate::kube::http::Http;
use crate::wire::review::Access;

/// The API group of Leases.
const COORDINATION: &str = "coordination.k8s.io";

/// One right in a namespace, or on nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The API group; empty for the core one.
    pub group: &'static str,
    pub resource: &'static str,
    /// Empty where the resource itself is meant.
    pub subresource: &'static str,
    pub verb: &'static str,
}

impl Right {
    const fn new(group: &'static str, resource: &'static str, verb: &'static str) -> Self {
        Self { group, resource, subresource: "", verb }
    }

    /// As roles and messages name it: `pods/log`.
    fn full_resource(self) -> String {
        match self.subresource {
            "" => self.resource.to_owned(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }
}

/// What a run cannot do without. `deploy/rbac.yaml` grants this and the next.
pub const OF_PODS: [Right; 6] = [
    Right::new("", "pods", "list"),
    Right::new("", "pods", "watch"),
    Right::new("", "pods", "create"),
    Right::new("", "pods", "delete"),
    Right::new("", "pods", "get"),
    Right::new("", "pods", "patch"),
];

/// What the Lease takes; a run without it goes on, guarded by nothing.
pub const OF_LEASES: [Right; 3] = [
    Right::new(COORDINATION, "leases", "get"),
    Right::new(COORDINATION, "leases", "create"),
    Right::new(COORDINATION, "leases", "update"),
];

/// What `failures.log_lines` takes.
pub const OF_LOGS: Right = Right { subresource: "log", ..Right::new("", "pods", "get") };

/// What a run makes use of where it has it, and what it does without.
pub const OF_COMFORT: [(Right, &str); 3] = [
    (Right::new("", "pods", "deletecollection"), "a stop takes one call for each executor"),
    (Right::new(COORDINATION, "leases", "delete"), "a Lease without an owner stays, released"),
    (Right::new("", "nodes", "get"), "pods on a node that is gone are left to the cluster"),
];

/// The rights without which these settings do not work as they say.
#[must_use]
pub fn needed(settings: Option<&RunSettings>) -> Vec<Right> {
    let logs = settings.is_some_and(|settings| settings.policy.log_lines > 0);
    OF_PODS.into_iter().chain(logs.then_some(OF_LOGS)).collect()
}

/// Those of `rights` that we do not have in `namespace`.
///
/// # Errors
/// The server does not tell.
pub fn missing(
    http: &Http,
    namespace: &str,
    rights: impl IntoIterator<Item = Right>,
) -> Result<Vec<Right>, Refusal> {
    let mut missing = Vec::new();
    for right in rights {
        let Right { group, resource, subresource, verb } = right;
        let namespace = if resource == "nodes" { "" } else { namespace };
        let answer = access_review(http, Access { namespace, verb, group, resource, subresource })?;
        if !answer.allowed {
            debug!("{verb} {}: not allowed: {}", right.full_resource(), answer.reason);
            missing.push(right);
        }
    }
    Ok(missing)
}

/// As messages name them: `create pods, get pods/log`.
#[must_use]
pub fn listed(rights: &[Right]) -> String {
    let texts = rights.iter().map(|right| format!("{} {}", right.verb, right.full_resource()));
    texts.collect::<Vec<_>>().join(", ")
}

/// A Role with these rights and its RoleBinding, as one YAML document, which indenting leaves whole. `user` is whom the server takes
/// us for; without it a placeholder stands there.
#[must_use]
pub fn role(rights: &[Right], namespace: &str, user: Option<&str>) -> String {
    let mut rules: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    for right in rights {
        rules.entry((right.group, right.full_resource())).or_default().push(right.verb);
    }
    let rules = rules.into_iter().map(|((group, resource), mut verbs)| {
        verbs.sort_unstable();
        let verbs = verbs.join(", ");
        format!("  - {{apiGroups: [{group:?}], resources: [{resource}], verbs: [{verbs}]}}\n")
    });
    let account = user.and_then(|user| user.strip_prefix("system:serviceaccount:"));
    let subject = match (account.and_then(|account| account.split_once(':')), user) {
        (Some((namespace, name)), _) => {
            format!("{{kind: ServiceAccount, name: {name}, namespace: {namespace}}}")
        }
        (None, user) => {
            let user = user.unwrap_or("WHO YOU ARE");
            format!("{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user:?}}}")
        }
    };
    format!(
        "apiVersion: v1\n\
         kind: List\n\
         items:\n\
         - apiVersion: rbac.authorization.k8s.io/v1\n  \
           kind: Role\n  \
           metadata: {{name: posse, namespace: {namespace}}}\n  \
           rules:\n{}\
         - apiVersion: rbac.authorization.k8s.io/v1\n  \
           kind: RoleBinding\n  \
           metadata: {{name: posse, namespace: {namespace}}}\n  \
           roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: posse}}\n  \
           subjects:\n  - {subject}\n",
        rules.collect::<String>()
    )
}

/// Names every right that is missing in `namespace`. Says nothing where the server does not tell.
pub fn advise(http: &Http, namespace: &str) {
    let missing = match missing(http, namespace, OF_PODS.into_iter().chain(OF_LEASES)) {
        Ok(missing) if missing.is_empty() => return,
        Ok(missing) => listed(&missing),
        Err(refusal) => return debug!("what rights are missing cannot be told: {refusal}"),
    };
    if let Ok(version) = version(http) {
        debug!("the server is Kubernetes {version}");
    }
    error!(
        "rights missing in namespace {namespace}: {missing} (deploy/rbac.yaml grants them, and \
         `posse check` prints a role that does)"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::yaml::Node;

    #[test]
    fn a_role_is_yaml_and_names_whom_it_is_for() {
        let text = role(&[OF_PODS[2], OF_PODS[0], OF_LOGS, OF_LEASES[0]], "team", None);
        let rules = [
            r#"  - {apiGroups: [""], resources: [pods], verbs: [create, list]}"#,
            r#"  - {apiGroups: [""], resources: [pods/log], verbs: [get]}"#,
            r#"  - {apiGroups: ["coordination.k8s.io"], resources: [leases], verbs: [get]}"#,
        ];
        assert!(text.contains(&rules.join("\n")), "{text}");
        let read = Node::read(&text).unwrap().to_json();
        assert_eq!(read["items"][0]["kind"], "Role");
        assert_eq!(read["items"][0]["rules"][1]["verbs"][0], "get");
        assert_eq!(read["items"][1]["metadata"]["namespace"], "team");
        for (user, want) in [
            (Some("system:serviceaccount:a:b"), "{kind: ServiceAccount, name: b, namespace: a}"),
            (Some("me@here"), "kind: User, name: \"me@here\"}"),
            (None, "kind: User, name: \"WHO YOU ARE\"}"),
        ] {
            let text = role(&OF_PODS, "team", user);
            assert!(text.ends_with(&format!("{want}\n")), "{text}");
        }
        assert_eq!(listed(&[OF_PODS[0], OF_LOGS]), "list pods, get pods/log");
    }
}
