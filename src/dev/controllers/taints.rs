//! Owns the taint manager: pods that do not tolerate what their node is tainted with are deleted,
//! at once or when their patience is over.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::core::model::time::Millis;
use crate::dev::schema::kind::{Key, Kind};
use crate::dev::storage::State;
use crate::dev::storage::deletion::DeleteOptions;
use crate::dev::storage::events::{Note, record};
use crate::dev::storage::object::{Object, array_at, text_at};
use crate::dev::storage::pods::set_condition;

/// The pods that tolerate their node's taints for a while only.
#[derive(Debug, Default)]
pub(super) struct Taints {
    patient: BTreeMap<Key, Patient>,
}

#[derive(Debug)]
struct Patient {
    uid: Box<str>,
    since: Millis,
}

/// How long a pod may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    ForEver,
    Ms(u64),
}

impl Taints {
    /// Looks at the pods of nodes with these NoExecute taints; when to come again.
    pub(super) fn run(
        &mut self,
        state: &mut State,
        tainted: &BTreeMap<String, Vec<Value>>,
        now: Millis,
    ) -> Option<Millis> {
        let before = std::mem::take(&mut self.patient);
        if tainted.is_empty() && before.is_empty() {
            return None;
        }
        let pods: Vec<_> = state.store.objects(Kind::Pod, "").cloned().collect();
        let mut next = None;
        for pod in pods.iter().filter(|pod| !pod.deleting) {
            let known = before.get(&pod.key).filter(|known| known.uid == pod.uid);
            let patience = tainted.get(pod.node()).map_or(Patience::ForEver, |taints| {
                patience(array_at(&pod.value(), "/spec/tolerations"), taints)
            });
            let Patience::Ms(ms) = patience else {
                if known.is_some() {
                    say(state, pod, "Cancelling deletion of Pod");
                }
                continue;
            };
            let since = known.map_or(now, |known| known.since);
            let due = since.after(ms);
            if due <= now {
                evict(state, pod);
                continue;
            }
            self.patient.insert(pod.key.clone(), Patient { uid: pod.uid.clone(), since });
            next = next.into_iter().chain([due]).min();
        }
        next
    }
}

fn say(state: &mut State, pod: &Object, what: &str) {
    let message = format!("{what} {}/{}", pod.key.namespace, pod.key.name);
    let note = Note {
        reason: "TaintManagerEviction",
        message: &message,
        component: "taint-controller",
        ..Note::default()
    };
    record(state, pod, &note);
}

fn evict(state: &mut State, pod: &Object) {
    say(state, pod, "Marking for deletion Pod");
    let mut value = pod.value();
    let message = "Taint manager: deleting due to NoExecute taint";
    let (now, reason) = (state.now.clone(), "DeletionByTaintManager");
    set_condition(&mut value, "DisruptionTarget", "True", reason, message, &now);
    state.replace(Kind::Pod, value);
    if let Err(refused) = state.delete(&pod.key, &DeleteOptions::default()) {
        log::debug!("{}: {}", pod.key, refused.message);
    }
}

/// How long these tolerations bear all of these taints.
fn patience(tolerations: &[Value], taints: &[Value]) -> Patience {
    let mut shortest = Patience::ForEver;
    for taint in taints {
        let Some(found) = tolerations.iter().find(|toleration| tolerates(toleration, taint)) else {
            return Patience::Ms(0);
        };
        if let Some(seconds) = found.get("tolerationSeconds").and_then(Value::as_i64) {
            let ms = u64::try_from(seconds).unwrap_or_default().saturating_mul(1000);
            shortest = match shortest {
                Patience::Ms(other) => Patience::Ms(other.min(ms)),
                Patience::ForEver => Patience::Ms(ms),
            };
        }
    }
    shortest
}

/// True where one toleration bears one taint.
pub(crate) fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let same = |field: &str| text_at(toleration, field) == text_at(taint, field);
    let unsaid = |field: &str| text_at(toleration, field).is_empty();
    let exists = text_at(toleration, "/operator") == "Exists";
    (unsaid("/effect") || same("/effect"))
        && ((exists && unsaid("/key")) || same("/key"))
        && (exists || same("/value"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patience_follows_from_the_tolerations() {
        let key = "node.kubernetes.io/unreachable";
        let taint = json!({"key": key, "effect": "NoExecute"});
        let other = json!({"key": "a", "value": "b", "effect": "NoExecute"});
        let for_seconds = |seconds: i64| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let all = json!({"operator": "Exists"});
        for (tolerations, taints, want) in [
            (vec![], vec![&taint], Patience::Ms(0)),
            (vec![for_seconds(5)], vec![&taint], Patience::Ms(5000)),
            (vec![for_seconds(-5)], vec![&taint], Patience::Ms(0)),
            (vec![for_seconds(5)], vec![&taint, &other], Patience::Ms(0)),
            (vec![for_seconds(5), all.clone()], vec![&other, &taint], Patience::Ms(5000)),
            (vec![all], vec![&taint, &other], Patience::ForEver),
            (vec![json!({"key": "a", "value": "b"})], vec![&other], Patience::ForEver),
            (vec![json!({"key": "a", "value": "c"})], vec![&other], Patience::Ms(0)),
            (
                vec![json!({"key": key, "operator": "Exists", "effect": "NoSchedule"})],
                vec![&taint],
                Patience::Ms(0),
            ),
        ] {
            let taints: Vec<Value> = taints.into_iter().cloned().collect();
            assert_eq!(patience(&tolerations, &taints), want, "{tolerations:?} {taints:?}");
        }
    }
}
