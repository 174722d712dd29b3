//! How posse ends executors: at once or with a drain period. Other modules decide which ones. An end by somebody
//! else is announced. Terminating pods whose node is gone are force-deleted: no kubelet will ever confirm their end. Pods
//! of a node that still exists are left alone.

use super::Reconciler;
use crate::model::action::Patch;
use crate::model::event::{DeleteCause, ExecutorEvent};
use crate::model::ids::{ExecutorId, Uid};
use crate::model::pod::{ContainerState, Draining};
use crate::model::refusal::{Refusal, RefusalClass};
use crate::model::task::TaskEnd;
use crate::policy::loss::{Loss, classify};
use crate::state::due::Timer;
use crate::state::errands::MutationKind;
use crate::state::executors::{Ending, Life, has_ended};
use crate::state::ledger::CreateStep;
use posse_base::time::Millis;

/// An executor whose task is over is annotated before it is deleted: a restarted posse that finds only
/// a terminating pod would run its task again.
const CANCEL_NOTE_MS: u64 = 1_000;
/// How long a pod may be terminating before its node is checked, and the time between checks.
const NODE_CHECK_MS: u64 = 120_000;
/// An end that comes sooner than announced by less is not announced again.
const ANNOUNCED_AGAIN_MS: u64 = 1_000;

impl Reconciler {
    /// Reports the loss of an executor and deletes it without a drain period.
    pub(super) fn lose_and_delete(&mut self, id: ExecutorId, loss: &Loss, now: Millis) {
        self.lose(id, loss, now);
        self.end(id, DeleteCause::Killed, now);
    }

    /// Ends an executor without a drain period.
    pub(super) fn end(&mut self, id: ExecutorId, cause: DeleteCause, now: Millis) {
        self.begin_end(id, Ending::now(cause), now);
    }

    /// Ends an executor. It never counts as capacity again.
    fn begin_end(&mut self, id: ExecutorId, ending: Ending, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        if let Some(before) = executor.life.ending() {
            let is_news = ending.cause == DeleteCause::Cancelled
                && before.cause != DeleteCause::Cancelled
                && self.has_last_word(id);
            if is_news {
                self.note_cancelled(id, before, now);
            }
            return;
        }
        if executor.uid.is_none() {
            self.cancel_create(id, now);
            return;
        }
        let ending = match ending.drain_until {
            None if self.has_last_word(id) => {
                let drain_until = Some(now.after(CANCEL_NOTE_MS));
                Ending { cause: DeleteCause::Cancelled, drain_until }
            }
            Some(_) | None => ending,
        };
        self.change(id, now, |executor| executor.life = executor.life.ended_by(ending));
        match ending.drain_until {
            Some(until) => self.begin_drain(id, ending.cause, until, now),
            None => self.delete_pod_of(id, now),
        }
        self.executors.discard_probe(id);
    }

    /// The task of this executor is cancelled, and the executor ends already for another reason: its pod has to say
    /// so before it is deleted. A request for the pod that is in flight is forgotten, and repeated afterwards.
    fn note_cancelled(&mut self, id: ExecutorId, before: Ending, now: Millis) {
        let until = before.drain_until.unwrap_or_else(|| now.after(CANCEL_NOTE_MS));
        let ending = Ending { cause: DeleteCause::Cancelled, drain_until: Some(until) };
        let uid = self.change(id, now, |executor| {
            executor.life = executor.life.ended_by(ending);
            executor.uid.clone()
        });
        if let Some(uid) = uid {
            self.errands.mutations.remove(&uid);
        }
        self.begin_drain(id, ending.cause, until, now);
    }

    /// Cancels a create whose pod was not seen.
    pub(super) fn cancel_create(&mut self, id: ExecutorId, now: Millis) {
        let Some(create) = self.create_of(id) else { return };
        let (is_in_flight, open_until) = (create.is_in_flight(), create.open_until());
        let is_unknown = create.unknown_since.is_some();
        let open_until = open_until.filter(|&until| until > now);
        let late_until = open_until.filter(|_| !is_in_flight);
        let unused_step = self.change(id, now, |executor| {
            if executor.life == Life::Wanted {
                executor.life = Life::Cancelled;
            }
            if let Some((until, create)) = late_until.zip(executor.create.as_deref_mut()) {
                create.step = CreateStep::AwaitLateEffect(until);
            }
            std::mem::take(&mut executor.memory_step)
        });
        if let Some(until) = late_until {
            self.due.set(until, Timer::Create(id));
        }
        self.resolve_retry(id);
        self.executors.discard_probe(id);
        let slot = self.executors.kept_slot(id);
        if let Some(group) = self.executors.group_of(id) {
            group.memory_scaling.on_unused(unused_step, slot);
        }
        if !is_in_flight && open_until.is_none() {
            if is_unknown {
                self.ours.note_unlisted(id, now);
            }
            self.drop_executor(id);
        }
    }

    /// The reason for creates that are cancelled now.
    pub(super) fn cancel_cause(&self, id: ExecutorId) -> DeleteCause {
        let executor = self.executors.get(id);
        let of_group = executor.map(|executor| (executor.attempt, self.executors.home(executor)));
        match of_group {
            _ if self.end.is_stopping() => DeleteCause::Stopped,
            Some((attempt, group)) if attempt < group.attempts.current() => {
                DeleteCause::GroupRestarted
            }
            Some((_, group)) if group.gang.paused_until().is_some() => DeleteCause::GangGivenBack,
            Some(_) | None => DeleteCause::ScaledDown,
        }
    }

    /// Ends an executor with the drain period of its group, if it runs.
    pub(super) fn decommission(&mut self, id: ExecutorId, cause: DeleteCause, now: Millis) {
        let drain_until = self.seen(id).and_then(|(executor, pod)| {
            let group = self.executors.home(executor);
            // An executor that does not run needs no drain period.
            let runs = pod.container == ContainerState::Running && !pod.deleting && !has_ended(pod);
            // The next attempt would wait for the drain.
            let is_restarting = group.spec.restarts_whole() && cause == DeleteCause::Killed;
            let may_drain = runs && !is_restarting;
            let decommission = group.spec.decommission.as_ref().filter(|_| may_drain)?;
            Some(now.after(decommission.after_ms))
        });
        self.begin_end(id, Ending { cause, drain_until }, now);
    }

    fn begin_drain(&mut self, id: ExecutorId, cause: DeleteCause, until: Millis, now: Millis) {
        self.due.set(until, Timer::Drain(id));
        if let Some((_, pod)) = self.seen(id) {
            let is_told = pod.draining.as_ref().is_some_and(|told| told.cause == cause);
            let uid = pod.uid.clone();
            match is_told {
                true => self.begin_term(&uid, now),
                false => self.request(&uid, MutationKind::Annotate),
            }
        }
        self.tell(id, ExecutorEvent::Draining { cause, until });
    }

    /// Continues an end that an earlier run began, as recorded in the pod's annotation.
    pub(super) fn resume_end(&mut self, id: ExecutorId, now: Millis) {
        let Some((_, pod)) = self.seen(id) else { return };
        let is_over = pod.deleting || has_ended(pod);
        let Some(Draining { cause, until_unix_ms }) = pod.draining.as_deref().copied() else {
            return;
        };
        if cause == DeleteCause::Cancelled {
            self.end_task_of(id, TaskEnd::CANCELLED, now);
        }
        // The loss was reported when the kill was decided.
        self.change(id, now, |executor| {
            if executor.is_adopted && cause == DeleteCause::Killed {
                executor.life = executor.life.lost();
            }
        });
        let until =
            until_unix_ms.map(|ms| Millis(ms.saturating_sub(self.ours.identity().start_unix_ms)));
        let drain_until = until.filter(|&until| until > now && !is_over);
        self.begin_end(id, Ending { cause, drain_until }, now);
    }

    /// Ends the drain period now.
    pub(super) fn end_drain(&mut self, id: ExecutorId, now: Millis) {
        let ending = self.executors.get(id).and_then(|executor| executor.life.ending());
        if let Some(Ending { cause, drain_until: Some(_) }) = ending {
            let ending = Ending::now(cause);
            self.change(id, now, |executor| executor.life = executor.life.ended_by(ending));
            self.shorten_grace(id);
            self.ensure_deleted(id, now);
        }
    }

    /// The pod is marked as draining. With `signal: TERM` it is deleted now, and its grace period is the
    /// drain period: Kubernetes sends SIGTERM at the beginning and SIGKILL at the end.
    pub(super) fn begin_term(&mut self, uid: &Uid, now: Millis) {
        let is_alive = self.snapshot.get(uid).is_some_and(|pod| !pod.deleting);
        if is_alive && self.term_grace_s(uid, now).is_some() {
            self.request(uid, MutationKind::Delete);
        }
    }

    /// What is left of a drain period that begins with SIGTERM, in seconds.
    fn term_grace_s(&self, uid: &Uid, now: Millis) -> Option<u32> {
        let pod = self.snapshot.get(uid).filter(|pod| pod.container == ContainerState::Running)?;
        let executor = self.executors.get(pod.id).filter(|e| e.uid.as_ref() == Some(uid))?;
        let until = executor.life.ending()?.drain_until?;
        let left_ms = until.0.checked_sub(now.0).filter(|&ms| ms > 0)?;
        let seconds = u32::try_from(left_ms.div_ceil(1_000)).unwrap_or(u32::MAX);
        self.is_ended_by_term(pod.id).then_some(seconds)
    }

    /// The grace period of a delete in seconds; none: the pod's own.
    pub(super) fn delete_grace_s(&self, uid: &Uid, now: Millis) -> Option<u32> {
        if let Some(stop) = self.end.stop() {
            return Some(stop.grace_s());
        }
        let pod = self.snapshot.get(uid).filter(|pod| self.is_ended_by_term(pod.id))?;
        // Without a number the server does not shorten the grace period of a terminating pod.
        let shortened = pod.deleting.then_some(pod.grace_s);
        self.term_grace_s(uid, now).or(shortened)
    }

    /// True if the drain period of this executor begins with SIGTERM.
    fn is_ended_by_term(&self, id: ExecutorId) -> bool {
        self.executors.get(id).is_some_and(|executor| {
            let decommission = self.executors.home(executor).spec.decommission.as_ref();
            decommission.is_some_and(|decommission| decommission.by_term)
        })
    }

    /// The drain period of this executor is over early. If it was the grace period of a delete, the pod is
    /// deleted again with a shorter one.
    fn shorten_grace(&mut self, id: ExecutorId) {
        if let Some((_, pod)) = self.seen(id).filter(|_| self.is_ended_by_term(id)) {
            let uid = pod.uid.clone();
            // The delete that was sent before has the long one.
            self.errands.mutations.remove(&uid);
            self.request(&uid, MutationKind::Delete);
        }
    }

    /// The drain period may be over.
    pub(super) fn on_drained(&mut self, id: ExecutorId, now: Millis) {
        let until = self.executors.get(id).and_then(|executor| executor.life.ending()?.drain_until);
        if until.is_some_and(|until| until <= now) {
            self.ensure_deleted(id, now);
        }
    }

    /// The patch that marks a pod as draining.
    pub(super) fn draining_patch(&self, uid: &Uid) -> Patch {
        let executor = self.snapshot.get(uid).and_then(|pod| self.executors.get(pod.id));
        let ending = executor.and_then(|executor| executor.life.ending());
        let until = ending.and_then(|ending| ending.drain_until);
        let group = executor.map(|executor| self.executors.home(executor));
        let decommission = group.and_then(|group| group.spec.decommission.as_ref());
        let draining = Draining {
            cause: ending.map_or(DeleteCause::ScaledDown, |ending| ending.cause),
            until_unix_ms: until.map(|at| self.ours.identity().start_unix_ms.saturating_add(at.0)),
        };
        Patch::Draining(draining, decommission.and_then(|decommission| decommission.label.clone()))
    }

    /// Deletes an executor that is lost or ending, unless it is draining. A resourceVersion
    /// rollback may have undone its end.
    pub(super) fn ensure_deleted(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let ending = executor.life.ending();
        let is_draining = ending.and_then(|e| e.drain_until).is_some_and(|until| until > now);
        if is_draining || (!executor.life.is_reported() && ending.is_none()) {
            return;
        }
        self.delete_pod_of(id, now);
    }

    /// Deletes the pod of an executor, even if it was retained or is a record.
    pub(super) fn delete_pod_of(&mut self, id: ExecutorId, now: Millis) {
        let uid = self.change(id, now, |executor| {
            if matches!(executor.life, Life::Completed | Life::Retained) {
                executor.life = Life::Lost { ending: None };
            }
            executor.uid.clone()
        });
        self.executors.forget_record(id);
        // Of one that has vanished only the answer to a delete tells the end.
        let is_due = |uid: &Uid| !self.is_terminating(uid) || self.snapshot.is_unseen(uid);
        if let Some(uid) = uid.filter(is_due) {
            self.request(&uid, MutationKind::Delete);
        }
    }

    /// Reports that somebody else will end an executor that still runs: its pod terminates, or a condition says that it
    /// will; and again if it will be sooner: a drain first sets the condition, and may give the pod less time than its
    /// own grace period. The time that is left counts from now, so the clocks of others do not matter. A pod that gets
    /// no time to end is only lost.
    pub(super) fn announce_end(&mut self, id: ExecutorId, now: Millis) {
        let Some((executor, pod)) = self.seen(id) else { return };
        let told = executor.end_told;
        let is_disrupted = pod.end.as_ref().is_some_and(|end| !end.disruption.is_empty());
        let grace_s = match pod.deleting {
            true => pod.deletion_grace_s,
            false if is_disrupted => pod.grace_s,
            false => 0,
        };
        let deadline = now.after(u64::from(grace_s) * 1_000);
        if grace_s == 0 && told.is_some() {
            // It was taken back.
            return self.change(id, now, |executor| executor.end_told = None);
        }
        let is_known = told.is_some_and(|told| told <= deadline.after(ANNOUNCED_AGAIN_MS));
        let is_over = pod.phase.is_final() || pod.container != ContainerState::Running;
        if grace_s == 0 || is_over || is_known {
            return;
        }
        let Loss { reason, message, .. } = classify(pod, false);
        let node = pod.node.as_deref().map(str::to_owned);
        self.change(id, now, |executor| executor.end_told = Some(deadline));
        self.tell(id, ExecutorEvent::Ending { node, reason, message, deadline });
    }

    /// Notes a pod that is terminating.
    pub(super) fn note_terminating(&mut self, uid: &Uid, now: Millis) {
        let is_bound = self.snapshot.get(uid).is_some_and(|pod| pod.deleting && pod.node.is_some());
        if is_bound && !self.errands.nodes.is_off() && self.snapshot.note_terminating(uid) {
            self.due.set(now.after(NODE_CHECK_MS), Timer::Terminating(uid.clone()));
        }
    }

    pub(super) fn on_terminating_due(&mut self, uid: Uid, now: Millis) {
        let Some(node) = self.snapshot.get(&uid).and_then(|pod| pod.node.clone()) else { return };
        if self.errands.nodes.is_off() {
            return;
        }
        self.errands.nodes.add(node, ());
        self.due.set(now.after(NODE_CHECK_MS), Timer::Terminating(uid));
    }

    pub(super) fn on_node_answer(&mut self, name: &str, answer: Result<(), Refusal>) {
        self.errands.nodes.end(&name.into());
        let class = match answer {
            Ok(()) => return,
            Err(refusal) => refusal.class,
        };
        if class == RefusalClass::Forbidden {
            self.errands.nodes.turn_off();
        }
        // Other errors prove nothing.
        if class != RefusalClass::NotFound {
            return;
        }
        for pod in self.snapshot.terminating_on(name) {
            self.errands.mutations.request(&pod.uid, &pod.name, MutationKind::ForceDelete);
        }
    }
}
