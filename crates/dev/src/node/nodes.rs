//! The Node objects of the embedded nodes.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use super::report::HOST_IP;
use crate::apiserver::discovery::architecture;
use crate::schema::kind::Kind;
use crate::storage::State;
use crate::storage::object::{Object, array_at, object_mut};
use crate::storage::pods::set_taint;

/// The taint of a cordoned node.
pub(super) const CORDON: &str = "node.kubernetes.io/unschedulable";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const PODS: &str = "110";
/// A simulated node has room for everything: cores, memory, pods.
const SIMULATED: [&str; 3] = ["100000", "1Pi", "100000"];

/// The nodes that this process runs.
#[derive(Debug)]
pub(super) struct Nodes {
    names: Vec<String>,
    /// The nodes whose objects exist.
    alive: BTreeSet<String>,
    capacity: Value,
}

impl Nodes {
    pub(super) fn new(n_nodes: u32, simulate: bool) -> Self {
        let names: Vec<String> = (0..n_nodes).map(|number| format!("dev-node-{number}")).collect();
        let [cpu, memory, pods] = match simulate {
            true => SIMULATED.map(str::to_owned),
            false => machine(),
        };
        let capacity = json!({ "cpu": cpu, "memory": memory, "pods": pods });
        Self { alive: names.iter().cloned().collect(), names, capacity }
    }

    /// Creates the Node objects.
    pub(super) fn register(&self, state: &mut State) {
        for name in &self.names {
            let mut node = json!({
                "metadata": { "labels": labels(name) },
                "spec": {},
            });
            self.set_status(name, &mut node, &state.now);
            state.ensure(Kind::Node, "", name, node);
        }
    }

    fn set_status(&self, name: &str, node: &mut Value, now: &str) {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| {
            json!({
                "type": kind, "status": status, "lastHeartbeatTime": now,
                "lastTransitionTime": now, "reason": reason, "message": message,
            })
        };
        let has = |what: &str| format!("kubelet has {what} available");
        let version = concat!("posse-", env!("CARGO_PKG_VERSION"));
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        node["status"] = json!({
            "addresses": [
                { "type": "InternalIP", "address": HOST_IP },
                { "type": "Hostname", "address": name },
            ],
            "capacity": self.capacity,
            "allocatable": self.capacity,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory",
                    &has("sufficient memory")),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure",
                    "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID",
                    &has("sufficient PID")),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ],
            "nodeInfo": {
                "kubeletVersion": version,
                "kubeProxyVersion": version,
                "containerRuntimeVersion": version.replace('-', "://"),
                "kernelVersion": kernel,
                "osImage": "processes of this machine",
                "operatingSystem": "linux",
                "architecture": architecture(),
                "machineID": "", "systemUUID": "", "bootID": "",
            },
        });
    }

    /// True if this process runs the pods of that node.
    pub(super) fn serves(&self, node: &str) -> bool {
        self.alive.contains(node)
    }

    /// Updates the set of existing nodes and maintains their taints. A node that a client created
    /// under one of our names is ours.
    pub(super) fn sync(&mut self, state: &mut State, nodes: &[Arc<Object>]) {
        let exists = |name: &&String| nodes.iter().any(|node| node.key.name == **name);
        self.alive = self.names.iter().filter(exists).cloned().collect();
        for node in nodes {
            let mut value = node.value();
            let name = &node.key.name;
            let cordoned = value.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
            if set_taint(&mut value, CORDON, "NoSchedule", cordoned, &state.now) {
                state.replace(Kind::Node, value.clone());
            }
            if self.alive.contains(name) && array_at(&value, "/status/conditions").is_empty() {
                let defaults = labels(name);
                let present = object_mut(&mut value["metadata"], "labels");
                for (label, text) in defaults.as_object().into_iter().flatten() {
                    present.entry(label.clone()).or_insert_with(|| text.clone());
                }
                self.set_status(name, &mut value, &state.now);
                // Admission adds this taint to new nodes; the node lifecycle controller removes it
                // when they are ready.
                set_taint(&mut value, NOT_READY, "NoSchedule", false, "");
                state.replace(Kind::Node, value);
            }
        }
    }
}

fn labels(name: &str) -> Value {
    json!({
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture(),
    })
}

/// The capacity of this machine: cores, memory, pods.
fn machine() -> [String; 3] {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let memory = total.and_then(|total| total.trim().strip_suffix(" kB"));
    // If the memory size is unknown, do not limit it.
    let memory =
        memory.map_or_else(|| SIMULATED[1].to_owned(), |kilobytes| format!("{kilobytes}Ki"));
    [cores.to_string(), memory, PODS.to_owned()]
}
