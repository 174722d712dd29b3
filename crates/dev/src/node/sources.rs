//! The values that fill a pod's environment and volumes: configmaps, secrets, fields and resources
//! of the pod. Errors are worded as the kubelet words them.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::schema::kind::{Key, Kind};
use crate::storage::object::{array_at, text_at};
use crate::storage::store::Store;
use posse_encoding::quantity::Quantity;

/// The contents of a configmap or a secret.
pub(super) type Data = BTreeMap<String, Vec<u8>>;

/// The contents of a configmap or a secret in the pod's namespace. `None` if it is optional and
/// does not exist.
pub(super) fn data(
    store: &Store,
    kind: Kind,
    namespace: &str,
    name: &str,
    optional: bool,
) -> Result<Option<Data>, String> {
    let Some(object) = store.get(&Key::new(kind, namespace, name)) else {
        let word = if kind == Kind::Secret { "secret" } else { "configmap" };
        return if optional { Ok(None) } else { Err(format!("{word} \"{name}\" not found")) };
    };
    let value = object.value();
    let members = |list: &str| {
        let members = value.get(list).and_then(Value::as_object).cloned().unwrap_or_default();
        members.into_iter().map(|(key, text)| (key, text.as_str().unwrap_or_default().to_owned()))
    };
    let decoded = |list: &str| -> Data {
        // The API server has validated the base64.
        members(list).map(|(key, text)| (key, STANDARD.decode(text).unwrap_or_default())).collect()
    };
    if kind == Kind::Secret {
        return Ok(Some(decoded("data")));
    }
    let mut all = decoded("binaryData");
    all.extend(members("data").map(|(key, text)| (key, text.into_bytes())));
    Ok(Some(all))
}

pub(super) fn is_optional(reference: &Value) -> bool {
    reference["optional"] == true
}

/// Splits `metadata.labels['x']` and `metadata.annotations['x']`.
fn subscript(field_path: &str) -> Option<(&str, &str)> {
    let (map, rest) = field_path.split_once("['")?;
    let key = rest.strip_suffix("']")?;
    matches!(map, "metadata.labels" | "metadata.annotations").then_some((map, key))
}

/// The value of a pod field for a `fieldRef`.
pub(super) fn field(pod: &Value, path: &str) -> String {
    if let Some((map, key)) = subscript(path) {
        let map = map.replace('.', "/");
        let value = pod.pointer(&format!("/{map}")).and_then(|map| map.get(key));
        return value.and_then(Value::as_str).unwrap_or_default().to_owned();
    }
    match path {
        "metadata.annotations" => lines(pod.pointer("/metadata/annotations")),
        "metadata.labels" => lines(pod.pointer("/metadata/labels")),
        "status.hostIPs" => text_at(pod, "/status/hostIP").to_owned(),
        "status.podIPs" => text_at(pod, "/status/podIP").to_owned(),
        path => text_at(pod, &format!("/{}", path.replace('.', "/"))).to_owned(),
    }
}

/// A map as one `key="value"` per line.
fn lines(map: Option<&Value>) -> String {
    let members = map.and_then(Value::as_object).into_iter().flatten();
    let line = |(key, value): (&String, &Value)| {
        format!("{key}={}", crate::schema::status::go_quoted(value.as_str().unwrap_or_default()))
    };
    members.map(line).collect::<Vec<_>>().join("\n")
}

/// The value of a container resource for a `resourceFieldRef`, in units of its divisor. `own` is
/// the container whose spec has the reference.
pub(super) fn resource(
    pod: &Value,
    own: Option<&Value>,
    reference: &Value,
) -> Result<String, String> {
    let name = text_at(reference, "/containerName");
    let container = match name {
        "" => own,
        name => ["/spec/containers", "/spec/initContainers"]
            .iter()
            .flat_map(|list| array_at(pod, list))
            .find(|container| text_at(container, "/name") == name),
    };
    let Some(container) = container else { return Err(format!("container {name} not found")) };
    let wanted = text_at(reference, "/resource");
    let Some((list, resource)) = wanted.split_once('.') else {
        return Err(format!("unsupported container resource : {wanted}"));
    };
    let of = |list: &str| {
        let value = container.pointer("/resources").and_then(|all| all.get(list)?.get(resource));
        value.and_then(quantity)
    };
    let amount = match list {
        // Without a limit, the limit is the node's capacity.
        "limits" => of("limits").or_else(|| capacity(resource)),
        _ => of("requests"),
    };
    let divisor = reference.get("divisor").and_then(quantity).filter(|d| !d.is_zero());
    let one = Quantity::parse("1").ok_or("one is a quantity")?;
    let amount = amount.or_else(|| Quantity::parse("0")).ok_or("zero is a quantity")?;
    Ok(amount.divided(divisor.unwrap_or(one)).to_string())
}

fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::Number(number) => Quantity::parse(&number.to_string()),
        Value::String(text) => Quantity::parse(text),
        Value::Array(_) | Value::Bool(_) | Value::Null | Value::Object(_) => None,
    }
}

/// The capacity of this machine.
fn capacity(resource: &str) -> Option<Quantity> {
    match resource {
        "cpu" => {
            let n_cpus = std::thread::available_parallelism().map_or(1, usize::from);
            Quantity::parse(&n_cpus.to_string())
        }
        "memory" => {
            let system = rustix::system::sysinfo();
            let bytes = system.totalram.saturating_mul(system.mem_unit.into());
            Quantity::parse(&bytes.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resources_are_given_in_units_of_their_divisor() {
        let container = json!({"name": "c", "resources": {
            "limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": 1},
        }});
        let pod = json!({"spec": {"containers": [container]}});
        for (resource, divisor, want) in [
            ("limits.cpu", "0", "2"),
            ("limits.cpu", "1m", "1500"),
            ("requests.cpu", "1", "1"),
            ("limits.memory", "1", "67108864"),
            ("limits.memory", "1Mi", "64"),
            ("limits.memory", "1G", "1"),
            ("requests.memory", "1", "0"),
        ] {
            let reference = json!({
                "containerName": "c", "resource": resource, "divisor": divisor,
            });
            let value = super::resource(&pod, None, &reference);
            assert_eq!(value.as_deref(), Ok(want), "{resource} / {divisor}");
        }
        let machine = super::resource(&pod, Some(&json!({})), &json!({"resource": "limits.cpu"}));
        assert_ne!(machine.as_deref(), Ok("0"));
        let error = super::resource(&pod, None, &json!({"containerName": "x", "resource": "a.b"}));
        assert_eq!(error, Err("container x not found".to_owned()));
    }

    #[test]
    fn maps_become_lines_of_quoted_values() {
        let pod = json!({"metadata": {"labels": {"b": "2", "a": "x\"\n"}}});
        assert_eq!(field(&pod, "metadata.labels"), "a=\"x\\\"\\n\"\nb=\"2\"");
        assert_eq!(field(&pod, "metadata.annotations"), "");
    }
}
