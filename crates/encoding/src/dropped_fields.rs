//! The fields of a Pod that posse knows: finds fields that servers may drop silently: misspelt ones (before Kubernetes
//! 1.25, which made `fieldValidation` the default) and those that an older server does not know.

use serde_json::Value;

/// The types of Kubernetes' objects and their fields; the file's first lines say how to read it.
pub const TYPES: &str = include_str!("types.txt");

/// Types and their fields without which a pod would be another one, or less safe: it would run as the host's users,
/// or wait for a side-car that never ends. Kubernetes has them since 1.23 or later, and older servers drop them.
const NEWER: [(&str, &str); 8] = [
    ("Container", "restartPolicy"),
    ("PodSecurityContext", "appArmorProfile"),
    ("PodSecurityContext", "supplementalGroupsPolicy"),
    ("PodSpec", "hostUsers"),
    ("PodSpec", "resources"),
    ("PodSpec", "schedulingGates"),
    ("SecurityContext", "appArmorProfile"),
    ("Volume", "image"),
];

/// The paths of the pod's fields that a server may drop without a word: those that posse does not know, like
/// `spec.containers[0].comand`, and those of newer servers.
pub fn uncertain(pod: &Value) -> Vec<String> {
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
                    (None, Some((field, of))) => {
                        if !value.is_null() && NEWER.contains(&(shape, *field)) {
                            found.push(path.clone());
                        }
                        walk(of, value, &path, found);
                    }
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
        let name = words.next().unwrap_or_default();
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
    fn fields_that_a_server_may_drop_are_found_and_others_are_not() {
        let labels = json!({"a": "b"});
        for (pod, want) in [
            (json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}}), &[][..]),
            (json!({"spec": {"containers": [{"comand": ["x"]}]}}), &["spec.containers[0].comand"]),
            (
                json!({"spec": {"containers": [], "initContainers": [{"restartPolicy": "Always"}]}}),
                &["spec.initContainers[0].restartPolicy"],
            ),
            (json!({"spec": {"hostUsers": false, "restartPolicy": "Never"}}), &["spec.hostUsers"]),
            (json!({"spec": {"hostUsers": null, "hostNetwork": true}}), &[]),
            (
                json!({"spec": {"volumes": [{"name": "v", "image": {"reference": "x"}}],
                    "containers": [{"image": "x", "resources": {},
                        "securityContext": {"appArmorProfile": {"type": "Unconfined"}}}]}}),
                &["spec.containers[0].securityContext.appArmorProfile", "spec.volumes[0].image"],
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
            let mut got = uncertain(&pod);
            got.sort();
            assert_eq!(got, want, "{pod}");
        }
    }
}
