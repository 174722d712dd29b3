//! Validates services: type, name and ports. Addresses and node ports are not checked, because no
//! service here has one that works.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, join, metadata, push_invalid, rules};
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};

pub(super) fn check(service: &Value, causes: &mut Causes) {
    let ports = array_at(service, "/spec/ports");
    let kind = text_at(service, "/spec/type");
    let is_headless = text_at(service, "/spec/clusterIP") == "None";
    if kind == "ExternalName" {
        external_name(service, causes);
    } else if ports.is_empty() && !is_headless {
        causes.push(Cause::required("spec.ports", ""));
    }
    each_port(ports, causes);
    metadata::labels(&service["spec"]["selector"], "spec.selector", causes);
    rules::check("ServiceSpec", &service["spec"], "spec", causes);
}

fn external_name(service: &Value, causes: &mut Causes) {
    let field = "spec.externalName";
    let name = text_at(service, "/spec/externalName");
    let name = name.strip_suffix('.').unwrap_or(name);
    match name {
        "" => causes.push(Cause::required(field, "")),
        name => push_invalid(causes, field, name, names::dns_subdomain(name)),
    }
}

fn each_port(ports: &[Value], causes: &mut Causes) {
    let mut taken = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{i}]");
        let field = join(&path, "name");
        let name = text_at(port, "/name");
        if !name.is_empty() {
            push_invalid(causes, &field, name, names::dns_label(name));
            if !taken.insert(name) {
                causes.push(Cause::duplicate(field, name));
            }
        } else if ports.len() > 1 {
            causes.push(Cause::required(field, ""));
        }
        rules::check("ServicePort", port, &path, causes);
    }
}
