//! Validates services: type, ports and addresses.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, go_texts, join, metadata, push_invalid, rules};
use crate::dev::schema::names;
use crate::dev::schema::status::{Cause, go_quoted};
use crate::dev::storage::object::{array_at, text_at};

fn is_headless(service: &Value) -> bool {
    matches!(array_at(service, "/spec/clusterIPs"), [only] if only == "None")
}

pub(super) fn check(service: &Value, causes: &mut Causes) {
    let ports = array_at(service, "/spec/ports");
    let kind = text_at(service, "/spec/type");
    if ports.is_empty() && !is_headless(service) && kind != "ExternalName" {
        causes.push(Cause::required("spec.ports", ""));
    }
    if matches!(kind, "LoadBalancer" | "NodePort") && is_headless(service) {
        let detail = format!("may not be set to 'None' for {kind} services");
        causes.push(Cause::invalid("spec.clusterIPs[0]", "None", &detail));
    } else if kind == "ExternalName" {
        external_name(service, causes);
    }
    each_port(ports, causes);
    metadata::labels(&service["spec"]["selector"], "spec.selector", causes);
    affinity(service, causes);
    if kind != "ExternalName" {
        addresses(service, causes);
    }
    for (i, ip) in array_at(service, "/spec/externalIPs").iter().enumerate() {
        let ip = ip.as_str().unwrap_or_default();
        push_invalid(causes, &format!("spec.externalIPs[{i}]"), ip, names::valid_ip(ip));
    }
    let known = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    if !known.contains(&kind) {
        causes.push(Cause::not_supported("spec.type", kind, &known));
    }
    repeated_ports(ports, kind, causes);
    let policy = text_at(service, "/spec/externalTrafficPolicy");
    let field = "spec.externalTrafficPolicy";
    if !matches!(policy, "" | "Cluster" | "Local") {
        let detail = "ExternalTrafficPolicy must be empty, Cluster or Local";
        causes.push(Cause::invalid(field, policy, detail));
    } else if causes.is_empty()
        && !policy.is_empty()
        && !matches!(kind, "LoadBalancer" | "NodePort")
    {
        // The real server checks this only if there is no other error.
        let detail = "ExternalTrafficPolicy can only be set on NodePort and LoadBalancer service";
        causes.push(Cause::invalid(field, policy, detail));
    }
}

fn external_name(service: &Value, causes: &mut Causes) {
    let field = "spec.externalName";
    if !array_at(service, "/spec/clusterIPs").is_empty() {
        let detail = "may not be set for ExternalName services";
        causes.push(Cause::forbidden("spec.clusterIPs", detail));
    }
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

fn affinity(service: &Value, causes: &mut Causes) {
    const SECONDS_MAX: i64 = 86_400;
    let affinity = text_at(service, "/spec/sessionAffinity");
    let known = ["ClientIP", "None"];
    if !known.contains(&affinity) {
        causes.push(Cause::not_supported("spec.sessionAffinity", affinity, &known));
    }
    let seconds = service.pointer("/spec/sessionAffinityConfig/clientIP/timeoutSeconds");
    let seconds = seconds.and_then(Value::as_i64).filter(|_| affinity == "ClientIP");
    if let Some(seconds) = seconds.filter(|seconds| !(1..=SECONDS_MAX).contains(seconds)) {
        let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
        let detail = "must be greater than 0 and less than 86400";
        causes.push(Cause::invalid_raw(field, &seconds, detail));
    }
}

/// `clusterIP` is the first of `clusterIPs`, and there is at most one.
fn addresses(service: &Value, causes: &mut Causes) {
    let field = "spec.clusterIPs";
    let one = text_at(service, "/spec/clusterIP");
    let all = array_at(service, "/spec/clusterIPs");
    let shown = go_texts(all);
    match all.first().and_then(Value::as_str) {
        None if !one.is_empty() => causes.push(Cause::required(field, "")),
        Some(_) if one.is_empty() => {
            let detail = "must be empty when clusterIP is empty";
            causes.push(Cause::invalid_raw(field, &shown, detail));
        }
        Some(first) if first != one => {
            let detail = "element [0] must match clusterIP";
            causes.push(Cause::invalid_raw(field, &shown, detail));
        }
        Some(_) | None => {}
    }
    for (i, ip) in all.iter().enumerate() {
        let ip = ip.as_str().unwrap_or_default();
        if !(i == 0 && ip == "None") {
            push_invalid(causes, &format!("{field}[{i}]"), ip, names::valid_ip(ip));
        }
    }
}

fn repeated_ports(ports: &[Value], kind: &str, causes: &mut Causes) {
    let mut taken = BTreeSet::new();
    let node_port = |port: &Value| port["nodePort"].as_u64().filter(|number| *number != 0);
    if kind == "ClusterIP" {
        for (i, _) in ports.iter().enumerate().filter(|(_, port)| node_port(port).is_some()) {
            let field = format!("spec.ports[{i}].nodePort");
            let detail = "may not be used when `type` is 'ClusterIP'";
            causes.push(Cause::forbidden(field, detail));
        }
    }
    for (i, port) in ports.iter().enumerate() {
        let Some(number) = node_port(port) else { continue };
        if !taken.insert((text_at(port, "/protocol"), number)) {
            let field = format!("spec.ports[{i}].nodePort");
            causes.push(Cause::duplicate_raw(field, &number));
        }
    }
    let mut taken = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let (protocol, number) = (text_at(port, "/protocol"), port["port"].as_i64());
        if !taken.insert((protocol, number)) {
            let shown = format!(
                "core.ServicePort{{Name:\"\", Protocol:{}, AppProtocol:(*string)(nil), Port:{}, \
                 TargetPort:intstr.IntOrString{{Type:0, IntVal:0, StrVal:\"\"}}, NodePort:0}}",
                go_quoted(protocol),
                number.unwrap_or_default()
            );
            causes.push(Cause::duplicate_raw(format!("spec.ports[{i}]"), &shown));
        }
    }
}

/// An allocated address is immutable.
pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Causes) {
    let external = |service: &Value| text_at(service, "/spec/type") == "ExternalName";
    if external(old) || external(new) || is_headless(old) && is_headless(new) {
        return;
    }
    let (was, is) = (array_at(old, "/spec/clusterIPs"), array_at(new, "/spec/clusterIPs"));
    let detail = match (was.first(), is.first()) {
        (Some(was), Some(is)) if was == is => return,
        (Some(_), Some(_)) => "may not change once set",
        (Some(_), None) => "primary clusterIP can not be unset",
        (None, _) => return,
    };
    let shown = match is {
        [] => "[]string(nil)".to_owned(),
        some => go_texts(some),
    };
    causes.push(Cause::invalid_raw("spec.clusterIPs[0]", &shown, detail));
}
