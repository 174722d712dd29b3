//! The stop of a run's executors: sends nothing new, awaits the answers, deletes, lists until nothing is
//! left, and names pods that may remain. Ends at its deadlines at the latest.

use super::Reconciler;
use crate::model::event::{DeleteCause, Event, RunEvent};
use crate::model::ids::{ExecutorId, Uid};
use crate::model::pod::Pod;
use crate::model::refusal::Refusal;
use crate::model::settings::Together;
use crate::model::stop::{HeldPod, StopOrder, StopResult};
use crate::state::errands::{MutationKind, Step};
use crate::state::executors::{Ending, Life};
use crate::state::ledger::Create;
use crate::state::stop::Stop;
use posse_base::time::Millis;

impl Reconciler {
    /// Begins the stop. No executors are created from here on.
    pub fn begin_stop(&mut self, order: StopOrder, now: Millis) {
        if self.end.is_stopping() {
            return;
        }
        self.stop_creates();
        let had_any = !self.had_first_list()
            || !self.executors.is_empty()
            || self.snapshot.our_pods().next().is_some()
            || self.ours.unresolved().next().is_some()
            || !self.errands.mutations.is_empty();
        let n_left = self.snapshot.n_ours();
        // No watch may have told what has ended last, and the next process would begin it again.
        let looks = self.has_record() && !order.is_over;
        self.end.begin_stop(Stop::new(order, self.policy.stop_timeout_ms, looks, n_left, now));
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
            self.note_grace(&uid, self.is_delete_sent(&uid), now);
        }
        // If there never was an executor, nothing has to be deleted or listed.
        if order.keep || (!had_any && self.server.window.in_flight() == 0) {
            self.finish_stop_if_answered(now);
        }
        self.due.add_turn(now);
    }

    /// Begins the stop and ends it with the next turn, whatever is left.
    pub fn abandon_stop(&mut self, order: StopOrder, now: Millis) {
        self.begin_stop(order, now);
        if let Some(stop) = self.end.stop_mut() {
            stop.abandon(now);
        }
    }

    /// Stops in a hurry: deletes all executors, retained ones too, and does not wait for their ends. `keep`: they are
    /// left running.
    pub fn hurry_stop(&mut self, keep: bool, now: Millis) {
        self.begin_stop(StopOrder { keep, keep_failed: false, is_over: false }, now);
        if let Some(stop) = self.end.stop_mut() {
            stop.hurry(now);
        }
    }

    /// The result; none while the stop is in progress.
    pub fn stop_result(&self) -> Option<&StopResult> {
        self.end.stop()?.result()
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
            let names = match self.stays_after_stop(pod) {
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
        let stop = self.end.stop()?;
        if stop.result().is_some() {
            return None;
        }
        let order = stop.order();
        if order.keep {
            return self.finish_stop_if_answered(now);
        }
        self.note_what_is_left(now);
        self.retained_leave_queue();
        if self.is_stop_done(now) || self.is_past_stop_end(now) {
            self.finish_stop();
            return None;
        }
        // Without the Lease another process may own the pods. It may come back before the deadline.
        if !self.gates.is_lease_held() {
            return self.stop_end();
        }
        let (watermark, errands, lacks_ends) = (self.watermark(), &self.errands, self.lacks_ends());
        let is_held = || {
            order.keep_failed && errands.mutations.has(MutationKind::LabelCounted)
                || errands.are_reads_open()
                || lacks_ends
        };
        let request = self.end.stop_mut()?.next_request(watermark, is_held, now);
        request.into_iter().for_each(|action| self.out.act(action));
        self.delete_pods();
        let due = self.end.stop()?.due();
        due.into_iter().chain(self.stop_end()).min()
    }

    /// Pods have to stay until the record has their ends.
    fn lacks_ends(&self) -> bool {
        let (n_changes, n_recorded) = self.recorded();
        n_changes > n_recorded && self.snapshot.our_pods().any(|pod| self.is_last_to_tell(pod))
    }

    /// Only this pod tells the next process of the run that its work has ended.
    pub(super) fn is_last_to_tell(&self, pod: &Pod) -> bool {
        let goes_on = self.end.stop().is_some_and(|stop| !stop.order().is_over);
        let executor = self.executors.get(pod.id);
        let is_done = executor.is_some_and(|one| one.is_done && one.uid.as_ref() == Some(&pod.uid));
        goes_on && is_done && !pod.deleting && !self.is_end_recorded(pod.id)
    }

    /// A LIST of the stop was answered. `is_applied`: it was valid (no resourceVersion rollback).
    pub(super) fn on_stop_listed(&mut self, is_applied: bool, now: Millis) {
        let sent_at = self.end.stop_mut().and_then(|stop| stop.on_listed(is_applied, now));
        sent_at.into_iter().for_each(|at| self.ours.on_listed(at));
    }

    pub(super) fn on_stop_list_refused(&mut self, refusal: &Refusal, now: Millis) {
        if let Some(stop) = self.end.stop_mut() {
            stop.on_list_refused(refusal, now);
        }
    }

    fn note_what_is_left(&mut self, now: Millis) {
        if let Some(stop) = self.end.stop_mut() {
            stop.note_left(self.snapshot.n_ours(), now);
            stop.forget_ended_graces(|uid| self.snapshot.get(uid).is_some());
        }
    }

    /// A pod was seen during the stop. One that is new and terminates has begun to before the stop.
    pub(super) fn note_grace_in_stop(&mut self, uid: &Uid, now: Millis) {
        let Some(pod) = self.snapshot.get(uid).filter(|pod| pod.deleting) else { return };
        let known = self.executors.get(pod.id).and_then(|executor| executor.uid.as_ref());
        self.note_grace(uid, known != Some(uid), now);
    }

    fn note_grace(&mut self, uid: &Uid, is_begun: bool, now: Millis) {
        if let (Some(stop), Some(pod)) = (self.end.stop_mut(), self.snapshot.get(uid)) {
            stop.note_grace(pod, is_begun, now);
        }
    }

    /// True if the pod terminates, or its delete was sent.
    pub(super) fn is_delete_sent(&self, uid: &Uid) -> bool {
        let is_sent = self.errands.mutations.get(uid).is_some_and(|mutation| {
            let is_delete =
                matches!(mutation.what.kind, MutationKind::Delete | MutationKind::ForceDelete);
            is_delete && matches!(mutation.step, Step::Answer | Step::Accepted(_))
        });
        is_sent || self.snapshot.get(uid).is_some_and(|pod| pod.deleting)
    }

    /// True if a LIST that was sent after the last open create showed none of our pods.
    fn is_stop_done(&mut self, now: Millis) -> bool {
        let has_open =
            self.ours.open_until().is_some() || self.executors.creates().next().is_some();
        let is_clear = self.snapshot.is_synced()
            // Ends at the first pod that is left, so the second condition is cheap: few mutations are
            // left then.
            && self.snapshot.our_pods().all(|pod| {
                self.stays_after_stop(pod) || self.snapshot.is_on_own_lost_node(pod)
            })
            && self.errands.mutations.names_not_in(&self.snapshot).next().is_none()
            && !self.errands.mutations.has(MutationKind::LeaveQueue);
        let is_listed = self.end.stop_mut().is_some_and(|stop| stop.is_all_listed(has_open, now));
        is_clear && is_listed
    }

    fn is_past_stop_end(&self, now: Millis) -> bool {
        let is_hasty = self.end.stop().is_some_and(Stop::awaits_answers_only);
        is_hasty && !self.errands.mutations.is_waiting()
            || self.stop_end().is_none_or(|end| end <= now)
    }

    /// When the stop ends whatever is left.
    fn stop_end(&self) -> Option<Millis> {
        let open_until = self.executors.creates().filter_map(Create::open_until);
        let open_until = open_until.chain(self.ours.open_until());
        Some(self.end.stop()?.end(open_until, self.ours.last_unlisted()))
    }

    /// The run ends, and failed pods stay: they must not keep the quota of their group. Each one leaves once, when its
    /// label is written. Kueue itself removes its finalizer from them: if posse
    /// did, Kueue might wait for ever for the event of its own removal (Kueue 0.13, `excessPodExpectations`).
    fn retained_leave_queue(&mut self) {
        let Some(stop) = self.end.stop_mut().filter(|stop| stop.order().keep_failed) else {
            return;
        };
        let groups =
            self.executors.groups().values().filter(|group| group.spec.together == Together::Queue);
        let members = groups.flat_map(|group| self.executors.own(group));
        for (_, executor) in members.filter(|(_, executor)| executor.life == Life::Retained) {
            let Some(pod) = executor.pod(&self.snapshot).filter(|pod| !pod.deleting) else {
                continue;
            };
            if self.errands.mutations.get(&pod.uid).is_none() && stop.leaves_queue(&pod.uid) {
                self.errands.mutations.request(&pod.uid, &pod.name, MutationKind::LeaveQueue);
            }
        }
    }

    /// True for a retained failed pod if the stop leaves such pods.
    fn stays_after_stop(&self, pod: &Pod) -> bool {
        let executor = self.executors.get(pod.id);
        self.end.keeps_failed() && executor.is_some_and(|one| one.life == Life::Retained)
    }

    /// Each on its own: a delete by labels hits what others have labelled so, one refusal fails it as a whole, and before
    /// Kubernetes 1.21 one pod that has ended takes the grace period from all behind it (kubernetes#100101).
    fn delete_pods(&mut self) {
        // A pod that changes afterwards is deleted when the change is applied.
        if !self.end.stop_mut().is_some_and(Stop::take_deletes) {
            return;
        }
        let stays = |pod: &Pod| self.stays_after_stop(pod) || self.is_last_to_tell(pod);
        let live = self.snapshot.our_pods().filter(|pod| !pod.deleting && !stays(pod));
        let live: Vec<Uid> = live.map(|pod| pod.uid.clone()).collect();
        for uid in &live {
            self.request(uid, MutationKind::Delete);
            // A read may have held an earlier request.
            self.errands.mutations.wake(uid);
        }
    }

    /// Used if nothing is deleted: only waits for the answers to requests in flight.
    fn finish_stop_if_answered(&mut self, now: Millis) -> Option<Millis> {
        if self.server.window.in_flight() == 0 || self.is_past_stop_end(now) {
            self.finish_stop();
            return None;
        }
        self.stop_end()
    }

    fn finish_stop(&mut self) {
        let mut result = self.remaining();
        if !self.end.ends_executors() {
            // Left on purpose, or because another process holds the instance.
            result.remaining.clear();
            result.terminating.clear();
            result.held.clear();
        }
        let count = result.remaining.len() + result.held.len();
        if let Some(stop) = self.end.stop_mut() {
            stop.finish(result);
        }
        self.out.tell(Event::Run(RunEvent::Stopped { count }));
    }
}
