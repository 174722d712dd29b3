//! The rules of ResourceQuotas: what an object uses, which objects a quota's scopes select, and
//! whether the quota allows more.

use serde_json::{Value, json};

use super::Quantity;
use crate::dev::schema::kind::Kind;
use crate::dev::storage::object::{array_at, is_terminal, text_at};
use crate::dev::time;
use crate::wire::amounts::{Amounts, REQUESTS, named, pod_usage};

const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
/// Kinds that are also counted under their plural name, besides `count/…`.
const NUMBERED: [&str; 3] = ["configmaps", "resourcequotas", "secrets"];
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
/// The resources that each container has to set if a quota limits them.
const NEEDED: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// True if objects of the kind use the resource.
pub(crate) fn counts(kind: Kind, resource: &str) -> bool {
    if resource.strip_prefix("count/") == Some(&kind.resource()) {
        return true;
    }
    if kind == Kind::Pod {
        let extended = resource.strip_prefix(REQUESTS).is_some_and(|name| name.contains('/'));
        let pages = resource.strip_prefix(REQUESTS).unwrap_or(resource).starts_with("hugepages-");
        OF_PODS.contains(&resource) || extended || pages
    } else if kind == Kind::PersistentVolumeClaim {
        let name = resource.split_once(STORAGE_CLASS).map_or(resource, |(_, name)| name);
        matches!(name, "persistentvolumeclaims" | "requests.storage")
    } else if kind == Kind::Service {
        matches!(resource, "services" | "services.nodeports" | "services.loadbalancers")
    } else {
        resource == kind.plural() && NUMBERED.contains(&resource)
    }
}

/// The usage of one object.
pub(crate) fn usage(kind: Kind, value: &Value, now: &str) -> Amounts {
    let mut used = Amounts::default();
    let one = Quantity::whole(1);
    used.set(&format!("count/{}", kind.resource()), one);
    if kind == Kind::Pod {
        if !has_ended(value, now) {
            used.add(&pod_usage(value));
        }
    } else if kind == Kind::PersistentVolumeClaim {
        used.add(&claim_usage(value));
    } else if kind == Kind::Service {
        used.set("services", one);
        let of = text_at(value, "/spec/type");
        let ports = i64::try_from(array_at(value, "/spec/ports").len()).unwrap_or(i64::MAX);
        if matches!(of, "NodePort" | "LoadBalancer") {
            used.set("services.nodeports", Quantity::whole(ports));
        }
        if of == "LoadBalancer" {
            used.set("services.loadbalancers", one);
        }
    } else if NUMBERED.contains(&kind.plural()) {
        used.set(kind.plural(), one);
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

fn claim_usage(claim: &Value) -> Amounts {
    let mut used = Amounts::default();
    used.set("persistentvolumeclaims", Quantity::whole(1));
    if let Some(size) = Amounts::read(claim, "/spec/resources/requests").get("storage") {
        used.set("requests.storage", size.rounded_to_whole());
    }
    let class = text_at(claim, "/spec/storageClassName");
    if !class.is_empty() {
        for (name, amount) in used.0.clone() {
            used.set(&format!("{class}{STORAGE_CLASS}{name}"), amount);
        }
    }
    used
}

/// True if the quota's scopes select the object. Scopes apply to pods only.
pub(crate) fn in_scope(quota: &Value, kind: Kind, value: &Value) -> bool {
    let plain = array_at(quota, "/spec/scopes").iter();
    let plain = plain.map(|scope| json!({ "scopeName": scope, "operator": "Exists" }));
    let selected = array_at(quota, "/spec/scopeSelector/matchExpressions").iter().cloned();
    plain.chain(selected).all(|scope| kind == Kind::Pod && pod_in_scope(&scope, value))
}

fn pod_in_scope(scope: &Value, pod: &Value) -> bool {
    let deadline = || {
        let seconds = pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64);
        seconds.is_some_and(|seconds| seconds >= 0)
    };
    let best_effort = || crate::dev::apiserver::defaults::quality_of_service(pod) == "BestEffort";
    match text_at(scope, "/scopeName") {
        "Terminating" => deadline(),
        "NotTerminating" => !deadline(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => {
            let class = text_at(pod, "/spec/priorityClassName");
            let named = array_at(scope, "/values").iter().any(|value| value == class);
            match text_at(scope, "/operator") {
                "Exists" => !class.is_empty(),
                "DoesNotExist" => class.is_empty(),
                "In" => !class.is_empty() && named,
                "NotIn" => class.is_empty() || !named,
                _ => false,
            }
        }
        _ => false,
    }
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
    if concerned.is_empty() || !in_scope(quota, kind, value) {
        return Ok(None);
    }
    let missing = if kind == Kind::Pod { unset_resources(value, &concerned) } else { Vec::new() };
    if !missing.is_empty() {
        return Err(format!("failed quota: {name}: must specify {}", missing.join(",")));
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

/// The resources that a quota limits and that some container of the pod does not set.
fn unset_resources(pod: &Value, concerned: &[&str]) -> Vec<String> {
    let lists = ["/spec/containers", "/spec/initContainers"];
    let of = |container: &Value| {
        let requests = Amounts::read(container, "/resources/requests");
        named(&requests, &Amounts::read(container, "/resources/limits"))
    };
    let all: Vec<Amounts> =
        lists.into_iter().flat_map(|list| array_at(pod, list)).map(of).collect();
    let needed = concerned.iter().filter(|name| NEEDED.contains(name));
    needed
        .filter(|name| all.iter().any(|named| named.get(name).is_none()))
        .map(|name| (*name).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(hard: &Value, used: &Value, spec: &Value) -> Value {
        json!({
            "metadata": { "name": "q" }, "spec": spec,
            "status": { "hard": hard, "used": used },
        })
    }

    fn pod(requests: &Value, limits: &Value) -> Value {
        let resources = json!({ "requests": requests, "limits": limits });
        json!({ "spec": { "containers": [{ "name": "c", "resources": resources }] } })
    }

    fn ask(quota: &Value, pod: &Value) -> String {
        let delta = usage(Kind::Pod, pod, "2026-01-01T00:00:00Z");
        match charge(quota, Kind::Pod, pod, &delta) {
            Ok(None) => "-".to_owned(),
            Ok(Some(used)) => used.text(),
            Err(error) => error,
        }
    }

    #[test]
    fn quotas_refuse_like_those_of_the_real_server() {
        let none = json!({});
        let plain = pod(&none, &none);
        let sized = pod(&json!({ "cpu": "500m" }), &json!({ "cpu": "1", "memory": "1Gi" }));
        for (hard, used, pod, want) in [
            (json!({ "pods": "3" }), json!({ "pods": "2" }), &plain, "pods=3"),
            (
                json!({ "pods": "3" }),
                json!({ "pods": "3" }),
                &plain,
                "exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3",
            ),
            (json!({ "secrets": "3" }), json!({ "secrets": "3" }), &plain, "-"),
            (
                json!({ "limits.cpu": "4", "requests.memory": "1Gi" }),
                json!({ "limits.cpu": "0", "requests.memory": "0" }),
                &plain,
                "failed quota: q: must specify limits.cpu,requests.memory",
            ),
            (
                json!({ "pods": "4", "count/pods": "4" }),
                none.clone(),
                &plain,
                "status unknown for quota: q, resources: count/pods,pods",
            ),
            (
                json!({ "requests.cpu": "1", "limits.memory": "1Gi", "pods": "9" }),
                json!({ "requests.cpu": "600m", "limits.memory": "512Mi", "pods": "1" }),
                &sized,
                "exceeded quota: q, requested: limits.memory=1Gi,requests.cpu=500m, used: \
                 limits.memory=512Mi,requests.cpu=600m, limited: \
                 limits.memory=1Gi,requests.cpu=1",
            ),
        ] {
            assert_eq!(ask(&quota(&hard, &used, &none), pod), want, "{hard}");
        }
    }

    #[test]
    fn scopes_select_pods() {
        let none = json!({});
        let mut pod = pod(&none, &none);
        let full = |spec: &Value| quota(&json!({ "pods": "0" }), &json!({ "pods": "0" }), spec);
        let class = |operator: &str| {
            json!({ "scopeSelector": { "matchExpressions": [{
                "scopeName": "PriorityClass", "operator": operator, "values": ["high"],
            }]}})
        };
        let is_meant = |spec: &Value, pod: &Value| ask(&full(spec), pod) != "-";
        assert!(is_meant(&json!({ "scopes": ["BestEffort", "NotTerminating"] }), &pod));
        assert!(!is_meant(&json!({ "scopes": ["NotBestEffort"] }), &pod));
        assert!(!is_meant(&json!({ "scopes": ["Terminating"] }), &pod));
        assert!(!is_meant(&class("In"), &pod) && is_meant(&class("NotIn"), &pod));
        pod["spec"]["priorityClassName"] = "high".into();
        pod["spec"]["activeDeadlineSeconds"] = 3.into();
        assert!(is_meant(&class("In"), &pod) && !is_meant(&class("NotIn"), &pod));
        assert!(is_meant(&json!({ "scopes": ["Terminating"] }), &pod));
    }

    #[test]
    fn each_kind_has_its_usage() {
        let now = "2026-01-01T00:10:00Z";
        let claim = json!({ "spec": {
            "storageClassName": "fast", "resources": { "requests": { "storage": "1Gi" } },
        }});
        let service = json!({ "spec": { "type": "NodePort", "ports": [{}, {}] } });
        let ended = json!({ "status": { "phase": "Failed" } });
        let lost = json!({ "metadata": {
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30,
        }});
        for (kind, value, want) in [
            (
                Kind::PersistentVolumeClaim,
                &claim,
                "count/persistentvolumeclaims=1,fast.storageclass.storage.k8s.io/\
                 persistentvolumeclaims=1,fast.storageclass.storage.k8s.io/requests.storage=1Gi,\
                 persistentvolumeclaims=1,requests.storage=1Gi",
            ),
            (Kind::Service, &service, "count/services=1,services=1,services.nodeports=2"),
            (Kind::Secret, &json!({}), "count/secrets=1,secrets=1"),
            (Kind::Job, &json!({}), "count/jobs.batch=1"),
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
