//! The numbers of a run, for scrapes. The reconciler's thread counts after each turn; a scrape copies
//! what was counted and formats its copy, so neither waits for the other.

mod process;
mod recorder;
mod text;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::inbox::Message;
use crate::kube_events::SentCounts;
use crate::metrics::process::ProcessUsage;
use crate::metrics::recorder::{Recorder, seconds};
use crate::metrics::text::Scrape;
use posse_base::clock::Clock;
use posse_base::sync::lock;
use posse_base::time::Millis;
use posse_control::metrics::Metrics;
use posse_core::model::event::Event;
use posse_core::reconciler::Reconciler;
use posse_kube::http::Http;

/// The counters of one run.
pub struct RunMetrics {
    app: String,
    clock: Clock,
    /// When the process started, by the wall clock.
    started_at: SystemTime,
    http: Http,
    sent: Arc<SentCounts>,
    recorder: Mutex<Recorder>,
}

impl fmt::Debug for RunMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunMetrics").field("app", &self.app).finish_non_exhaustive()
    }
}

impl RunMetrics {
    /// The counters of a run that starts now. `http`: the client whose requests count.
    pub fn new(app: &str, clock: Clock, http: Http, sent: Arc<SentCounts>) -> Self {
        let started_at = clock.wall(Millis::ZERO);
        Self { app: app.to_owned(), clock, started_at, http, sent, recorder: Mutex::default() }
    }

    /// Counts a message that the reconciler took, and what it says.
    pub fn on_message(&self, message: &Message) {
        let input = match message {
            Message::Input(input) => Some(input),
            Message::Command { .. }
            | Message::Job { .. }
            | Message::Lease(..)
            | Message::ReadRefused(_) => None,
        };
        lock(&self.recorder).on_message(input);
    }

    /// Counts an event.
    pub fn on_event(&self, event: &Event, now: Millis) {
        lock(&self.recorder).on_event(event, now);
    }

    /// Notes the state after a turn that took `took`. `n_waiting`: the messages in the inbox.
    pub fn on_turn(&self, core: &Reconciler, took: Duration, n_waiting: usize, now: Millis) {
        lock(&self.recorder).on_turn(core, took, n_waiting, now);
    }
}

impl Metrics for RunMetrics {
    fn text(&self) -> String {
        let counted = lock(&self.recorder).counted().clone();
        let since = |at: Millis| seconds(self.clock.now().since(at));
        let scrape = Scrape {
            app: &self.app,
            started_at: self.started_at,
            requests: &self.http.request_counts(),
            usage: ProcessUsage::read(),
            sent: &self.sent,
            since: &since,
        };
        scrape.write(&counted)
    }
}
