//! What follows from the answers to the requests of a create: the POST, and the GET after an
//! AlreadyExists.

use super::Reconciler;
use super::create_retries::forget_refusal;
use crate::model::action::{Action, RunVerdict};
use crate::model::event::{Event, GroupEvent};
use crate::model::ids::{ExecutorId, Uid};
use crate::model::input::{PodAnswer, Watermark};
use crate::model::pod::Pod;
use crate::model::refusal::{Advice, Refusal, RefusalClass, Verb};
use crate::policy::loss::MESSAGE_BYTES_MAX;
use crate::policy::room_of_ended_pods::Holders;
use crate::state::create_backoff::BackoffCause;
use crate::state::errands::MutationKind;
use crate::state::executors::Life;
use crate::state::ledger::CreateStep;
use crate::state::snapshot::AnswerAge;
use posse_base::text::sanitize;
use posse_base::time::Millis;

/// A refusal ends the run only within this time after the first LIST. Later it slows the group down:
/// no API failure ends a run that works.
const STARTING_MS: u64 = 60_000;

/// Why posse deletes a pod that it has created.
const LABELS_STRIPPED: &str = "the pod came back without our labels (a mutating webhook changed them), so posse \
     could not find it again and deleted it";
const RESTARTS_IN_PLACE: &str = "the pod came back with a restartPolicy or restartPolicyRules (a mutating webhook added \
     them), by which the kubelet restarts its containers in place, so posse deleted it: posse replaces an executor \
     by a new pod";

impl Reconciler {
    pub(super) fn on_created(
        &mut self,
        id: ExecutorId,
        watermark: Watermark,
        answer: Result<PodAnswer, Refusal>,
        now: Millis,
    ) {
        let Some(sent_at) = self.sent_at(id) else {
            self.server.window.on_answered();
            return;
        };
        self.note_answer(&answer, Some(sent_at), now);
        if answer.is_ok() {
            self.on_request_answered(id);
        }
        match answer {
            // No LIST or watch would show it.
            Ok(PodAnswer::Ours(pod)) if !self.has_create_labels(id, &pod) => {
                self.refuse_changed(id, &pod.uid, &pod.name, LABELS_STRIPPED, now);
            }
            Ok(PodAnswer::Foreign(pod)) => {
                self.refuse_changed(id, &pod.uid, &pod.name, LABELS_STRIPPED, now);
            }
            Ok(PodAnswer::Ours(pod)) if pod.restarts_in_place => {
                self.refuse_changed(id, &pod.uid, &pod.name, RESTARTS_IN_PLACE, now);
            }
            Ok(PodAnswer::Ours(pod)) => self.close_create(id, &pod, watermark, true, now),
            Err(refusal) => self.on_create_refused(id, sent_at, &refusal, now),
        }
    }

    /// The answer to the last POST (`is_acknowledged`), or to a GET, shows the pod of the create.
    fn close_create(
        &mut self,
        id: ExecutorId,
        pod: &Pod,
        watermark: Watermark,
        is_acknowledged: bool,
        now: Millis,
    ) {
        let age = self.snapshot.apply_answer(pod, watermark, is_acknowledged);
        if age == AnswerAge::Void {
            let (step, unknown_since) = match is_acknowledged {
                true => (CreateStep::PostLater, self.sent_at(id)),
                false => (CreateStep::CheckLater, None),
            };
            return self.send_again(id, step, unknown_since, now, now);
        }
        let Some(executor) = self.executors.get(id) else { return };
        let (is_gone, has_no_pod_yet) = (executor.life == Life::Gone, executor.uid.is_none());
        if has_no_pod_yet {
            self.on_create_accepted(id);
        }
        self.close_create_entry(id, is_acknowledged);
        if is_gone {
            self.drop_executor(id);
        }
        if age == AnswerAge::Current {
            if has_no_pod_yet {
                // The answer proves that the pod is ours.
                self.snapshot.forget_foreign(&pod.uid);
                self.on_pod_found(id, &pod.uid, now);
            }
            // This also deletes a second pod with the same id.
            self.on_seen(&pod.uid, now);
        } else if has_no_pod_yet {
            self.on_pod_over(pod, now);
        }
    }

    /// The server accepted the create of this executor, so the create backoff of its shape may end.
    pub(super) fn on_create_accepted(&mut self, id: ExecutorId) {
        let Some(sent_at) = self.sent_at(id) else { return };
        if let Some(throttle) = self.executors.throttle_of(id) {
            throttle.on_created(id, sent_at);
        }
        let Some(group) = self.executors.group_of(id) else { return };
        group.n_accepted += 1;
        forget_refusal(group);
    }

    /// A webhook has made a pod that must not be: deletes it.
    fn refuse_changed(
        &mut self,
        id: ExecutorId,
        uid: &Uid,
        name: &str,
        message: &str,
        now: Millis,
    ) {
        self.errands.mutations.request(uid, name, MutationKind::Delete);
        let refusal = Refusal::local(RefusalClass::Invalid, message);
        self.abandon_create(id, BackoffCause::Permanent, &refusal, now);
    }

    fn on_create_refused(
        &mut self,
        id: ExecutorId,
        sent_at: Millis,
        refusal: &Refusal,
        now: Millis,
    ) {
        let advice = refusal.advice(Verb::Create);
        if advice == Advice::Check {
            let watermark = self.watermark();
            // The GET uses the create's slot in the window.
            self.change_create(id, now, |create| {
                (create.step, create.watermark) = (CreateStep::Check, watermark);
            });
            return self.out.act(Action::Get { id, watermark });
        }
        self.on_request_refused(id, sent_at, refusal, now);
        if advice == Advice::Retry {
            let is_unknown = refusal.class == RefusalClass::OutcomeUnknown;
            let at = self.retry_at(id, refusal, now);
            self.send_again(id, CreateStep::PostLater, is_unknown.then_some(sent_at), at, now);
            return self.report_failure(id, refusal, now);
        }
        // A missing right says nothing about the pod.
        if refusal.class == RefusalClass::Invalid && self.gives_up_memory(id, refusal) {
            return self.retire(id, now);
        }
        let cause = match refusal.class == RefusalClass::Invalid {
            true => self.refuse_task(id, refusal, now),
            false => Some(cause_of(refusal.class)),
        };
        match cause {
            Some(cause) => self.abandon_create(id, cause, refusal, now),
            None => self.retire(id, now),
        }
    }

    pub(super) fn on_got(
        &mut self,
        id: ExecutorId,
        watermark: Watermark,
        answer: Result<PodAnswer, Refusal>,
        now: Millis,
    ) {
        let sent_at = self.sent_at(id);
        self.note_answer(&answer, sent_at, now);
        if let Err(refusal) = &answer {
            self.on_request_refused(id, sent_at.unwrap_or(now), refusal, now);
        } else {
            self.on_request_answered(id);
        }
        let is_wanted = self.executors.get(id).is_some_and(|executor| !executor.is_cancelled());
        match answer {
            Ok(PodAnswer::Ours(pod))
                if self.is_our_own(id, &pod) && pod.restarts_in_place && is_wanted =>
            {
                self.refuse_changed(id, &pod.uid, &pod.name, RESTARTS_IN_PLACE, now);
            }
            Ok(PodAnswer::Ours(pod)) if self.is_our_own(id, &pod) => {
                self.close_create(id, &pod, watermark, false, now);
            }
            // A foreign pod has the name. The next id has another name.
            Ok(PodAnswer::Ours(_) | PodAnswer::Foreign(_)) => self.retire(id, now),
            Err(refusal) => match refusal.advice(Verb::Get) {
                // The pod is gone again, or GET is not permitted.
                Advice::Retire => self.retire(id, now),
                Advice::Check | Advice::Retry | Advice::Slow => {
                    let at = self.retry_at(id, &refusal, now);
                    self.send_again(id, CreateStep::CheckLater, None, at, now);
                    self.report_failure(id, &refusal, now);
                }
            },
        }
    }

    fn sent_at(&self, id: ExecutorId) -> Option<Millis> {
        self.create_of(id).map(|create| create.sent_at)
    }

    /// The server refuses the pod: slows the group down and retires the id.
    fn abandon_create(
        &mut self,
        id: ExecutorId,
        cause: BackoffCause,
        refusal: &Refusal,
        now: Millis,
    ) {
        self.begin_backoff(id, cause, refusal, now);
        self.retire(id, now);
    }

    /// The pod had more memory than the template says, after an OOM kill, and the server refuses it: a LimitRange allows
    /// less. The others of the group do not wait for that, and the next one gets the memory of the step before.
    fn gives_up_memory(&mut self, id: ExecutorId, refusal: &Refusal) -> bool {
        let Some(executor) = self.executors.get(id) else { return false };
        let (name, step) = (executor.group.clone(), executor.memory_step);
        let is_of_group = executor.create.as_ref().is_some_and(|create| {
            let group = self.executors.home(executor);
            !group.is_removed && create.pod == group.spec.pod
        });
        if step == 0 || !is_of_group {
            return false;
        }
        let slot = self.executors.kept_slot(id);
        let Some(group) = self.executors.group_mut(&name) else { return false };
        if group.memory_scaling.on_refused(step, slot) {
            let refusal = refusal.to_string();
            let what = "more memory after an OOM kill is refused, so the next one gets less: ";
            let message = sanitize(&format!("{what}{refusal}"), MESSAGE_BYTES_MAX);
            let cause = BackoffCause::Permanent.as_str();
            self.out.tell(Event::Group(name, GroupEvent::CreateRefused { cause, message }));
        }
        true
    }

    /// The last request of this id had no effect; an earlier one still may have.
    fn retire(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        if executor.life == Life::Gone {
            self.drop_executor(id);
        } else if executor.uid.is_some() {
            self.close_create_entry(id, false);
        } else if executor.create.is_some() {
            self.change_create(id, now, |create| create.step = CreateStep::CheckLater);
            self.cancel_create(id, now);
        }
    }

    fn begin_backoff(
        &mut self,
        id: ExecutorId,
        cause: BackoffCause,
        refusal: &Refusal,
        now: Millis,
    ) {
        let Some(executor) = self.executors.get(id) else { return };
        let Some(create) = executor.create.as_deref() else { return };
        let name = executor.group.clone();
        let (has_task, shape) = (executor.task.is_some(), executor.shape);
        let (sent_at, requested_pod) = (create.sent_at, create.pod.clone());
        // Those of any group: who lacks a claim need not have one that it can give up.
        let may_give_up = self.executors.groups().values().any(|one| one.spec.gives_up_claims());
        let Some(group) = self.executors.group_mut(&name) else { return };
        if group.is_removed || requested_pod != group.spec.pod {
            // The refusal is about an old template.
            return;
        }
        let backoff = &mut group.tasks.throttles.of_mut(shape).backoff;
        let is_new = backoff.on_refused(cause, sent_at, now, &mut self.rng);
        let message = sanitize(&refusal.to_string(), MESSAGE_BYTES_MAX);
        group.refusal = Some(message.clone());
        let may_end_run = group.spec.from_file && group.n_accepted == 0 && !has_task;
        let counts_ended = match Holders::of_quota(&message) {
            Holders::All => true,
            Holders::Claims => may_give_up,
            Holders::RunningOn => false,
        };
        if cause == BackoffCause::Capacity {
            group.on_quota();
        }
        if cause == BackoffCause::Capacity && counts_ended {
            self.server.on_quota_of_ended();
            self.give_up_claims();
        }
        let is_starting = self.gates.first_list_at().is_none_or(|at| now.since(at) < STARTING_MS);
        if may_end_run && is_starting && !self.end.is_stopping() {
            let (group, message) = (name.clone(), message.clone());
            // What ends a run is named here: every other refusal is waited for.
            if refusal.class == RefusalClass::Invalid {
                self.end.decide(RunVerdict::TemplateRefused { group, message });
            } else if matches!(refusal.class, RefusalClass::NotFound | RefusalClass::Forbidden) {
                self.end.decide(RunVerdict::NotAllowed { message });
            }
        }
        if is_new {
            let cause = cause.as_str();
            self.out.tell(Event::Group(name, GroupEvent::CreateRefused { cause, message }));
        }
    }

    /// True if the pod has the name and the labels of this create.
    fn has_create_labels(&self, id: ExecutorId, pod: &Pod) -> bool {
        pod.id == id
            && self.ours.has_our_name(pod)
            && self.executors.get(id).is_some_and(|executor| executor.may_have_made(pod))
    }

    /// True if the pod has our name, our labels and our owner, and was not there before the create:
    /// an earlier POST of it made the pod.
    fn is_our_own(&self, id: ExecutorId, pod: &Pod) -> bool {
        self.has_create_labels(id, pod)
            && self.ours.has_our_owner(pod)
            && !self.snapshot.is_foreign(&pod.uid)
    }
}

/// What the refusal of a create slows down that says nothing about its pod.
fn cause_of(class: RefusalClass) -> BackoffCause {
    let causes = [
        (RefusalClass::Capacity, BackoffCause::Capacity),
        (RefusalClass::Forbidden, BackoffCause::MayPass),
        (RefusalClass::NamespaceGone, BackoffCause::NamespaceGone),
        (RefusalClass::NotFound, BackoffCause::NamespaceGone),
    ];
    let known = causes.into_iter().find(|(known, _)| *known == class);
    known.map_or(BackoffCause::Server, |(_, cause)| cause)
}
