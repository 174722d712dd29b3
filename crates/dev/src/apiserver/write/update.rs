//! Updates an object: PUT, and what each update keeps of the old version.

use serde_json::{Value, json};

use super::{check_name, check_namespace, check_size, refuse_invalid};
use crate::apiserver::admission::{self, Charges};
use crate::apiserver::answer::Answer;
use crate::apiserver::api::Api;
use crate::apiserver::codec::decode;
use crate::apiserver::defaults;
use crate::apiserver::options;
use crate::apiserver::strategy;
use crate::apiserver::validate;
use crate::schema::kind::{Key, Kind, Subresource};
use crate::schema::status::StatusError;
use crate::storage::State;
use crate::storage::object::{
    Object, array_at, metadata_mut, next_generation, object_mut, text_at,
};
use posse_serve::Request;

/// A new version of an object or a subresource.
#[derive(Debug)]
pub(super) struct NewVersion {
    pub(super) value: Value,
    pub(super) subresource: Subresource,
    pub(super) dry_run: bool,
}

pub(crate) fn put(
    api: &Api,
    request: &Request,
    key: &Key,
    subresource: Subresource,
) -> Result<Answer, StatusError> {
    let dry_run = options::dry_run(request);
    let value = decode::object(key.kind, &request.body)?;
    check_name(&value, key)?;
    let mut state = api.lock();
    let uid = text_at(&value, "/metadata/uid").to_owned();
    let Some(old) = state.store.get(key).cloned() else {
        return Err(StatusError::not_found(key.kind, &key.name));
    };
    if !uid.is_empty() && uid != *old.uid {
        let detail = format!("the UID is {}, not {uid}", old.uid);
        return Err(StatusError::conflict(key.kind.plural(), key.kind.group(), &key.name, &detail));
    }
    update(&mut state, &old, NewVersion { value, subresource, dry_run })
}

/// Validates and stores a new version of an object.
pub(super) fn update(
    state: &mut State,
    old: &Object,
    change: NewVersion,
) -> Result<Answer, StatusError> {
    let key = &old.key;
    let NewVersion { mut value, subresource, dry_run } = change;
    check_namespace(&value, &key.namespace)?;
    check_version(old, &value)?;
    let before = old.value();
    if subresource == Subresource::Resize {
        strategy::keep_all_but_resources(&before, &mut value);
    }
    metadata_mut(&mut value).remove("managedFields");
    restore_immutable_fields(&before, &mut value, subresource);
    if subresource == Subresource::None {
        strategy::update(key.kind, &before, &mut value);
    }
    const COUNTED: [Kind; 3] = [Kind::Job, Kind::Pod, Kind::PodDisruptionBudget];
    if COUNTED.contains(&key.kind) && before["spec"] != value["spec"] {
        next_generation(&mut value);
    }
    refuse_invalid(key.kind, &key.name, &validate::update(key.kind, subresource, &before, &value))?;
    if key.kind == Kind::Job {
        defaults::take_labels_of_template(&mut value);
    }
    check_size(&value)?;
    let place = (key.namespace.as_str(), key.name.as_str());
    let charges = match subresource == Subresource::None && !old.deleting {
        true => admission::check(state, key.kind, Some(&before), &value, place)?,
        false => Charges::default(),
    };
    if value == before {
        return Ok(Answer::object(200, old));
    }
    if dry_run {
        return Ok(Answer::json(200, &value));
    }
    let released = old.deleting && array_at(&value, "/metadata/finalizers").is_empty();
    let object = state.replace(key.kind, value.clone());
    charges.apply(state);
    // For an object that is removed with its last finalizer the real server shows the old version.
    match released && state.store.get(key).is_none() {
        true => Ok(Answer::json(200, &value)),
        false => Ok(Answer::object(200, &object)),
    }
}

fn check_version(old: &Object, value: &Value) -> Result<(), StatusError> {
    let key = &old.key;
    match text_at(value, "/metadata/resourceVersion") {
        "" | "0" => Ok(()),
        version => match version.parse::<u64>() {
            Ok(version) if version == old.version => Ok(()),
            Ok(_) => Err(StatusError::modified(key.kind, &key.name)),
            Err(_) => Err(StatusError::internal(format!(
                "strconv.ParseUint: parsing {version:?}: invalid syntax"
            ))),
        },
    }
}

/// Restores what an update cannot change: the server's metadata, and the spec or the status.
fn restore_immutable_fields(before: &Value, value: &mut Value, subresource: Subresource) {
    for field in ["kind", "apiVersion"] {
        value[field] = before[field].clone();
    }
    let metadata = metadata_mut(value);
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"] {
        metadata.remove(field);
    }
    for field in [
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
        "generation",
    ] {
        let Some(kept) = before.pointer(&format!("/metadata/{field}")) else { continue };
        // A changed uid is reported by the validation.
        if field != "uid" || !metadata.contains_key(field) {
            metadata.insert(field.to_owned(), kept.clone());
        }
    }
    let other = if subresource == Subresource::Status { "spec" } else { "status" };
    match before.get(other) {
        Some(kept) => value[other] = kept.clone(),
        None => {
            if let Some(members) = value.as_object_mut() {
                members.remove(other);
            }
        }
    }
    if subresource == Subresource::Status {
        complete_status(value);
    }
}

/// Completes `podIPs` from `podIP`, and the times of conditions, with `null` if absent.
fn complete_status(value: &mut Value) {
    let ip = text_at(value, "/status/podIP").to_owned();
    let status = object_mut(value, "status");
    if !ip.is_empty() && !status.contains_key("podIPs") {
        status.insert("podIPs".to_owned(), json!([{ "ip": ip }]));
    }
}
