//! Values that the unit tests in `core/` start from.

use crate::model::ids::{ExecutorId, GroupName, Uid, Version};
use crate::model::pod::{ContainerState, Phase, Pod};

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
        phase: Phase::Running,
        grace_s: 30,
        container: ContainerState::Running,
        ready: true,
        ..Pod::default()
    }
}
