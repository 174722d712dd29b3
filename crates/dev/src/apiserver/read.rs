//! The verbs get and list, and the choice between list and watch.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use crate::apiserver::answer::Answer;
use crate::apiserver::api::Api;
use crate::apiserver::options::{self, ContinueToken, ListOptions, VersionMatch};
use crate::apiserver::route::Target;
use crate::apiserver::watch::Watch;
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use crate::storage::State;
use crate::storage::object::Object;
use crate::storage::store::Unavailable;
use posse_serve::Request;

/// Answers a GET of a collection: a list or a watch.
pub(crate) fn collection(
    api: &Api,
    request: &Request,
    target: &Target,
) -> Result<Answer, StatusError> {
    let options = ListOptions::parse(target, request)?;
    if options.watch {
        if let (Some(true), VersionMatch::NotOlderThan(version)) =
            (options.initial_events, options.at)
        {
            check_reached(&api.lock(), version)?;
        }
        return Ok(Answer::Watch(Watch::new(target.kind, &target.namespace, options)));
    }
    list(api, target.kind, &target.namespace, &options).map(|body| Answer::body(200, body))
}

/// Answers a GET of one object.
pub(crate) fn object(api: &Api, request: &Request, key: &Key) -> Result<Answer, StatusError> {
    let version = request.query("resourceVersion").unwrap_or_default();
    let version = options::resource_version(version)?.unwrap_or_default();
    let state = api.lock();
    check_reached(&state, version)?;
    match state.store.get(key) {
        Some(object) => Ok(Answer::object(200, object)),
        None => Err(StatusError::not_found(key.kind, &key.name)),
    }
}

fn check_reached(state: &State, version: u64) -> Result<(), StatusError> {
    let current = state.store.version();
    match version > current {
        true => Err(StatusError::too_large_version(version, current)),
        false => Ok(()),
    }
}

fn list(
    api: &Api,
    kind: Kind,
    namespace: &str,
    options: &ListOptions,
) -> Result<Vec<u8>, StatusError> {
    // The lock is held for the selection only: writing ten thousand objects takes a while.
    let (now, (version, all)) = {
        let state = api.lock();
        (state.now.clone(), snapshot(api, &state, kind, namespace, options)?)
    };
    let after = options.page.as_ref().map(|page| page.after.as_str()).unwrap_or_default();
    let position = |object: &Object| match namespace {
        "" => format!("{}/{}", object.key.namespace, object.key.name),
        _ => object.key.name.clone(),
    };
    let start =
        all.partition_point(|object| !after.is_empty() && order(&position(object)) <= order(after));
    let rest = all.get(start..).unwrap_or_default();
    let limit = if options.limit == 0 { usize::MAX } else { options.limit };
    let mut chosen = Vec::new();
    let mut n_seen = 0;
    for object in rest {
        if chosen.len() == limit {
            break;
        }
        n_seen += 1;
        if options.matches(object) {
            chosen.push(Arc::clone(object));
        }
    }
    let remaining = rest.get(n_seen..).unwrap_or_default();
    let more = remaining.iter().any(|object| options.matches(object));
    let token = chosen
        .last()
        .filter(|_| more)
        .map(|last| ContinueToken { version: Some(version), after: position(last) }.encode());
    let n_remaining = (more && options.selects_all()).then_some(remaining.len());
    let metadata = list_metadata(version, token.as_deref(), n_remaining);
    let items = chosen.iter().map(|object| object.value());
    Ok(match options.form.list(kind, &metadata, &now, items) {
        Some(table) => table.to_string().into_bytes(),
        None => list_body(kind, &metadata, &chosen),
    })
}

/// Splits a position into namespace and name. Keys are ordered by namespace, then by name; as one
/// text the slash would sort among the letters.
fn order(position: &str) -> (&str, &str) {
    position.split_once('/').unwrap_or(("", position))
}

/// The version of the list and all its objects.
fn snapshot(
    api: &Api,
    state: &State,
    kind: Kind,
    namespace: &str,
    options: &ListOptions,
) -> Result<(u64, Vec<Arc<Object>>), StatusError> {
    let store = &state.store;
    let exact = match (&options.page, options.at) {
        (Some(page), _) => page.version,
        (None, VersionMatch::Exact(version)) => Some(version),
        (None, VersionMatch::Now) => None,
        (None, VersionMatch::NotOlderThan(version)) => {
            check_reached(state, version)?;
            let stale = api.faults.stale_version(Instant::now());
            stale.map(|stale| stale.clamp(version.max(store.oldest()), store.version()))
        }
    };
    let Some(version) = exact else {
        return Ok((store.version(), store.objects(kind, namespace).cloned().collect()));
    };
    match store.objects_at(kind, namespace, version) {
        Ok(objects) => Ok((version, objects)),
        Err(Unavailable::Future) => Err(StatusError::too_large_version(version, store.version())),
        Err(Unavailable::Compacted(_)) => Err(match &options.page {
            Some(page) => StatusError::page_expired(
                ContinueToken { version: None, after: page.after.clone() }.encode(),
            ),
            None => StatusError::expired("The resourceVersion for the provided list is too old."),
        }),
    }
}

pub(crate) fn list_metadata(
    version: u64,
    token: Option<&str>,
    n_remaining: Option<usize>,
) -> Value {
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if let Some(token) = token {
        metadata["continue"] = token.into();
    }
    if let Some(n_remaining) = n_remaining {
        metadata["remainingItemCount"] = n_remaining.into();
    }
    metadata
}

/// The body of a list, from the JSON texts of its items.
pub(crate) fn list_body(kind: Kind, metadata: &Value, items: &[Arc<Object>]) -> Vec<u8> {
    let head = format!(
        r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
        kind.name(),
        kind.api_version()
    );
    let mut body = head.into_bytes();
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            body.push(b',');
        }
        body.extend_from_slice(item.item_json().as_bytes());
    }
    body.extend_from_slice(b"]}");
    body
}
