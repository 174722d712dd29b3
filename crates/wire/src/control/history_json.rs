//! JSON of `GET /v1/history`, which the page shows. Times are milliseconds since the start of the process.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::control::status_json::{GroupJson, OutageJson, RunNames, group_json, outage_json};
use crate::k8s::usage::PodUsage;
use crate::time::{self, Epoch};
use posse_base::time::Millis;
use posse_core::model::status::{GroupStatus, Status};
use posse_core::model::waiting::Waiting;

/// The whole answer.
#[derive(Debug, Serialize)]
pub struct HistoryJson<'a> {
    pub run: &'a str,
    pub app: &'a str,
    pub instance: &'a str,
    pub namespace: &'a str,
    /// A pod's name is this prefix followed by the executor's id.
    pub pod_prefix: &'a str,
    /// The start of the process, milliseconds since 1970.
    pub start: u64,
    pub now: u64,
    /// To be sent as `since` with the next request.
    pub version: u64,
    /// The number of the newest event.
    pub newest_event: u64,
    pub groups: Vec<GroupView>,
    pub avoided_nodes: BTreeMap<&'a str, String>,
    pub outage: Option<OutageJson>,
    /// The URL of the driver's own page, or `:PORT` on the host of this one.
    pub driver_page: Option<String>,
    /// Those that changed after the version `since`.
    pub executors: Vec<RecordJson<'a>>,
    /// What executors use, by id; empty without a metrics API.
    pub usage: BTreeMap<u64, UsageJson>,
    /// All executors that have ended.
    pub ended: u64,
    /// How many of them are kept at most.
    pub ended_kept: usize,
    /// Those that changed after the version `since`.
    pub samples: Vec<SampleJson>,
}

/// A group as in the status, and what it waits for in words.
#[derive(Debug, Serialize)]
pub struct GroupView {
    #[serde(flatten)]
    group: GroupJson,
    waits_for: Option<&'static str>,
    explanation: Option<&'static str>,
}

/// One executor from its request to its end.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct RecordJson<'a> {
    pub id: u64,
    pub group: &'a str,
    /// Before its end.
    pub state: &'static str,
    /// When it entered this state.
    pub since: u64,
    /// None: before this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<&'a EndJson>,
}

/// The end of an executor.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct EndJson {
    pub at: u64,
    /// `lost`, `completed`, `deleted` or `gone`.
    pub how: &'static str,
    /// The reason of a loss, or the cause of a delete.
    pub reason: &'static str,
    pub budget: Option<&'static str>,
    pub exit_code: Option<i32>,
    pub message: Box<str>,
}

/// What an executor uses.
#[derive(Debug, Serialize)]
pub struct UsageJson {
    /// Thousandths of a CPU.
    cpu_milli: u64,
    /// Bytes.
    memory: u64,
}

/// The target and the executors at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SampleJson {
    pub at: u64,
    pub target: u64,
    pub running: u32,
    pub starting: u32,
}

impl<'a> HistoryJson<'a> {
    /// The part that does not come from the history.
    pub fn new(names: &'a RunNames, status: &'a Status, now: Millis, epoch: Epoch) -> Self {
        let view = |group: &GroupStatus| {
            let words = group.waiting.map(Waiting::describe);
            GroupView {
                group: group_json(group, epoch),
                waits_for: words.map(|(what, _)| what),
                explanation: words.map(|(_, why)| why).filter(|why| !why.is_empty()),
            }
        };
        Self {
            run: &names.run,
            app: &names.app,
            instance: &names.instance,
            namespace: &names.namespace,
            pod_prefix: &status.pod_prefix,
            start: time::unix_ms(epoch.0),
            now: now.0,
            version: 0,
            newest_event: 0,
            groups: status.groups.iter().map(view).collect(),
            avoided_nodes: (status.avoided_nodes.iter())
                .map(|(node, until)| (node.as_str(), epoch.rfc3339(*until)))
                .collect(),
            driver_page: None,
            outage: status.outage.as_ref().map(|outage| outage_json(outage, epoch)),
            executors: Vec::new(),
            usage: BTreeMap::new(),
            ended: 0,
            ended_kept: 0,
            samples: Vec::new(),
        }
    }

    pub fn add_usage(&mut self, usage: &[PodUsage]) {
        let of_pod = |one: &PodUsage| {
            let id = one.pod.strip_prefix(self.pod_prefix)?.parse().ok()?;
            Some((id, UsageJson { cpu_milli: one.cpu_milli, memory: one.memory_bytes }))
        };
        self.usage = usage.iter().filter_map(of_pod).collect();
    }

    /// The answer's body.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers can be written to memory")
    }
}
