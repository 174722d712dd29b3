//! Owns what the driver says of its executors: when each was heard from, which are idle, which it
//! lost, and when it spoke last. Judges nobody by it.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::model::ids::ExecutorId;
use crate::core::model::time::Millis;

/// A list of idle executors is good for so long.
pub const IDLE_VALID_MS: u64 = 10_000;

/// What the driver said.
#[derive(Clone, Debug, Default)]
pub struct DriverReports {
    heard: BTreeMap<ExecutorId, Millis>,
    /// Nobody's silence began before this.
    since: Millis,
    /// The last heartbeat call.
    called_at: Option<Millis>,
    /// Those whose reason is looked for, and until when.
    searched: BTreeMap<ExecutorId, Millis>,
    idle: BTreeSet<ExecutorId>,
    idle_until: Option<Millis>,
    /// The last call of any kind; none before the driver could make one.
    pub spoke_at: Option<Millis>,
    /// A look at the silent ones is set for a time.
    pub has_timer: bool,
}

impl DriverReports {
    /// A heartbeat call. After a gap of half the time-out the driver itself was away (paused,
    /// suspended, or posse was), so that nobody's silence from before counts.
    pub fn on_heartbeats(&mut self, ids: &[ExecutorId], timeout_ms: u64, now: Millis) {
        if !self.is_driver_there(timeout_ms, now) {
            self.since = now;
        }
        self.called_at = Some(now);
        for &id in ids {
            self.heard.insert(id, now);
        }
    }

    /// True while heartbeat calls arrive.
    #[must_use]
    pub fn is_driver_there(&self, timeout_ms: u64, now: Millis) -> bool {
        self.called_at.is_some_and(|at| now.since(at) <= timeout_ms / 2)
    }

    /// Nobody's silence so far counts.
    pub fn begin_anew(&mut self, now: Millis) {
        self.since = now;
    }

    /// Those that were not heard from for `timeout_ms`, who was silent for longest first; and when
    /// the next of the others may be.
    #[must_use]
    pub fn silent(&self, timeout_ms: u64, now: Millis) -> (Vec<ExecutorId>, Option<Millis>) {
        let mut silent: Vec<(Millis, ExecutorId)> = Vec::new();
        let mut next: Option<Millis> = None;
        for (&id, &heard_at) in &self.heard {
            let at = heard_at.max(self.since).after(timeout_ms);
            if at <= now {
                silent.push((heard_at, id));
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        silent.sort_unstable();
        (silent.into_iter().map(|(_, id)| id).collect(), next)
    }

    /// The driver lost this one; the first word on it counts. True where it is news.
    pub fn on_lost(&mut self, id: ExecutorId, until: Millis) -> bool {
        let is_news = !self.searched.contains_key(&id);
        if is_news {
            self.searched.insert(id, until);
        }
        is_news
    }

    /// True where the reason of this one was looked for long enough.
    #[must_use]
    pub fn is_searched(&self, id: ExecutorId, now: Millis) -> bool {
        self.searched.get(&id).is_some_and(|&until| until <= now)
    }

    /// Puts the end of a search off.
    pub fn search_on(&mut self, id: ExecutorId, until: Millis) {
        self.searched.insert(id, until);
    }

    /// The idle ones; all others are not.
    pub fn on_idle(&mut self, ids: BTreeSet<ExecutorId>, now: Millis) {
        (self.idle, self.idle_until) = (ids, Some(now.after(IDLE_VALID_MS)));
    }

    /// True where the driver says that this one has nothing to do.
    #[must_use]
    pub fn is_idle(&self, id: ExecutorId, now: Millis) -> bool {
        self.knows_idle(now) && self.idle.contains(&id)
    }

    /// True where the driver says that this one, which runs, has something to do.
    #[must_use]
    pub fn is_busy(&self, id: ExecutorId, now: Millis) -> bool {
        self.knows_idle(now) && !self.idle.contains(&id)
    }

    fn knows_idle(&self, now: Millis) -> bool {
        self.idle_until.is_some_and(|until| now < until)
    }

    /// This one is no concern any more.
    pub fn forget(&mut self, id: ExecutorId) {
        self.heard.remove(&id);
        self.searched.remove(&id);
    }
}
