//! What `posse check` reads besides pods: the namespace, its quotas and limit ranges, the user's
//! name, and whether the quotas have room for the executors.

use serde_json::{Map, Value, json};

use crate::error::WireError;
use crate::k8s::selector::selects;
use posse_encoding::amounts::Amounts;
use posse_encoding::quantity::Quantity;

/// The namespace's label with the enforced Pod Security level.
const POD_SECURITY: &str = "/metadata/labels/pod-security.kubernetes.io~1enforce";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Active or Terminating.
    pub phase: String,
    /// Enforced Pod Security level. None: nothing is enforced.
    pub pod_security: Option<String>,
    pub labels: Map<String, Value>,
}

/// One ResourceQuota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    pub name: String,
    /// The quota applies to some pods only.
    pub has_scopes: bool,
    pub hard: Amounts,
    pub used: Amounts,
}

/// A quota without enough room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub quota: String,
    pub resource: String,
    pub wanted: Quantity,
    /// Zero if more is used than allowed.
    pub left: Quantity,
    pub hard: Quantity,
}

/// A PodDisruptionBudget over executors that lets nobody evict one of them: the field asks for the scale of the
/// controller that made the pods, and executors have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedBudget {
    pub name: String,
    /// The field, with its value.
    pub field: String,
}

/// Finds such PodDisruptionBudgets in a list, for pods with one of these sets of labels.
pub fn closed_budgets(
    bytes: &[u8],
    executors: &[Map<String, Value>],
) -> Result<Vec<ClosedBudget>, WireError> {
    let closed = |item: &Value| {
        let selector = item.pointer("/spec/selector").filter(|selector| selector.is_object())?;
        executors.iter().find(|labels| selects(selector, labels))?;
        let max = item.pointer("/spec/maxUnavailable").map(|value| ("maxUnavailable", value));
        let percentage = item.pointer("/spec/minAvailable").filter(|value| value.is_string());
        let (field, value) = max.or_else(|| Some(("minAvailable", percentage?)))?;
        let name = text(item, "/metadata/name").unwrap_or_default();
        Some(ClosedBudget { name, field: format!("{field}: {value}") })
    };
    Ok(items(bytes)?.iter().filter_map(closed).collect())
}

/// The names in a list of controllers that take pods with one of these sets of labels for their own.
pub fn adopters(bytes: &[u8], executors: &[Map<String, Value>]) -> Result<Vec<String>, WireError> {
    let takes = |item: &Value| {
        let selector = &item["spec"]["selector"];
        // That of a ReplicationController is the pairs alone.
        let is_plain =
            ["matchLabels", "matchExpressions"].iter().all(|key| selector.get(key).is_none());
        let plain = json!({ "matchLabels": selector });
        let selector = if is_plain { &plain } else { selector };
        let is_empty = selector["matchLabels"].as_object().is_none_or(Map::is_empty)
            && selector["matchExpressions"].is_null();
        executors.iter().find(|labels| !is_empty && selects(selector, labels))?;
        text(item, "/metadata/name")
    };
    Ok(items(bytes)?.iter().filter_map(takes).collect())
}

/// Reads a namespace.
pub fn namespace(bytes: &[u8]) -> Result<Namespace, WireError> {
    let value: Value = serde_json::from_slice(bytes)?;
    let phase = text(&value, "/status/phase").unwrap_or_else(|| "Active".to_owned());
    let labels = value.pointer("/metadata/labels").and_then(Value::as_object);
    Ok(Namespace {
        phase,
        pod_security: text(&value, POD_SECURITY),
        labels: labels.cloned().unwrap_or_default(),
    })
}

/// Reads a list of ResourceQuotas. A quota without a status yet counts by its spec.
pub fn quotas(bytes: &[u8]) -> Result<Vec<Quota>, WireError> {
    let quota = |item: &Value| {
        let hard =
            if item.pointer("/status/hard").is_some() { "/status/hard" } else { "/spec/hard" };
        Quota {
            name: text(item, "/metadata/name").unwrap_or_default(),
            has_scopes: ["/spec/scopes", "/spec/scopeSelector"]
                .iter()
                .any(|pointer| item.pointer(pointer).is_some_and(|value| !value.is_null())),
            hard: Amounts::read(item, hard),
            used: Amounts::read(item, "/status/used"),
        }
    };
    Ok(items(bytes)?.iter().map(quota).collect())
}

/// Reads a list of LimitRanges: one line of text for each limit.
pub fn limit_ranges(bytes: &[u8]) -> Result<Vec<String>, WireError> {
    let mut lines = Vec::new();
    for item in &items(bytes)? {
        let name = text(item, "/metadata/name").unwrap_or_default();
        let limits = item.pointer("/spec/limits").and_then(Value::as_array);
        for limit in limits.into_iter().flatten() {
            let of = text(limit, "/type").unwrap_or_default();
            let parts = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];
            let said = parts.iter().filter_map(|part| {
                let amounts = Amounts::read(limit, &format!("/{part}")).text();
                (!amounts.is_empty()).then(|| format!("{part} {amounts}"))
            });
            lines.push(format!("{name}: {of} {}", said.collect::<Vec<_>>().join(", ")));
        }
    }
    Ok(lines)
}

/// Reads the user's name from the answer to a SelfSubjectReview.
pub fn user(bytes: &[u8]) -> Result<String, WireError> {
    let value: Value = serde_json::from_slice(bytes)?;
    let name = text(&value, "/status/userInfo/username");
    name.ok_or(WireError::Missing("status.userInfo.username"))
}

/// The quotas without enough room for `wanted`. Quotas with scopes are skipped.
pub fn shortages(quotas: &[Quota], wanted: &Amounts) -> Vec<Shortage> {
    let mut found = Vec::new();
    for quota in quotas.iter().filter(|quota| !quota.has_scopes) {
        for (resource, hard) in &quota.hard.0 {
            let Some(wanted) = wanted.get(resource) else { continue };
            let used = quota.used.get(resource).unwrap_or_else(|| Quantity::whole(0));
            let left = hard.minus(used);
            let left = if left.is_negative() { Quantity::whole(0) } else { left };
            if wanted.exceeds(left) {
                let (quota, resource) = (quota.name.clone(), resource.clone());
                found.push(Shortage { quota, resource, wanted, left, hard: *hard });
            }
        }
    }
    found
}

fn items(bytes: &[u8]) -> Result<Vec<Value>, WireError> {
    match serde_json::from_slice::<Value>(bytes)?.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => Ok(items),
        // Go serializes an empty list as null.
        Some(Value::Null) => Ok(Vec::new()),
        _ => Err(WireError::Missing("items")),
    }
}

pub(super) fn text(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer).and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_that_need_a_controller_are_closed() {
        let labels = serde_json::json!({"posse.dev/app": "a"});
        let executors = [labels.as_object().unwrap().clone()];
        for (spec, want) in [
            (r#""maxUnavailable":1"#, Some("maxUnavailable: 1")),
            (r#""maxUnavailable":"30%""#, Some(r#"maxUnavailable: "30%""#)),
            (r#""minAvailable":"50%""#, Some(r#"minAvailable: "50%""#)),
            (r#""minAvailable":2"#, None),
        ] {
            for (selector, is_ours) in [
                (r#"{"matchLabels":{"posse.dev/app":"a"}}"#, true),
                ("{}", true),
                (r#"{"matchLabels":{"posse.dev/app":"b"}}"#, false),
                ("null", false),
            ] {
                let list = format!(
                    r#"{{"items":[{{"metadata":{{"name":"b"}},"spec":{{{spec},"selector":{selector}}}}}]}}"#
                );
                let closed = closed_budgets(list.as_bytes(), &executors).unwrap();
                let fields: Vec<&str> = closed.iter().map(|one| one.field.as_str()).collect();
                assert_eq!(fields, Vec::from_iter(want.filter(|_| is_ours)), "{list}");
            }
        }
    }

    #[test]
    fn controllers_that_select_executors_are_found() {
        let labels = json!({"app": "web", "posse.dev/app": "a"});
        let executors = [labels.as_object().unwrap().clone()];
        for (selector, takes) in [
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "web", "pod-template-hash": "h"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
            (json!({"app": "web"}), true),
            (json!({"app": "db"}), false),
            (json!({}), false),
            (json!(null), false),
        ] {
            let list =
                json!({"items": [{"metadata": {"name": "web"}, "spec": {"selector": selector}}]});
            let found = adopters(list.to_string().as_bytes(), &executors).unwrap();
            assert_eq!(found == ["web"], takes, "{list}");
        }
    }

    #[test]
    fn shortages_of_quotas() {
        let list = br#"{"items":[
            {"metadata":{"name":"team"},"spec":{"hard":{"pods":"99"}},
             "status":{"hard":{"pods":"10","requests.cpu":"4","services":"1"},
                       "used":{"pods":"8","requests.cpu":"1500m"}}},
            {"metadata":{"name":"young"},"spec":{"hard":{"limits.memory":"1Gi"}}},
            {"metadata":{"name":"full"},"status":{"hard":{"count/pods":"1"},"used":{"count/pods":"3"}}},
            {"metadata":{"name":"best"},"spec":{"hard":{"pods":"0"},"scopes":["BestEffort"]}}]}"#;
        let quotas = quotas(list).unwrap();
        let wanted = |pods: &str, cpu: &str, memory: &str| {
            let value = serde_json::json!({"a": {"pods": pods, "requests.cpu": cpu,
                "limits.memory": memory, "count/pods": pods}});
            let found = shortages(&quotas, &Amounts::read(&value, "/a"));
            let told = found.iter().map(|s| {
                let amounts = [s.wanted, s.left, s.hard].map(Quantity::canonical);
                format!("{} {} {}", s.quota, s.resource, amounts.join(" "))
            });
            told.collect::<Vec<_>>()
        };
        assert_eq!(wanted("0", "2500m", "1Gi"), [""; 0]);
        assert_eq!(wanted("2", "0", "0"), ["full count/pods 2 0 1"]);
        assert_eq!(
            wanted("3", "3", "1025Mi"),
            [
                "team pods 3 2 10",
                "team requests.cpu 3 2500m 4",
                "young limits.memory 1025Mi 1Gi 1Gi",
                "full count/pods 3 0 1",
            ]
        );
    }

    #[test]
    fn reads_the_servers_answers() {
        let bare = br#"{"metadata":{"name":"a"}}"#;
        let active =
            Namespace { phase: "Active".to_owned(), pod_security: None, labels: Map::new() };
        assert_eq!(namespace(bare).unwrap(), active);
        let full = br#"{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}},
            "status":{"phase":"Terminating"}}"#;
        let want = Namespace {
            phase: "Terminating".to_owned(),
            pod_security: Some("restricted".to_owned()),
            labels: Map::from_iter([(
                "pod-security.kubernetes.io/enforce".to_owned(),
                "restricted".into(),
            )]),
        };
        assert_eq!(namespace(full).unwrap(), want);
        let list = br#"{"items":[{"metadata":{"name":"l"},"spec":{"limits":[
            {"type":"Container","default":{"cpu":"1"},"max":{"memory":"1Gi","cpu":"2"}}]}}]}"#;
        assert_eq!(
            limit_ranges(list).unwrap(),
            ["l: Container max cpu=2,memory=1Gi, default cpu=1"]
        );
        assert_eq!(quotas(br#"{"items":null}"#).unwrap(), []);
        let me = br#"{"status":{"userInfo":{"username":"system:serviceaccount:a:b"}}}"#;
        assert_eq!(user(me).unwrap(), "system:serviceaccount:a:b");
        for bad in [&b"[]"[..], b"{}", b"{"] {
            assert!(quotas(bad).is_err() && limit_ranges(bad).is_err() && user(bad).is_err());
        }
    }
}
