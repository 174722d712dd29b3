//! The rules of ResourceQuotas: what an object uses, and whether the quota allows more.

use serde_json::Value;

use super::Quantity;
use crate::schema::kind::Kind;
use crate::storage::object::{array_at, is_terminal, text_at};
use crate::time;
use posse_encoding::amounts::{Amounts, REQUESTS, named, pod_usage};

const OF_PODS: [&str; 10] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];
/// The sum of the sizes of claims.
const STORAGE: &str = "requests.storage";
/// Before the resource of any kind: how many of its objects there are.
const COUNT: &str = "count/";
/// The resources that are counted without it, too.
const PLAIN: [&str; 5] =
    ["configmaps", "persistentvolumeclaims", "resourcequotas", "secrets", "services"];
/// The resources that each container has to set if a quota limits them.
const NEEDED: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// True if objects of the kind use the resource.
pub(crate) fn counts(kind: Kind, resource: &str) -> bool {
    if resource.strip_prefix(COUNT).is_some_and(|name| name == kind.resource()) {
        return kind.is_namespaced();
    }
    if PLAIN.contains(&resource) {
        return resource == kind.resource();
    }
    if kind == Kind::Pod {
        let name = resource.strip_prefix(REQUESTS);
        let extended = name.is_some_and(|name| name.contains('/'));
        let pages = name.unwrap_or(resource).starts_with("hugepages-");
        return OF_PODS.contains(&resource) || extended || pages;
    }
    kind == Kind::PersistentVolumeClaim && resource == STORAGE
}

/// The usage of one object.
pub(crate) fn usage(kind: Kind, value: &Value, now: &str) -> Amounts {
    let mut used = Amounts::default();
    let resource = kind.resource();
    if kind.is_namespaced() {
        used.set(&format!("{COUNT}{resource}"), Quantity::whole(1));
    }
    if PLAIN.contains(&resource.as_str()) {
        used.set(&resource, Quantity::whole(1));
    }
    if kind == Kind::Pod && !has_ended(value, now) {
        used.add(&pod_usage(value));
    } else if kind == Kind::PersistentVolumeClaim
        && let Some(size) = Amounts::read(value, "/spec/resources/requests").get("storage")
    {
        used.set(STORAGE, size.rounded_to_whole());
    }
    used
}

/// True if the pod has ended, or its deletion is overdue.
fn has_ended(pod: &Value, now: &str) -> bool {
    let grace = pod.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
    let overdue = grace.is_some_and(|grace| {
        let at = time::seconds(text_at(pod, "/metadata/deletionTimestamp"));
        at != 0 && time::seconds(now) > at.saturating_add(grace)
    });
    overdue || is_terminal(text_at(pod, "/status/phase"))
}

/// The quota's usage after a new object of usage `delta`; `None` if the quota does not apply. The
/// error is the text after `is forbidden: `.
pub(super) fn charge(
    quota: &Value,
    kind: Kind,
    value: &Value,
    delta: &Amounts,
) -> Result<Option<Amounts>, String> {
    let name = text_at(quota, "/metadata/name");
    let hard = Amounts::read(quota, "/status/hard");
    let mut used = Amounts::read(quota, "/status/used");
    let concerned: Vec<&str> =
        hard.0.keys().map(String::as_str).filter(|name| counts(kind, name)).collect();
    if concerned.is_empty() {
        return Ok(None);
    }
    let missing = if kind == Kind::Pod { unset_resources(value, &concerned) } else { Vec::new() };
    if !missing.is_empty() {
        return Err(format!("failed quota: {name}: must specify {}", missing.join("; ")));
    }
    if concerned.iter().any(|resource| used.get(resource).is_none()) {
        let resources = concerned.join(",");
        return Err(format!("status unknown for quota: {name}, resources: {resources}"));
    }
    let requested = delta.only(|name| hard.get(name).is_some());
    let before = used.clone();
    used.add(&requested);
    let exceeded = |name: &str| {
        requested.get(name).is_some()
            && used.get(name).zip(hard.get(name)).is_some_and(|(used, hard)| used.exceeds(hard))
    };
    let over = requested.only(exceeded);
    if over.0.is_empty() {
        return Ok(Some(used));
    }
    Err(format!(
        "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
        over.text(),
        before.only(exceeded).text(),
        hard.only(exceeded).text()
    ))
}

/// The resources that a quota limits, each with the containers of the pod that do not set it.
fn unset_resources(pod: &Value, concerned: &[&str]) -> Vec<String> {
    let lists = ["/spec/containers", "/spec/initContainers"];
    let of = |container: &Value| {
        let requests = Amounts::read(container, "/resources/requests");
        let amounts = named(&requests, &Amounts::read(container, "/resources/limits"));
        (text_at(container, "/name").to_owned(), amounts)
    };
    let all: Vec<(String, Amounts)> =
        lists.into_iter().flat_map(|list| array_at(pod, list)).map(of).collect();
    let needed = concerned.iter().filter(|name| NEEDED.contains(name));
    needed
        .filter_map(|name| {
            let without = all.iter().filter(|(_, named)| named.get(name).is_none());
            let containers: Vec<&str> = without.map(|(name, _)| name.as_str()).collect();
            (!containers.is_empty()).then(|| format!("{name} for: {}", containers.join(",")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn quota(hard: &Value, used: &Value) -> Value {
        json!({ "metadata": { "name": "q" }, "status": { "hard": hard, "used": used } })
    }

    fn ask(quota: &Value) -> String {
        let pod = json!({ "spec": { "containers": [{ "name": "c" }] } });
        let delta = usage(Kind::Pod, &pod, "2026-01-01T00:00:00Z");
        match charge(quota, Kind::Pod, &pod, &delta) {
            Ok(None) => "-".to_owned(),
            Ok(Some(used)) => used.text(),
            Err(error) => error,
        }
    }

    /// The transcript has the quotas that are exceeded.
    #[test]
    fn quotas_of_other_kinds_and_of_unknown_use_are_told_apart() {
        for (hard, used, want) in [
            (json!({ "secrets": "3" }), json!({ "secrets": "3" }), "-"),
            (
                json!({ "pods": "4", "count/pods": "4" }),
                json!({}),
                "status unknown for quota: q, resources: count/pods,pods",
            ),
        ] {
            assert_eq!(ask(&quota(&hard, &used)), want, "{hard}");
        }
    }

    #[test]
    fn each_kind_has_its_usage() {
        let now = "2026-01-01T00:10:00Z";
        let claim = json!({ "spec": {
            "resources": { "requests": { "storage": "1Gi" } },
        }});
        let ended = json!({ "status": { "phase": "Failed" } });
        let lost = json!({ "metadata": {
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30,
        }});
        for (kind, value, want) in [
            (
                Kind::PersistentVolumeClaim,
                &claim,
                "count/persistentvolumeclaims=1,persistentvolumeclaims=1,requests.storage=1Gi",
            ),
            (Kind::ConfigMap, &json!({}), "configmaps=1,count/configmaps=1"),
            (Kind::Secret, &json!({}), "count/secrets=1,secrets=1"),
            (Kind::Job, &json!({}), "count/jobs.batch=1"),
            (Kind::Node, &json!({}), ""),
            (Kind::Pod, &ended, "count/pods=1"),
            (Kind::Pod, &lost, "count/pods=1"),
            (Kind::Pod, &json!({}), "count/pods=1,pods=1"),
        ] {
            let used = usage(kind, value, now);
            assert_eq!(used.text(), want, "{kind:?}");
            assert!(used.0.keys().all(|name| counts(kind, name)), "{kind:?}");
        }
    }
}
