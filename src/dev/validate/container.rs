//! Owns the checks of containers: names, images, environment, ports, resources, mounts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{join, push_invalid};
use crate::dev::names;
use crate::dev::object::{array_at, text_at};
use crate::dev::quantity::Quantity;
use crate::dev::refused::Cause;

/// The fields that an environment variable may refer to, besides labels and annotations.
const ENV_FIELDS: [&str; 8] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.podIP",
    "status.podIPs",
];

/// Checks one list of containers; `taken` holds the names used so far.
pub(super) fn check_list<'a>(
    containers: &'a [Value],
    path: &str,
    volumes: &BTreeSet<&str>,
    taken: &mut BTreeSet<&'a str>,
    causes: &mut Vec<Cause>,
) {
    for (i, container) in containers.iter().enumerate() {
        let path = format!("{path}[{i}]");
        name(container, &path, taken, causes);
        image(container, &path, causes);
        ports(container, &path, causes);
        for (i, variable) in array_at(container, "/env").iter().enumerate() {
            env(variable, &format!("{path}.env[{i}]"), causes);
        }
        for (i, mount) in array_at(container, "/volumeMounts").iter().enumerate() {
            volume_mount(mount, &format!("{path}.volumeMounts[{i}]"), volumes, causes);
        }
        resources(container, &join(&path, "resources"), causes);
    }
}

fn name<'a>(
    container: &'a Value,
    path: &str,
    taken: &mut BTreeSet<&'a str>,
    causes: &mut Vec<Cause>,
) {
    let field = join(path, "name");
    let name = text_at(container, "/name");
    if name.is_empty() {
        causes.push(Cause::required(field, ""));
        return;
    }
    push_invalid(causes, &field, name, names::dns_label(name));
    if !taken.insert(name) {
        causes.push(Cause::duplicate(field, name));
    }
}

fn image(container: &Value, path: &str, causes: &mut Vec<Cause>) {
    let image = text_at(container, "/image");
    if image.is_empty() {
        causes.push(Cause::required(join(path, "image"), ""));
    } else if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        causes.push(Cause::invalid(join(path, "image"), image, detail));
    }
    let policy = text_at(container, "/imagePullPolicy");
    let known = ["Always", "IfNotPresent", "Never"];
    if !known.contains(&policy) {
        causes.push(Cause::not_supported(join(path, "imagePullPolicy"), policy, &known));
    }
}

fn ports(container: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut taken = BTreeSet::new();
    for (i, port) in array_at(container, "/ports").iter().enumerate() {
        let path = format!("{path}.ports[{i}]");
        let name = text_at(port, "/name");
        let wrong = if name.is_empty() { Vec::new() } else { names::port_name(name) };
        if wrong.is_empty() && !name.is_empty() && !taken.insert(name) {
            causes.push(Cause::duplicate(join(&path, "name"), name));
        }
        push_invalid(causes, &join(&path, "name"), name, wrong);
        match port.get("containerPort").and_then(Value::as_i64).unwrap_or_default() {
            0 => causes.push(Cause::required(join(&path, "containerPort"), "")),
            1..=65_535 => {}
            number => {
                let detail = "must be between 1 and 65535, inclusive";
                let field = join(&path, "containerPort");
                causes.push(Cause::invalid_raw(field, &number, detail));
            }
        }
        let protocol = text_at(port, "/protocol");
        let known = ["SCTP", "TCP", "UDP"];
        if !known.contains(&protocol) {
            causes.push(Cause::not_supported(join(&path, "protocol"), protocol, &known));
        }
    }
}

fn env(variable: &Value, path: &str, causes: &mut Vec<Cause>) {
    let name = text_at(variable, "/name");
    if name.is_empty() {
        causes.push(Cause::required(join(path, "name"), ""));
    } else {
        push_invalid(causes, &join(path, "name"), name, names::env_name(name));
    }
    let Some(Value::Object(sources)) = variable.get("valueFrom") else { return };
    let field = join(path, "valueFrom");
    if sources.is_empty() {
        let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or \
                      `secretKeyRef`";
        causes.push(Cause::invalid(field, "", detail));
        return;
    }
    if !text_at(variable, "/value").is_empty() {
        causes.push(Cause::invalid(&field, "", "may not be specified when `value` is not empty"));
    } else if sources.len() > 1 {
        causes.push(Cause::invalid(
            &field,
            "",
            "may not have more than one field specified at a time",
        ));
    }
    if let Some(reference) = sources.get("fieldRef") {
        field_ref(text_at(reference, "/fieldPath"), &join(&field, "fieldRef"), causes);
    }
}

fn field_ref(field_path: &str, path: &str, causes: &mut Vec<Cause>) {
    if field_path.is_empty() {
        causes.push(Cause::required(join(path, "fieldPath"), ""));
    } else if let Some((_, key)) = subscript(field_path) {
        push_invalid(causes, path, key, names::qualified_name(key));
    } else if !ENV_FIELDS.contains(&field_path) {
        let detail = format!("error converting fieldPath: field label not supported: {field_path}");
        causes.push(Cause::invalid(join(path, "fieldPath"), field_path, &detail));
    }
}

/// Splits `metadata.labels['x']` and `metadata.annotations['x']`.
pub(crate) fn subscript(field_path: &str) -> Option<(&str, &str)> {
    let (map, rest) = field_path.split_once("['")?;
    let key = rest.strip_suffix("']")?;
    matches!(map, "metadata.labels" | "metadata.annotations").then_some((map, key))
}

fn volume_mount(mount: &Value, path: &str, volumes: &BTreeSet<&str>, causes: &mut Vec<Cause>) {
    let name = text_at(mount, "/name");
    if name.is_empty() {
        causes.push(Cause::required(join(path, "name"), ""));
    } else if !volumes.contains(name) {
        causes.push(Cause::not_found(join(path, "name"), name));
    }
    if text_at(mount, "/mountPath").is_empty() {
        causes.push(Cause::required(join(path, "mountPath"), ""));
    }
}

fn resources(container: &Value, path: &str, causes: &mut Vec<Cause>) {
    for list in ["limits", "requests"] {
        let pointer = format!("/resources/{list}");
        let amounts = container.pointer(&pointer).and_then(Value::as_object);
        for (resource, amount) in amounts.into_iter().flatten() {
            let field = format!("{path}.{list}[{resource}]");
            let text = amount.as_str().unwrap_or_default();
            resource_name(resource, &field, causes);
            let Some(quantity) = Quantity::parse(text) else { continue };
            if quantity.is_negative() {
                let detail = "must be greater than or equal to 0";
                causes.push(Cause::invalid(&field, text, detail));
            }
            let limit = text_at(container, &format!("/resources/limits/{resource}"));
            let over = Quantity::parse(limit).is_some_and(|limit| quantity.exceeds(limit));
            if list == "requests" && over {
                let detail = format!("must be less than or equal to {resource} limit");
                causes.push(Cause::invalid(format!("{path}.requests"), text, &detail));
            }
        }
    }
}

fn resource_name(resource: &str, field: &str, causes: &mut Vec<Cause>) {
    push_invalid(causes, field, resource, names::qualified_name(resource));
    let standard = matches!(resource, "cpu" | "memory" | "ephemeral-storage")
        || resource.starts_with("hugepages-");
    if !standard && !resource.contains('/') {
        for detail in [
            "must be a standard resource type or fully qualified",
            "must be a standard resource for containers",
        ] {
            causes.push(Cause::invalid(field, resource, detail));
        }
    }
}
