//! Owns the way of a new version of an object: PUT, and what every update keeps of the old one.

use serde_json::{Value, json};

use super::create::create;
use super::{check_media_type, other_name, refuse_invalid, whole};
use crate::dev::admit::{self, Charges};
use crate::dev::api::{Answer, Api};
use crate::dev::decode;
use crate::dev::defaults;
use crate::dev::kind::{Key, Kind, Part};
use crate::dev::object::{Object, metadata_mut, object_mut, text_at};
use crate::dev::options;
use crate::dev::refused::{Cause, Refused};
use crate::dev::state::State;
use crate::dev::validate;
use crate::serve::Request;

pub(crate) fn put(api: &Api, request: &Request, key: &Key, part: Part) -> Result<Answer, Refused> {
    let dry_run = options::dry_run(request, "UpdateOptions")?;
    check_media_type(request)?;
    let value = decode::object(key.kind, &request.body)?;
    let name = text_at(&value, "/metadata/name");
    if name != key.name {
        return Err(other_name(name, key));
    }
    let mut state = api.lock();
    let Some(old) = state.store.get(key).cloned() else {
        // Leases can be created by an update, pods cannot.
        return match (key.kind, part) {
            (Kind::Lease, Part::Whole) => {
                drop(state);
                create_by_put(api, request, key)
            }
            _ => Err(Refused::not_found(key.kind, &key.name)),
        };
    };
    let uid = text_at(&value, "/metadata/uid");
    if !uid.is_empty() && uid != &*old.uid {
        let detail = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{}/{}/{}, ResourceVersion: 0, \
             AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object \
             meta: {}",
            key.kind.plural(),
            key.namespace,
            key.name,
            old.uid
        );
        let kind = key.kind;
        return Err(Refused::conflict(kind.plural(), kind.group(), &key.name, &detail));
    }
    if key.kind == Kind::Lease && text_at(&value, "/metadata/resourceVersion").is_empty() {
        let cause = Cause::invalid_raw(
            "metadata.resourceVersion",
            &"0x0",
            "must be specified for an update",
        );
        let (kind, group) = (key.kind.plural(), key.kind.group());
        return Err(Refused::invalid_kind(kind, group, &key.name, &[cause]));
    }
    update(&mut state, &old, value, part, dry_run)
}

/// The version in the body says nothing about an object that is not there.
fn create_by_put(api: &Api, request: &Request, key: &Key) -> Result<Answer, Refused> {
    let mut value = decode::object(key.kind, &request.body)?;
    metadata_mut(&mut value).remove("resourceVersion");
    let mut request = request.clone();
    request.body = value.to_string().into_bytes();
    create(api, &request, key.kind, &key.namespace)
}

/// Checks and stores a new version of an object.
pub(super) fn update(
    state: &mut State,
    old: &Object,
    mut value: Value,
    part: Part,
    dry_run: bool,
) -> Result<Answer, Refused> {
    let key = &old.key;
    let namespace = text_at(&value, "/metadata/namespace");
    if !namespace.is_empty() && namespace != key.namespace {
        return Err(Refused::bad_request(format!(
            "the namespace of the object ({namespace}) does not match the namespace on the \
             request ({})",
            key.namespace
        )));
    }
    let version = text_at(&value, "/metadata/resourceVersion");
    if !version.is_empty() && version != old.version.to_string() {
        return Err(Refused::modified(key.kind, &key.name));
    }
    let before = old.value();
    keep_what_is_the_servers(&before, &mut value, part);
    if key.kind == Kind::Pod && part == Part::Whole {
        let status = value["status"].clone();
        defaults::pod(&mut value);
        value["status"] = status;
    }
    refuse_invalid(key.kind, &key.name, &validate::update(key.kind, &before, &value))?;
    let place = (key.namespace.as_str(), key.name.as_str());
    let charges = match part {
        Part::Whole if !old.deleting => {
            admit::check(state, key.kind, Some(&before), &value, place)?
        }
        Part::Whole | Part::Binding | Part::Eviction | Part::Log | Part::Status | Part::Token => {
            Charges::default()
        }
    };
    if dry_run || value == before {
        return Ok(Answer::json(200, &value));
    }
    let released = value.pointer("/metadata/finalizers").is_none()
        && before.pointer("/metadata/finalizers").is_some()
        && old.deleting;
    let object = state.replace(key.kind, value.clone());
    charges.settle(state);
    // Of one that went with its last finalizer the real server shows the version it had.
    match released {
        true => Ok(Answer::json(200, &value)),
        false => Ok(whole(200, &object)),
    }
}

/// Carries over what an update cannot change: the server's own metadata, and the other part.
fn keep_what_is_the_servers(before: &Value, value: &mut Value, part: Part) {
    for field in ["kind", "apiVersion"] {
        value[field] = before[field].clone();
    }
    let metadata = metadata_mut(value);
    for field in [
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
    ] {
        let Some(kept) = before.pointer(&format!("/metadata/{field}")) else { continue };
        match field {
            // A client that names another one is told so.
            "uid" | "deletionTimestamp" if metadata.contains_key(field) => {}
            _ => {
                metadata.insert(field.to_owned(), kept.clone());
            }
        }
    }
    let other = if part == Part::Status { "spec" } else { "status" };
    match before.get(other) {
        Some(kept) => value[other] = kept.clone(),
        None => {
            if let Some(members) = value.as_object_mut() {
                members.remove(other);
            }
        }
    }
    if part == Part::Status {
        complete_status(value);
    }
}

/// `podIPs` follows `podIP`, and conditions have their moments, if only `null`.
fn complete_status(value: &mut Value) {
    let ip = text_at(value, "/status/podIP").to_owned();
    let status = object_mut(value, "status");
    if !ip.is_empty() && !status.contains_key("podIPs") {
        status.insert("podIPs".to_owned(), json!([{ "ip": ip }]));
    }
    for condition in
        status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten()
    {
        if let Some(members) = condition.as_object_mut() {
            for moment in ["lastProbeTime", "lastTransitionTime"] {
                members.entry(moment).or_insert(Value::Null);
            }
        }
    }
}
