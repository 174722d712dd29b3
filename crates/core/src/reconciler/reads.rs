//! What is read of pods: the logs of lost executors (a few each minute) and the output of ended tasks, before the pod is
//! deleted; and the pod of an executor that the driver has lost. The watch may be off or silent then, so the snapshot
//! alone cannot show why the executor ended.

use std::sync::Arc;

use super::Reconciler;
use crate::model::action::Action;
use crate::model::event::{Event, ExecutorEvent, Subject};
use crate::model::ids::{ExecutorId, Uid};
use crate::model::input::{PodAnswer, Watermark};
use crate::model::pod::Pod;
use crate::model::refusal::{Refusal, RefusalClass};
use crate::model::task::TaskOutput;
use crate::state::errands::Step;
use crate::state::snapshot::AnswerAge;
use posse_base::text::sanitize;
use posse_base::time::Millis;

/// The maximum length of the server's error message, in bytes.
const REFUSAL_BYTES_MAX: usize = 1_024;
/// A pod that cannot be read after this many tries is judged by the snapshot.
const READ_TRIES_MAX: u32 = 4;
/// The time between two tries.
const READ_RETRY_MS: u64 = 2_000;

impl Reconciler {
    /// Requests the last log lines of an executor that the application caused to fail.
    pub(super) fn request_log(&mut self, id: ExecutorId, now: Millis) {
        let Some(subject) = self.subject(id).filter(|_| self.policy.log_lines > 0) else { return };
        let uid = self.seen(id).map(|(_, pod)| pod.uid.clone());
        let Some(uid) = uid else {
            return self.report_log(subject, Err("the pod was gone before its log was read"));
        };
        if let Err(subject) = self.errands.add_log(uid, subject, now) {
            let why = "skipped: too many logs were read within the last minute";
            self.report_log(subject, Err(why));
        }
    }

    pub(super) fn on_log_read(&mut self, uid: &Uid, answer: Result<Vec<String>, Refusal>) {
        let subject = self.errands.logs.end(uid);
        self.errands.mutations.wake(uid);
        let Some(subject) = subject else { return };
        match answer {
            Ok(lines) => self.report_log(subject, Ok(lines)),
            Err(refusal) => {
                let message = sanitize(&refusal.to_string(), REFUSAL_BYTES_MAX);
                self.report_log(subject, Err(&message));
            }
        }
    }

    /// The pod is gone: a log that is not being read yet cannot be read any more.
    pub(super) fn forget_log(&mut self, uid: &Uid) {
        if self.errands.logs.get(uid).is_some_and(|errand| errand.step != Step::Answer)
            && let Some(subject) = self.errands.logs.remove(uid)
        {
            self.report_log(subject, Err("the pod was gone before its log was read"));
        }
    }

    fn report_log(&mut self, subject: Subject, log: Result<Vec<String>, &str>) {
        let (lines, message) = match log {
            Ok(lines) => (lines, None),
            Err(why) => (Vec::new(), Some(why.to_owned())),
        };
        self.out.tell(Event::Executor(subject, ExecutorEvent::Log { lines, message }));
    }

    /// The task of this executor has ended. `is_earlier`: an earlier process has told the end, and may have kept the
    /// output.
    pub(super) fn keep_output(&mut self, id: ExecutorId, is_earlier: bool) {
        let executor = self.executors.get(id).filter(|_| self.policy.keeps_task_output);
        let Some(executor) = executor else { return };
        let (Some(run), Some(uid)) = (executor.task.as_deref(), executor.uid.clone()) else {
            return;
        };
        let pod = executor.pod(&self.snapshot);
        self.errands.add_output(TaskOutput {
            group: executor.group.clone(),
            key: Arc::clone(&run.task.key),
            executor: id,
            uid,
            pod: self.ours.pod_name(id),
            container: failed_init(pod).or_else(|| pod?.main_container.clone()),
            is_earlier,
        });
    }

    pub(super) fn on_output_kept(&mut self, uid: &Uid) {
        if self.errands.outputs.end(uid).is_some() {
            self.errands.mutations.wake(uid);
        }
    }

    /// Sends reads up to the limits in flight.
    pub(super) fn send_reads(&mut self, now: Millis) {
        while let Some(uid) = self.errands.next_log(now) {
            let pod = self.snapshot.get(&uid);
            let container = failed_init(pod).or_else(|| pod?.main_container.clone());
            let name = pod.map_or_else(String::new, |pod| pod.name.to_string());
            let n_lines = self.policy.log_lines;
            self.out.act(Action::ReadLog { uid, name, container, n_lines });
        }
        while let Some((output, n_skipped)) = self.errands.next_output() {
            self.out.act(Action::KeepOutput { output, n_skipped });
        }
        while !self.end.is_stopping()
            && let Some((id, _)) = self.errands.pods.send_next(|_, ()| false)
        {
            if self.is_live(id) {
                let watermark = self.watermark();
                self.out.act(Action::ReadPod { id, watermark });
            } else {
                self.errands.pods.end(&id);
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
        let n_tries = self.errands.pods.on_answered(&id).map_or(0, |errand| errand.n_tries);
        let Some(uid) = self.executors.get(id).and_then(|executor| executor.uid.clone()) else {
            self.errands.pods.remove(&id);
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
        if !is_answered && n_tries < READ_TRIES_MAX {
            let until = now.after(READ_RETRY_MS);
            self.errands.pods.retry_at(&id, until);
            return self.wait_for_reason(id, until);
        }
        self.errands.pods.remove(&id);
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
                    AnswerAge::Current => self.on_seen(uid, now),
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

/// If an init container failed, the other containers have no log.
fn failed_init(pod: Option<&Pod>) -> Option<Box<str>> {
    Some(pod?.end.as_ref()?.init.as_ref()?.name.clone())
}
