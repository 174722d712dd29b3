//! Validates containers: names, images, ports, variables, mounts and amounts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, amounts, join, named, one_of, push_invalid};
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};

/// The names of the volumes of a pod.
pub(super) type Volumes<'a> = BTreeSet<&'a str>;

/// Validates one list of containers; `taken` are the names of the containers before them.
pub(super) fn check_list<'a>(
    containers: &'a [Value],
    path: &str,
    taken: &mut BTreeSet<&'a str>,
    volumes: &Volumes<'_>,
    causes: &mut Causes,
) {
    for (i, container) in containers.iter().enumerate() {
        let path = format!("{path}[{i}]");
        named(container, &path, causes);
        let name = text_at(container, "/name");
        if !taken.insert(name) {
            causes.push(Cause::duplicate(join(&path, "name"), name));
        }
        if text_at(container, "/image").is_empty() {
            causes.push(Cause::required(join(&path, "image"), ""));
        }
        ports(container, &path, causes);
        variables(container, &path, causes);
        mounts(container, &join(&path, "volumeMounts"), volumes, causes);
        let policies = ["Always", "IfNotPresent", "Never"];
        one_of(container, "imagePullPolicy", &policies, &path, causes);
        amounts::requirements(&container["resources"], &join(&path, "resources"), causes);
    }
}

fn ports(container: &Value, path: &str, causes: &mut Causes) {
    let mut taken = BTreeSet::new();
    for (i, port) in array_at(container, "/ports").iter().enumerate() {
        let path = format!("{path}.ports[{i}]");
        let name = text_at(port, "/name");
        let wrong = if name.is_empty() { Vec::new() } else { names::port_name(name) };
        if wrong.is_empty() && !name.is_empty() && !taken.insert(name) {
            causes.push(Cause::duplicate(join(&path, "name"), name));
        }
        push_invalid(causes, &join(&path, "name"), name, wrong);
        let field = join(&path, "containerPort");
        match port["containerPort"].as_i64().unwrap_or_default() {
            0 => causes.push(Cause::required(field, "")),
            1..=65_535 => {}
            number => {
                let detail = "must be between 1 and 65535, inclusive";
                causes.push(Cause::invalid_raw(field, &number, detail));
            }
        }
        one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &path, causes);
    }
}

fn variables(container: &Value, path: &str, causes: &mut Causes) {
    for (i, variable) in array_at(container, "/env").iter().enumerate() {
        let field = format!("{path}.env[{i}].name");
        match text_at(variable, "/name") {
            "" => causes.push(Cause::required(field, "")),
            name => push_invalid(causes, &field, name, names::env_name(name)),
        }
    }
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
    }
}
