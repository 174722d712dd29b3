//! Creates an object: fields of the server, admission, defaults, validation, storage.

use serde_json::Value;

use super::{check_namespace, check_size, refuse_invalid};
use crate::apiserver::admission;
use crate::apiserver::answer::Answer;
use crate::apiserver::api::Api;
use crate::apiserver::codec::decode;
use crate::apiserver::defaults;
use crate::apiserver::options;
use crate::apiserver::strategy;
use crate::apiserver::validate;
use crate::faults::Fault;
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use crate::storage::State;
use crate::storage::object::{metadata_mut, set_type, text_at};
use posse_serve::Request;

/// The prefix is cut so that the generated name fits into a label.
const GENERATE_NAME_CHARS_MAX: usize = 58;

/// How often a generated name that exists is generated again.
const GENERATE_NAME_TRIES: u32 = 8;

pub(crate) fn create(
    api: &Api,
    request: &Request,
    kind: Kind,
    namespace: &str,
) -> Result<Answer, StatusError> {
    let dry_run = options::dry_run(request);
    let mut value = decode::object(kind, &request.body)?;
    if kind == Kind::Pod {
        api.faults.strip_labels(&mut value);
    }
    insert(api, &mut api.lock(), (kind, namespace), value, dry_run)
}

/// Stores a new object.
pub(super) fn insert(
    api: &Api,
    state: &mut State,
    (kind, namespace): (Kind, &str),
    mut value: Value,
    dry_run: bool,
) -> Result<Answer, StatusError> {
    check_namespace(&value, namespace)?;
    if !namespace.is_empty() {
        metadata_mut(&mut value).insert("namespace".to_owned(), namespace.into());
    }
    // As in Go, where 0 and what is not a number are no version.
    let version = text_at(&value, "/metadata/resourceVersion").parse::<u64>();
    let wants_version = version.is_ok_and(|version| version > 0);
    set_server_fields(state, kind, namespace, &mut value);
    let name = text_at(&value, "/metadata/name").to_owned();
    admit_namespace(state, kind, &name, namespace)?;
    admission::mutate(state, kind, namespace, &name, &mut value)?;
    strategy::admit(kind, &name, &mut value)?;
    strategy::create(kind, &mut value, &state.now);
    refuse_invalid(kind, &name, &validate::create(kind, &value))?;
    if kind == Kind::Job {
        defaults::take_labels_of_template(&mut value);
    }
    let charges = admission::check(state, kind, None, &value, (namespace, &name))?;
    if kind == Kind::Pod {
        admit_quota(api, state, &name, namespace)?;
    }
    if wants_version {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(StatusError::internal(message));
    }
    if let Some(present) = state.store.get(&Key::new(kind, namespace, &name)) {
        return Err(StatusError::already_exists(kind, &name, present.deleting));
    }
    check_size(&value)?;
    set_type(&mut value, kind);
    if dry_run {
        return Ok(Answer::json(201, &value));
    }
    let object = state.create(kind, value);
    charges.apply(state);
    Ok(Answer::object(201, &object))
}

/// Sets the fields of the server, whatever the client sent.
fn set_server_fields(state: &mut State, kind: Kind, namespace: &str, value: &mut Value) {
    let base = text_at(value, "/metadata/generateName").to_owned();
    let named = !text_at(value, "/metadata/name").is_empty();
    let uid = state.new_uid();
    let generated = generate_name(state, kind, namespace, &base);
    let metadata = metadata_mut(value);
    for field in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "resourceVersion",
        "selfLink",
    ] {
        metadata.remove(field);
    }
    if !named && !base.is_empty() {
        metadata.insert("name".to_owned(), generated.into());
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), state.now.clone().into());
}

/// A name with this prefix that is free, unless all attempts fail.
fn generate_name(state: &mut State, kind: Kind, namespace: &str, base: &str) -> String {
    let base: String = base.chars().take(GENERATE_NAME_CHARS_MAX).collect();
    let mut name = String::new();
    for _ in 0..GENERATE_NAME_TRIES {
        name = format!("{base}{}", state.new_suffix());
        if state.store.get(&Key::new(kind, namespace, &name)).is_none() {
            break;
        }
    }
    name
}

fn admit_namespace(
    state: &State,
    kind: Kind,
    name: &str,
    namespace: &str,
) -> Result<(), StatusError> {
    if !kind.is_namespaced() {
        return Ok(());
    }
    match state.store.get(&Key::new(Kind::Namespace, "", namespace)) {
        None => Err(StatusError::not_found(Kind::Namespace, namespace)),
        Some(object) if object.deleting => {
            Err(StatusError::namespace_terminating(kind, name, namespace))
        }
        Some(_) => Ok(()),
    }
}

/// The fault `quota`. It is checked before the name is looked up, so that a full quota hides an
/// AlreadyExists.
fn admit_quota(api: &Api, state: &State, name: &str, namespace: &str) -> Result<(), StatusError> {
    let Some(limit) = api.faults.number(Fault::Quota) else { return Ok(()) };
    let used = state.store.objects(Kind::Pod, namespace).filter(|pod| !pod.is_terminal()).count();
    if u64::try_from(used).unwrap_or(u64::MAX) < limit {
        return Ok(());
    }
    let detail =
        format!("exceeded quota: dev, requested: pods=1, used: pods={used}, limited: pods={limit}");
    Err(StatusError::forbidden(Kind::Pod, name, &detail))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::state;

    #[test]
    fn a_generated_name_that_exists_is_generated_again() {
        let mut state = state();
        let rng = state.rng.clone();
        let first = generate_name(&mut state, Kind::Pod, "n", "g-");
        state.store.put(Kind::Pod, json!({"metadata": {"name": first, "namespace": "n"}}));
        state.rng = rng;
        let next = generate_name(&mut state, Kind::Pod, "n", "g-");
        assert!(next.starts_with("g-") && next != first, "{next}");
    }
}
