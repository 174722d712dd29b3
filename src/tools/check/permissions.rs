//! The permissions that depend on the settings or are optional, and a Role that grants what is missing.

use std::collections::BTreeMap;

use crate::required_permissions::{Permission, of_rules, of_settings};
use posse_core::model::refusal::Refusal;
use posse_kube::api::reviews::access_review;
use posse_kube::http::Http;
use posse_run::run::settings::{GroupSettings, RunSettings};
use posse_wire::config::DriverPod;
use posse_wire::k8s::permissions::{EVENTS, LEASES, PODS, RESIZE, Rule, USAGE};
use posse_wire::k8s::review::Access;

/// Optional permissions, and what happens without each.
const OPTIONAL: [(Rule, &str); 3] = [
    (Rule { verbs: &["delete"], ..LEASES }, "a Lease without an owner is released but not deleted"),
    (EVENTS, "`kubectl describe` of the driver's pod does not show losses and waits"),
    (
        Rule { group: "", resource: "nodes", verbs: &["get"] },
        "terminating pods on a deleted node are not force-deleted",
    ),
];

/// The optional permissions with these settings, and what happens without each.
pub fn optional(settings: Option<&RunSettings>) -> Vec<(Rule, &'static str)> {
    let Some(settings) = settings else { return OPTIONAL.to_vec() };
    let grows = |group: &GroupSettings| {
        group.pod.memory_scaling.as_ref().is_some_and(|memory| memory.grow_at_permille.is_some())
    };
    // They bring the files of `--file`.
    let files =
        Rule { group: "", resource: "secrets", verbs: &["create", "delete", "get", "patch"] };
    let in_place = "running executors get no more memory in place (oom_growth.grow_at)";
    let others = [
        (
            settings.driver.pod != DriverPod::default(),
            (files, "`posse submit --file` can bring no files to the pods"),
        ),
        (settings.groups.iter().any(grows), (RESIZE, in_place)),
        (settings.page.is_some(), (USAGE, "the page does not show what executors use")),
    ];
    let of_run = of_settings(settings).into_iter();
    let of_run = of_run.filter_map(|(rule, without)| Some((rule, without?)));
    let others = others.into_iter().filter_map(|(is_used, one)| is_used.then_some(one));
    OPTIONAL.into_iter().chain(of_run).chain(others).collect()
}

/// The permissions that these settings require.
pub fn needed(settings: Option<&RunSettings>) -> Vec<Permission> {
    let of_run = settings.into_iter().flat_map(of_settings);
    let of_run = of_run.filter(|(_, without)| without.is_none()).map(|(rule, _)| rule);
    of_rules([PODS].into_iter().chain(of_run)).collect()
}

/// What is missing to write a Secret of this name: `update secrets/wc-hdfs`. To read it is tried. `change`: the verb that
/// changes it.
///
/// # Errors
/// The server refuses the access review, or does not answer.
pub fn missing_for_secret(
    http: &Http,
    namespace: &str,
    secret: &str,
    change: &str,
) -> Result<Vec<String>, Refusal> {
    let mut missing = Vec::new();
    // A role cannot limit `create` to a name.
    for (verb, name) in [("create", ""), (change, secret), ("delete", secret)] {
        let (group, resource, subresource) = ("", "secrets", "");
        let access = Access { namespace, verb, group, resource, subresource, name };
        if !access_review(http, access)?.allowed {
            let name = if name.is_empty() { String::new() } else { format!("/{name}") };
            missing.push(format!("{verb} secrets{name}"));
        }
    }
    Ok(missing)
}

/// A Role with these permissions and its RoleBinding, as one YAML document that may be indented. `user`
/// is the user name that the server sees; without it, the text has a placeholder.
pub fn role(permissions: &[Permission], namespace: &str, user: Option<&str>) -> String {
    let mut rules: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for one in permissions {
        rules.entry((one.group, one.resource)).or_default().push(one.verb);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::required_permissions::list;
    use posse_encoding::yaml::Node;
    use posse_wire::k8s::permissions::LOGS;

    #[test]
    fn a_role_is_valid_yaml_and_names_its_subject() {
        let pods: Vec<Permission> = of_rules([PODS]).collect();
        let others: Vec<Permission> = of_rules([LOGS, LEASES]).collect();
        let text = role(&[pods[2], pods[0], others[0], others[1]], "team", None);
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
            let text = role(&pods, "team", user);
            assert!(text.ends_with(&format!("{want}\n")), "{text}");
        }
        assert_eq!(list(&[pods[0], others[0]]), "list pods, get pods/log");
    }
}
