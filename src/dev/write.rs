//! Owns create, update, patch and binding: the order in which the real server checks, admits and
//! stores.

use serde_json::{Value, json};

use crate::dev::admit::{self, Charges};
use crate::dev::api::{Answer, Api, success};
use crate::dev::decode;
use crate::dev::faults::Fault;
use crate::dev::kind::{Key, Kind, Part};
use crate::dev::object::{Object, metadata_mut, object_mut, set_type, text_at};
use crate::dev::options;
use crate::dev::prepare;
use crate::dev::refused::{Cause, Refused};
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
    check_media_type(request)?;
    let mut value = decode::object(kind, &request.body)?;
    check_namespace(&mut value, namespace)?;
    if kind == Kind::Pod {
        api.faults.strip_labels(&mut value);
    }
    let mut state = api.lock();
    let wants_version = !text_at(&value, "/metadata/resourceVersion").is_empty();
    complete(&mut state, &mut value);
    let name = text_at(&value, "/metadata/name").to_owned();
    admit_namespace(&state, kind, &name, namespace)?;
    admit::mutate(&state, kind, namespace, &name, &mut value)?;
    prepare::admit(kind, &name, &mut value)?;
    prepare::create(kind, &mut value);
    refuse_invalid(kind, &name, &validate::create(kind, &value))?;
    prepare::allocate(&state, kind, &mut value)?;
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
    Ok(whole(201, &object))
}

fn whole(code: u16, object: &Object) -> Answer {
    let mut body = Vec::new();
    object.write_json(&mut body);
    Answer::body(code, body)
}

/// Bodies are JSON.
pub(crate) fn check_media_type(request: &Request) -> Result<(), Refused> {
    let given = request.header("content-type").unwrap_or_default();
    match given.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" => Ok(()),
        _ => Err(Refused::unsupported_media_type()),
    }
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
fn complete(state: &mut State, value: &mut Value) {
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

fn refuse_invalid(kind: Kind, name: &str, causes: &[Cause]) -> Result<(), Refused> {
    match causes {
        [] => Ok(()),
        causes => Err(Refused::invalid(kind, name, causes)),
    }
}

/// The quota counts before the name is looked up, so that a full one hides an AlreadyExists.
fn admit_quota(api: &Api, state: &State, name: &str, namespace: &str) -> Result<(), Refused> {
    let Some(limit) = api.faults.number(Fault::Quota) else { return Ok(()) };
    let used = state.store.objects(Kind::Pod, namespace).filter(|pod| !pod.is_terminal()).count();
    if u64::try_from(used).unwrap_or(u64::MAX) < limit {
        return Ok(());
    }
    let detail =
        format!("exceeded quota: dev, requested: pods=1, used: pods={used}, limited: pods={limit}");
    Err(Refused::forbidden(Kind::Pod, name, &detail))
}

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

fn other_name(name: &str, key: &Key) -> Refused {
    Refused::bad_request(format!(
        "the name of the object ({name}) does not match the name on the URL ({})",
        key.name
    ))
}

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

/// Checks and stores a new version of an object.
fn update(
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
    if part == Part::Whole {
        prepare::update(key.kind, &before, &mut value);
    }
    refuse_invalid(key.kind, &key.name, &validate::update(key.kind, part, &before, &value))?;
    prepare::allocate(state, key.kind, &mut value)?;
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

/// Binds a pod to a node, as a scheduler does.
pub(crate) fn bind(api: &Api, request: &Request, key: &Key) -> Result<Answer, Refused> {
    let body = decode::value(&request.body).map_err(Refused::bad_request)?;
    let node = text_at(&body, "/target/name");
    if node.is_empty() {
        return Err(Refused::internal("target.name: Required value"));
    }
    bind_to(&mut api.lock(), key, node)?;
    Ok(Answer::json(201, &success(201)))
}

/// Binds a pod that is bound to no node yet.
pub(crate) fn bind_to(state: &mut State, key: &Key, node: &str) -> Result<(), Refused> {
    let Some(object) = state.store.get(key).cloned() else {
        return Err(Refused::not_found(key.kind, &key.name));
    };
    let refuse = |detail: &str| Err(Refused::conflict("pods/binding", "", &key.name, detail));
    if !object.node().is_empty() {
        let name = &key.name;
        return refuse(&format!("pod {name} is already assigned to node \"{}\"", object.node()));
    }
    if object.deleting {
        return refuse(&format!("pod {} is being deleted, cannot be assigned to a host", key.name));
    }
    let mut value = object.value();
    object_mut(&mut value, "spec").insert("nodeName".to_owned(), node.into());
    let now = state.now.clone();
    set_condition(&mut value, "PodScheduled", "True", "", "", &now);
    state.replace(Kind::Pod, value);
    Ok(())
}

/// Sets one condition of a pod; its moment moves only when its status does.
pub(crate) fn set_condition(
    pod: &mut Value,
    name: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) {
    let list = object_mut(pod, "status").entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return };
    let at = list.iter().position(|condition| text_at(condition, "/type") == name);
    let since = at
        .and_then(|at| list.get(at))
        .filter(|present| text_at(present, "/status") == status)
        .and_then(|present| present.get("lastTransitionTime").cloned())
        .unwrap_or_else(|| now.into());
    let mut condition = json!({
        "type": name, "status": status, "lastProbeTime": null, "lastTransitionTime": since,
    });
    for (field, text) in [("reason", reason), ("message", message)] {
        if !text.is_empty() {
            condition[field] = text.into();
        }
    }
    match at {
        Some(at) => list[at] = condition,
        None => list.push(condition),
    }
}
