//! Validates containers: names, ports, environment, probes, mounts, security contexts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, join, push_invalid, rules};
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};

/// The fields that an environment variable may refer to, besides labels and annotations.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields that some downward references may name.
const OTHER_FIELDS: [&str; 2] = ["metadata.annotations", "metadata.labels"];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// The names of the volumes of a pod.
pub(super) type Volumes<'a> = BTreeSet<&'a str>;

/// Validates one list of containers.
pub(super) fn check_list(
    containers: &[Value],
    path: &str,
    volumes: &Volumes<'_>,
    causes: &mut Causes,
) {
    let mut taken = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        let path = format!("{path}[{i}]");
        rules::check("NamedItem", container, &path, causes);
        let name = text_at(container, "/name");
        if !taken.insert(name) {
            causes.push(Cause::duplicate(join(&path, "name"), name));
        }
        rules::check("ContainerHead", container, &path, causes);
        mounts(container, &join(&path, "volumeMounts"), volumes, causes);
        rules::check("ContainerTail", container, &path, causes);
    }
}

/// The rules for init containers only; `others` are the names that are taken. A sidecar may have
/// what main containers may have.
pub(super) fn check_init<'a>(
    containers: &'a [Value],
    path: &str,
    mut others: BTreeSet<&'a str>,
    causes: &mut Causes,
) {
    for (i, container) in containers.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let name = text_at(container, "/name");
        if others.contains(name) {
            causes.push(Cause::duplicate(join(&path, "name"), name));
        }
        if !name.is_empty() {
            others.insert(name);
        }
        if text_at(container, "/restartPolicy") == "Always" {
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if let Some(value) = container.get(field) {
                let detail = "must not be set for init containers";
                causes.push(Cause::invalid_raw(join(&path, field), value, detail));
            }
        }
    }
}

pub(super) fn ports(container: &Value, path: &str, causes: &mut Causes) {
    let mut taken = BTreeSet::new();
    for (i, port) in array_at(container, "/ports").iter().enumerate() {
        let path = format!("{path}.ports[{i}]");
        let name = text_at(port, "/name");
        let wrong = if name.is_empty() { Vec::new() } else { names::port_name(name) };
        if wrong.is_empty() && !name.is_empty() && !taken.insert(name) {
            causes.push(Cause::duplicate(join(&path, "name"), name));
        }
        push_invalid(causes, &join(&path, "name"), name, wrong);
        rules::check("ContainerPort", port, &path, causes);
    }
}

/// The sources of a variable's value, each by its rules.
pub(super) fn env_value(source: &Value, path: &str, causes: &mut Causes) {
    if let Some(reference) = source.get("fieldRef") {
        field_ref(reference, &ENV_FIELDS, &join(path, "fieldRef"), causes);
    }
    if let Some(reference) = source.get("resourceFieldRef") {
        resource_ref(reference, false, &join(path, "resourceFieldRef"), causes);
    }
    for field in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(reference) = source.get(field) {
            rules::check("KeySelector", reference, &join(path, field), causes);
        }
    }
}

pub(super) fn env_source(variable: &Value, path: &str, causes: &mut Causes) {
    let Some(Value::Object(sources)) = variable.get("valueFrom") else { return };
    let field = join(path, "valueFrom");
    let detail = match sources.len() {
        0 => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, \
             `secretKeyRef` or `fileKeyRef`"
        }
        _ if !text_at(variable, "/value").is_empty() => {
            "may not be specified when `value` is not empty"
        }
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    causes.push(Cause::invalid(field, "", detail));
}

/// Reported for the whole list, as by the real server.
pub(super) fn env_from_source(source: &Value, path: &str, causes: &mut Causes) {
    let given = |field: &str| usize::from(source.get(field).is_some());
    let detail = match given("configMapRef") + given("secretRef") {
        0 => "must specify one of: `configMapRef` or `secretRef`",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    let list = path.rsplit_once('[').map_or(path, |(list, _)| list);
    causes.push(Cause::invalid(list, "", detail));
}

/// A reference to a field of the pod; `known` are the allowed fields in order.
pub(super) fn field_ref(reference: &Value, known: &[&str], path: &str, causes: &mut Causes) {
    let field_path = text_at(reference, "/fieldPath");
    let field = join(path, "fieldPath");
    let unsupported = |what: &str| {
        let detail = format!("error converting fieldPath: {what}");
        Cause::invalid(&field, field_path, &detail)
    };
    if text_at(reference, "/apiVersion") != "v1" {
        let version = text_at(reference, "/apiVersion");
        causes.push(unsupported(&format!("unsupported pod version: {version}")));
    } else if field_path.is_empty() {
        causes.push(Cause::required(field, ""));
    } else if let Some((map, key)) = subscript(field_path) {
        let wrong = match map {
            "metadata.annotations" => names::qualified_name(&key.to_lowercase()),
            _ => names::qualified_name(key),
        };
        push_invalid(causes, path, key, wrong);
    } else if field_path.contains("['") && field_path.ends_with("']") {
        causes.push(unsupported(&format!("field label does not support subscript: {field_path}")));
    } else if !ENV_FIELDS.contains(&field_path) && !OTHER_FIELDS.contains(&field_path) {
        causes.push(unsupported(&format!("field label not supported: {field_path}")));
    } else if !known.contains(&field_path) {
        causes.push(Cause::not_supported(field, field_path, known));
    }
}

/// A reference to an amount of a container; in a volume it has to name the container.
pub(super) fn resource_ref(reference: &Value, volume: bool, path: &str, causes: &mut Causes) {
    let resource = text_at(reference, "/resource");
    if volume && text_at(reference, "/containerName").is_empty() {
        causes.push(Cause::required(join(path, "containerName"), ""));
    } else if resource.is_empty() {
        causes.push(Cause::required(join(path, "resource"), ""));
    } else if !RESOURCES.contains(&resource) {
        causes.push(Cause::not_supported(join(path, "resource"), resource, &RESOURCES));
    }
}

/// Splits `metadata.labels['x']` and `metadata.annotations['x']`.
pub(crate) fn subscript(field_path: &str) -> Option<(&str, &str)> {
    let (map, rest) = field_path.split_once("['")?;
    let key = rest.strip_suffix("']")?;
    matches!(map, "metadata.labels" | "metadata.annotations").then_some((map, key))
}

fn mounts(container: &Value, path: &str, volumes: &Volumes<'_>, causes: &mut Causes) {
    let mut taken = BTreeSet::new();
    for (i, mount) in array_at(container, "/volumeMounts").iter().enumerate() {
        let at = |field: &str| format!("{path}[{i}].{field}");
        let (name, mount_path) = (text_at(mount, "/name"), text_at(mount, "/mountPath"));
        if name.is_empty() {
            causes.push(Cause::required(at("name"), ""));
        }
        if !volumes.contains(name) {
            causes.push(Cause::not_found(at("name"), name));
        }
        if mount_path.is_empty() {
            causes.push(Cause::required(at("mountPath"), ""));
        }
        if !taken.insert(mount_path) {
            causes.push(Cause::invalid(at("mountPath"), mount_path, "must be unique"));
        }
        let (sub, expr) = (text_at(mount, "/subPath"), text_at(mount, "/subPathExpr"));
        // Reported for the whole list, as by the real server.
        push_invalid(causes, &join(path, "subPath"), sub, names::descending_path(sub));
        if !expr.is_empty() {
            if !sub.is_empty() {
                let detail = "subPathExpr and subPath are mutually exclusive";
                causes.push(Cause::invalid(at("subPathExpr"), expr, detail));
            }
            push_invalid(causes, &join(path, "subPathExpr"), expr, names::descending_path(expr));
        }
    }
}

/// A probe or hook has exactly one action.
pub(super) fn handler(handler: &Value, path: &str, causes: &mut Causes) {
    let mut n_given = 0;
    for field in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = handler.get(field) else { continue };
        let at = join(path, field);
        n_given += 1;
        if n_given > 1 {
            causes.push(Cause::forbidden(at, "may not specify more than 1 handler type"));
        } else if field == "exec" && array_at(action, "/command").is_empty() {
            causes.push(Cause::required(join(&at, "command"), ""));
        } else if field == "httpGet" {
            rules::check("HTTPGetAction", action, &at, causes);
        } else if matches!(field, "grpc" | "tcpSocket") {
            rules::port_or_name(&action["port"], &join(&at, "port"), causes);
        }
    }
    if n_given == 0 {
        causes.push(Cause::required(path, "must specify a handler type"));
    }
}

pub(super) fn one_success(probe: &Value, path: &str, causes: &mut Causes) {
    let number = &probe["successThreshold"];
    if *number != 1 {
        causes.push(Cause::invalid_raw(join(path, "successThreshold"), number, "must be 1"));
    }
}
