//! Owns the start of executors: what keeps one from running, how long that may last, and its end
//! when the time is up. Sends nothing but the wish for a LIST.
//!
//! Times run by our own clock from our own first sight, so a restart begins them anew. A start is
//! given up by the first word from the server (a change, a bookmark, a LIST) after its time is up,
//! never before: the pod may run by now and the watch be down.

use super::Reconciler;
use super::timers::Timer;
use crate::core::loss::Loss;
use crate::core::model::action::Action;
use crate::core::model::event::{DeleteCause, LossReason};
use crate::core::model::ids::ExecutorId;
use crate::core::model::pod::StartProblemKind;
use crate::core::model::status::State;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;
use crate::core::state::executors::{Group, Start};

/// An executor counts against `unschedulable_max` when the scheduler has said so for this long.
const UNSCHEDULABLE_MS: u64 = 120_000;

/// Between two LISTs that are asked for because starts are due.
const SERVER_UPDATE_ASKED_EVERY_MS: u64 = 5_000;

/// A limit that ends a start.
struct Limit {
    at: Millis,
    /// Its key in the configuration; none: the pod keeps away from a node that is good again.
    name: Option<&'static str>,
    ms: u64,
}

impl Reconciler {
    /// Notes how far the pod of an executor has come. `due`: when it was to be given up before.
    pub(super) fn note_start(&mut self, id: ExecutorId, due: Option<Millis>, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let before = executor.start;
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        let start = match pod.filter(|_| executor.state == State::Pending) {
            None => Start::default(),
            Some(pod) => {
                let kind =
                    pod.stuck.as_ref().map_or(StartProblemKind::Creating, |stuck| stuck.kind);
                let stuck = match before.stuck {
                    Some((known, since)) if known == kind => Some((known, since)),
                    // Between two tries a kubelet says that all goes its usual way.
                    Some(known @ (StartProblemKind::Config | StartProblemKind::Image, _))
                        if kind == StartProblemKind::Creating =>
                    {
                        Some(known)
                    }
                    Some(_) | None => (kind != StartProblemKind::Creating).then_some((kind, now)),
                };
                let bound_since = before.bound_since.unwrap_or(now);
                Start { bound_since: pod.node.is_some().then_some(bound_since), stuck }
            }
        };
        if start != before {
            self.executors.set_start(id, start);
        }
        let next = self.start_deadline(id);
        if next != due {
            if let Some(at) = due {
                self.timers.cancel(at, Timer::Start(id));
            }
            if let Some(at) = next {
                self.timers.set(at, Timer::Start(id));
            }
        }
        let is_unschedulable = |start: Start| {
            start.stuck.is_some_and(|(kind, _)| kind == StartProblemKind::Unschedulable)
        };
        if self.policy.unschedulable_max > 0 && is_unschedulable(start) && !is_unschedulable(before)
        {
            self.timers.set(now.after(UNSCHEDULABLE_MS), Timer::Unschedulable);
        }
    }

    /// When the start of this executor is given up, as things are.
    pub(super) fn start_deadline(&self, id: ExecutorId) -> Option<Millis> {
        self.start_limit(id).map(|limit| limit.at)
    }

    fn start_limit(&self, id: ExecutorId) -> Option<Limit> {
        let executor = self.executors.get(id)?;
        let Start { bound_since, stuck } = executor.start;
        let limit = |since: Option<Millis>, name, ms| {
            let at = since.filter(|_| ms > 0)?.after(ms);
            Some(Limit { at, name: Some(name), ms })
        };
        let since = |wanted| stuck.filter(|(kind, _)| *kind == wanted).map(|(_, since)| since);
        let policy = &self.policy;
        let whole = limit(bound_since, "start_timeout", policy.start_timeout_ms);
        let image = since(StartProblemKind::Image);
        let image = limit(image, "image_timeout", policy.image_timeout_ms);
        let unplaced = since(StartProblemKind::Unschedulable);
        let unplaced = limit(unplaced, "unschedulable_timeout", policy.unschedulable_timeout_ms);
        let misplaced = since(StartProblemKind::Unschedulable).and(executor.avoids_until);
        let misplaced = misplaced.map(|at| Limit { at, name: None, ms: 0 });
        [image, whole, unplaced, misplaced].into_iter().flatten().min_by_key(|limit| limit.at)
    }

    /// The server has told how things are now.
    pub(super) fn note_server_update(&mut self, now: Millis) {
        (self.server_update_at, self.has_server_update) = (Some(now), true);
    }

    /// The time of a start may be up.
    pub(super) fn on_start_due(&mut self, id: ExecutorId, now: Millis) {
        let Some(limit) = self.start_limit(id).filter(|limit| limit.at <= now) else { return };
        let is_known =
            self.snapshot.is_synced() && self.server_update_at.is_some_and(|at| at >= limit.at);
        if !is_known || !self.is_lease_held || self.stop.is_some() {
            self.overdue.insert(id);
            self.ask_for_server_update(id, now);
            return;
        }
        let Some(name) = limit.name else {
            self.end(id, DeleteCause::Unplaced, now);
            return;
        };
        let loss = self.start_loss(id, name, limit.ms);
        self.lose(id, &loss, now);
        self.ensure_deleted(id, now);
        self.refresh_state(id, now);
    }

    /// A watch on which nothing happens tells nothing for a minute; a start is judged by a LIST then.
    fn ask_for_server_update(&mut self, id: ExecutorId, now: Millis) {
        if !self.snapshot.is_synced() || !self.is_lease_held || self.stop.is_some() {
            return;
        }
        match self
            .server_update_asked_at
            .map(|at| at.after(SERVER_UPDATE_ASKED_EVERY_MS))
            .filter(|&at| at > now)
        {
            Some(at) => {
                self.timers.set(at, Timer::Start(id));
            }
            None => {
                self.server_update_asked_at = Some(now);
                self.actions.push_back(Action::Poll);
            }
        }
    }

    /// Looks again at the starts whose time was up when the server had not been heard of since.
    pub(super) fn judge_overdue(&mut self, now: Millis) {
        if std::mem::take(&mut self.has_server_update) {
            for id in std::mem::take(&mut self.overdue) {
                self.on_start_due(id, now);
            }
        }
    }

    fn start_loss(&self, id: ExecutorId, name: &str, ms: u64) -> Loss {
        let kind = self.executors.get(id).and_then(|e| e.start.stuck).map(|(kind, _)| kind);
        let reason = match kind {
            Some(StartProblemKind::Config) => LossReason::ConfigError,
            Some(StartProblemKind::Image) => LossReason::ImageError,
            Some(
                StartProblemKind::Creating
                | StartProblemKind::Gated
                | StartProblemKind::Unschedulable,
            )
            | None => LossReason::StartTimeout,
        };
        let words = self.problem_message(id).unwrap_or("the node tells nothing");
        let seconds = ms.div_ceil(1_000);
        let message = format!("not running within allocation.{name} ({seconds}s): {words}");
        Loss { reason, exit_code: None, message }
    }

    /// The server's words about what keeps an executor from running.
    fn problem_message(&self, id: ExecutorId) -> Option<&str> {
        let uid = self.executors.get(id)?.uid.as_ref()?;
        Some(&self.snapshot.get(uid)?.stuck.as_ref()?.words)
    }

    /// What a group waits for where all that it wants is asked for and some of it does not start.
    pub(super) fn problem_waiting(&self, group: &Group) -> Option<(Waiting, Option<Millis>)> {
        let id = group.first_problem()?;
        let waiting = match self.executors.get(id)?.start.stuck?.0 {
            StartProblemKind::Config => Waiting::ConfigError,
            StartProblemKind::Gated => Waiting::Gated,
            StartProblemKind::Image => Waiting::ImageError,
            StartProblemKind::Unschedulable => Waiting::Unschedulable,
            StartProblemKind::Creating => return None,
        };
        Some((waiting, self.start_deadline(id)))
    }

    /// The server's words about what a group waits for.
    pub(super) fn waiting_message(&self, group: &Group) -> Option<String> {
        let (waiting, _) = group.waiting?;
        let is_stuck = self.problem_waiting(group).is_some_and(|stuck| stuck.0 == waiting);
        let stuck = group.first_problem().filter(|_| is_stuck);
        let words = || Some(self.problem_message(stuck?)?.to_owned());
        group.refusal.clone().or_else(words)
    }

    /// True where the scheduler has called more of a group Unschedulable, and for longer, than
    /// `unschedulable_max` allows.
    pub(super) fn is_unschedulable(&self, group: &Group, now: Millis) -> bool {
        let most = self.policy.unschedulable_max as usize;
        if most == 0 || group.counts.capacity() >= group.spec.target {
            return false;
        }
        let is_late = |id: &&ExecutorId| {
            let stuck = self.executors.get(**id).and_then(|executor| executor.start.stuck);
            stuck.is_some_and(|(_, since)| now.since(since) >= UNSCHEDULABLE_MS)
        };
        group.stuck[StartProblemKind::Unschedulable as usize]
            .iter()
            .filter(is_late)
            .take(most)
            .count()
            == most
    }
}
