//! The values that fill a pod's environment and volumes: configmaps, secrets and fields of the pod. Errors are worded as the kubelet words them.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::schema::kind::{Key, Kind};
use crate::storage::object::text_at;
use crate::storage::store::Store;

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_become_lines_of_quoted_values() {
        let pod = json!({"metadata": {"labels": {"b": "2", "a": "x\"\n"}}});
        assert_eq!(field(&pod, "metadata.labels"), "a=\"x\\\"\\n\"\nb=\"2\"");
        assert_eq!(field(&pod, "metadata.annotations"), "");
    }
}
