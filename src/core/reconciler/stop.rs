//! Owns the end of a run: send nothing new, await the answers, delete, list until nothing is left,
//! and name what may remain. Ends by itself; never later than its deadlines.

use super::Reconciler;
use crate::core::model::action::Action;
use crate::core::model::event::{DeleteCause, Event};
use crate::core::model::ids::ExecutorId;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::core::model::stop::{StopOrder, StopResult};
use crate::core::model::time::Millis;
use crate::core::state::executors::{Ending, Life};
use crate::core::state::ledger::MutationKind;

const LIST_DELAY_INITIAL_MS: u64 = 100;
const LIST_DELAY_MAX_MS: u64 = 2_000;
const LABELS_MS: u64 = 2_000;
/// What the cluster gets beyond the executors' own grace, to tell that they are gone.
const GONE_MARGIN_MS: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopStep {
    /// The answer to the delete of everything.
    DeleteAll,
    /// The answer to a LIST.
    List,
    /// The time for the next delete of everything.
    DeleteAllAt(Millis),
    /// The time for the next LIST.
    ListAt(Millis),
}

/// A stop under way.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    pub(super) order: StopOrder,
    step: StopStep,
    pub(super) grace_s: u32,
    gone_by: Millis,
    /// Until then the evidence may be labelled, and logs be read, before everything is deleted.
    labels_by: Millis,
    n_lists: u32,
    /// When the LIST now under way was sent.
    list_sent_at: Millis,
    /// The last time that something may have been created.
    unsure_at: Millis,
    /// When the last LIST that was answered was sent.
    listed_at: Option<Millis>,
    result: Option<StopResult>,
}

impl Reconciler {
    /// Begins the end of the run. Nothing new is asked for from here on.
    pub fn begin_stop(&mut self, order: StopOrder, now: Millis) {
        if self.stop.is_some() {
            return;
        }
        self.tell_stopping();
        let timeout_ms = self.policy.stop_timeout_ms;
        let had_any = !self.had_first_list
            || !self.executors.is_empty()
            || !self.snapshot.is_empty()
            || !self.mutations.is_empty();
        self.stop = Some(Stop {
            order,
            step: StopStep::DeleteAllAt(now),
            grace_s: u32::try_from(timeout_ms.div_ceil(1_000)).unwrap_or(u32::MAX),
            gone_by: now.after(timeout_ms).after(GONE_MARGIN_MS),
            labels_by: now.after(LABELS_MS),
            n_lists: 0,
            list_sent_at: now,
            unsure_at: now,
            listed_at: None,
            result: None,
        });
        let ids: Vec<ExecutorId> = self.executors.iter().map(|(id, _)| id).collect();
        for id in ids {
            let Some(executor) = self.executors.get_mut(id) else { continue };
            if executor.uid.is_none() {
                // What is kept may also still come.
                let is_awaited =
                    order.keep && executor.create.as_ref().is_some_and(|c| c.is_in_flight());
                if !is_awaited {
                    self.cancel_create(id, now);
                }
            } else if !order.keep && executor.life == Life::Wanted {
                executor.life = Life::Ending(Ending::now(DeleteCause::Stopped));
                self.refresh_state(id, now);
            }
        }
        // With nothing ever there, there is nothing to clean up, and nobody to ask.
        if order.keep || !self.is_lease_held || (!had_any && self.window.in_flight() == 0) {
            self.finish_stop_if_settled(now);
        }
    }

    /// How the stop came out; none while it is under way.
    #[must_use]
    pub fn stop_result(&self) -> Option<&StopResult> {
        self.stop.as_ref()?.result.as_ref()
    }

    /// What may be left now, for the one who cannot wait any longer.
    #[must_use]
    pub fn remaining(&self) -> StopResult {
        let spares = self.stop.as_ref().is_some_and(|stop| stop.order.keep_failed);
        let mut result = StopResult { remaining: Vec::new(), evidence: Vec::new() };
        for pod in self.snapshot.pods() {
            let is_kept =
                self.executors.get(pod.id).is_some_and(|executor| executor.life == Life::Retained);
            let names =
                if is_kept && spares { &mut result.evidence } else { &mut result.remaining };
            names.push(pod.name.to_string());
        }
        for (id, executor) in self.executors.iter() {
            if executor.uid.is_none() {
                result.remaining.push(self.pod_name(id));
            }
        }
        result.remaining.extend(self.mutations.unseen(&self.snapshot).map(str::to_owned));
        result.remaining.extend(self.unresolved_creates.ids().map(|id| self.pod_name(id)));
        result.remaining.sort();
        result.remaining.dedup();
        result
    }

    pub(super) fn turn_stop(&mut self, now: Millis) -> Option<Millis> {
        let stop = self.stop.as_ref()?;
        if stop.result.is_some() {
            return None;
        }
        if stop.order.keep || !self.is_lease_held {
            return self.finish_stop_if_settled(now);
        }
        if self.is_stop_done(now) || self.is_past_all(now) {
            self.finish_stop();
            return None;
        }
        self.delete_late_comers();
        let mark = self.mark();
        let stop = self.stop.as_mut()?;
        match stop.step {
            // The labels that spare evidence come first, and the last logs, where the server gives
            // them in time.
            StopStep::DeleteAllAt(at)
                if at <= now
                    && (stop.order.keep_failed && self.mutations.has_counts()
                        || self.logs.is_busy())
                    && now < stop.labels_by =>
            {
                stop.step = StopStep::DeleteAllAt(now.after(LIST_DELAY_INITIAL_MS));
            }
            StopStep::DeleteAllAt(at) if at <= now => {
                stop.step = StopStep::DeleteAll;
                let (grace_s, spare_counted) = (stop.grace_s, stop.order.keep_failed);
                self.actions.push_back(Action::DeleteAll { grace_s, spare_counted });
            }
            StopStep::ListAt(at) if at <= now => {
                (stop.step, stop.list_sent_at) = (StopStep::List, now);
                self.actions.push_back(Action::List { asked: mark });
            }
            StopStep::DeleteAll
            | StopStep::DeleteAllAt(_)
            | StopStep::List
            | StopStep::ListAt(_) => {}
        }
        self.stop_deadline()
    }

    pub(super) fn on_deleted_all(&mut self, answer: Result<(), Refusal>, now: Millis) {
        let Some(stop) = &mut self.stop else { return };
        stop.step = match answer {
            Ok(()) => StopStep::ListAt(now.after(LIST_DELAY_INITIAL_MS)),
            // Without the right to delete a collection they go one by one.
            Err(refusal) if refusal.class == RefusalClass::Forbidden => StopStep::ListAt(now),
            Err(refusal) => {
                let ms = refusal.retry_after_ms.unwrap_or(0).max(LIST_DELAY_MAX_MS / 2);
                StopStep::DeleteAllAt(now.after(ms))
            }
        };
    }

    /// A LIST of the stop is in. `is_applied`: it told something, for history had not gone back.
    pub(super) fn on_stop_listed(&mut self, is_applied: bool, now: Millis) {
        let Some(stop) = &mut self.stop else { return };
        stop.n_lists = stop.n_lists.saturating_add(1);
        if is_applied {
            stop.listed_at = Some(stop.list_sent_at);
        }
        let delay = LIST_DELAY_INITIAL_MS << stop.n_lists.min(5);
        stop.step = StopStep::ListAt(now.after(delay.min(LIST_DELAY_MAX_MS)));
    }

    pub(super) fn on_stop_list_refused(&mut self, refusal: &Refusal, now: Millis) {
        if let Some(stop) = &mut self.stop {
            let ms = refusal.retry_after_ms.unwrap_or(0).max(LIST_DELAY_MAX_MS / 2);
            stop.step = StopStep::ListAt(now.after(ms));
        }
    }

    /// True where a LIST that was sent after everything was settled has shown nothing of ours.
    fn is_stop_done(&mut self, now: Millis) -> bool {
        let has_open = self.has_open_creates();
        let spares = self.stop.as_ref().is_some_and(|stop| stop.order.keep_failed);
        let is_clear = self.snapshot.is_synced()
            && self.mutations.unseen(&self.snapshot).next().is_none()
            && self.snapshot.pods().all(|pod| {
                spares
                    && self
                        .executors
                        .get(pod.id)
                        .is_some_and(|executor| executor.life == Life::Retained)
            });
        let Some(stop) = &mut self.stop else { return false };
        if has_open {
            stop.unsure_at = now;
        }
        is_clear && !has_open && stop.listed_at.is_some_and(|at| at > stop.unsure_at)
    }

    /// Past the time the pods had, and past the time in which a create can still take effect.
    fn is_past_all(&self, now: Millis) -> bool {
        self.stop.as_ref().is_none_or(|stop| stop.gone_by <= now)
            && self.open_until().is_none_or(|until| until <= now)
    }

    fn stop_deadline(&self) -> Option<Millis> {
        let stop = self.stop.as_ref()?;
        let step = match stop.step {
            StopStep::DeleteAllAt(at) | StopStep::ListAt(at) => Some(at),
            StopStep::DeleteAll | StopStep::List => None,
        };
        let end = self.open_until().unwrap_or(stop.gone_by).max(stop.gone_by);
        step.into_iter().chain([end]).min()
    }

    fn has_open_creates(&self) -> bool {
        self.unresolved_creates.open_until().is_some()
            || self.executors.iter().any(|(_, executor)| executor.create.is_some())
    }

    /// Until when a create of unknown outcome may still take effect.
    fn open_until(&self) -> Option<Millis> {
        self.executors
            .iter()
            .filter_map(|(_, executor)| executor.create.as_ref()?.open_until())
            .chain(self.unresolved_creates.open_until())
            .max()
    }

    fn delete_late_comers(&mut self) {
        let stop = self.stop.as_ref();
        // The first LIST comes after the delete of everything: what it shows alive came late.
        if stop.is_none_or(|stop| stop.n_lists == 0) {
            return;
        }
        let spares = stop.is_some_and(|stop| stop.order.keep_failed);
        for pod in self.snapshot.pods().filter(|pod| !pod.deleting) {
            let is_kept =
                self.executors.get(pod.id).is_some_and(|executor| executor.life == Life::Retained);
            if !(spares && is_kept) {
                self.mutations.ask(&pod.uid, &pod.name, MutationKind::Delete);
            }
        }
    }

    /// Nothing is deleted: only the answers to what was sent are waited for.
    fn finish_stop_if_settled(&mut self, now: Millis) -> Option<Millis> {
        let is_overdue = self.stop.as_ref().is_some_and(|stop| stop.gone_by <= now);
        if self.window.in_flight() == 0 || is_overdue {
            self.finish_stop();
            return None;
        }
        self.stop.as_ref().map(|stop| stop.gone_by)
    }

    fn finish_stop(&mut self) {
        let leaves = self.stop.as_ref().is_some_and(|stop| stop.order.keep) || !self.is_lease_held;
        let mut result = self.remaining();
        if leaves {
            // Left on purpose, or no longer ours to speak of.
            result.remaining.clear();
        }
        if let Some(stop) = &mut self.stop {
            stop.result = Some(result);
        }
        self.events.push_back(Event::Stopped);
    }
}
