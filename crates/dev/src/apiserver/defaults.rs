//! The default values of fields. They are set when an object is read, new or changed, after its
//! conversion to the canonical form.

use serde_json::{Map, Value, json};

use crate::schema::kind::Kind;
use crate::schema::{self, Shape, Type, base64};
use crate::storage::object::{array_at, metadata_mut, object_mut, text_at};
use posse_encoding::amounts::requests_of_containers;
use posse_encoding::quantity::Quantity;

/// Type, field, default. The default replaces an absent value, and an empty value if the field does
/// not distinguish the two.
const ROWS: &[(&str, &str, &str)] = &[
    ("ConfigMapVolumeSource", "defaultMode", "420"),
    ("Container", "terminationMessagePath", r#""/dev/termination-log""#),
    ("Container", "terminationMessagePolicy", r#""File""#),
    ("ContainerPort", "protocol", r#""TCP""#),
    ("DownwardAPIVolumeSource", "defaultMode", "420"),
    ("HTTPGetAction", "path", r#""/""#),
    ("HTTPGetAction", "scheme", r#""HTTP""#),
    ("HostPathVolumeSource", "type", r#""""#),
    ("JobSpec", "backoffLimit", "6"),
    ("JobSpec", "completionMode", r#""NonIndexed""#),
    ("JobSpec", "manualSelector", "false"),
    ("JobSpec", "parallelism", "1"),
    ("JobSpec", "suspend", "false"),
    ("NamespaceStatus", "phase", r#""Active""#),
    ("ObjectFieldSelector", "apiVersion", r#""v1""#),
    ("PersistentVolumeClaimSpec", "volumeMode", r#""Filesystem""#),
    ("PersistentVolumeClaimStatus", "phase", r#""Pending""#),
    ("PersistentVolumeSpec", "persistentVolumeReclaimPolicy", r#""Retain""#),
    ("PersistentVolumeSpec", "volumeMode", r#""Filesystem""#),
    ("PersistentVolumeStatus", "phase", r#""Pending""#),
    ("PodFailurePolicyOnPodConditionsPattern", "status", r#""True""#),
    ("PodSpec", "dnsPolicy", r#""ClusterFirst""#),
    ("PodSpec", "restartPolicy", r#""Always""#),
    ("PodSpec", "schedulerName", r#""default-scheduler""#),
    ("PodSpec", "securityContext", "{}"),
    ("PodSpec", "terminationGracePeriodSeconds", "30"),
    ("Probe", "failureThreshold", "3"),
    ("Probe", "periodSeconds", "10"),
    ("Probe", "successThreshold", "1"),
    ("Probe", "timeoutSeconds", "1"),
    ("ProjectedVolumeSource", "defaultMode", "420"),
    ("RoleRef", "apiGroup", r#""rbac.authorization.k8s.io""#),
    ("Secret", "type", r#""Opaque""#),
    ("SecretVolumeSource", "defaultMode", "420"),
    ("ServiceAccountTokenProjection", "expirationSeconds", "3600"),
    ("ServicePort", "protocol", r#""TCP""#),
    ("ServiceSpec", "sessionAffinity", r#""None""#),
    ("ServiceSpec", "type", r#""ClusterIP""#),
];

/// Sets all defaults of an object.
pub(crate) fn fill(kind: Kind, value: &mut Value) {
    if kind == Kind::Job {
        // Before the table's default of `parallelism`: a job without both fields has one
        // completion.
        let spec = object_mut(value, "spec");
        if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
            spec.insert("completions".to_owned(), 1.into());
        }
        let policy = match spec.contains_key("podFailurePolicy") {
            true => "Failed",
            false => "TerminatingOrFailed",
        };
        spec.entry("podReplacementPolicy").or_insert_with(|| policy.into());
    }
    fill_object(schema::of(kind), value);
    if kind == Kind::Job {
        take_labels_of_template(value);
    } else if kind == Kind::Namespace {
        label_with_name(value);
    } else if kind == Kind::LimitRange {
        let limits = value.pointer_mut("/spec/limits").and_then(Value::as_array_mut);
        limits.into_iter().flatten().for_each(limit);
    } else if kind == Kind::Node {
        node(value);
    } else if kind == Kind::Pod {
        pod(value);
    } else if kind == Kind::Secret {
        encode_texts(value);
    } else if kind == Kind::Service {
        service(object_mut(value, "spec"));
    }
}

/// Selectors of namespaces find each one by its name (KEP-2161).
fn label_with_name(namespace: &mut Value) {
    let name = text_at(namespace, "/metadata/name").to_owned();
    if !name.is_empty() {
        let labels = object_mut(&mut namespace["metadata"], "labels");
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
    }
}

fn fill_object(of: &Type, value: &mut Value) {
    let Some(members) = value.as_object_mut() else { return };
    for (_, name, default) in ROWS.iter().filter(|(name, _, _)| *name == of.name) {
        let given = members.get(*name).unwrap_or(&Value::Null);
        let optional = of.field(name).is_some_and(|field| field.empty == schema::Empty::Kept);
        if given.is_null() || !optional && (given == "" || given == 0) {
            members.insert((*name).to_owned(), serde_json::from_str(default).unwrap_or_default());
        }
    }
    for field in &of.fields {
        if let Some(member) = members.get_mut(field.name) {
            fill_shaped(&field.shape, member);
        }
    }
    match of.name {
        "Container" => container(members),
        "PodSpec" => pod_spec(members),
        "Volume" if members.len() == 1 => {
            members.insert("emptyDir".to_owned(), json!({}));
        }
        _ => {}
    }
}

fn fill_shaped(shape: &Shape, value: &mut Value) {
    match (shape, value) {
        (Shape::Object(of), value) => fill_object(of.get(), value),
        (Shape::List(item), Value::Array(items)) => {
            items.iter_mut().for_each(|value| fill_shaped(item, value));
        }
        // Quantities in a map are rounded up, single quantities are not.
        (Shape::Map(item), Value::Object(members)) if **item == Shape::Quantity => {
            for amount in members.values_mut() {
                if let Some(quantity) = Quantity::of(amount) {
                    *amount = quantity.rounded_up().canonical().into();
                }
            }
        }
        (_, _) => {}
    }
}

fn container(fields: &mut Map<String, Value>) {
    if !fields.contains_key("imagePullPolicy") {
        let image = fields.get("image").and_then(Value::as_str).unwrap_or_default();
        fields.insert("imagePullPolicy".to_owned(), pull_policy(image).into());
    }
}

fn pull_policy(image: &str) -> &'static str {
    let odd = |c: char| c.is_whitespace() || c == '@';
    // A text that is not an image name has no tag.
    if image.is_empty() || image.contains(odd) {
        return "IfNotPresent";
    }
    // A colon before the last slash separates the registry's port.
    match image.rsplit('/').next().unwrap_or_default().split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

/// `serviceAccount` is the old name of `serviceAccountName`.
fn pod_spec(spec: &mut Map<String, Value>) {
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        spec.insert("terminationGracePeriodSeconds".to_owned(), 1.into());
    }
    let account = |name: &str| spec.get(name).cloned();
    if let Some(account) = account("serviceAccountName").or_else(|| account("serviceAccount")) {
        spec.insert("serviceAccountName".to_owned(), account.clone());
        spec.insert("serviceAccount".to_owned(), account);
    }
}

fn items_mut<'a>(
    fields: &'a mut Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = &'a mut Value> {
    fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten()
}

fn node(node: &mut Value) {
    if let Some(capacity) = node["status"].get("capacity").cloned() {
        object_mut(node, "status").entry("allocatable").or_insert(capacity);
    }
}

/// For pods but not for templates: a limit without a request is also the request.
fn pod(pod: &mut Value) {
    let spec = object_mut(pod, "spec");
    spec.entry("enableServiceLinks").or_insert(true.into());
    for list in ["initContainers", "containers"] {
        for container in items_mut(spec, list) {
            copy_absent(&mut container["resources"], "limits", "requests");
        }
    }
    request_of_pod(pod);
}

/// A pod with its own limits (KEP-2837) requests what its containers do together, else its limit.
fn request_of_pod(pod: &mut Value) {
    let Some(limits) = pod.pointer("/spec/resources/limits").and_then(Value::as_object) else {
        return;
    };
    let names: Vec<String> = limits.keys().cloned().collect();
    let of_containers = pod["spec"].as_object().map(requests_of_containers).unwrap_or_default();
    let resources = &mut pod["spec"]["resources"];
    let requests = object_mut(resources, "requests");
    for name in names {
        if let Some(sum) = of_containers.get(&name).filter(|sum| !sum.is_zero()) {
            requests.entry(name).or_insert_with(|| sum.canonical().into());
        }
    }
    copy_absent(resources, "limits", "requests");
}

/// Copies the quantities that the target list lacks.
fn copy_absent(of: &mut Value, from: &str, to: &str) {
    let Some(Value::Object(amounts)) = of.get(from).cloned() else { return };
    let target = object_mut(of, to);
    for (name, amount) in amounts {
        target.entry(name).or_insert(amount);
    }
}

/// The default limit of a container is its maximum, and the default request is its default limit or
/// else its minimum.
fn limit(limit: &mut Value) {
    if text_at(limit, "/type") == "Container" {
        for (from, to) in
            [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")]
        {
            copy_absent(limit, from, to);
        }
    }
}

pub(crate) fn take_labels_of_template(job: &mut Value) {
    if let Some(labels) = job.pointer("/spec/template/metadata/labels").cloned() {
        metadata_mut(job).entry("labels").or_insert(labels);
    }
}

/// `stringData` is moved into `data`, in base64.
fn encode_texts(secret: &mut Value) {
    let Some(Value::Object(texts)) = secret.as_object_mut().and_then(|s| s.remove("stringData"))
    else {
        return;
    };
    let data = object_mut(secret, "data");
    for (key, text) in texts {
        let encoded = base64::encode(text.as_str().unwrap_or_default());
        data.insert(key, encoded.into());
    }
}

fn service(spec: &mut Map<String, Value>) {
    for port in items_mut(spec, "ports") {
        if port["targetPort"] == 0 || port["targetPort"] == "" || port["targetPort"].is_null() {
            port["targetPort"] = port["port"].clone();
        }
    }
}

/// The QoS class that follows from a pod's requests and limits.
pub(crate) fn quality_of_service(pod: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    // The pod's own amounts count instead of its containers'.
    let own = pod.get("spec").filter(|spec| spec.get("resources").is_some());
    let lists = ["/spec/initContainers", "/spec/containers"];
    let containers = lists.into_iter().flat_map(|list| array_at(pod, list));
    for container in own.into_iter().chain(containers.filter(|_| own.is_none())) {
        for resource in ["cpu", "memory"] {
            let amount = |list: &str| {
                let text = text_at(container, &format!("/resources/{list}/{resource}"));
                Quantity::parse(text).filter(|quantity| !quantity.is_zero())
            };
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            let equal = |(a, b): (Quantity, Quantity)| !a.exceeds(b) && !b.exceeds(a);
            guaranteed &= request.zip(limit).is_some_and(equal);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_belongs_to_a_field() {
        for (name, field, default) in ROWS {
            let of = schema::named(name).expect(name);
            assert!(of.field(field).is_some(), "{name}.{field}");
            serde_json::from_str::<Value>(default).expect(default);
        }
    }
}
