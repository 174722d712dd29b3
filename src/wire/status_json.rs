//! JSON of `GET /v1/status`: written by a run, read by `posse status`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::core::model::status::{ExecutorBlock, ExecutorStatus, GroupStatus, Outage, Status};
use crate::wire::time::Epoch;

/// Names of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunNames {
    /// Random for each process.
    pub run: String,
    pub app: String,
    pub instance: String,
    pub namespace: String,
    /// The embedded cluster's kubeconfig, with `posse run --dev`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<String>,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusJson {
    #[serde(flatten)]
    pub identity: RunNames,
    pub groups: Vec<GroupJson>,
    pub executors: Vec<ExecutorJson>,
    /// Nodes that new executors avoid, and until when.
    #[serde(default)]
    pub avoided_nodes: BTreeMap<String, String>,
    /// The API server does not answer.
    #[serde(default)]
    pub outage: Option<OutageJson>,
}

/// Since when the API server does not answer, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutageJson {
    pub since: String,
    pub message: String,
}

/// One group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupJson {
    pub group: String,
    pub target: u32,
    pub min: u32,
    pub max: Option<u32>,
    pub requested: u32,
    pub pending: u32,
    pub running: u32,
    pub draining: u32,
    pub terminating: u32,
    pub failed: u32,
    pub waiting: Option<String>,
    /// Since when it waits for that.
    #[serde(default)]
    pub since: Option<String>,
    pub until: Option<String>,
    /// The server's message about what delays the group.
    pub message: Option<String>,
}

/// One executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorJson {
    pub id: u64,
    pub group: String,
    pub slot: Option<u32>,
    pub pod: String,
    pub uid: Option<String>,
    pub state: String,
    pub node: Option<String>,
    pub ip: Option<IpAddr>,
    pub since: String,
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
    /// The blocks of the last status, and the epoch of their times.
    last: Option<(Epoch, Vec<EncodedBlock>)>,
}

/// A block, and its executors as JSON: each with a comma before it.
type EncodedBlock = (ExecutorBlock, Arc<[u8]>);

/// The executors are encoded again if the wall clock was set by this much.
const CLOCK_STEP: Duration = Duration::from_secs(1);

impl StatusEncoder {
    /// The answer's body.
    pub fn encode(&mut self, names: &RunNames, status: &Status, epoch: Epoch) -> Vec<u8> {
        let is_same_clock = |last: &(Epoch, _)| last.0.abs_diff(epoch) < CLOCK_STEP;
        let (epoch, before) =
            self.last.take().filter(is_same_clock).unwrap_or_else(|| (epoch, Vec::new()));
        let mut before = before.into_iter().peekable();
        let encode = |block: &ExecutorBlock| {
            let first = block.first().map(|one| one.id);
            while before.next_if(|(old, _)| old.first().map(|one| one.id) < first).is_some() {}
            let unchanged = before.next_if(|(old, _)| Arc::ptr_eq(old, block));
            unchanged.unwrap_or_else(|| {
                (Arc::clone(block), encode_block(&status.pod_prefix, block, epoch))
            })
        };
        let blocks: Vec<EncodedBlock> = status.executors.iter().map(encode).collect();
        let rest = StatusJson {
            identity: names.clone(),
            groups: status.groups.iter().map(|group| group_json(group, epoch)).collect(),
            executors: Vec::new(),
            avoided_nodes: (status.avoided_nodes.iter())
                .map(|(node, until)| (node.clone(), epoch.rfc3339(*until)))
                .collect(),
            outage: status.outage.as_ref().map(|outage| outage_json(outage, epoch)),
        };
        let rest = rest.to_json();
        // No text in it can contain this: quotes in texts are escaped.
        let (head, tail) = rest.split_once(NO_EXECUTORS).expect("the field is always written");
        let n_bytes: usize = blocks.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut body = Vec::with_capacity(rest.len() + n_bytes);
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(&NO_EXECUTORS.as_bytes()[..NO_EXECUTORS.len() - 1]);
        for (i, (_, bytes)) in blocks.iter().enumerate() {
            body.extend_from_slice(&bytes[usize::from(i == 0)..]);
        }
        body.push(b']');
        body.extend_from_slice(tail.as_bytes());
        self.last = Some((epoch, blocks));
        body
    }
}

/// The field of a run without executors.
const NO_EXECUTORS: &str = r#""executors":[]"#;

const WRITABLE: &str = "strings and numbers can be written to memory";

/// The executors' objects, each with a comma before it.
fn encode_block(pod_prefix: &str, block: &ExecutorBlock, epoch: Epoch) -> Arc<[u8]> {
    let mut bytes = Vec::with_capacity(block.len() * EXECUTOR_BYTES_USUAL);
    for executor in block.iter() {
        bytes.push(b',');
        let json = executor_json(pod_prefix, executor, epoch);
        serde_json::to_writer(&mut bytes, &json).expect(WRITABLE);
    }
    bytes.into()
}

/// More than the JSON of most executors takes.
const EXECUTOR_BYTES_USUAL: usize = 256;

fn outage_json(outage: &Outage, epoch: Epoch) -> OutageJson {
    OutageJson { since: epoch.rfc3339(outage.since), message: outage.message.clone() }
}

fn group_json(group: &GroupStatus, epoch: Epoch) -> GroupJson {
    GroupJson {
        group: group.group.to_string(),
        target: group.target,
        min: group.min,
        max: group.max,
        requested: group.requested,
        pending: group.pending,
        running: group.running,
        draining: group.draining,
        terminating: group.terminating,
        failed: group.failed,
        waiting: group.waiting.map(|waiting| waiting.as_str().to_owned()),
        since: group.since.map(|at| epoch.rfc3339(at)),
        until: group.until.map(|at| epoch.rfc3339(at)),
        message: group.message.clone(),
    }
}

fn executor_json(pod_prefix: &str, executor: &ExecutorStatus, epoch: Epoch) -> ExecutorJson {
    ExecutorJson {
        id: executor.id.0,
        group: executor.group.to_string(),
        slot: executor.slot,
        pod: format!("{pod_prefix}{}", executor.id),
        uid: executor.uid.as_ref().map(ToString::to_string),
        state: executor.state.as_str().to_owned(),
        node: executor.node.as_deref().map(str::to_owned),
        ip: executor.ip,
        since: epoch.rfc3339(executor.since),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::core::model::ids::{ExecutorId, GroupName, Uid};
    use crate::core::model::status::State;
    use crate::core::model::time::Millis;
    use crate::core::model::waiting::Waiting;

    /// Two groups and two executors in very different states.
    pub(crate) fn sample() -> Status {
        let group = GroupStatus {
            group: GroupName::from("default"),
            target: 10,
            min: 0,
            max: Some(20),
            requested: 1,
            pending: 2,
            running: 7,
            draining: 0,
            terminating: 1,
            failed: 3,
            waiting: Some(Waiting::Quota),
            since: Some(Millis(1_000)),
            until: Some(Millis(2_000)),
            message: Some("exceeded quota".to_owned()),
        };
        let second = GroupStatus {
            group: GroupName::from("big"),
            max: None,
            waiting: None,
            since: None,
            until: None,
            message: None,
            ..group.clone()
        };
        let running = ExecutorStatus {
            id: ExecutorId(1),
            group: GroupName::from("default"),
            slot: Some(0),
            uid: Some(Uid::new("3f2504e0-4f89-41d3-9a0c-0305e82c3301")),
            state: State::Running,
            node: Some("n1".into()),
            ip: Some([10, 0, 0, 1].into()),
            since: Millis(1_000),
        };
        let requested = ExecutorStatus {
            id: ExecutorId(2),
            slot: None,
            uid: None,
            state: State::Requested,
            node: None,
            ip: None,
            ..running.clone()
        };
        let avoided_nodes = vec![("n9".to_owned(), Millis(3_000))];
        let outage =
            Some(Outage { since: Millis(4_000), message: "connection refused".to_owned() });
        Status {
            groups: vec![group, second],
            pod_prefix: "w-a1b2c-exec-".to_owned(),
            executors: vec![[running].into(), [requested].into()],
            avoided_nodes,
            outage,
        }
    }

    /// The same, as a client reads it. Its clock starts at 1970.
    pub(crate) fn sample_json(names: &RunNames) -> StatusJson {
        let epoch = Epoch(SystemTime::UNIX_EPOCH);
        StatusJson::parse(&StatusEncoder::default().encode(names, &sample(), epoch)).unwrap()
    }

    #[test]
    fn fields_are_as_documented_and_read_back() {
        let identity = RunNames {
            run: "k3f9".into(),
            app: "w".into(),
            instance: "a1b2c".into(),
            namespace: "ns".into(),
            kubeconfig: None,
        };
        let epoch = Epoch(SystemTime::UNIX_EPOCH);
        let bytes = StatusEncoder::default().encode(&identity, &sample(), epoch);
        let text = str::from_utf8(&bytes).unwrap();
        for part in [
            r#"{"run":"k3f9","app":"w","instance":"a1b2c","namespace":"ns","groups":[{"group":"default","target":10,"min":0,"max":20,"requested":1,"pending":2,"running":7,"draining":0,"terminating":1,"failed":3,"waiting":"quota","since":"1970-01-01T00:00:01.000Z","until":"1970-01-01T00:00:02.000Z","message":"exceeded quota"}"#,
            r#"{"group":"big","target":10,"min":0,"max":null,"#,
            r#""waiting":null,"since":null,"until":null,"message":null}"#,
            r#""executors":[{"id":1,"group":"default","slot":0,"pod":"w-a1b2c-exec-1","uid":"3f2504e0-4f89-41d3-9a0c-0305e82c3301","state":"running","node":"n1","ip":"10.0.0.1","since":"1970-01-01T00:00:01.000Z"}"#,
            r#""uid":null,"state":"requested","node":null,"ip":null,"#,
            r#""avoided_nodes":{"n9":"1970-01-01T00:00:03.000Z"}"#,
            r#""outage":{"since":"1970-01-01T00:00:04.000Z","message":"connection refused"}"#,
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
        let json = StatusJson::parse(&bytes).unwrap();
        assert_eq!(json.to_json().as_bytes(), bytes);
    }

    /// What an encoder writes after other statuses is what a new one writes.
    #[test]
    fn only_changed_blocks_are_encoded_again() {
        let model = sample().executors[0][0].clone();
        let block = |id, since| -> ExecutorBlock {
            [ExecutorStatus { id: ExecutorId(id), since: Millis(since), ..model.clone() }].into()
        };
        let (names, epoch) = (RunNames::default(), Epoch(SystemTime::UNIX_EPOCH));
        let mut encoder = StatusEncoder::default();
        let kept = [block(1, 0), block(70, 0), block(130, 0)];
        let mut check = |executors: &[&ExecutorBlock], epoch: Epoch| {
            let executors = executors.iter().copied().cloned().collect();
            let status = Status { executors, ..sample() };
            let bytes = encoder.encode(&names, &status, epoch);
            assert_eq!(bytes, StatusEncoder::default().encode(&names, &status, epoch));
            StatusJson::parse(&bytes).unwrap();
            encoder.last.as_ref().unwrap().1.iter().map(|(_, b)| Arc::as_ptr(b)).collect::<Vec<_>>()
        };
        let first = check(&[&kept[0], &kept[1], &kept[2]], epoch);
        let second = check(&[&kept[0], &block(70, 5), &kept[2]], epoch);
        assert_eq!((first[0], first[2]), (second[0], second[2]), "not encoded again");
        assert_ne!(first[1], second[1]);
        assert_eq!(check(&[&kept[2]], epoch), [first[2]]);
        assert_eq!(check(&[], epoch), []);
        check(&[&kept[0], &kept[2]], epoch);
        check(&[&block(0, 0), &kept[1], &block(99, 1)], epoch);
        check(&[&kept[1]], Epoch(epoch.0 + CLOCK_STEP));
    }
}
