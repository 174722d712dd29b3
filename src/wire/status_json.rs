//! JSON of `GET /v1/status`: written by a run, read by `posse status`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::core::model::status::{ExecutorStatus, GroupStatus, Outage, Status};
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
    /// The answer for `status`.
    pub fn new(identity: &RunNames, status: &Status, epoch: Epoch) -> Self {
        Self {
            identity: identity.clone(),
            groups: status.groups.iter().map(|group| group_json(group, epoch)).collect(),
            executors: status.executors.iter().map(|one| executor_json(one, epoch)).collect(),
            avoided_nodes: (status.avoided_nodes.iter())
                .map(|(node, until)| (node.clone(), epoch.rfc3339(*until)))
                .collect(),
            outage: status.outage.as_ref().map(|outage| outage_json(outage, epoch)),
        }
    }

    /// The answer's body.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers can be written to memory")
    }

    /// Reads an answer. Unknown fields of a newer posse are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

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

fn executor_json(executor: &ExecutorStatus, epoch: Epoch) -> ExecutorJson {
    ExecutorJson {
        id: executor.id.0,
        group: executor.group.to_string(),
        slot: executor.slot,
        pod: executor.pod.clone(),
        uid: executor.uid.as_ref().map(ToString::to_string),
        state: executor.state.as_str().to_owned(),
        node: executor.node.clone(),
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
            pod: "w-a1b2c-exec-1".into(),
            uid: Some(Uid::new("3f2504e0-4f89-41d3-9a0c-0305e82c3301")),
            state: State::Running,
            node: Some("n1".into()),
            ip: Some([10, 0, 0, 1].into()),
            since: Millis(1_000),
        };
        let requested = ExecutorStatus {
            id: ExecutorId(2),
            slot: None,
            pod: "w-a1b2c-exec-2".into(),
            uid: None,
            state: State::Requested,
            node: None,
            ip: None,
            ..running.clone()
        };
        let avoided_nodes = vec![("n9".to_owned(), Millis(3_000))];
        let outage =
            Some(Outage { since: Millis(4_000), message: "connection refused".to_owned() });
        let (groups, executors) = (vec![group, second], vec![running, requested]);
        Status { groups, executors, avoided_nodes, outage }
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
        let json = StatusJson::new(&identity, &sample(), Epoch(SystemTime::UNIX_EPOCH));
        let bytes = json.to_bytes();
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
        assert_eq!(StatusJson::parse(&bytes).unwrap(), json);
    }
}
