//! `protect: busy`: annotations that keep autoscalers from ending executors that have work. They follow the idle lists.

use super::Reconciler;
use crate::model::action::Action;
use crate::model::event::{Event, GroupEvent};
use crate::model::ids::{ExecutorId, Uid};
use crate::model::refusal::{Refusal, RefusalClass};
use crate::model::status::State;
use crate::state::busy_protection::PROTECT_CHECK_MS;
use crate::state::due::Timer;
use posse_base::time::Millis;

impl Reconciler {
    /// An executor runs: from now on its group is looked at, if it protects the busy.
    pub(super) fn begin_protection(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let protects_busy = self.executors.home(executor).spec.protects_busy();
        let may_protect = protects_busy && !self.errands.protects.is_off();
        if may_protect && !self.busy_protection.set_timer(true) {
            self.due.set(now, Timer::Protection);
        }
    }

    /// Looks at all running executors of groups that protect the busy, and changes the annotations of those that
    /// differ. A pod's annotations are read from the snapshot, so a restarted posse goes on.
    pub(super) fn on_protection_due(&mut self, now: Millis) {
        self.busy_protection.set_timer(false);
        if self.end.is_stopping() || self.errands.protects.is_off() {
            return;
        }
        let running = self.running_of_protected_groups();
        self.busy_protection.protect_only(&running);
        if running.is_empty() {
            return;
        }
        self.busy_protection.set_timer(true);
        self.due.set(now.after(PROTECT_CHECK_MS), Timer::Protection);
        if self.can_judge() {
            running.into_iter().for_each(|id| self.protect_if_busy(id, now));
        }
    }

    fn protect_if_busy(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let Some(pod) = executor.pod(&self.snapshot) else { return };
        let is_idle = self.driver_reports.is_idle(id, now);
        let look = self.busy_protection.look(id, is_idle, now);
        if look.is_newly_over {
            let message = format!(
                "executor {id} has been busy for a day, so its node may be taken from now on"
            );
            let event = GroupEvent::Unprotected { executor: Some(id), message };
            self.out.tell(Event::Group(executor.group.clone(), event));
        }
        let is_due = look.wanted != pod.is_protected && look.may_change;
        if is_due && self.errands.protects.send_once() {
            let (uid, name) = (pod.uid.clone(), pod.name.to_string());
            self.busy_protection.on_sent(id, now);
            self.out.act(Action::Protect { id, uid, name, is_protected: look.wanted });
        }
    }

    /// What an answer does not settle, the next look does. Without the right there is no next look, so that nothing
    /// is protected that could not be given up again.
    pub(super) fn on_protected(
        &mut self,
        id: ExecutorId,
        uid: &Uid,
        answer: Result<(), Refusal>,
        now: Millis,
    ) {
        self.note_answer(&answer, None, now);
        self.errands.protects.end(&id);
        let Err(refusal) = answer else { return };
        if refusal.class != RefusalClass::Forbidden || self.errands.protects.is_off() {
            return;
        }
        let Some(executor) = self.executors.get(id).filter(|one| one.uid.as_ref() == Some(uid))
        else {
            return;
        };
        let group = executor.group.clone();
        self.errands.protects.turn_off();
        let message = format!(
            "`protect: busy` is off, because the server does not let posse patch pods: {refusal}"
        );
        let event = GroupEvent::Unprotected { executor: None, message };
        self.out.tell(Event::Group(group, event));
    }

    /// By id.
    fn running_of_protected_groups(&self) -> Vec<ExecutorId> {
        let groups = self.executors.groups().values().filter(|group| group.spec.protects_busy());
        let members = groups.flat_map(|group| group.members.iter().copied());
        let is_running =
            |id: &ExecutorId| self.executors.get(*id).is_some_and(|e| e.state == State::Running);
        let mut running: Vec<ExecutorId> = members.filter(is_running).collect();
        running.sort_unstable();
        running
    }
}
