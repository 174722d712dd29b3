//! The node lifecycle controller: the conditions of a node that is out of reach become Unknown, the
//! node is tainted and its pods are no longer ready. The pods of a deleted node are deleted. The fault `node-loss` makes a node
//! unreachable.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::taints::Taints;
use crate::apiserver::api::Api;
use crate::faults::Fault;
use crate::schema::kind::{Key, Kind};
use crate::storage::State;
use crate::storage::deletion::DeleteOptions;
use crate::storage::events::{Note, record};
use crate::storage::object::{Object, array_at, array_mut, object_mut, text_at};
use crate::storage::pods::{set_condition, set_taint};
use crate::storage::store::Change;
use posse_base::time::Millis;

/// The real controller's `--node-monitor-grace-period`.
const GRACE_MS: u64 = 40_000;
/// The NoExecute taint follows this part of the grace period after the NoSchedule taint.
const EVICTION_DELAY_DIVISOR: u64 = 8;
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

#[derive(Debug, Default)]
pub(super) struct Nodes {
    lost: BTreeMap<String, LostNode>,
    /// All nodes, and whether changes of their pods matter.
    known: BTreeMap<String, bool>,
    /// Nodes that were deleted, and when.
    gone: BTreeMap<String, Millis>,
    taints: Taints,
    /// The value of the fault `node-loss` at the last run.
    loss: Option<String>,
    dirty: bool,
    due: Option<Millis>,
}

/// A node that is out of reach.
#[derive(Debug)]
struct LostNode {
    since: Millis,
    /// The conditions that it had before they became Unknown. `None` during the grace period.
    conditions: Option<Value>,
}

impl Nodes {
    /// Checks all nodes at the next run.
    pub(super) fn mark_all_dirty(&mut self) {
        self.dirty = true;
    }

    pub(super) fn on_change(&mut self, change: &Change) {
        let kind = change.now.key.kind;
        let node = change.now.node();
        let is_relevant = kind == Kind::Node
            || (kind == Kind::Pod
                && !node.is_empty()
                && self.known.get(node).is_some_and(|is_watched| *is_watched));
        self.dirty |= is_relevant;
    }

    /// Checks the nodes if anything changed or a deadline has passed. Returns when to run again.
    pub(super) fn run(&mut self, api: &Api) -> Option<Millis> {
        let now = api.clock.now();
        let loss = api.faults.text(Fault::NodeLoss);
        let idle = !self.dirty && loss == self.loss && self.due.is_none_or(|due| due > now);
        if !idle {
            self.dirty = false;
            self.loss = loss;
            self.due = self.check_nodes(api, now);
        }
        self.due
    }

    fn check_nodes(&mut self, api: &Api, now: Millis) -> Option<Millis> {
        let grace = api.faults.number(Fault::NodeGrace).unwrap_or(GRACE_MS);
        let mut state = api.lock();
        let nodes: Vec<Arc<Object>> = state.store.objects(Kind::Node, "").cloned().collect();
        let before = std::mem::take(&mut self.known);
        self.known = nodes.iter().map(|node| (node.key.name.clone(), false)).collect();
        let gone = before.into_keys().filter(|name| !self.known.contains_key(name));
        self.gone.extend(gone.map(|name| (name, now)));
        self.lost.retain(|name, _| self.known.contains_key(name));
        let mut due = Vec::new();
        for node in &nodes {
            let name = node.key.name.as_str();
            if api.faults.is_lost(name) {
                let new = LostNode { since: now, conditions: None };
                let lost = self.lost.entry(name.to_owned()).or_insert(new);
                let grace_end = lost.since.after(grace);
                if grace_end > now {
                    due.push(grace_end);
                } else if lost.conditions.is_none() {
                    lost.conditions = Some(mark_unknown(&mut state, node));
                }
            } else if let Some(lost) = self.lost.remove(name) {
                restore_conditions(&mut state, node, lost.conditions);
            }
        }
        due.extend(self.collect_pods(&mut state, now, grace));
        let evict_after = grace + grace / EVICTION_DELAY_DIVISOR;
        let tainted = self.update_taints(&mut state, &nodes, now, evict_after, &mut due);
        due.extend(self.taints.run(&mut state, &tainted, now));
        for name in self.lost.keys().chain(tainted.keys()) {
            self.known.insert(name.clone(), true);
        }
        due.into_iter().min()
    }

    /// Fails and deletes the pods of nodes that were deleted, after the same grace period as that of a
    /// lost node, as the pod garbage collector of kube-controller-manager does. Returns when to run again.
    fn collect_pods(&mut self, state: &mut State, now: Millis, grace: u64) -> Option<Millis> {
        self.gone.retain(|name, _| !self.known.contains_key(name));
        let (over, waiting): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.gone)
            .into_iter()
            .partition(|(_, since)| since.after(grace) <= now);
        self.gone = waiting;
        for node in over.keys() {
            let pods = state.store.objects(Kind::Pod, "").filter(|pod| pod.node() == node);
            for key in pods.map(|pod| pod.key.clone()).collect::<Vec<_>>() {
                fail_and_delete(state, &key);
            }
        }
        self.gone.values().min().map(|since| since.after(grace))
    }

    /// Sets and removes the taints of unreachable nodes. Returns all NoExecute taints by node.
    fn update_taints(
        &self,
        state: &mut State,
        nodes: &[Arc<Object>],
        now: Millis,
        evict_after: u64,
        due: &mut Vec<Millis>,
    ) -> BTreeMap<String, Vec<Value>> {
        let unknown_since = |name: &str| {
            self.lost.get(name).filter(|lost| lost.conditions.is_some()).map(|lost| lost.since)
        };
        // If all nodes are unreachable, the controller itself is probably disconnected, so it
        // evicts no pod (the real controller's full disruption mode).
        let all_unknown = nodes.iter().all(|node| unknown_since(&node.key.name).is_some());
        let mut tainted = BTreeMap::new();
        for node in nodes {
            let evicts = unknown_since(&node.key.name)
                .filter(|_| !all_unknown)
                .map(|at| at.after(evict_after));
            due.extend(evicts.filter(|at| *at > now));
            let Some(node) = state.store.get(&node.key).cloned() else { continue };
            let mut value = node.value();
            let before = value.clone();
            let now_text = state.now.clone();
            set_taint(
                &mut value,
                UNREACHABLE,
                "NoSchedule",
                unknown_since(&node.key.name).is_some(),
                &now_text,
            );
            set_taint(
                &mut value,
                UNREACHABLE,
                "NoExecute",
                evicts.is_some_and(|at| at <= now),
                &now_text,
            );
            if value != before {
                state.replace(Kind::Node, value.clone());
            }
            let taints = array_at(&value, "/spec/taints").iter();
            let taints: Vec<Value> =
                taints.filter(|taint| text_at(taint, "/effect") == "NoExecute").cloned().collect();
            if !taints.is_empty() {
                tainted.insert(node.key.name.clone(), taints);
            }
        }
        tainted
    }
}

/// Sets the conditions of a node to Unknown, because its grace period is over, and its pods to not
/// ready. Returns the conditions that the node had before.
fn mark_unknown(state: &mut State, node: &Object) -> Value {
    let mut value = node.value();
    let now = state.now.clone();
    let before = value.pointer("/status/conditions").cloned().unwrap_or_else(|| json!([]));
    let created = text_at(&value, "/metadata/creationTimestamp").to_owned();
    let list = array_mut(&mut value["status"], "conditions");
    for name in CONDITIONS {
        match list.iter_mut().find(|condition| text_at(condition, "/type") == name) {
            Some(known) => {
                known["status"] = "Unknown".into();
                known["reason"] = "NodeStatusUnknown".into();
                known["message"] = "Kubelet stopped posting node status.".into();
                known["lastTransitionTime"] = now.as_str().into();
            }
            None => list.push(json!({
                "type": name, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": created, "lastTransitionTime": now,
            })),
        }
    }
    state.replace(Kind::Node, value);
    let message = format!("Node {} status is now: NodeNotReady", node.key.name);
    let note = |warning, message| Note {
        warning,
        reason: "NodeNotReady",
        message,
        component: "node-controller",
        ..Note::default()
    };
    record(state, node, &note(false, &message));
    let on_node = state.store.objects(Kind::Pod, "").filter(|pod| pod.node() == node.key.name);
    let pods: Vec<Arc<Object>> = on_node.cloned().collect();
    for pod in pods {
        if mark_not_ready(state, &pod) {
            record(state, &pod, &note(true, "Node is not ready"));
        }
    }
    before
}

fn mark_not_ready(state: &mut State, pod: &Object) -> bool {
    let mut value = pod.value();
    let conditions = value.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    let ready = conditions.into_iter().flatten().find(|condition| {
        text_at(condition, "/type") == "Ready" && text_at(condition, "/status") == "True"
    });
    let Some(ready) = ready else { return false };
    ready["status"] = "False".into();
    ready["lastTransitionTime"] = state.now.as_str().into();
    state.replace(Kind::Pod, value);
    true
}

/// Restores the conditions of a node that is reachable again.
fn restore_conditions(state: &mut State, node: &Object, conditions: Option<Value>) {
    let Some(mut conditions) = conditions else { return };
    let now = state.now.clone();
    for condition in conditions.as_array_mut().into_iter().flatten() {
        for field in ["lastHeartbeatTime", "lastTransitionTime"] {
            condition[field] = now.as_str().into();
        }
    }
    let mut value = node.value();
    object_mut(&mut value, "status").insert("conditions".to_owned(), conditions);
    state.replace(Kind::Node, value);
}

fn fail_and_delete(state: &mut State, key: &Key) {
    let Some(pod) = state.store.get(key).cloned() else { return };
    if !pod.is_terminal() {
        let now = state.now.clone();
        let mut value = pod.value();
        let message = "PodGC: node no longer exists";
        set_condition(&mut value, "DisruptionTarget", "True", "DeletionByPodGC", message, &now);
        object_mut(&mut value, "status").insert("phase".to_owned(), "Failed".into());
        state.replace(Kind::Pod, value);
    }
    let options = DeleteOptions {
        grace_seconds: Some(0),
        uid: Some(pod.uid.to_string()),
        ..Default::default()
    };
    if let Err(refused) = state.delete(key, &options) {
        log::debug!("cannot delete the orphaned pod {key}: {}", refused.message);
    }
}
