//! What follows from a new, changed or deleted pod: adoption, running, losses, and retained pods.
//!
//! Foreign pods have our labels, but posse did not create them. posse reports each of them once and leaves it alone: it
//! counts for nothing and is never deleted.

use super::Reconciler;
use super::create_retries::forget_refusal;
use super::losses::LostPod;
use crate::model::event::{ClusterEvent, Event, ExecutorEvent, RunEvent};
use crate::model::ids::{ExecutorId, GroupName, Uid};
use crate::model::input::{List, ListSource};
use crate::model::pod::{ContainerState, Phase, Pod};
use crate::model::settings::Together;
use crate::policy::loss::classify;
use crate::state::create_backoff::CreateBackoff;
use crate::state::due::Timer;
use crate::state::errands::MutationKind;
use crate::state::executors::{Executor, Life, has_ended};
use crate::state::ledger::{CREATE_OPEN_MS, Create};
use crate::state::memory_scaling::MEMORY_PROVEN_MS;
use crate::state::snapshot::{Change, Listed};
use posse_base::time::Millis;

/// The most executors that the event about adopted ones names.
const ADOPTED_IDS_MAX: usize = 1_000;

impl Reconciler {
    pub(super) fn on_list(&mut self, list: List, now: Millis) {
        self.on_read(now);
        let is_stop = list.source == ListSource::Stop && list.page.is_last;
        let listed = self.snapshot.apply_list(list, now);
        if is_stop {
            self.on_stop_listed(listed.is_some(), now);
        }
        let Some(Listed { mut changes, begun_at, is_complete }) = listed else { return };
        if !is_complete {
            return changes.into_iter().for_each(|change| self.on_change(Some(change), now));
        }
        self.due.on_update(begun_at);
        self.ours.on_listed(Millis(begun_at.0.saturating_sub(CREATE_OPEN_MS)));
        let is_first = !self.had_first_list();
        if is_first {
            self.gates.on_first_list(now);
            self.start_silence_timer(now);
            self.ours.on_first_list(self.snapshot.pods());
            self.note_attempts();
            let has_pods = self.snapshot.pods().any(|pod| !pod.deleting && self.is_ours(pod));
            if has_pods && self.policy.adopt_hold_ms > 0 {
                self.gates.hold_adopted(now.after(self.policy.adopt_hold_ms));
            }
            // Work that is done has its index, and its task that end, and not an executor that repeats it, whose
            // create took effect late.
            changes.sort_by_key(|change| self.adoption_order(change));
        }
        for change in changes {
            self.on_change(Some(change), now);
        }
        if is_first {
            self.unfold(now);
            let names: Vec<GroupName> = self.executors.groups().keys().cloned().collect();
            names.iter().for_each(|name| self.restart_if_incomplete(name, now));
            self.tell_adopted();
        } else {
            // What an earlier process has sent last may come after the first LIST.
            let dismissed: Vec<GroupName> = self.executors.dismissed.keys().cloned().collect();
            dismissed.iter().for_each(|name| self.forget_dismissed(name));
        }
        self.executors.forget_empty_groups();
    }

    fn tell_adopted(&mut self) {
        let live = self.executors.iter().filter(|(_, executor)| executor.life == Life::Wanted);
        let mut executors: Vec<ExecutorId> = live.map(|(id, _)| id).collect();
        let count = executors.len();
        executors.truncate(ADOPTED_IDS_MAX);
        if count > 0 {
            self.out.tell(Event::Run(RunEvent::Adopted { executors, count }));
        }
    }

    pub(super) fn on_change(&mut self, change: Option<Change>, now: Millis) {
        match change {
            None => {}
            Some(Change::Gone(pod)) => self.on_gone(&pod, now),
            Some(Change::Updated(uid)) => self.on_seen(&uid, now),
        }
    }

    pub(super) fn on_seen(&mut self, uid: &Uid, now: Millis) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        self.executors.on_pod_change(&self.ours.identity().pod_prefix, pod);
        if self.snapshot.is_foreign(uid) || !self.is_ours(pod) {
            self.note_foreign(uid);
            return;
        }
        let id = pod.id;
        self.ours.on_seen(id);
        self.note_terminating(uid, now);
        self.note_grace_in_stop(uid, now);
        self.leave_queue(uid);
        let Some(pod) = self.snapshot.get(uid) else { return };
        let known = self.executors.get(id);
        let is_second = match known {
            Some(executor) => {
                let is_other = match &executor.uid {
                    Some(known) => known != uid,
                    None => !executor.may_have_made(pod),
                };
                executor.life == Life::Gone || is_other
            }
            None => self.ours.is_retired(id),
        };
        let found = known.map(|executor| (executor.uid.is_some(), executor.is_cancelled()));
        if is_second {
            // An id has at most one pod. This second one is deleted in any state.
            self.snapshot.note_late(uid.clone());
            return self.request(uid, MutationKind::Delete);
        }
        match found {
            None => self.adopt(id, uid, now),
            Some((true, _)) => {}
            // The answer to its create refuses it.
            Some((false, false)) if pod.restarts_in_place => return,
            Some((false, _)) => self.on_pod_found(id, uid, now),
        }
        self.observe(id, now);
    }

    /// The pod of a create was seen, before or after the create was answered.
    pub(super) fn on_pod_found(&mut self, id: ExecutorId, uid: &Uid, now: Millis) {
        self.on_create_accepted(id);
        let is_cancelled = self.executors.get(id).is_some_and(Executor::is_cancelled);
        let is_answered = self.change(id, now, |executor| {
            executor.uid = Some(uid.clone());
            executor.create.as_ref().is_some_and(|create| !create.is_in_flight())
        });
        if is_answered {
            self.close_create_entry(id, false);
        }
        self.note_attempt(id);
        if is_cancelled {
            self.end(id, self.cancel_cause(id), now);
        }
    }

    /// Reacts to the current state of an executor's pod.
    fn observe(&mut self, id: ExecutorId, now: Millis) {
        let Some((executor, pod)) = self.seen(id) else { return };
        let due = self.start_deadline(id);
        let can_no_longer_run = self.may_be_succeeded(executor, pod);
        let is_over = pod.deleting || has_ended(pod);
        let is_running = pod.container == ContainerState::Running && !is_over;
        let is_wanted = executor.life == Life::Wanted;
        let is_new_run = is_running && executor.running_since.is_none() && is_wanted;
        let was_draining = pod.draining.is_some() && is_wanted;
        let is_unreported_loss = is_over && is_wanted;
        let is_completed = is_over && self.completes(executor, pod);
        let loss =
            (is_unreported_loss && !was_draining && !is_completed).then(|| classify(pod, false));

        if is_wanted && !was_draining {
            self.announce_end(id, now);
        }
        if is_completed {
            self.complete(id, now);
        } else if was_draining {
            self.resume_end(id, now);
        } else if let Some(loss) = loss {
            self.lose(id, &loss, now);
        } else if is_new_run {
            self.on_running(id, now);
        }
        if can_no_longer_run {
            self.executors.release_slot(id);
            self.release_task(id);
        }
        // What the pod shows is part of the executor's state.
        self.change(id, now, |_| ());
        if is_over {
            self.retain_or_delete(id, now);
        } else {
            self.ensure_deleted(id, now);
        }
        self.report_ready(id, now);
        self.note_resize(id, now);
        self.note_start(id, due, now);
    }

    /// True if another executor may take the place of this one. In a queue group, if the pod has failed: as long
    /// as it may run or has succeeded, the queue counts it, and a successor would be one too many.
    pub(super) fn may_be_succeeded(&self, executor: &Executor, pod: &Pod) -> bool {
        let is_counted = self.executors.home(executor).spec.together == Together::Queue;
        has_ended(pod) && (!is_counted || pod.phase == Phase::Failed)
    }

    /// Reports once that an executor is ready. That does not end a crash loop: without a probe, a pod
    /// is ready as soon as it runs. A heartbeat ends it.
    pub(super) fn report_ready(&mut self, id: ExecutorId, now: Millis) {
        if self.change(id, now, Executor::take_ready) {
            self.tell(id, ExecutorEvent::Ready);
        }
    }

    fn on_running(&mut self, id: ExecutorId, now: Millis) {
        let Some((executor, pod)) = self.seen(id) else { return };
        let has_more_memory = executor.memory_step > 0;
        let (is_adopted, shape) = (executor.is_adopted, executor.shape);
        let requested_at = (!is_adopted).then_some(executor.known_since);
        let node = pod.node.as_deref().map(str::to_owned);
        let (ip, host_ip) = (pod.ip, pod.host_ip);
        self.change(id, now, |executor| executor.running_since = Some(now));
        if let Some(group) = self.executors.group_of(id) {
            group.has_run = true;
            let backoff = &mut group.tasks.throttles.of_mut(shape).backoff;
            if !is_adopted {
                backoff.on_started(now);
            }
            let is_probe = backoff.crash_loop_probe() == Some(id);
            forget_refusal(group);
            if is_probe {
                let timer = Timer::ProbeProven(group.spec.name.clone(), id);
                self.due.set(CreateBackoff::proven_at(now), timer);
            }
        }
        if let Some(node) = &node {
            self.nodes.add(node, now);
        }
        self.begin_protection(id, now);
        if has_more_memory {
            self.due.set(now.after(MEMORY_PROVEN_MS), Timer::MemoryProven(id));
        }
        self.tell(id, ExecutorEvent::Running { node, ip, host_ip, requested_at });
    }

    /// True if nothing that is known has ended this pod. Somebody may have removed one of our labels: then no LIST or
    /// watch shows it, and it works on.
    fn is_unexplained(&self, pod: &Pod) -> bool {
        let executor = self.executors.get(pod.id);
        let may_live = match pod.deleting {
            true => pod.has_time_to_end() && !self.snapshot.is_unseen(&pod.uid),
            false => !self.is_delete_sent(&pod.uid),
        };
        executor.is_some_and(|one| one.uid.as_ref() == Some(&pod.uid) && one.life != Life::Gone)
            && may_live
            && !(has_ended(pod) || self.snapshot.is_known_gone(&pod.uid))
    }

    fn on_gone(&mut self, pod: &Pod, now: Millis) {
        if self.is_unexplained(pod) {
            // Its place is free when the server says that the pod does not exist.
            self.snapshot.keep_unseen(pod.clone());
            let executor = self.executors.get(pod.id);
            if executor.is_some_and(|one| one.life == Life::Wanted) && pod.draining.is_none() {
                let loss = classify(pod, true);
                self.lose_pod(pod.id, LostPod::of(pod, &loss), &loss, now);
            }
            // The server has executed what was asked for before.
            self.errands.mutations.remove(&pod.uid);
            self.ensure_deleted(pod.id, now);
            return self.on_seen(&pod.uid, now);
        }
        self.executors.on_pod_change(&self.ours.identity().pod_prefix, pod);
        self.errands.mutations.remove(&pod.uid);
        let was_foreign = self.snapshot.forget_marks(&pod.uid);
        self.forget_log(&pod.uid);
        self.on_capacity_freed(now);
        if was_foreign || !self.is_ours(pod) {
            return;
        }
        self.ours.on_seen(pod.id);
        let Some(executor) = self.executors.get(pod.id) else { return };
        let is_its_pod = match &executor.uid {
            Some(uid) => *uid == pod.uid && executor.life != Life::Gone,
            // It came and went before its create was answered, unless it had gone before its first POST was sent: a
            // watch that a LIST has overtaken tells the ends of an earlier run, whose ids it may have again.
            None => {
                let is_older = executor.create.as_deref().is_some_and(|create| {
                    create.n_unknown == 0 && self.snapshot.precedes(pod.version, create.watermark)
                });
                executor.may_have_made(pod) && executor.life != Life::Gone && !is_older
            }
        };
        if is_its_pod {
            self.on_pod_over(pod, now);
        }
    }

    /// The pod of an executor is gone: reports a loss or a delete, once, and retires the id.
    pub(super) fn on_pod_over(&mut self, pod: &Pod, now: Millis) {
        let id = pod.id;
        let Some(executor) = self.executors.get(id) else { return };
        let (life, has_no_pod_yet) = (executor.life, executor.uid.is_none());
        let cancel_cause = executor.is_cancelled().then(|| self.cancel_cause(id));
        if has_no_pod_yet {
            self.on_create_accepted(id);
            self.change(id, now, |executor| executor.uid = Some(pod.uid.clone()));
        }
        let was_draining = pod.draining.as_ref().map(|draining| draining.cause);
        let ending = life.ending().map(|ending| ending.cause);
        let cause = ending.or(was_draining).or(cancel_cause);
        if !life.is_reported() {
            let executor = self.executors.get(id).filter(|_| has_ended(pod));
            match cause {
                _ if executor.is_some_and(|one| self.completes(one, pod)) => self.complete(id, now),
                Some(cause) => self.tell(id, ExecutorEvent::Deleted { cause }),
                None => {
                    let loss = classify(pod, true);
                    self.lose_pod(id, LostPod::of(pod, &loss), &loss, now);
                }
            }
        }
        if self.create_of(id).is_some_and(Create::is_in_flight) {
            // The entry stays until the create is answered, because a second pod may come from it.
            self.executors.release_slot(id);
            self.release_task(id);
            self.executors.forget_record(id);
            self.change(id, now, |executor| executor.life = Life::Gone);
        } else {
            self.drop_executor(id);
        }
    }

    pub(super) fn on_capacity_freed(&mut self, now: Millis) {
        for group in self.executors.groups_mut() {
            let throttles = group.tasks.throttles.all_mut();
            throttles.for_each(|throttle| throttle.backoff.on_capacity_freed(now));
        }
    }

    /// True if posse created this pod.
    pub(super) fn is_ours(&self, pod: &Pod) -> bool {
        self.ours.is_ours(pod, self.executors.get(pod.id))
    }

    /// Notes a pod that is not ours, and reports it once.
    pub(super) fn note_foreign(&mut self, uid: &Uid) {
        if !self.snapshot.note_foreign(uid) {
            return;
        }
        let Some(pod) = self.snapshot.get(uid) else { return };
        let message = if self.ours.has_our_name(pod) {
            "it has the name of an executor, but this run did not create it"
        } else {
            "it has the labels of an executor, but not the name"
        };
        let (pod, message) = (pod.name.to_string(), message.to_owned());
        self.out.tell(Event::Cluster(ClusterEvent::ForeignPod { pod, uid: uid.clone(), message }));
    }

    /// Another holder of the Lease used ids meanwhile, so pods with these ids are ours after all.
    pub(super) fn judge_foreign_again(&mut self, now: Millis) {
        let is_found =
            |pod: &&Pod| self.ours.has_our_name(pod) && self.ours.is_of_earlier_run(pod.id);
        let found = self.snapshot.foreign().filter(is_found);
        let found: Vec<Uid> = found.map(|pod| pod.uid.clone()).collect();
        for uid in found {
            self.snapshot.forget_foreign(&uid);
            self.on_seen(&uid, now);
        }
    }
}
