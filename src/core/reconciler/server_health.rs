//! Whether the API server answers, and the events about that.

use super::Reconciler;
use crate::core::loss::MESSAGE_BYTES_MAX;
use crate::core::model::event::Event;
use crate::core::model::refusal::Refusal;
use crate::core::model::status::Outage;
use crate::core::model::text::sanitize;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;
use crate::core::state::server_health::ServerHealth;

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
                if is_silent && self.stop.is_none() {
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
        let message = sanitize(&refusal.to_string(), MESSAGE_BYTES_MAX);
        self.change_server(|server| server.on_read_refused(refusal, message, now));
    }

    /// What the server or the network said, if a group waits for the server.
    pub(super) fn server_message(&self, waiting: Waiting) -> Option<String> {
        let outage = || Some(self.outage()?.message.clone());
        let overload = || Some(sanitize(self.window.overload()?, MESSAGE_BYTES_MAX));
        match waiting {
            Waiting::Server => overload().or_else(outage),
            Waiting::FirstList | Waiting::Lease | Waiting::StaleSnapshot => outage(),
            Waiting::AdoptHold
            | Waiting::Backoff
            | Waiting::ConfigError
            | Waiting::Credentials
            | Waiting::DriverReady
            | Waiting::Gated
            | Waiting::GroupRestart
            | Waiting::Ids
            | Waiting::ImageError
            | Waiting::InFlight
            | Waiting::GroupMax
            | Waiting::PendingLimit
            | Waiting::Permanent
            | Waiting::Quota
            | Waiting::ReplaceGone
            | Waiting::ScaleCommand
            | Waiting::ScaleDownPending
            | Waiting::Slot
            | Waiting::StartTimeout
            | Waiting::Stopping
            | Waiting::Template
            | Waiting::Unschedulable => None,
        }
    }

    fn change_server(&mut self, change: impl FnOnce(&mut ServerHealth)) {
        let before = self.server.outage().map(|outage| outage.since);
        change(&mut self.server);
        match (before, self.server.outage()) {
            (None, Some(Outage { message, .. })) => {
                let message = message.clone();
                self.events.push_back(Event::ServerUnavailable { message });
            }
            (Some(since), None) => self.events.push_back(Event::ServerAvailable { since }),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}
