//! What Kubernetes calls PrepareForCreate and PrepareForUpdate: resets fields that clients cannot
//! set, and derives fields from others.

use serde_json::{Map, Value, json};

use crate::apiserver::defaults;
use crate::schema::kind::Kind;
use crate::schema::status::StatusError;
use crate::storage::object::{array_at, array_mut, metadata_mut, object_mut, text_at};
use crate::storage::pods::GATED;

/// The admission plugins that look at the new object only.
pub(crate) fn admit(kind: Kind, name: &str, value: &mut Value) -> Result<(), StatusError> {
    if kind == Kind::Pod {
        priority(name, value)?;
        tolerations(value);
        runtime_class(name, value)?;
    } else if kind == Kind::Node {
        add_not_ready_taint(value);
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
    let spec = object_mut(pod, "spec");
    spec.insert("priority".to_owned(), priority.into());
    spec.insert("preemptionPolicy".to_owned(), "PreemptLowerPriority".into());
    Ok(())
}

/// There are no runtime classes here.
fn runtime_class(name: &str, pod: &Value) -> Result<(), StatusError> {
    let class = text_at(pod, "/spec/runtimeClassName");
    if class.is_empty() {
        return Ok(());
    }
    let detail = format!("pod rejected: RuntimeClass {class:?} not found");
    Err(StatusError::forbidden(Kind::Pod, name, &detail))
}

/// The plugin DefaultTolerationSeconds: pods tolerate not-ready and unreachable nodes for five
/// minutes by default.
fn tolerations(pod: &mut Value) {
    const SECONDS: i64 = 300;
    let list = array_mut(&mut pod["spec"], "tolerations");
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
fn add_not_ready_taint(node: &mut Value) {
    const KEY: &str = "node.kubernetes.io/not-ready";
    let taints = array_mut(&mut node["spec"], "taints");
    let has =
        |taint: &Value| text_at(taint, "/key") == KEY && text_at(taint, "/effect") == "NoSchedule";
    if !taints.iter().any(has) {
        taints.push(json!({ "key": KEY, "effect": "NoSchedule" }));
    }
}

/// Resets and derives fields of a new object; `now` is the server's time.
pub(crate) fn create(kind: Kind, value: &mut Value, now: &str) {
    let status = if kind == Kind::Job || kind == Kind::ResourceQuota {
        Some(json!({}))
    } else if kind == Kind::Namespace {
        Some(json!({ "phase": "Active" }))
    } else if kind == Kind::PersistentVolume {
        Some(json!({ "phase": "Pending", "lastPhaseTransitionTime": now }))
    } else if kind == Kind::PersistentVolumeClaim {
        Some(json!({ "phase": "Pending" }))
    } else if kind == Kind::Pod {
        metadata_mut(value).insert("generation".to_owned(), 1.into());
        let quality = defaults::quality_of_service(value);
        let mut status = json!({ "phase": "Pending", "qosClass": quality });
        if !array_at(value, "/spec/schedulingGates").is_empty() {
            status["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "lastProbeTime": null,
                "lastTransitionTime": null, "reason": "SchedulingGated", "message": GATED,
            }]);
        }
        Some(status)
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
        metadata_mut(value).insert("generation".to_owned(), 1.into());
        select_by_uid(value);
    } else if kind == Kind::Namespace {
        let finalizers = array_mut(&mut value["spec"], "finalizers");
        if !finalizers.contains(&json!("kubernetes")) {
            finalizers.push("kubernetes".into());
        }
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
        tolerations(value);
    }
}

/// A change of a pod by `resize`: all other fields stay.
pub(crate) fn keep_all_but_resources(before: &Value, pod: &mut Value) {
    let given = std::mem::replace(pod, before.clone());
    let copy = |from: &Value, to: &mut Map<String, Value>, field: &str| match from.get(field) {
        Some(value) => to.insert(field.to_owned(), value.clone()),
        None => to.remove(field),
    };
    let spec = object_mut(pod, "spec");
    for list in ["initContainers", "containers"] {
        let changed = array_at(&given["spec"], &format!("/{list}"));
        let own = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for fields in own.filter_map(Value::as_object_mut) {
            let same = |one: &&Value| one.get("name") == fields.get("name");
            if let Some(container) = changed.iter().find(same) {
                copy(container, fields, "resizePolicy");
                copy(container, fields, "resources");
            }
        }
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
    object_mut(&mut job["spec"]["selector"], "matchLabels")
        .entry("batch.kubernetes.io/controller-uid")
        .or_insert_with(|| uid.clone());
    let labels = object_mut(&mut job["spec"]["template"]["metadata"], "labels");
    for (label, text) in [("controller-uid", uid), ("job-name", name)] {
        labels.entry(label).or_insert_with(|| text.clone());
        labels.entry(format!("batch.kubernetes.io/{label}")).or_insert(text);
    }
    if shared {
        let labels = labels.clone();
        metadata_mut(job).insert("labels".to_owned(), labels.into());
    }
}
