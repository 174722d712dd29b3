//! Owns the choice of a node for a pod, and the nodes' own objects.

use serde_json::{Map, Value, json};

use super::report::HOST_IP;
use crate::dev::controllers::taints::tolerates;
use crate::dev::discovery::architecture;
use crate::dev::kind::{Key, Kind};
use crate::dev::object::{array_at, text_at};
use crate::dev::state::State;
use crate::dev::write::{bind_to, set_condition};

/// Binds pods to nodes in turn.
#[derive(Debug)]
pub(super) struct Scheduler {
    nodes: u32,
    next: u32,
}

/// True where a node is there and what it is tainted with is tolerated.
fn takes_pods(state: &State, node: &str, tolerations: &[Value]) -> bool {
    let Some(node) = state.store.get(&Key::new(Kind::Node, "", node)) else { return false };
    array_at(&node.value(), "/spec/taints").iter().all(|taint| {
        text_at(taint, "/effect") == "PreferNoSchedule"
            || tolerations.iter().any(|toleration| tolerates(toleration, taint))
    })
}

/// The label that every node carries with its name.
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

fn node_name(number: u32) -> String {
    format!("dev-node-{number}")
}

fn node_labels(number: u32) -> Value {
    json!({
        HOSTNAME_LABEL: node_name(number),
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture(),
    })
}

impl Scheduler {
    pub(super) fn new(nodes: u32) -> Self {
        Self { nodes, next: 0 }
    }

    /// Stores the nodes.
    pub(super) fn register(&self, state: &mut State) {
        for number in 0..self.nodes {
            let now = state.now.clone();
            let mut node = json!({
                "metadata": { "labels": node_labels(number) },
                "spec": {},
                "status": {
                    "addresses": [
                        { "type": "InternalIP", "address": HOST_IP },
                        { "type": "Hostname", "address": node_name(number) },
                    ],
                    "capacity": { "pods": "110" },
                    "allocatable": { "pods": "110" },
                    "nodeInfo": {
                        "kubeletVersion": concat!("posse-", env!("CARGO_PKG_VERSION")),
                        "operatingSystem": "linux",
                        "architecture": architecture(),
                    },
                },
            });
            set_condition(&mut node, "Ready", "True", "KubeletReady", "", &now);
            state.ensure(Kind::Node, &node_name(number), node);
        }
    }

    /// True where the node of that name is one of these.
    pub(super) fn has(&self, node: &str) -> bool {
        (0..self.nodes).any(|number| node_name(number) == node)
    }

    /// Binds a pod, or says in its conditions why no node will do.
    pub(super) fn schedule(&mut self, state: &mut State, key: &Key, pod: &mut Value) {
        if text_at(pod, "/spec/schedulerName") != "default-scheduler" {
            return;
        }
        let empty = Map::new();
        let selector =
            pod.pointer("/spec/nodeSelector").and_then(Value::as_object).unwrap_or(&empty);
        let tolerations = array_at(pod, "/spec/tolerations");
        let fits = |number: &u32| {
            let labels = node_labels(*number);
            selector.iter().all(|(key, value)| labels.get(key) == Some(value))
                && takes_pods(state, &node_name(*number), tolerations)
        };
        let turn = (0..self.nodes).map(|step| (self.next + step) % self.nodes).find(fits);
        let Some(number) = turn else {
            let message = format!(
                "0/{0} nodes are available: {0} node(s) didn't match Pod's node \
                 affinity/selector.",
                self.nodes
            );
            let now = state.now.clone();
            let before = pod.clone();
            set_condition(pod, "PodScheduled", "False", "Unschedulable", &message, &now);
            if *pod != before {
                state.replace(Kind::Pod, pod.clone());
            }
            return;
        };
        self.next = (number + 1) % self.nodes;
        if let Err(refused) = bind_to(state, key, &node_name(number)) {
            log::debug!("{key}: {}", refused.message);
        }
    }
}
