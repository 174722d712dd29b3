//! The permissions that posse needs: asks the server which are missing, and prints a Role that grants
//! them.

use std::collections::BTreeMap;

use log::{debug, error};

use crate::core::model::refusal::Refusal;
use crate::kube::api::preflight::version;
use crate::kube::api::reviews::access_review;
use crate::kube::http::Http;
use crate::runtime::run::settings::RunSettings;
use crate::wire::review::Access;

/// The API group of Leases.
const COORDINATION: &str = "coordination.k8s.io";

/// A permission in a namespace, or on nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The API group; empty for the core one.
    pub group: &'static str,
    pub resource: &'static str,
    /// Empty for the resource itself.
    pub subresource: &'static str,
    pub verb: &'static str,
}

impl Permission {
    const fn new(group: &'static str, resource: &'static str, verb: &'static str) -> Self {
        Self { group, resource, subresource: "", verb }
    }

    /// As written in roles and messages: `pods/log`.
    fn full_resource(self) -> String {
        match self.subresource {
            "" => self.resource.to_owned(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }
}

/// Required for every run. `deploy/rbac.yaml` grants these and those for Leases.
pub const FOR_PODS: [Permission; 6] = [
    Permission::new("", "pods", "list"),
    Permission::new("", "pods", "watch"),
    Permission::new("", "pods", "create"),
    Permission::new("", "pods", "delete"),
    Permission::new("", "pods", "get"),
    Permission::new("", "pods", "patch"),
];

/// Required for Leases. Without them a run continues, but nothing prevents a second posse from running
/// the same instance.
pub const FOR_LEASES: [Permission; 3] = [
    Permission::new(COORDINATION, "leases", "get"),
    Permission::new(COORDINATION, "leases", "create"),
    Permission::new(COORDINATION, "leases", "update"),
];

/// Required for `failures.log_lines`.
pub const FOR_LOGS: Permission =
    Permission { subresource: "log", ..Permission::new("", "pods", "get") };

/// Required for `volumes_per_slot`.
pub const FOR_VOLUMES: [Permission; 4] = [
    Permission::new("", "persistentvolumeclaims", "create"),
    Permission::new("", "persistentvolumeclaims", "get"),
    Permission::new("", "persistentvolumeclaims", "list"),
    Permission::new("", "persistentvolumeclaims", "delete"),
];

/// The API group of Events.
const EVENTS: &str = "events.k8s.io";

/// Optional permissions, and what happens without each.
pub const OPTIONAL: [(Permission, &str); 5] = [
    (
        Permission::new("", "pods", "deletecollection"),
        "a shutdown needs one call for each executor",
    ),
    (
        Permission::new(COORDINATION, "leases", "delete"),
        "a Lease without an owner is released but not deleted",
    ),
    (
        Permission::new(EVENTS, "events", "create"),
        "`kubectl describe` of the driver's pod does not show losses and waits",
    ),
    (
        Permission::new(EVENTS, "events", "patch"),
        "Events about the driver's pod do not count repetitions",
    ),
    (
        Permission::new("", "nodes", "get"),
        "terminating pods on a deleted node are not force-deleted",
    ),
];

/// The permissions that these settings require.
pub fn needed(settings: Option<&RunSettings>) -> Vec<Permission> {
    let logs = settings.is_some_and(|settings| settings.policy.log_lines > 0);
    let has_volumes =
        |settings: &RunSettings| settings.groups.iter().any(|one| !one.volumes.is_empty());
    let volumes = settings.is_some_and(has_volumes).then_some(FOR_VOLUMES);
    FOR_PODS
        .into_iter()
        .chain(logs.then_some(FOR_LOGS))
        .chain(volumes.into_iter().flatten())
        .collect()
}

/// The missing ones of `permissions` in `namespace`.
///
/// # Errors
/// The server refuses the access review, or does not answer.
pub fn missing(
    http: &Http,
    namespace: &str,
    permissions: impl IntoIterator<Item = Permission>,
) -> Result<Vec<Permission>, Refusal> {
    let mut missing = Vec::new();
    for permission in permissions {
        let Permission { group, resource, subresource, verb } = permission;
        let namespace = if resource == "nodes" { "" } else { namespace };
        let access = Access { namespace, verb, group, resource, subresource, name: "" };
        let answer = access_review(http, access)?;
        if !answer.allowed {
            debug!("{verb} {}: not permitted: {}", permission.full_resource(), answer.reason);
            missing.push(permission);
        }
    }
    Ok(missing)
}

/// What is missing to write a Secret of this name: `update secrets/wc-hdfs`. To read it is tried.
///
/// # Errors
/// The server refuses the access review, or does not answer.
pub fn missing_for_secret(
    http: &Http,
    namespace: &str,
    secret: &str,
) -> Result<Vec<String>, Refusal> {
    let mut missing = Vec::new();
    // A role cannot limit `create` to a name.
    for (verb, name) in [("create", ""), ("update", secret), ("delete", secret)] {
        let (group, resource, subresource) = ("", "secrets", "");
        let access = Access { namespace, verb, group, resource, subresource, name };
        if !access_review(http, access)?.allowed {
            let name = if name.is_empty() { String::new() } else { format!("/{name}") };
            missing.push(format!("{verb} secrets{name}"));
        }
    }
    Ok(missing)
}

/// A list for messages: `create pods, get pods/log`.
pub fn list(permissions: &[Permission]) -> String {
    let texts = permissions.iter().map(|one| format!("{} {}", one.verb, one.full_resource()));
    texts.collect::<Vec<_>>().join(", ")
}

/// A Role with these permissions and its RoleBinding, as one YAML document that may be indented. `user`
/// is the user name that the server sees; without it, the text has a placeholder.
pub fn role(permissions: &[Permission], namespace: &str, user: Option<&str>) -> String {
    let mut rules: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    for one in permissions {
        rules.entry((one.group, one.full_resource())).or_default().push(one.verb);
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
            let user = user.unwrap_or("USER");
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

/// Logs the permissions that are missing in `namespace`, if the server tells.
pub fn log_missing(http: &Http, namespace: &str) {
    let missing = match missing(http, namespace, FOR_PODS.into_iter().chain(FOR_LEASES)) {
        Ok(missing) if missing.is_empty() => return,
        Ok(missing) => list(&missing),
        Err(refusal) => return debug!("cannot find the missing permissions: {refusal}"),
    };
    if let Ok(version) = version(http) {
        debug!("the server is Kubernetes {version}");
    }
    error!(
        "missing permissions in namespace {namespace}: {missing} (deploy/rbac.yaml grants them, and \
         `posse check` prints a role that grants them)"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::yaml::Node;

    #[test]
    fn a_role_is_valid_yaml_and_names_its_subject() {
        let text = role(&[FOR_PODS[2], FOR_PODS[0], FOR_LOGS, FOR_LEASES[0]], "team", None);
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
            (None, "kind: User, name: \"USER\"}"),
        ] {
            let text = role(&FOR_PODS, "team", user);
            assert!(text.ends_with(&format!("{want}\n")), "{text}");
        }
        assert_eq!(list(&[FOR_PODS[0], FOR_LOGS]), "list pods, get pods/log");
    }
}
