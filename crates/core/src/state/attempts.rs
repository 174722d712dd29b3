//! The attempts of a group whose executors begin together (`on_loss: group`).

use std::collections::BTreeSet;

use crate::model::ids::ExecutorId;

/// The attempt of one group, and what is left of those before.
#[derive(Clone, Debug)]
pub struct Attempts {
    /// From 1: each restart of the whole group begins another one.
    current: u32,
    /// An executor of the current one was lost.
    has_failed: bool,
    /// Executors of earlier attempts that have not ended.
    earlier: BTreeSet<ExecutorId>,
    /// The record knows that it has begun when it has so many changes of the run.
    recorded_at: u64,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { current: 1, has_failed: false, earlier: BTreeSet::new(), recorded_at: 0 }
    }
}

impl Attempts {
    /// The number of the attempt.
    pub fn current(&self) -> u32 {
        self.current
    }

    /// The group begins again. The number of the next attempt.
    pub fn begin_next(&mut self) -> u32 {
        self.on_found(self.current.saturating_add(1));
        self.current
    }

    /// A pod of this attempt was found.
    pub fn on_found(&mut self, attempt: u32) {
        if attempt > self.current {
            (self.current, self.has_failed) = (attempt, false);
        }
    }

    /// An executor of this attempt was lost. True if the attempt fails by it: it fails once, and what ends afterwards
    /// is part of it.
    pub fn fail(&mut self, attempt: u32) -> bool {
        attempt >= self.current && !std::mem::replace(&mut self.has_failed, true)
    }

    /// The current attempt waits for the end of this executor.
    pub fn await_end(&mut self, id: ExecutorId) {
        self.earlier.insert(id);
    }

    /// This executor can no longer run.
    pub fn on_ended(&mut self, id: ExecutorId) {
        self.earlier.remove(&id);
    }

    /// The current attempt waits until the record has so many changes.
    pub fn record_at(&mut self, n_changes: u64) {
        self.recorded_at = n_changes;
    }

    /// True if the record, which has so many changes, may count what an earlier attempt has completed.
    pub fn awaits_record(&self, n_recorded: u64) -> bool {
        self.recorded_at > n_recorded
    }

    /// True if executors of earlier attempts have not ended.
    pub fn awaits_ends(&self) -> bool {
        !self.earlier.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_fails_once() {
        let mut attempts = Attempts::default();
        assert_eq!([1, 1].map(|attempt| attempts.fail(attempt)), [true, false]);
        assert_eq!(attempts.begin_next(), 2);
        assert_eq!([1, 2, 2].map(|attempt| attempts.fail(attempt)), [false, true, false]);
    }
}
