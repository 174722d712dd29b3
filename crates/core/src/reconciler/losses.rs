//! What follows from the loss of an executor: its report, the budgets, the create backoff, and the blame of a
//! node.

use super::Reconciler;
use crate::model::action::RunVerdict;
use crate::model::event::{
    Budget, ClusterEvent, DeleteCause, Event, ExecutorEvent, Exhaustion, LossReason, RunEvent,
};
use crate::model::ids::ExecutorId;
use crate::model::pod::Pod;
use crate::model::settings::Restart;
use crate::model::status::State;
use crate::model::task::Shape;
use crate::policy::loss::{Loss, MESSAGE_BYTES_MAX};
use crate::policy::node_reasons::{depends_on_place, is_node_at_fault};
use crate::policy::unplaced::n_that_fit;
use crate::state::avoided_nodes::NodeLoss;
use crate::state::budgets::NO_START_MS;
use crate::state::create_backoff::{AT_ONCE_MS, BackoffCause, CRASH_LOOP_TRIES_MAX, ExecutorEnd};
use crate::state::due::Timer;
use crate::state::executors::{Executor, Life};
use crate::state::node_blame::Blame;
use posse_base::text::sanitize;
use posse_base::time::Millis;

/// What the pod of a lost executor says of its node.
#[derive(Debug, Default)]
pub(super) struct LostPod {
    node: Option<String>,
    /// By the reason of the loss the node is at fault.
    is_at_fault: bool,
    /// The node refused it.
    is_rejected: bool,
}

impl LostPod {
    pub(super) fn of(pod: &Pod, loss: &Loss) -> Self {
        Self {
            node: pod.node.as_deref().map(str::to_owned),
            is_at_fault: is_node_at_fault(loss.reason, pod),
            is_rejected: pod.end.as_ref().is_some_and(|end| end.is_rejected),
        }
    }
}

impl Reconciler {
    /// Reports the loss of an executor, once for each uid, and charges its budget.
    pub(super) fn lose(&mut self, id: ExecutorId, loss: &Loss, now: Millis) {
        let pod = self.seen(id).map(|(_, pod)| LostPod::of(pod, loss));
        self.lose_pod(id, pod.unwrap_or_default(), loss, now);
    }

    /// The same for an executor whose pod may be gone from the snapshot.
    pub(super) fn lose_pod(&mut self, id: ExecutorId, pod: LostPod, loss: &Loss, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        debug_assert!(!executor.life.is_reported(), "the end of {id} is told twice");
        // An adopted executor ran before posse was restarted, so its end is not an early one.
        let lived_ms = match (executor.running_since, executor.is_adopted) {
            (_, true) => Some(u64::MAX),
            (since, false) => since.map(|since| now.since(since)),
        };
        let is_from_before = executor.is_adopted && executor.known_since == now;
        let attempt = executor.attempt;
        let start_ms = executor.start.bound_since.map_or(0, |since| now.since(since));
        self.change(id, now, |executor| executor.life = executor.life.lost());
        let LostPod { node, is_at_fault, is_rejected } = pod;
        let mut loss = loss.clone();
        let blame = self.blame(id, &loss, node.as_deref(), (lived_ms, start_ms), now);
        let is_of_task = self.has_task(id);
        let is_of_node = self.spares(id, loss.reason, blame);
        let is_spared_start = is_of_node && is_of_start(loss.reason);
        if is_of_node {
            blame_place(&mut loss, is_rejected);
        } else if is_from_before && loss.reason == LossReason::Deleted {
            // An earlier process may have asked for it.
            loss.budget = None;
        }
        if let Some(group) = self.executors.group_of(id) {
            group.n_lost += 1;
            if !is_of_task && group.spec.restarts_whole() && !group.attempts.fail(attempt) {
                loss.budget = None;
            }
            if loss.budget == Some(Budget::Start) {
                let since = Millis(now.0.saturating_sub(start_ms));
                group.starts_fail_since.get_or_insert(since);
            }
        }
        let Loss { reason, exit_code, budget, .. } = loss;
        // The message comes from the driver or the server, so it is sanitized.
        let message = sanitize(&loss.message, MESSAGE_BYTES_MAX);
        let node_at_fault = node.clone().filter(|_| is_at_fault || blame != Blame::Application);
        self.tell(id, ExecutorEvent::Lost { node, reason, budget, exit_code, message });
        // What the application itself has failed at, a task pays for by its retries.
        let budget = budget.filter(|budget| !is_of_task || *budget == Budget::Cluster);
        if reason.budget() == Some(Budget::App) && !reason.is_by_posse() {
            self.request_log(id, now);
        }
        // Tasks may have come since a target changed.
        self.note_wanted(now);
        let is_over = budget.is_some_and(|budget| self.end.budgets.charge(budget, now));
        self.give_up(id, &loss, lived_ms, now);
        if let Some(budget) = budget {
            self.judge_budget(id, budget, is_over, now);
        }
        if let Some(node) = node_at_fault {
            let places = self.executors.throttle_of(id).map(|throttle| &throttle.places);
            let lives_elsewhere = places.is_some_and(|places| places.lives_elsewhere(&node, now));
            self.blame_node(node, reason, NodeLoss { start_ms, lives_elsewhere }, now);
        }
        if is_spared_start {
            // The pod does not name the culprit: the next process would take it for a failure of the application.
            self.end(id, DeleteCause::Killed, now);
        }
        self.restart_group_of(id, now);
    }

    /// Whom the place shows to be the cause of an end. Work that is done, and what says nothing, is a sign only if it
    /// happens at once.
    fn blame(
        &mut self,
        id: ExecutorId,
        loss: &Loss,
        node: Option<&str>,
        (lived_ms, start_ms): (Option<u64>, u64),
        now: Millis,
    ) -> Blame {
        let Some(throttle) = self.executors.throttle_of(id) else { return Blame::Application };
        let Some(node) = node.filter(|_| depends_on_place(loss.reason)) else {
            return Blame::Application;
        };
        let lived_ms = lived_ms.unwrap_or(0);
        let says_little = matches!(loss.reason, LossReason::Completed | LossReason::Unknown);
        // Nobody knows when an adopted one began.
        let is_sign = lived_ms < if says_little { AT_ONCE_MS } else { u64::MAX };
        let began = Millis(now.0.saturating_sub(lived_ms));
        match is_sign {
            true => throttle.places.blame(loss.reason, node, (began, start_ms), now),
            false => Blame::Application,
        }
    }

    /// True if a node pays for this loss. What a program has done is its own where it may not be begun again more often
    /// than a task's retries allow, or not at all.
    fn spares(&mut self, id: ExecutorId, reason: LossReason, blame: Blame) -> bool {
        let is_start = is_of_start(reason);
        let most = self.policy.bad_nodes.losses;
        let run = self.task_of(id).map(|(_, run)| run);
        let Some(group) = self.executors.group_of(id) else { return false };
        match run {
            Some(run) => {
                blame != Blame::Application && is_start && group.tasks.spare(&run, id, most)
            }
            None => blame == Blame::Node && (is_start || group.spec.restart != Restart::Never),
        }
    }

    /// Ends the run if this loss, which was charged to the budget, was one too many.
    fn judge_budget(&mut self, id: ExecutorId, budget: Budget, is_over: bool, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let group = self.executors.home(executor);
        let is_auto = self.end.budgets.is_auto(budget);
        let failing_ms = group.starts_fail_since.map_or(0, |since| now.since(since));
        let throttle = group.tasks.throttles.of(executor.shape);
        let name = || group.spec.name.clone();
        let why = if is_auto && budget == Budget::Start {
            let is_over = !group.has_run && failing_ms >= NO_START_MS;
            is_over.then(|| Exhaustion::NeverStarted { group: name(), ms: NO_START_MS })
        } else if is_auto && self.do_most_live(budget) {
            None
        } else if is_over {
            Some(Exhaustion::Losses)
        } else {
            let is_hopeless = is_auto && budget == Budget::App && throttle.backoff.is_hopeless();
            let n_tries = CRASH_LOOP_TRIES_MAX;
            is_hopeless.then(|| Exhaustion::CrashLoop { group: name(), n_tries })
        };
        if let Some(why) = why.filter(|_| self.end.exhaust(budget)) {
            let event = RunEvent::BudgetExhausted { budget, why: why.clone() };
            self.out.tell(Event::Run(event));
            self.end.decide(RunVerdict::BudgetExhausted { budget, why });
        }
    }

    /// True if most executors that the run can have now have lived through most of the losses that the budget counts.
    fn do_most_live(&self, budget: Budget) -> bool {
        let Some(since) = self.end.budgets.middle_loss(budget) else { return false };
        let lives = |(_, one): &(ExecutorId, &Executor)| {
            one.state == State::Running && one.life == Life::Wanted && one.known_since < since
        };
        let n_living = self.executors.iter().filter(lives).count() as u64;
        let groups = self.executors.groups().values();
        let n_that_fit: u64 = groups.map(|group| u64::from(n_that_fit(group))).sum();
        n_living * 2 > n_that_fit
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
        let slot = self.executors.kept_slot(id);
        let n_early = self.n_early_mates(id, now);
        let shape = self.executors.get(id).map_or(Shape::TEMPLATE, |executor| executor.shape);
        let rng = &mut self.rng;
        let Some(group) = self.executors.group_of(id) else { return };
        let caused_by_app = loss.caused_by_app();
        let end = ExecutorEnd { lived_ms, caused_by_app, n_wanted: group.wanted() };
        match step {
            Some(step) if loss.reason == LossReason::OomKilled => {
                group.memory_scaling.on_oom(step, slot, group.spec.n_memory_steps());
            }
            // Its successor needs as much.
            Some(step) => group.memory_scaling.on_unused(step, slot),
            None => {}
        }
        let backoff = &mut group.tasks.throttles.of_mut(shape).backoff;
        match BackoffCause::of_start(loss.reason).filter(|_| caused_by_app) {
            Some(cause) => {
                if backoff.on_start_failed(id, cause, now, rng) {
                    group.refusal = Some(loss.message.clone());
                }
            }
            None if caused_by_app && !loss.reason.is_by_posse() => {
                if group.spec.restarts_whole() {
                    backoff.on_group_ended(id, n_early, now);
                }
                backoff.on_ended(id, end, now, rng);
            }
            None if loss.reason.is_by_posse() => {
                if loss.reason == LossReason::MaxAge && lived_ms.is_some() {
                    // It ran as long as it was allowed to, so the crash loop is over.
                    backoff.on_proven(id);
                }
                backoff.discard_probe(id);
            }
            // It says nothing about the application, but one that ends at once again and again makes the
            // server create pods for nothing.
            None => {
                if backoff.on_ended(id, end, now, rng) {
                    group.refusal = Some(describe_ends_at_once(loss.reason));
                }
            }
        }
    }

    fn blame_node(&mut self, node: String, reason: LossReason, loss: NodeLoss, now: Millis) {
        let groups = self.executors.groups();
        let lives = |node: &str| {
            let mut throttles = groups.values().flat_map(|group| group.tasks.throttles.all());
            throttles.any(|throttle| throttle.places.lives_on(node))
        };
        if let Some(until) = self.nodes.on_loss(&node, loss, lives, now) {
            self.due.set(until, Timer::Node);
            self.out.tell(Event::Cluster(ClusterEvent::NodeAvoided { node, until, reason }));
        }
    }
}

/// The program of an executor that is lost for this reason has not begun.
fn is_of_start(reason: LossReason) -> bool {
    reason.budget() == Some(Budget::Start)
}

/// One node is to blame for this loss. `is_rejected`: it refused the pod.
fn blame_place(loss: &mut Loss, is_rejected: bool) {
    // Other nodes took such a pod.
    if loss.reason == LossReason::ConfigError && is_rejected {
        loss.reason = LossReason::AdmissionRejected;
    }
    loss.budget = Some(Budget::Cluster);
    loss.message.push_str("; on this node alone: others of the group run elsewhere");
}

fn describe_ends_at_once(reason: LossReason) -> String {
    let remedy = match reason == LossReason::Completed {
        true => "; `restart: on-failure` is for an executor whose work is done when it ends with 0",
        false => "",
    };
    format!("its executors end at once, again and again ({}){remedy}", reason.as_str())
}
