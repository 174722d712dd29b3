//! The progress of a run, as log lines: one each time something has changed.

use std::collections::BTreeMap;

use posse_base::time::Millis;
use posse_core::model::status::GroupStatus;

/// The target of these log lines, so that the logger can show them at any level. Like those of the crates: the
/// logger reads `posse::` in a filter as `posse_`.
pub const LOG_TARGET: &str = "posse_progress";

/// At most one line a second.
const INTERVAL_MS_MIN: u64 = 1_000;

/// Logs a line when something has changed.
#[derive(Debug)]
pub struct Progress {
    app: String,
    line: String,
    logged_at: Option<Millis>,
}

/// The values of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub running: u32,
    /// How many executors there should be: the targets, and those for tasks.
    pub wanted: u32,
    /// Requested or pending.
    pub pending: u32,
    /// Since the start.
    pub lost: u64,
    /// The executors whose work is done.
    pub completed: u32,
    /// How many are to end so, of the groups that have such a number.
    pub completions: u32,
    /// What groups wait for.
    pub waiting: Option<String>,
    /// The API server does not answer.
    pub is_outage: bool,
    /// What a stop waits for.
    pub stopping: Option<Stopping>,
}

/// What a stop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopping {
    /// The driver, before it is killed.
    Driver,
    /// The executors.
    Executors { remaining: u32 },
}

impl Progress {
    /// Of the run of this application.
    pub fn new(app: &str) -> Self {
        Self { app: app.to_owned(), line: String::new(), logged_at: None }
    }

    /// Logs the line if it differs from the last one. Returns when to call again, if that is too early
    /// now.
    pub fn show(&mut self, facts: impl FnOnce() -> Facts, now: Millis) -> Option<Millis> {
        let line_at = self.logged_at.map(|at| at.after(INTERVAL_MS_MIN));
        if let Some(line_at) = line_at.filter(|at| now < *at) {
            return Some(line_at);
        }
        let line = format!("{}  {}", self.app, facts().words().join("  "));
        if line != self.line {
            log::info!(target: LOG_TARGET, "{line}");
            (self.line, self.logged_at) = (line, Some(now));
        }
        None
    }
}

impl Facts {
    /// The sums over all groups.
    pub fn new(groups: &[GroupStatus], lost: u64, is_outage: bool) -> Self {
        let sum = |count: fn(&GroupStatus) -> u32| {
            groups.iter().fold(0_u32, |sum, group| sum.saturating_add(count(group)))
        };
        Self {
            running: sum(|group| group.running),
            wanted: sum(|group| group.wanted),
            pending: sum(|group| group.requested.saturating_add(group.pending)),
            lost,
            completed: sum(|group| group.completed),
            completions: sum(|group| group.completions.unwrap_or(0)),
            waiting: waiting(groups),
            is_outage,
            stopping: None,
        }
    }

    fn words(&self) -> Vec<String> {
        let Self { running, wanted, pending, lost, completed, completions, .. } = self;
        let mut words = vec![match self.stopping {
            None if running > wanted => format!("running {running}, target {wanted}"),
            None => format!("running {running}/{wanted}"),
            Some(Stopping::Driver) => "stopping: waits for the driver".to_owned(),
            Some(Stopping::Executors { remaining: 1 }) => {
                "stopping: waits for 1 executor".to_owned()
            }
            Some(Stopping::Executors { remaining }) => {
                format!("stopping: waits for {remaining} executors")
            }
        }];
        match (completed, completions) {
            (0, 0) => {}
            (n, 0) => words.push(format!("completed {n}")),
            (n, all) => words.push(format!("completed {n}/{all}")),
        }
        if *pending > 0 {
            words.push(format!("pending {pending}"));
        }
        if *lost > 0 {
            words.push(format!("lost {lost}"));
        }
        match (&self.waiting, self.stopping) {
            (Some(reasons), None) if !self.is_outage => words.push(format!("waiting: {reasons}")),
            (_, Some(_)) => words.push("Ctrl-C again to force".to_owned()),
            (_, None) => {}
        }
        if self.is_outage {
            words.push("server unreachable".to_owned());
        }
        words
    }
}

/// `quota`, `quota (big)`, `backoff (2 groups), quota (3 groups)`.
fn waiting(groups: &[GroupStatus]) -> Option<String> {
    let mut by_reason: BTreeMap<&str, Vec<&GroupStatus>> = BTreeMap::new();
    for group in groups {
        // The normal pace is nothing that a person could wait for.
        if let Some(waiting) = group.waiting.filter(|waiting| !waiting.is_pace()) {
            by_reason.entry(waiting.describe().0).or_default().push(group);
        }
    }
    let text = |(what, waiting): (&str, Vec<&GroupStatus>)| match waiting.as_slice() {
        [_] if groups.len() == 1 => what.to_owned(),
        [one] => format!("{what} ({})", one.group),
        several => format!("{what} ({} groups)", several.len()),
    };
    let reasons: Vec<String> = by_reason.into_iter().map(text).collect();
    (!reasons.is_empty()).then(|| reasons.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::model::waiting::{RunWait, ServerWait, Waiting};
    use posse_testing::sample_status;

    #[test]
    fn only_changes_are_logged_and_at_most_one_a_second() {
        let mut progress = Progress::new("w");
        let facts = |running| Facts { running, wanted: 9, ..Facts::default() };
        assert_eq!(progress.show(|| facts(1), Millis(50)), None);
        assert_eq!(
            (progress.line.as_str(), progress.logged_at),
            ("w  running 1/9", Some(Millis(50)))
        );
        assert_eq!(progress.show(|| facts(2), Millis(1_049)), Some(Millis(1_050)));
        assert_eq!(progress.line, "w  running 1/9");
        assert_eq!(progress.show(|| facts(2), Millis(1_050)), None);
        assert_eq!(progress.line, "w  running 2/9");
        assert_eq!(progress.show(|| facts(2), Millis(3_000)), None);
        assert_eq!(progress.logged_at, Some(Millis(1_050)));
    }

    #[test]
    fn groups_are_summed_up() {
        let status = sample_status();
        let both = Facts::new(&status.groups, 4, false);
        let want = Facts {
            running: 14,
            wanted: 20,
            pending: 6,
            lost: 4,
            completed: 57,
            completions: 100,
            waiting: Some("quota (default)".to_owned()),
            is_outage: false,
            stopping: None,
        };
        assert_eq!(both, want);
        let one = Facts::new(&status.groups[..1], 0, false);
        assert_eq!(one.waiting.as_deref(), Some("quota"));
        assert_eq!(Facts::new(&status.groups[1..], 0, false).waiting, None);
        let wait = |waiting| GroupStatus { waiting, ..status.groups[0].clone() };
        let (quota, first) = (
            wait(Some(Waiting::Server(ServerWait::Quota))),
            wait(Some(Waiting::Run(RunWait::FirstList))),
        );
        let several = [quota.clone(), first, quota, wait(None)];
        let reasons = "quota (2 groups), the first list (default)";
        assert_eq!(waiting(&several).as_deref(), Some(reasons));
    }

    #[test]
    fn a_line_has_what_matters_now() {
        let idle = Facts { running: 10, wanted: 10, ..Facts::default() };
        let waiting = Some("backoff (2 groups), quota (big)".to_owned());
        let busy = Facts { running: 8, pending: 2, lost: 13, waiting, ..idle.clone() };
        let stop = |stopping| Facts { stopping: Some(stopping), ..busy.clone() };
        for (facts, want) in [
            (idle.clone(), "running 10/10"),
            (
                Facts { completed: 57, completions: 100, ..idle.clone() },
                "running 10/10  completed 57/100",
            ),
            (Facts { completed: 5, ..idle.clone() }, "running 10/10  completed 5"),
            (Facts { running: 6, wanted: 1, ..idle }, "running 6, target 1"),
            (
                busy.clone(),
                "running 8/10  pending 2  lost 13  waiting: backoff (2 groups), quota (big)",
            ),
            (
                Facts { is_outage: true, ..busy.clone() },
                "running 8/10  pending 2  lost 13  server unreachable",
            ),
            (
                stop(Stopping::Driver),
                "stopping: waits for the driver  pending 2  lost 13  Ctrl-C again to force",
            ),
            (
                Facts { is_outage: true, ..stop(Stopping::Executors { remaining: 12 }) },
                "stopping: waits for 12 executors  pending 2  lost 13  Ctrl-C again to force  \
                 server unreachable",
            ),
        ] {
            assert_eq!(facts.words().join("  "), want);
        }
    }
}
