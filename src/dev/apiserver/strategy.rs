//! What Kubernetes calls PrepareForCreate and PrepareForUpdate: resets fields that clients cannot
//! set, derives fields from others, and allocates service addresses.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::dev::apiserver::defaults;
use crate::dev::schema::kind::Kind;
use crate::dev::schema::status::{Cause, StatusError};
use crate::dev::storage::State;
use crate::dev::storage::object::{array_at, metadata_mut, object_mut, text_at};

/// Services get the addresses 10.0.0.1 to 10.0.0.254, as with the real server's default range.
const SERVICE_ADDRESSES: &str = "10.0.0.";
const SERVICE_ADDRESSES_MAX: u32 = 254;
const NODE_PORTS: std::ops::RangeInclusive<u64> = 30_000..=32_767;

/// The admission plugins that look at the new object only.
pub(crate) fn admit(kind: Kind, name: &str, value: &mut Value) -> Result<(), StatusError> {
    if kind == Kind::Pod {
        priority(name, value)?;
        tolerations(object_mut(value, "spec"));
        runtime_class(name, value)?;
    } else if kind == Kind::Node {
        add_not_ready_taint(object_mut(value, "spec"));
    }
    Ok(())
}

fn priority(name: &str, pod: &mut Value) -> Result<(), StatusError> {
    let priority = match text_at(pod, "/spec/priorityClassName") {
        "" => 0,
        "system-cluster-critical" => 2_000_000_000_i64,
        "system-node-critical" => 2_000_001_000,
        other => {
            let detail = format!("no PriorityClass with name {other} was found");
            return Err(StatusError::forbidden(Kind::Pod, name, &detail));
        }
    };
    let policy = "PreemptLowerPriority";
    let spec = object_mut(pod, "spec");
    let computed = "must not be provided in pod spec; priority admission controller computed";
    let from = "from the given PriorityClass name";
    let given = spec.insert("priority".to_owned(), priority.into());
    if let Some(given) = given.filter(|given| *given != priority) {
        let detail =
            format!("the integer value of priority ({given}) {computed} {priority} {from}");
        return Err(StatusError::forbidden(Kind::Pod, name, &detail));
    }
    let given = spec.insert("preemptionPolicy".to_owned(), policy.into());
    if let Some(given) = given.as_ref().and_then(Value::as_str).filter(|given| *given != policy) {
        let what = "the string value of PreemptionPolicy";
        let detail = format!("{what} ({given}) {computed} {policy} {from}");
        return Err(StatusError::forbidden(Kind::Pod, name, &detail));
    }
    Ok(())
}

/// There are no runtime classes here.
fn runtime_class(name: &str, pod: &Value) -> Result<(), StatusError> {
    let class = text_at(pod, "/spec/runtimeClassName");
    let detail = if !class.is_empty() {
        format!("pod rejected: RuntimeClass {class:?} not found")
    } else if pod.pointer("/spec/overhead").is_some() {
        "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead".into()
    } else {
        return Ok(());
    };
    Err(StatusError::forbidden(Kind::Pod, name, &detail))
}

/// The plugin DefaultTolerationSeconds: pods tolerate not-ready and unreachable nodes for five
/// minutes by default.
fn tolerations(spec: &mut Map<String, Value>) {
    const SECONDS: i64 = 300;
    let list = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = list.iter().any(|toleration| {
            matches!(text_at(toleration, "/effect"), "" | "NoExecute")
                && (text_at(toleration, "/key") == key || text_at(toleration, "/key").is_empty())
        });
        if !tolerated {
            list.push(json!({
                "key": key,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": SECONDS,
            }));
        }
    }
}

/// The plugin TaintNodesByCondition: a new node is not ready.
fn add_not_ready_taint(spec: &mut Map<String, Value>) {
    const KEY: &str = "node.kubernetes.io/not-ready";
    let taints = spec.entry("taints").or_insert_with(|| json!([]));
    let Some(taints) = taints.as_array_mut() else { return };
    let has =
        |taint: &Value| text_at(taint, "/key") == KEY && text_at(taint, "/effect") == "NoSchedule";
    if !taints.iter().any(has) {
        taints.push(json!({ "key": KEY, "effect": "NoSchedule" }));
    }
}

/// Resets and derives fields of a new object.
pub(crate) fn create(kind: Kind, value: &mut Value) {
    let status = if kind == Kind::Job || kind == Kind::ResourceQuota {
        Some(json!({}))
    } else if kind == Kind::Namespace {
        Some(json!({ "phase": "Active" }))
    } else if kind == Kind::PersistentVolume || kind == Kind::PersistentVolumeClaim {
        Some(json!({ "phase": "Pending" }))
    } else if kind == Kind::Pod {
        let quality = defaults::quality_of_service(value);
        Some(json!({ "phase": "Pending", "qosClass": quality }))
    } else if kind == Kind::PodDisruptionBudget {
        metadata_mut(value).insert("generation".to_owned(), 1.into());
        Some(json!({
            "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
        }))
    } else if kind == Kind::Service {
        Some(json!({ "loadBalancer": {} }))
    } else {
        None
    };
    if let Some(status) = status {
        value["status"] = status;
    }
    if kind == Kind::Job {
        select_by_uid(value);
    } else if kind == Kind::Namespace {
        let finalizers = object_mut(value, "spec").entry("finalizers").or_insert_with(|| json!([]));
        if let Some(list) = finalizers.as_array_mut()
            && !list.contains(&json!("kubernetes"))
        {
            list.push("kubernetes".into());
        }
    } else if kind == Kind::Service {
        service_addresses(None, object_mut(value, "spec"));
    } else if kind == Kind::ServiceAccount {
        keep_secret_names(value);
    }
}

/// Resets and derives fields of a changed object.
pub(crate) fn update(kind: Kind, before: &Value, value: &mut Value) {
    if kind == Kind::Namespace {
        value["spec"] = before["spec"].clone();
    } else if kind == Kind::Pod {
        let spec = object_mut(value, "spec");
        for field in ["preemptionPolicy", "priority"] {
            if let Some(kept) = before.pointer(&format!("/spec/{field}")) {
                spec.entry(field).or_insert_with(|| kept.clone());
            }
        }
        tolerations(spec);
    } else if kind == Kind::PodDisruptionBudget && before["spec"] != value["spec"] {
        let generation = before.pointer("/metadata/generation").and_then(Value::as_i64);
        let next = generation.unwrap_or_default() + 1;
        metadata_mut(value).insert("generation".to_owned(), next.into());
    } else if kind == Kind::Service {
        let old = before.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        service_addresses(Some(&old), object_mut(value, "spec"));
    } else if kind == Kind::ServiceAccount {
        keep_secret_names(value);
    }
}

/// A job selects its pods by its own uid unless `manualSelector` is set.
fn select_by_uid(job: &mut Value) {
    if job.pointer("/spec/manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let uid = job["metadata"]["uid"].clone();
    let name = job["metadata"]["name"].clone();
    // A job without labels shares those of its template: in Go both are one map, so that labels
    // added to the template appear on the job too.
    let own = job["metadata"].get("labels").cloned();
    let shared = own.is_some() && own.as_ref() == job.pointer("/spec/template/metadata/labels");
    let spec = object_mut(job, "spec");
    let selector = spec.entry("selector").or_insert_with(|| json!({}));
    object_mut(selector, "matchLabels").entry("controller-uid").or_insert_with(|| uid.clone());
    let template = spec.entry("template").or_insert_with(|| json!({}));
    let metadata = object_mut(template, "metadata").entry("labels").or_insert_with(|| json!({}));
    if let Some(labels) = metadata.as_object_mut() {
        labels.entry("controller-uid").or_insert(uid);
        labels.entry("job-name").or_insert(name);
        if shared {
            let labels = labels.clone();
            metadata_mut(job).insert("labels".to_owned(), labels.into());
        }
    }
}

/// Keeps only the names of a service account's secrets.
fn keep_secret_names(account: &mut Value) {
    let secrets = account.get_mut("secrets").and_then(Value::as_array_mut);
    for secret in secrets.into_iter().flatten() {
        *secret = match text_at(secret, "/name") {
            "" => json!({}),
            name => json!({ "name": name }),
        };
    }
}

/// `clusterIP` is the first of `clusterIPs`; clients that know only one of them get the other.
fn service_addresses(old: Option<&Map<String, Value>>, new: &mut Map<String, Value>) {
    // One address per service: there is one range.
    for field in ["ipFamilies", "ipFamilyPolicy", "topologyKeys", "allocateLoadBalancerNodePorts"] {
        new.remove(field);
    }
    let one = |spec: &Map<String, Value>| spec.get("clusterIP").cloned();
    let Some(old) = old else {
        if let Some(address) = one(new)
            && !new.contains_key("clusterIPs")
        {
            new.insert("clusterIPs".to_owned(), json!([address]));
        }
        return;
    };
    let external = |spec: &Map<String, Value>| spec.get("type") == Some(&json!("ExternalName"));
    if one(old) == one(new)
        && let Some(kept) = old.get("clusterIPs")
    {
        new.entry("clusterIPs").or_insert_with(|| kept.clone());
    }
    keep_node_ports(old, new);
    if one(old) != one(new) && old.get("clusterIPs") == new.get("clusterIPs") {
        match one(new) {
            Some(address) => new.insert("clusterIPs".to_owned(), json!([address])),
            None => new.remove("clusterIPs"),
        };
    }
    if external(new) && !external(old) && one(old) == one(new) {
        new.remove("clusterIP");
        new.remove("clusterIPs");
    }
}

fn uses_node_ports(spec: &Map<String, Value>) -> bool {
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or_default();
    matches!(kind, "LoadBalancer" | "NodePort")
}

/// A client that omits the node ports keeps the allocated ones. They are released if the service no
/// longer needs them.
fn keep_node_ports(old: &Map<String, Value>, new: &mut Map<String, Value>) {
    let of_port: Vec<Value> =
        old.get("ports").and_then(Value::as_array).cloned().unwrap_or_default();
    let (needed, needs) = (uses_node_ports(old), uses_node_ports(new));
    for port in new.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(fields) = port.as_object_mut() else { continue };
        let same = of_port.iter().find(|old| {
            ["port", "protocol"].iter().all(|field| old.get(field) == fields.get(*field))
        });
        let Some(number) = same.and_then(|old| old.get("nodePort")) else { continue };
        if needed && needs {
            fields.entry("nodePort").or_insert_with(|| number.clone());
        } else if needed && fields.get("nodePort") == Some(number) {
            fields.remove("nodePort");
        }
    }
    if needed && !needs {
        new.remove("externalTrafficPolicy");
    }
}

/// What follows validation: a job gets its labels, a service its addresses.
pub(crate) fn after_validation(
    state: &State,
    kind: Kind,
    value: &mut Value,
    dry_run: bool,
) -> Result<(), StatusError> {
    if kind == Kind::Job {
        defaults::take_labels_of_template(value);
    } else if kind == Kind::Service && !dry_run {
        return allocate(state, value);
    }
    Ok(())
}

/// Allocates the addresses and node ports of a service.
fn allocate(state: &State, value: &mut Value) -> Result<(), StatusError> {
    let (namespace, name) = {
        let text = |field| text_at(value, field).to_owned();
        (text("/metadata/namespace"), text("/metadata/name"))
    };
    let refuse = |cause: Cause| Err(StatusError::invalid(Kind::Service, &name, &[cause]));
    let mut addresses = BTreeSet::new();
    let mut ports = BTreeSet::new();
    let others = state.store.objects(Kind::Service, "");
    for other in others.filter(|o| o.key.namespace != namespace || o.key.name != name) {
        let other = other.value();
        addresses.insert(text_at(&other, "/spec/clusterIP").to_owned());
        let list = array_at(&other, "/spec/ports").iter();
        ports.extend(list.filter_map(|port| port.get("nodePort").and_then(Value::as_u64)));
    }
    let kind = text_at(value, "/spec/type").to_owned();
    let spec = object_mut(value, "spec");
    let given = spec.get("clusterIP").and_then(Value::as_str).unwrap_or_default().to_owned();
    if given.is_empty() && kind != "ExternalName" {
        let free = (1..=SERVICE_ADDRESSES_MAX).map(|n| format!("{SERVICE_ADDRESSES}{n}"));
        let Some(address) = free.into_iter().find(|address| !addresses.contains(address)) else {
            let message = "failed to allocate a serviceIP: range is full";
            return Err(StatusError::internal(format!("Internal error occurred: {message}")));
        };
        spec.insert("clusterIP".to_owned(), address.as_str().into());
        spec.insert("clusterIPs".to_owned(), json!([address]));
    } else if let Some(detail) = unavailable_reason(&given, &addresses) {
        let shown = format!("[]string{{\"{given}\"}}");
        let detail = format!("failed to allocated ip:{given} with error:{detail}");
        return refuse(Cause::invalid_raw("spec.clusterIPs", &shown, &detail));
    }
    if !uses_node_ports(spec) {
        return Ok(());
    }
    let list = spec.get_mut("ports").and_then(Value::as_array_mut);
    for (i, port) in list.into_iter().flatten().enumerate() {
        let number = match port.get("nodePort").and_then(Value::as_u64) {
            Some(number) if NODE_PORTS.contains(&number) && !ports.contains(&number) => number,
            Some(number) => {
                let detail = match NODE_PORTS.contains(&number) {
                    true => "provided port is already allocated",
                    false => {
                        "provided port is not in the valid range. The range of valid ports \
                              is 30000-32767"
                    }
                };
                let field = format!("spec.ports[{i}].nodePort");
                return refuse(Cause::invalid_raw(field, &number, detail));
            }
            None => NODE_PORTS.into_iter().find(|n| !ports.contains(n)).unwrap_or_default(),
        };
        ports.insert(number);
        port["nodePort"] = number.into();
    }
    Ok(())
}

/// Why a requested address is not available.
fn unavailable_reason(given: &str, taken: &BTreeSet<String>) -> Option<&'static str> {
    if matches!(given, "" | "None") {
        return None;
    }
    let host = given.strip_prefix(SERVICE_ADDRESSES).and_then(|host| host.parse().ok());
    if !host.is_some_and(|host: u32| (1..=SERVICE_ADDRESSES_MAX).contains(&host)) {
        return Some(
            "provided IP is not in the valid range. The range of valid IPs is 10.0.0.0/24",
        );
    }
    taken.contains(given).then_some("provided IP is already allocated")
}
