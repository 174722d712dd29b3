//! The shapes of tasks: how many executors each may get now, and which executors that do not start give their place
//! to tasks of another shape.

use std::collections::BTreeMap;

use super::Reconciler;
use super::starts::loss_reason;
use crate::model::event::DeleteCause;
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::pod::StartProblemKind;
use crate::model::task::Shape;
use crate::model::waiting::{ServerWait, StartWait, Waiting};
use crate::policy::plan::TaskFacts;
use crate::state::create_backoff::{Allowance, BackoffCause};
use crate::state::executors::Group;
use crate::state::throttle::{OWN_PROBLEMS, Throttle};
use posse_base::time::Millis;

impl Reconciler {
    /// What the throttles allow for the tasks that no executor works on yet.
    pub(super) fn task_facts(&self, group: &Group, now: Millis) -> TaskFacts {
        let mut facts = TaskFacts::default();
        if group.tasks.n_ready() > 0 {
            let stuck = group.tasks.throttles.all().filter_map(|throttle| throttle.stuck_at(now));
            facts.next_at = stuck.min();
        }
        for (shape, n_ready, _) in group.tasks.ready_shapes() {
            let throttle = group.tasks.throttles.of(shape);
            let (n, waiting) = self.shape_room(group, throttle, n_ready, now);
            let until = waiting.and_then(|(_, until)| until).filter(|&until| until > now);
            facts.next_at = facts.next_at.into_iter().chain(until).min();
            if shape == Shape::TEMPLATE {
                facts.n_of_template = n_ready;
            } else {
                facts.n_allowed = facts.n_allowed.saturating_add(n);
                facts.waiting = facts.waiting.or(waiting);
            }
            if !throttle.is_stuck(now) {
                facts.n_startable = facts.n_startable.saturating_add(n);
            }
        }
        facts
    }

    /// How many executors a throttle allows now for so many tasks, and why not more.
    fn shape_room(
        &self,
        group: &Group,
        throttle: &Throttle,
        n_ready: u32,
        now: Millis,
    ) -> (u32, Option<(Waiting, Option<Millis>)>) {
        let limit = match throttle.backoff.allowance(now, false, false) {
            Allowance::UpTo(limit) => limit.saturating_sub(throttle.n_in_flight),
            Allowance::Wait { waiting, until } => return (0, Some((waiting, until))),
        };
        let (for_node, until) =
            self.unplaced_room(group, throttle, now).unwrap_or((u32::MAX, None));
        let n = n_ready.min(limit).min(for_node);
        let cause = throttle.backoff.cause();
        let waiting = match () {
            () if n == n_ready => None,
            () if n == for_node => Some((Waiting::Start(StartWait::Unschedulable), until)),
            () => {
                let in_flight = Waiting::Server(ServerWait::InFlight);
                Some((cause.map_or(in_flight, BackoffCause::waiting), None))
            }
        };
        (n, waiting)
    }

    /// How many executors each shape may get now.
    pub(super) fn shape_rooms(&self, name: &GroupName, now: Millis) -> BTreeMap<Shape, u32> {
        let Some(group) = self.executors.groups.get(name) else { return BTreeMap::new() };
        let rooms = group.tasks.ready_shapes().map(|(shape, n_ready, _)| {
            let throttle = group.tasks.throttles.of(shape);
            (shape, self.shape_room(group, throttle, n_ready, now).0)
        });
        rooms.collect()
    }

    /// The shape of the task that is next, in the order of the calls, among those that have room. Takes one from its
    /// room.
    pub(super) fn next_shape(
        &self,
        name: &GroupName,
        rooms: &mut BTreeMap<Shape, u32>,
    ) -> Option<Shape> {
        let group = self.executors.groups.get(name)?;
        let ready = group.tasks.ready_shapes();
        let open = ready.filter(|(shape, ..)| rooms.get(shape).is_some_and(|room| *room > 0));
        let (shape, ..) = open.min_by_key(|(.., first)| *first)?;
        rooms.entry(shape).and_modify(|room| *room -= 1);
        Some(shape)
    }

    /// Ends up to `n` executors of tasks that are stuck, the youngest first: their places go to tasks of shapes that
    /// start. No retry is charged. Their own shape tries with one executor at a time until one starts; if that try
    /// ends by itself, its time is not cut short.
    pub(super) fn give_places(&mut self, name: &GroupName, n: u32, now: Millis) {
        let Some(group) = self.executors.groups.get(name).filter(|_| n > 0) else { return };
        let mut stuck: Vec<(ExecutorId, StartProblemKind)> = Vec::new();
        for throttle in group.tasks.throttles.all().filter(|throttle| throttle.is_stuck(now)) {
            let tried = throttle.backoff.start_probe();
            for kind in OWN_PROBLEMS {
                let ids = throttle.problems.of(kind).iter().map(|(_, id)| *id);
                let may_end = |id| tried != Some(id) || self.start_deadline(id).is_none();
                stuck.extend(
                    ids.filter(|&id| self.has_task(id) && may_end(id)).map(|id| (id, kind)),
                );
            }
        }
        stuck.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
        for (id, kind) in stuck.into_iter().take(n as usize) {
            let Some(cause) = BackoffCause::of_start(loss_reason(kind)) else { continue };
            let message = self.problem_message(id).map(str::to_owned);
            let rng = &mut self.rng;
            let throttle = self.executors.throttle_of(id);
            let begins =
                throttle.is_some_and(|one| one.backoff.on_start_failed(id, cause, now, rng));
            if let Some(group) = self.executors.groups.get_mut(name).filter(|_| begins) {
                group.refusal = message;
            }
            self.end(id, DeleteCause::Unplaced, now);
        }
    }
}
