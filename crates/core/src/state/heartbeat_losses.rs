//! How many executors of one group may be lost for missing heartbeats within a time.

use std::collections::VecDeque;

use posse_base::time::Millis;

/// One of this many executors of a group may be lost for missing heartbeats within one timeout. If
/// more are silent at once, the network or the driver is the cause, and ending them all would make
/// it worse.
const SILENT_SHARE: u32 = 10;

/// When executors of a group were lost because of missing heartbeats, within the timeout.
#[derive(Clone, Debug, Default)]
pub struct HeartbeatLosses {
    times: VecDeque<Millis>,
}

impl HeartbeatLosses {
    /// Counts a loss, if another one is allowed among so many executors. Otherwise returns when one will be.
    pub fn take(&mut self, n_executors: u32, timeout_ms: u64, now: Millis) -> Option<Millis> {
        while self.times.front().is_some_and(|&at| now.since(at) >= timeout_ms) {
            self.times.pop_front();
        }
        let most = (n_executors / SILENT_SHARE).max(1);
        if self.times.len() >= most as usize {
            return self.times.front().map(|at| at.after(timeout_ms));
        }
        self.times.push_back(now);
        None
    }
}
