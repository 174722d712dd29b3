//! Reads the pod of an executor that the driver has lost. The watch may be off or silent, so the
//! snapshot alone cannot show why the executor ended.

use std::collections::{BTreeMap, BTreeSet};

use super::Reconciler;
use super::timers::Timer;
use crate::model::action::Action;
use crate::model::ids::{ExecutorId, Uid};
use crate::model::input::{PodAnswer, Watermark};
use crate::model::refusal::{Refusal, RefusalClass};
use crate::state::snapshot::{AnswerAge, Change};
use posse_base::time::Millis;

/// The limit of pods that are read at a time.
pub const POD_READS_IN_FLIGHT_MAX: usize = 4;
/// A pod that cannot be read after this many tries is judged by the snapshot.
const READ_TRIES_MAX: u32 = 4;
/// The time between two tries.
const READ_RETRY_MS: u64 = 2_000;

/// The pods to read.
#[derive(Clone, Debug, Default)]
pub(super) struct PodReads {
    waiting: BTreeSet<ExecutorId>,
    in_flight: BTreeSet<ExecutorId>,
    /// Failed tries.
    failures: BTreeMap<ExecutorId, u32>,
}

impl PodReads {
    /// The executor's pod is to be read.
    pub(super) fn request(&mut self, id: ExecutorId) {
        self.waiting.insert(id);
    }
}

impl Reconciler {
    /// Sends reads up to the limit in flight.
    pub(super) fn send_pod_reads(&mut self) {
        if self.stop.is_some() {
            self.pod_reads.waiting.clear();
        }
        while self.pod_reads.in_flight.len() < POD_READS_IN_FLIGHT_MAX
            && let Some(id) = self.pod_reads.waiting.pop_first()
        {
            if self.is_live(id) && self.pod_reads.in_flight.insert(id) {
                let watermark = self.watermark();
                self.actions.push_back(Action::ReadPod { id, watermark });
            }
        }
    }

    /// The answer to a read: applies it, and judges the executor that the driver has lost.
    pub(super) fn on_pod_read(
        &mut self,
        id: ExecutorId,
        watermark: Watermark,
        answer: Result<PodAnswer, Refusal>,
        now: Millis,
    ) {
        self.pod_reads.in_flight.remove(&id);
        let Some(uid) = self.executors.get(id).and_then(|executor| executor.uid.clone()) else {
            self.pod_reads.failures.remove(&id);
            return;
        };
        let is_answered = match answer {
            Ok(seen) => self.apply_read(&uid, seen, watermark, now),
            Err(refusal) if refusal.class == RefusalClass::NotFound => {
                self.on_absent(&uid, now);
                true
            }
            // Without the permission, the snapshot has to do.
            Err(refusal) => refusal.class == RefusalClass::Forbidden,
        };
        let n_failures = self.pod_reads.failures.entry(id).or_default();
        *n_failures += u32::from(!is_answered);
        if !is_answered && *n_failures < READ_TRIES_MAX {
            let until = now.after(READ_RETRY_MS);
            self.driver_reports.extend_reason_wait(id, until);
            self.timers.set(until, Timer::Disconnected(id));
            return;
        }
        self.pod_reads.failures.remove(&id);
        self.judge_disconnected(id, now);
    }

    /// False if the answer says nothing about the pod as it is now.
    fn apply_read(
        &mut self,
        uid: &Uid,
        seen: PodAnswer,
        watermark: Watermark,
        now: Millis,
    ) -> bool {
        match seen {
            PodAnswer::Ours(pod) if pod.uid == *uid => {
                match self.snapshot.apply_answer(&pod, watermark, false) {
                    AnswerAge::Void => return false,
                    AnswerAge::Current => {
                        self.on_change(Some(Change::Updated(uid.clone())), now);
                    }
                    AnswerAge::Gone => {}
                }
            }
            // Somebody has removed our labels: nothing more is known.
            PodAnswer::Foreign(pod) if pod.uid == *uid => {}
            // Another pod has the name, so the executor's pod is gone.
            PodAnswer::Foreign(_) | PodAnswer::Ours(_) => self.on_absent(uid, now),
        }
        true
    }
}
