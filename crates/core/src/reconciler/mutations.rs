//! Deletes and patches of pods: sends them, and draws the consequences of their answers.

use super::Reconciler;
use super::create_retries::{RETRY_INITIAL_MS, RETRY_MAX_MS};
use crate::model::action::{Action, Patch};
use crate::model::ids::Uid;
use crate::model::pod::Pod;
use crate::model::refusal::{Refusal, RefusalClass};
use crate::state::due::Timer;
use crate::state::errands::{MutationKind, Step};
use crate::state::ledger::DELETE_SEEN_MS;
use crate::state::stop::Stop;
use posse_base::backoff::delay_ms;
use posse_base::time::Millis;

/// The longest retry delay of a forbidden request: the permission may be granted later.
const FORBIDDEN_RETRY_MAX_MS: u64 = 300_000;
/// An annotation or label that cannot be written is given up after this many tries. The cost is a
/// repeated report, or a drain that is forgotten, after a restart.
const PATCH_TRIES_MAX: u32 = 5;

impl Reconciler {
    /// Sends deletes and patches up to the limit in flight.
    pub(super) fn send_mutations(&mut self, now: Millis) {
        if !self.gates.is_lease_held() || !self.snapshot.is_synced() {
            return;
        }
        if let Some((name, _)) = self.errands.nodes.send_next(|_, ()| false) {
            self.out.act(Action::GetNode { name });
        }
        if self.errands.claims.send_next(|(), ()| false).is_some() {
            self.out.act(Action::GiveUpClaims { slots: self.done_slots() });
        }
        let waits_for_reads = self.end.stop().is_none_or(Stop::waits_for_reads);
        while let Some((uid, errand)) = self.errands.next_mutation(waits_for_reads) {
            let (kind, name) = (errand.what.kind, errand.what.name.to_string());
            debug_assert!(!self.snapshot.is_foreign(&uid), "pod {name} is not ours");
            let action = match kind {
                MutationKind::LabelCompleted => {
                    let rest_deadline_s = self.rest_deadline_s(&uid);
                    let folded = self.fold_into(&uid);
                    Action::Patch { uid, name, patch: Patch::Completed { rest_deadline_s, folded } }
                }
                MutationKind::LabelCounted => {
                    let rest_deadline_s = self.rest_deadline_s(&uid);
                    let folded = self.fold_into(&uid);
                    Action::Patch { uid, name, patch: Patch::Counted { rest_deadline_s, folded } }
                }
                MutationKind::LeaveQueue => {
                    let is_deleted = self.is_terminating(&uid);
                    Action::Patch { uid, name, patch: Patch::LeftQueue { is_deleted } }
                }
                // After a restore of etcd a pod may live again.
                MutationKind::ForceDelete if self.is_terminating(&uid) => {
                    Action::Delete { uid, name, grace_s: Some(0) }
                }
                MutationKind::Delete | MutationKind::ForceDelete => {
                    let grace_s = self.delete_grace_s(&uid, now);
                    Action::Delete { uid, name, grace_s }
                }
                MutationKind::Annotate => {
                    let patch = self.draining_patch(&uid);
                    Action::Patch { uid, name, patch }
                }
            };
            self.out.act(action);
        }
    }

    /// What runs on in a record has the pod's grace period, and no time while others wait for its room: the kubelet
    /// leaves it the grace period again.
    fn rest_deadline_s(&self, uid: &Uid) -> Option<u32> {
        let pod = self.snapshot.get(uid)?;
        pod.rest_deadline_s(if self.lacks_room() { 0 } else { pod.grace_s })
    }

    /// It may be time to send a mutation again.
    pub(super) fn on_mutation_due(&mut self, uid: &Uid, now: Millis) {
        let Some(mutation) = self.errands.mutations.get(uid) else { return };
        match mutation.step {
            // A pod that terminates needs no second delete. It would be ignored if etcd is restored
            // and the pod lives again, so the first one is forgotten.
            Step::Accepted(at) if at <= now && self.is_terminating(uid) => {
                self.errands.mutations.remove(uid);
            }
            Step::Accepted(at) | Step::RetryAt(at) if at <= now => {
                self.errands.mutations.send_again(uid);
            }
            Step::Accepted(_) | Step::Answer | Step::Ready | Step::RetryAt(_) => {}
        }
    }

    /// True if the pod terminates, or is gone or lacks our labels, so that no event will report its
    /// end.
    pub(super) fn is_terminating(&self, uid: &Uid) -> bool {
        self.snapshot.get(uid).is_none_or(|pod| pod.deleting)
    }

    pub(super) fn on_deleted(
        &mut self,
        uid: &Uid,
        answer: Result<Option<Pod>, Refusal>,
        now: Millis,
    ) {
        let Some(mutation) = self.errands.mutations.on_answered(uid) else { return };
        match answer {
            Ok(pod) => {
                let at = now.after(DELETE_SEEN_MS);
                mutation.step = Step::Accepted(at);
                let leaves_queue = mutation.what.kind == MutationKind::LeaveQueue;
                let change = pod.and_then(|pod| self.snapshot.refresh(pod));
                if leaves_queue {
                    self.errands.mutations.send_again(uid);
                } else if self.snapshot.is_unseen(uid) {
                    // Its end is asked for, and its queue is left: no event tells that it may be.
                    if self.snapshot.get(uid).is_some_and(|pod| pod.is_held_by_queue) {
                        mutation.what.kind = MutationKind::LeaveQueue;
                        self.errands.mutations.send_again(uid);
                    } else {
                        self.repeat_mutation(uid, RETRY_MAX_MS, 0, now);
                    }
                } else if self.is_terminating(uid) {
                    self.errands.mutations.remove(uid);
                } else {
                    self.due.set(at, Timer::Mutation(uid.clone()));
                }
                self.on_change(change, now);
            }
            // The pod is gone, or another pod has its name.
            Err(refusal) if refusal.is_outdated() => self.on_absent(uid, now),
            Err(refusal) => self.retry_mutation(uid, &refusal, now),
        }
    }

    /// The server says that this pod does not exist.
    pub(super) fn on_absent(&mut self, uid: &Uid, now: Millis) {
        let change = self.snapshot.forget(uid);
        self.errands.mutations.remove(uid);
        self.on_change(change, now);
    }

    pub(super) fn on_patched(&mut self, uid: &Uid, answer: Result<(), Refusal>, now: Millis) {
        self.on_folded(uid, answer.is_ok());
        let Some(mutation) = self.errands.mutations.on_answered(uid) else { return };
        // Otherwise a delete was requested meanwhile.
        let is_patch = mutation.what.kind.is_patch();
        let is_drain = mutation.what.kind == MutationKind::Annotate;
        // A pod that does not leave its queue stays for ever, with its part of the quota.
        let is_needed = mutation.what.kind == MutationKind::LeaveQueue;
        let is_given_up = mutation.n_tries >= PATCH_TRIES_MAX && !is_needed;
        match answer {
            // A conflict says nothing about whether the pod exists: a retry, or the delete by uid, will.
            Err(refusal) if refusal.class == RefusalClass::NotFound => self.on_absent(uid, now),
            Err(refusal)
                if is_patch && !is_given_up && refusal.class != RefusalClass::Forbidden =>
            {
                self.retry_mutation(uid, &refusal, now);
            }
            Ok(()) | Err(_) if is_patch => {
                self.errands.mutations.remove(uid);
                if is_needed && self.snapshot.is_unseen(uid) {
                    self.snapshot.note_left_queue(uid);
                    self.request(uid, MutationKind::Delete);
                }
                if is_drain {
                    self.begin_term(uid, now);
                }
            }
            Ok(()) | Err(_) => self.errands.mutations.send_again(uid),
        }
    }

    fn retry_mutation(&mut self, uid: &Uid, refusal: &Refusal, now: Millis) {
        let max = if refusal.class == RefusalClass::Forbidden {
            FORBIDDEN_RETRY_MAX_MS
        } else {
            RETRY_MAX_MS
        };
        self.repeat_mutation(uid, max, refusal.retry_delay_ms(), now);
    }

    /// Sends it again after a delay that doubles up to `max_ms`.
    fn repeat_mutation(&mut self, uid: &Uid, max_ms: u64, min_ms: u64, now: Millis) {
        let Some(mutation) = self.errands.mutations.get(uid) else { return };
        let delay = delay_ms(mutation.n_tries, RETRY_INITIAL_MS, max_ms, &mut self.rng);
        let at = now.after(self.end.within_stop(delay.max(min_ms), now));
        self.errands.mutations.retry_at(uid, at);
        self.due.set(at, Timer::Mutation(uid.clone()));
    }

    /// Takes a pod out of its queue group (`queue_group`) if it has been deleted and nothing else keeps it.
    pub(super) fn leave_queue(&mut self, uid: &Uid) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        if pod.is_held_by_queue && pod.deleting && pod.deletion_grace_s == 0 {
            self.errands.mutations.request(uid, &pod.name, MutationKind::LeaveQueue);
        }
    }
}
