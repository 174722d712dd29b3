//! Owns what the server fills into a new pod: defaults, tolerations, priority, quality of service.
//! Takes a pod whose fields have the right types.

use serde_json::{Map, Value, json};

use crate::dev::object::{array_at, object_mut, text_at};
use crate::dev::quantity::Quantity;

/// Fills in a new pod.
pub(crate) fn pod(pod: &mut Value) {
    let spec = object_mut(pod, "spec");
    for (field, default) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("securityContext", json!({})),
        ("enableServiceLinks", json!(true)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
        ("priority", json!(0)),
    ] {
        spec.entry(field).or_insert(default);
    }
    for list in ["initContainers", "containers"] {
        for item in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container(item);
        }
    }
    for item in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        volume(item);
    }
    tolerations(spec);
    let quality = quality_of_service(pod);
    let status = object_mut(pod, "status");
    status.clear();
    status.insert("phase".to_owned(), "Pending".into());
    status.insert("qosClass".to_owned(), quality.into());
}

fn container(container: &mut Value) {
    let policy = pull_policy(text_at(container, "/image"));
    let Some(fields) = container.as_object_mut() else { return };
    for (field, default) in [
        ("imagePullPolicy", json!(policy)),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("resources", json!({})),
    ] {
        fields.entry(field).or_insert(default);
    }
    for port in fields.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        object_default(port, "protocol", "TCP");
    }
    for variable in fields.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef") {
            object_default(field, "apiVersion", "v1");
        }
        // An empty value is the same as none.
        if let Some(members) = variable.as_object_mut()
            && members.get("value").and_then(Value::as_str) == Some("")
        {
            members.remove("value");
        }
    }
    resources(&mut fields["resources"]);
}

fn object_default(value: &mut Value, field: &str, default: &str) {
    if let Some(members) = value.as_object_mut() {
        members.entry(field).or_insert_with(|| default.into());
    }
}

fn volume(volume: &mut Value) {
    const MODE: i64 = 0o644;
    let Some(fields) = volume.as_object_mut() else { return };
    if fields.len() == 1 && fields.contains_key("name") {
        fields.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["configMap", "secret", "downwardAPI", "projected"] {
        if let Some(members) = fields.get_mut(source).and_then(Value::as_object_mut) {
            members.entry("defaultMode").or_insert(json!(MODE));
        }
    }
}

/// Canonical amounts; a limit without a request is the request too.
fn resources(resources: &mut Value) {
    for list in ["limits", "requests"] {
        let amounts = resources.get_mut(list).and_then(Value::as_object_mut);
        for amount in amounts.into_iter().flat_map(Map::values_mut) {
            let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            if let Some(quantity) = Quantity::parse(&text) {
                *amount = quantity.rounded_up().canonical().into();
            }
        }
    }
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    let requests = object_mut(resources, "requests");
    for (name, amount) in limits {
        requests.entry(name).or_insert(amount);
    }
}

fn pull_policy(image: &str) -> &'static str {
    if image.contains('@') {
        return "IfNotPresent";
    }
    // A colon before the last slash belongs to the registry's port.
    match image.rsplit('/').next().unwrap_or_default().split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

/// Not-ready and unreachable nodes are tolerated for five minutes where nothing else is said.
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

pub(crate) fn quality_of_service(pod: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    for container in ["/spec/initContainers", "/spec/containers"]
        .into_iter()
        .flat_map(|list| array_at(pod, list))
    {
        for resource in ["cpu", "memory"] {
            let amount = |list: &str| {
                let text = text_at(container, &format!("/resources/{list}/{resource}"));
                Quantity::parse(text).filter(|quantity| !quantity.is_zero())
            };
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
