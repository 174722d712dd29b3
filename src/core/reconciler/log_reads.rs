//! Owns which logs of lost executors are read: few at a time, few a minute, and no pod is deleted
//! before its turn has come. Nothing else waits for them. Reads nothing itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Reconciler;
use crate::core::model::action::Action;
use crate::core::model::event::{Event, Subject};
use crate::core::model::ids::{ExecutorId, Uid};
use crate::core::model::refusal::Refusal;
use crate::core::model::text::harmless;
use crate::core::model::time::Millis;

/// Logs read at a time.
pub const LOG_READS_IN_FLIGHT_MAX: usize = 4;
/// Logs read within `READS_WINDOW_MS`: an application that fails in numbers fails alike.
const READS_MAX: usize = 20;
const READS_WINDOW_MS: u64 = 60_000;
/// What the server says where it gives no log, in bytes.
const REFUSAL_BYTES_MAX: usize = 1_024;

/// Logs to be read, by the uid of their pod.
#[derive(Clone, Debug, Default)]
pub(super) struct LogReads {
    open: BTreeMap<Uid, Subject>,
    /// Those that wait for their turn.
    queue: VecDeque<Uid>,
    in_flight: BTreeSet<Uid>,
    /// When the last ones were sent.
    sent: VecDeque<Millis>,
}

impl LogReads {
    /// True where a log is still to be read, or being read.
    #[must_use]
    pub(super) fn is_busy(&self) -> bool {
        !self.open.is_empty()
    }

    fn has_room(&mut self, now: Millis) -> bool {
        while self.sent.front().is_some_and(|&at| now.since(at) >= READS_WINDOW_MS) {
            self.sent.pop_front();
        }
        self.sent.len() + self.queue.len() < READS_MAX
    }
}

impl Reconciler {
    /// An executor was lost by the application's doing: its last lines are wanted.
    pub(super) fn want_log(&mut self, id: ExecutorId, now: Millis) {
        let Some(subject) = self.subject(id).filter(|_| self.policy.log_lines > 0) else { return };
        let pod = subject.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        match pod.map(|pod| pod.uid.clone()) {
            None => self.tell_log(subject, Err("the pod was gone before its log was read")),
            Some(_) if !self.logs.has_room(now) => {
                self.tell_log(subject, Err("skipped: too many logs were read just now"));
            }
            Some(uid) => {
                self.mutations.hold(&uid);
                self.logs.queue.push_back(uid.clone());
                self.logs.open.insert(uid, subject);
            }
        }
    }

    pub(super) fn on_log_read(&mut self, uid: &Uid, answer: Result<Vec<String>, Refusal>) {
        self.logs.in_flight.remove(uid);
        self.mutations.release(uid);
        let Some(subject) = self.logs.open.remove(uid) else { return };
        match answer {
            Ok(lines) => self.tell_log(subject, Ok(lines)),
            Err(refusal) => {
                let words = harmless(&refusal.to_string(), REFUSAL_BYTES_MAX);
                self.tell_log(subject, Err(&words));
            }
        }
    }

    /// The pod is gone: what is not being read already never will be.
    pub(super) fn forget_log(&mut self, uid: &Uid) {
        if !self.logs.in_flight.contains(uid)
            && let Some(subject) = self.logs.open.remove(uid)
        {
            self.logs.queue.retain(|queued| queued != uid);
            self.mutations.release(uid);
            self.tell_log(subject, Err("the pod was gone before its log was read"));
        }
    }

    pub(super) fn send_log_reads(&mut self, now: Millis) {
        while self.logs.in_flight.len() < LOG_READS_IN_FLIGHT_MAX
            && let Some(uid) = self.logs.queue.pop_front()
        {
            let Some(pod) = self.snapshot.get(&uid) else {
                self.forget_log(&uid);
                continue;
            };
            // Where an init container failed, the others have nothing to say.
            let init = pod.end.as_ref().and_then(|end| end.init.as_ref());
            let container = init.map(|init| init.name.clone()).or_else(|| pod.decider.clone());
            let (name, n_lines) = (pod.name.to_string(), self.policy.log_lines);
            self.logs.in_flight.insert(uid.clone());
            self.logs.sent.push_back(now);
            self.actions.push_back(Action::ReadLog { uid, name, container, n_lines });
        }
    }

    fn tell_log(&mut self, subject: Subject, log: Result<Vec<String>, &str>) {
        let (lines, message) = match log {
            Ok(lines) => (lines, None),
            Err(why) => (Vec::new(), Some(why.to_owned())),
        };
        self.events.push_back(Event::ExecutorLog { subject, lines, message });
    }
}
