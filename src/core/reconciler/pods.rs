//! Owns what a pod's appearance, change and end mean for its executor: adoption, running, losses
//! and what becomes of the dead. Sends nothing.

use super::Reconciler;
use super::timers::Timer;
use crate::core::loss::{Loss, MESSAGE_BYTES_MAX, classify};
use crate::core::model::action::RunVerdict;
use crate::core::model::event::{Budget, DeleteCause, Event, LossReason};
use crate::core::model::ids::{ExecutorId, Uid};
use crate::core::model::input::{List, ListSource};
use crate::core::model::pod::{ContainerState, Phase, Pod};
use crate::core::model::text::harmless;
use crate::core::model::time::Millis;
use crate::core::policy::memory_scaling::GROWN_PROVEN_MS;
use crate::core::policy::nodes::is_to_blame;
use crate::core::policy::settings::GroupSpec;
use crate::core::policy::throttle::{CreateThrottle, ThrottleCause};
use crate::core::state::executors::{Ending, Executor, Group, Life, has_ended};
use crate::core::state::ledger::MutationKind;
use crate::core::state::snapshot::Change;

impl Reconciler {
    pub(super) fn on_list(&mut self, list: List, now: Millis) {
        let is_first = !self.had_first_list && list.asked.epoch == self.mark().epoch;
        let named_so = |pod: &&Pod| *pod.name == *self.pod_name(pod.id);
        let highest = list.pods.iter().filter(named_so).map(|pod| pod.id).max();
        let has_pods = list.pods.iter().any(|pod| !pod.deleting);
        let is_stop = list.source == ListSource::Stop;
        let is_void = list.asked.epoch != self.mark().epoch;
        let replaced = self.snapshot.replace(list);
        if is_stop {
            self.on_stop_listed(replaced.is_ok() && !is_void, now);
        }
        let Ok(changes) = replaced else {
            self.roll_back();
            return;
        };
        if is_first && self.snapshot.is_synced() {
            self.had_first_list = true;
            self.await_driver(now);
            self.ids.on_first_list(highest);
            if has_pods && self.policy.adopt_hold_ms > 0 {
                self.hold_until = Some(now.after(self.policy.adopt_hold_ms));
            }
        }
        for change in changes {
            self.on_change(Some(change), now);
        }
        if self.had_first_list {
            self.forget_empty_groups();
        }
    }

    pub(super) fn on_change(&mut self, change: Option<Change>, now: Millis) {
        match change {
            None => {}
            Some(Change::Gone(pod)) => self.on_gone(&pod, now),
            Some(Change::Seen(uid)) => self.on_seen(&uid, now),
        }
    }

    fn on_seen(&mut self, uid: &Uid, now: Millis) {
        self.note_leaving(uid, now);
        let Some(pod) = self.snapshot.get(uid) else { return };
        let (id, name) = (pod.id, pod.name.clone());
        let is_named_so = *name == *self.pod_name(id);
        if is_named_so {
            self.ids.on_seen(id);
        }
        let is_second = match self.executors.get(id) {
            // A pod of another group is not what this create asked for, whatever its name.
            Some(executor) => {
                executor.life == Life::Gone
                    || executor.uid.as_ref().map_or(executor.group != pod.group, |u| u != uid)
            }
            None => self.retired.contains(id),
        };
        if is_second || !is_named_so {
            // An id has at most one pod, ever; this one is deleted, whatever it does.
            self.mutations.ask(uid, &name, MutationKind::Delete);
            return;
        }
        if self.executors.get(id).is_none() {
            self.adopt(id, uid, now);
        } else if self.executors.get(id).is_some_and(|executor| executor.uid.is_none()) {
            let is_cancelled = self.executors.get(id).is_some_and(Executor::is_cancelled);
            self.on_first_sight(id, uid, is_cancelled, now);
        }
        self.observe(id, now);
    }

    /// A pod of ours that this run did not ask for: an earlier run did.
    fn adopt(&mut self, id: ExecutorId, uid: &Uid, now: Millis) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        if !self.executors.groups.contains_key(&pod.group) {
            let group = Group::new(GroupSpec::bare(pod.group.clone()), false);
            self.executors.groups.insert(pod.group.clone(), group);
        }
        let group = self.executors.groups.get_mut(&pod.group).expect("it was made just now");
        group.had_pods = true;
        let mut executor = Executor::new(pod.group.clone(), now);
        executor.uid = Some(uid.clone());
        executor.is_adopted = true;
        // Which nodes it keeps away from is not known any more: it may have to for as long as that.
        let bad_nodes = &self.policy.bad_nodes;
        executor.avoids_until = (bad_nodes.losses > 0).then(|| now.after(bad_nodes.avoid_for_ms));
        executor.slot = pod.slot.filter(|&slot| group.slots.claim(slot));
        // Its loss was told, and counted, before posse was started again.
        executor.life = match pod.counted {
            Some(_) if pod.phase == Phase::Failed && !pod.deleting => Life::Retained,
            Some(_) => Life::Lost { ending: None },
            None if self.stop.as_ref().is_some_and(|stop| !stop.order.keep) => {
                Life::Ending(Ending::now(DeleteCause::Stopped))
            }
            None => Life::Wanted,
        };
        let retained_since = pod.counted.filter(|_| executor.life == Life::Retained);
        self.executors.insert(id, executor, Some(pod));
        if let Some(at) = retained_since {
            self.insert_retained(id, at);
        }
        self.trim_retained(now);
    }

    /// The pod of a create is there: by its event, before or after the answer.
    pub(super) fn on_first_sight(
        &mut self,
        id: ExecutorId,
        uid: &Uid,
        is_cancelled: bool,
        now: Millis,
    ) {
        self.note_taken(id);
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.uid = Some(uid.clone());
        if executor.create.as_ref().is_some_and(|create| !create.is_in_flight()) {
            self.close_entry(id, false);
        }
        if let Some(group) = self.executors.group_of(id) {
            group.had_pods = true;
        }
        if is_cancelled {
            self.end(id, self.cancel_cause(), now);
        }
    }

    /// Draws what follows from the pod as it is now.
    fn observe(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let Some(pod) = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid)) else {
            return;
        };
        let due = self.start_deadline(id);
        let is_over = pod.deleting || has_ended(pod);
        let is_running = pod.container == ContainerState::Running && !is_over;
        let is_wanted = executor.life == Life::Wanted;
        let is_new_run = is_running && executor.running_since.is_none() && is_wanted;
        let was_draining = pod.draining.is_some() && is_wanted;
        let is_unreported_loss = is_over && is_wanted;
        let loss = (is_unreported_loss && !was_draining).then(|| classify(pod, false));

        if was_draining {
            self.resume_end(id, now);
        } else if let Some(loss) = loss {
            self.lose(id, &loss, now);
        } else if is_new_run {
            self.on_running(id, now);
        }
        if is_over {
            self.refresh_state(id, now);
            self.retain_or_delete(id, now);
        } else {
            self.ensure_deleted(id, now);
            self.refresh_state(id, now);
        }
        self.note_start(id, due, now);
    }

    fn on_running(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.running_since = Some(now);
        let is_grown = executor.memory_step > 0;
        let is_adopted = executor.is_adopted;
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        let node = pod.and_then(|pod| pod.node.as_deref()).map(str::to_owned);
        let ip = pod.and_then(|pod| pod.ip);
        if let Some(group) = self.executors.group_of(id) {
            if !is_adopted {
                group.throttle.on_started(now);
            }
            if group.throttle.cause().is_none() {
                group.refusal = None;
            }
            if group.throttle.young_probe() == Some(id) {
                let timer = Timer::ProbeProven(group.spec.name.clone(), id);
                self.timers.set(CreateThrottle::proven_at(now), timer);
            }
        }
        if let Some(node) = &node {
            self.nodes.note(node);
        }
        if is_grown {
            self.timers.set(now.after(GROWN_PROVEN_MS), Timer::MemoryProven(id));
        }
        if let Some(subject) = self.subject(id) {
            self.events.push_back(Event::ExecutorRunning { subject, node, ip });
        }
    }

    /// An executor that posse was not ending stopped being capacity. Told once per uid.
    pub(super) fn lose(&mut self, id: ExecutorId, loss: &Loss, now: Millis) {
        let Some(subject) = self.subject(id) else { return };
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.life = executor.life.lost();
        // An adopted one ran for some time before we looked: it is not young.
        let lived_ms = match (executor.running_since, executor.is_adopted) {
            (_, true) => Some(u64::MAX),
            (since, false) => since.map(|since| now.since(since)),
        };
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        let node = pod.and_then(|pod| pod.node.as_deref()).map(str::to_owned);
        let is_nodes_doing = pod.is_some_and(|pod| is_to_blame(loss.reason, pod));
        let blamed = node.clone().filter(|_| is_nodes_doing);
        let Loss { reason, exit_code, .. } = *loss;
        // Whoever wrote it: the driver's words and the server's alike.
        let message = harmless(&loss.message, MESSAGE_BYTES_MAX);
        self.events.push_back(Event::ExecutorLost { subject, node, reason, exit_code, message });
        if let Some(budget) = reason.budget()
            && self.budgets.charge(budget, now)
            && self.stop.is_none()
        {
            self.events.push_back(Event::BudgetExhausted { budget });
            self.verdict.get_or_insert(RunVerdict::BudgetSpent(budget));
        }
        if reason.budget() == Some(Budget::App) {
            self.want_log(id, now);
        }
        if !matches!(reason, LossReason::Killed | LossReason::MaxAge) {
            self.slow_down(id, lived_ms, loss, now);
        }
        if let Some(node) = blamed {
            self.blame(node, reason, now);
        }
        self.refresh_state(id, now);
    }

    /// What the group learns from a loss: to go slower, or with more memory.
    fn slow_down(&mut self, id: ExecutorId, lived_ms: Option<u64>, loss: &Loss, now: Millis) {
        let step = self.executors.get(id).map_or(0, |executor| executor.memory_step);
        let rng = &mut self.rng;
        let Some(group) = self.executors.group_of(id) else { return };
        if loss.reason == LossReason::OomKilled {
            let n_steps = u32::try_from(group.spec.memory_steps.len()).unwrap_or(u32::MAX);
            group.memory_scaling.on_oom(step, n_steps);
        }
        match ThrottleCause::of_start(loss.reason) {
            Some(cause) => {
                if group.throttle.on_start_failed(id, cause, now, rng) {
                    group.refusal = Some(loss.message.clone());
                }
            }
            None => {
                group.throttle.on_ended(id, lived_ms, now, rng);
            }
        }
    }

    fn blame(&mut self, node: String, reason: LossReason, now: Millis) {
        if let Some(until) = self.nodes.on_loss(&node, now) {
            self.timers.set(until, Timer::Node);
            self.events.push_back(Event::NodeAvoided { node, until, reason });
        }
    }

    /// What becomes of an ended pod: evidence, or deleted.
    fn retain_or_delete(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        let Some(uid) = executor.uid.clone() else { return };
        self.wake_quota(now);
        let Some(pod) = self.snapshot.get(&uid).filter(|pod| !pod.deleting) else { return };
        let Some(executor) = self.executors.get_mut(id) else { return };
        let is_retained = executor.life.is_lost()
            && executor.life.ending().is_none()
            && pod.phase == Phase::Failed
            && self.policy.keep_failed > 0;
        let name = pod.name.clone();
        if !is_retained {
            self.mutations.ask(&uid, &name, MutationKind::Delete);
            return;
        }
        let is_going = self
            .mutations
            .get(&uid)
            .is_some_and(|mutation| mutation.kind != MutationKind::LabelCounted);
        if executor.life == Life::Retained || is_going {
            return;
        }
        executor.life = Life::Retained;
        self.retained.push_back(id);
        self.mutations.ask(&uid, &name, MutationKind::LabelCounted);
        self.refresh_state(id, now);
        self.trim_retained(now);
    }

    fn on_gone(&mut self, pod: &Pod, now: Millis) {
        self.mutations.remove(&pod.uid);
        self.stuck.forget(&pod.uid);
        self.forget_log(&pod.uid);
        if *pod.name == *self.pod_name(pod.id) {
            self.ids.on_seen(pod.id);
        }
        self.wake_quota(now);
        let Some(executor) = self.executors.get(pod.id) else { return };
        let is_its_pod = match &executor.uid {
            Some(uid) => *uid == pod.uid && executor.life != Life::Gone,
            // Came and went before anything else told of it.
            None => *pod.name == *self.pod_name(pod.id) && executor.group == pod.group,
        };
        let is_cancelled = executor.is_cancelled();
        if is_its_pod {
            self.on_end_of(pod, is_cancelled, now);
        }
    }

    /// The pod of an executor is gone: told as a loss or as a delete, once, and the id is spent.
    pub(super) fn on_end_of(&mut self, pod: &Pod, is_cancelled: bool, now: Millis) {
        let id = pod.id;
        let cancel_cause = self.cancel_cause();
        if self.executors.get(id).is_some_and(|executor| executor.uid.is_none()) {
            self.note_taken(id);
        }
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.uid = Some(pod.uid.clone());
        let was_draining = pod.draining.as_ref().map(|draining| draining.cause);
        let ending = executor.life.ending().map(|ending| ending.cause);
        let cause = ending.or(was_draining).or_else(|| is_cancelled.then_some(cancel_cause));
        if !executor.life.is_lost() {
            match (cause, self.subject(id)) {
                (Some(cause), Some(subject)) => {
                    self.events.push_back(Event::ExecutorDeleted { subject, cause });
                }
                (Some(_), None) => {}
                (None, _) => self.lose(id, &classify(pod, true), now),
            }
        }
        if let Some(group) = self.executors.group_of(id) {
            group.had_pods = true;
        }
        let Some(executor) = self.executors.get_mut(id) else { return };
        if executor.create.as_ref().is_some_and(|create| create.is_in_flight()) {
            // The entry stays until the answer is in: a second pod may come of it.
            executor.life = Life::Gone;
            self.retained.retain(|kept| *kept != id);
            self.refresh_state(id, now);
        } else {
            self.drop_executor(id);
        }
    }

    fn wake_quota(&mut self, now: Millis) {
        for group in self.executors.groups.values_mut() {
            group.throttle.on_room(now);
        }
    }
}
