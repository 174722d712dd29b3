//! JSON of `GET /v1/status`: written by a run, read by `posse status`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Not;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::k8s::takeover::Takeover;
use crate::time::Epoch;
use posse_core::model::status::{
    DriverStatus, ExecutorBlock, ExecutorStatus, GroupStatus, Outage, Status,
};
use posse_core::model::waiting::{Limit, Limits};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunNames {
    /// Random for each process.
    pub run: String,
    pub app: String,
    pub instance: String,
    pub namespace: String,
    /// The version of the run's posse. Empty: the run does not tell it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The URL of the API server. Empty: the run does not tell it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// What `--context` has named, whose user and server are meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// True with `driver.keep_executors: true`.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub keep_executors: bool,
    /// The embedded cluster's kubeconfig, with `posse run --dev`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<String>,
    /// Which pod acts, if others of its Job stand by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<LeaderJson>,
}

/// The pod that has the Lease of a run, and those that wait for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaderJson {
    pub pod: String,
    pub standby: Vec<String>,
    /// How this pod came to it; null: it is the first.
    pub takeover: Option<Takeover>,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusJson {
    #[serde(flatten)]
    pub identity: RunNames,
    /// The newest event that this status surely has: who reads the events behind it misses none. 0: an older posse.
    #[serde(default)]
    pub seq: u64,
    pub groups: Vec<GroupJson>,
    pub executors: Vec<ExecutorJson>,
    /// Nodes that new executors avoid, and until when.
    #[serde(default)]
    pub avoided_nodes: BTreeMap<String, String>,
    /// The API server does not answer.
    pub outage: Option<OutageJson>,
    /// False: tasks end with this process. None: an older posse does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<bool>,
    /// The driver process; null if the run has none, or before its start.
    pub driver: Option<DriverJson>,
}

/// The driver process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverJson {
    /// `running` or `ended`.
    pub state: String,
    /// When it started, or when it ended.
    pub since: String,
    pub pid: u32,
    pub exit_code: Option<u8>,
}

/// Since when the API server does not answer, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutageJson {
    pub since: String,
    pub message: String,
}

/// A group's status as an answer has it, and as a client reads it from a posse of another version: `GroupStatus` in texts,
/// in which later fields may be absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupJson {
    pub group: String,
    pub target: u32,
    /// The target, and one for each task that may run. 0: an older posse, which does not tell it.
    #[serde(default)]
    pub wanted: u32,
    pub min: u32,
    pub max: Option<u32>,
    pub requested: u32,
    pub pending: u32,
    pub running: u32,
    /// Those of the running ones whose pods are ready.
    #[serde(default)]
    pub ready: u32,
    pub draining: u32,
    pub terminating: u32,
    pub failed: u32,
    /// Tasks that have not ended.
    #[serde(default)]
    pub open_tasks: usize,
    /// Tasks that have ended and are remembered.
    #[serde(default)]
    pub ended_tasks: usize,
    /// Losses reported since the start of the run.
    #[serde(default)]
    pub lost: u64,
    /// `any` or `pending`.
    #[serde(default)]
    pub scale_down: String,
    /// The executors whose work is done.
    #[serde(default)]
    pub completed: u32,
    /// How many are to end so; none: the group has no such number.
    pub completions: Option<u32>,
    /// The group's attempt, from 1; none without `on_loss: group`.
    pub attempt: Option<u32>,
    pub waiting: Option<String>,
    /// Since when it waits for that.
    pub since: Option<String>,
    pub until: Option<String>,
    /// The server's message about what delays the group.
    pub message: Option<String>,
    /// How many executors it would create and end if nothing limited that.
    #[serde(default)]
    pub would_create: u32,
    #[serde(default)]
    pub would_end: u32,
    /// All that holds it back, the tightest first.
    #[serde(default)]
    pub limits: Vec<LimitJson>,
}

/// What holds a group back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitJson {
    /// `create`, `end` or `start`.
    pub what: String,
    pub waiting: String,
    /// How many at most, and of how many that are wanted; null for `start`, which limits nothing.
    pub at_most: Option<u32>,
    pub of: Option<u32>,
    pub until: Option<String>,
}

/// One executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorJson {
    pub id: u64,
    pub group: String,
    pub slot: Option<u32>,
    /// The key of the task that it works on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub pod: String,
    pub uid: Option<String>,
    pub state: String,
    /// It runs, and its pod is ready.
    #[serde(default)]
    pub ready: bool,
    pub node: Option<String>,
    pub ip: Option<IpAddr>,
    /// The node's address.
    pub host_ip: Option<IpAddr>,
    pub since: String,
}

impl GroupJson {
    /// How many executors it should have.
    pub fn wanted(&self) -> u32 {
        self.wanted.max(self.target)
    }

    /// How many of them are for tasks.
    pub fn for_tasks(&self) -> u32 {
        self.wanted() - self.target
    }
}

impl StatusJson {
    /// The answer's body.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect(WRITABLE)
    }

    /// Reads an answer. Unknown fields of a newer posse are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

/// Writes statuses as JSON. Encodes only the blocks of executors that have changed since the last one.
#[derive(Debug, Default)]
pub struct StatusEncoder {
    last: Option<EncodedStatus>,
}

/// An answer's body, and what it was made of.
#[derive(Debug)]
struct EncodedStatus {
    /// The epoch of its times.
    epoch: Epoch,
    /// The same without executors.
    rest: String,
    /// The blocks, and the JSON of their executors.
    blocks: Vec<(ExecutorBlock, Arc<[u8]>)>,
    body: Body,
}

/// A body in parts. Bodies share the parts that have not changed: with 10,000 executors a body has 2.4 MB, and
/// every thread that makes one whole buffer of it keeps that memory.
pub type Body = Arc<Vec<Arc<[u8]>>>;

impl EncodedStatus {
    fn has_blocks(&self, blocks: &[ExecutorBlock]) -> bool {
        let ours = self.blocks.iter().map(|(block, _)| block);
        ours.len() == blocks.len() && ours.zip(blocks).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

/// The executors are encoded again if the wall clock was set by this much.
const CLOCK_STEP: Duration = Duration::from_secs(1);

impl StatusEncoder {
    /// The answer's body: the last one, if nothing has changed.
    /// `seq`: the newest event before the status was asked for.
    pub fn encode(&mut self, names: &RunNames, seq: u64, status: &Status, epoch: Epoch) -> Body {
        let is_same_clock = |last: &EncodedStatus| last.epoch.abs_diff(epoch) < CLOCK_STEP;
        let before = self.last.take().filter(is_same_clock);
        let epoch = before.as_ref().map_or(epoch, |last| last.epoch);
        let rest = StatusJson {
            identity: names.clone(),
            seq,
            groups: status.groups.iter().map(|group| group_json(group, epoch)).collect(),
            executors: Vec::new(),
            avoided_nodes: (status.avoided_nodes.iter())
                .map(|(node, until)| (node.clone(), epoch.rfc3339(*until)))
                .collect(),
            outage: status.outage.as_ref().map(|outage| outage_json(outage, epoch)),
            recorded: Some(status.is_recorded),
            driver: status.driver.map(|driver| driver_json(driver, epoch)),
        };
        let rest = rest.to_json();
        let is_same =
            |last: &EncodedStatus| last.rest == rest && last.has_blocks(&status.executors);
        let next = match before {
            Some(last) if is_same(&last) => last,
            before => encode_status(status, epoch, rest, before),
        };
        Arc::clone(&self.last.insert(next).body)
    }
}

/// Takes the blocks that have not changed from the body before it.
fn encode_status(
    status: &Status,
    epoch: Epoch,
    rest: String,
    before: Option<EncodedStatus>,
) -> EncodedStatus {
    // No text in it can contain this: quotes in texts are escaped.
    let (head, tail) = rest.split_once(NO_EXECUTORS).expect("the field is always written");
    let (field, end) = NO_EXECUTORS.split_at(NO_EXECUTORS.len() - 1);
    let part = |text: &str| Arc::from(text.as_bytes());
    let comma: Arc<[u8]> = part(",");
    let mut old_blocks = before.map(|last| last.blocks).unwrap_or_default().into_iter().peekable();
    let mut body = vec![part(head), part(field)];
    let mut blocks = Vec::with_capacity(status.executors.len());
    for block in &status.executors {
        let first = block.first().map(|one| one.id);
        while old_blocks.next_if(|(old, _)| old.first().map(|one| one.id) < first).is_some() {}
        if !blocks.is_empty() {
            body.push(Arc::clone(&comma));
        }
        let json = match old_blocks.next_if(|(old, _)| Arc::ptr_eq(old, block)) {
            Some((_, json)) => json,
            None => encode_block(&status.pod_prefix, block, epoch),
        };
        body.push(Arc::clone(&json));
        blocks.push((Arc::clone(block), json));
    }
    body.extend([part(end), part(tail)]);
    EncodedStatus { epoch, rest, blocks, body: Arc::new(body) }
}

/// Of a status's body the executors alone: `{"executors":[...]}`.
pub fn executors_only(status: &Body) -> Body {
    // `encode_status` writes their field between the first and the last part.
    let field = status.get(1..status.len().saturating_sub(1)).unwrap_or_default();
    let part = |text: &str| std::iter::once(Arc::from(text.as_bytes()));
    Arc::new(part("{").chain(field.iter().cloned()).chain(part("}")).collect())
}

/// The field of a run without executors.
const NO_EXECUTORS: &str = r#""executors":[]"#;

const WRITABLE: &str = "strings and numbers can be written to memory";

/// The executors' objects, with a comma between them.
fn encode_block(pod_prefix: &str, block: &ExecutorBlock, epoch: Epoch) -> Arc<[u8]> {
    let mut bytes = Vec::new();
    for (i, executor) in block.iter().enumerate() {
        if i > 0 {
            bytes.push(b',');
        }
        let json = executor_json(pod_prefix, executor, epoch);
        serde_json::to_writer(&mut bytes, &json).expect(WRITABLE);
    }
    bytes.into()
}

pub(super) fn outage_json(outage: &Outage, epoch: Epoch) -> OutageJson {
    OutageJson { since: epoch.rfc3339(outage.since), message: outage.message.clone() }
}

fn driver_json(driver: DriverStatus, epoch: Epoch) -> DriverJson {
    DriverJson {
        state: if driver.exit_code.is_none() { "running" } else { "ended" }.to_owned(),
        since: epoch.rfc3339(driver.since),
        pid: driver.pid,
        exit_code: driver.exit_code,
    }
}

pub(super) fn group_json(group: &GroupStatus, epoch: Epoch) -> GroupJson {
    GroupJson {
        group: group.group.to_string(),
        target: group.target,
        wanted: group.wanted,
        min: group.min,
        max: group.max,
        requested: group.requested,
        pending: group.pending,
        running: group.running,
        ready: group.ready,
        draining: group.draining,
        terminating: group.terminating,
        failed: group.failed,
        open_tasks: group.open_tasks,
        ended_tasks: group.ended_tasks,
        lost: group.lost,
        scale_down: group.scale_down.as_str().to_owned(),
        completed: group.completed,
        completions: group.completions,
        attempt: group.attempt,
        waiting: group.waiting.map(|waiting| waiting.as_str().to_owned()),
        since: group.since.map(|at| epoch.rfc3339(at)),
        until: group.until.map(|at| epoch.rfc3339(at)),
        message: group.message.clone(),
        would_create: group.limits.n_creates,
        would_end: group.limits.n_ends,
        limits: limits_json(&group.limits, epoch),
    }
}

fn limits_json(limits: &Limits, epoch: Epoch) -> Vec<LimitJson> {
    let json = |what: &str, limit: &Limit, of: Option<u32>| LimitJson {
        what: what.to_owned(),
        waiting: limit.waiting.as_str().to_owned(),
        at_most: of.map(|_| limit.at_most),
        of,
        until: limit.until.map(|at| epoch.rfc3339(at)),
    };
    let creates = limits.creates.iter().map(|held| json("create", &held.limit, Some(held.of)));
    let ends = limits.ends.iter().map(|limit| json("end", limit, Some(limits.n_ends)));
    let starts = limits.starts.iter().map(|limit| json("start", limit, None));
    creates.chain(ends).chain(starts).collect()
}

fn executor_json(pod_prefix: &str, executor: &ExecutorStatus, epoch: Epoch) -> ExecutorJson {
    ExecutorJson {
        id: executor.id.0,
        group: executor.group.to_string(),
        slot: executor.slot,
        key: executor.key.as_deref().map(str::to_owned),
        pod: format!("{pod_prefix}{}", executor.id),
        uid: executor.uid.as_ref().map(ToString::to_string),
        state: executor.state.as_str().to_owned(),
        ready: executor.ready,
        node: executor.node.as_deref().map(str::to_owned),
        ip: executor.ip,
        host_ip: executor.host_ip,
        since: epoch.rfc3339(executor.since),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use posse_testing::sample_status;

    use super::*;
    use posse_base::time::Millis;
    use posse_core::model::ids::ExecutorId;

    #[test]
    fn fields_are_as_documented_and_read_back() {
        let identity = RunNames {
            run: "k3f9".into(),
            app: "w".into(),
            instance: "a1b2c".into(),
            namespace: "ns".into(),
            ..RunNames::default()
        };
        let epoch = Epoch(SystemTime::UNIX_EPOCH);
        let bytes = StatusEncoder::default().encode(&identity, 7, &sample_status(), epoch).concat();
        let text = str::from_utf8(&bytes).unwrap();
        for part in [
            r#"{"run":"k3f9","app":"w","instance":"a1b2c","namespace":"ns","seq":7,"groups":[{"group":"default","target":10,"wanted":10,"min":0,"max":20,"requested":1,"pending":2,"running":7,"ready":6,"draining":0,"terminating":1,"failed":3,"open_tasks":0,"ended_tasks":2,"lost":5,"scale_down":"any","completed":57,"completions":100,"attempt":2,"waiting":"quota","since":"1970-01-01T00:00:01.000Z","until":"1970-01-01T00:00:02.000Z","message":"exceeded quota","would_create":12,"would_end":0,"limits":[{"what":"create","waiting":"quota","at_most":1,"of":8,"until":"1970-01-01T00:00:02.000Z"},{"what":"create","waiting":"pending_limit","at_most":6,"of":12,"until":null},{"what":"start","waiting":"unschedulable","at_most":null,"of":null,"until":null}]}"#,
            r#"{"group":"big","target":10,"wanted":10,"min":0,"max":null,"#,
            r#""completed":0,"completions":null,"attempt":null,"waiting":null,"since":null,"until":null,"message":null,"would_create":0,"would_end":0,"limits":[]}"#,
            r#""executors":[{"id":1,"group":"default","slot":0,"pod":"w-a1b2c-exec-1","uid":"3f2504e0-4f89-41d3-9a0c-0305e82c3301","state":"running","ready":true,"node":"n1","ip":"10.0.0.1","host_ip":"192.168.0.1","since":"1970-01-01T00:00:01.000Z"}"#,
            r#""uid":null,"state":"requested","ready":false,"node":null,"ip":null,"host_ip":null,"#,
            r#""avoided_nodes":{"n9":"1970-01-01T00:00:03.000Z"}"#,
            r#""outage":{"since":"1970-01-01T00:00:04.000Z","message":"connection refused"}"#,
            r#""recorded":true,"driver":{"state":"running","since":"1970-01-01T00:00:01.000Z","pid":42,"exit_code":null}"#,
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
        let json = StatusJson::parse(&bytes).unwrap();
        assert_eq!(json.to_json().as_bytes(), &bytes[..]);
    }

    /// What an encoder writes after other statuses is what a new one writes.
    #[test]
    fn only_changed_blocks_are_encoded_again() {
        let model = sample_status().executors[0][0].clone();
        let block = |id, since| -> ExecutorBlock {
            [ExecutorStatus { id: ExecutorId(id), since: Millis(since), ..model.clone() }].into()
        };
        let (names, epoch) = (RunNames::default(), Epoch(SystemTime::UNIX_EPOCH));
        let mut encoder = StatusEncoder::default();
        let kept = [block(1, 0), block(70, 0), block(130, 0)];
        let status = |blocks: &[&ExecutorBlock]| {
            let executors = blocks.iter().copied().cloned().collect();
            Status { executors, ..sample_status() }
        };
        let mut check = |blocks: &[&ExecutorBlock], epoch: Epoch| {
            let body = encoder.encode(&names, 7, &status(blocks), epoch);
            let new = StatusEncoder::default().encode(&names, 7, &status(blocks), epoch);
            assert_eq!(body.concat(), new.concat());
            let json = StatusJson::parse(&body.concat()).unwrap();
            let alone: serde_json::Value =
                serde_json::from_slice(&executors_only(&body).concat()).unwrap();
            assert_eq!(alone, serde_json::json!({ "executors": json.executors }));
            body
        };
        let first = check(&[&kept[0], &kept[1], &kept[2]], epoch);
        let again = check(&[&kept[0], &kept[1], &kept[2]], epoch);
        assert!(Arc::ptr_eq(&first, &again), "the same body");
        check(&[&kept[0], &block(70, 5), &kept[2]], epoch);
        check(&[&kept[2]], epoch);
        check(&[], epoch);
        check(&[&kept[0], &kept[2]], epoch);
        check(&[&block(0, 0), &kept[1], &block(99, 1)], epoch);
        check(&[&kept[1]], Epoch(epoch.0 + CLOCK_STEP));

        let before = check(&[&kept[0], &kept[1], &kept[2]], epoch);
        let after = check(&[&kept[0], &block(70, 5), &kept[2]], epoch);
        for (id, is_shared) in [(1, true), (70, false), (130, true)] {
            let start = format!(r#"{{"id":{id},"#);
            let of = |body: &Body| {
                body.iter().find(|part| part.starts_with(start.as_bytes())).unwrap().clone()
            };
            assert_eq!(Arc::ptr_eq(&of(&before), &of(&after)), is_shared, "{id}");
        }
    }
}
