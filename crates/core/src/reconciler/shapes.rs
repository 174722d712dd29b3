//! The shapes of tasks: which task is next, and which executors that do not start give their place to tasks of another
//! shape.

use super::Reconciler;
use super::starts::loss_reason;
use crate::model::event::DeleteCause;
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::pod::StartProblemKind;
use crate::policy::demand::{Demand, Why};
use crate::state::create_backoff::BackoffCause;
use crate::state::throttle::OWN_PROBLEMS;
use posse_base::time::Millis;

impl Reconciler {
    /// For what the next executor is: the target first, then the task that is next in the order of the calls. Takes it
    /// from its room.
    pub(super) fn next_demand(&self, name: &GroupName, rooms: &mut [Demand]) -> Option<Demand> {
        let group = self.executors.groups.get(name)?;
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
