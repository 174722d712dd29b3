//! Owns the words for the log: what a person reads of events and verdicts. Decides nothing.

use std::collections::BTreeMap;

use log::{Level, info};

use crate::core::model::action::RunVerdict;
use crate::core::model::event::Event;
use crate::core::model::ids::GroupName;
use crate::core::model::status::GroupStatus;
use crate::core::model::text::sanitize;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;

/// Losses that get a line of their own in a `LOSS_WINDOW_MS`; the others are counted.
const LOSS_LINES_MAX: u32 = 10;
const LOSS_WINDOW_MS: u64 = 10_000;
/// What a line says of why, in bytes; the events have all of it.
const LOSS_BYTES_MAX: usize = 400;

/// Tells what a person should see: the life of the run and its scale, not each pod.
#[derive(Debug, Default)]
pub struct Narrator {
    window_began: Millis,
    /// Losses in this window.
    n_lost: u32,
    /// The target that each group was last said to have reached.
    reached: BTreeMap<GroupName, u32>,
}

impl Narrator {
    /// Writes one line about an event, where it is worth one.
    pub fn event(&mut self, event: &Event, now: Millis) {
        self.end_window(now);
        if matches!(event, Event::ExecutorLost { .. }) {
            self.n_lost = self.n_lost.saturating_add(1);
        }
        log::log!(level(event, self.n_lost > LOSS_LINES_MAX), "{}", words(event));
    }

    /// Says when a group has come to its target.
    pub fn groups(&mut self, groups: &[GroupStatus], now: Millis) {
        self.end_window(now);
        for GroupStatus { group, target, running, .. } in groups {
            if running != target || self.reached.get(group) == Some(target) {
                continue;
            }
            self.reached.insert(group.clone(), *target);
            if *target > 0 {
                info!("group {group}: all {target} executors run");
            }
        }
        if self.reached.len() > groups.len() {
            self.reached.retain(|name, _| groups.iter().any(|status| status.group == *name));
        }
    }

    fn end_window(&mut self, now: Millis) {
        if now.since(self.window_began) < LOSS_WINDOW_MS {
            return;
        }
        let n_unsaid = self.n_lost.saturating_sub(LOSS_LINES_MAX);
        if n_unsaid > 0 {
            info!("{n_unsaid} more executors were lost; the events tell each");
        }
        (self.window_began, self.n_lost) = (now, 0);
    }
}

/// `is_flood`: of this sort there were many lines just now.
fn level(event: &Event, is_flood: bool) -> Level {
    match event {
        Event::BudgetExhausted { .. } | Event::CreateRefused { .. } | Event::Missed { .. } => {
            Level::Warn
        }
        Event::ExecutorLost { .. } if is_flood => Level::Debug,
        Event::Waiting { waiting, .. } if is_passing(*waiting) => Level::Debug,
        Event::ExecutorLost { .. }
        | Event::MemoryGrown { .. }
        | Event::NodeAvoided { .. }
        | Event::Stopped
        | Event::TargetChanged { .. }
        | Event::Waiting { .. } => Level::Info,
        // What leads to them has been told, or the watcher says it with more particulars.
        Event::ExecutorDeleted { .. }
        | Event::ExecutorDraining { .. }
        // The application's own words: whoever wants them reads the events.
        | Event::ExecutorLog { .. }
        | Event::ExecutorRequested { .. }
        | Event::ExecutorRunning { .. }
        | Event::Started
        | Event::Stopping
        | Event::WatchRestarted { .. } => Level::Debug,
    }
}

/// True for what is over in a moment as a rule.
fn is_passing(waiting: Waiting) -> bool {
    match waiting {
        Waiting::FirstList | Waiting::Ids | Waiting::InFlight | Waiting::StaleSnapshot => true,
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

fn words(event: &Event) -> String {
    match event {
        Event::BudgetExhausted { budget } => {
            format!("more executors were lost than the failure budget `{}` allows", budget.as_str())
        }
        Event::CreateRefused { group, cause, message } => {
            format!("group {group}: the server refuses executors ({cause}): {message}")
        }
        Event::ExecutorDeleted { subject, cause } => {
            format!("executor {} is gone ({}): {}", subject.id, cause.as_str(), subject.pod)
        }
        Event::ExecutorDraining { subject, cause, .. } => {
            format!("executor {} is to end ({}): {}", subject.id, cause.as_str(), subject.pod)
        }
        Event::ExecutorLog { subject, lines, message } => {
            let n = lines.len();
            let message = message.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            format!("executor {}: {n} lines of its log are in the events{message}", subject.id)
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
            format!("executor {} runs on {node}: {}", subject.id, subject.pod)
        }
        Event::MemoryGrown { subject, memory } => {
            let (id, group) = (subject.id, &subject.group);
            format!("group {group}: one ran out of memory: executor {id} gets {memory}")
        }
        Event::NodeAvoided { node, reason, .. } => {
            let reason = reason.as_str();
            format!(
                "node {node} loses executors ({reason}): new ones keep away from it for a while"
            )
        }
        Event::Missed { count } => format!("{count} events were dropped for a slow reader"),
        Event::Started => "started".to_owned(),
        Event::Stopped => "stopped".to_owned(),
        Event::Stopping => "stopping".to_owned(),
        Event::TargetChanged { group, target } => format!("group {group}: target {target}"),
        Event::Waiting { group, waiting, message, .. } => {
            let message = message.as_deref().map_or_else(String::new, |words| format!(": {words}"));
            format!("group {group}: waiting: {}{message}", waiting.as_str())
        }
        Event::WatchRestarted { cause } => format!("watch restarted: {cause}"),
    }
}

/// Why the run ends.
#[must_use]
pub fn verdict(verdict: &RunVerdict) -> String {
    match verdict {
        RunVerdict::BudgetExhausted(budget) => {
            format!("the failure budget `{}` is spent: ending the application", budget.as_str())
        }
        RunVerdict::DriverSilent { silence_ms } => {
            let seconds = silence_ms.div_ceil(1_000);
            format!("the driver made no call for {seconds} s (driver.silence): ending")
        }
        RunVerdict::DriverNotStarted { message } => message.clone(),
        RunVerdict::NotAllowed { message } => {
            format!(
                "the API server does not allow it: {message}; deploy/rbac.yaml lists the rights \
                 that are needed, --namespace says where"
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
    fn a_flood_of_losses_is_counted_and_then_told() {
        let mut narrator = Narrator { n_lost: LOSS_LINES_MAX + 5, ..Narrator::default() };
        narrator.end_window(Millis(LOSS_WINDOW_MS - 1));
        assert_eq!(narrator.n_lost, LOSS_LINES_MAX + 5);
        narrator.end_window(Millis(LOSS_WINDOW_MS));
        assert_eq!((narrator.n_lost, narrator.window_began), (0, Millis(LOSS_WINDOW_MS)));
    }

    #[test]
    fn a_target_that_is_reached_is_said_once() {
        let mut group = sample().groups.remove(0);
        (group.target, group.running) = (3, 2);
        let mut narrator = Narrator::default();
        let mut said = |running, target| {
            (group.running, group.target) = (running, target);
            narrator.groups(std::slice::from_ref(&group), Millis(0));
            narrator.reached.get(&group.group).copied()
        };
        assert_eq!(said(2, 3), None);
        assert_eq!(said(3, 3), Some(3));
        // One that goes and comes again is no news; another target is.
        assert_eq!(said(2, 3), Some(3));
        assert_eq!(said(4, 4), Some(4));
        narrator.groups(&[], Millis(1));
        assert!(narrator.reached.is_empty(), "a group that is gone is forgotten");
    }

    #[test]
    fn what_passes_by_itself_is_not_said_to_people() {
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
