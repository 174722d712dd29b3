//! The taint manager: deletes pods that do not tolerate their node's NoExecute taints, at once or
//! after their `tolerationSeconds`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::schema::kind::{Key, Kind};
use crate::storage::State;
use crate::storage::deletion::DeleteOptions;
use crate::storage::events::{Note, record};
use crate::storage::object::{Object, array_at};
use crate::storage::pods::{set_condition, tolerates};
use posse_base::time::Millis;

/// The pods that tolerate their node's taints for a limited time.
#[derive(Debug, Default)]
pub(super) struct Taints {
    waiting: BTreeMap<Key, WaitingPod>,
}

#[derive(Debug)]
struct WaitingPod {
    uid: Box<str>,
    since: Millis,
}

/// How long a pod may stay on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Toleration {
    ForEver,
    Ms(u64),
}

impl Taints {
    /// Evicts pods of nodes with these NoExecute taints. Returns when to run again.
    pub(super) fn run(
        &mut self,
        state: &mut State,
        tainted: &BTreeMap<String, Vec<Value>>,
        now: Millis,
    ) -> Option<Millis> {
        let before = std::mem::take(&mut self.waiting);
        if tainted.is_empty() && before.is_empty() {
            return None;
        }
        let pods: Vec<_> = state.store.objects(Kind::Pod, "").cloned().collect();
        let mut next = None;
        for pod in pods.iter().filter(|pod| !pod.deleting) {
            let known = before.get(&pod.key).filter(|known| known.uid == pod.uid);
            let tolerated = tainted.get(pod.node()).map_or(Toleration::ForEver, |taints| {
                tolerated_time(array_at(&pod.value(), "/spec/tolerations"), taints)
            });
            let Toleration::Ms(ms) = tolerated else {
                if known.is_some() {
                    record_eviction(state, pod, "Cancelling deletion of Pod");
                }
                continue;
            };
            let since = known.map_or(now, |known| known.since);
            let due = since.after(ms);
            if due <= now {
                evict(state, pod);
                continue;
            }
            self.waiting.insert(pod.key.clone(), WaitingPod { uid: pod.uid.clone(), since });
            next = next.into_iter().chain([due]).min();
        }
        next
    }
}

fn record_eviction(state: &mut State, pod: &Object, what: &str) {
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
    record_eviction(state, pod, "Marking for deletion Pod");
    let mut value = pod.value();
    let message = "Taint manager: deleting due to NoExecute taint";
    let (now, reason) = (state.now.clone(), "DeletionByTaintManager");
    set_condition(&mut value, "DisruptionTarget", "True", reason, message, &now);
    state.replace(Kind::Pod, value);
    if let Err(refused) = state.delete(&pod.key, &DeleteOptions::default()) {
        log::debug!("cannot delete pod {} from its tainted node: {}", pod.key, refused.message);
    }
}

/// How long these tolerations tolerate all of these taints.
fn tolerated_time(tolerations: &[Value], taints: &[Value]) -> Toleration {
    let mut shortest = Toleration::ForEver;
    for taint in taints {
        let Some(toleration) = tolerations.iter().find(|toleration| tolerates(toleration, taint))
        else {
            return Toleration::Ms(0);
        };
        if let Some(seconds) = toleration.get("tolerationSeconds").and_then(Value::as_i64) {
            let ms = u64::try_from(seconds).unwrap_or_default().saturating_mul(1000);
            shortest = match shortest {
                Toleration::Ms(other) => Toleration::Ms(other.min(ms)),
                Toleration::ForEver => Toleration::Ms(ms),
            };
        }
    }
    shortest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tolerated_time_follows_from_the_tolerations() {
        let key = "node.kubernetes.io/unreachable";
        let taint = json!({"key": key, "effect": "NoExecute"});
        let other = json!({"key": "a", "value": "b", "effect": "NoExecute"});
        let for_seconds = |seconds: i64| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let all = json!({"operator": "Exists"});
        for (tolerations, taints, want) in [
            (vec![], vec![&taint], Toleration::Ms(0)),
            (vec![for_seconds(5)], vec![&taint], Toleration::Ms(5000)),
            (vec![for_seconds(-5)], vec![&taint], Toleration::Ms(0)),
            (vec![for_seconds(5)], vec![&taint, &other], Toleration::Ms(0)),
            (vec![for_seconds(5), all.clone()], vec![&other, &taint], Toleration::Ms(5000)),
            (vec![all], vec![&taint, &other], Toleration::ForEver),
            (vec![json!({"key": "a", "value": "b"})], vec![&other], Toleration::ForEver),
            (vec![json!({"key": "a", "value": "c"})], vec![&other], Toleration::Ms(0)),
            (
                vec![json!({"key": key, "operator": "Exists", "effect": "NoSchedule"})],
                vec![&taint],
                Toleration::Ms(0),
            ),
        ] {
            let taints: Vec<Value> = taints.into_iter().cloned().collect();
            assert_eq!(tolerated_time(&tolerations, &taints), want, "{tolerations:?} {taints:?}");
        }
    }
}
