//! One turn of the run: fires timers, gathers what the plan needs to know, and turns the plan into actions.

use std::sync::Arc;

use super::Reconciler;
use super::create_retries::RETRY_INITIAL_MS;
use crate::model::action::Action;
use crate::model::event::{DeleteCause, Event, ExecutorEvent, GroupEvent};
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::pod_text::PodOverrides;
use crate::model::status::State;
use crate::model::task::Shape;
use crate::model::waiting::{Held, Limit, Limits, RunWait, Waiting};
use crate::policy::demand::{Demand, GroupFacts, RunFacts, Why};
use crate::policy::plan::{GroupPlan, Plan, plan};
use crate::policy::victims::choose;
use crate::state::create_backoff::CreateBackoff;
use crate::state::due::Timer;
use crate::state::executors::{Executor, Group};
use crate::state::ledger::{Create, CreateStep};
use posse_base::time::Millis;

impl Reconciler {
    /// Fires the timers that are due. Each handler checks whether its timer still applies.
    pub(super) fn fire_timers(&mut self, now: Millis) {
        while let Some((at, timer)) = self.due.pop_due(now) {
            match timer {
                Timer::Mutation(uid) => self.on_mutation_due(&uid, now),
                Timer::Create(id) => self.on_create_due(id, now),
                Timer::Disconnected(id) => self.on_reason_wait_over(id, now),
                Timer::Drain(id) => self.on_drained(id, now),
                Timer::Heartbeat => self.on_heartbeats_due(at, now),
                Timer::ProbeProven(group, id) => self.on_proven(&group, id, now),
                Timer::MemoryProven(id) => self.on_memory_proven_due(id),
                Timer::Node => self.on_nodes_due(now),
                Timer::Protection => self.on_protection_due(now),
                Timer::Start(id) => self.on_start_due(id, now),
                Timer::Silence => self.on_silence_due(at, now),
                Timer::Terminating(uid) => self.on_terminating_due(uid, now),
                Timer::Ignored(id) => self.on_ignored(id, now),
                Timer::Unplaced => {}
            }
        }
    }

    /// An executor with more memory may have run long enough.
    fn on_memory_proven_due(&mut self, id: ExecutorId) {
        let is_running =
            self.executors.get(id).is_some_and(|executor| executor.state == State::Running);
        if let Some(group) = self.executors.group_of(id).filter(|_| is_running) {
            group.memory_scaling.on_proven();
        }
    }

    fn on_create_due(&mut self, id: ExecutorId, now: Millis) {
        let step = self.create_of(id).map(|create| create.step);
        if matches!(step, Some(CreateStep::AwaitLateEffect(until)) if until <= now) {
            self.ours.note_unlisted(id, now);
            self.drop_executor(id);
        }
    }

    fn on_proven(&mut self, name: &GroupName, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let lives = executor.state == State::Running
            && executor.running_since.is_some_and(|at| CreateBackoff::proven_at(at) <= now);
        if executor.state == State::Pending {
            // A resourceVersion rollback undid its start.
            self.due.set(CreateBackoff::proven_at(now), Timer::ProbeProven(name.clone(), id));
        }
        if let Some(throttle) = self.executors.throttle_of(id).filter(|_| lives) {
            throttle.backoff.on_proven(id);
        }
    }

    /// Plans once and carries out the plan. Returns when a wait ends by itself, if one does.
    pub(super) fn turn_run(&mut self, now: Millis) -> Option<Millis> {
        if let Some(up_to) = self.ours.take_dropped(now) {
            self.out.act(Action::ReserveIds { up_to });
        }
        self.gates.expire(now);
        self.executors.groups_mut().for_each(|group| group.slot_waits.expire(now));
        self.give_way(now);
        let gangs_due = self.judge_gangs(now);
        let Plan { groups, next_at } = self.plan(now);
        // The next turn gives the places of displaced executors to others.
        let at_once = groups.iter().any(|plan| plan.n_displaced > 0).then_some(now);
        for of_group in groups {
            self.carry_out(of_group, now);
        }
        self.executors.groups_mut().for_each(Group::note_surplus);
        let expiry = self.gates.next_expiry(now);
        [at_once, next_at, gangs_due, self.ours.request_again_at(), expiry]
            .into_iter()
            .flatten()
            .min()
    }

    fn run_facts(&self, now: Millis) -> RunFacts {
        RunFacts {
            now,
            shut: self.gates.shut(self.snapshot.is_synced()),
            available: self.server.window.available(now),
            closed_until: self.server.window.closed_until(now),
            pending_max: self.policy.pending_max,
            adopt_hold_until: self.gates.adopt_hold_until(),
            n_recorded: self.unrecorded.n_recorded(),
        }
    }

    /// Plans the groups of which something may have to be done.
    fn plan(&self, now: Millis) -> Plan {
        let groups = self.executors.groups().iter().filter(|(_, group)| !self.rests(group));
        let facts: Vec<GroupFacts<'_>> =
            groups.map(|(name, group)| self.facts_of(name, group)).collect();
        plan(&facts, &self.run_facts(now))
    }

    /// It has what it should have, nothing of it is under way, and it waits for nothing: its plan would be empty.
    fn rests(&self, group: &Group) -> bool {
        group.counts().not_running() == 0
            && group.own.capacity() == group.target()
            && group.tasks.n_ready() == 0
            && group.tasks.throttles.n_in_flight() == 0
            && group.retries.count() == 0
            && group.n_beyond_slots() == 0
            && group.wait.waiting().is_none()
            && group.scale_error.is_none()
            && self.gates.credentials_problem(group.spec.credentials.as_deref()).is_none()
    }

    fn facts_of<'a>(&self, name: &'a GroupName, group: &'a Group) -> GroupFacts<'a> {
        let needed = group.spec.credentials.as_deref();
        GroupFacts {
            name,
            group,
            has_credentials: self.gates.credentials_problem(needed).is_none(),
            start_problem: self.problem_waiting(group),
        }
    }

    fn carry_out(&mut self, plan: GroupPlan, now: Millis) {
        let GroupPlan { group, n_retries, n_creates, n_ends, n_displaced, .. } = plan;
        let GroupPlan { mut rooms, n_without_place, mut limits, .. } = plan;
        if n_ends > 0 {
            self.end_surplus(&group, n_ends, now);
        }
        if n_displaced > 0 {
            self.displace(&group, n_displaced, now);
        }
        self.send_retries(&group, &mut rooms, n_retries, now);
        if let Some(up_to) = self.ours.wanted(u64::from(n_creates)) {
            self.out.act(Action::ReserveIds { up_to });
        }
        for n_created in 0..n_creates {
            let Some(demand) = self.next_demand(&group, &mut rooms) else { break };
            let Some(id) = self.ours.take() else {
                let (waiting, until) = (Waiting::Run(RunWait::Ids), self.ours.request_again_at());
                let limit = Limit { at_most: n_created, waiting, until };
                limits.n_creates = limits.n_creates.max(n_creates);
                limits.creates.insert(0, Held { limit, of: n_creates, is_loose: false });
                break;
            };
            let shape = (demand.why == Why::Task).then_some(demand.shape);
            self.begin_create(id, &group, shape, now);
        }
        self.give_places(&group, n_without_place, now);
        self.note_limits(group, limits, now);
    }

    /// For what the next executor is: the target first, then the task that is next in the order of the calls. Takes it
    /// from its room.
    fn next_demand(&self, name: &GroupName, rooms: &mut [Demand]) -> Option<Demand> {
        let group = self.executors.groups().get(name)?;
        let first = |room: &&mut Demand| match room.why {
            Why::Retry => None,
            Why::Target => Some(0),
            Why::Task => group.tasks.first_ready(room.shape),
        };
        let open = rooms.iter_mut().filter(|room| room.n > 0);
        let room = open.filter_map(|room| Some((first(&room)?, room))).min_by_key(|(at, _)| *at)?.1;
        room.n -= 1;
        Some(*room)
    }

    /// Tells what the group waits for, if that has changed.
    fn note_limits(&mut self, name: GroupName, limits: Limits, now: Millis) {
        let told = limits.told();
        let Some(group) = self.executors.group_mut(&name) else { return };
        if group.wait.set(limits, now)
            && let Some(Limit { waiting, until, .. }) = told.filter(|told| !told.waiting.is_pace())
        {
            let group = self.executors.groups().get(&name);
            let message = group.and_then(|group| self.waiting_message(group));
            let event = GroupEvent::Waiting { waiting, until, message };
            self.out.tell(Event::Group(name, event));
        }
    }

    /// `shape`: that of the task for which the executor is created; none: it is for the group's target.
    fn begin_create(
        &mut self,
        id: ExecutorId,
        name: &GroupName,
        shape: Option<Shape>,
        now: Millis,
    ) {
        let is_for_task = shape.is_some();
        let watermark = self.watermark();
        let Some(group) = self.executors.group_mut(name) else { return };
        let mut executor = Executor::new(name.clone(), now);
        let mut skipped = None;
        executor.awaits_heartbeat = self.policy.heartbeat_timeout_ms > 0 && !is_for_task;
        executor.attempt = group.attempts.current();
        debug_assert!(
            is_for_task || group.own.capacity() < group.target(),
            "{id} would be above the target of {name}"
        );
        if let Some(shape) = shape {
            let Some(run) = group.tasks.start_next(shape, id) else { return };
            executor.task = Some(Box::new(run));
        } else {
            let slot = group.slots.take();
            executor.slot = Some(slot);
            skipped = group.slot_waits.take_overdue_below(slot).map(|held| (slot, held));
        }
        let of_throttle = shape.unwrap_or(Shape::TEMPLATE);
        group.tasks.throttles.of_mut(of_throttle).backoff.on_sent(id);
        let is_whole = group.spec.restarts_whole();
        let slot = executor.slot.filter(|_| group.spec.has_own_slots());
        let step = match executor.has_own_memory() {
            true => 0,
            false => group.memory_scaling.take(slot, is_whole),
        };
        executor.memory_step = step;
        let pod = group.spec.pod.as_ref().zip(step.checked_sub(1));
        let memory = pod.and_then(|(pod, i)| pod.memory_steps().nth(i as usize));
        let memory = memory.map(str::to_owned);
        executor.create = Some(Box::new(Create {
            step: CreateStep::Answer,
            watermark,
            sent_at: now,
            unknown_since: None,
            n_unknown: 0,
            n_tries: 0,
            pod: None,
        }));
        self.executors.insert(id, executor, None);
        self.tell(id, ExecutorEvent::Requested);
        if let Some((slot, (skipped, held_by))) = skipped {
            self.tell(id, ExecutorEvent::SlotSkipped { slot, skipped, held_by });
        }
        if let Some(memory) = memory {
            self.tell(id, ExecutorEvent::MemoryGrown { memory, message: None });
        }
        self.send_create(id, now);
    }

    pub(super) fn send_create(&mut self, id: ExecutorId, now: Millis) {
        assert!(self.had_first_list(), "{id} is created before the first LIST is applied");
        assert!(self.gates.is_lease_held(), "{id} is created without the Lease");
        debug_assert!(!self.gates.are_creates_stopped(), "{id} is created after the end has begun");
        // The next request is a GET.
        let is_check =
            self.create_of(id).is_some_and(|create| create.step == CreateStep::CheckLater);
        if !is_check && self.is_place_taken(id) {
            // Two pods would work in one slot, on one task, or beside another attempt. Others may go first.
            self.executors.discard_probe(id);
            let at = now.after(RETRY_INITIAL_MS);
            return self.send_again(id, CreateStep::PostLater, None, at, now);
        }
        let watermark = self.watermark();
        // Each try uses the group's current template.
        let Some(its_group) = self.executors.group_of(id) else { return };
        let prefer = self.nodes.without_avoided(&its_group.preferred);
        let (pod, n_steps) = (its_group.spec.pod.clone(), its_group.spec.n_memory_steps());
        let Some(executor) = self.executors.get(id) else { return };
        debug_assert!(executor.uid.is_none(), "{id} has a pod already");
        let (group, slot) = (executor.group.clone(), executor.slot.unwrap_or(0));
        // The template may have changed, and have fewer memory steps.
        let memory_step = executor.memory_step.min(n_steps);
        let (attempt, task) = (executor.attempt, executor.task.clone());
        let overrides =
            PodOverrides { avoid: self.nodes.names(), prefer, memory_step, attempt, task };
        let Some(create) = executor.create.as_deref() else { return };
        let Some(pod) = pod.or_else(|| create.pod.clone()) else { return };
        let avoids_until = self.nodes.next_expiry();
        self.change(id, now, |executor| {
            (executor.avoids_until, executor.memory_step) = (avoids_until, memory_step);
            if !is_check {
                let limit = pod.memory_at(memory_step).filter(|_| !executor.has_own_memory());
                executor.memory_limit_bytes = limit.map_or(0, |step| step.limit_bytes);
            }
        });
        self.change_create(id, now, |create| {
            (create.watermark, create.sent_at) = (watermark, now);
            create.n_tries = create.n_tries.saturating_add(1);
            create.step = if is_check { CreateStep::Check } else { CreateStep::Answer };
            if !is_check {
                create.pod = Some(Arc::clone(&pod));
            }
        });
        self.server.window.on_sent();
        if let Some(throttle) = self.executors.throttle_of(id) {
            throttle.on_sent();
        }
        self.out.act(if is_check {
            Action::Get { id, watermark }
        } else {
            Action::Create { id, group, slot, overrides, watermark, pod }
        });
    }

    fn end_surplus(&mut self, name: &GroupName, n: u32, now: Millis) {
        let Some(group) = self.executors.groups().get(name) else { return };
        let idle = self.executors.places(name, self.driver_reports.idle(now)).collect();
        for id in choose(&group.order, &idle, n as usize) {
            self.decommission(id, DeleteCause::ScaledDown, now);
        }
    }
}
