//! Owns what a pod's appearance, change and end mean for its executor: adoption, running, losses
//! and what becomes of the dead. Sends nothing.

use crate::core::action::Verdict;
use crate::core::brake::Brake;
use crate::core::event::{Budget, DeleteCause, Event, LossReason};
use crate::core::executors::{Executor, Group, has_ended};
use crate::core::ids::{ExecutorId, GroupName, Uid};
use crate::core::input::{List, ListSource};
use crate::core::ledger::{ChoreKind, CreateStep};
use crate::core::loss::{Loss, MESSAGE_BYTES_MAX, classify};
use crate::core::pod::{ContainerState, Phase, Pod};
use crate::core::policy::{GroupSpec, Replace, ScaleDown};
use crate::core::reconciler::{Reconciler, Timer};
use crate::core::snapshot::Change;
use crate::core::status::State;
use crate::core::text::harmless;
use crate::core::time::Millis;

/// An executor counts against `unschedulable_max` when the scheduler has said so for this long.
pub(in crate::core) const UNSCHEDULABLE_MS: u64 = 120_000;

impl Reconciler {
    pub(in crate::core) fn on_list(&mut self, list: List, now: Millis) {
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
            self.go_back();
            return;
        };
        if is_first && self.snapshot.is_synced() {
            self.had_first_list = true;
            self.ids.on_first_list(highest);
            if has_pods && self.policy.adopt_hold_ms > 0 {
                self.hold_until = Some(now.after(self.policy.adopt_hold_ms));
            }
        }
        for change in changes {
            self.on_change(Some(change), now);
        }
    }

    pub(in crate::core) fn on_change(&mut self, change: Option<Change>, now: Millis) {
        match change {
            None => {}
            Some(Change::Gone(pod)) => self.on_gone(&pod, now),
            Some(Change::Seen(uid)) => self.on_seen(&uid, now),
        }
    }

    fn on_seen(&mut self, uid: &Uid, now: Millis) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        let (id, name) = (pod.id, pod.name.clone());
        let is_named_so = *name == *self.pod_name(id);
        if is_named_so {
            self.ids.on_seen(id);
        }
        let is_second = match self.executors.get(id) {
            // A pod of another group is not what this create asked for, whatever its name.
            Some(executor) => {
                executor.is_gone
                    || executor.uid.as_ref().map_or(executor.group != pod.group, |u| u != uid)
            }
            None => self.spent.contains(id),
        };
        if is_second || !is_named_so {
            // An id has at most one pod, ever; this one is deleted, whatever it does.
            self.chores.ask(uid, &name, ChoreKind::Delete);
            return;
        }
        if self.executors.get(id).is_none() {
            self.adopt(id, uid, now);
        } else if self.executors.get(id).is_some_and(|executor| executor.uid.is_none()) {
            let create = self.executors.get(id).and_then(|executor| executor.create.as_ref());
            let is_cancelled = create.is_some_and(|create| create.is_cancelled);
            self.on_first_sight(id, uid, is_cancelled, now);
        }
        self.observe(id, now);
    }

    /// A pod of ours that this run did not ask for: an earlier run did.
    fn adopt(&mut self, id: ExecutorId, uid: &Uid, now: Millis) {
        let Some(pod) = self.snapshot.get(uid) else { return };
        if !self.executors.groups.contains_key(&pod.group) {
            let group = unknown_group(pod.group.clone());
            self.executors.groups.insert(pod.group.clone(), group);
        }
        let group = self.executors.groups.get_mut(&pod.group).expect("it was made just now");
        group.had_pods = true;
        let mut executor = Executor::new(pod.group.clone(), now);
        executor.uid = Some(uid.clone());
        executor.is_adopted = true;
        executor.slot = pod.slot.filter(|&slot| group.slots.claim(slot));
        // Its loss was told, and counted, before posse was started again.
        executor.is_lost = pod.counted.is_some();
        if !executor.is_lost && self.stop.as_ref().is_some_and(|stop| !stop.order.keep) {
            executor.ending = Some(DeleteCause::Stopped);
        }
        executor.is_kept = executor.is_lost && pod.phase == Phase::Failed && !pod.deleting;
        let kept_since = executor.is_kept.then(|| pod.counted.unwrap_or(0));
        self.executors.insert(id, executor, Some(pod));
        if let Some(at) = kept_since {
            self.keep_since(id, at);
        }
        self.trim_kept(now);
    }

    /// The pod of a create is there: by its event, before or after the answer.
    pub(in crate::core) fn on_first_sight(
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
        let is_over = pod.deleting || has_ended(pod);
        let is_running = pod.container == ContainerState::Running && !is_over;
        let is_new_run =
            is_running && executor.running_since.is_none() && executor.ending.is_none();
        let was_draining = pod.draining && executor.ending.is_none() && !executor.is_lost;
        let is_unheard_loss = is_over && !executor.is_lost && executor.ending.is_none();
        let is_unschedulable = pod.unschedulable && pod.node.is_none() && !is_over;
        let loss = (is_unheard_loss && !was_draining).then(|| classify(pod, false));

        if was_draining {
            // Chosen before a restart: it goes, and is no loss.
            self.end(id, DeleteCause::ScaledDown, now);
        } else if let Some(loss) = loss {
            self.lose(id, &loss, now);
        } else if is_new_run {
            self.on_running(id, now);
        }
        self.note_unschedulable(id, is_unschedulable, now);
        if is_over {
            self.settle(id, now);
            self.clear_away(id, now);
        } else {
            self.insist(id);
            self.settle(id, now);
        }
    }

    /// What was lost or chosen to go never becomes capacity again: where it lives (history may have
    /// gone back over its end), it is deleted.
    fn insist(&mut self, id: ExecutorId) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        if !executor.is_lost && executor.ending.is_none() {
            return;
        }
        executor.is_kept = false;
        self.kept.retain(|kept| *kept != id);
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        if let Some(pod) = pod.filter(|pod| !pod.deleting) {
            self.chores.ask(&pod.uid, &pod.name, ChoreKind::Delete);
        }
    }

    fn on_running(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.running_since = Some(now);
        let is_adopted = executor.is_adopted;
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        let node = pod.and_then(|pod| pod.node.as_deref()).map(str::to_owned);
        let ip = pod.and_then(|pod| pod.ip);
        if let Some(group) = self.executors.group_of(id) {
            if !is_adopted {
                group.brake.on_started(now);
            }
            if group.brake.young_probe() == Some(id) {
                let timer = Timer::Proven(group.spec.name.clone(), id);
                self.timers.insert((Brake::proven_at(now), timer));
            }
        }
        if let Some(subject) = self.subject(id) {
            self.events.push_back(Event::ExecutorRunning { subject, node, ip });
        }
    }

    fn note_unschedulable(&mut self, id: ExecutorId, is_unschedulable: bool, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        match (is_unschedulable, executor.unschedulable_since) {
            (true, None) => {
                executor.unschedulable_since = Some(now);
                self.timers.insert((now.after(UNSCHEDULABLE_MS), Timer::Unschedulable));
            }
            (false, Some(_)) => executor.unschedulable_since = None,
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// An executor that posse was not ending stopped being capacity. Told once per uid.
    pub(in crate::core) fn lose(&mut self, id: ExecutorId, loss: &Loss, now: Millis) {
        let Some(subject) = self.subject(id) else { return };
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.is_lost = true;
        // An adopted one ran for some time before we looked: it is not young.
        let lived_ms = match (executor.running_since, executor.is_adopted) {
            (_, true) => Some(u64::MAX),
            (since, false) => since.map(|since| now.since(since)),
        };
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        let node = pod.and_then(|pod| pod.node.as_deref()).map(str::to_owned);
        let Loss { reason, exit_code, .. } = *loss;
        // Whoever wrote it: the driver's words and the server's alike.
        let message = harmless(&loss.message, MESSAGE_BYTES_MAX);
        self.events.push_back(Event::ExecutorLost { subject, node, reason, exit_code, message });
        if let Some(budget) = reason.budget()
            && self.budgets.charge(budget, now)
            && self.stop.is_none()
        {
            self.events.push_back(Event::BudgetExhausted { budget });
            self.verdict.get_or_insert(Verdict::BudgetSpent(budget));
        }
        if reason.budget() == Some(Budget::App) {
            self.want_log(id, now);
        }
        if reason != LossReason::Killed {
            let rng = &mut self.rng;
            if let Some(group) = self.executors.group_of(id) {
                group.brake.on_ended(id, lived_ms, now, rng);
            }
        }
        self.settle(id, now);
    }

    /// What becomes of an ended pod: evidence, or deleted.
    fn clear_away(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        let Some(uid) = executor.uid.clone() else { return };
        self.wake_quota(now);
        let Some(pod) = self.snapshot.get(&uid).filter(|pod| !pod.deleting) else { return };
        let Some(executor) = self.executors.get_mut(id) else { return };
        let is_evidence = executor.is_lost
            && executor.ending.is_none()
            && pod.phase == Phase::Failed
            && self.policy.keep_failed > 0;
        let name = pod.name.clone();
        if !is_evidence {
            self.chores.ask(&uid, &name, ChoreKind::Delete);
            return;
        }
        let is_going = self.chores.get(&uid).is_some_and(|chore| chore.kind != ChoreKind::Count);
        if executor.is_kept || is_going {
            return;
        }
        executor.is_kept = true;
        self.kept.push_back(id);
        self.chores.ask(&uid, &name, ChoreKind::Count);
        self.settle(id, now);
        self.trim_kept(now);
    }

    fn on_gone(&mut self, pod: &Pod, now: Millis) {
        self.chores.remove(&pod.uid);
        self.forget_log(&pod.uid);
        if *pod.name == *self.pod_name(pod.id) {
            self.ids.on_seen(pod.id);
        }
        self.wake_quota(now);
        let Some(executor) = self.executors.get(pod.id) else { return };
        let is_its_pod = match &executor.uid {
            Some(uid) => *uid == pod.uid && !executor.is_gone,
            // Came and went before anything else told of it.
            None => *pod.name == *self.pod_name(pod.id) && executor.group == pod.group,
        };
        let is_cancelled = executor.create.as_ref().is_some_and(|create| create.is_cancelled);
        if is_its_pod {
            self.on_end_of(pod, is_cancelled, now);
        }
    }

    /// The pod of an executor is gone: told as a loss or as a delete, once, and the id is spent.
    pub(in crate::core) fn on_end_of(&mut self, pod: &Pod, is_cancelled: bool, now: Millis) {
        let id = pod.id;
        let cancel_cause = self.cancel_cause();
        if self.executors.get(id).is_some_and(|executor| executor.uid.is_none()) {
            self.note_taken(id);
        }
        let Some(executor) = self.executors.get_mut(id) else { return };
        executor.uid = Some(pod.uid.clone());
        let was_draining = pod.draining.then_some(DeleteCause::ScaledDown);
        let cause =
            executor.ending.or(was_draining).or_else(|| is_cancelled.then_some(cancel_cause));
        if !executor.is_lost {
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
            (executor.is_gone, executor.is_kept) = (true, false);
            self.kept.retain(|kept| *kept != id);
            self.settle(id, now);
        } else {
            self.drop_executor(id);
        }
    }

    /// Decides the end of an executor. It is no capacity from here on, and never taken back.
    pub(in crate::core) fn end(&mut self, id: ExecutorId, cause: DeleteCause, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        if executor.ending.is_some() {
            return;
        }
        let Some(uid) = executor.uid.clone() else {
            self.cancel_create(id, now);
            return;
        };
        executor.ending = Some(cause);
        if let Some(pod) = self.snapshot.get(&uid)
            && !pod.deleting
        {
            // An unbound pod goes at once: no mark would be read by anybody.
            let is_marked = pod.draining || pod.node.is_none() || has_ended(pod);
            let kind = match cause {
                DeleteCause::ScaledDown if !is_marked => ChoreKind::MarkAndDelete,
                DeleteCause::Condemned
                | DeleteCause::Killed
                | DeleteCause::ScaledDown
                | DeleteCause::Stopped => ChoreKind::Delete,
            };
            self.chores.ask(&uid, &pod.name, kind);
        }
        if let Some(group) = self.executors.group_of(id) {
            group.brake.on_probe_void(id);
        }
        self.settle(id, now);
    }

    /// Gives up a create whose pod was not seen.
    pub(in crate::core) fn cancel_create(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get_mut(id) else { return };
        let Some(create) = &mut executor.create else { return };
        create.is_cancelled = true;
        let is_in_flight = create.is_in_flight();
        if !is_in_flight {
            let Some(until) = create.open_until().filter(|&until| until > now) else {
                self.drop_executor(id);
                return;
            };
            create.step = CreateStep::Linger(until);
            self.timers.insert((until, Timer::Create(id)));
        }
        self.due_creates.remove(&id);
        if let Some(group) = self.executors.group_of(id) {
            group.brake.on_probe_void(id);
        }
        self.settle(id, now);
    }

    /// Why a create is given up now.
    fn cancel_cause(&self) -> DeleteCause {
        if self.stop.is_some() { DeleteCause::Stopped } else { DeleteCause::ScaledDown }
    }

    fn wake_quota(&mut self, now: Millis) {
        for group in self.executors.groups.values_mut() {
            group.brake.on_room(now);
        }
    }

    /// How many of a group the scheduler has called Unschedulable for too long.
    pub(in crate::core) fn n_unschedulable(&self, group: &Group, now: Millis) -> u32 {
        let is_late = |id: &&ExecutorId| {
            self.executors.get(**id).is_some_and(|executor| {
                executor.state == State::Pending
                    && executor
                        .unschedulable_since
                        .is_some_and(|since| now.since(since) >= UNSCHEDULABLE_MS)
            })
        };
        u32::try_from(group.members.iter().filter(is_late).count()).unwrap_or(u32::MAX)
    }
}

/// A group that only adopted pods tell of.
fn unknown_group(name: GroupName) -> Group {
    let spec = GroupSpec {
        name,
        target: 0,
        min: 0,
        max: None,
        scale_down: ScaleDown::Any,
        replace: Replace::Terminating,
        from_file: false,
    };
    Group::new(spec, false)
}
