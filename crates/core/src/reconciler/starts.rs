//! The start of executors: why one does not run, how long that may last, and its end when the time
//! is up. Sends nothing but a request for a LIST.
//!
//! Times are measured by our own clock from when posse first saw the state, so a restart begins
//! them again. A start is given up only after an input from the server (an event, a bookmark or a
//! LIST) that is later than its limit: the pod may run by now while the watch is interrupted.

use super::Reconciler;
use crate::model::action::Action;
use crate::model::event::{DeleteCause, LossReason};
use crate::model::ids::{ExecutorId, GroupName};
use crate::model::pod::StartProblemKind;
use crate::model::status::State;
use crate::model::waiting::{GroupWait, RunWait, StartWait, Waiting};
use crate::policy::loss::{Loss, MESSAGE_BYTES_MAX};
use crate::policy::unplaced::{IGNORED, IGNORED_MS, UNPLACED, UNPLACED_MS};
use crate::state::create_backoff::BackoffCause;
use crate::state::due::Timer;
use crate::state::executors::{Group, Start};
use crate::state::start_problems::OWN_PROBLEMS;
use posse_base::text::sanitize;
use posse_base::time::Millis;

/// A time limit of a start.
struct StartLimit {
    at: Millis,
    /// Its key in the configuration; none: the pod avoids a node that may be used again.
    name: Option<&'static str>,
    ms: u64,
}

impl Reconciler {
    /// Updates how far the start of an executor has come. `due`: its previous deadline.
    pub(super) fn note_start(&mut self, id: ExecutorId, due: Option<Millis>, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let before = executor.start;
        let pod = executor.pod(&self.snapshot);
        let start = match pod.filter(|_| executor.state == State::Pending) {
            None => Start::default(),
            Some(pod) => {
                let kind = pod
                    .start_problem
                    .as_ref()
                    .map_or(StartProblemKind::Creating, |problem| problem.kind);
                let is_ignored = kind == StartProblemKind::Creating && pod.node.is_none();
                let n_started = pod.start_problem.as_ref().map_or(0, |problem| problem.n_started);
                // The container that had the problem has started since, so this is another problem.
                let known = before.problem.filter(|_| n_started <= before.n_started);
                let problem = match known {
                    Some((known, since)) if known == kind => Some((known, since)),
                    // Between two tries the kubelet's status does not show the problem.
                    Some(known @ (StartProblemKind::Config | StartProblemKind::Image, _))
                        if kind == StartProblemKind::Creating =>
                    {
                        Some(known)
                    }
                    Some(known @ (StartProblemKind::Ignored, _)) if is_ignored => Some(known),
                    Some(_) | None => (kind != StartProblemKind::Creating).then_some((kind, now)),
                };
                let bound_since = before.bound_since.unwrap_or(now);
                Start {
                    bound_since: pod.node.is_some().then_some(bound_since),
                    ignored_since: is_ignored.then(|| before.ignored_since.unwrap_or(now)),
                    problem,
                    n_started: n_started.max(before.n_started),
                }
            }
        };
        if start != before {
            self.change(id, now, |executor| executor.start = start);
        }
        self.note_place(id, before, now);
        self.time_start(id, due);
        let ignored_at = |start: Start| Some(start.ignored_since?.after(IGNORED_MS));
        self.due.move_to(ignored_at(start), ignored_at(before), Timer::Ignored(id));
        if self.policy.pending_max > 0
            && let Some((_, since)) = start.problem.filter(|(kind, _)| UNPLACED.contains(kind))
            && start.problem != before.problem
        {
            self.due.set(since.after(UNPLACED_MS), Timer::Unplaced);
        }
    }

    /// Sets the timer of a start whose deadline was `due`.
    fn time_start(&mut self, id: ExecutorId, due: Option<Millis>) {
        self.due.move_to(self.start_deadline(id), due, Timer::Start(id));
    }

    /// Notes whether the scheduler finds a node for an executor that avoids nodes.
    fn note_place(&mut self, id: ExecutorId, before: Start, now: Millis) {
        let Some(executor) = self.executors.get(id).filter(|one| one.avoids_nodes(now)) else {
            return;
        };
        let start = executor.start;
        if start.problem != before.problem && is_unschedulable(start) {
            let at = self.nodes.on_missed(now);
            self.due.set(at, Timer::Node);
        } else if start.bound_since.is_some() && before.bound_since.is_none() {
            self.nodes.on_found(now);
        }
    }

    /// A node may no longer be avoided, or there is no other.
    pub(super) fn on_nodes_due(&mut self, now: Millis) {
        self.nodes.on_time(now);
        // A node that caused more losses meanwhile has a later end.
        if let Some(at) = self.nodes.next_expiry() {
            self.due.set(at, Timer::Node);
        }
        let Some(since) = self.nodes.missed_since() else { return };
        let avoiding = self.executors.iter().filter(|(_, one)| one.avoids_nodes(now));
        let avoiding: Vec<(ExecutorId, Start)> = avoiding.map(|(id, e)| (id, e.start)).collect();
        if !avoiding.iter().any(|(_, start)| is_unschedulable(*start)) {
            return self.nodes.on_none_missed();
        }
        let at = self.nodes.on_missed(since);
        if at > now {
            return self.due.set(at, Timer::Node);
        }
        self.nodes.relent();
        // Who finds no node while it avoids some ends at the end of that time.
        for (id, _) in avoiding {
            let due = self.start_deadline(id);
            self.change(id, now, |executor| executor.avoids_until = Some(now));
            self.time_start(id, due);
        }
    }

    /// When the start of this executor is given up.
    pub(super) fn start_deadline(&self, id: ExecutorId) -> Option<Millis> {
        self.start_limit(id).map(|limit| limit.at)
    }

    fn start_limit(&self, id: ExecutorId) -> Option<StartLimit> {
        let executor = self.executors.get(id)?;
        let Start { bound_since, problem, ignored_since: _, n_started: _ } = executor.start;
        let limit = |since: Option<Millis>, name, ms| {
            let at = since.filter(|_| ms > 0)?.after(ms);
            Some(StartLimit { at, name: Some(name), ms })
        };
        let since = |wanted| problem.filter(|(kind, _)| *kind == wanted).map(|(_, since)| since);
        let policy = &self.policy;
        let whole = limit(bound_since, "allocation.start_timeout", policy.start_timeout_ms);
        let image = since(StartProblemKind::Image);
        let image = limit(image, "half of allocation.start_timeout", policy.image_timeout_ms());
        let end_of_avoidance = since(StartProblemKind::Unschedulable).and(executor.avoids_until);
        let end_of_avoidance = end_of_avoidance.map(|at| StartLimit { at, name: None, ms: 0 });
        [image, whole, end_of_avoidance].into_iter().flatten().min_by_key(|limit| limit.at)
    }

    /// A start may have reached its limit.
    pub(super) fn on_start_due(&mut self, id: ExecutorId, now: Millis) {
        let Some(limit) = self.start_limit(id).filter(|limit| limit.at <= now) else { return };
        let can_judge = self.can_judge() && !self.end.is_stopping();
        if !can_judge || !self.due.is_updated_since(limit.at) {
            self.due.postpone(id);
            if can_judge && let Some(at) = self.request_list(now) {
                self.due.set(at, Timer::Start(id));
            }
            return;
        }
        let Some(name) = limit.name else {
            self.end(id, DeleteCause::Unplaced, now);
            return;
        };
        let loss = self.start_loss(id, name, limit.ms);
        self.lose_and_delete(id, &loss, now);
    }

    /// Requests a LIST, unless one was requested a moment ago. Then returns when the next one may be
    /// requested.
    pub(super) fn request_list(&mut self, now: Millis) -> Option<Millis> {
        let next = self.due.ask_for_list(now);
        if next.is_none() {
            self.out.act(Action::Poll);
        }
        next
    }

    /// Judges the starts whose time was up before the last LIST.
    pub(super) fn judge_overdue(&mut self, now: Millis) {
        for id in self.due.take_overdue() {
            self.on_start_due(id, now);
        }
    }

    fn start_loss(&self, id: ExecutorId, name: &str, ms: u64) -> Loss {
        let problem = self.executors.get(id).and_then(|e| e.start.problem);
        let reason = loss_reason(problem.map_or(StartProblemKind::Creating, |(kind, _)| kind));
        let problem = self.problem_message(id).unwrap_or("no reason in the pod's status");
        let seconds = ms.div_ceil(1_000);
        let message = format!("not running within {name} ({seconds}s): {problem}");
        Loss::new(reason, None, message)
    }

    /// The server's message about why an executor does not run.
    pub(super) fn problem_message(&self, id: ExecutorId) -> Option<&str> {
        let executor = self.executors.get(id)?;
        if executor.start.ignored_since.is_some() {
            return Some(IGNORED);
        }
        Some(&executor.pod(&self.snapshot)?.start_problem.as_ref()?.message)
    }

    /// What a group waits for if all its executors are requested and some do not start.
    pub(super) fn problem_waiting(&self, group: &Group) -> Option<(Waiting, Option<Millis>)> {
        let id = group.problems.first()?;
        let waiting = match self.executors.get(id)?.start.problem?.0 {
            StartProblemKind::Config => Waiting::Start(StartWait::ConfigError),
            StartProblemKind::Gated => Waiting::Start(StartWait::Gated),
            StartProblemKind::Image => Waiting::Start(StartWait::ImageError),
            StartProblemKind::Queued => Waiting::Start(StartWait::Queue),
            StartProblemKind::Ignored | StartProblemKind::Unschedulable
                if group.has_incomplete_gang() =>
            {
                Waiting::Group(GroupWait::Gang)
            }
            StartProblemKind::Ignored | StartProblemKind::Unschedulable => {
                Waiting::Start(StartWait::Unschedulable)
            }
            StartProblemKind::Creating => return None,
        };
        Some((waiting, self.start_deadline(id)))
    }

    /// The server's message about what a group waits for.
    pub(super) fn waiting_message(&self, group: &Group) -> Option<String> {
        let waiting = group.wait.waiting()?;
        if waiting == Waiting::Group(GroupWait::ScaleCommand) {
            return group.scale_error.clone();
        }
        if waiting == Waiting::Run(RunWait::Credentials) {
            return self.gates.credentials_problem(group.spec.credentials.as_deref()).cloned();
        }
        if waiting == Waiting::Run(RunWait::DriverReady) {
            return self.gates.driver_port_problem().map(str::to_owned);
        }
        if waiting == Waiting::Group(GroupWait::Gang) {
            return self.gang_message(group);
        }
        let waits_for_ends =
            [GroupWait::ReplaceGone, GroupWait::Restart, GroupWait::Slot].map(Waiting::Group);
        if waits_for_ends.contains(&waiting)
            && let Some(held) = self.held_message(group)
        {
            return Some(held);
        }
        if waiting == Waiting::Group(GroupWait::Slot) {
            let (slot, id) = group.awaited_slot()?;
            let what = "if it has not ended a minute later, the next executor takes another slot";
            return Some(format!("executor {id} still has slot {slot}; {what}"));
        }
        let has_problem = self.problem_waiting(group).is_some_and(|problem| problem.0 == waiting);
        let problem = group.problems.first().filter(|_| has_problem);
        let problem_message = || Some(self.problem_message(problem?)?.to_owned());
        let words =
            group.refusal.clone().or_else(problem_message).or_else(|| self.server_message(waiting));
        let parts: Vec<String> = words.into_iter().chain(self.words_about_holders(group)).collect();
        Some(parts.join("; ")).filter(|message| !message.is_empty())
    }

    /// The executor of the group whose pod is deleted and does not go.
    fn held_message(&self, group: &Group) -> Option<String> {
        group.members.iter().find_map(|&id| {
            let finalizers = sanitize(self.seen(id)?.1.held_by()?, MESSAGE_BYTES_MAX);
            Some(format!(
                "executor {id} is held by finalizer {finalizers}, which posse does not remove"
            ))
        })
    }

    /// Ends the youngest executors of a group that have no node or cannot be created.
    pub(super) fn displace(&mut self, name: &GroupName, n: u32, now: Millis) {
        let Some(group) = self.executors.groups().get(name) else { return };
        let unplaced = UNPLACED.into_iter().flat_map(|kind| group.problems.of(kind));
        let unplaced = unplaced.map(|(_, id)| *id);
        let mut ids: Vec<ExecutorId> = unplaced.chain(group.retries.ids()).collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        for id in ids.into_iter().take(n as usize) {
            self.end(id, DeleteCause::Unplaced, now);
        }
    }

    /// Ends up to `n` executors of tasks that are stuck, the youngest first: their places go to tasks of shapes that
    /// start. No retry is charged. Their own shape tries with one executor at a time until one starts; if that try
    /// ends by itself, its time is not cut short.
    pub(super) fn give_places(&mut self, name: &GroupName, n: u32, now: Millis) {
        let Some(group) = self.executors.groups().get(name).filter(|_| n > 0) else { return };
        let mut stuck: Vec<(ExecutorId, StartProblemKind)> = Vec::new();
        for throttle in
            group.tasks.throttles.all().filter(|throttle| throttle.problems.is_stuck(now))
        {
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
            if let Some(group) = self.executors.group_mut(name).filter(|_| begins) {
                group.refusal = message;
            }
            self.end(id, DeleteCause::Unplaced, now);
        }
    }

    /// Notes that no scheduler looks at an executor.
    pub(super) fn on_ignored(&mut self, id: ExecutorId, now: Millis) {
        let Some(start) = self.executors.get(id).map(|executor| executor.start) else { return };
        if let Some(since) = start.ignored_since {
            let problem = Some((StartProblemKind::Ignored, since));
            self.change(id, now, |executor| executor.start = Start { problem, ..start });
        }
    }
}

fn is_unschedulable(start: Start) -> bool {
    start.problem.is_some_and(|(kind, _)| kind == StartProblemKind::Unschedulable)
}

/// Why an executor is lost that does not start in time.
fn loss_reason(kind: StartProblemKind) -> LossReason {
    match kind {
        StartProblemKind::Config => LossReason::ConfigError,
        StartProblemKind::Image => LossReason::ImageError,
        StartProblemKind::Creating
        | StartProblemKind::Gated
        | StartProblemKind::Ignored
        | StartProblemKind::Queued
        | StartProblemKind::Unschedulable => LossReason::StartTimeout,
    }
}
