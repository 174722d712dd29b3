//! The endpoint `/posse/faults`: shows and changes the active faults while the cluster runs.

use serde_json::{Map, Value, json};

use crate::apiserver::api::Api;
use crate::faults::{self, Fault, Faults};
use crate::schema::kind::Kind;
use crate::schema::status::StatusError;
use crate::storage::store::{Unavailable, WATCH_HISTORY_EVENTS};
use posse_serve::Request;

/// Handles a request to `PATH`. Returns the active faults, and for how many milliseconds to refuse
/// connections.
pub(crate) fn answer(api: &Api, request: &Request) -> Result<(Value, Option<u64>), StatusError> {
    let body = || {
        serde_json::from_slice::<Map<String, Value>>(&request.body).map_err(|error| {
            format!("the body must be a JSON object of fault names and values: {error}")
        })
    };
    let mut faults = api.faults.in_force();
    let changed = match request.method.as_str() {
        "GET" => return Ok((show(api), None)),
        "DELETE" => {
            faults = Faults::default();
            Ok(())
        }
        "PUT" => {
            faults = Faults::default();
            body().and_then(|body| faults.change(&body))
        }
        "PATCH" => body().and_then(|body| faults.change(&body)),
        _ => return Err(StatusError::method_not_allowed()),
    };
    let refuse = changed.and_then(|()| apply(api, faults)).map_err(StatusError::bad_request)?;
    Ok((show(api), refuse))
}

/// Activates faults. Returns for how many milliseconds to refuse connections.
pub(crate) fn apply(api: &Api, mut faults: Faults) -> Result<Option<u64>, String> {
    let mut state = api.lock();
    check_nodes(&faults, |name| {
        state.store.objects(Kind::Node, "").any(|node| node.key.name == name)
    })?;
    if let Some(version) = faults.number(Fault::Restore) {
        state.store.restore(version).map_err(|unavailable| {
            let why = match unavailable {
                Unavailable::Compacted(oldest) => {
                    format!("the oldest version in the history is {oldest}")
                }
                Unavailable::Future => format!("the current version is {}", state.store.version()),
            };
            format!("fault {}={version}: {why}", Fault::Restore.name())
        })?;
    }
    let history_max = faults.number(Fault::Compact).map(usize::try_from);
    state.store.keep(history_max.map_or(WATCH_HISTORY_EVENTS, |max| max.unwrap_or(usize::MAX)));
    let refuse = faults.number(Fault::Refuse);
    faults.remove_once();
    api.faults.replace(faults);
    // Watches and nodes have to check whether a fault concerns them.
    state.store.wake_all();
    Ok(refuse)
}

fn check_nodes(faults: &Faults, exists: impl Fn(&str) -> bool) -> Result<(), String> {
    let lost = faults.text(Fault::NodeLoss);
    let name = Fault::NodeLoss.name();
    match lost.split(',').map(str::trim).find(|node| !node.is_empty() && !exists(node)) {
        Some(node) => Err(format!("fault {name}={lost}: there is no node {node}")),
        None => Ok(()),
    }
}

/// The active faults, all known faults and the range of the history.
fn show(api: &Api) -> Value {
    let state = api.lock();
    json!({
        "faults": api.faults.in_force().to_json(),
        "known": faults::known(),
        "history": { "oldest": state.store.oldest(), "now": state.store.version() },
    })
}
