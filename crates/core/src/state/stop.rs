//! A stop in progress: what it asks for next, and until when it waits.
//!
//! Always true: one of its own requests is in flight at a time, and no LIST counts that was sent before the one that is
//! awaited.

use std::collections::BTreeSet;

use crate::model::action::Action;
use crate::model::ids::Uid;
use crate::model::input::Watermark;
use crate::model::pod::Pod;
use crate::model::refusal::Refusal;
use crate::model::stop::{StopOrder, StopResult};
use posse_base::time::Millis;

const LIST_DELAY_INITIAL_MS: u64 = 100;
const LIST_DELAY_MAX_MS: u64 = 2_000;
/// How long the deletes wait for labels to be written and logs to be read.
const PATCH_AND_LOG_MS: u64 = 2_000;
/// The time beyond the executors' grace period in which the cluster must report that they are gone.
const GONE_MARGIN_MS: u64 = 5_000;
/// In a hurry, how long the answers to the deletes are awaited.
const HURRY_MS: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopStep {
    /// The answer to a LIST.
    List,
    /// The time to delete the executors.
    DeletesAt(Millis),
    /// The time for the next LIST.
    ListAt(Millis),
}

/// A stop in progress.
#[derive(Clone, Debug)]
pub struct Stop {
    order: StopOrder,
    step: StopStep,
    /// Nothing is deleted before a LIST has shown what has ended. It is tried again until then.
    look_until: Option<Millis>,
    grace_s: u32,
    deadline: Millis,
    /// In a hurry: the stop ends then, or when the deletes are answered.
    hurry_until: Option<Millis>,
    /// Pods with a grace period that is longer than the stop's own, and until when the cluster must
    /// report that they are gone.
    long_graces: BTreeSet<(Millis, Uid)>,
    /// Until then failed pods are labelled and logs are read, before the executors are deleted.
    patch_and_log_deadline: Millis,
    /// The retained pods that were told to leave their queues.
    left_queues: BTreeSet<Uid>,
    n_lists: u32,
    /// The executors that are known now are to be deleted.
    deletes: bool,
    /// Pods that were left at the last turn.
    n_left: usize,
    /// When the LIST in flight was sent.
    list_sent_at: Millis,
    /// The last time at which a create was open, so that a pod may have appeared.
    open_create_seen_at: Millis,
    /// When the last answered LIST was sent.
    listed_at: Option<Millis>,
    result: Option<StopResult>,
}

impl Stop {
    /// `timeout_ms`: the grace period of the executors. `looks`: a LIST comes before the deletes. `n_left`: how many pods
    /// there are.
    pub fn new(order: StopOrder, timeout_ms: u64, looks: bool, n_left: usize, now: Millis) -> Self {
        let most_ms = timeout_ms.saturating_add(GONE_MARGIN_MS);
        Self {
            order,
            step: if looks { StopStep::ListAt(now) } else { StopStep::DeletesAt(now) },
            look_until: looks.then(|| now.after(most_ms / 2)),
            grace_s: u32::try_from(timeout_ms.div_ceil(1_000)).unwrap_or(u32::MAX),
            deadline: now.after(most_ms),
            hurry_until: None,
            long_graces: BTreeSet::new(),
            patch_and_log_deadline: now.after(PATCH_AND_LOG_MS),
            left_queues: BTreeSet::new(),
            n_lists: 0,
            deletes: false,
            n_left,
            list_sent_at: now,
            open_create_seen_at: now,
            listed_at: None,
            result: None,
        }
    }

    pub fn order(&self) -> StopOrder {
        self.order
    }

    /// The grace period of the executors.
    pub fn grace_s(&self) -> u32 {
        self.grace_s
    }

    /// None while the stop is in progress.
    pub fn result(&self) -> Option<&StopResult> {
        self.result.as_ref()
    }

    pub fn finish(&mut self, result: StopResult) {
        self.result = Some(result);
    }

    /// Ends at once, whatever is left.
    pub fn abandon(&mut self, now: Millis) {
        self.hurry_until = Some(now);
    }

    /// Ends soon, whatever is left.
    pub fn hurry(&mut self, now: Millis) {
        self.hurry_until = Some(now.after(HURRY_MS));
        self.begin_deletes(now);
        self.patch_and_log_deadline = now;
    }

    /// The time for labels and logs is not over.
    pub fn waits_for_reads(&self) -> bool {
        self.look_until.is_some() || matches!(self.step, StopStep::DeletesAt(_))
    }

    /// In a hurry, and the executors were deleted.
    pub fn awaits_answers_only(&self) -> bool {
        self.hurry_until.is_some() && !self.waits_for_reads()
    }

    /// The next request, which is in flight now. `is_held`: something is to be done before the executors are deleted.
    pub fn next_request(
        &mut self,
        watermark: Watermark,
        is_held: impl FnOnce() -> bool,
        now: Millis,
    ) -> Option<Action> {
        match self.step {
            // Failed pods are labelled first, so that the next process does not count them again; and the last logs are
            // read, if the server returns them in time.
            StopStep::DeletesAt(at)
                if at <= now && now < self.patch_and_log_deadline && is_held() =>
            {
                self.step = StopStep::DeletesAt(now.after(LIST_DELAY_INITIAL_MS));
                None
            }
            StopStep::DeletesAt(at) if at <= now => {
                (self.step, self.deletes) =
                    (StopStep::ListAt(now.after(LIST_DELAY_INITIAL_MS)), true);
                None
            }
            StopStep::ListAt(at) if at <= now => {
                (self.step, self.list_sent_at) = (StopStep::List, now);
                Some(Action::List { watermark })
            }
            StopStep::DeletesAt(_) | StopStep::List | StopStep::ListAt(_) => None,
        }
    }

    fn begin_deletes(&mut self, at: Millis) {
        (self.step, self.look_until) = (StopStep::DeletesAt(at), None);
        self.patch_and_log_deadline = at.after(PATCH_AND_LOG_MS);
    }

    fn list_at(&mut self, at: Millis) {
        match self.look_until {
            Some(until) if until <= at => self.begin_deletes(at),
            Some(_) | None => self.step = StopStep::ListAt(at),
        }
    }

    /// A LIST of the stop was answered. `is_applied`: it was valid (no resourceVersion rollback). When it was sent, if it
    /// was.
    pub fn on_listed(&mut self, is_applied: bool, now: Millis) -> Option<Millis> {
        let listed_at = Some(self.list_sent_at).filter(|_| is_applied);
        self.listed_at = listed_at.or(self.listed_at);
        // After the first look others may be held back: the deletes come next.
        self.deletes = self.look_until.is_none();
        if is_applied && !self.deletes {
            self.begin_deletes(now);
            return listed_at;
        }
        self.n_lists = self.n_lists.saturating_add(1);
        let delay = LIST_DELAY_INITIAL_MS << self.n_lists.min(5);
        self.list_at(now.after(delay.min(LIST_DELAY_MAX_MS)));
        listed_at
    }

    pub fn on_list_refused(&mut self, refusal: &Refusal, now: Millis) {
        let ms = self.within(refusal.retry_delay_ms().max(LIST_DELAY_MAX_MS / 2), now);
        self.list_at(now.after(ms));
    }

    /// The executors that are known now are to be deleted. True once, at the time for it and after each LIST.
    pub fn take_deletes(&mut self) -> bool {
        std::mem::take(&mut self.deletes)
    }

    /// True if a LIST was answered that was sent after the last open create. `has_open`: one is open now.
    pub fn is_all_listed(&mut self, has_open: bool, now: Millis) -> bool {
        if has_open {
            self.open_create_seen_at = now;
        }
        !has_open && self.listed_at.is_some_and(|at| at > self.open_create_seen_at)
    }

    /// As long as pods go, the stop goes on.
    pub fn note_left(&mut self, n_left: usize, now: Millis) {
        if n_left < self.n_left {
            self.deadline = self.deadline.max(now.after(GONE_MARGIN_MS));
        }
        self.n_left = n_left;
    }

    /// A pod that terminates has a grace period of its own. The stop's delete shortens it on the server,
    /// but a node that has begun to end the containers may go on with the one that it began with
    /// (seen with kubelet 1.33). `is_begun`: the node may have begun before the stop's delete.
    pub fn note_grace(&mut self, pod: &Pod, is_begun: bool, now: Millis) {
        let grace_s = match is_begun {
            true => pod.grace_s.max(pod.deletion_grace_s),
            false => pod.deletion_grace_s,
        };
        if grace_s > self.grace_s && (pod.deleting || is_begun) {
            let until = now.after(u64::from(grace_s) * 1_000).after(GONE_MARGIN_MS);
            self.long_graces.insert((until, pod.uid.clone()));
        }
    }

    /// Only pods that are there are waited for.
    pub fn forget_ended_graces(&mut self, is_there: impl Fn(&Uid) -> bool) {
        while self.long_graces.last().is_some_and(|(_, uid)| !is_there(uid)) {
            self.long_graces.pop_last();
        }
    }

    /// This retained pod is to leave its queue. True if it was not told before.
    pub fn leaves_queue(&mut self, uid: &Uid) -> bool {
        self.left_queues.insert(uid.clone())
    }

    /// The server's history went back, perhaps to a time at which the retained pods had not left.
    pub fn forget_left_queues(&mut self) {
        self.left_queues.clear();
    }

    /// A retry delay that leaves time for the retry.
    pub fn within(&self, delay_ms: u64, now: Millis) -> u64 {
        delay_ms.min((self.deadline.since(now) / 2).max(LIST_DELAY_INITIAL_MS))
    }

    /// When the stop ends whatever is left: after the executors' grace period, and after the time in which
    /// a create can take effect. `open_until`: for each create; `unlisted`: when the last one was closed that no LIST has
    /// shown.
    pub fn end(
        &self,
        open_until: impl Iterator<Item = Millis>,
        unlisted: Option<Millis>,
    ) -> Millis {
        let end = match self.order.keep {
            true => self.deadline,
            false => {
                let listed_by = unlisted.map(|at| at.after(GONE_MARGIN_MS));
                // When the cluster must have reported that all pods are gone.
                let gone_by = self.long_graces.last().map(|(until, _)| *until);
                open_until.chain(listed_by).chain(gone_by).fold(self.deadline, Millis::max)
            }
        };
        self.hurry_until.map_or(end, |until| until.min(end))
    }

    /// When the next request may be sent, if that is known.
    pub fn due(&self) -> Option<Millis> {
        match self.step {
            StopStep::DeletesAt(at) | StopStep::ListAt(at) => Some(at),
            StopStep::List => None,
        }
    }

    pub fn check(&self) {
        debug_assert!(self.listed_at <= Some(self.list_sent_at), "a LIST from before counts");
    }
}
