//! Validation of objects in kube-apiserver's order and words. The objects are complete and their
//! fields have the right types.

mod amounts;
mod container;
mod job;
mod metadata;
mod pod;
mod storage;
mod volume;

use serde_json::Value;

use crate::schema::kind::{Kind, Subresource};
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::text_at;

type Causes = Vec<Cause>;

/// The rule for the names of a kind.
type NameRule = fn(&str) -> Vec<String>;

fn name_rule(kind: Kind) -> NameRule {
    match kind {
        Kind::ClusterRole
        | Kind::ClusterRoleBinding
        | Kind::Event
        | Kind::PodDisruptionBudget
        | Kind::Role
        | Kind::RoleBinding => names::path_segment,
        Kind::Namespace | Kind::Service => names::dns_label,
        Kind::ConfigMap
        | Kind::Job
        | Kind::Lease
        | Kind::LimitRange
        | Kind::Node
        | Kind::PersistentVolume
        | Kind::PersistentVolumeClaim
        | Kind::Pod
        | Kind::ResourceQuota
        | Kind::Secret
        | Kind::ServiceAccount => names::dns_subdomain,
    }
}

/// The errors of a new object.
pub(crate) fn create(kind: Kind, value: &Value) -> Causes {
    let mut causes = Causes::new();
    metadata::check(kind, value, name_rule(kind), &mut causes);
    check(kind, value, &mut causes);
    causes
}

/// The errors of a change from `old` to `new`.
pub(crate) fn update(kind: Kind, subresource: Subresource, old: &Value, new: &Value) -> Causes {
    let mut causes = Causes::new();
    metadata::check(kind, new, names::path_segment, &mut causes);
    metadata::check_update(old, new, &mut causes);
    match subresource {
        Subresource::Resize => check(kind, new, &mut causes),
        Subresource::None => {
            check(kind, new, &mut causes);
            if kind == Kind::Job {
                job::check_update(old, new, &mut causes);
            } else if kind == Kind::Pod {
                pod::check_update(old, new, &mut causes);
            }
        }
        Subresource::Binding
        | Subresource::Eviction
        | Subresource::Exec
        | Subresource::Log
        | Subresource::Status
        | Subresource::Token => {}
    }
    causes
}

/// Validates everything but the metadata.
fn check(kind: Kind, value: &Value, causes: &mut Causes) {
    match kind {
        Kind::ConfigMap => storage::config_map(value, causes),
        Kind::Job => job::check(value, causes),
        Kind::PersistentVolumeClaim => storage::claim(value, causes),
        Kind::Pod => pod::check(value, causes),
        Kind::ResourceQuota => quota(value, causes),
        Kind::Secret => storage::secret(value, causes),
        Kind::ClusterRole
        | Kind::ClusterRoleBinding
        | Kind::Event
        | Kind::Lease
        | Kind::LimitRange
        | Kind::Namespace
        | Kind::Node
        | Kind::PersistentVolume
        | Kind::PodDisruptionBudget
        | Kind::Role
        | Kind::RoleBinding
        | Kind::Service
        | Kind::ServiceAccount => {}
    }
}

/// A quota that would count other pods than it says is refused.
fn quota(quota: &Value, causes: &mut Causes) {
    for field in ["scopes", "scopeSelector"] {
        if quota["spec"].get(field).is_some() {
            let detail = "quotas of the embedded cluster count all pods and have no scopes";
            causes.push(Cause::forbidden(join("spec", field), detail));
        }
    }
}

fn join(path: &str, name: &str) -> String {
    format!("{path}.{name}")
}

fn members<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    of.get(name).and_then(Value::as_object).into_iter().flatten()
}

/// A container or a volume has a name.
fn named(item: &Value, path: &str, causes: &mut Causes) {
    let field = join(path, "name");
    match text_at(item, "/name") {
        "" => causes.push(Cause::required(field, "")),
        name => push_invalid(causes, &field, name, names::dns_label(name)),
    }
}

/// A word that is given is one of these.
fn one_of(of: &Value, field: &str, known: &[&str], path: &str, causes: &mut Causes) {
    let word = of.get(field).and_then(Value::as_str).filter(|word| !word.is_empty());
    if let Some(word) = word.filter(|word| !known.contains(word)) {
        causes.push(Cause::not_supported(join(path, field), word, known));
    }
}

/// Adds one `Invalid value` for each message about a text.
fn push_invalid(causes: &mut Causes, field: &str, value: &str, wrong: Vec<String>) {
    causes.extend(wrong.into_iter().map(|wrong| Cause::invalid(field, value, &wrong)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    #[test]
    fn a_volume_that_nothing_would_make_is_refused() {
        let claim = json!({"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}});
        let pod = json!({"spec": {"containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "ephemeral": claim}]}});
        check_new(Kind::Pod, pod, &[("spec.volumes[0].ephemeral", "FieldValueForbidden")]);
    }
}
