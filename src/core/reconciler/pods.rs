//! What follows from a new, changed or deleted pod: adoption, running, losses, and retained pods.

use super::Reconciler;
use super::completions::is_record;
use super::retained::has_stopped;
use super::retries::forget_refusal;
use super::tasks::is_task_record;
use super::timers::Timer;
use crate::core::loss::{Loss, MESSAGE_BYTES_MAX, classify};
use crate::core::model::action::RunVerdict;
use crate::core::model::event::{Budget, DeleteCause, Event, LossReason};
use crate::core::model::ids::{ExecutorId, GroupName, Uid};
use crate::core::model::input::{List, ListSource};
use crate::core::model::pod::{ContainerState, Pod};
use crate::core::model::text::sanitize;
use crate::core::model::time::Millis;
use crate::core::policy::memory_scaling::MEMORY_PROVEN_MS;
use crate::core::policy::nodes::is_node_at_fault;
use crate::core::policy::settings::{GroupSpec, Restart};
use crate::core::policy::throttle::{CreateThrottle, ThrottleCause};
use crate::core::state::executors::{Ending, Executor, Group, Life, has_ended};
use crate::core::state::ledger::MutationKind;
use crate::core::state::snapshot::Change;

impl Reconciler {
    pub(super) fn on_list(&mut self, list: List, now: Millis) {
        let is_stop = list.source == ListSource::Stop;
        let changes = self.snapshot.replace(list);
        if is_stop {
            self.on_stop_listed(changes.is_some(), now);
        }
        let Some(changes) = changes else { return };
        self.note_server_update(now);
        let is_first = !self.had_first_list();
        if is_first {
            self.first_list_at = Some(now);
            self.start_silence_timer(now);
            self.ids.on_first_list(self.highest_found());
            self.note_attempts();
            let has_pods = self.snapshot.pods().any(|pod| !pod.deleting && self.is_ours(pod));
            if has_pods && self.policy.adopt_hold_ms > 0 {
                self.adopt_hold_until = Some(now.after(self.policy.adopt_hold_ms));
            }
        }
        for change in changes {
            self.on_change(Some(change), now);
        }
        if is_first {
            let names: Vec<GroupName> = self.executors.groups.keys().cloned().collect();
            names.iter().for_each(|name| self.restart_if_incomplete(name, now));
        }
        self.forget_empty_groups();
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
        self.executors.on_pod_change(&self.identity.pod_prefix, pod);
        if self.foreign_pods.contains(uid) || !self.is_ours(pod) {
            self.note_foreign(uid);
            return;
        }
        let (id, name) = (pod.id, pod.name.clone());
        self.ids.on_seen(id);
        self.note_terminating(uid, now);
        self.note_grace_in_stop(uid, now);
        let Some(pod) = self.snapshot.get(uid) else { return };
        let is_second = match self.executors.get(id) {
            // A pod of another group is not the result of this create, even with the same name.
            Some(executor) => {
                executor.life == Life::Gone
                    || executor.uid.as_ref().map_or(executor.group != pod.group, |u| u != uid)
            }
            None => self.retired.contains(id.0),
        };
        if is_second {
            // An id has at most one pod. This second one is deleted in any state.
            self.mutations.request(uid, &name, MutationKind::Delete);
            return;
        }
        if self.executors.get(id).is_none() {
            self.adopt(id, uid, now);
        } else if self.executors.get(id).is_some_and(|executor| executor.uid.is_none()) {
            let is_cancelled = self.executors.get(id).is_some_and(Executor::is_cancelled);
            self.on_pod_found(id, uid, is_cancelled, now);
        }
        self.observe(id, now);
    }

    /// Adopts a pod that an earlier run created.
    fn adopt(&mut self, id: ExecutorId, uid: &Uid, now: Millis) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        if !self.executors.groups.contains_key(&pod.group) {
            let restart = pod.restart;
            let spec = GroupSpec { restart, ..GroupSpec::bare(pod.group.clone()) };
            let group = Group::new(spec, false);
            self.executors.groups.insert(pod.group.clone(), group);
        }
        let group = self.executors.groups.get_mut(&pod.group).expect("it was made just now");
        group.n_accepted += 1;
        let mut executor = Executor::new(pod.group.clone(), now);
        executor.uid = Some(uid.clone());
        executor.is_adopted = true;
        executor.awaits_heartbeat = self.policy.heartbeat_timeout_ms > 0 && pod.task.is_none();
        // Which nodes it avoids is not known, so assume the longest time.
        let bad_nodes = &self.policy.bad_nodes;
        executor.avoids_until = (bad_nodes.losses > 0).then(|| now.after(bad_nodes.avoid_for_ms));
        // A label is untrusted input: no pod is ahead of the attempts that this run knows.
        let attempt = if group.is_known { group.attempt } else { group.attempt.max(pod.attempt) };
        (group.attempt, executor.attempt) = (attempt, pod.attempt.min(attempt));
        executor.task = pod.task.clone();
        let is_earlier =
            group.spec.restarts_whole() && executor.attempt < attempt && executor.task.is_none();
        executor.is_done = match executor.task {
            Some(_) => is_task_record(&executor, pod),
            None => is_record(pod, group.spec.restart) && !is_earlier,
        };
        // An executor that can no longer run holds no slot, because its successor may have it already. Whether
        // its work is done is judged next.
        let holds_slot = !has_stopped(pod) || group.spec.restart != Restart::Always;
        // The next attempt waits for its end, and one that has begun already has its slot.
        let holds_slot = holds_slot && !is_earlier;
        executor.slot = pod.slot.filter(|&slot| holds_slot && group.slots.claim(slot));
        // Its end was reported and counted before posse was restarted.
        executor.life = match pod.counted {
            _ if pod.completed && executor.is_done => Life::Completed,
            _ if pod.completed => Life::Lost { ending: None },
            Some(_) if has_stopped(pod) && !pod.deleting => Life::Retained,
            Some(_) => Life::Lost { ending: None },
            None if self.stop.as_ref().is_some_and(|stop| !stop.order.keep) => {
                Life::Ending(Ending::now(DeleteCause::Stopped))
            }
            None if is_earlier => Life::Ending(Ending::now(DeleteCause::GroupRestarted)),
            None => Life::Wanted,
        };
        let is_done = executor.is_done;
        let has_task = executor.task.is_some();
        let retained_since = pod.counted.filter(|_| executor.life == Life::Retained && !is_done);
        let is_completed = executor.life == Life::Completed;
        // A create of the process before took effect late, and another executor has its slot.
        let is_second = (group.spec.completions.is_some() || group.spec.has_stable_slots())
            && !has_stopped(pod)
            && pod.slot.is_some()
            && executor.slot.is_none();
        self.executors.insert(id, executor, Some(pod));
        if is_earlier {
            self.await_end(id);
        }
        if is_done {
            self.insert_record(id, true);
        }
        if has_task {
            self.adopt_task(id, now);
        } else if is_done {
            self.note_done(id, is_completed, false, now);
        } else if is_second {
            self.end(id, DeleteCause::Condemned, now);
        }
        if let Some(at) = retained_since {
            self.insert_retained(id, at);
        }
        self.trim_retained(now);
    }

    /// The pod of a create was seen, before or after the create was answered.
    pub(super) fn on_pod_found(
        &mut self,
        id: ExecutorId,
        uid: &Uid,
        is_cancelled: bool,
        now: Millis,
    ) {
        self.on_create_accepted(id);
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.uid = Some(uid.clone());
        if executor.create.as_ref().is_some_and(|create| !create.is_in_flight()) {
            self.close_create_entry(id, false);
        }
        if is_cancelled {
            self.end(id, self.cancel_cause(id), now);
        }
    }

    /// Reacts to the current state of an executor's pod.
    fn observe(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let Some(pod) = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid)) else {
            return;
        };
        let due = self.start_deadline(id);
        let can_no_longer_run = has_stopped(pod);
        let is_over = pod.deleting || has_ended(pod);
        let is_running = pod.container == ContainerState::Running && !is_over;
        let is_wanted = executor.life == Life::Wanted;
        let is_new_run = is_running && executor.running_since.is_none() && is_wanted;
        let was_draining = pod.draining.is_some() && is_wanted;
        let is_unreported_loss = is_over && is_wanted;
        let is_completed = is_over && self.completes(executor, pod);
        let loss =
            (is_unreported_loss && !was_draining && !is_completed).then(|| classify(pod, false));

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
        if is_over {
            self.refresh_state(id, now);
            self.retain_or_delete(id, now);
        } else {
            self.ensure_deleted(id, now);
            self.refresh_state(id, now);
        }
        self.report_ready(id);
        self.note_start(id, due, now);
    }

    /// Reports once that an executor is ready. That does not end a crash loop: without a probe, a pod
    /// is ready as soon as it runs. A heartbeat ends it.
    pub(super) fn report_ready(&mut self, id: ExecutorId) {
        let Some(executor) = self.executors.get(id) else { return };
        if !executor.is_ready || executor.was_ready {
            return;
        }
        if let Some(executor) = self.executors.get_mut(id) {
            executor.was_ready = true;
        }
        if let Some(subject) = self.subject(id) {
            self.events.push_back(Event::ExecutorReady { subject });
        }
    }

    fn on_running(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.running_since = Some(now);
        let has_more_memory = executor.memory_step > 0;
        let is_adopted = executor.is_adopted;
        let requested_at = (!is_adopted).then_some(executor.known_since);
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        let node = pod.and_then(|pod| pod.node.as_deref()).map(str::to_owned);
        let (ip, host_ip) = pod.map_or((None, None), |pod| (pod.ip, pod.host_ip));
        if let Some(group) = self.executors.group_of(id) {
            if !is_adopted {
                group.throttle.on_started(now);
            }
            forget_refusal(group);
            if group.throttle.crash_loop_probe() == Some(id) {
                let timer = Timer::ProbeProven(group.spec.name.clone(), id);
                self.timers.set(CreateThrottle::proven_at(now), timer);
            }
        }
        if let Some(node) = &node {
            self.nodes.add(node);
        }
        if has_more_memory {
            self.timers.set(now.after(MEMORY_PROVEN_MS), Timer::MemoryProven(id));
        }
        if let Some(subject) = self.subject(id) {
            let event = Event::ExecutorRunning { subject, node, ip, host_ip, requested_at };
            self.events.push_back(event);
        }
    }

    /// Reports the loss of an executor, once for each uid, and charges its budget.
    pub(super) fn lose(&mut self, id: ExecutorId, loss: &Loss, now: Millis) {
        let Some(subject) = self.subject(id) else { return };
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.life = executor.life.lost();
        // An adopted executor ran before posse was restarted, so its end is not an early one.
        let lived_ms = match (executor.running_since, executor.is_adopted) {
            (_, true) => Some(u64::MAX),
            (since, false) => since.map(|since| now.since(since)),
        };
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        let node = pod.and_then(|pod| pod.node.as_deref()).map(str::to_owned);
        let is_at_fault = pod.is_some_and(|pod| is_node_at_fault(loss.reason, pod));
        let node_at_fault = node.clone().filter(|_| is_at_fault);
        let Loss { reason, exit_code, .. } = *loss;
        if let Some(group) = self.executors.groups.get_mut(&subject.group) {
            group.n_lost += 1;
        }
        // The message comes from the driver or the server, so it is sanitized.
        let message = sanitize(&loss.message, MESSAGE_BYTES_MAX);
        self.events.push_back(Event::ExecutorLost { subject, node, reason, exit_code, message });
        // The failures of a task are charged to its retries.
        let is_of_task = self.has_task(id);
        if let Some(budget) = reason.budget()
            && !(is_of_task && budget == Budget::App)
            && self.budgets.charge(budget, now)
            && self.stop.is_none()
        {
            self.events.push_back(Event::BudgetExhausted { budget });
            self.verdict.get_or_insert(RunVerdict::BudgetExhausted(budget));
        }
        if reason.budget() == Some(Budget::App) {
            self.request_log(id, now);
        }
        self.give_up(id, loss, lived_ms, now);
        if let Some(node) = node_at_fault {
            self.blame_node(node, reason, now);
        }
        self.refresh_state(id, now);
        self.restart_group_of(id, now);
    }

    /// Updates the group's throttle and memory scaling after a loss.
    pub(super) fn update_throttle(
        &mut self,
        id: ExecutorId,
        lived_ms: Option<u64>,
        loss: &Loss,
        now: Millis,
    ) {
        let executor = self.executors.get(id).filter(|executor| !executor.has_own_memory());
        let step = executor.map(|executor| executor.memory_step);
        let n_early = self.n_early_mates(id, now);
        let rng = &mut self.rng;
        let Some(group) = self.executors.group_of(id) else { return };
        if loss.reason == LossReason::OomKilled
            && let Some(step) = step
        {
            let n_steps = u32::try_from(group.spec.memory_steps.len()).unwrap_or(u32::MAX);
            group.memory_scaling.on_oom(step, n_steps);
        }
        match ThrottleCause::of_start(loss.reason) {
            Some(cause) => {
                if group.throttle.on_start_failed(id, cause, now, rng) {
                    group.refusal = Some(loss.message.clone());
                }
            }
            // An end that the application did not cause says nothing about it: neither an eviction
            // or a lost node, nor an exit code of 0.
            None if loss.reason.caused_by_app() => {
                if group.spec.restarts_whole() {
                    group.throttle.on_group_ended(id, n_early, now);
                }
                group.throttle.on_ended(id, lived_ms, now, rng);
            }
            // It ran as long as it was allowed to, so the crash loop is over.
            None if loss.reason == LossReason::MaxAge
                && lived_ms.is_some()
                && group.throttle.crash_loop_probe() == Some(id) =>
            {
                group.throttle.on_probe_proven();
            }
            None => group.throttle.discard_probe(id),
        }
    }

    fn blame_node(&mut self, node: String, reason: LossReason, now: Millis) {
        if let Some(until) = self.nodes.on_loss(&node, now) {
            self.timers.set(until, Timer::Node);
            self.events.push_back(Event::NodeAvoided { node, until, reason });
        }
    }

    fn on_gone(&mut self, pod: &Pod, now: Millis) {
        self.executors.on_pod_change(&self.identity.pod_prefix, pod);
        self.mutations.remove(&pod.uid);
        self.terminating_pods.forget(&pod.uid);
        self.forget_log(&pod.uid);
        self.on_capacity_freed(now);
        if self.foreign_pods.forget(&pod.uid) || !self.is_ours(pod) {
            return;
        }
        self.ids.on_seen(pod.id);
        let Some(executor) = self.executors.get(pod.id) else { return };
        let is_its_pod = match &executor.uid {
            Some(uid) => *uid == pod.uid && executor.life != Life::Gone,
            // It came and went before its create was answered.
            None => executor.group == pod.group,
        };
        let is_cancelled = executor.is_cancelled();
        if is_its_pod {
            self.on_pod_over(pod, is_cancelled, now);
        }
    }

    /// The pod of an executor is gone: reports a loss or a delete, once, and retires the id.
    pub(super) fn on_pod_over(&mut self, pod: &Pod, is_cancelled: bool, now: Millis) {
        let id = pod.id;
        let cancel_cause = self.cancel_cause(id);
        if self.executors.get(id).is_some_and(|executor| executor.uid.is_none()) {
            self.on_create_accepted(id);
        }
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.uid = Some(pod.uid.clone());
        let was_draining = pod.draining.as_ref().map(|draining| draining.cause);
        let ending = executor.life.ending().map(|ending| ending.cause);
        let cause = ending.or(was_draining).or_else(|| is_cancelled.then_some(cancel_cause));
        if !executor.life.is_reported() {
            match (cause, self.subject(id)) {
                (Some(cause), Some(subject)) => {
                    self.events.push_back(Event::ExecutorDeleted { subject, cause });
                }
                (Some(_), None) => {}
                (None, _) if self.has_done_its_work(id, pod) => self.complete(id, now),
                (None, _) => self.lose(id, &classify(pod, true), now),
            }
        }
        let Some(executor) = self.executors.get_mut(id) else { return };
        if executor.create.as_ref().is_some_and(|create| create.is_in_flight()) {
            // The entry stays until the create is answered, because a second pod may come from it.
            executor.life = Life::Gone;
            self.executors.release_slot(id);
            self.release_task(id);
            self.forget_record(id);
            self.refresh_state(id, now);
        } else {
            self.drop_executor(id);
        }
    }

    pub(super) fn on_capacity_freed(&mut self, now: Millis) {
        for group in self.executors.groups.values_mut() {
            group.throttle.on_capacity_freed(now);
        }
    }
}
