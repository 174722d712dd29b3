//! Memory that grows in place: an executor that uses nearly all that it has gets more without a new pod.

use super::Reconciler;
use crate::model::action::Action;
use crate::model::event::ExecutorEvent;
use crate::model::ids::{ExecutorId, Uid};
use crate::model::pod::Pod;
use crate::model::refusal::{Refusal, RefusalClass};
use crate::model::status::State;
use crate::state::executors::Resize;
use posse_base::time::Millis;

/// One change of an executor's memory in this time: the node needs some to give it, and reports that are older show
/// the use of the old limit.
const RESIZE_EVERY_MS: u64 = 60_000;
/// A change that was refused is tried again after twice the time, up to 64 minutes.
const RESIZE_DOUBLINGS_MAX: u32 = 6;
/// The answer to a method that a server does not have.
const METHOD_NOT_ALLOWED: u16 = 405;

impl Reconciler {
    /// The driver tells how much memory an executor uses.
    pub(super) fn on_memory_report(&mut self, id: ExecutorId, used_bytes: u64, now: Millis) {
        if !self.errands.resizes.has_room() || self.end.is_stopping() || !self.gates.is_lease_held()
        {
            return;
        }
        let Some(executor) = self.executors.get(id) else { return };
        let is_recent = |resize: &Resize| now < resize.not_before;
        if executor.state != State::Running || executor.resize.as_deref().is_some_and(is_recent) {
            return;
        }
        let (limit_bytes, uid) = (executor.memory_limit_bytes, executor.uid.clone());
        let pod = self.executors.home(executor).spec.pod.clone();
        let (Some(uid), Some(pod)) = (uid, pod) else { return };
        let Some((step, memory)) = pod.step_for(used_bytes, limit_bytes) else { return };
        let (limit, limit_bytes) = (memory.limit.clone(), memory.limit_bytes);
        self.errands.resizes.send_once();
        self.change(id, now, |executor| {
            let last = executor.resize.take().map(|resize| (resize.n_refused, resize.told));
            let (n_refused, told) = last.unwrap_or_default();
            let not_before = now.after(RESIZE_EVERY_MS);
            let resize = Resize { not_before, n_refused, step, limit, limit_bytes, told };
            executor.resize = Some(Box::new(resize));
        });
        let name = self.ours.pod_name(id);
        self.out.act(Action::Resize { id, uid, name, step, pod });
    }

    pub(super) fn on_resized(
        &mut self,
        id: ExecutorId,
        uid: &Uid,
        answer: Result<(), Refusal>,
        now: Millis,
    ) {
        self.errands.resizes.end(&id);
        let is_there = self.snapshot.get(uid).is_some_and(|pod| !pod.deleting);
        let executor = self.executors.get(id).filter(|one| one.uid.as_ref() == Some(uid));
        if !is_there || executor.is_none_or(|executor| executor.resize.is_none()) {
            return;
        }
        let refusal = match answer {
            Ok(()) => {
                let memory = self.change(id, now, |executor| {
                    let resize = executor.resize.as_deref_mut()?;
                    (resize.n_refused, resize.told) = (0, None);
                    (executor.memory_step, executor.memory_limit_bytes) =
                        (resize.step, resize.limit_bytes);
                    Some(resize.limit.clone())
                });
                let memory = memory.unwrap_or_default();
                return self.tell(id, ExecutorEvent::MemoryGrown { memory, message: None });
            }
            Err(refusal) => refusal,
        };
        let is_unknown_method =
            refusal.class == RefusalClass::Invalid && refusal.code == METHOD_NOT_ALLOWED;
        let is_too_much = matches!(
            refusal.class,
            RefusalClass::Capacity | RefusalClass::Forbidden | RefusalClass::Invalid
        );
        // The pod is there, so there is no such subresource.
        if refusal.class == RefusalClass::NotFound || is_unknown_method {
            self.errands.resizes.turn_off();
        } else if is_too_much {
            // A 403 may also say that this node is too small.
            self.change(id, now, |executor| {
                let Some(resize) = executor.resize.as_deref_mut() else { return };
                resize.n_refused = resize.n_refused.saturating_add(1);
                let factor = 1_u64 << resize.n_refused.min(RESIZE_DOUBLINGS_MAX);
                resize.not_before = now.after(RESIZE_EVERY_MS * factor);
            });
        } else {
            // The next report asks again.
            return;
        }
        self.tell_not_grown(id, &format!("the server refuses it: {refusal}"), now);
    }

    /// The node tells why it has not given a pod the memory yet.
    pub(super) fn note_resize(&mut self, id: ExecutorId, now: Millis) {
        let seen = self.seen(id).filter(|(executor, _)| executor.resize.is_some());
        if let Some(problem) = seen.and_then(|(_, pod)| pod.resize_problem()).map(str::to_owned) {
            self.tell_not_grown(id, &problem, now);
        }
    }

    /// Once for each message.
    fn tell_not_grown(&mut self, id: ExecutorId, message: &str, now: Millis) {
        let memory = self.change(id, now, |executor| {
            let resize = executor.resize.as_deref_mut();
            let resize = resize.filter(|resize| resize.told.as_deref() != Some(message))?;
            resize.told = Some(message.into());
            Some(resize.limit.clone())
        });
        if let Some(memory) = memory {
            let message = Some(message.to_owned());
            self.tell(id, ExecutorEvent::MemoryGrown { memory, message });
        }
    }

    /// The memory step that an executor really has: a node that could not give it more has left it the step before.
    pub(super) fn memory_step_of(&self, id: ExecutorId) -> Option<u32> {
        let executor = self.executors.get(id).filter(|executor| !executor.has_own_memory())?;
        let is_short = executor.pod(&self.snapshot).and_then(Pod::resize_problem).is_some();
        Some(executor.memory_step.saturating_sub(u32::from(is_short)))
    }
}
