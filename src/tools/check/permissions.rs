//! The permissions that depend on the settings or are optional, and a Role that grants what is missing.

use std::collections::{BTreeMap, BTreeSet};

use crate::permissions::{COORDINATION, FOR_PODS, Permission};
use posse_core::model::refusal::Refusal;
use posse_kube::api::reviews::access_review;
use posse_kube::http::Http;
use posse_run::run::settings::{GroupSettings, RecordSetting, RunSettings};
use posse_wire::config::DriverPod;
use posse_wire::k8s::review::Access;

/// Required for a record in ConfigMaps.
const FOR_RECORD: [Permission; 5] = [
    Permission::new("", "configmaps", "create"),
    Permission::new("", "configmaps", "delete"),
    Permission::new("", "configmaps", "get"),
    Permission::new("", "configmaps", "list"),
    Permission::new("", "configmaps", "update"),
];
/// Required for `failures.log_lines` and `task_output`.
pub const FOR_LOGS: Permission =
    Permission { subresource: "log", ..Permission::new("", "pods", "get") };

/// Optional with `oom_growth.grow_at`.
const FOR_RESIZE: (Permission, &str) = (
    Permission { subresource: "resize", ..Permission::new("", "pods", "patch") },
    "running executors get no more memory in place (oom_growth.grow_at)",
);

/// Optional with a page, where there is a metrics API.
const FOR_USAGE: Permission = Permission::new("metrics.k8s.io", "pods", "list");

/// Required for `volumes_per_slot`.
pub const FOR_VOLUMES: [Permission; 4] = [
    Permission::new("", "persistentvolumeclaims", "create"),
    Permission::new("", "persistentvolumeclaims", "get"),
    Permission::new("", "persistentvolumeclaims", "list"),
    Permission::new("", "persistentvolumeclaims", "delete"),
];

/// Optional for who submits a driver: they bring the files of `--file`.
const FOR_FILES: [Permission; 4] = [
    Permission::new("", "secrets", "create"),
    Permission::new("", "secrets", "delete"),
    Permission::new("", "secrets", "get"),
    Permission::new("", "secrets", "patch"),
];

/// The API group of Events.
const EVENTS: &str = "events.k8s.io";

/// Optional permissions, and what happens without each.
const OPTIONAL: [(Permission, &str); 5] = [
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

/// Whether the run keeps its record in ConfigMaps: none, only if it may, or in any case.
fn record_in_cluster(settings: &RunSettings) -> Option<RecordNeed> {
    match &settings.record {
        RecordSetting::Cluster => Some(RecordNeed::InAnyCase),
        // Outside of a cluster it is another file, and a driver's own run needs none.
        RecordSetting::Auto(_) if settings.driver.command.is_empty() => Some(RecordNeed::IfItMay),
        RecordSetting::Auto(_) | RecordSetting::File(_) | RecordSetting::Off => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordNeed {
    IfItMay,
    InAnyCase,
}

/// The optional permissions with these settings, and what happens without each.
pub fn optional(settings: Option<&RunSettings>) -> Vec<(Permission, &'static str)> {
    let grows = |group: &GroupSettings| {
        group.pod.memory_scaling.as_ref().is_some_and(|memory| memory.grow_at_permille.is_some())
    };
    let in_place = settings.is_some_and(|settings| settings.groups.iter().any(grows));
    let folder = settings.and_then(|settings| settings.task_output.as_ref());
    let outputs = folder.filter(|folder| !folder.is_named).map(|_| {
        (
            FOR_LOGS,
            "the output of ended tasks is not kept (task_output), only that of pods that are there",
        )
    });
    let record = settings.and_then(record_in_cluster).filter(|need| *need == RecordNeed::IfItMay);
    let record = record.into_iter().flat_map(|_| {
        FOR_RECORD.map(|one| (one, "a run in a pod takes no tasks, unless it has `record: off`"))
    });
    let known = OPTIONAL.into_iter().chain(in_place.then_some(FOR_RESIZE)).chain(outputs);
    let submits = settings.is_some_and(|settings| settings.driver.pod != DriverPod::default());
    let files = submits.then_some(FOR_FILES).into_iter().flatten();
    let files = files.map(|one| (one, "`posse submit --file` can bring no files to the pods"));
    let page = settings.filter(|settings| settings.page.is_some());
    let usage = page.map(|_| (FOR_USAGE, "the page does not show what executors use"));
    known.chain(record).chain(files).chain(usage).collect()
}

/// The permissions that these settings require.
pub fn needed(settings: Option<&RunSettings>) -> Vec<Permission> {
    let named = |settings: &RunSettings| {
        settings.task_output.as_ref().is_some_and(|folder| folder.is_named)
    };
    let logs = settings.is_some_and(|settings| settings.policy.log_lines > 0 || named(settings));
    let has_volumes =
        |settings: &RunSettings| settings.groups.iter().any(|one| !one.volumes.is_empty());
    let volumes = settings.is_some_and(has_volumes).then_some(FOR_VOLUMES);
    let record = settings.and_then(record_in_cluster);
    let record = record.filter(|need| *need == RecordNeed::InAnyCase).map(|_| FOR_RECORD);
    let gangs = settings.into_iter().flat_map(|settings| &settings.groups);
    let apis: BTreeSet<&str> =
        gangs.filter_map(|group| group.pod.gang.as_ref()?.kind.pod_group_api()).collect();
    let pod_groups = apis
        .into_iter()
        .flat_map(|api| ["create", "delete"].map(|verb| Permission::new(api, "podgroups", verb)));
    FOR_PODS
        .into_iter()
        .chain(pod_groups)
        .chain(logs.then_some(FOR_LOGS))
        .chain(record.into_iter().flatten())
        .chain(volumes.into_iter().flatten())
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permissions::{FOR_LEASES, list};
    use posse_encoding::yaml::Node;

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
