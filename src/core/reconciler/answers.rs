//! Owns what the server's answers mean: creates acknowledged, refused, of unknown outcome; deletes
//! and patches done or to be asked again. Sends nothing.

use super::Reconciler;
use super::timers::Timer;
use crate::core::loss::MESSAGE_BYTES_MAX;
use crate::core::model::action::{Action, RunVerdict};
use crate::core::model::event::Event;
use crate::core::model::ids::{ExecutorId, Uid};
use crate::core::model::input::{Seen, Watermark};
use crate::core::model::pod::Pod;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::core::model::text::harmless;
use crate::core::model::time::Millis;
use crate::core::policy::backoff::delay_ms;
use crate::core::policy::throttle::ThrottleCause;
use crate::core::state::executors::Life;
use crate::core::state::ledger::{CreateStep, DELETE_SEEN_MS, MutationKind, MutationStep};
use crate::core::state::snapshot::{AnswerAge, Change};

const RETRY_INITIAL_MS: u64 = 500;
const RETRY_MAX_MS: u64 = 30_000;
/// A request that our rights forbid is tried again ever more rarely: they may have been mended.
const NO_RIGHTS_RETRY_MAX_MS: u64 = 300_000;
/// A mark that cannot be written costs one repeated report after a restart, or one more who is
/// chosen to go, no more.
const MARK_TRIES_MAX: u32 = 5;

impl Reconciler {
    pub(super) fn on_created(
        &mut self,
        id: ExecutorId,
        asked: Watermark,
        answer: Result<Seen, Refusal>,
        now: Millis,
    ) {
        let Some(create) = self.executors.get(id).and_then(|e| e.create.as_deref()) else {
            self.window.on_answered();
            return;
        };
        let sent_at = create.sent_at;
        match answer {
            Ok(Seen::Ours(pod)) if pod.id == id && *pod.name == *self.pod_name(id) => {
                self.on_request_answered(id);
                self.window.on_answered();
                self.on_created_pod(id, &pod, asked, now);
            }
            Ok(Seen::Ours(Pod { uid, name, .. })) => {
                self.on_stripped(id, &uid, &name, sent_at, now);
            }
            Ok(Seen::Foreign(foreign)) => {
                self.on_stripped(id, &foreign.uid, &foreign.name, sent_at, now);
            }
            Err(refusal) => self.on_create_refused(id, sent_at, &refusal, now),
        }
    }

    fn on_created_pod(&mut self, id: ExecutorId, pod: &Pod, asked: Watermark, now: Millis) {
        let Some(sent_at) = self.sent_at(id) else { return };
        match self.snapshot.answer(pod, asked, true) {
            AnswerAge::OtherEpoch => self.post_again(id, Some(sent_at), now, now),
            AnswerAge::RolledBack => {
                self.post_again(id, Some(sent_at), now, now);
                self.roll_back();
            }
            believed @ (AnswerAge::Current | AnswerAge::KnownGone | AnswerAge::Overtaken) => {
                self.close_create(id, pod, believed == AnswerAge::Current, true, now);
            }
        }
    }

    /// The create has come to a pod: alive in the snapshot (`is_there`), or come and gone already.
    /// `is_acknowledged`: the pod is that of the last POST.
    fn close_create(
        &mut self,
        id: ExecutorId,
        pod: &Pod,
        is_there: bool,
        is_acknowledged: bool,
        now: Millis,
    ) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        let (is_gone, is_unseen) = (executor.life == Life::Gone, executor.uid.is_none());
        let is_cancelled = executor.is_cancelled();
        if is_unseen {
            self.note_taken(id);
        }
        self.close_entry(id, is_acknowledged);
        if is_gone {
            self.drop_executor(id);
        }
        if is_there {
            if is_unseen && is_cancelled {
                self.on_first_sight(id, &pod.uid, true, now);
            }
            // A second pod under the id is condemned there.
            self.on_change(Some(Change::Seen(pod.uid.clone())), now);
        } else if is_unseen {
            self.on_end_of(pod, is_cancelled, now);
        }
    }

    /// The server took the create of this executor: its group may go on.
    pub(super) fn note_taken(&mut self, id: ExecutorId) {
        let Some(sent_at) = self.sent_at(id) else { return };
        let Some(group) = self.executors.group_of(id) else { return };
        group.throttle.on_created(id, sent_at);
        if group.throttle.cause().is_none() {
            group.refusal = None;
        }
    }

    /// A pod without our labels came of our create: we would be blind to it.
    fn on_stripped(&mut self, id: ExecutorId, uid: &Uid, name: &str, sent_at: Millis, now: Millis) {
        self.on_request_answered(id);
        self.window.on_answered();
        self.mutations.ask(uid, name, MutationKind::Delete);
        let message = "the pod came back without our labels (a mutating webhook changes them); \
                       posse would not find it again, so it was deleted";
        let refusal = Refusal {
            class: RefusalClass::Invalid,
            code: 0,
            reason: String::new(),
            message: message.to_owned(),
            retry_after_ms: None,
        };
        self.give_up(id, ThrottleCause::Permanent, sent_at, &refusal, now);
    }

    fn on_create_refused(
        &mut self,
        id: ExecutorId,
        sent_at: Millis,
        refusal: &Refusal,
        now: Millis,
    ) {
        if refusal.class == RefusalClass::Exists {
            let mark = self.mark();
            if let Some(create) = self.executors.get_mut(id).and_then(|e| e.create.as_deref_mut()) {
                // The GET keeps the create's place in the window.
                (create.step, create.asked) = (CreateStep::Check, mark);
                self.actions.push_back(Action::Get { id, asked: mark });
            }
            return;
        }
        self.on_request_answered(id);
        if refusal.is_overload() {
            self.window.on_overload(sent_at, refusal, now, &mut self.rng);
        } else {
            self.window.on_answered();
        }
        match refusal.class {
            RefusalClass::OutcomeUnknown => {
                let at = self.retry_at(id, refusal, now);
                self.post_again(id, Some(sent_at), at, now);
            }
            RefusalClass::Throttled
            | RefusalClass::Transient
            | RefusalClass::Conflict
            | RefusalClass::Expired => {
                let at = self.retry_at(id, refusal, now);
                self.post_again(id, None, at, now);
            }
            RefusalClass::Capacity => {
                self.give_up(id, ThrottleCause::Capacity, sent_at, refusal, now)
            }
            RefusalClass::Unauthorized => {
                self.give_up(id, ThrottleCause::Server, sent_at, refusal, now)
            }
            RefusalClass::Forbidden => {
                self.give_up(id, ThrottleCause::Rights, sent_at, refusal, now)
            }
            RefusalClass::NamespaceGone | RefusalClass::NotFound | RefusalClass::Invalid => {
                self.give_up(id, ThrottleCause::Permanent, sent_at, refusal, now);
            }
            // Handled above; to ask again is the safe reading.
            RefusalClass::Exists => self.post_again(id, None, now.after(RETRY_INITIAL_MS), now),
        }
    }

    pub(super) fn on_got(
        &mut self,
        id: ExecutorId,
        asked: Watermark,
        answer: Result<Seen, Refusal>,
        now: Millis,
    ) {
        self.on_request_answered(id);
        let sent_at = self.sent_at(id);
        match (&answer, sent_at) {
            (Err(refusal), Some(sent_at)) if refusal.is_overload() => {
                self.window.on_overload(sent_at, refusal, now, &mut self.rng);
            }
            (Ok(_) | Err(_), _) => self.window.on_answered(),
        }
        match answer {
            Ok(Seen::Ours(pod)) if self.is_our_own(id, &pod) => {
                match self.snapshot.answer(&pod, asked, false) {
                    AnswerAge::OtherEpoch | AnswerAge::RolledBack => self.check_again(id, now, now),
                    AnswerAge::Current => self.close_create(id, &pod, true, false, now),
                    AnswerAge::KnownGone | AnswerAge::Overtaken => {
                        self.close_create(id, &pod, false, false, now);
                    }
                }
            }
            // Somebody else's pod has the name: the next id has another.
            Ok(Seen::Ours(_) | Seen::Foreign(_)) => self.retire(id, now),
            Err(refusal) => match refusal.class {
                // It existed a moment ago, or the rights to look are missing: the id is spent.
                RefusalClass::NotFound | RefusalClass::Forbidden | RefusalClass::NamespaceGone => {
                    self.retire(id, now)
                }
                RefusalClass::Capacity
                | RefusalClass::Conflict
                | RefusalClass::Exists
                | RefusalClass::Expired
                | RefusalClass::Invalid
                | RefusalClass::Throttled
                | RefusalClass::Transient
                | RefusalClass::Unauthorized
                | RefusalClass::OutcomeUnknown => {
                    let at = self.retry_at(id, &refusal, now);
                    self.check_again(id, at, now);
                }
            },
        }
    }

    pub(super) fn on_deleted(
        &mut self,
        uid: &Uid,
        answer: Result<Option<Pod>, Refusal>,
        now: Millis,
    ) {
        let Some(mutation) = self.mutations.on_answered(uid) else { return };
        match answer {
            Ok(pod) => {
                let at = now.after(DELETE_SEEN_MS);
                mutation.step = MutationStep::Accepted(at);
                self.timers.set(at, Timer::Mutation(uid.clone()));
                if self.snapshot.get(uid).is_none() {
                    // Behind our labels' back, or gone: nothing will tell of its end.
                    self.mutations.remove(uid);
                }
                let change = pod.and_then(|pod| self.snapshot.refresh(pod));
                self.on_change(change, now);
            }
            Err(refusal) => match refusal.class {
                // Gone, or another pod by now under that name: the one that was meant is gone.
                RefusalClass::NotFound | RefusalClass::Conflict => {
                    let change = self.snapshot.forget(uid);
                    self.mutations.remove(uid);
                    self.on_change(change, now);
                }
                RefusalClass::Capacity
                | RefusalClass::Exists
                | RefusalClass::Expired
                | RefusalClass::NamespaceGone
                | RefusalClass::Forbidden
                | RefusalClass::Invalid
                | RefusalClass::Throttled
                | RefusalClass::Transient
                | RefusalClass::Unauthorized
                | RefusalClass::OutcomeUnknown => self.retry_mutation(uid, &refusal, now),
            },
        }
    }

    pub(super) fn on_patched(&mut self, uid: &Uid, answer: Result<(), Refusal>, now: Millis) {
        let Some(mutation) = self.mutations.on_answered(uid) else { return };
        // What is only marked, and stays.
        let is_mark = matches!(mutation.kind, MutationKind::LabelCounted | MutationKind::Annotate);
        let is_hopeless = mutation.n_tries >= MARK_TRIES_MAX;
        if mutation.kind == MutationKind::AnnotateAndDelete {
            // Marked or not, it goes: the mark only tells a later run that it was chosen.
            mutation.kind = MutationKind::Delete;
        }
        match answer {
            Err(refusal)
                if matches!(refusal.class, RefusalClass::NotFound | RefusalClass::Conflict) =>
            {
                let change = self.snapshot.forget(uid);
                self.mutations.remove(uid);
                self.on_change(change, now);
            }
            Err(refusal) if is_mark && !is_hopeless && refusal.class != RefusalClass::Forbidden => {
                self.retry_mutation(uid, &refusal, now);
            }
            Ok(()) | Err(_) if is_mark => self.mutations.remove(uid),
            Ok(()) | Err(_) => self.mutations.queue(uid),
        }
    }

    fn retry_mutation(&mut self, uid: &Uid, refusal: &Refusal, now: Millis) {
        let Some(mutation) = self.mutations.get(uid) else { return };
        let max = if refusal.class == RefusalClass::Forbidden {
            NO_RIGHTS_RETRY_MAX_MS
        } else {
            RETRY_MAX_MS
        };
        let delay = delay_ms(mutation.n_tries, RETRY_INITIAL_MS, max, &mut self.rng);
        let at = now.after(delay.max(refusal.retry_after_ms.unwrap_or(0)));
        self.mutations.retry_at(uid, at);
        self.timers.set(at, Timer::Mutation(uid.clone()));
    }

    /// The request of this create is answered: the group has one fewer under way.
    fn on_request_answered(&mut self, id: ExecutorId) {
        if let Some(group) = self.executors.group_of(id) {
            group.n_in_flight = group.n_in_flight.saturating_sub(1);
        }
    }

    fn sent_at(&self, id: ExecutorId) -> Option<Millis> {
        self.executors.get(id)?.create.as_ref().map(|create| create.sent_at)
    }

    fn retry_at(&mut self, id: ExecutorId, refusal: &Refusal, now: Millis) -> Millis {
        let n_tries =
            self.executors.get(id).and_then(|e| e.create.as_ref()).map_or(1, |c| c.n_tries);
        let delay = delay_ms(n_tries, RETRY_INITIAL_MS, RETRY_MAX_MS, &mut self.rng);
        now.after(delay.max(refusal.retry_after_ms.unwrap_or(0)))
    }

    /// The POST is to be sent again under the same name, unless its pod was seen meanwhile.
    /// `unknown_since`: the one before may have taken effect.
    fn post_again(
        &mut self,
        id: ExecutorId,
        unknown_since: Option<Millis>,
        at: Millis,
        now: Millis,
    ) {
        self.wait_again(id, unknown_since, CreateStep::PostAt(at), at, now);
    }

    fn check_again(&mut self, id: ExecutorId, at: Millis, now: Millis) {
        self.wait_again(id, None, CreateStep::CheckAt(at), at, now);
    }

    fn wait_again(
        &mut self,
        id: ExecutorId,
        unknown_since: Option<Millis>,
        step: CreateStep,
        at: Millis,
        now: Millis,
    ) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        let (is_seen, is_gone) = (executor.uid.is_some(), executor.life == Life::Gone);
        let is_cancelled = executor.is_cancelled();
        let Some(create) = executor.create.as_deref_mut() else { return };
        create.unknown_since = unknown_since.or(create.unknown_since);
        create.n_unknown = create.n_unknown.saturating_add(u32::from(unknown_since.is_some()));
        create.step = step;
        if is_gone {
            self.drop_executor(id);
        } else if is_seen {
            self.close_entry(id, false);
        } else if is_cancelled || self.stop.is_some() {
            self.cancel_create(id, now);
        } else {
            self.timers.set(at, Timer::Create(id));
        }
    }

    /// The server will not have it: the id is spent, and the group is held back.
    fn give_up(
        &mut self,
        id: ExecutorId,
        cause: ThrottleCause,
        sent_at: Millis,
        refusal: &Refusal,
        now: Millis,
    ) {
        self.throttle_group(id, cause, sent_at, refusal, now);
        self.retire(id, now);
    }

    /// Nothing came of this id's last request. Of an earlier one something may still come.
    fn retire(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        if executor.life == Life::Gone {
            self.drop_executor(id);
        } else if executor.uid.is_some() {
            self.close_entry(id, false);
        } else if let Some(create) = &mut executor.create {
            create.step = CreateStep::CheckAt(now);
            self.cancel_create(id, now);
        }
    }

    fn throttle_group(
        &mut self,
        id: ExecutorId,
        cause: ThrottleCause,
        sent_at: Millis,
        refusal: &Refusal,
        now: Millis,
    ) {
        let Some(executor) = self.executors.get(id) else { return };
        let name = executor.group.clone();
        let asked_for = executor.create.as_ref().and_then(|create| create.pod.clone());
        let Some(group) = self.executors.groups.get_mut(&name) else { return };
        if group.is_removed || asked_for != group.spec.pod {
            // It says nothing of what the group's pods are now.
            return;
        }
        let is_news = group.throttle.on_refused(cause, sent_at, now, &mut self.rng);
        let message = harmless(&refusal.to_string(), MESSAGE_BYTES_MAX);
        group.refusal = Some(message.clone());
        if group.spec.from_file && !group.had_pods && self.stop.is_none() {
            let verdict = match refusal.class {
                RefusalClass::Invalid => Some(RunVerdict::TemplateRefused {
                    group: name.clone(),
                    message: message.clone(),
                }),
                RefusalClass::NotFound | RefusalClass::Forbidden => {
                    Some(RunVerdict::NotAllowed { message: message.clone() })
                }
                RefusalClass::Capacity
                | RefusalClass::Conflict
                | RefusalClass::Exists
                | RefusalClass::Expired
                | RefusalClass::NamespaceGone
                | RefusalClass::Throttled
                | RefusalClass::Transient
                | RefusalClass::Unauthorized
                | RefusalClass::OutcomeUnknown => None,
            };
            self.verdict = self.verdict.take().or(verdict);
        }
        if is_news {
            let cause = cause.as_str();
            self.events.push_back(Event::CreateRefused { group: name, cause, message });
        }
    }

    /// A pod under a name of ours, with our labels and our owner: an earlier create of ours.
    fn is_our_own(&self, id: ExecutorId, pod: &Pod) -> bool {
        pod.id == id
            && self.executors.get(id).is_some_and(|executor| executor.group == pod.group)
            && *pod.name == *self.pod_name(id)
            && (self.identity.owner.is_none() || pod.owner == self.identity.owner)
    }
}
