//! The permissions that posse needs: asks the server which are missing.

use std::collections::BTreeSet;

use log::debug;

use posse_core::model::refusal::Refusal;
use posse_kube::api::reviews::access_review;
use posse_kube::http::Http;
use posse_run::run::settings::{RecordSetting, RunSettings};
use posse_wire::k8s::permissions::{LOGS, RECORD, Rule, VOLUMES};
use posse_wire::k8s::review::Access;

const WITHOUT_OUTPUT: &str =
    "the output of ended tasks is not kept (task_output), only that of pods that are there";
const WITHOUT_RECORD: &str = "a run in a pod takes no tasks, unless it has `record: off`";
const PROGRAM_WITHOUT_RECORD: &str = "tasks and completed indexes of a run in a pod end with it";

/// A permission in a namespace, or on nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The API group; empty for the core one.
    pub group: &'static str,
    /// With its subresource, as in roles and messages: `pods/log`.
    pub resource: &'static str,
    pub verb: &'static str,
}

/// The permissions of these rules, one for each verb.
pub fn of_rules(rules: impl IntoIterator<Item = Rule>) -> impl Iterator<Item = Permission> {
    rules.into_iter().flat_map(|Rule { group, resource, verbs }| {
        verbs.iter().map(move |verb| Permission { group, resource, verb })
    })
}

/// What these settings need besides pods and Leases, and what happens without it; `None`: there is no run without it.
pub fn of_settings(settings: &RunSettings) -> Vec<(Rule, Option<&'static str>)> {
    let gangs = settings.groups.iter().filter_map(|group| group.pod.gang.as_ref());
    let apis: BTreeSet<&str> = gangs.filter_map(|gang| gang.kind.pod_group_api()).collect();
    let pod_groups = apis.into_iter().map(|api| (Rule::pod_groups(api), None));
    let logs = match settings.task_output.as_ref().map(|folder| folder.is_named) {
        Some(true) => Some(None),
        _ if settings.policy.log_lines > 0 => Some(None),
        Some(false) => Some(Some(WITHOUT_OUTPUT)),
        None => None,
    };
    let record = match &settings.record {
        RecordSetting::Cluster => Some(None),
        // Outside of a cluster it is a file.
        RecordSetting::Auto(_)
            if settings.driver.command.is_empty() || settings.keeps_executors() =>
        {
            Some(Some(WITHOUT_RECORD))
        }
        RecordSetting::Auto(_) => Some(Some(PROGRAM_WITHOUT_RECORD)),
        RecordSetting::File(_) | RecordSetting::Off => None,
    };
    let has_volumes = settings.groups.iter().any(|group| !group.volumes.is_empty());
    let others = [(LOGS, logs), (RECORD, record), (VOLUMES, has_volumes.then_some(None))];
    let others = others.into_iter().filter_map(|(rule, without)| Some((rule, without?)));
    pod_groups.chain(others).collect()
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
        let Permission { group, resource, verb } = permission;
        let namespace = if resource == "nodes" { "" } else { namespace };
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let access = Access { namespace, verb, group, resource, subresource, name: "" };
        let answer = access_review(http, access)?;
        if !answer.allowed {
            debug!("{verb} {}: not permitted: {}", permission.resource, answer.reason);
            missing.push(permission);
        }
    }
    Ok(missing)
}

/// A list for messages: `create pods, get pods/log`.
pub fn list(permissions: &[Permission]) -> String {
    let texts = permissions.iter().map(|one| format!("{} {}", one.verb, one.resource));
    texts.collect::<Vec<_>>().join(", ")
}
