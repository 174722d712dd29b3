//! Parses paths: which resource, object or document a request addresses.

use percent_encoding::percent_decode_str;

use crate::apiserver::discovery;
use crate::schema;
use crate::schema::kind::{Key, Kind, Subresource};
use crate::schema::reviews::{REVIEWS, Review};
use crate::schema::status::StatusError;

/// A server that answers is healthy.
const HEALTH: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// What a path addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// A static document: discovery, version.
    Document,
    Health,
    OpenApi,
    Review(&'static Review),
    /// An unknown path, or an API group that is not served.
    Nowhere,
    Resource(Target),
}

/// A collection, an object or a subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    /// The version of the request's path.
    pub(crate) api_version: &'static str,
    /// Empty for cluster-wide resources and for lists over all namespaces.
    pub(crate) namespace: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Subresource,
}

impl Target {
    pub(crate) fn key(&self) -> Option<Key> {
        self.name.as_ref().map(|name| Key::new(self.kind, &self.namespace, name))
    }
}

/// Parses a path.
pub(crate) fn parse(path: &str) -> Result<Route, StatusError> {
    let decoded: Option<Vec<String>> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| percent_decode_str(segment).decode_utf8().ok().map(Into::into))
        .collect();
    let Some(segments) = decoded else { return Err(StatusError::no_such_path()) };
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match segments.as_slice() {
        _ if path.starts_with("//") => Ok(Route::Nowhere),
        _ if HEALTH.contains(&path) => Ok(Route::Health),
        ["openapi", "v2"] => Ok(Route::OpenApi),
        _ if discovery::document(path).is_some() => Ok(Route::Document),
        ["api", "v1", rest @ ..] => resource("v1", rest),
        ["apis", group, ..] if !discovery::is_group(group) => Ok(Route::Nowhere),
        ["apis", group, version, rest @ ..] => resource(&format!("{group}/{version}"), rest),
        ["api" | "apis", ..] => Err(StatusError::no_such_path()),
        _ => Ok(Route::Nowhere),
    }
}

fn review(api_version: &str, segments: &[&str]) -> Option<Route> {
    let [plural] = segments else { return None };
    let mut reviews = REVIEWS.iter();
    let found = |one: &&Review| one.plural == *plural && one.api_version == api_version;
    reviews.find(found).map(Route::Review)
}

fn resource(api_version: &str, segments: &[&str]) -> Result<Route, StatusError> {
    if let Some(review) = review(api_version, segments) {
        return Ok(review);
    }
    let kind = |plural: &str| {
        Kind::all()
            .filter(|kind| kind.plural() == plural)
            .find(|kind| schema::versions(*kind).any(|version| version == api_version))
            .ok_or_else(StatusError::no_such_path)
    };
    let target = |kind: Kind, namespace: &str, name: Option<&str>, subresource: Subresource| {
        let api_version = schema::versions(kind).find(|version| *version == api_version);
        Ok(Route::Resource(Target {
            kind,
            api_version: api_version.ok_or_else(StatusError::no_such_path)?,
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
            subresource,
        }))
    };
    match segments {
        ["namespaces", namespace, plural, rest @ ..]
            if !(api_version == "v1" && rest.is_empty() && *plural == "status") =>
        {
            let kind = kind(plural)?;
            if !kind.is_namespaced() {
                return Err(StatusError::no_such_path());
            }
            match rest {
                [] => target(kind, namespace, None, Subresource::None),
                [name] => target(kind, namespace, Some(name), Subresource::None),
                [name, subresource] => {
                    target(kind, namespace, Some(name), subresource_of(kind, subresource)?)
                }
                _ => Err(StatusError::no_such_path()),
            }
        }
        [plural] => target(kind(plural)?, "", None, Subresource::None),
        [plural, name] => match kind(plural)? {
            kind if kind.is_namespaced() => Err(StatusError::no_such_path()),
            kind => target(kind, "", Some(name), Subresource::None),
        },
        [plural, name, "status"] if !kind(plural)?.is_namespaced() => {
            target(kind(plural)?, "", Some(name), Subresource::Status)
        }
        _ => Err(StatusError::no_such_path()),
    }
}

fn subresource_of(kind: Kind, subresource: &str) -> Result<Subresource, StatusError> {
    let named =
        kind.subresources().iter().copied().find(|known| known.path_segment() == subresource);
    named.ok_or_else(StatusError::no_such_path)
}
