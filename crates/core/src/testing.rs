//! Values that the unit tests in `core/` start from.

use crate::model::ids::{ExecutorId, GroupName, Uid, Version};
use crate::model::pod::{ContainerState, Phase, Pod};
use crate::model::settings::Restart;

/// A running pod of executor `id` in group `default`, at version `version`.
pub(crate) fn pod(id: u64, version: u64) -> Pod {
    Pod {
        uid: Uid::new(&format!("uid-{id}")),
        name: format!("app-x-exec-{id}").into(),
        version: Some(Version(version)),
        id: ExecutorId(id),
        group: GroupName::from("default"),
        slot: Some(0),
        attempt: 1,
        owner: None,
        phase: Phase::Running,
        deleting: false,
        grace_s: 30,
        deletion_grace_s: 0,
        container: ContainerState::Running,
        is_held_by_queue: false,
        restarts_in_place: false,
        memory_limit_bytes: 0,
        rare: None,
        main_container: None,
        start_problem: None,
        ready: true,
        draining: None,
        counted: None,
        completed: false,
        restart: Restart::Always,
        task: None,
        deletion_cost: 0,
        is_protected: false,
        node: None,
        ip: None,
        host_ip: None,
        end: None,
    }
}
