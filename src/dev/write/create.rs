//! Owns the way of a new object: what only the server sets, admission, defaults, checks, storing.

use serde_json::{Value, json};

use super::{check_media_type, refuse_invalid, whole};
use crate::dev::admit;
use crate::dev::api::{Answer, Api};
use crate::dev::decode;
use crate::dev::defaults;
use crate::dev::kind::{Key, Kind};
use crate::dev::object::{metadata_mut, object_mut, set_type, text_at};
use crate::dev::options;
use crate::dev::refused::Refused;
use crate::dev::state::State;
use crate::dev::validate;
use crate::serve::Request;

/// A generated name's base is cut so that name and suffix fit a label.
const GENERATE_NAME_CHARS_MAX: usize = 58;

pub(crate) fn create(
    api: &Api,
    request: &Request,
    kind: Kind,
    namespace: &str,
) -> Result<Answer, Refused> {
    let dry_run = options::dry_run(request, "CreateOptions")?;
    if kind == Kind::Pod && api.fault_strikes(api.faults.create_429_percent) {
        return Err(Refused::too_many_requests());
    }
    check_media_type(request)?;
    let mut value = decode::object(kind, &request.body)?;
    check_namespace(&mut value, namespace)?;
    let mut state = api.lock();
    let wants_version = !text_at(&value, "/metadata/resourceVersion").is_empty();
    complete(&mut state, kind, &mut value);
    let name = text_at(&value, "/metadata/name").to_owned();
    admit_namespace(&state, kind, &name, namespace)?;
    fill_in(&state, kind, &name, namespace, &mut value)?;
    refuse_invalid(kind, &name, &validate::create(kind, &value))?;
    let charges = admit::check(&state, kind, None, &value, (namespace, &name))?;
    if kind == Kind::Pod {
        admit_quota(api, &state, &name, namespace)?;
    }
    if wants_version {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(Refused::internal(message));
    }
    if let Some(present) = state.store.get(&Key::new(kind, namespace, &name)) {
        return Err(Refused::already_exists(kind, &name, present.deleting));
    }
    set_type(&mut value, kind);
    if dry_run {
        return Ok(Answer::json(201, &value));
    }
    let object = state.create(kind, value);
    charges.settle(&mut state);
    drop(state);
    if kind == Kind::Pod && api.fault_strikes(api.faults.create_500_after_percent) {
        return Err(Refused::internal("etcdserver: request timed out"));
    }
    Ok(whole(201, &object))
}

fn check_namespace(value: &mut Value, namespace: &str) -> Result<(), Refused> {
    match text_at(value, "/metadata/namespace") {
        "" => {}
        given if given == namespace => {}
        _ => {
            return Err(Refused::bad_request(
                "the namespace of the provided object does not match the namespace sent on the \
                 request",
            ));
        }
    }
    if !namespace.is_empty() {
        metadata_mut(value).insert("namespace".to_owned(), namespace.into());
    }
    Ok(())
}

/// Sets what only the server sets, whatever the client wrote there.
fn complete(state: &mut State, kind: Kind, value: &mut Value) {
    let base = text_at(value, "/metadata/generateName").to_owned();
    let named = !text_at(value, "/metadata/name").is_empty();
    let uid = state.new_uid();
    let generated: String = base.chars().take(GENERATE_NAME_CHARS_MAX).collect();
    let generated = generated + &state.new_suffix();
    let metadata = metadata_mut(value);
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "selfLink"]
    {
        metadata.remove(field);
    }
    if !named && !base.is_empty() {
        metadata.insert("name".to_owned(), generated.into());
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), state.now.clone().into());
    if kind == Kind::Namespace {
        object_mut(value, "spec").insert("finalizers".to_owned(), json!(["kubernetes"]));
        object_mut(value, "status").insert("phase".to_owned(), "Active".into());
    }
}

fn admit_namespace(state: &State, kind: Kind, name: &str, namespace: &str) -> Result<(), Refused> {
    if !kind.is_namespaced() {
        return Ok(());
    }
    match state.store.get(&Key::new(Kind::Namespace, "", namespace)) {
        None => Err(Refused::not_found(Kind::Namespace, namespace)),
        Some(object) if object.deleting => {
            Err(Refused::namespace_terminating(kind, name, namespace))
        }
        Some(_) => Ok(()),
    }
}

/// Defaults and admission of a new object.
fn fill_in(
    state: &State,
    kind: Kind,
    name: &str,
    namespace: &str,
    value: &mut Value,
) -> Result<(), Refused> {
    if kind == Kind::Pod {
        defaults::pod(value);
    }
    admit::mutate(state, kind, namespace, name, value)?;
    if kind != Kind::Pod {
        return Ok(());
    }
    let priority = match text_at(value, "/spec/priorityClassName") {
        "" => 0,
        "system-cluster-critical" => 2_000_000_000_i64,
        "system-node-critical" => 2_000_001_000,
        other => {
            let detail = format!("no PriorityClass with name {other} was found");
            return Err(Refused::forbidden(kind, name, &detail));
        }
    };
    object_mut(value, "spec").insert("priority".to_owned(), priority.into());
    Ok(())
}

/// The quota counts before the name is looked up, so that a full one hides an AlreadyExists.
fn admit_quota(api: &Api, state: &State, name: &str, namespace: &str) -> Result<(), Refused> {
    let Some(limit) = api.faults.quota_pods else { return Ok(()) };
    let used = state.store.objects(Kind::Pod, namespace).filter(|pod| !pod.is_terminal()).count();
    if u64::try_from(used).unwrap_or(u64::MAX) < limit {
        return Ok(());
    }
    let detail =
        format!("exceeded quota: dev, requested: pods=1, used: pods={used}, limited: pods={limit}");
    Err(Refused::forbidden(Kind::Pod, name, &detail))
}
