//! How posse ends executors: at once or with a drain period. Other modules decide which ones.

use super::Reconciler;
use super::timers::Timer;
use crate::core::loss::Loss;
use crate::core::model::action::Patch;
use crate::core::model::event::{DeleteCause, Event};
use crate::core::model::ids::{ExecutorId, Uid};
use crate::core::model::pod::{ContainerState, Draining};
use crate::core::model::time::Millis;
use crate::core::state::executors::{Ending, Life, has_ended};
use crate::core::state::ledger::{CreateStep, MutationKind};

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
        let Some(executor) = self.executors.get_mut(id) else { return };
        if executor.life.ending().is_some() {
            return;
        }
        if executor.uid.is_none() {
            self.cancel_create(id, now);
            return;
        }
        executor.life = executor.life.ended_by(ending);
        match ending.drain_until {
            Some(until) => self.begin_drain(id, ending.cause, until),
            None => self.delete_pod_of(id),
        }
        if let Some(group) = self.executors.group_of(id) {
            group.throttle.discard_probe(id);
        }
        self.refresh_state(id, now);
    }

    /// Cancels a create whose pod was not seen.
    pub(super) fn cancel_create(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        let Some(create) = &mut executor.create else { return };
        if executor.life == Life::Wanted {
            executor.life = Life::Cancelled;
        }
        let unused_step = std::mem::take(&mut executor.memory_step);
        let (is_in_flight, open_until) = (create.is_in_flight(), create.open_until());
        let is_unknown = create.unknown_since.is_some();
        let open_until = open_until.filter(|&until| until > now);
        if let Some(until) = open_until.filter(|_| !is_in_flight) {
            create.step = CreateStep::AwaitLateEffect(until);
            self.timers.set(until, Timer::Create(id));
        }
        self.resolve_retry(id);
        if let Some(group) = self.executors.group_of(id) {
            group.throttle.discard_probe(id);
            group.memory_scaling.on_unused(unused_step);
        }
        if is_in_flight || open_until.is_some() {
            self.refresh_state(id, now);
        } else {
            if is_unknown {
                self.note_unlisted(id, now);
            }
            self.drop_executor(id);
        }
    }

    /// The reason for creates that are cancelled now.
    pub(super) fn cancel_cause(&self) -> DeleteCause {
        if self.stop.is_some() { DeleteCause::Stopped } else { DeleteCause::ScaledDown }
    }

    /// Ends an executor with the drain period of its group, if it runs.
    pub(super) fn decommission(&mut self, id: ExecutorId, cause: DeleteCause, now: Millis) {
        let drain_until = self.executors.get(id).and_then(|executor| {
            let group = self.executors.groups.get(&executor.group)?;
            let pod = self.snapshot.get(executor.uid.as_ref()?)?;
            // An executor that does not run needs no drain period.
            let runs = pod.container == ContainerState::Running && !pod.deleting && !has_ended(pod);
            let decommission = group.spec.decommission.as_ref().filter(|_| runs)?;
            Some(now.after(decommission.after_ms))
        });
        self.begin_end(id, Ending { cause, drain_until }, now);
    }

    fn begin_drain(&mut self, id: ExecutorId, cause: DeleteCause, until: Millis) {
        let Some(subject) = self.subject(id) else { return };
        self.timers.set(until, Timer::Drain(id));
        let pod = subject.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        if let Some(pod) = pod.filter(|pod| pod.draining.is_none()) {
            self.mutations.request(&pod.uid, &pod.name, MutationKind::Annotate);
        }
        self.events.push_back(Event::ExecutorDraining { subject, cause, until });
    }

    /// Continues an end that an earlier run began, as recorded in the pod's annotation.
    pub(super) fn resume_end(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        let Some(pod) = pod else { return };
        let Some(Draining { cause, until_unix_ms }) = pod.draining.as_deref().copied() else {
            return;
        };
        // The loss was reported when the kill was decided.
        if executor.is_adopted && cause == DeleteCause::Killed {
            executor.life = executor.life.lost();
        }
        let until = until_unix_ms.map(|ms| Millis(ms.saturating_sub(self.identity.start_unix_ms)));
        let drain_until = until.filter(|&until| until > now && !pod.deleting && !has_ended(pod));
        self.begin_end(id, Ending { cause, drain_until }, now);
    }

    /// Ends the drain period now.
    pub(super) fn end_drain(&mut self, id: ExecutorId, now: Millis) {
        if let Some(executor) = self.executors.get_mut(id)
            && let Some(ending @ Ending { drain_until: Some(_), .. }) = executor.life.ending()
        {
            executor.life = executor.life.ended_by(Ending { drain_until: None, ..ending });
            self.ensure_deleted(id, now);
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
        let group = executor.and_then(|executor| self.executors.groups.get(&executor.group));
        let decommission = group.and_then(|group| group.spec.decommission.as_ref());
        let draining = Draining {
            cause: ending.map_or(DeleteCause::ScaledDown, |ending| ending.cause),
            until_unix_ms: until.map(|at| self.identity.start_unix_ms.saturating_add(at.0)),
        };
        Patch::Draining(draining, decommission.and_then(|decommission| decommission.label.clone()))
    }

    /// Deletes an executor that is lost or ending, unless it is draining. A resourceVersion
    /// rollback may have undone its end.
    pub(super) fn ensure_deleted(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        let ending = executor.life.ending();
        let is_draining = ending.and_then(|e| e.drain_until).is_some_and(|until| until > now);
        if is_draining || (!executor.life.is_lost() && ending.is_none()) {
            return;
        }
        self.delete_pod_of(id);
    }

    /// Deletes the pod of an executor, even if it was retained.
    pub(super) fn delete_pod_of(&mut self, id: ExecutorId) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        if executor.life == Life::Retained {
            executor.life = Life::Lost { ending: None };
        }
        self.retained.retain(|retained| *retained != id);
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        if let Some(pod) = pod.filter(|pod| !pod.deleting) {
            self.mutations.request(&pod.uid, &pod.name, MutationKind::Delete);
        }
    }
}
