//! Evictions: pod deletes that need the permission of a PodDisruptionBudget.

use serde_json::Value;

use crate::apiserver::answer::{Answer, success};
use crate::apiserver::api::Api;
use crate::apiserver::codec::decode;
use crate::apiserver::options;
use crate::apiserver::selector::LabelSelector;
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use crate::storage::State;
use crate::storage::deletion::DeleteOptions;
use crate::storage::object::{Object, object_mut, text_at};
use crate::storage::pods::{is_ready, set_condition};
use posse_serve::Request;

const EVICTION: &str = "Eviction";
const VERSIONS: [&str; 3] = ["", "policy/v1", "policy/v1beta1"];

/// Answers `POST pods/NAME/eviction`.
pub(crate) fn evict(api: &Api, request: &Request, key: &Key) -> Result<Answer, StatusError> {
    let body = decode::named(EVICTION, &VERSIONS, &request.body)?;
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
    let value = pod.value();
    let pending = text_at(&value, "/status/phase") == "Pending";
    let charged = match pod.is_terminal() || pending || pod.deleting {
        true => None,
        false => check_budget(&state, &pod, &value)?,
    };
    state.delete(key, &DeleteOptions { dry_run: true, ..options.clone() })?;
    if !options.dry_run {
        if let Some(budget) = charged {
            state.replace(Kind::PodDisruptionBudget, budget);
        }
        delete(&mut state, &pod, value, options)?;
    }
    Ok(Answer::json(201, &success(201)))
}

/// The budget as it is after this eviction; `None` if the eviction does not count.
fn check_budget(state: &State, pod: &Object, value: &Value) -> Result<Option<Value>, StatusError> {
    let budgets = state.store.objects(Kind::PodDisruptionBudget, &pod.key.namespace);
    let mut budgets = budgets.map(|budget| budget.value()).filter(|budget| covers(budget, pod));
    let Some(mut budget) = budgets.next() else { return Ok(None) };
    if budgets.next().is_some() {
        let message = "This pod has more than one PodDisruptionBudget, which the eviction \
                       subresource does not support.";
        return Err(StatusError::internal(message));
    }
    let number = |field: &str| {
        let number = budget.pointer(&format!("/status/{field}")).and_then(Value::as_i64);
        number.unwrap_or_default()
    };
    let (desired, healthy) = (number("desiredHealthy"), number("currentHealthy"));
    // An unready pod may go if enough other pods are healthy.
    if !is_ready(value) && healthy >= desired && desired > 0 {
        return Ok(None);
    }
    let name = text_at(&budget, "/metadata/name");
    let generation = budget.pointer("/metadata/generation").and_then(Value::as_i64);
    if number("observedGeneration") < generation.unwrap_or_default() {
        let cause = format!("The disruption budget {name} is still being processed by the server.");
        return Err(StatusError::disruption_budget(&cause));
    }
    let allowed = number("disruptionsAllowed");
    if allowed == 0 {
        let cause = format!(
            "The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        );
        return Err(StatusError::disruption_budget(&cause));
    }
    let status = object_mut(&mut budget, "status");
    status.insert("disruptionsAllowed".to_owned(), (allowed - 1).into());
    let disrupted = object_mut(&mut budget["status"], "disruptedPods");
    disrupted.insert(pod.key.name.clone(), state.now.clone().into());
    Ok(Some(budget))
}

/// Sets the pod's condition DisruptionTarget and deletes the pod.
fn delete(
    state: &mut State,
    pod: &Object,
    mut value: Value,
    options: DeleteOptions,
) -> Result<(), StatusError> {
    if !pod.is_terminal() && !pod.deleting {
        let (reason, message) = ("EvictionByEvictionAPI", "Eviction API: evicting");
        let now = state.now.clone();
        set_condition(&mut value, "DisruptionTarget", "True", reason, message, &now);
        state.replace(Kind::Pod, value);
    }
    // The precondition on the version was checked before the condition created a new version.
    state.delete(&pod.key, &DeleteOptions { version: None, ..options }).map(drop)
}

/// True if the budget's selector selects the pod. A budget without a selector selects none; an
/// empty selector selects all (`policy/v1`).
pub(crate) fn covers(budget: &Value, pod: &Object) -> bool {
    let selector = budget.pointer("/spec/selector").and_then(LabelSelector::of_object);
    selector.is_some_and(|selector| selector.matches(|name| pod.label(name)))
}
