//! The stop of a run's executors: sends nothing new, awaits the answers, deletes, lists until nothing is
//! left, and names pods that may remain. Ends at its deadlines at the latest.

use std::collections::BTreeSet;

use super::Reconciler;
use crate::model::action::Action;
use crate::model::event::{DeleteCause, Event, RunEvent};
use crate::model::ids::{ExecutorId, Uid};
use crate::model::pod::Pod;
use crate::model::refusal::{Refusal, RefusalClass};
use crate::model::stop::{HeldPod, StopOrder, StopResult};
use crate::state::errands::{MutationKind, Step};
use crate::state::executors::{Ending, Executors, Life};
use crate::state::ledger::Create;
use posse_base::time::Millis;

const LIST_DELAY_INITIAL_MS: u64 = 100;
const LIST_DELAY_MAX_MS: u64 = 2_000;
/// How long the delete of all executors waits for labels to be written and logs to be read.
const PATCH_AND_LOG_MS: u64 = 2_000;
/// The time beyond the executors' grace period in which the cluster must report that they are gone.
const GONE_MARGIN_MS: u64 = 5_000;
/// In a hurry, how long the answer to the last delete is awaited.
const HURRY_MS: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopStep {
    /// The answer to the delete of all executors.
    DeleteAll,
    /// The answer to a LIST.
    List,
    /// The time for the next delete of all executors.
    DeleteAllAt(Millis),
    /// The time for the next LIST.
    ListAt(Millis),
}

/// A stop in progress.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    pub(super) order: StopOrder,
    step: StopStep,
    pub(super) grace_s: u32,
    deadline: Millis,
    /// In a hurry: the stop ends then, or when a delete of all executors is answered.
    hurry_until: Option<Millis>,
    /// Pods with a grace period that is longer than the stop's own, and until when the cluster must
    /// report that they are gone.
    long_graces: BTreeSet<(Millis, Uid)>,
    /// Until then failed pods are labelled and logs are read, before all executors are deleted.
    patch_and_log_deadline: Millis,
    /// The retained pods that were told to leave their queues.
    pub(super) left_queues: BTreeSet<Uid>,
    n_lists: u32,
    /// A LIST was answered since late pods were last looked for.
    is_list_new: bool,
    /// Failed deletes of all executors.
    n_delete_failures: u32,
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
    /// When the cluster must have reported that all pods are gone.
    fn pods_gone_by(&self) -> Millis {
        let longest = self.long_graces.last().map(|(until, _)| *until);
        longest.into_iter().fold(self.deadline, Millis::max)
    }
}

impl Reconciler {
    /// Begins the stop. No executors are created from here on.
    pub fn begin_stop(&mut self, order: StopOrder, now: Millis) {
        if self.stop.is_some() {
            return;
        }
        self.stop_creates();
        let timeout_ms = self.policy.stop_timeout_ms;
        let had_any = !self.had_first_list()
            || !self.executors.is_empty()
            || self.snapshot.our_pods().next().is_some()
            || self.ours.unresolved().next().is_some()
            || !self.errands.mutations.is_empty();
        self.stop = Some(Stop {
            order,
            step: StopStep::DeleteAllAt(now),
            grace_s: u32::try_from(timeout_ms.div_ceil(1_000)).unwrap_or(u32::MAX),
            deadline: now.after(timeout_ms).after(GONE_MARGIN_MS),
            hurry_until: None,
            long_graces: BTreeSet::new(),
            patch_and_log_deadline: now.after(PATCH_AND_LOG_MS),
            left_queues: BTreeSet::new(),
            n_lists: 0,
            is_list_new: false,
            n_delete_failures: 0,
            n_left: self.snapshot.n_ours(),
            list_sent_at: now,
            open_create_seen_at: now,
            listed_at: None,
            result: None,
        });
        if !order.keep {
            self.give_up_records(now);
        }
        let ids: Vec<ExecutorId> = self.executors.iter().map(|(id, _)| id).collect();
        for id in ids {
            // Another executor's end may have removed it.
            let Some(executor) = self.executors.get(id) else { continue };
            if executor.uid.is_none() {
                // If executors are kept, a pod may still come from this create.
                let is_awaited =
                    order.keep && executor.create.as_ref().is_some_and(|c| c.is_in_flight());
                if !is_awaited {
                    self.cancel_create(id, now);
                }
            } else if !order.keep && executor.life == Life::Wanted {
                let life = Life::Ending(Ending::now(DeleteCause::Stopped));
                self.change(id, now, |executor| executor.life = life);
            }
        }
        let pods: Vec<Uid> = self.snapshot.pods().map(|pod| pod.uid.clone()).collect();
        for uid in pods {
            self.note_long_grace(&uid, self.is_delete_sent(&uid), now);
        }
        // If there never was an executor, nothing has to be deleted or listed.
        if order.keep || (!had_any && self.server.window().in_flight() == 0) {
            self.finish_stop_if_answered(now);
        }
        self.due.add_turn(now);
    }

    /// Begins the stop and ends it with the next turn, whatever is left.
    pub fn abandon_stop(&mut self, order: StopOrder, now: Millis) {
        self.begin_stop(order, now);
        if let Some(stop) = &mut self.stop {
            stop.hurry_until = Some(now);
        }
    }

    /// Stops in a hurry: deletes all executors without a grace period, retained ones too. `keep`: they
    /// are left running.
    pub fn hurry_stop(&mut self, keep: bool, now: Millis) {
        self.begin_stop(StopOrder { keep, keep_failed: false }, now);
        if let Some(stop) = &mut self.stop {
            stop.hurry_until = Some(now.after(HURRY_MS));
        }
        // If other pods have our labels, the stop deletes each executor on its own.
        if self.gates.is_lease_held() && !keep && !self.has_foreign_pods() {
            self.out.act(Action::DeleteAll { grace_s: 0, keep_counted: false });
        }
    }

    /// The result; none while the stop is in progress.
    pub fn stop_result(&self) -> Option<&StopResult> {
        self.stop.as_ref()?.result.as_ref()
    }

    /// The pods that may be left now.
    pub fn remaining(&self) -> StopResult {
        let mut result = StopResult::default();
        for pod in self.snapshot.our_pods() {
            if let Some(finalizers) = pod.held_by() {
                let (name, finalizers) = (pod.name.to_string(), finalizers.to_owned());
                result.held.push(HeldPod { name, finalizers });
                continue;
            }
            let names = match stays_after_stop(self.stop.as_ref(), &self.executors, pod) {
                true => &mut result.retained,
                false if pod.deleting => &mut result.terminating,
                false => &mut result.remaining,
            };
            names.push(pod.name.to_string());
        }
        for (id, executor) in self.executors.iter() {
            if executor.uid.is_none() {
                result.remaining.push(self.ours.pod_name(id));
            }
        }
        result
            .remaining
            .extend(self.errands.mutations.names_not_in(&self.snapshot).map(str::to_owned));
        result.remaining.extend(self.ours.unresolved().map(|id| self.ours.pod_name(id)));
        let is_held = |name: &String| result.held.iter().any(|held| held.name == *name);
        let is_seen = |name: &String| {
            result.terminating.contains(name) || result.retained.contains(name) || is_held(name)
        };
        result.remaining.retain(|name| !is_seen(name));
        result.remaining.sort();
        result.remaining.dedup();
        result
    }

    pub(super) fn turn_stop(&mut self, now: Millis) -> Option<Millis> {
        self.release_folded();
        let stop = self.stop.as_ref()?;
        if stop.result.is_some() {
            return None;
        }
        if stop.order.keep {
            return self.finish_stop_if_answered(now);
        }
        self.extend_deadline(now);
        self.forget_ended_graces();
        self.retained_leave_queue();
        if self.is_stop_done(now) || self.is_past_stop_end(now) {
            self.finish_stop();
            return None;
        }
        // Without the Lease another process may own the pods. It may come back before the deadline.
        if !self.gates.is_lease_held() {
            return self.stop_end();
        }
        self.delete_late_pods();
        let watermark = self.watermark();
        // The request deletes by labels, which other pods may have, too. Then each pod that a LIST
        // shows is deleted on its own.
        let can_delete_all = self.had_first_list() && !self.has_foreign_pods();
        let stop = self.stop.as_mut()?;
        match stop.step {
            // Failed pods are labelled first, because the label excludes them from the delete; and
            // the last logs are read, if the server returns them in time.
            StopStep::DeleteAllAt(at)
                if at <= now
                    && (stop.order.keep_failed
                        && self.errands.mutations.has(MutationKind::LabelCounted)
                        || self.errands.are_reads_open())
                    && now < stop.patch_and_log_deadline =>
            {
                stop.step = StopStep::DeleteAllAt(now.after(LIST_DELAY_INITIAL_MS));
            }
            StopStep::DeleteAllAt(at) if at <= now && can_delete_all => {
                stop.step = StopStep::DeleteAll;
                let (grace_s, keep_counted) = (stop.grace_s, stop.order.keep_failed);
                self.out.act(Action::DeleteAll { grace_s, keep_counted });
            }
            StopStep::DeleteAllAt(at) | StopStep::ListAt(at) if at <= now => {
                (stop.step, stop.list_sent_at) = (StopStep::List, now);
                self.out.act(Action::List { watermark });
            }
            StopStep::DeleteAll
            | StopStep::DeleteAllAt(_)
            | StopStep::List
            | StopStep::ListAt(_) => {}
        }
        self.stop_deadline()
    }

    pub(super) fn on_deleted_all(&mut self, answer: Result<(), Refusal>, now: Millis) {
        let delay_ms = answer.as_ref().map_or_else(Refusal::retry_delay_ms, |()| 0);
        let retry_ms = self.within_stop(delay_ms.max(LIST_DELAY_MAX_MS / 2), now);
        let Some(stop) = &mut self.stop else { return };
        stop.hurry_until = stop.hurry_until.map(|_| now);
        stop.n_delete_failures += u32::from(answer.is_err());
        let failures = stop.n_delete_failures;
        stop.step = match answer {
            Ok(()) => StopStep::ListAt(now.after(LIST_DELAY_INITIAL_MS)),
            // Without permission for deletecollection each pod is deleted on its own.
            // A webhook that denies one pod fails the whole request, and so may a broken server: each
            // pod gets its own delete then, and one refusal does not stop the others.
            Err(refusal) if refusal.class == RefusalClass::Forbidden || failures > 1 => {
                StopStep::ListAt(now)
            }
            Err(_) => StopStep::DeleteAllAt(now.after(retry_ms)),
        };
    }

    /// A LIST of the stop was answered. `is_applied`: it was valid (no resourceVersion rollback).
    pub(super) fn on_stop_listed(&mut self, is_applied: bool, now: Millis) {
        let Some(stop) = &mut self.stop else { return };
        stop.n_lists = stop.n_lists.saturating_add(1);
        stop.is_list_new = true;
        if is_applied {
            stop.listed_at = Some(stop.list_sent_at);
            self.ours.on_listed(stop.list_sent_at);
        }
        let delay = LIST_DELAY_INITIAL_MS << stop.n_lists.min(5);
        stop.step = StopStep::ListAt(now.after(delay.min(LIST_DELAY_MAX_MS)));
    }

    pub(super) fn on_stop_list_refused(&mut self, refusal: &Refusal, now: Millis) {
        let ms = self.within_stop(refusal.retry_delay_ms().max(LIST_DELAY_MAX_MS / 2), now);
        if let Some(stop) = &mut self.stop {
            stop.step = StopStep::ListAt(now.after(ms));
        }
    }

    /// As long as pods go, the stop goes on.
    fn extend_deadline(&mut self, now: Millis) {
        let n_left = self.snapshot.n_ours();
        if let Some(stop) = &mut self.stop {
            if n_left < stop.n_left {
                stop.deadline = stop.deadline.max(now.after(GONE_MARGIN_MS));
            }
            stop.n_left = n_left;
        }
    }

    /// A pod was seen during the stop. One that is new and terminates has begun to before the stop.
    pub(super) fn note_grace_in_stop(&mut self, uid: &Uid, now: Millis) {
        let Some(pod) = self.snapshot.get(uid).filter(|pod| pod.deleting) else { return };
        let known = self.executors.get(pod.id).and_then(|executor| executor.uid.as_ref());
        self.note_long_grace(uid, known != Some(uid), now);
    }

    /// A pod that terminates has a grace period of its own. The stop's delete shortens it on the server,
    /// but a node that has begun to end the containers may go on with the one that it began with
    /// (seen with kubelet 1.33). `is_begun`: the node may have begun before the stop's delete.
    fn note_long_grace(&mut self, uid: &Uid, is_begun: bool, now: Millis) {
        let (Some(stop), Some(pod)) = (&mut self.stop, self.snapshot.get(uid)) else { return };
        let grace_s = match is_begun {
            true => pod.grace_s.max(pod.deletion_grace_s),
            false => pod.deletion_grace_s,
        };
        if grace_s > stop.grace_s && (pod.deleting || is_begun) {
            let until = now.after(u64::from(grace_s) * 1_000).after(GONE_MARGIN_MS);
            stop.long_graces.insert((until, uid.clone()));
        }
    }

    /// True if the pod terminates, or its delete was sent.
    fn is_delete_sent(&self, uid: &Uid) -> bool {
        let is_sent = self.errands.mutations.get(uid).is_some_and(|mutation| {
            let is_delete =
                matches!(mutation.what.kind, MutationKind::Delete | MutationKind::ForceDelete);
            is_delete && matches!(mutation.step, Step::Answer | Step::Accepted(_))
        });
        is_sent || self.snapshot.get(uid).is_some_and(|pod| pod.deleting)
    }

    fn forget_ended_graces(&mut self) {
        let Some(stop) = &mut self.stop else { return };
        while stop.long_graces.last().is_some_and(|(_, uid)| self.snapshot.get(uid).is_none()) {
            stop.long_graces.pop_last();
        }
    }

    /// A retry delay that leaves time for the retry in a stop.
    pub(super) fn within_stop(&self, delay_ms: u64, now: Millis) -> u64 {
        let left_ms = self.stop.as_ref().map(|stop| stop.deadline.since(now));
        left_ms.map_or(delay_ms, |left_ms| delay_ms.min((left_ms / 2).max(LIST_DELAY_INITIAL_MS)))
    }

    /// True if a LIST that was sent after the last open create showed none of our pods.
    fn is_stop_done(&mut self, now: Millis) -> bool {
        let has_open = self.has_open_creates();
        let stop = self.stop.as_ref();
        let is_clear = self.snapshot.is_synced()
            // Ends at the first pod that is left, so the second condition is cheap: few mutations are
            // left then.
            && self.snapshot.our_pods().all(|pod| stays_after_stop(stop, &self.executors, pod))
            && self.errands.mutations.names_not_in(&self.snapshot).next().is_none()
            && !self.errands.mutations.has(MutationKind::LeaveQueue);
        let Some(stop) = &mut self.stop else { return false };
        if has_open {
            stop.open_create_seen_at = now;
        }
        is_clear && !has_open && stop.listed_at.is_some_and(|at| at > stop.open_create_seen_at)
    }

    fn is_past_stop_end(&self, now: Millis) -> bool {
        self.stop_end().is_none_or(|end| end <= now)
    }

    fn stop_deadline(&self) -> Option<Millis> {
        let stop = self.stop.as_ref()?;
        let step = match stop.step {
            StopStep::DeleteAllAt(at) | StopStep::ListAt(at) => Some(at),
            StopStep::DeleteAll | StopStep::List => None,
        };
        step.into_iter().chain(self.stop_end()).min()
    }

    /// When the stop ends whatever is left: after the executors' grace period, and after the time in which
    /// a create can take effect.
    fn stop_end(&self) -> Option<Millis> {
        let stop = self.stop.as_ref()?;
        let end = match stop.order.keep {
            true => stop.deadline,
            false => {
                let unlisted = self.ours.last_unlisted();
                let listed_by = unlisted.map(|at| at.after(GONE_MARGIN_MS));
                let waits = self.open_until().into_iter().chain(listed_by);
                waits.fold(stop.pods_gone_by(), Millis::max)
            }
        };
        stop.hurry_until.into_iter().chain([end]).min()
    }

    fn has_open_creates(&self) -> bool {
        self.ours.open_until().is_some() || self.executors.creates().next().is_some()
    }

    /// Until when a create of unknown outcome may take effect.
    fn open_until(&self) -> Option<Millis> {
        self.executors.creates().filter_map(Create::open_until).chain(self.ours.open_until()).max()
    }

    fn delete_late_pods(&mut self) {
        // The first LIST is sent after the delete of all executors, so a live pod in it came late. A
        // pod that changes afterwards is deleted when the change is applied.
        if !self.stop.as_mut().is_some_and(|stop| std::mem::take(&mut stop.is_list_new)) {
            return;
        }
        let stop = self.stop.as_ref();
        for pod in self.snapshot.our_pods().filter(|pod| !pod.deleting) {
            if !stays_after_stop(stop, &self.executors, pod) {
                self.errands.mutations.request(&pod.uid, &pod.name, MutationKind::Delete);
            }
        }
    }

    /// Used if nothing is deleted: only waits for the answers to requests in flight.
    fn finish_stop_if_answered(&mut self, now: Millis) -> Option<Millis> {
        if self.server.window().in_flight() == 0 || self.is_past_stop_end(now) {
            self.finish_stop();
            return None;
        }
        self.stop_end()
    }

    fn finish_stop(&mut self) {
        let mut result = self.remaining();
        if self.stop.as_ref().is_some_and(|stop| stop.order.keep) {
            // Left on purpose, or because another process holds the instance.
            result.remaining.clear();
            result.terminating.clear();
            result.held.clear();
        }
        if let Some(stop) = &mut self.stop {
            stop.result = Some(result);
        }
        self.out.tell(Event::Run(RunEvent::Stopped));
    }
}

/// True for a retained failed pod if the stop leaves such pods.
fn stays_after_stop(stop: Option<&Stop>, executors: &Executors, pod: &Pod) -> bool {
    stop.is_some_and(|stop| stop.order.keep_failed)
        && executors.get(pod.id).is_some_and(|executor| executor.life == Life::Retained)
}
