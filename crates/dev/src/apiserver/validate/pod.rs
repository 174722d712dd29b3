//! Validates pods and pod templates, and the updates of pods.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Causes, amounts, container, join, push_invalid, rules, volume};
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};

const MIRROR: &str = "kubernetes.io/config.mirror";
const DEADLINE: &str = "spec.activeDeadlineSeconds";
const MUST_HAVE_VALUES: &str = "must be specified when `operator` is 'In' or 'NotIn'";
const MUST_NOT_HAVE_VALUES: &str =
    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
const NO_OPERATOR: &str = "not a valid selector operator";

/// Validates a new or changed pod without its metadata.
pub(super) fn check(pod: &Value, causes: &mut Causes) {
    annotations(pod, "metadata.annotations", causes);
    let spec = &pod["spec"];
    amounts::of_pod(pod, causes);
    check_spec(spec, text_at(pod, "/metadata/name"), "spec", causes);
    volume::tokens_without_account(spec, "spec", causes);
    gates(spec, causes);
    for list in ["containers", "initContainers"] {
        for (i, container) in array_at(spec, &format!("/{list}")).iter().enumerate() {
            let image = text_at(container, "/image");
            if image.trim() != image {
                let field = format!("spec.{list}[{i}].image");
                let detail = "must not have leading or trailing whitespace";
                causes.push(Cause::invalid(field, image, detail));
            }
        }
    }
}

/// A pod with scheduling gates has no node (KEP-3521).
fn gates(spec: &Value, causes: &mut Causes) {
    let gates = array_at(spec, "/schedulingGates");
    let mut taken = BTreeSet::new();
    for (i, gate) in gates.iter().enumerate() {
        let (field, name) = (format!("spec.schedulingGates[{i}]"), text_at(gate, "/name"));
        push_invalid(causes, &field, name, names::qualified_name(name));
        if !taken.insert(name) {
            causes.push(Cause::duplicate(field, name));
        }
    }
    if !gates.is_empty() && !text_at(spec, "/nodeName").is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        causes.push(Cause::forbidden("spec.nodeName", detail));
    }
}

/// Validates the template of a workload.
pub(super) fn check_template(template: &Value, path: &str, causes: &mut Causes) {
    // The real server's path does not contain `metadata`.
    let metadata = &template["metadata"];
    super::metadata::labels(&metadata["labels"], &join(path, "labels"), causes);
    let at = join(path, "annotations");
    super::metadata::annotations(&metadata["annotations"], &at, causes);
    annotations(template, &at, causes);
    check_spec(&template["spec"], "", &join(path, "spec"), causes);
}

/// Annotations that later became fields.
fn annotations(pod: &Value, path: &str, causes: &mut Causes) {
    let mirror = pod.pointer("/metadata/annotations").and_then(|all| all.get(MIRROR));
    if let Some(value) = mirror
        && text_at(pod, "/spec/nodeName").is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        let value = value.as_str().unwrap_or_default();
        causes.push(Cause::invalid(format!("{path}[{MIRROR}]"), value, detail));
    }
}

/// Validates a spec; `pod` is empty in templates.
fn check_spec(spec: &Value, pod: &str, path: &str, causes: &mut Causes) {
    let volumes = volume::check_all(spec, pod, &join(path, "volumes"), causes);
    let claims = claims(spec, &join(path, "resourceClaims"), causes);
    let containers = array_at(spec, "/containers");
    let field = join(path, "containers");
    if containers.is_empty() {
        causes.push(Cause::required(&field, ""));
    }
    container::check_list(containers, &field, (&volumes, &claims), causes);
    container::host_port_conflicts(containers, &field, causes);
    let init = array_at(spec, "/initContainers");
    let field = join(path, "initContainers");
    container::check_list(init, &field, (&volumes, &claims), causes);
    for one in init {
        container::host_port_conflicts(std::slice::from_ref(one), &field, causes);
    }
    let others = containers.iter().map(|container| text_at(container, "/name")).collect();
    container::check_init(init, &field, others, causes);
    rules::check("PodSpecTail", spec, path, causes);
}

/// The claims of a pod: each names an object or a template. Returns their names.
fn claims<'a>(spec: &'a Value, path: &str, causes: &mut Causes) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for (i, claim) in array_at(spec, "/resourceClaims").iter().enumerate() {
        let field = format!("{path}[{i}]");
        let name = text_at(claim, "/name");
        push_invalid(causes, &join(&field, "name"), name, names::dns_label(name));
        match names.contains(&name) {
            true => causes.push(Cause::duplicate(join(&field, "name"), name)),
            false => names.push(name),
        }
        let [object, template] =
            ["resourceClaimName", "resourceClaimTemplateName"].map(|of| claim.get(of));
        let detail = match (object, template) {
            (None, None) => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            (Some(_), Some(_)) => {
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            }
            (Some(_), None) | (None, Some(_)) => continue,
        };
        let shown = serde_json::json!({
            "Name": name, "ResourceClaimName": object, "ResourceClaimTemplateName": template,
        });
        causes.push(Cause::invalid_raw(field, &shown, detail));
    }
    names
}

/// A user namespace excludes namespaces of the host (KEP-127).
pub(super) fn user_namespace(spec: &Value, path: &str, causes: &mut Causes) {
    if spec.get("hostUsers") != Some(&Value::Bool(false)) {
        return;
    }
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec.get(field) == Some(&Value::Bool(true)) {
            causes.push(Cause::forbidden(join(path, field), "when `hostUsers` is false"));
        }
    }
}

/// The name that a pod sees as its own (KEP-4762).
pub(super) fn hostname_override(spec: &Value, path: &str, causes: &mut Causes) {
    let Some(name) = spec.get("hostnameOverride").and_then(Value::as_str) else { return };
    let field = join(path, "hostnameOverride");
    for other in ["hostNetwork", "setHostnameAsFQDN"] {
        if spec.get(other) == Some(&Value::Bool(true)) {
            let detail = format!("may not be specified when {other} is true");
            causes.push(Cause::forbidden(&field, &detail));
        }
    }
    push_invalid(causes, &field, name, names::dns_subdomain(name));
}

/// With the host's network the host port must equal the container port.
pub(super) fn host_ports(spec: &Value, path: &str, causes: &mut Causes) {
    if spec.get("hostNetwork") != Some(&Value::Bool(true)) {
        return;
    }
    for (i, container) in array_at(spec, "/containers").iter().enumerate() {
        for (k, port) in array_at(container, "/ports").iter().enumerate() {
            if port["hostPort"] != port["containerPort"] {
                let field = format!("{path}.containers[{i}].ports[{k}].hostPort");
                let detail = "must match `containerPort` when `hostNetwork` is true";
                causes.push(Cause::invalid_raw(field, &port["hostPort"], detail));
            }
        }
    }
}

pub(super) fn shared_processes(spec: &Value, path: &str, causes: &mut Causes) {
    let is_set = |field: &str| spec.get(field) == Some(&Value::Bool(true));
    if is_set("shareProcessNamespace") && is_set("hostPID") {
        let field = join(path, "securityContext.shareProcessNamespace");
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        causes.push(Cause::invalid_raw(field, &true, detail));
    }
}

pub(super) fn dns(spec: &Value, path: &str, causes: &mut Causes) {
    const SERVERS_MAX: usize = 3;
    const SEARCHES_MAX: usize = 32;
    const SEARCH_CHARS_MAX: usize = 2048;
    let path = join(path, "dnsConfig");
    let config = spec.get("dnsConfig");
    let list = |name: &str| config.map_or(&[][..], |config| array_at(config, name));
    let servers = list("/nameservers");
    if text_at(spec, "/dnsPolicy") == "None" && servers.is_empty() {
        let (field, detail) = match config {
            None => (path, "must provide `dnsConfig` when `dnsPolicy` is None"),
            Some(_) => (
                join(&path, "nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ),
        };
        causes.push(Cause::required(field, detail));
        return;
    }
    let field = join(&path, "nameservers");
    if servers.len() > SERVERS_MAX {
        let detail = "must not have more than 3 nameservers";
        causes.push(Cause::invalid_raw(&field, &super::shown(servers), detail));
    }
    for (i, server) in servers.iter().enumerate() {
        let server = server.as_str().unwrap_or_default();
        push_invalid(causes, &format!("{field}[{i}]"), server, names::ip(server));
    }
    let searches = list("/searches");
    let field = join(&path, "searches");
    let n_chars: usize =
        searches.iter().map(|search| search.as_str().unwrap_or_default().len() + 1).sum();
    for (over, detail) in [
        (searches.len() > SEARCHES_MAX, "must not have more than 32 search paths"),
        (
            n_chars > SEARCH_CHARS_MAX + 1,
            "must not have more than 2048 characters (including spaces) in the search list",
        ),
    ] {
        if over {
            causes.push(Cause::invalid_raw(&field, &super::shown(searches), detail));
        }
    }
    for (i, search) in searches.iter().enumerate() {
        let search = search.as_str().unwrap_or_default();
        let search = search.strip_suffix('.').unwrap_or(search);
        push_invalid(causes, &format!("{field}[{i}]"), search, names::dns_search(search));
    }
    for (i, option) in list("/options").iter().enumerate() {
        if text_at(option, "/name").is_empty() {
            causes.push(Cause::required(format!("{path}.options[{i}]"), "must not be empty"));
        }
    }
}

pub(super) fn spread(constraints: &Value, path: &str, causes: &mut Causes) {
    let list = array_at(constraints, "");
    for (i, constraint) in list.iter().enumerate() {
        let at = |field: &str| format!("{path}[{i}].{field}");
        let text = |of: &Value, field: &str| text_at(of, &format!("/{field}")).to_owned();
        let skew = constraint["maxSkew"].as_i64().unwrap_or_default();
        if skew <= 0 {
            causes.push(Cause::invalid_raw(at("maxSkew"), &skew, "must be greater than zero"));
        }
        let key = text(constraint, "topologyKey");
        if key.is_empty() {
            causes.push(Cause::required(at("topologyKey"), "can not be empty"));
        }
        let action = text(constraint, "whenUnsatisfiable");
        let known = ["DoNotSchedule", "ScheduleAnyway"];
        if !known.contains(&action.as_str()) {
            causes.push(Cause::not_supported(at("whenUnsatisfiable"), &action, &known));
        }
        let same = |other: &Value| {
            text(other, "topologyKey") == key && text(other, "whenUnsatisfiable") == action
        };
        if list.iter().skip(i + 1).any(same) {
            let shown = format!("{{{key}, {action}}}");
            causes.push(Cause::duplicate(at("{topologyKey, whenUnsatisfiable}"), &shown));
        }
    }
}

pub(super) fn deadline(seconds: &Value, field: &str, causes: &mut Causes) {
    let seconds = seconds.as_i64().unwrap_or_default();
    if !(1..=i64::from(i32::MAX)).contains(&seconds) {
        let detail = "must be between 1 and 2147483647, inclusive";
        causes.push(Cause::invalid_raw(field, &seconds, detail));
    }
}

pub(super) fn overhead(spec: &Value, path: &str, causes: &mut Causes) {
    if let Some(overhead) = spec.get("overhead") {
        amounts::list(overhead, &join(path, "overhead.limits"), causes);
    }
}

/// A requirement of a label selector.
pub(super) fn requirement(requirement: &Value, path: &str, causes: &mut Causes) {
    let n_values = array_at(requirement, "/values").len();
    let values = join(path, "values");
    match text_at(requirement, "/operator") {
        "In" | "NotIn" if n_values == 0 => causes.push(Cause::required(values, MUST_HAVE_VALUES)),
        "Exists" | "DoesNotExist" if n_values > 0 => {
            causes.push(Cause::forbidden(values, MUST_NOT_HAVE_VALUES));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        operator => causes.push(Cause::invalid(join(path, "operator"), operator, NO_OPERATOR)),
    }
}

/// A requirement on a node's labels, with the operators Gt and Lt.
pub(super) fn node_requirement(of: &Value, path: &str, causes: &mut Causes) {
    if !matches!(text_at(of, "/operator"), "Gt" | "Lt") {
        requirement(of, path, causes);
    } else if array_at(of, "/values").len() != 1 {
        let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
        causes.push(Cause::required(join(path, "values"), detail));
    }
}

/// A requirement on a node's fields; the only field is metadata.name.
pub(super) fn field_requirement(requirement: &Value, path: &str, causes: &mut Causes) {
    let values = array_at(requirement, "/values");
    match text_at(requirement, "/operator") {
        "In" | "NotIn" if values.len() == 1 => {}
        "In" | "NotIn" => {
            let detail =
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            causes.push(Cause::required(join(path, "values"), detail));
        }
        operator => causes.push(Cause::invalid(join(path, "operator"), operator, NO_OPERATOR)),
    }
    let key = text_at(requirement, "/key");
    if key != "metadata.name" {
        causes.push(Cause::invalid(join(path, "key"), key, "not a valid field selector key"));
        return;
    }
    for (i, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        let field = format!("{path}.values[{i}]");
        push_invalid(causes, &field, value, names::dns_subdomain(value));
    }
}

pub(super) fn toleration(toleration: &Value, path: &str, causes: &mut Causes) {
    let text = |field: &str| text_at(toleration, &format!("/{field}"));
    let (key, operator, value, effect) =
        (text("key"), text("operator"), text("value"), text("effect"));
    let field = join(path, "operator");
    let seconds = toleration.get("tolerationSeconds");
    if key.is_empty() && operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values \
                      and all keys\"";
        causes.push(Cause::invalid(&field, operator, detail));
    }
    if seconds.is_some() && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        causes.push(Cause::invalid(join(path, "effect"), effect, detail));
    }
    match operator {
        "" | "Equal" => {
            let wrong = names::label_value(value);
            if !wrong.is_empty() {
                causes.push(Cause::invalid(&field, value, &wrong.join(";")));
            }
        }
        "Exists" if value.is_empty() => {}
        "Exists" => {
            let detail = "value must be empty when `operator` is 'Exists'";
            causes.push(Cause::invalid(&field, value, detail));
        }
        // Their feature gate is off, but the message names them.
        "Gt" | "Lt" => {
            let known = ["Equal", "Exists", "Lt", "Gt"];
            causes.push(Cause::not_supported(&field, operator, &known));
        }
        other => causes.push(Cause::not_supported(&field, other, &["Equal", "Exists"])),
    }
}

/// The annotation that marks a mirror pod is immutable.
fn mirror_update(old: &Value, new: &Value, causes: &mut Causes) {
    let mirror = |pod: &Value| pod.pointer("/metadata/annotations")?.get(MIRROR).cloned();
    let detail = match (mirror(old), mirror(new)) {
        (was, is) if was == is => return,
        (None, _) => "may not add mirror pod annotation",
        (Some(_), _) => "may not remove or update mirror pod annotation",
    };
    causes.push(Cause::forbidden(format!("metadata.annotations[{MIRROR}]"), detail));
}

/// In a pod's spec only images, the deadline (downwards) and added tolerations may change.
pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Causes) {
    mirror_update(old, new, causes);
    annotations(new, "metadata.annotations", causes);
    for list in ["containers", "initContainers"] {
        let of = |pod| array_at(pod, &format!("/spec/{list}"));
        if of(old).len() != of(new).len() {
            let detail = "pod updates may not add or remove containers";
            causes.push(Cause::forbidden(format!("spec.{list}"), detail));
            return;
        }
        for (i, container) in of(new).iter().enumerate() {
            let field = format!("spec.{list}[{i}].image");
            let image = text_at(container, "/image");
            if image.is_empty() {
                causes.push(Cause::required(field, ""));
            } else if image.trim() != image {
                let detail = "must not have leading or trailing whitespace";
                causes.push(Cause::invalid(field, image, detail));
            }
        }
    }
    let deadline = |pod: &Value| pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64);
    match (deadline(old), deadline(new)) {
        (Some(_), None) => {
            let detail = "must not update from a positive integer to nil value";
            causes.push(Cause::invalid_raw(DEADLINE, &"null", detail));
        }
        (_, Some(is)) if !(0..=i64::from(i32::MAX)).contains(&is) => {
            let detail = "must be between 0 and 2147483647, inclusive";
            causes.push(Cause::invalid_raw(DEADLINE, &is, detail));
            return;
        }
        (Some(was), Some(is)) if is > was => {
            let detail = "must be less than or equal to previous value";
            causes.push(Cause::invalid_raw(DEADLINE, &is, detail));
            return;
        }
        (Some(_) | None, Some(_)) | (None, None) => {}
    }
    tolerations_kept(old, new, causes);
    let gates = |pod| array_at(pod, "/spec/schedulingGates");
    if let Some(gate) = gates(new).iter().find(|gate| !gates(old).contains(gate)) {
        let detail = format!(
            "only deletion is allowed, but found new scheduling gate '{}'",
            text_at(gate, "/name")
        );
        causes.push(Cause::forbidden("spec.schedulingGates", &detail));
    }
    if frozen(old) != frozen(new) {
        let detail = "pod updates may not change fields other than \
                      `spec.containers[*].image`,`spec.initContainers[*].image`,\
                      `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
                      tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 \
                      if it was previously negative)";
        causes.push(Cause::forbidden("spec", detail));
    }
}

/// Old tolerations must stay, but their seconds may change.
fn tolerations_kept(old: &Value, new: &Value, causes: &mut Causes) {
    let all = |pod: &Value| -> Vec<Value> {
        let mut list = array_at(pod, "/spec/tolerations").to_vec();
        for fields in list.iter_mut().filter_map(Value::as_object_mut) {
            fields.remove("tolerationSeconds");
        }
        list
    };
    let (old, kept) = (all(old), all(new));
    let field = "spec.tolerations";
    if old.iter().all(|toleration| kept.contains(toleration)) {
        for (i, one) in array_at(new, "/spec/tolerations").iter().enumerate() {
            rules::check("Toleration", one, &format!("{field}[{i}]"), causes);
        }
    } else {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        causes.push(Cause::forbidden(field, detail));
    }
}

/// The spec without the mutable fields.
fn frozen(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("activeDeadlineSeconds");
        fields.remove("schedulingGates");
        fields.remove("tolerations");
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(fields) = container.as_object_mut() {
                fields.remove("image");
            }
        }
    }
    spec
}

/// The status of an update: condition types, addresses, and ended containers must not run again.
pub(super) fn check_status(old: &Value, new: &Value, causes: &mut Causes) {
    for (i, condition) in array_at(new, "/status/conditions").iter().enumerate() {
        let name = text_at(condition, "/type");
        let field = format!("status.conditions[{i}].Type");
        push_invalid(causes, &field, name, names::qualified_name(name));
    }
    let policy = text_at(old, "/spec/restartPolicy");
    for list in ["containerStatuses", "initContainerStatuses"] {
        let of = |pod| array_at(pod, &format!("/status/{list}"));
        for (i, was) in of(old).iter().enumerate() {
            let Some(end) = was.pointer("/state/terminated") else { continue };
            if policy == "Always" || policy == "OnFailure" && end["exitCode"] != 0 {
                continue;
            }
            let again = |is: &&Value| {
                is["name"] == was["name"] && is.pointer("/state/terminated").is_none()
            };
            for _ in of(new).iter().filter(again) {
                let field = format!("status.{list}[{i}].state");
                let detail = "may not be transitioned to non-terminated state";
                causes.push(Cause::forbidden(field, detail));
            }
        }
    }
    for (i, ip) in array_at(new, "/status/podIPs").iter().enumerate() {
        let ip = text_at(ip, "/ip");
        push_invalid(causes, &format!("status.podIPs[{i}]"), ip, names::ip(ip));
    }
}
