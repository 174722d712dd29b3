//! Owns the patch verb: which kind of patch, to what, and its storing.

use serde_json::Value;

use super::other_name;
use super::update::update;
use crate::dev::api::{Answer, Api};
use crate::dev::decode;
use crate::dev::kind::{Key, Part};
use crate::dev::object::text_at;
use crate::dev::options;
use crate::dev::refused::{Cause, Refused};
use crate::serve::Request;

pub(crate) fn patch(
    api: &Api,
    request: &Request,
    key: &Key,
    part: Part,
) -> Result<Answer, Refused> {
    let dry_run = options::dry_run(request, "PatchOptions")?;
    let given = request.header("content-type").unwrap_or_default();
    if given.split(';').next().unwrap_or_default().trim() != "application/merge-patch+json" {
        return Err(Refused::unsupported_patch());
    }
    let patch: Value = serde_json::from_slice(&request.body)
        .map_err(|_| Refused::internal("Invalid JSON Patch"))?;
    if let Err(error) = decode::value(&request.body) {
        let detail = format!("couldn't get version/kind; json parse error: {error}");
        let cause = Cause::invalid("patch", &patch.to_string(), &detail);
        return Err(Refused::invalid_kind("", "", "", &[cause]));
    }
    let mut state = api.lock();
    let Some(old) = state.store.get(key).cloned() else {
        return Err(Refused::not_found(key.kind, &key.name));
    };
    let mut value = old.value();
    decode::merge(&mut value, &patch);
    let value = decode::patched(key.kind, value)?;
    let name = text_at(&value, "/metadata/name");
    if name != key.name {
        return Err(other_name(name, key));
    }
    update(&mut state, &old, value, part, dry_run)
}
