//! Validates containers: names, ports and mounts; the rest by the table.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, join, push_invalid, rules};
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
