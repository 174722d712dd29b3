//! A status with something of everything.

use std::time::SystemTime;

use posse_base::time::Millis;
use posse_core::model::ids::{ExecutorId, GroupName, Uid};
use posse_core::model::settings::ScaleDown;
use posse_core::model::status::{DriverStatus, ExecutorStatus, GroupStatus, Outage, State, Status};
use posse_core::model::waiting::{GroupWait, Held, Limit, Limits, ServerWait, StartWait, Waiting};
use posse_wire::control::status_json::{RunNames, StatusEncoder, StatusJson};
use posse_wire::time::Epoch;

fn executors() -> [ExecutorStatus; 2] {
    let running = ExecutorStatus {
        id: ExecutorId(1),
        group: GroupName::from("default"),
        slot: Some(0),
        key: None,
        uid: Some(Uid::new("3f2504e0-4f89-41d3-9a0c-0305e82c3301")),
        state: State::Running,
        ready: true,
        node: Some("n1".into()),
        ip: Some([10, 0, 0, 1].into()),
        host_ip: Some([192, 168, 0, 1].into()),
        since: Millis(1_000),
    };
    let requested = ExecutorStatus {
        id: ExecutorId(2),
        slot: None,
        uid: None,
        state: State::Requested,
        ready: false,
        node: None,
        ip: None,
        host_ip: None,
        ..running.clone()
    };
    [running, requested]
}

fn limits() -> Limits {
    let held = |waiting, at_most, of, until| {
        let limit = Limit { at_most, waiting, until };
        Held { limit, of, is_loose: false }
    };
    let unschedulable = Waiting::Start(StartWait::Unschedulable);
    Limits {
        n_creates: 12,
        creates: vec![
            held(Waiting::Server(ServerWait::Quota), 1, 8, Some(Millis(2_000))),
            held(Waiting::Group(GroupWait::PendingLimit), 6, 12, None),
        ],
        n_ends: 0,
        ends: Vec::new(),
        starts: vec![Limit { at_most: 0, waiting: unschedulable, until: None }],
    }
}

/// Two groups and two executors in very different states.
#[must_use]
pub fn sample_status() -> Status {
    let group = GroupStatus {
        group: GroupName::from("default"),
        target: 10,
        wanted: 10,
        min: 0,
        max: Some(20),
        requested: 1,
        pending: 2,
        running: 7,
        ready: 6,
        draining: 0,
        terminating: 1,
        failed: 3,
        open_tasks: 0,
        ended_tasks: 2,
        lost: 5,
        scale_down: ScaleDown::Any,
        completed: 57,
        completions: Some(100),
        attempt: Some(2),
        waiting: Some(Waiting::Server(ServerWait::Quota)),
        since: Some(Millis(1_000)),
        until: Some(Millis(2_000)),
        message: Some("exceeded quota".to_owned()),
        limits: limits(),
    };
    let second = GroupStatus {
        group: GroupName::from("big"),
        max: None,
        completed: 0,
        completions: None,
        attempt: None,
        waiting: None,
        since: None,
        until: None,
        message: None,
        limits: Limits::default(),
        ..group.clone()
    };
    let avoided_nodes = vec![("n9".to_owned(), Millis(3_000))];
    let outage = Some(Outage { since: Millis(4_000), message: "connection refused".to_owned() });
    let driver = Some(DriverStatus { since: Millis(1_000), pid: 42, exit_code: None });
    Status {
        driver,
        groups: vec![group, second],
        pod_prefix: "w-a1b2c-exec-".to_owned(),
        executors: executors().map(|one| [one].into()).into(),
        avoided_nodes,
        outage,
        is_recorded: true,
    }
}

/// The sample as `posse status` reads it.
///
/// # Panics
/// It cannot be read back.
#[must_use]
pub fn sample_status_json(names: &RunNames) -> StatusJson {
    let epoch = Epoch(SystemTime::UNIX_EPOCH);
    let body = StatusEncoder::default().encode(names, 7, &sample_status(), epoch);
    StatusJson::parse(&body.concat()).unwrap()
}
