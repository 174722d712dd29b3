//! The endpoint `/posse/faults`: shows and changes the faults while the cluster runs.

use serde_json::{Map, Value, json};

use crate::dev::apiserver::api::Api;
use crate::dev::faults::{self, Fault, Faults};
use crate::dev::schema::kind::Kind;
use crate::dev::schema::status::StatusError;
use crate::dev::storage::store::{Unavailable, WATCH_HISTORY_EVENTS};
use crate::serve::Request;

/// Handles a request to `faults::PATH`. Returns the body, and the milliseconds for which
/// connections are to be refused.
pub(crate) fn answer(api: &Api, request: &Request) -> Result<(Value, Option<u64>), StatusError> {
    let given = || {
        serde_json::from_slice::<Map<String, Value>>(&request.body).map_err(|error| {
            format!("a JSON object of fault names and values is expected: {error}")
        })
    };
    let mut faults = api.faults.in_force();
    let changed = match request.method.as_str() {
        "GET" => return Ok((shown(api), None)),
        "DELETE" => {
            faults = Faults::default();
            Ok(())
        }
        "PUT" => {
            faults = Faults::default();
            given().and_then(|given| faults.change(&given))
        }
        "PATCH" => given().and_then(|given| faults.change(&given)),
        _ => return Err(StatusError::method_not_allowed()),
    };
    let refuse = changed.and_then(|()| apply(api, faults)).map_err(StatusError::bad_request)?;
    Ok((shown(api), refuse))
}

/// Sets the faults. Returns the milliseconds for which connections are to be refused from now on.
pub(crate) fn apply(api: &Api, mut faults: Faults) -> Result<Option<u64>, String> {
    let mut state = api.lock();
    check_nodes(&faults, |name| {
        state.store.objects(Kind::Node, "").any(|node| node.key.name == name)
    })?;
    if let Some(version) = faults.number(Fault::Restore) {
        state.store.restore(version).map_err(|unavailable| {
            let why = match unavailable {
                Unavailable::Compacted(oldest) => format!("the history begins at {oldest}"),
                Unavailable::Future => format!("the version is {}", state.store.version()),
            };
            format!("fault {}={version}: {why}", Fault::Restore.name())
        })?;
    }
    let kept = faults.number(Fault::Compact).map(usize::try_from);
    state.store.keep(kept.map_or(WATCH_HISTORY_EVENTS, |kept| kept.unwrap_or(usize::MAX)));
    let refuse = faults.number(Fault::Refuse);
    faults.remove_once();
    api.faults.replace(faults);
    // All subscribers have to look again: a watch may have to fall silent, a node may be lost.
    state.store.wake_all();
    Ok(refuse)
}

fn check_nodes(faults: &Faults, is_there: impl Fn(&str) -> bool) -> Result<(), String> {
    let lost = faults.text(Fault::NodeLoss);
    let name = Fault::NodeLoss.name();
    match lost.split(',').map(str::trim).find(|node| !node.is_empty() && !is_there(node)) {
        Some(node) => Err(format!("fault {name}={lost}: there is no node {node}")),
        None => Ok(()),
    }
}

fn shown(api: &Api) -> Value {
    let state = api.lock();
    json!({
        "faults": api.faults.in_force().to_json(),
        "known": faults::known(),
        "history": { "oldest": state.store.oldest(), "now": state.store.version() },
    })
}
