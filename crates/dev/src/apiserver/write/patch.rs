//! The verb patch: the media types, and the errors of each.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::create::insert;
use super::update::{NewVersion, update};
use super::{check_name, name_missing};
use crate::apiserver::answer::Answer;
use crate::apiserver::api::Api;
use crate::apiserver::codec::decode;
use crate::apiserver::options;
use crate::apiserver::patch::{json, strategic};
use crate::schema;
use crate::schema::kind::{Key, Subresource};
use crate::schema::status::{Cause, StatusError};
use crate::storage::object::{set_type, text_at};
use posse_serve::Request;

/// The media types of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatchType {
    Apply,
    Json,
    Merge,
    Strategic,
}

impl PatchType {
    fn of(request: &Request) -> Result<Self, StatusError> {
        let given = request.header("content-type").unwrap_or_default();
        match given.split(';').next().unwrap_or_default().trim() {
            "application/apply-patch+yaml" => Ok(Self::Apply),
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            _ => Err(StatusError::unsupported_patch()),
        }
    }
}

pub(crate) fn patch(
    api: &Api,
    request: &Request,
    key: &Key,
    subresource: Subresource,
) -> Result<Answer, StatusError> {
    let media = PatchType::of(request)?;
    let dry_run = options::dry_run(request);
    let mut state = api.lock();
    let old = state.store.get(key).cloned();
    if media == PatchType::Apply && old.is_none() && subresource == Subresource::None {
        // As Spark's client makes the parts of a driver.
        let value = decode::object(key.kind, &request.body)?;
        check_name(&value, key)?;
        return insert(api, &mut state, (key.kind, &key.namespace), value, dry_run);
    }
    let old = old.ok_or_else(|| StatusError::not_found(key.kind, &key.name))?;
    let mut whole = old.value();
    let body = request.body.as_slice();
    let value = match media {
        PatchType::Apply => return Err(StatusError::no_fields_of_managers()),
        PatchType::Json => checked(key, json::apply(&whole, parse(body)?)?)?,
        PatchType::Merge => {
            json_patch::merge(&mut whole, &parse::<Map<String, Value>>(body)?.into());
            checked(key, whole)?
        }
        PatchType::Strategic => {
            let mut value = strategic::apply(schema::of(key.kind), &whole, &parse(body)?)?;
            set_type(&mut value, key.kind);
            decode::patched(key.kind, value)?
        }
    };
    check_name(&value, key)?;
    update(&mut state, &old, NewVersion { value, subresource, dry_run })
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, StatusError> {
    serde_json::from_slice(body)
        .map_err(|error| StatusError::bad_request(format!("error decoding patch: {error}")))
}

/// The result of a patch must be an object of the kind.
fn checked(key: &Key, value: Value) -> Result<Value, StatusError> {
    let kind = key.kind;
    let refuse = |detail: &str| {
        let cause = Cause::invalid("patch", &value.to_string(), detail);
        Err(StatusError::invalid_kind("", "", "", &[cause]))
    };
    if !value.is_object() {
        return refuse("the result is no object");
    }
    let (version, name) = (text_at(&value, "/apiVersion"), text_at(&value, "/kind"));
    if version.is_empty() {
        return Err(name_missing(key));
    }
    if !name.is_empty() && (version != kind.api_version() || name != kind.name()) {
        return refuse(&format!("the result is a {name} of {version}"));
    }
    decode::patched(kind, value)
}
