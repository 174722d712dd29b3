//! Owns the words for the log: what a person reads of events and verdicts. Decides nothing.

use log::{info, warn};

use crate::core::action::Verdict;
use crate::core::event::Event;

/// Writes one line about an event, where it is worth one.
pub fn log(event: &Event) {
    match event {
        Event::BudgetExhausted { budget } => {
            warn!("more executors were lost than the failure budget `{}` allows", budget.as_str());
        }
        Event::CreateRefused { group, cause, message } => {
            warn!("group {group}: the server refuses executors ({cause}): {message}");
        }
        Event::ExecutorDeleted { subject, cause } => {
            log::debug!("executor {} is gone ({}): {}", subject.id, cause.as_str(), subject.pod);
        }
        Event::ExecutorLost { subject, node, reason, exit_code, message } => {
            let node = node.as_deref().unwrap_or("no node");
            let code = exit_code.map_or_else(String::new, |code| format!(", exit code {code}"));
            let (id, pod, reason) = (subject.id, &subject.pod, reason.as_str());
            info!("executor {id} lost: {reason}{code}: {pod} on {node}: {message}");
        }
        Event::ExecutorRequested { subject } => {
            log::debug!("executor {} requested: {}", subject.id, subject.pod);
        }
        Event::ExecutorRunning { subject, node, .. } => {
            let node = node.as_deref().unwrap_or("an unknown node");
            log::debug!("executor {} runs on {node}: {}", subject.id, subject.pod);
        }
        Event::Missed { count } => warn!("{count} events were dropped for a slow reader"),
        Event::Started => info!("started"),
        Event::Stopped => info!("stopped"),
        Event::Stopping => info!("stopping"),
        Event::TargetChanged { group, target } => info!("group {group}: target {target}"),
        Event::Waiting { group, waiting, .. } => {
            info!("group {group}: waiting: {}", waiting.as_str());
        }
        // The watcher says it with more particulars.
        Event::WatchRestarted { cause } => log::debug!("watch restarted: {cause}"),
    }
}

/// Why the run ends.
#[must_use]
pub fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::BudgetSpent(budget) => {
            format!("the failure budget `{}` is spent: ending the application", budget.as_str())
        }
        Verdict::DriverNotStarted { message } => message.clone(),
        Verdict::NotAllowed { message } => {
            format!("the API server does not allow it: {message}")
        }
        Verdict::NotReachable { message } => {
            format!("the API server cannot be reached: {message}")
        }
        Verdict::TemplateRefused { group, message } => {
            format!("the API server refuses the template of group {group}: {message}")
        }
    }
}
