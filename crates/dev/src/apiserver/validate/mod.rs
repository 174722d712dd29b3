//! Validation of objects in kube-apiserver's order and words. The objects are complete and their
//! fields have the right types.

mod amounts;
mod cluster;
mod container;
mod job;
mod metadata;
mod pod;
mod pod_parts;
mod rules;
mod service;
mod storage;
mod volume;

pub(crate) use container::subscript;

use serde_json::{Value, json};

use crate::schema::kind::{Kind, Subresource};
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};

type Causes = Vec<Cause>;

/// The rule for the names of a kind.
type NameRule = fn(&str) -> Vec<String>;

/// A check that needs more than one field: the object or field, its path, the causes.
type Call = fn(&Value, &str, &mut Causes);

const CALLS: &[(&str, Call)] = &[
    ("annotations", metadata::annotations),
    ("budget", cluster::budget),
    ("capacity", storage::capacity),
    ("deadline", pod::deadline),
    ("dns", pod::dns),
    ("downward_source", volume::downward_source),
    ("event_series", cluster::event_series),
    ("event_type", cluster::event_type),
    ("env_from_source", container::env_from_source),
    ("env_source", container::env_source),
    ("env_value", container::env_value),
    ("escalation", container::escalation),
    ("failure_rule", job::failure_rule),
    ("field_requirement", pod::field_requirement),
    ("handler", container::handler),
    ("headers", container::headers),
    ("host_ports", pod::host_ports),
    ("hostname_override", pod::hostname_override),
    ("joined_label_value", rules::joined_label_value),
    ("labels", metadata::labels),
    ("node_requirement", pod::node_requirement),
    ("one_success", container::one_success),
    ("overhead", pod::overhead),
    ("policy_rule", cluster::policy_rule),
    ("port_number", rules::port_or_name),
    ("port_or_name", rules::port_or_name),
    ("ports", container::ports),
    ("privileged", container::privileged),
    ("projected", volume::projected),
    ("requirement", pod::requirement),
    ("resources", amounts::requirements),
    ("shared_processes", pod::shared_processes),
    ("spread", pod::spread),
    ("storage", storage::requested),
    ("subject", cluster::subject),
    ("toleration", pod::toleration),
    ("user_namespace", pod::user_namespace),
    ("volume_type", storage::volume_type),
    ("weight", rules::weight),
];

/// How a kind is validated: the rule for names, and the steps of a create and of an update in the
/// server's order. `M` is metadata, `U` the update of metadata, `S` the rest, `X` the update of the
/// rest.
struct ValidationSteps {
    name: NameRule,
    create: &'static str,
    update: &'static str,
}

fn steps(kind: Kind) -> ValidationSteps {
    let plain = ValidationSteps { name: names::dns_subdomain, create: "MS", update: "UMSX" };
    match kind {
        Kind::ClusterRole | Kind::ClusterRoleBinding | Kind::Role | Kind::RoleBinding => {
            ValidationSteps { name: names::path_segment, update: "MSUX", ..plain }
        }
        Kind::ConfigMap | Kind::Secret => ValidationSteps { update: "UXMS", ..plain },
        Kind::Event | Kind::PodDisruptionBudget => {
            ValidationSteps { create: "S", update: "S", ..plain }
        }
        Kind::Job => ValidationSteps { update: "MSUX", ..plain },
        Kind::Lease => ValidationSteps { update: "US", ..plain },
        Kind::ResourceQuota => ValidationSteps { update: "MSUSX", ..plain },
        Kind::LimitRange => ValidationSteps { update: "MS", ..plain },
        Kind::Namespace => ValidationSteps { name: names::dns_label, update: "U", ..plain },
        Kind::Node => ValidationSteps { update: "UX", ..plain },
        Kind::PersistentVolume => ValidationSteps { update: "MSX", ..plain },
        Kind::PersistentVolumeClaim | Kind::Pod => plain,
        Kind::Service => ValidationSteps { name: names::dns_label, update: "UXMS", ..plain },
        Kind::ServiceAccount => ValidationSteps { update: "UM", ..plain },
    }
}

/// The errors of a new object.
pub(crate) fn create(kind: Kind, value: &Value) -> Causes {
    let mut causes = Causes::new();
    let steps = steps(kind);
    for step in steps.create.chars() {
        match step {
            'M' => metadata::check(kind, value, steps.name, &mut causes),
            _ => check(kind, value, &mut causes),
        }
    }
    if kind == Kind::Pod && !array_at(value, "/spec/ephemeralContainers").is_empty() {
        // They are added to a pod that exists, by a subresource.
        causes.push(Cause::forbidden("spec.ephemeralContainers", "cannot be set on create"));
    }
    if causes.is_empty() {
        metadata::check_common(kind, value, names::path_segment, &mut causes);
    }
    causes
}

/// The further errors of a new event of `events.k8s.io`, which the server stores as one of `v1`.
pub(crate) fn new_event(event: &Value, namespace: &str) -> Causes {
    let mut causes = Causes::new();
    let mut placed = event.clone();
    placed["metadata"]["namespace"] = namespace.into();
    cluster::event(&placed, "reportingController", &mut causes);
    let name = text_at(event, "/metadata/name");
    if !name.is_empty() {
        push_invalid(&mut causes, "metadata.name", name, names::dns_subdomain(name));
    }
    rules::check("NewEvent", event, "", &mut causes);
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        let value = event.get(field).filter(|value| !value.is_null() && **value != json!({}));
        if value.is_some_and(|value| *value != 0) {
            causes.push(Cause::invalid(field, "", "needs to be unset"));
        }
    }
    causes
}

/// The errors of a change from `old` to `new`.
pub(crate) fn update(kind: Kind, subresource: Subresource, old: &Value, new: &Value) -> Causes {
    let mut causes = Causes::new();
    metadata::check_common(kind, new, names::path_segment, &mut causes);
    metadata::check_update(old, new, &mut causes);
    if subresource == Subresource::Status {
        metadata::check_update(old, new, &mut causes);
        check_status(kind, old, new, &mut causes);
        return causes;
    }
    if subresource == Subresource::EphemeralContainers {
        pod_parts::ephemeral_containers(old, new, &mut causes);
        return causes;
    }
    if subresource == Subresource::Resize {
        pod_parts::resize(old, new, &mut causes);
        return causes;
    }
    let steps = steps(kind);
    for step in steps.update.chars() {
        match step {
            'M' => metadata::check(kind, new, steps.name, &mut causes),
            'U' => {
                metadata::check_update(old, new, &mut causes);
                if kind != Kind::Lease {
                    metadata::standard_finalizers(new, &mut causes);
                }
            }
            'S' => check(kind, new, &mut causes),
            _ => check_change(kind, old, new, &mut causes),
        }
    }
    causes
}

/// Validates everything but the metadata.
fn check(kind: Kind, value: &Value, causes: &mut Causes) {
    match kind {
        Kind::ClusterRole | Kind::Role => {
            cluster::rules_of_role(value, kind.is_namespaced(), causes);
        }
        Kind::ClusterRoleBinding | Kind::RoleBinding => {
            cluster::binding(value, kind.is_namespaced(), causes);
        }
        Kind::ConfigMap => storage::config_map(value, causes),
        Kind::Event => cluster::event(value, "reportingComponent", causes),
        Kind::Job => job::check(value, causes),
        Kind::Lease => cluster::lease(value, causes),
        Kind::Node => cluster::node(value, causes),
        Kind::PersistentVolume => {
            rules::check("PersistentVolumeSpec", &value["spec"], "spec", causes);
        }
        Kind::PersistentVolumeClaim => {
            rules::check("PersistentVolumeClaimSpec", &value["spec"], "spec", causes);
        }
        Kind::Pod => pod::check(value, causes),
        Kind::PodDisruptionBudget => {
            rules::check("PodDisruptionBudgetSpec", &value["spec"], "spec", causes);
            rules::check("PodDisruptionBudgetStatus", &value["status"], "status", causes);
        }
        Kind::ResourceQuota => amounts::quota(&value["spec"], causes),
        Kind::Secret => storage::secret(value, causes),
        Kind::Service => service::check(value, causes),
        Kind::LimitRange | Kind::Namespace | Kind::ServiceAccount => {}
    }
}

/// Checks the immutable fields.
fn check_change(kind: Kind, old: &Value, new: &Value, causes: &mut Causes) {
    match kind {
        Kind::ClusterRoleBinding | Kind::RoleBinding => cluster::binding_update(old, new, causes),
        Kind::ConfigMap => storage::data_update(old, new, causes),
        Kind::Job => job::check_update(old, new, causes),
        Kind::Node => cluster::node_update(old, new, causes),
        Kind::PersistentVolume => storage::volume_update(old, new, causes),
        Kind::PersistentVolumeClaim => storage::claim_update(old, new, causes),
        Kind::Pod => pod::check_update(old, new, causes),
        Kind::Secret => storage::secret_update(old, new, causes),
        Kind::ClusterRole
        | Kind::Event
        | Kind::Lease
        | Kind::LimitRange
        | Kind::Namespace
        | Kind::PodDisruptionBudget
        | Kind::ResourceQuota
        | Kind::Role
        | Kind::Service
        | Kind::ServiceAccount => {}
    }
}

/// Validates a status.
fn check_status(kind: Kind, old: &Value, new: &Value, causes: &mut Causes) {
    if kind == Kind::Job {
        rules::check("JobStatus", &new["status"], "status", causes);
    } else if kind == Kind::Namespace {
        cluster::namespace_status(new, causes);
    } else if kind == Kind::Node {
        cluster::node_amounts(new, causes);
    } else if kind == Kind::Pod {
        pod::check_status(old, new, causes);
    } else if kind == Kind::PodDisruptionBudget {
        rules::check("PodDisruptionBudgetStatus", &new["status"], "status", causes);
    } else if kind == Kind::ResourceQuota {
        amounts::quota_status(&new["status"], causes);
    }
}

/// `path.name`, or `name` without a path.
fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Adds one `Invalid value` for each message about a text.
fn push_invalid(causes: &mut Causes, field: &str, value: &str, wrong: Vec<String>) {
    causes.extend(wrong.into_iter().map(|wrong| Cause::invalid(field, value, &wrong)));
}

/// A list as the messages show it.
fn shown(list: &[Value]) -> String {
    Value::from(list).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::defaults;
    use crate::apiserver::strategy;
    use crate::schema;

    /// Checks the errors of an object from a client: fields and reasons.
    #[track_caller]
    fn check_new(kind: Kind, mut value: Value, want: &[(&str, &str)]) {
        value["metadata"]["name"] = "a".into();
        value["metadata"]["uid"] = "u".into();
        value["metadata"]["namespace"] = "n".into();
        schema::check(schema::of(kind), &value).expect("its types are right");
        schema::canonical(schema::of(kind), &mut value);
        defaults::fill(kind, &mut value);
        strategy::create(kind, &mut value, "2026-01-01T00:00:00Z");
        let causes = create(kind, &value);
        let got: Vec<(&str, &str)> =
            causes.iter().map(|cause| (cause.field.as_str(), cause.reason)).collect();
        assert_eq!(got, want, "{causes:?}");
    }

    /// The transcript compares the small values.
    #[test]
    fn sizes_are_limited() {
        let text = |n: usize| "x".repeat(n);
        for (kind, value, want) in [
            (Kind::ConfigMap, json!({ "data": { "k": text(1 << 20) } }), None),
            (Kind::ConfigMap, json!({ "data": { "k": text(1 << 20), "l": "x" } }), Some("[]")),
            (Kind::Secret, json!({ "stringData": { "k": text((1 << 20) + 1) } }), Some("data")),
            (
                Kind::Lease,
                json!({ "metadata": { "annotations": { "k": text(256 << 10) } } }),
                Some("metadata.annotations"),
            ),
        ] {
            let want: Vec<(&str, &str)> =
                want.into_iter().map(|field| (field, "FieldValueTooLong")).collect();
            check_new(kind, value, &want);
        }
    }

    fn job(policy: &Value) -> Value {
        let spec = json!({
            "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }],
        });
        json!({ "spec": { "template": { "spec": spec }, "podFailurePolicy": policy } })
    }

    /// Fields of which the transcript has few rows.
    #[test]
    fn newer_fields_are_checked_as_newer_servers_do() {
        let rule = |rule: Value| job(&json!({ "rules": [rule] }));
        let at = |field: &str| format!("spec.podFailurePolicy.rules[0]{field}");
        let (invalid, required) = ("FieldValueInvalid", "FieldValueRequired");
        let (unknown, twice) = ("FieldValueNotSupported", "FieldValueDuplicate");
        for (value, want) in [
            (json!({ "action": "Ignore", "onPodConditions": [{ "type": "A" }] }), vec![]),
            (json!({ "action": "Ignore" }), vec![("", invalid)]),
            (
                json!({ "action": "X", "onExitCodes": { "operator": "In", "values": [0, 3, 3] } }),
                vec![
                    (".action", unknown),
                    (".onExitCodes.values[0]", invalid),
                    (".onExitCodes.values[2]", twice),
                ],
            ),
            (
                json!({ "action": "", "onExitCodes": { "containerName": "z", "values": [] } }),
                vec![
                    (".action", required),
                    (".onExitCodes.operator", required),
                    (".onExitCodes.values", invalid),
                    (".onExitCodes.containerName", invalid),
                ],
            ),
        ] {
            let want: Vec<(String, &str)> =
                want.into_iter().map(|(field, reason)| (at(field), reason)).collect();
            let want: Vec<(&str, &str)> =
                want.iter().map(|(field, reason)| (field.as_str(), *reason)).collect();
            check_new(Kind::Job, rule(value), &want);
        }
        let mut value = job(&json!({ "rules": [] }));
        value["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure".into();
        check_new(Kind::Job, value, &[("spec.template.spec.restartPolicy", invalid)]);
        let side_car = |policy: &str| {
            let probe = json!({ "exec": { "command": ["true"] } });
            json!({ "spec": {
                "containers": [{ "name": "c", "image": "i" }],
                "initContainers": [{
                    "name": "i", "image": "i", "restartPolicy": policy, "startupProbe": probe,
                }],
            } })
        };
        check_new(Kind::Pod, side_car("Always"), &[]);
        let (policy, probe) =
            ("spec.initContainers[0].restartPolicy", "spec.initContainers[0].startupProbe");
        check_new(Kind::Pod, side_car("Never"), &[(probe, invalid)]);
        check_new(Kind::Pod, side_car("Soon"), &[(policy, unknown), (probe, invalid)]);
        let volume = |claim: Value| {
            json!({ "spec": {
                "containers": [{ "name": "c", "image": "i" }],
                "volumes": [{ "name": "v", "ephemeral": { "volumeClaimTemplate": claim } }],
            } })
        };
        let claim = "spec.volumes[0].ephemeral.volumeClaimTemplate";
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        });
        check_new(Kind::Pod, volume(json!({ "spec": spec })), &[]);
        check_new(
            Kind::Pod,
            volume(json!({ "metadata": { "name": "x" }, "spec": { "accessModes": ["X"] } })),
            &[
                (&format!("{claim}.spec.accessModes"), unknown),
                (&format!("{claim}.spec.resources[storage]"), required),
                (&format!("{claim}.metadata.name"), "FieldValueForbidden"),
            ],
        );
    }
}
