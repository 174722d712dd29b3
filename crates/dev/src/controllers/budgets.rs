//! The status of PodDisruptionBudgets: healthy, desired and expected pods, allowed disruptions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::apiserver::evict::covers;
use crate::schema::kind::{Key, Kind};
use crate::storage::State;
use crate::storage::object::{Object, array_at, object_mut, text_at};
use crate::storage::pods::is_ready;
use crate::storage::store::Change;
use crate::time;

/// An evicted pod that still exists after this time counts as not evicted (DeletionTimeout of the
/// real controller).
const EVICTION_SECONDS: i64 = 120;

#[derive(Debug, Default)]
pub(super) struct Budgets {
    dirty: BTreeSet<Key>,
}

impl Budgets {
    pub(super) fn on_change(&mut self, change: &Change, state: &State) {
        let key = &change.now.key;
        if key.kind == Kind::PodDisruptionBudget {
            self.dirty.insert(key.clone());
        } else if key.kind == Kind::Pod {
            let budgets = state.store.objects(Kind::PodDisruptionBudget, &key.namespace);
            self.dirty.extend(budgets.map(|budget| budget.key.clone()));
        }
    }

    /// Updates the status of changed budgets. Returns in how many seconds to run again.
    pub(super) fn run(&mut self, state: &mut State) -> Option<u64> {
        let mut retry_seconds = None;
        for key in std::mem::take(&mut self.dirty) {
            let Some(budget) = state.store.get(&key).cloned() else { continue };
            let before = budget.value();
            let after = with_status(state, &budget, &before);
            if after["status"].get("disruptedPods").is_some() {
                self.dirty.insert(key);
                retry_seconds = u64::try_from(EVICTION_SECONDS).ok();
            }
            if after != before {
                state.replace(Kind::PodDisruptionBudget, after);
            }
        }
        retry_seconds
    }
}

/// The budget with a new status.
fn with_status(state: &State, budget: &Object, value: &Value) -> Value {
    let pods: Vec<_> = state
        .store
        .objects(Kind::Pod, &budget.key.namespace)
        .filter(|pod| covers(value, pod))
        .collect();
    let now = time::seconds(&state.now);
    let mut disrupted = value.pointer("/status/disruptedPods").cloned().unwrap_or_default();
    if let Some(members) = disrupted.as_object_mut() {
        members.retain(|name, since| {
            let since = time::seconds(since.as_str().unwrap_or_default());
            let exists = pods.iter().any(|pod| pod.key.name == *name && !pod.deleting);
            exists && now < since + EVICTION_SECONDS
        });
    }
    let healthy = pods.iter().filter(|pod| {
        !pod.deleting && disrupted.get(&pod.key.name).is_none() && is_ready(&pod.value())
    });
    let (expected, healthy) = (pods.len(), healthy.count());
    let desired = desired(value, expected);
    let allowed = if expected == 0 { 0 } else { healthy.saturating_sub(desired) };
    let mut after = value.clone();
    let status = object_mut(&mut after, "status");
    let generation = value.pointer("/metadata/generation").cloned().unwrap_or_else(|| 1.into());
    status.insert("observedGeneration".to_owned(), generation.clone());
    for (field, number) in [
        ("disruptionsAllowed", allowed),
        ("currentHealthy", healthy),
        ("desiredHealthy", desired),
        ("expectedPods", expected),
    ] {
        status.insert(field.to_owned(), number.into());
    }
    let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
    let holds = if allowed > 0 { "True" } else { "False" };
    let known = array_at(value, "/status/conditions").iter().find(|c| c["status"] == holds);
    let since = known.map_or(state.now.as_str(), |known| text_at(known, "/lastTransitionTime"));
    let condition = json!([{
        "type": "DisruptionAllowed", "status": holds, "reason": reason, "message": "",
        "lastTransitionTime": since, "observedGeneration": generation,
    }]);
    status.insert("conditions".to_owned(), condition);
    status.remove("disruptedPods");
    if disrupted.as_object().is_some_and(|members| !members.is_empty()) {
        status.insert("disruptedPods".to_owned(), disrupted);
    }
    after
}

/// How many pods have to be healthy. Percentages are rounded up.
fn desired(budget: &Value, expected: usize) -> usize {
    let amount = |field: &str| {
        let amount = budget.pointer(&format!("/spec/{field}"))?;
        match amount.as_str().and_then(|text| text.strip_suffix('%')) {
            Some(percent) => {
                percent.parse::<usize>().ok().map(|percent| (percent * expected).div_ceil(100))
            }
            None => amount.as_u64().and_then(|amount| usize::try_from(amount).ok()),
        }
    };
    match amount("maxUnavailable") {
        Some(max_unavailable) => expected.saturating_sub(max_unavailable),
        None => amount("minAvailable").unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn budgets_accept_numbers_and_percentages() {
        for (spec, expected, want) in [
            (json!({ "minAvailable": 2 }), 5, 2),
            (json!({ "minAvailable": "50%" }), 5, 3),
            (json!({ "minAvailable": "100%" }), 5, 5),
            (json!({ "maxUnavailable": 2 }), 5, 3),
            (json!({ "maxUnavailable": "30%" }), 5, 3),
            (json!({ "maxUnavailable": 7 }), 5, 0),
            (json!({}), 5, 1),
        ] {
            assert_eq!(desired(&json!({ "spec": spec }), expected), want, "{spec}");
        }
    }
}
