//! What follows from the loss of an executor: its report, the budgets, the create backoff, and the blame of a
//! node.

use super::Reconciler;
use super::timers::Timer;
use crate::model::action::RunVerdict;
use crate::model::event::{Budget, ClusterEvent, Event, ExecutorEvent, LossReason, RunEvent};
use crate::model::ids::ExecutorId;
use crate::model::task::Shape;
use crate::policy::loss::{Loss, MESSAGE_BYTES_MAX};
use crate::policy::node_fault::is_node_at_fault;
use crate::state::create_backoff::{BackoffCause, ExecutorEnd};
use posse_base::text::sanitize;
use posse_base::time::Millis;

impl Reconciler {
    /// Reports the loss of an executor, once for each uid, and charges its budget.
    pub(super) fn lose(&mut self, id: ExecutorId, loss: &Loss, now: Millis) {
        let Some(subject) = self.subject(id) else { return };
        let Some(executor) = self.executors.get_mut(id) else { return };
        debug_assert!(!executor.life.is_reported(), "the end of {id} is told twice");
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
        self.tell(subject, ExecutorEvent::Lost { node, reason, exit_code, message });
        // The failures of a task are charged to its retries.
        let is_of_task = self.has_task(id);
        let budget = reason.budget().filter(|budget| !(is_of_task && *budget == Budget::App));
        if let Some(budget) = budget
            && self.budgets.charge(budget, now)
        {
            self.on_budget_exhausted(budget);
        }
        if reason.budget() == Some(Budget::App) && !reason.is_by_posse() {
            self.request_log(id, now);
        }
        self.give_up(id, loss, lived_ms, now);
        if budget == Some(Budget::App)
            && self.executors.throttle_of(id).is_some_and(|throttle| throttle.backoff.is_hopeless())
            && self.budgets.exhaust(Budget::App)
        {
            self.on_budget_exhausted(Budget::App);
        }
        if let Some(node) = node_at_fault {
            self.blame_node(node, reason, now);
        }
        self.refresh_state(id, now);
        self.restart_group_of(id, now);
    }

    fn on_budget_exhausted(&mut self, budget: Budget) {
        if self.stop.is_none() {
            self.events.push_back(Event::Run(RunEvent::BudgetExhausted { budget }));
            self.end_of_run.decide(RunVerdict::BudgetExhausted(budget));
        }
    }

    /// Updates the group's create backoff and memory scaling after a loss.
    pub(super) fn update_backoff(
        &mut self,
        id: ExecutorId,
        lived_ms: Option<u64>,
        loss: &Loss,
        now: Millis,
    ) {
        let step = self.memory_step_of(id);
        let n_early = self.n_early_mates(id, now);
        let shape = self.executors.get(id).map_or(Shape::TEMPLATE, |executor| executor.shape);
        let rng = &mut self.rng;
        let Some(group) = self.executors.group_of(id) else { return };
        let caused_by_app = loss.reason.caused_by_app();
        let end = ExecutorEnd { lived_ms, caused_by_app, n_wanted: group.wanted() };
        if loss.reason == LossReason::OomKilled
            && let Some(step) = step
        {
            group.memory_scaling.on_oom(step, group.spec.n_memory_steps());
        }
        let backoff = &mut group.tasks.throttles.of_mut(shape).backoff;
        match BackoffCause::of_start(loss.reason) {
            Some(cause) => {
                if backoff.on_start_failed(id, cause, now, rng) {
                    group.refusal = Some(loss.message.clone());
                }
            }
            None if loss.reason.caused_by_app() && !loss.reason.is_by_posse() => {
                if group.spec.restarts_whole() {
                    backoff.on_group_ended(id, n_early, now);
                }
                backoff.on_ended(id, end, now, rng);
            }
            // It ran as long as it was allowed to, so the crash loop is over.
            None if loss.reason == LossReason::MaxAge
                && lived_ms.is_some()
                && backoff.crash_loop_probe() == Some(id) =>
            {
                backoff.on_probe_proven();
            }
            None if loss.reason.is_by_posse() => backoff.discard_probe(id),
            // It says nothing about the application, but one that ends at once again and again makes the
            // server create pods for nothing.
            None => {
                if backoff.on_ended(id, end, now, rng) {
                    group.refusal = Some(describe_ends_at_once(loss.reason));
                }
            }
        }
    }

    fn blame_node(&mut self, node: String, reason: LossReason, now: Millis) {
        if let Some(until) = self.nodes.on_loss(&node, now) {
            self.timers.set(until, Timer::Node);
            self.events.push_back(Event::Cluster(ClusterEvent::NodeAvoided {
                node,
                until,
                reason,
            }));
        }
    }
}

fn describe_ends_at_once(reason: LossReason) -> String {
    let remedy = match reason == LossReason::Completed {
        true => "; `restart: on-failure` is for an executor whose work is done when it ends with 0",
        false => "",
    };
    format!("its executors end at once, again and again ({}){remedy}", reason.as_str())
}
