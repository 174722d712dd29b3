//! Keeps the output of ended tasks: it is read while the pod is there, so a pod is not deleted before. Nothing else waits
//! for that.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::Reconciler;
use crate::model::action::Action;
use crate::model::ids::{ExecutorId, Uid};
use crate::model::task::TaskOutput;

/// Outputs read at a time.
pub const OUTPUTS_IN_FLIGHT_MAX: usize = 4;
/// Outputs that wait to be read. Their pods stay so long.
const OUTPUTS_WAITING_MAX: usize = 1_000;

/// What is still to be read.
#[derive(Clone, Debug, Default)]
pub(super) struct TaskOutputs {
    waiting: VecDeque<TaskOutput>,
    /// Those that wait and those that are being read.
    open: BTreeSet<Uid>,
    /// Outputs that were not read because too many waited, since the last read began.
    n_skipped: u32,
}

impl TaskOutputs {
    /// True if an output is still to be read or is being read.
    pub(super) fn is_busy(&self) -> bool {
        !self.open.is_empty()
    }

    fn n_in_flight(&self) -> usize {
        self.open.len() - self.waiting.len()
    }
}

impl Reconciler {
    /// The task of this executor has ended. `is_earlier`: an earlier process has told the end, and may have kept the
    /// output.
    pub(super) fn keep_output(&mut self, id: ExecutorId, is_earlier: bool) {
        let Some(executor) = self.executors.get(id).filter(|_| self.policy.keeps_task_output)
        else {
            return;
        };
        let (Some(run), Some(uid)) = (executor.task.as_deref(), executor.uid.clone()) else {
            return;
        };
        if self.outputs.waiting.len() >= OUTPUTS_WAITING_MAX {
            self.outputs.n_skipped = self.outputs.n_skipped.saturating_add(1);
            return;
        }
        let pod = self.snapshot.get(&uid);
        // If an init container failed, the other containers have no log.
        let init = pod.and_then(|pod| pod.end.as_ref()?.init.as_ref());
        let container = init.map(|init| init.name.clone());
        let output = TaskOutput {
            group: executor.group.clone(),
            key: Arc::clone(&run.task.key),
            executor: id,
            uid,
            pod: self.pod_name(id),
            container: container.or_else(|| pod?.main_container.clone()),
            is_earlier,
        };
        if self.outputs.open.insert(output.uid.clone()) {
            self.mutations.hold_delete(&output.uid);
            self.outputs.waiting.push_back(output);
        }
    }

    pub(super) fn on_output_kept(&mut self, uid: &Uid) {
        if self.outputs.open.remove(uid) {
            self.mutations.release_delete(uid);
        }
    }

    pub(super) fn send_output_reads(&mut self) {
        while self.outputs.n_in_flight() < OUTPUTS_IN_FLIGHT_MAX
            && let Some(output) = self.outputs.waiting.pop_front()
        {
            let n_skipped = std::mem::take(&mut self.outputs.n_skipped);
            self.actions.push_back(Action::KeepOutput { output, n_skipped });
        }
    }
}
