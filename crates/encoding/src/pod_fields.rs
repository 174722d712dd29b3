//! The fields of a Pod that posse knows: finds misspelt fields on servers that drop unknown fields
//! silently (before Kubernetes 1.25, which made `fieldValidation` the default).

use serde_json::Value;

/// The types of Kubernetes' objects and their fields; the file's first lines say how to read it.
pub const TYPES: &str = include_str!("types.txt");

/// The paths of the pod's fields that posse does not know, like `spec.containers[0].comand`.
pub fn unknown(pod: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk("Pod", pod, "", &mut found);
    found
}

/// Checks a value of the shape `X`, `[X]` or `{X}`.
fn walk(shape: &str, value: &Value, path: &str, found: &mut Vec<String>) {
    let shape = shape.trim_start_matches(['*', '+']);
    let inner = |open, close| shape.strip_prefix(open).and_then(|text| text.strip_suffix(close));
    match value {
        Value::Array(items) => {
            let Some(item) = inner('[', ']') else { return };
            for (i, value) in items.iter().enumerate() {
                walk(item, value, &format!("{path}[{i}]"), found);
            }
        }
        Value::Object(members) => {
            // Scalars and `Any` are no types of the table: the server checks them.
            let fields: Vec<(&str, &str)> = fields(shape).collect();
            for (name, value) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let field = fields.iter().find(|(known, _)| known == name);
                match (inner('{', '}'), field) {
                    (Some(item), _) => walk(item, value, &path, found),
                    (None, Some((_, shape))) => walk(shape, value, &path, found),
                    (None, None) if fields.is_empty() => {}
                    (None, None) if shape == "Pod" && TYPE_FIELDS.contains(&name.as_str()) => {}
                    (None, None) => found.push(path),
                }
            }
        }
        Value::Bool(_) | Value::Null | Value::Number(_) | Value::String(_) => {}
    }
}

/// The fields that every object has.
const TYPE_FIELDS: [&str; 2] = ["apiVersion", "kind"];

/// The names and shapes of a type's fields; empty if the table has no such type.
fn fields(name: &str) -> Box<dyn Iterator<Item = (&'static str, &'static str)> + '_> {
    let is_head = move |line: &&str| line.split(' ').next() == Some(name);
    let own = TYPES.lines().skip_while(move |line| !is_head(line)).skip(1);
    let own = own.take_while(|line| line.starts_with(' '));
    Box::new(own.flat_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default().trim_end_matches('!');
        let shape = words.next().unwrap_or_default();
        match name {
            // An inlined type: its fields are fields of the owner.
            "." => fields(shape.trim_start_matches(['*', '+'])),
            name => Box::new(std::iter::once((name, shape))),
        }
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_of_a_pod_are_found_and_known_ones_are_not() {
        let labels = json!({"a": "b"});
        for (pod, want) in [
            (json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}}), &[][..]),
            (json!({"spec": {"containers": [{"comand": ["x"]}]}}), &["spec.containers[0].comand"]),
            (
                json!({"spec": {"containers": [], "initContainers": [{"restartPolicy": "Always"}]}}),
                &[],
            ),
            (
                json!({"spec": {"nodeselector": labels, "nodeSelector": labels}}),
                &["spec.nodeselector"],
            ),
            (json!({"metadata": {"lables": labels}, "spek": {}}), &["metadata.lables", "spek"]),
            (
                json!({"spec": {"volumes": [{"name": "v", "emptyDir": {"size": 1}, "pvc": {}}]}}),
                &["spec.volumes[0].emptyDir.size", "spec.volumes[0].pvc"],
            ),
            (
                json!({"spec": {"containers": [{"resources": {"limits": {"any/thing": 1}},
                    "livenessProbe": {"exec": {"command": []}, "grpc": {"port": 1}, "tcp": {}}}]}}),
                &["spec.containers[0].livenessProbe.tcp"],
            ),
        ] {
            let mut got = unknown(&pod);
            got.sort();
            assert_eq!(got, want, "{pod}");
        }
    }
}
