//! Checks of losses and their effects: true causes, budgets, logs, abandoned starts, and the
//! template of the next pods.

use std::collections::BTreeMap;

use posse_core::model::action::Action;
use posse_core::model::event::{Budget, Event, ExecutorEvent, LossReason, RunEvent};
use posse_core::model::ids::Uid;
use posse_core::model::pod::ContainerState;
use posse_core::model::settings::{Limit, Policy};
use posse_core::reconciler::Reconciler;
use posse_core::state::executors::Life;

use super::check::{Check, CheckResult, fail};
use super::cluster::{Cause, Cluster};

/// The last message of the server may be so old: a watch backlog, or a LIST in flight.
const STALE_MS: u64 = 6_000;
/// A loss counts when the core learns of it, and is reported some milliseconds later.
const BATCH_MS: u64 = 20;

/// The driver's report need not be true.
fn is_by_the_drivers_word(reason: LossReason) -> bool {
    matches!(reason, LossReason::HeartbeatTimeout)
}

impl Check {
    /// A start was abandoned: the pod was not known to run, and its time was over.
    pub(super) fn on_start_loss(
        &self,
        event: &Event,
        core: &Reconciler,
        cluster: &Cluster,
        policy: &Policy,
        now: u64,
    ) -> CheckResult {
        if let Event::Executor(subject, ExecutorEvent::Lost { reason, .. }) = event
            && reason.budget() == Some(Budget::App)
            && !is_by_the_drivers_word(*reason)
            && subject.uid.as_ref().is_some_and(|uid| self.lost_by_node.contains(uid))
        {
            return fail(format!("{event:?}, but its node took it"));
        }
        let Some(uid) = start_loss(event) else { return Ok(()) };
        let is_over = cluster.lives.get(uid).is_none_or(|life| life.was_over);
        if self.doubt.is_some() || is_over {
            return Ok(());
        }
        if core.snapshot().get(uid).is_none_or(|pod| pod.container != ContainerState::Waiting) {
            return fail(format!("{event:?}, but it is known to run"));
        }
        // After a silence the watch first delivers what had happened before.
        let known_at = |at: u64| at.max(self.silent_until);
        // The pages of a LIST may come one by one for long, and tell what was when it was taken.
        let is_older = |at: u64| {
            self.last_list.is_some_and(|(came, taken)| came + BATCH_MS >= now && taken <= at)
        };
        if self.running.get(uid).is_some_and(|&at| known_at(at) + STALE_MS < now && !is_older(at)) {
            return fail(format!("{event:?}, but it has run for long: nobody asked the server"));
        }
        let up = |since: &BTreeMap<Uid, u64>, ms: u64| {
            ms > 0 && since.get(uid).is_some_and(|since| now >= since + ms)
        };
        let is_up =
            up(&self.bound, policy.start_timeout_ms) || up(&self.bound, policy.image_timeout_ms());
        if !is_up {
            return fail(format!("{event:?}, but its time is not up"));
        }
        Ok(())
    }

    /// The true cause, whether a restart counts the loss again, and its log.
    pub(super) fn on_loss(
        &mut self,
        event: &Event,
        cluster: &Cluster,
        policy: &Policy,
        now: u64,
    ) -> CheckResult {
        match event {
            Event::Executor(subject, ExecutorEvent::Lost { reason, budget, .. }) => {
                let Some(uid) = &subject.uid else {
                    // Its create was not answered, and the driver heard from it.
                    if *budget == Some(Budget::App) {
                        self.app_losses.push(now);
                    }
                    return Ok(());
                };
                if self.counted.contains(uid) && cluster.n_restores == 0 {
                    return fail(format!("{event:?}, but an earlier process had counted it"));
                }
                self.is_blamed_right(uid, *reason, cluster)?;
                if *budget == Some(Budget::App) {
                    self.app_losses.push(now);
                }
                if reason.budget() == Some(Budget::App) {
                    // Who kills an executor knows why.
                    if policy.log_lines > 0 && !reason.is_by_posse() {
                        self.logs_due.insert(uid.clone());
                    }
                }
            }
            Event::Executor(subject, ExecutorEvent::Log { .. }) => {
                let uid = subject.uid.as_ref();
                if uid.is_some() && !uid.is_some_and(|uid| self.logs_due.remove(uid)) {
                    return fail(format!("{event:?} without a loss, or told twice"));
                }
            }
            Event::Run(RunEvent::BudgetExhausted { budget: Budget::App, .. }) => {
                let n = self.n_app_losses(policy.failures_window_ms + BATCH_MS, now);
                let is_spent = match policy.failures_app {
                    Limit::Max(max) => n > max as usize,
                    Limit::Auto => n > 10,
                    Limit::Off => false,
                };
                if !is_spent || std::mem::replace(&mut self.is_app_spent, true) {
                    return fail(format!("{event:?} after {n} losses, or told twice"));
                }
            }
            Event::Run(RunEvent::BudgetExhausted { .. }) => {
                return fail(format!("{event:?}, which is off"));
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn is_blamed_right(
        &self,
        uid: &Uid,
        reason: LossReason,
        cluster: &Cluster,
    ) -> CheckResult {
        if is_by_the_drivers_word(reason) {
            return Ok(());
        }
        // A restore undoes ends, so the first cause of an end is no longer the true one.
        let cause = cluster.lives.get(uid).and_then(|life| life.cause);
        let want = match (reason, reason.budget()) {
            // Nobody knows who did it, or it was the executor's own will.
            (
                LossReason::Completed
                | LossReason::Deleted
                | LossReason::Disconnected
                | LossReason::Unknown,
                _,
            ) => return Ok(()),
            (_, Some(Budget::App)) => Some(Cause::App),
            (_, Some(Budget::Cluster)) => Some(Cause::Cluster),
            (_, Some(Budget::Start) | None) => return Ok(()),
        };
        if cause != want && cluster.n_restores == 0 {
            return fail(format!("{uid} was lost by {}, in truth {cause:?}", reason.as_str()));
        }
        Ok(())
    }

    /// posse counts no foreign pod, and retains what the application itself ended.
    pub(super) fn is_retained_right(
        &self,
        uid: &Uid,
        life: Life,
        cluster: &Cluster,
    ) -> CheckResult {
        let truth = cluster.lives.get(uid);
        if truth.is_some_and(|life| life.is_foreign) {
            return fail(format!("{uid} is counted, but it is not ours"));
        }
        let is_known = cluster.n_restores == 0 && !self.counted.contains(uid);
        let is_app = truth.is_some_and(|life| life.cause == Some(Cause::App));
        if life == Life::Retained && is_known && !is_app {
            return fail(format!(
                "{uid} is retained, but the application did not end it: {truth:?}"
            ));
        }
        Ok(())
    }

    /// The number of avoided nodes is limited, and a repeated create has the same overrides.
    pub(super) fn on_shape(
        &mut self,
        action: &Action,
        core: &Reconciler,
        policy: &Policy,
        n_nodes: u64,
    ) -> CheckResult {
        let Action::Create { id, group, overrides, .. } = action else { return Ok(()) };
        let bad = &policy.bad_nodes;
        let n = overrides.avoid.len() as u64;
        // One more: the node of pods that are stuck for good.
        let n_nodes = n_nodes + 1;
        // One of several may be avoided in a small cluster, too.
        let most = (n_nodes * u64::from(bad.share_permille) / 1_000).max(1);
        if n > 0 && (bad.losses == 0 || bad.share_permille == 0 || n > most) {
            return fail(format!("{action:?} keeps away from too many of {n_nodes} nodes"));
        }
        let n_steps = core.executors().groups().get(group).map_or(0, |g| g.spec.n_memory_steps());
        if overrides.memory_step > n_steps {
            return fail(format!("{action:?} grows beyond {n_steps} steps"));
        }
        let before = self.steps.insert(id.0, overrides.memory_step);
        let allowed = before.map(|step| step.min(n_steps));
        if allowed.is_some_and(|allowed| allowed != overrides.memory_step) {
            return fail(format!("{action:?} is another pod than the one asked for before"));
        }
        Ok(())
    }

    pub fn n_app_losses(&self, window_ms: u64, now: u64) -> usize {
        self.app_losses.iter().filter(|&&at| now - at <= window_ms).count()
    }

    pub(super) fn budget_is_kept(&self, policy: &Policy, now: u64) -> CheckResult {
        let n = self.n_app_losses(policy.failures_window_ms - BATCH_MS, now);
        match policy.failures_app {
            Limit::Max(max) if n > max as usize && !self.is_app_spent && self.stop.is_none() => {
                fail(format!("{n} losses, and the budget of {max} is not spent"))
            }
            _ => Ok(()),
        }
    }
}

/// The pod whose start was abandoned.
pub(super) fn start_loss(event: &Event) -> Option<&Uid> {
    match event {
        Event::Executor(subject, ExecutorEvent::Lost { reason, .. })
            if reason.budget() == Some(Budget::Start) =>
        {
            subject.uid.as_ref()
        }
        _ => None,
    }
}
