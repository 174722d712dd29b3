//! Log lines for events and verdicts.

use std::collections::BTreeMap;

use log::{Level, info};

use crate::core::model::action::RunVerdict;
use crate::core::model::event::Event;
use crate::core::model::ids::GroupName;
use crate::core::model::status::GroupStatus;
use crate::core::model::text::sanitize;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;

/// Losses logged one by one within `LOSS_WINDOW_MS`; further ones are only counted.
const LOSS_LINES_MAX: u32 = 10;
const LOSS_WINDOW_MS: u64 = 10_000;
/// The longest loss message in a log line, in bytes; the event has the whole message.
const LOSS_BYTES_MAX: usize = 400;

/// Logs what concerns the whole run, and limits the lines about single executors.
#[derive(Debug, Default)]
pub struct EventLogger {
    window_began: Millis,
    /// Losses in the current window.
    n_lost: u32,
    /// Foreign pods in the current window.
    n_foreign: u32,
    /// For each group, the last target that was logged as reached.
    reached: BTreeMap<GroupName, u32>,
    /// For each group, what it waits for, and since when.
    waits: BTreeMap<GroupName, (Waiting, Millis)>,
}

impl EventLogger {
    /// Logs an event.
    pub fn log_event(&mut self, event: &Event, now: Millis) {
        self.end_window(now);
        if matches!(event, Event::ExecutorLost { .. }) {
            self.n_lost = self.n_lost.saturating_add(1);
        }
        let is_foreign = matches!(event, Event::ForeignPod { .. });
        self.n_foreign = self.n_foreign.saturating_add(is_foreign.into());
        let n = if is_foreign { self.n_foreign } else { self.n_lost };
        log::log!(level(event, n > LOSS_LINES_MAX), "{}", describe(event, now));
    }

    /// Logs when a wait of a group is over, and when all executors of a group run.
    pub fn log_groups(&mut self, groups: impl Iterator<Item = GroupStatus> + Clone, now: Millis) {
        self.end_window(now);
        let mut n_groups = 0;
        for status in groups.clone() {
            n_groups += 1;
            self.log_ended_wait(&status, now);
            self.log_reached(&status);
        }
        let is_there = |name: &GroupName| groups.clone().any(|status| status.group == *name);
        if self.reached.len() > n_groups {
            self.reached.retain(|name, _| is_there(name));
        }
        if self.waits.len() > n_groups {
            self.waits.retain(|name, _| is_there(name));
        }
    }

    fn log_reached(&mut self, status: &GroupStatus) {
        let GroupStatus { group, target, running, .. } = status;
        if running != target || self.reached.get(group) == Some(target) {
            return;
        }
        self.reached.insert(group.clone(), *target);
        if *target > 0 {
            info!("group {group}: all {target} executors are running");
        }
    }

    fn log_ended_wait(&mut self, status: &GroupStatus, now: Millis) {
        let GroupStatus { group, waiting, since, .. } = status;
        let waits = waiting.filter(|waiting| !is_brief(*waiting)).zip(*since);
        let before = match waits {
            Some(waits) if self.waits.get(group) == Some(&waits) => return,
            Some(waits) => self.waits.insert(group.clone(), waits),
            None => self.waits.remove(group),
        };
        if let (Some((waiting, since)), None) = (before, waits) {
            let (what, s) = (waiting.as_str(), now.since(since).div_ceil(1_000));
            info!("group {group}: no longer waiting: {what}, after {s} s");
        }
    }

    fn end_window(&mut self, now: Millis) {
        if now.since(self.window_began) < LOSS_WINDOW_MS {
            return;
        }
        let n_unlogged = self.n_lost.saturating_sub(LOSS_LINES_MAX);
        if n_unlogged > 0 {
            info!("{n_unlogged} more executors were lost (see the events)");
        }
        let n_unlogged = self.n_foreign.saturating_sub(LOSS_LINES_MAX);
        if n_unlogged > 0 {
            info!("{n_unlogged} more pods have our labels, but posse did not create them");
        }
        (self.window_began, self.n_lost, self.n_foreign) = (now, 0, 0);
    }
}

/// `is_flood`: there were many such events within this window.
fn level(event: &Event, is_flood: bool) -> Level {
    match event {
        Event::BudgetExhausted { .. }
        | Event::CreateRefused { .. }
        | Event::Missed { .. }
        | Event::ServerUnavailable { .. } => Level::Warn,
        Event::ExecutorLost { .. } | Event::ForeignPod { .. } if is_flood => Level::Debug,
        Event::ForeignPod { .. } => Level::Warn,
        Event::Waiting { waiting, .. } if is_brief(*waiting) => Level::Debug,
        Event::ExecutorLost { .. }
        | Event::MemoryGrown { .. }
        | Event::NodeAvoided { .. }
        | Event::ServerAvailable { .. }
        | Event::Stopped
        | Event::TargetChanged { .. }
        | Event::Waiting { .. } => Level::Info,
        // Their causes were logged already, or the watcher logs more details.
        Event::ExecutorDeleted { .. }
        | Event::ExecutorDraining { .. }
        // Lines of the application's own log; they are in the events.
        | Event::ExecutorLog { .. }
        | Event::ExecutorRequested { .. }
        | Event::ExecutorRunning { .. }
        | Event::Started
        | Event::Stopping
        | Event::WatchRestarted { .. } => Level::Debug,
    }
}

/// True for reasons that usually last only a moment.
fn is_brief(waiting: Waiting) -> bool {
    match waiting {
        Waiting::FirstList
        | Waiting::Ids
        | Waiting::InFlight
        | Waiting::StaleSnapshot
        | Waiting::Stopping => true,
        Waiting::AdoptHold
        | Waiting::Backoff
        | Waiting::ConfigError
        | Waiting::DriverReady
        | Waiting::Gated
        | Waiting::ImageError
        | Waiting::Lease
        | Waiting::PendingLimit
        | Waiting::Permanent
        | Waiting::Quota
        | Waiting::ReplaceGone
        | Waiting::ScaleDownPending
        | Waiting::Server
        | Waiting::StartTimeout
        | Waiting::Template
        | Waiting::Unschedulable => false,
    }
}

fn describe(event: &Event, now: Millis) -> String {
    match event {
        Event::BudgetExhausted { budget } => {
            format!("more executors were lost than the failure budget `{}` allows", budget.as_str())
        }
        Event::CreateRefused { group, cause, message } => {
            format!("group {group}: executors cannot be created ({cause}): {message}")
        }
        Event::ExecutorDeleted { subject, cause } => {
            format!("executor {} deleted ({}): {}", subject.id, cause.as_str(), subject.pod)
        }
        Event::ExecutorDraining { subject, cause, .. } => {
            format!("executor {} draining ({}): {}", subject.id, cause.as_str(), subject.pod)
        }
        Event::ExecutorLog { subject, lines, message } => {
            let n = lines.len();
            let message = message.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            format!(
                "executor {}: {n} lines of the pod's log are in the events{message}",
                subject.id
            )
        }
        Event::ExecutorLost { subject, node, reason, exit_code: _, message } => {
            let node = node.as_deref().unwrap_or("no node");
            let message = sanitize(message, LOSS_BYTES_MAX);
            let (id, pod, reason) = (subject.id, &subject.pod, reason.as_str());
            format!("executor {id} lost: {reason}: {pod} on {node}: {message}")
        }
        Event::ExecutorRequested { subject } => {
            format!("executor {} requested: {}", subject.id, subject.pod)
        }
        Event::ExecutorRunning { subject, node, .. } => {
            let node = node.as_deref().unwrap_or("an unknown node");
            format!("executor {} is running on {node}: {}", subject.id, subject.pod)
        }
        Event::MemoryGrown { subject, memory } => {
            let (id, group) = (subject.id, &subject.group);
            format!("group {group}: after an OOM kill, executor {id} gets {memory} of memory")
        }
        Event::ForeignPod { pod, message, .. } => format!(
            "pod {pod} has the labels of this run's executors, but posse did not create it \
             ({message}): posse does not count it and does not delete it"
        ),
        Event::NodeAvoided { node, reason, .. } => {
            let reason = reason.as_str();
            format!(
                "node {node} lost several executors ({reason}): new executors avoid it for a while"
            )
        }
        Event::Missed { count } => format!("{count} events were dropped for a slow reader"),
        Event::ServerAvailable { since } => {
            format!("the API server answers again, after {} s", now.since(*since).div_ceil(1_000))
        }
        Event::ServerUnavailable { message } => format!(
            "no answer from the API server: {message}; trying again, executors that run are not \
             affected"
        ),
        Event::Started => "started".to_owned(),
        Event::Stopped => "stopped".to_owned(),
        Event::Stopping => "stopping".to_owned(),
        Event::TargetChanged { group, target } => format!("group {group}: target {target}"),
        Event::Waiting { group, waiting, message, .. } => {
            let message =
                message.as_deref().map_or_else(String::new, |message| format!(": {message}"));
            format!("group {group}: waiting: {}{message}", waiting.as_str())
        }
        Event::WatchRestarted { cause } => format!("watch restarted: {cause}"),
    }
}

/// Why the run ends, as a sentence.
pub fn describe_verdict(verdict: &RunVerdict) -> String {
    match verdict {
        RunVerdict::BudgetExhausted(budget) => {
            format!("the failure budget `{}` is exhausted: ending the application", budget.as_str())
        }
        RunVerdict::DriverSilent { silence_ms } => {
            let seconds = silence_ms.div_ceil(1_000);
            format!("no call from the driver for {seconds} s (driver.silence): ending")
        }
        RunVerdict::DriverNotStarted { message } => message.clone(),
        RunVerdict::NotAllowed { message } => {
            format!(
                "not permitted by the API server: {message}; deploy/rbac.yaml has the permissions \
                 that posse needs, --namespace chooses the namespace"
            )
        }
        RunVerdict::NotReachable { message } => {
            format!("the API server cannot be reached: {message}")
        }
        RunVerdict::TakenOver { holder } => format!(
            "another driver of this application has taken over ({holder}): ending, and leaving the \
             executors to it"
        ),
        RunVerdict::TemplateRefused { group, message } => {
            format!("the API server refuses the template of group {group}: {message}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::status_json::tests::sample;

    #[test]
    fn a_flood_of_losses_is_counted_and_then_logged() {
        let mut logger = EventLogger { n_lost: LOSS_LINES_MAX + 5, ..EventLogger::default() };
        logger.end_window(Millis(LOSS_WINDOW_MS - 1));
        assert_eq!(logger.n_lost, LOSS_LINES_MAX + 5);
        logger.end_window(Millis(LOSS_WINDOW_MS));
        assert_eq!((logger.n_lost, logger.window_began), (0, Millis(LOSS_WINDOW_MS)));
    }

    #[test]
    fn a_reached_target_is_logged_once() {
        let mut group = sample().groups.remove(0);
        (group.target, group.running) = (3, 2);
        let mut logger = EventLogger::default();
        let mut logged = |running, target| {
            (group.running, group.target) = (running, target);
            logger.log_groups(std::iter::once(group.clone()), Millis(0));
            logger.reached.get(&group.group).copied()
        };
        assert_eq!(logged(2, 3), None);
        assert_eq!(logged(3, 3), Some(3));
        // A lost and replaced executor is not logged again; a new target is.
        assert_eq!(logged(2, 3), Some(3));
        assert_eq!(logged(4, 4), Some(4));
        logger.log_groups(std::iter::empty(), Millis(1));
        assert!(logger.reached.is_empty(), "a deleted group is removed");
    }

    #[test]
    fn brief_waits_are_logged_at_debug_level() {
        let waiting =
            |waiting| Event::Waiting { group: "g".into(), waiting, until: None, message: None };
        for (event, is_flood, want) in [
            (waiting(Waiting::FirstList), false, Level::Debug),
            (waiting(Waiting::Quota), false, Level::Info),
            (Event::Stopping, false, Level::Debug),
            (Event::Missed { count: 1 }, true, Level::Warn),
        ] {
            assert_eq!(level(&event, is_flood), want, "{event:?}");
        }
    }
}
