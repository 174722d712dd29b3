//! The discovery documents: groups, resources and the server's version.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::schema;
use crate::schema::kind::{Kind, Subresource};
use crate::schema::reviews::REVIEWS;

/// A group of which nothing is served: helm, Fabric8 and others look for it before anything else.
const APPS: &str = "apps/v1";

/// The kinds that `kubectl get all` shows.
const ALL: [Kind; 3] = [Kind::Job, Kind::Pod, Kind::Service];

pub(crate) fn document(path: &str) -> Option<Value> {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    match segments.as_slice() {
        ["version"] => Some(version()),
        ["api"] => Some(json!({
            // The official Python client refuses an answer without this list.
            "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []
        })),
        ["apis"] => {
            let groups: Vec<Value> = groups().into_iter().map(group).collect();
            Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        ["apis", name] if is_group(name) => {
            let mut group = group(name);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            Some(group)
        }
        ["api", "v1"] => resources("v1"),
        ["apis", name, version] => resources(&format!("{name}/{version}")),
        _ => None,
    }
}

pub(crate) fn is_group(name: &str) -> bool {
    groups().contains(name)
}

/// The machine's architecture by Kubernetes' names.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn version() -> Value {
    let (major, minor) = schema::VERSION;
    json!({
        "major": major,
        "minor": minor,
        "gitVersion": format!("v{major}.{minor}.0+posse-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("linux/{}", architecture()),
    })
}

/// The versions of all groups except the core group; the preferred version of a group comes first.
fn versions() -> BTreeSet<&'static str> {
    let stored = Kind::all().flat_map(schema::versions).filter(|version| version.contains('/'));
    stored.chain(REVIEWS.iter().map(|review| review.api_version)).chain([APPS]).collect()
}

fn groups() -> BTreeSet<&'static str> {
    versions().into_iter().filter_map(|version| version.split('/').next()).collect()
}

fn group(name: &str) -> Value {
    let of_group = |version: &&str| version.split('/').next() == Some(name);
    let versions: Vec<Value> = versions()
        .into_iter()
        .filter(of_group)
        .map(|version| {
            let short = version.rsplit('/').next();
            json!({ "groupVersion": version, "version": short })
        })
        .collect();
    json!({ "name": name, "versions": versions, "preferredVersion": versions.first() })
}

/// The resources of a version in the order of their names; `None` if the version is unknown.
fn resources(api_version: &str) -> Option<Value> {
    let served = |kind: &Kind| schema::versions(*kind).any(|version| version == api_version);
    let stored = Kind::all().filter(served).flat_map(|kind| {
        let whole = [(kind.plural().to_owned(), resource(kind))];
        // The subresources are the same in each group that serves the kind.
        whole.into_iter().chain(subresources(kind))
    });
    let reviews = REVIEWS.iter().filter(|review| review.api_version == api_version).map(|review| {
        let plural = review.plural.to_owned();
        (plural, entry(review.plural, review.kind, false, &["create"]))
    });
    let mut by_name: Map<String, Value> = stored.chain(reviews).collect();
    if api_version == APPS {
        // kubectl and client-go take a group without resources for a failure.
        let nothing = entry("controllerrevisions", "ControllerRevision", true, &[]);
        by_name.insert("controllerrevisions".to_owned(), nothing);
    }
    let resources: Vec<Value> = by_name.into_iter().map(|(_, entry)| entry).collect();
    if resources.is_empty() {
        return None;
    }
    let mut list = json!({
        "kind": "APIResourceList", "groupVersion": api_version, "resources": resources,
    });
    // kube-apiserver omits `apiVersion` in the core group's list.
    if api_version != "v1" {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

fn resource(kind: Kind) -> Value {
    let mut entry = entry(kind.plural(), kind.name(), kind.is_namespaced(), kind.verbs());
    if !kind.short().is_empty() {
        entry["shortNames"] = kind.short().into();
    }
    if ALL.contains(&kind) {
        entry["categories"] = json!(["all"]);
    }
    entry
}

fn subresources(kind: Kind) -> impl Iterator<Item = (String, Value)> {
    kind.subresources().iter().map(move |subresource| {
        let verbs: &[&str] = match subresource {
            Subresource::Binding | Subresource::Eviction | Subresource::Token => &["create"],
            Subresource::Exec => &["create", "get"],
            Subresource::Log => &["get"],
            Subresource::Resize | Subresource::Status | Subresource::None => {
                &["get", "patch", "update"]
            }
        };
        let name = format!("{}/{}", kind.plural(), subresource.path_segment());
        let body = subresource.body_kind().unwrap_or_else(|| kind.name());
        let mut entry = entry(&name, body, kind.is_namespaced(), verbs);
        // An entry names the group of the posted body if it is not the resource's group.
        let group = match subresource {
            Subresource::Eviction => "policy",
            Subresource::Token => "authentication.k8s.io",
            Subresource::Binding
            | Subresource::Exec
            | Subresource::Log
            | Subresource::Resize
            | Subresource::Status
            | Subresource::None => "",
        };
        if !group.is_empty() {
            entry["group"] = group.into();
            entry["version"] = "v1".into();
        }
        (name, entry)
    })
}

fn entry(name: &str, kind: &str, namespaced: bool, verbs: &[&str]) -> Value {
    json!({
        "name": name,
        "singularName": if name.contains('/') { String::new() } else { kind.to_lowercase() },
        "namespaced": namespaced,
        "kind": kind,
        "verbs": verbs,
    })
}
