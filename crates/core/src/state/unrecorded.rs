//! What has changed since the record was written last. A topic that changes twice before it is written is written
//! once, and one write is under way at a time.
//!
//! Always true: nothing counts as recorded that was not sent, and nothing as sent that has not changed.

use std::collections::BTreeSet;

use crate::model::fact::Topic;
use crate::model::ids::GroupName;
use posse_base::time::Millis;

/// The first wait after a write that failed. Each further failure doubles it.
const RETRY_FIRST_MS: u64 = 1_000;
/// The longest wait after a write that failed.
const RETRY_MAX_MS: u64 = 30_000;

/// The topics that are not written yet, and how far the record has come.
#[derive(Clone, Debug, Default)]
pub struct Unrecorded {
    changed: BTreeSet<Topic>,
    /// What comes along with the next write.
    later: BTreeSet<Topic>,
    /// The topics of the write that is under way.
    in_flight: Option<BTreeSet<Topic>>,
    /// How many changes there were.
    n_changes: u64,
    /// How many of them were there when the write under way began.
    n_sent: u64,
    /// How many of them are in the record.
    n_recorded: u64,
    retry: Option<Retry>,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Millis,
    wait_ms: u64,
}

impl Unrecorded {
    /// Something about this topic has changed.
    pub fn note(&mut self, topic: Topic) {
        self.n_changes += 1;
        self.changed.insert(topic);
    }

    /// Something about this topic has changed that a pod shows for now: the next write has it.
    pub fn note_later(&mut self, topic: Topic) {
        self.later.insert(topic);
    }

    pub fn n_changes(&self) -> u64 {
        self.n_changes
    }

    pub fn n_recorded(&self) -> u64 {
        self.n_recorded
    }

    /// What is known about this topic is not in the record yet.
    pub fn has(&self, topic: &Topic) -> bool {
        let in_flight = self.in_flight.as_ref();
        self.changed.contains(topic) || in_flight.is_some_and(|topics| topics.contains(topic))
    }

    /// What is known about the work of this group is not in the record yet.
    pub fn has_work(&self, group: &GroupName) -> bool {
        let blocks = Topic::Work(group.clone(), 0)..=Topic::Work(group.clone(), u32::MAX);
        let mut open = [&self.changed].into_iter().chain(&self.in_flight);
        open.any(|topics| topics.range(blocks.clone()).next().is_some())
    }

    /// When the next write may begin, if something waits for it.
    pub fn due(&self) -> Option<Millis> {
        let is_due = self.in_flight.is_none() && !self.changed.is_empty();
        is_due.then(|| self.retry.map_or(Millis::ZERO, |retry| retry.at))
    }

    /// Begins a write of all that has changed, if one may begin.
    pub fn begin(&mut self, now: Millis) -> Option<BTreeSet<Topic>> {
        self.due().filter(|&at| at <= now)?;
        let mut topics = std::mem::take(&mut self.changed);
        topics.append(&mut self.later);
        self.n_sent = self.n_changes;
        self.in_flight = Some(topics.clone());
        Some(topics)
    }

    /// The write under way has ended.
    pub fn end(&mut self, is_recorded: bool, now: Millis) {
        let Some(topics) = self.in_flight.take() else { return };
        if is_recorded {
            self.n_recorded = self.n_sent;
            self.retry = None;
            return;
        }
        self.changed.extend(topics);
        let wait_ms = self.retry.map_or(RETRY_FIRST_MS, |retry| retry.wait_ms * 2);
        let wait_ms = wait_ms.min(RETRY_MAX_MS);
        self.retry = Some(Retry { at: now.after(wait_ms), wait_ms });
    }

    /// The record may have lost what the write under way has written, so its answer says nothing.
    pub fn doubt(&mut self) {
        self.n_sent = self.n_recorded;
    }

    pub fn check(&self) {
        debug_assert!(self.n_recorded <= self.n_sent && self.n_sent <= self.n_changes);
    }

    /// All that is not known to be in the record, for a last write.
    pub fn take_all(&mut self) -> BTreeSet<Topic> {
        let mut all = std::mem::take(&mut self.changed);
        all.append(&mut self.later);
        all.extend(self.in_flight.take().into_iter().flatten());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> Topic {
        Topic::Target(GroupName::from(name))
    }

    #[test]
    fn one_write_is_under_way_and_has_what_has_changed() {
        let mut state = Unrecorded::default();
        let now = Millis(5);
        assert_eq!((state.due(), state.begin(now)), (None, None));
        for name in ["a", "b", "a"] {
            state.note(target(name));
        }
        assert_eq!(state.begin(now), Some([target("a"), target("b")].into()));
        state.note(target("a"));
        assert_eq!((state.due(), state.begin(now)), (None, None), "one is under way");
        assert_eq!((state.n_changes(), state.n_recorded()), (4, 0));
        state.end(true, now);
        assert_eq!(state.n_recorded(), 3);
        assert_eq!(state.begin(now), Some([target("a")].into()));
        state.end(true, now);
        assert_eq!((state.n_recorded(), state.due()), (4, None));
    }

    #[test]
    fn a_write_in_doubt_records_nothing() {
        let mut state = Unrecorded::default();
        let now = Millis(5);
        state.note(target("a"));
        assert!(state.begin(now).is_some());
        state.doubt();
        state.note(target("a"));
        state.end(true, now);
        assert_eq!((state.n_recorded(), state.begin(now)), (0, Some([target("a")].into())));
        state.end(true, now);
        assert_eq!(state.n_recorded(), 2);
    }

    #[test]
    fn a_failed_write_is_repeated_with_what_came_since() {
        let mut state = Unrecorded::default();
        state.note(target("a"));
        assert!(state.begin(Millis(0)).is_some());
        state.end(false, Millis(0));
        state.note(target("b"));
        assert_eq!(state.begin(Millis(999)), None);
        assert_eq!(state.begin(Millis(1_000)), Some([target("a"), target("b")].into()));
        let mut at = Millis(1_000);
        for wait_ms in [2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            state.end(false, at);
            assert_eq!(state.due(), Some(at.after(wait_ms)));
            at = at.after(wait_ms);
            assert!(state.begin(at).is_some());
        }
        state.note(target("c"));
        assert_eq!(state.take_all(), [target("a"), target("b"), target("c")].into());
        assert_eq!(state.n_recorded(), 0);
    }
}
