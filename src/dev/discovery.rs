//! Owns the documents that tell clients what there is: groups, resources, version.

use serde_json::{Value, json};

use crate::dev::kind::Kind;

const AUTHORIZATION: &str = "authorization.k8s.io";

/// True where there is a document under a path.
pub(crate) fn has(path: &str) -> bool {
    document(path, "").is_some()
}

/// The paths that lead somewhere.
pub(crate) fn paths() -> Value {
    json!({ "paths": [
        "/api", "/api/v1", "/apis", "/apis/authorization.k8s.io", "/apis/authorization.k8s.io/v1",
        "/apis/coordination.k8s.io", "/apis/coordination.k8s.io/v1", "/healthz", "/livez",
        "/readyz", "/version",
    ]})
}

/// The document under a path.
pub(crate) fn document(path: &str, address: &str) -> Option<Value> {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    match segments.as_slice() {
        [] => Some(paths()),
        ["version"] => Some(version()),
        ["api"] => Some(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [
                { "clientCIDR": "0.0.0.0/0", "serverAddress": address },
            ],
        })),
        ["apis"] => {
            let groups: Vec<Value> =
                [AUTHORIZATION, Kind::Lease.group()].into_iter().map(group).collect();
            Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        ["apis", name] if is_group(name) => {
            let mut group = group(name);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            Some(group)
        }
        ["api", "v1"] => Some(resources("v1", core_resources())),
        ["apis", AUTHORIZATION, "v1"] => Some(resources(
            "authorization.k8s.io/v1",
            vec![entry("selfsubjectaccessreviews", "SelfSubjectAccessReview", false, &["create"])],
        )),
        ["apis", name, "v1"] if *name == Kind::Lease.group() => {
            Some(resources(Kind::Lease.api_version(), vec![resource(Kind::Lease)]))
        }
        _ => None,
    }
}

pub(crate) fn is_group(name: &str) -> bool {
    [AUTHORIZATION, Kind::Lease.group()].contains(&name)
}

/// The machine's architecture as Kubernetes names it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The version of the API that is imitated; clients read major and minor.
fn version() -> Value {
    json!({
        "major": "1",
        "minor": "20",
        "gitVersion": concat!("v1.20.0+posse-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("linux/{}", architecture()),
    })
}

fn group(name: &str) -> Value {
    let version = json!({ "groupVersion": format!("{name}/v1"), "version": "v1" });
    json!({ "name": name, "versions": [version], "preferredVersion": version })
}

fn resources(group_version: &str, resources: Vec<Value>) -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    })
}

fn core_resources() -> Vec<Value> {
    let mut resources: Vec<Value> =
        Kind::ALL.into_iter().filter(|kind| kind.group().is_empty()).map(resource).collect();
    resources.push(entry("pods/binding", "Binding", true, &["create"]));
    resources.push(entry("pods/log", "Pod", true, &["get"]));
    resources.push(entry("pods/status", "Pod", true, &["get", "patch", "update"]));
    resources
}

fn resource(kind: Kind) -> Value {
    let mut entry = entry(kind.plural(), kind.name(), kind.is_namespaced(), kind.verbs());
    let short: &[&str] = match kind {
        Kind::Lease => return entry,
        Kind::Namespace => &["ns"],
        Kind::Node => &["no"],
        Kind::Pod => &["po"],
    };
    entry["shortNames"] = short.into();
    entry
}

fn entry(name: &str, kind: &str, namespaced: bool, verbs: &[&str]) -> Value {
    json!({
        "name": name,
        "singularName": "",
        "namespaced": namespaced,
        "kind": kind,
        "verbs": verbs,
    })
}
