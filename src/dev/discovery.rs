//! Owns the documents that tell clients what there is: groups, resources, version.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::dev::kind::{Kind, Part};

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
            let groups: Vec<Value> = groups().map(group).collect();
            Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        ["apis", name] if is_group(name) => {
            let mut group = group(name);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            Some(group)
        }
        ["api", "v1"] => Some(resources("v1", resources_of("", "v1"))),
        ["apis", AUTHORIZATION, "v1"] => Some(resources(
            "authorization.k8s.io/v1",
            vec![entry("selfsubjectaccessreviews", "SelfSubjectAccessReview", false, &["create"])],
        )),
        ["apis", name, version] if groups().any(|group| group == *name) => {
            match resources_of(name, version) {
                none if none.is_empty() => None,
                some => Some(resources(&format!("{name}/{version}"), some)),
            }
        }
        _ => None,
    }
}

pub(crate) fn is_group(name: &str) -> bool {
    groups().any(|group| group == name)
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

/// The groups but the core one, by name.
fn groups() -> impl Iterator<Item = &'static str> {
    let stored = Kind::all().map(Kind::group).filter(|group| !group.is_empty());
    let all: BTreeSet<&str> = stored.chain([AUTHORIZATION]).collect();
    all.into_iter()
}

fn resources_of(group: &str, version: &str) -> Vec<Value> {
    Kind::all()
        .filter(|kind| kind.group() == group && kind.versions().contains(&version))
        .flat_map(|kind| [resource(kind)].into_iter().chain(parts(kind)))
        .collect()
}

fn resource(kind: Kind) -> Value {
    let mut entry = entry(kind.plural(), kind.name(), kind.is_namespaced(), kind.verbs());
    if !kind.short().is_empty() {
        entry["shortNames"] = kind.short().into();
    }
    entry
}

fn parts(kind: Kind) -> impl Iterator<Item = Value> {
    kind.parts().iter().map(move |part| {
        let (body, verbs): (&str, &[&str]) = match part {
            Part::Binding => ("Binding", &["create"]),
            Part::Eviction => ("Eviction", &["create"]),
            Part::Log => (kind.name(), &["get"]),
            Part::Token => ("TokenRequest", &["create"]),
            Part::Status | Part::Whole => (kind.name(), &["get", "patch", "update"]),
        };
        let name = format!("{}/{}", kind.plural(), part.word());
        entry(&name, body, kind.is_namespaced(), verbs)
    })
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
