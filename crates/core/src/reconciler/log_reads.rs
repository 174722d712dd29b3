//! Reads the logs of lost executors: a few at a time and a few each minute. A pod is not deleted
//! before its log was read; nothing else waits for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Reconciler;
use crate::model::action::Action;
use crate::model::event::{Event, ExecutorEvent, Subject};
use crate::model::ids::{ExecutorId, Uid};
use crate::model::refusal::Refusal;
use posse_base::text::sanitize;
use posse_base::time::Millis;

/// Logs read at a time.
pub const LOG_READS_IN_FLIGHT_MAX: usize = 4;
/// The limit of logs within `READS_WINDOW_MS`: many failures at once are usually the same failure.
const READS_MAX: usize = 20;
const READS_WINDOW_MS: u64 = 60_000;
/// The maximum length of the server's error message, in bytes.
const REFUSAL_BYTES_MAX: usize = 1_024;

/// Requested logs, by the uid of their pod.
#[derive(Clone, Debug, Default)]
pub(super) struct LogReads {
    open: BTreeMap<Uid, Subject>,
    /// Logs that are not requested from the server yet.
    waiting: VecDeque<Uid>,
    in_flight: BTreeSet<Uid>,
    /// When the last requests were sent.
    sent: VecDeque<Millis>,
}

impl LogReads {
    /// True if a log is still to be read or is being read.
    pub(super) fn is_busy(&self) -> bool {
        !self.open.is_empty()
    }

    fn has_capacity(&mut self, now: Millis) -> bool {
        while self.sent.front().is_some_and(|&at| now.since(at) >= READS_WINDOW_MS) {
            self.sent.pop_front();
        }
        self.sent.len() + self.waiting.len() < READS_MAX
    }
}

impl Reconciler {
    /// Requests the last log lines of an executor that the application caused to fail.
    pub(super) fn request_log(&mut self, id: ExecutorId, now: Millis) {
        let Some(subject) = self.subject(id).filter(|_| self.policy.log_lines > 0) else { return };
        let pod = subject.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        match pod.map(|pod| pod.uid.clone()) {
            None => self.report_log(subject, Err("the pod was gone before its log was read")),
            Some(_) if !self.logs.has_capacity(now) => {
                self.report_log(
                    subject,
                    Err("skipped: too many logs were read within the last minute"),
                );
            }
            Some(uid) => {
                self.mutations.hold_delete(&uid);
                self.logs.waiting.push_back(uid.clone());
                self.logs.open.insert(uid, subject);
            }
        }
    }

    pub(super) fn on_log_read(&mut self, uid: &Uid, answer: Result<Vec<String>, Refusal>) {
        self.logs.in_flight.remove(uid);
        self.mutations.release_delete(uid);
        let Some(subject) = self.logs.open.remove(uid) else { return };
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
        if !self.logs.in_flight.contains(uid)
            && let Some(subject) = self.logs.open.remove(uid)
        {
            self.logs.waiting.retain(|waiting| waiting != uid);
            self.mutations.release_delete(uid);
            self.report_log(subject, Err("the pod was gone before its log was read"));
        }
    }

    pub(super) fn send_log_reads(&mut self, now: Millis) {
        while self.logs.in_flight.len() < LOG_READS_IN_FLIGHT_MAX
            && let Some(uid) = self.logs.waiting.pop_front()
        {
            let Some(pod) = self.snapshot.get(&uid) else {
                self.forget_log(&uid);
                continue;
            };
            // If an init container failed, the other containers have no log.
            let init = pod.end.as_ref().and_then(|end| end.init.as_ref());
            let container =
                init.map(|init| init.name.clone()).or_else(|| pod.main_container.clone());
            let (name, n_lines) = (pod.name.to_string(), self.policy.log_lines);
            self.logs.in_flight.insert(uid.clone());
            self.logs.sent.push_back(now);
            self.actions.push_back(Action::ReadLog { uid, name, container, n_lines });
        }
    }

    fn report_log(&mut self, subject: Subject, log: Result<Vec<String>, &str>) {
        let (lines, message) = match log {
            Ok(lines) => (lines, None),
            Err(why) => (Vec::new(), Some(why.to_owned())),
        };
        self.events.push_back(Event::Executor(subject, ExecutorEvent::Log { lines, message }));
    }
}
