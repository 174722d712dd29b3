//! What the API server bears: whether it answers, since when it does not and why, and how many creates it gets at a time.
//!
//! Always true: no more creates are in flight than the largest window has room for, and each is answered once.

use crate::model::refusal::{Refusal, RefusalClass};
use crate::model::status::Outage;
use crate::state::window::Window;
use posse_base::time::Millis;

/// What the answers to the requests of all threads say about the API server.
#[derive(Clone, Debug)]
pub struct Server {
    /// LIST and WATCH fail: posse does not see what happens to its pods.
    reads: Option<Outage>,
    /// Other requests get no answer.
    writes: Option<Outage>,
    /// When the server last answered anything.
    heard_at: Option<Millis>,
    /// A quota has counted pods that have ended.
    counts_ended: bool,
    /// How many creates are in flight, and how many more may be.
    pub window: Window,
}

impl Server {
    /// `in_flight_max`: the largest number of creates in flight.
    pub fn new(in_flight_max: u32) -> Self {
        let window = Window::new(in_flight_max);
        Self { reads: None, writes: None, heard_at: None, counts_ended: false, window }
    }

    /// A quota refused a create, and it counts pods that have ended.
    pub fn on_quota_of_ended(&mut self) {
        self.counts_ended = true;
    }

    /// A quota of the namespace counts pods that have ended, as it said once.
    pub fn counts_ended(&self) -> bool {
        self.counts_ended
    }

    /// A LIST was answered, a watch was opened, or it delivered something.
    pub fn on_read(&mut self, now: Millis) {
        (self.heard_at, self.reads, self.writes) = (Some(now), None, None);
    }

    /// A LIST or a WATCH failed.
    pub fn on_read_refused(&mut self, refusal: &Refusal, message: String, now: Millis) {
        // The version was too old: a normal answer.
        if refusal.class != RefusalClass::Expired {
            begin(&mut self.reads, now, message);
        }
    }

    /// Another request was answered.
    pub fn on_answered(&mut self, now: Millis) {
        (self.heard_at, self.writes) = (Some(now), None);
    }

    /// Another request did not reach the server, or several that were sent since `since` got no
    /// answer.
    pub fn on_no_answer(&mut self, since: Millis, message: String) {
        if self.is_silent_since(since) {
            begin(&mut self.writes, since, message);
        }
    }

    /// True if the server has answered nothing since then. A request that times out while the server
    /// answers others says nothing about the server.
    pub fn is_silent_since(&self, since: Millis) -> bool {
        self.heard_at.is_none_or(|at| at <= since)
    }

    /// When the server last answered anything; none: not yet.
    pub fn heard_at(&self) -> Option<Millis> {
        self.heard_at
    }

    /// The outage, if there is one.
    pub fn outage(&self) -> Option<&Outage> {
        [&self.reads, &self.writes].into_iter().flatten().min_by_key(|outage| outage.since)
    }
}

fn begin(outage: &mut Option<Outage>, since: Millis, message: String) {
    let since = outage.as_ref().map_or(since, |outage| outage.since);
    *outage = Some(Outage { since, message });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(class: RefusalClass) -> Refusal {
        Refusal::local(class, "")
    }

    #[test]
    fn only_the_servers_own_silence_is_an_outage() {
        let mut health = Server::new(1);
        let since = |health: &Server| health.outage().map(|outage| outage.since.0);
        health.on_read_refused(&refusal(RefusalClass::Expired), String::new(), Millis(1));
        assert_eq!(since(&health), None);

        // A create times out while the watch delivers events: a slow webhook.
        health.on_read(Millis(20));
        health.on_no_answer(Millis(10), String::new());
        assert_eq!(since(&health), None);
        // Nothing came since it was sent: the server is silent.
        health.on_no_answer(Millis(25), String::new());
        health.on_no_answer(Millis(30), String::new());
        assert_eq!(since(&health), Some(25));
        health.on_answered(Millis(60));
        assert_eq!(since(&health), None);

        // While LIST and WATCH fail, the answer to a create does not end the outage.
        health.on_read_refused(&refusal(RefusalClass::Forbidden), "no".to_owned(), Millis(70));
        health.on_answered(Millis(80));
        health.on_no_answer(Millis(90), String::new());
        assert_eq!(since(&health), Some(70));
        health.on_read(Millis(100));
        assert_eq!(since(&health), None);
    }
}
