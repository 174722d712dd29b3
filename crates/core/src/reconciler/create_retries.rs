//! Creates whose request failed: what a failure slows down, when the request is sent again with the
//! same name, and how the failure is told.

use super::Reconciler;
use crate::model::event::{Event, GroupEvent};
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::refusal::{Advice, Refusal, Verb};
use crate::policy::demand::{Demand, Why};
use crate::policy::loss::MESSAGE_BYTES_MAX;
use crate::state::create_backoff::BackoffCause;
use crate::state::executors::{Group, Life, has_ended};
use crate::state::ledger::CreateStep;
use crate::state::throttle::Throttle;
use posse_base::backoff::delay_ms;
use posse_base::text::sanitize;
use posse_base::time::Millis;

pub(super) const RETRY_INITIAL_MS: u64 = 500;
pub(super) const RETRY_MAX_MS: u64 = 30_000;

impl Reconciler {
    /// The create's request was answered with a pod.
    pub(super) fn on_request_answered(&mut self, id: ExecutorId) {
        if let Some(throttle) = self.executors.throttle_of(id) {
            throttle.on_answered();
        }
        self.server.window.on_answered();
    }

    /// The create's request was refused. An overloaded server gets fewer requests from all groups;
    /// a failure that may be due to the request itself slows down its own shape alone.
    pub(super) fn on_request_refused(
        &mut self,
        id: ExecutorId,
        sent_at: Millis,
        refusal: &Refusal,
        now: Millis,
    ) {
        let n_in_flight = self.executors.throttle_of(id).map_or(0, Throttle::on_answered);
        if refusal.is_overload() {
            self.server.window.on_overload(sent_at, refusal, now, &mut self.rng);
        } else if refusal.advice(Verb::Create) == Advice::Retry {
            self.server.window.on_failed();
            let requested_pod = self.create_of(id).and_then(|create| create.pod.clone());
            let rng = &mut self.rng;
            // A failure with an old template says nothing about the new one.
            if self.executors.group_of(id).is_some_and(|group| requested_pod == group.spec.pod)
                && let Some(throttle) = self.executors.throttle_of(id)
            {
                let delay_ms = refusal.retry_delay_ms();
                throttle.backoff.on_failed(sent_at, n_in_flight, delay_ms, now, rng);
            }
        } else {
            self.server.window.on_answered();
        }
    }

    /// The request failed and is sent again: reports this once until all creates of the group
    /// succeed.
    pub(super) fn report_failure(&mut self, id: ExecutorId, refusal: &Refusal, now: Millis) {
        let group = self.executors.group_of(id);
        // Otherwise it was cancelled meanwhile, or its pod was seen.
        let Some(group) = group.filter(|group| group.retries.contains(id)) else { return };
        let message = sanitize(&refusal.to_string(), MESSAGE_BYTES_MAX);
        group.refusal = Some(message.clone());
        if group.retries.note_failure(now) {
            let cause = BackoffCause::Server.as_str();
            let event = GroupEvent::CreateRefused { cause, message };
            self.out.tell(Event::Group(group.spec.name.clone(), event));
        }
    }

    /// This create is not sent again.
    pub(super) fn resolve_retry(&mut self, id: ExecutorId) {
        if let Some(group) = self.executors.group_of(id)
            && group.retries.resolve(id)
        {
            forget_refusal(group);
        }
    }

    pub(super) fn retry_at(&mut self, id: ExecutorId, refusal: &Refusal, now: Millis) -> Millis {
        let n_tries = self.create_of(id).map_or(1, |create| create.n_tries);
        let delay = delay_ms(n_tries, RETRY_INITIAL_MS, RETRY_MAX_MS, &mut self.rng);
        now.after(delay.max(refusal.retry_delay_ms()))
    }

    /// Sends the POST again at `at` with the same name, or the GET, unless its pod was seen meanwhile.
    /// `unknown_since`: when the previous POST was sent, if it may have taken effect.
    pub(super) fn send_again(
        &mut self,
        id: ExecutorId,
        step: CreateStep,
        unknown_since: Option<Millis>,
        at: Millis,
        now: Millis,
    ) {
        let Some(executor) = self.executors.get(id) else { return };
        let (is_seen, is_gone) = (executor.uid.is_some(), executor.life == Life::Gone);
        let (is_cancelled, shape) = (executor.is_cancelled(), executor.shape);
        if executor.create.is_none() {
            return;
        }
        self.change_create(id, now, |create| {
            create.unknown_since = unknown_since.or(create.unknown_since);
            create.n_unknown = create.n_unknown.saturating_add(u32::from(unknown_since.is_some()));
            create.step = step;
        });
        if is_gone {
            self.drop_executor(id);
        } else if is_seen {
            self.close_create_entry(id, false);
        } else if is_cancelled || self.end.is_stopping() {
            self.cancel_create(id, now);
        } else if let Some(group) = self.executors.group_of(id) {
            group.retries.schedule(id, shape, at);
        }
    }

    /// The pod of this executor took effect late.
    pub(super) fn note_late_pod(&mut self, id: ExecutorId) {
        if let Some(uid) = self.executors.get(id).and_then(|executor| executor.uid.clone()) {
            self.snapshot.note_late(uid);
        }
    }

    /// True if a pod that took effect late may still work in the slot, or on the task, of this executor, or is of an
    /// attempt before its own.
    pub(super) fn is_place_taken(&self, id: ExecutorId) -> bool {
        let Some(executor) = self.executors.get(id) else { return false };
        let group = self.executors.home(executor);
        if group.spec.restarts_whole() && executor.task.is_none() && group.attempts.awaits_ends() {
            return true;
        }
        let has_own_slots = group.spec.has_own_slots();
        self.snapshot.late().filter(|pod| pod.group == executor.group && !has_ended(pod)).any(
            |pod| match (&pod.task, &executor.task) {
                (Some(late), Some(run)) => late.task.key == run.task.key,
                (None, None) => has_own_slots && pod.slot == executor.slot,
                (Some(_), None) | (None, Some(_)) => false,
            },
        )
    }

    /// Sends failed creates of a group again: of those that have room, the one that has waited longest comes first.
    pub(super) fn send_retries(
        &mut self,
        name: &GroupName,
        rooms: &mut [Demand],
        n: u32,
        now: Millis,
    ) {
        for _ in 0..n {
            let Some(group) = self.executors.group_mut(name) else { return };
            let open = rooms.iter_mut().filter(|room| room.why == Why::Retry && room.n > 0);
            let open = open.filter_map(|room| Some((group.retries.first(room.shape)?, room)));
            let Some((_, room)) = open.min_by_key(|(first, _)| *first) else { return };
            room.n -= 1;
            let Some(id) = group.retries.take_due(room.shape, now) else { return };
            self.send_create(id, now);
        }
    }
}

/// Nothing fails any more, so the server's message is outdated, unless a cause is active.
pub(super) fn forget_refusal(group: &mut Group) {
    if !group.is_slowed_down() && group.retries.failing_since().is_none() {
        group.refusal = None;
    }
}
