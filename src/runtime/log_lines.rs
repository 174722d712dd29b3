//! Log lines for events and verdicts.

use std::collections::{BTreeMap, BTreeSet};

use log::{Level, info, warn};

use crate::core::model::action::RunVerdict;
use crate::core::model::event::{Event, LossReason, Subject};
use crate::core::model::ids::{ExecutorId, GroupName};
use crate::core::model::status::GroupStatus;
use crate::core::model::text::sanitize;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;

/// Losses logged one by one within `LOSS_WINDOW_MS`; further ones are only counted.
const LOSS_LINES_MAX: u32 = 10;
const LOSS_WINDOW_MS: u64 = 10_000;
/// The same reason for a refusal is logged again after this time.
const TOLD_AGAIN_MS: u64 = 60_000;
/// The longest loss message in a log line, in bytes; the event has the whole message.
const LOSS_BYTES_MAX: usize = 400;

/// The last lines of an executor's log that are shown, of the first failure in each group.
const LAST_LINES_MAX: usize = 10;

/// Logs what concerns the whole run, and limits the lines about single executors.
#[derive(Debug, Default)]
pub struct EventLogger {
    window_began: Millis,
    /// Losses in the current window.
    n_lost: u32,
    /// Foreign pods in the current window.
    n_foreign: u32,
    /// The server's last reason for a refusal, and when it was logged.
    told: Option<(String, Millis)>,
    /// For each group, the last target that was logged as reached.
    reached: BTreeMap<GroupName, u32>,
    /// For each group, what it waits for, and since when.
    waits: BTreeMap<GroupName, (Waiting, Millis)>,
    /// The last lines of failed executors are shown. Only with the embedded cluster: elsewhere the log of posse is
    /// kept and read by others, and an application's lines may contain secrets.
    shows_lines: bool,
    /// The groups of which a failed executor's last lines were shown.
    shown: BTreeSet<GroupName>,
}

impl EventLogger {
    /// `is_embedded`: the cluster is the embedded one of this run.
    pub fn new(is_embedded: bool) -> Self {
        Self { shows_lines: is_embedded, ..Self::default() }
    }

    /// Logs an event.
    pub fn log_event(&mut self, event: &Event, now: Millis) {
        self.end_window(now);
        if matches!(event, Event::ExecutorLost { .. }) {
            self.n_lost = self.n_lost.saturating_add(1);
        }
        let is_foreign = matches!(event, Event::ForeignPod { .. });
        self.n_foreign = self.n_foreign.saturating_add(is_foreign.into());
        let n = if is_foreign { self.n_foreign } else { self.n_lost };
        let is_told = self.is_told(event, now);
        log::log!(level(event, n > LOSS_LINES_MAX), "{}", describe(event, is_told, now));
        for line in self.last_lines(event) {
            warn!("{line}");
        }
    }

    /// What an executor wrote last, if it is the first of its group that failed: an exit code alone does
    /// not say why nothing works.
    fn last_lines(&mut self, event: &Event) -> Vec<String> {
        let Event::ExecutorLog { subject, lines, .. } = event else { return Vec::new() };
        if !self.shows_lines || lines.is_empty() || !self.shown.insert(subject.group.clone()) {
            return Vec::new();
        }
        let last = lines.iter().skip(lines.len().saturating_sub(LAST_LINES_MAX));
        let shown = |line: &String| {
            format!("executor {} wrote: {}", subject.id, sanitize(line, LOSS_BYTES_MAX))
        };
        last.map(shown).collect()
    }

    /// True if the same refusal was logged a moment ago: one rule of the cluster refuses the pods of
    /// all groups, and its reason may be long.
    fn is_told(&mut self, event: &Event, now: Millis) -> bool {
        let (Event::CreateRefused { message, .. } | Event::Waiting { message: Some(message), .. }) =
            event
        else {
            return false;
        };
        // Without `pods "NAME" is forbidden: `, which differs.
        let reason = message.split_once(": ").map_or(message.as_str(), |(_, reason)| reason);
        let told = self.told.as_ref();
        let is_told =
            told.is_some_and(|(last, at)| last == reason && now.since(*at) < TOLD_AGAIN_MS);
        if !is_told {
            self.told = Some((reason.to_owned(), now));
        }
        is_told
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
        if self.shown.len() > n_groups {
            self.shown.retain(is_there);
        }
    }

    fn log_reached(&mut self, status: &GroupStatus) {
        let GroupStatus { group, target, running, .. } = status;
        if running != target || self.reached.get(group) == Some(target) {
            return;
        }
        self.reached.insert(group.clone(), *target);
        match target {
            0 => {}
            1 => info!("group {group}: its executor is running"),
            _ => info!("group {group}: all {target} executors are running"),
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
            let s = now.since(since).div_ceil(1_000);
            info!("group {group}: no longer waiting for {}, after {s} s", describe_wait(waiting));
        }
    }

    fn end_window(&mut self, now: Millis) {
        if now.since(self.window_began) < LOSS_WINDOW_MS {
            return;
        }
        let n_unlogged = self.n_lost.saturating_sub(LOSS_LINES_MAX);
        if n_unlogged > 0 {
            warn!("{n_unlogged} more executors were lost (see the events)");
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
        | Event::CredentialsFailed { .. }
        | Event::Missed { .. }
        | Event::ServerUnavailable { .. } => Level::Warn,
        Event::ExecutorLost { .. } | Event::ForeignPod { .. } if is_flood => Level::Debug,
        // Somebody asked for that, or it was its own end.
        Event::ExecutorLost { reason: LossReason::Killed | LossReason::Completed, .. } => Level::Info,
        Event::ExecutorLost { .. } | Event::ForeignPod { .. } => Level::Warn,
        Event::Waiting { waiting, .. } if is_brief(*waiting) => Level::Debug,
        Event::CredentialsRenewed { .. }
        | Event::GroupRestarted { .. }
        | Event::MemoryGrown { .. }
        | Event::NodeAvoided { .. }
        | Event::ServerAvailable { .. }
        | Event::SlotSkipped { .. }
        | Event::Stopped
        | Event::TargetChanged { .. }
        | Event::Waiting { .. } => Level::Info,
        // Their causes were logged already, or the watcher logs more details.
        Event::ExecutorCompleted { .. }
        | Event::ExecutorDeleted { .. }
        | Event::ExecutorDraining { .. }
        // Lines of the application's own log; they are in the events.
        | Event::ExecutorLog { .. }
        | Event::ExecutorReady { .. }
        | Event::ExecutorRequested { .. }
        | Event::ExecutorRunning { .. }
        | Event::Started
        | Event::Stopping
        | Event::TaskEnded { .. }
        | Event::WatchRestarted { .. } => Level::Debug,
    }
}

/// True for reasons that usually last only a moment.
fn is_brief(waiting: Waiting) -> bool {
    match waiting {
        Waiting::FirstList
        | Waiting::GroupMax
        | Waiting::Ids
        | Waiting::InFlight
        | Waiting::StaleSnapshot
        | Waiting::Stopping => true,
        Waiting::AdoptHold
        | Waiting::Backoff
        | Waiting::ConfigError
        | Waiting::Credentials
        | Waiting::DriverReady
        | Waiting::Gated
        | Waiting::GroupRestart
        | Waiting::ImageError
        | Waiting::Lease
        | Waiting::PendingLimit
        | Waiting::Permanent
        | Waiting::Quota
        | Waiting::ReplaceGone
        | Waiting::ScaleCommand
        | Waiting::ScaleDownPending
        | Waiting::Server
        | Waiting::Slot
        | Waiting::StartTimeout
        | Waiting::Template
        | Waiting::Unschedulable => false,
    }
}

/// What a group waits for, with the word that the status and the documentation have for it.
fn describe_wait(waiting: Waiting) -> String {
    match (waiting.describe().0, waiting.as_str()) {
        (what, word) if what.ends_with(word) => what.to_owned(),
        (what, word) => format!("{what} ({word})"),
    }
}

/// A message, unless it was logged already.
fn unless_told(is_told: bool, message: &str) -> String {
    match is_told {
        true => " (for the same reason)".to_owned(),
        false => format!(": {message}"),
    }
}

fn describe_loss(
    subject: &Subject,
    node: Option<&str>,
    reason: LossReason,
    message: &str,
) -> String {
    let node = node.unwrap_or("no node");
    let message = sanitize(message, LOSS_BYTES_MAX);
    let (id, pod, reason) = (subject.id, &subject.pod, reason.as_str());
    format!("executor {id} lost: {reason}: {pod} on {node}: {message}")
}

fn describe_executor(subject: &Subject, what: &str) -> String {
    format!("executor {} {what}: {}", subject.id, subject.pod)
}

fn describe_recovery(outage_ms: u64) -> String {
    format!("requests to the API server succeed again, after {} s", outage_ms.div_ceil(1_000))
}

/// `is_told`: the event's message was logged already.
fn describe(event: &Event, is_told: bool, now: Millis) -> String {
    match event {
        Event::BudgetExhausted { budget } => {
            format!("more executors were lost than the failure budget `{}` allows", budget.as_str())
        }
        Event::CreateRefused { group, cause, message } => {
            let message = unless_told(is_told, message);
            format!("group {group}: executors cannot be created ({cause}){message}")
        }
        Event::CredentialsFailed { name, message, until } => {
            describe_renewal(name, Some(message), *until, now)
        }
        Event::CredentialsRenewed { name, until, .. } => describe_renewal(name, None, *until, now),
        Event::ExecutorCompleted { subject, .. } => format!("executor {} completed", subject.id),
        Event::ExecutorDeleted { subject, cause } => {
            format!("executor {} deleted ({}): {}", subject.id, cause.as_str(), subject.pod)
        }
        Event::ExecutorDraining { subject, cause, .. } => {
            format!("executor {} draining ({}): {}", subject.id, cause.as_str(), subject.pod)
        }
        Event::ExecutorLog { subject, lines, message } => {
            describe_log(subject.id, lines.len(), message.as_ref())
        }
        Event::ExecutorLost { subject, node, reason, exit_code: _, message } => {
            describe_loss(subject, node.as_deref(), *reason, message)
        }
        Event::ExecutorReady { subject } => describe_executor(subject, "ready"),
        Event::ExecutorRequested { subject } => describe_executor(subject, "requested"),
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
            let why = format!("node {node} lost several executors ({})", reason.as_str());
            format!("{why}: new executors avoid it for a while")
        }
        Event::Missed { count } => format!("{count} events were dropped for a slow reader"),
        Event::ServerAvailable { since } => describe_recovery(now.since(*since)),
        Event::ServerUnavailable { message } => format!(
            "requests to the API server fail: {message}; trying again, executors that run are not \
             affected"
        ),
        Event::TaskEnded { group, key, attempts, end, .. } => {
            format!("group {group}: task {key} {}, attempts: {attempts}", end.outcome.as_str())
        }
        Event::Started => "started".to_owned(),
        Event::SlotSkipped { subject, slot, skipped, held_by } => {
            describe_skip(subject, *slot, *skipped, *held_by)
        }
        Event::Stopped => "stopped".to_owned(),
        Event::Stopping => "stopping".to_owned(),
        Event::GroupRestarted { group, attempt } => format!("group {group}: attempt {attempt}"),
        Event::TargetChanged { group, target } => format!("group {group}: target {target}"),
        Event::Waiting { group, waiting, message, .. } => {
            let message =
                message.as_deref().map_or_else(String::new, |why| unless_told(is_told, why));
            format!("group {group}: waiting for {}{message}", describe_wait(*waiting))
        }
        Event::WatchRestarted { cause, .. } => format!("watch restarted: {cause}"),
    }
}

fn describe_skip(subject: &Subject, slot: u32, skipped: u32, held_by: ExecutorId) -> String {
    let why = format!("executor {held_by} has not ended in slot {skipped} within slot_wait");
    format!("group {}: executor {} gets slot {slot}: {why}", subject.group, subject.id)
}

/// `failure`: why there are no lines.
fn describe_log(id: ExecutorId, n_lines: usize, failure: Option<&String>) -> String {
    let why = failure.map_or_else(String::new, |why| format!(": {why}"));
    format!("executor {id}: {n_lines} lines of the pod's log are in the events{why}")
}

/// `failure`: why the credentials were not renewed; none if they were.
fn describe_renewal(name: &str, failure: Option<&String>, until: Millis, now: Millis) -> String {
    let s = until.since(now).div_ceil(1_000);
    match failure {
        Some(why) => format!("credentials {name} were not renewed: {why}; trying again in {s} s"),
        None => format!("credentials {name} are renewed; the next renewal is in {s} s"),
    }
}

/// Why the run ends, as a sentence.
pub fn describe_verdict(verdict: &RunVerdict) -> String {
    match verdict {
        RunVerdict::AllEnded { n_given_up: 0 } => "all work is done: ending".to_owned(),
        RunVerdict::AllEnded { n_given_up } => {
            format!("all work has ended, but {n_given_up} executors failed for good: ending")
        }
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
    fn an_outage_is_told_in_words_that_are_true_of_a_refusal_too() {
        let said = |event: &Event| describe(event, true, Millis(5_000));
        let message = "pods is forbidden: User \"u\" cannot list resource \"pods\"".to_owned();
        let begins = format!("requests to the API server fail: {message}; trying again");
        assert!(said(&Event::ServerUnavailable { message }).starts_with(&begins));
        let ends = "requests to the API server succeed again, after 2 s";
        assert_eq!(said(&Event::ServerAvailable { since: Millis(3_000) }), ends);
    }

    #[test]
    fn one_refusal_of_several_groups_is_told_once() {
        let mut logger = EventLogger::default();
        let mut said = |group: &str, why: &str, s: u64| {
            let message = format!("pods \"w-{group}-1\" is forbidden: {why}");
            let event = Event::CreateRefused { group: group.into(), cause: "permanent", message };
            let is_told = logger.is_told(&event, Millis(s * 1_000));
            describe(&event, is_told, Millis(s * 1_000))
        };
        let first = said("a", "violates PodSecurity", 0);
        assert!(first.ends_with("(permanent): pods \"w-a-1\" is forbidden: violates PodSecurity"));
        let again = "group b: executors cannot be created (permanent) (for the same reason)";
        assert_eq!(said("b", "violates PodSecurity", 1), again);
        assert!(said("c", "another reason", 2).ends_with("another reason"));
        assert!(said("c", "another reason", 62).ends_with("another reason"), "much later");
    }

    #[test]
    fn the_first_failure_of_a_group_shows_its_last_lines() {
        let mut logger = EventLogger::new(true);
        let log_of = |group: &str, lines: &[&str]| {
            let subject =
                Subject { group: group.into(), id: ExecutorId(7), uid: None, pod: "p".to_owned() };
            let lines = lines.iter().map(|&line| line.to_owned()).collect();
            Event::ExecutorLog { subject, lines, message: None }
        };
        let elsewhere = EventLogger::new(false).last_lines(&log_of("a", &["one"]));
        assert!(elsewhere.is_empty(), "not outside of the embedded cluster");
        let mut shown = |group: &str, lines: &[&str]| logger.last_lines(&log_of(group, lines));
        assert!(shown("a", &[]).is_empty(), "there was nothing to show");
        assert_eq!(
            shown("a", &["one", "\u{1b}two"]),
            ["executor 7 wrote: one", "executor 7 wrote: \\u{1b}two"]
        );
        assert!(shown("a", &["three"]).is_empty(), "once for each group");
        let many = shown("b", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
        assert_eq!((many.len(), many[0].as_str()), (LAST_LINES_MAX, "executor 7 wrote: 1"));
        logger.log_groups(std::iter::empty(), Millis(1));
        assert!(logger.shown.is_empty(), "a deleted group is removed");
    }

    #[test]
    fn waits_are_told_in_words() {
        for (waiting, want) in [
            (Waiting::Quota, "group g: waiting for quota: full"),
            (Waiting::Backoff, "group g: waiting for a backoff: full"),
            (
                Waiting::ScaleDownPending,
                "group g: waiting for the driver to end executors (scale_down_pending): full",
            ),
        ] {
            let message = Some("full".to_owned());
            let event = Event::Waiting { group: "g".into(), waiting, until: None, message };
            assert_eq!(describe(&event, false, Millis(0)), want);
        }
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
