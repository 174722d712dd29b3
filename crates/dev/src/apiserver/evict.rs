//! Evictions: deletes that mark the pod. No PodDisruptionBudget holds them back.

use crate::apiserver::answer::{Answer, success};
use crate::apiserver::api::Api;
use crate::apiserver::codec::decode;
use crate::apiserver::options;
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use crate::storage::deletion::DeleteOptions;
use crate::storage::object::text_at;
use crate::storage::pods::set_condition;
use posse_serve::Request;

/// Answers `POST pods/NAME/eviction`.
pub(crate) fn evict(api: &Api, request: &Request, key: &Key) -> Result<Answer, StatusError> {
    let body = decode::value(&request.body).map_err(StatusError::bad_request)?;
    if text_at(&body, "/metadata/name") != key.name {
        let message = "name in URL does not match name in Eviction object";
        return Err(StatusError::bad_request(message));
    }
    // The delete options are in the body; dryRun may also be in the query.
    let mut inner = Request::default();
    inner.query.clone_from(&request.query);
    if let Some(options) = body.get("deleteOptions").filter(|options| options.is_object()) {
        inner.body = options.to_string().into_bytes();
    }
    let options = options::delete(&inner)?;
    let mut state = api.lock();
    let Some(pod) = state.store.get(key).cloned() else {
        return Err(StatusError::not_found(Kind::Pod, &key.name));
    };
    state.delete(key, &DeleteOptions { dry_run: true, ..options.clone() })?;
    if options.dry_run {
        return Ok(Answer::json(201, &success(201)));
    }
    if !pod.is_terminal() && !pod.deleting {
        let mut value = pod.value();
        let (reason, message) = ("EvictionByEvictionAPI", "Eviction API: evicting");
        let now = state.now.clone();
        set_condition(&mut value, "DisruptionTarget", "True", reason, message, &now);
        state.replace(Kind::Pod, value);
    }
    // The precondition on the version was checked before the condition created a new version.
    state.delete(key, &DeleteOptions { version: None, ..options })?;
    Ok(Answer::json(201, &success(201)))
}
