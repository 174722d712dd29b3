//! Whether the API server answers, and the events about that.

use super::Reconciler;
use crate::model::event::{ClusterEvent, Event};
use crate::model::refusal::{Advice, Refusal, Verb};
use crate::model::status::Outage;
use crate::model::waiting::{RunWait, ServerWait, Waiting};
use crate::policy::loss::MESSAGE_BYTES_MAX;
use crate::state::server::Server;
use posse_base::text::sanitize;
use posse_base::time::Millis;

impl Reconciler {
    /// The API server does not answer: since when and why.
    pub fn outage(&self) -> Option<&Outage> {
        self.server.outage()
    }

    /// Notes the answer to a request that was sent at `sent_at` (none: not known).
    pub(super) fn note_answer<T>(
        &mut self,
        answer: &Result<T, Refusal>,
        sent_at: Option<Millis>,
        now: Millis,
    ) {
        match answer {
            Err(refusal) if refusal.is_no_answer() && refusal.is_overload() => {
                let message = sanitize(&refusal.to_string(), MESSAGE_BYTES_MAX);
                self.change_server(|server| server.on_no_answer(now, message));
            }
            // It timed out: perhaps a slow webhook, perhaps a silent server. A LIST shows which.
            Err(refusal) if refusal.is_no_answer() => {
                let is_silent = sent_at.is_some_and(|at| self.server.is_silent_since(at));
                if is_silent && !self.end.is_stopping() {
                    self.request_list(now);
                }
            }
            Err(refusal) if refusal.is_overload() => {}
            Ok(_) | Err(_) => self.change_server(|server| server.on_answered(now)),
        }
    }

    /// No request since `since` was answered.
    pub(super) fn on_no_answer(&mut self, since: Millis, message: String) {
        self.change_server(|server| server.on_no_answer(since, message));
    }

    /// The watch or the poll got something.
    pub(super) fn on_read(&mut self, now: Millis) {
        self.change_server(|server| server.on_read(now));
    }

    /// A request of the watch or the poll failed.
    pub(super) fn on_read_refused(&mut self, refusal: &Refusal, now: Millis) {
        // The start ends with it: nobody tries again.
        if !self.had_first_list() && refusal.advice(Verb::List) == Advice::Retire {
            return;
        }
        let message = sanitize(&refusal.to_string(), MESSAGE_BYTES_MAX);
        self.change_server(|server| server.on_read_refused(refusal, message, now));
    }

    /// What the server or the network said, if a group waits for the server.
    pub(super) fn server_message(&self, waiting: Waiting) -> Option<String> {
        let outage = || Some(self.outage()?.message.clone());
        let overload = || Some(sanitize(self.server.window.overload()?, MESSAGE_BYTES_MAX));
        match waiting {
            Waiting::Server(ServerWait::Failing) => overload().or_else(outage),
            Waiting::Run(RunWait::FirstList | RunWait::Lease | RunWait::StaleSnapshot) => outage(),
            Waiting::Run(
                RunWait::Credentials | RunWait::DriverReady | RunWait::Ids | RunWait::Stopping,
            )
            | Waiting::Server(ServerWait::InFlight | ServerWait::Permanent | ServerWait::Quota)
            | Waiting::Start(_)
            | Waiting::Group(_) => None,
        }
    }

    fn change_server(&mut self, change: impl FnOnce(&mut Server)) {
        let before = self.server.outage().map(|outage| outage.since);
        change(&mut self.server);
        match (before, self.server.outage()) {
            (None, Some(Outage { message, .. })) => {
                let message = message.clone();
                self.out.tell(Event::Cluster(ClusterEvent::ServerUnavailable { message }));
            }
            (Some(since), None) => {
                self.out.tell(Event::Cluster(ClusterEvent::ServerAvailable { since }))
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}
