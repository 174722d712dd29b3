//! Log lines for events and verdicts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use log::{Level, info, warn};

use posse_base::text::sanitize;
use posse_base::time::Millis;
use posse_core::model::action::RunVerdict;
use posse_core::model::event::{
    ClusterEvent, Event, ExecutorEvent, Exhaustion, GroupEvent, LossReason, RunEvent,
};
use posse_core::model::ids::GroupName;
use posse_core::model::status::GroupStatus;
use posse_core::model::waiting::{GroupWait, RESUMED_MS, RunWait, ServerWait, Waiting};
use posse_wire::control::event::describe_exhaustion;
use posse_wire::control::event_text::{log_line, wait_text};
use posse_wire::time::Epoch;

/// Losses logged one by one within `LOSS_WINDOW_MS`; further ones are only counted.
const LOSS_LINES_MAX: u32 = 10;
const LOSS_WINDOW_MS: u64 = 10_000;
/// The same reason for a refusal is logged again after this time.
const TOLD_AGAIN_MS: u64 = 60_000;
/// A wait that goes on is logged again after this time.
const WAIT_TOLD_AGAIN_MS: u64 = 300_000;
/// The longest line of an executor that is shown, in bytes.
const WRITTEN_BYTES_MAX: usize = 400;

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
    /// What each group waits for.
    waits: BTreeMap<GroupName, Wait>,
    /// The last lines of failed executors are shown. Only with the embedded cluster: elsewhere the log of posse is
    /// kept and read by others, and an application's lines may contain secrets.
    shows_lines: bool,
    /// The groups of which a failed executor's last lines were shown.
    shown: BTreeSet<GroupName>,
    /// The run is ending.
    is_stopping: bool,
    /// The driver warns of its failed tasks.
    driver_tells_failures: bool,
}

/// The wait of a group.
#[derive(Debug)]
struct Wait {
    waiting: Waiting,
    since: Millis,
    /// When it was logged last.
    told: Millis,
    /// When it was over, if it is.
    over: Option<Millis>,
}

impl EventLogger {
    /// `is_embedded`: the cluster is the embedded one of this run. `driver_tells_failures`: the driver warns
    /// of each task that failed, and prints what it wrote.
    pub fn new(is_embedded: bool, driver_tells_failures: bool) -> Self {
        Self {
            shows_lines: is_embedded && !driver_tells_failures,
            driver_tells_failures,
            ..Self::default()
        }
    }

    /// A signal has asked for the end. Executors may end by it too, and in a way that looks like a failure.
    pub fn on_stop_signal(&mut self) {
        self.is_stopping = true;
    }

    pub fn log_event(&mut self, event: &Event, now: Millis) {
        self.end_window(now);
        let is_loss = matches!(event, Event::Executor(_, ExecutorEvent::Lost { .. }));
        self.n_lost = self.n_lost.saturating_add(is_loss.into());
        self.is_stopping |= matches!(event, Event::Run(RunEvent::Stopping));
        let is_foreign = matches!(event, Event::Cluster(ClusterEvent::ForeignPod { .. }));
        self.n_foreign = self.n_foreign.saturating_add(is_foreign.into());
        let is_quiet =
            if is_foreign { self.n_foreign > LOSS_LINES_MAX } else { self.hides_losses() };
        let is_told = self.is_told(event, now);
        let level = match (level(event, is_quiet), is_loss && self.driver_tells_failures) {
            // Why is still worth a line: the task may run again.
            (Level::Warn, true) => Level::Info,
            (level, _) => level,
        };
        log::log!(level, "{}", log_line(event, is_told, now, epoch(now)));
        for line in self.last_lines(event) {
            warn!("{line}");
        }
    }

    fn hides_losses(&self) -> bool {
        self.is_stopping || self.n_lost > LOSS_LINES_MAX
    }

    /// What an executor wrote last, if it is the first of its group that failed: an exit code alone does
    /// not say why nothing works.
    fn last_lines(&mut self, event: &Event) -> Vec<String> {
        let Event::Executor(subject, ExecutorEvent::Log { lines, .. }) = event else {
            return Vec::new();
        };
        if !self.shows_lines || lines.is_empty() || !self.shown.insert(subject.group.clone()) {
            return Vec::new();
        }
        let last = lines.iter().skip(lines.len().saturating_sub(LAST_LINES_MAX));
        let shown = |line: &String| {
            format!("executor {} wrote: {}", subject.id, sanitize(line, WRITTEN_BYTES_MAX))
        };
        last.map(shown).collect()
    }

    /// True if the same refusal was logged a moment ago: one rule of the cluster refuses the pods of
    /// all groups, and its reason may be long.
    fn is_told(&mut self, event: &Event, now: Millis) -> bool {
        let (Event::Group(_, GroupEvent::CreateRefused { message, .. })
        | Event::Group(_, GroupEvent::Waiting { message: Some(message), .. })) = event
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

    /// Logs when a wait of a group is over or goes on and on, and when all executors of a group run.
    pub fn log_groups(&mut self, groups: impl Iterator<Item = GroupStatus> + Clone, now: Millis) {
        self.end_window(now);
        let mut n_groups = 0;
        for status in groups.clone() {
            n_groups += 1;
            if let Some(line) = self.wait_line(&status, now) {
                info!("{line}");
            }
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
        let GroupStatus { group, target, wanted, running, .. } = status;
        if running != wanted || self.reached.get(group) == Some(target) {
            return;
        }
        self.reached.insert(group.clone(), *target);
        match wanted {
            0 => {}
            1 => info!("group {group}: its executor is running"),
            _ => info!("group {group}: all {wanted} executors are running"),
        }
    }

    /// What a log says of the wait of a group: that it is over, or how long it lasts.
    fn wait_line(&mut self, status: &GroupStatus, now: Millis) -> Option<String> {
        let GroupStatus { group, waiting, since, .. } = status;
        let waits = waiting.filter(|waiting| !is_brief(*waiting)).zip(*since);
        match (self.waits.get_mut(group), waits) {
            (Some(wait), Some(waits)) if (wait.waiting, wait.since) == waits => {
                wait.over = None;
                if now.since(wait.told) < WAIT_TOLD_AGAIN_MS {
                    return None;
                }
                wait.told = now;
                let minutes = now.since(wait.since) / 60_000;
                let what = wait_text(wait.waiting);
                Some(format!("group {group}: still waiting for {what}, after {minutes} min"))
            }
            (_, Some((waiting, since))) => {
                self.waits.insert(group.clone(), Wait { waiting, since, told: now, over: None });
                None
            }
            (wait, None) => {
                let over = *wait?.over.get_or_insert(now);
                if now.since(over) < RESUMED_MS {
                    return None;
                }
                let Wait { waiting, since, .. } = self.waits.remove(group)?;
                let (what, s) = (wait_text(waiting), over.since(since).div_ceil(1_000));
                Some(format!("group {group}: no longer waiting for {what}, after {s} s"))
            }
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

/// The wall clock may be set while the run lives.
fn epoch(now: Millis) -> Epoch {
    let began = SystemTime::now().checked_sub(Duration::from_millis(now.0));
    Epoch(began.unwrap_or(SystemTime::UNIX_EPOCH))
}

/// `is_quiet`: there were many such events within this window, or the run is ending.
fn level(event: &Event, is_quiet: bool) -> Level {
    match event {
        Event::Run(event) => match event {
            RunEvent::BudgetExhausted { .. }
            | RunEvent::CredentialsFailed { .. }
            | RunEvent::Missed { .. } => Level::Warn,
            RunEvent::Adopted { .. }
            | RunEvent::CredentialsRenewed { .. }
            | RunEvent::Stopped { .. }
            | RunEvent::TookOver(_) => Level::Info,
            RunEvent::Acted(_) | RunEvent::Started | RunEvent::Stopping => Level::Debug,
        },
        Event::Cluster(event) => match event {
            ClusterEvent::ForeignPod { .. } if is_quiet => Level::Debug,
            ClusterEvent::ForeignPod { .. } | ClusterEvent::ServerUnavailable { .. } => Level::Warn,
            ClusterEvent::NodeAvoided { .. } | ClusterEvent::ServerAvailable { .. } => Level::Info,
            // The watcher logs more details.
            ClusterEvent::WatchRestarted { .. } => Level::Debug,
        },
        Event::Group(_, event) => match event {
            GroupEvent::CreateRefused { .. } | GroupEvent::Unprotected { .. } => Level::Warn,
            GroupEvent::Waiting { waiting, .. } if is_brief(*waiting) => Level::Debug,
            GroupEvent::GangGivenBack { .. }
            | GroupEvent::GangRunning { .. }
            | GroupEvent::Restarted { .. }
            | GroupEvent::TargetChanged { .. }
            | GroupEvent::Waiting { .. } => Level::Info,
            GroupEvent::TaskEnded { .. } => Level::Debug,
        },
        Event::Executor(_, event) => match event {
            ExecutorEvent::Lost { .. } if is_quiet => Level::Debug,
            // Somebody asked for that, or it was its own end.
            ExecutorEvent::Lost {
                reason: LossReason::Killed | LossReason::Completed,
                ..
            } => Level::Info,
            ExecutorEvent::Lost { .. } => Level::Warn,
            ExecutorEvent::MemoryGrown { .. } | ExecutorEvent::SlotSkipped { .. } => Level::Info,
            // The loss that follows is logged, with the same message.
            ExecutorEvent::Ending { .. }
            // Their causes were logged already.
            | ExecutorEvent::Completed { .. }
            | ExecutorEvent::Deleted { .. }
            | ExecutorEvent::Draining { .. }
            // Lines of the application's own log; they are in the events.
            | ExecutorEvent::Log { .. }
            | ExecutorEvent::Ready
            | ExecutorEvent::Requested
            | ExecutorEvent::Running { .. } => Level::Debug,
        },
    }
}

/// True for reasons that usually last only a moment.
fn is_brief(waiting: Waiting) -> bool {
    match waiting {
        Waiting::Run(wait) => match wait {
            RunWait::FirstList | RunWait::Ids | RunWait::StaleSnapshot | RunWait::Stopping => true,
            RunWait::Credentials | RunWait::DriverReady | RunWait::Lease => false,
        },
        Waiting::Server(wait) => wait == ServerWait::InFlight,
        Waiting::Group(wait) => wait == GroupWait::Max,
        Waiting::Start(_) => false,
    }
}

/// Why the run ends, as a sentence.
pub fn describe_verdict(verdict: &RunVerdict) -> String {
    match verdict {
        RunVerdict::AllEnded { n_given_up: 0 } => "all work is done: ending".to_owned(),
        RunVerdict::AllEnded { n_given_up } => {
            format!("all work has ended, but {n_given_up} of it failed for good: ending")
        }
        RunVerdict::BudgetExhausted { budget, why: Exhaustion::Losses } => {
            format!("the failure budget `{}` is exhausted: ending the application", budget.as_str())
        }
        RunVerdict::BudgetExhausted { budget, why } => {
            format!("{}: ending the application", describe_exhaustion(*budget, why))
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
    use posse_core::model::event::Subject;
    use posse_core::model::ids::ExecutorId;
    use posse_core::model::waiting::StartWait;
    use posse_testing::sample_status;

    #[test]
    fn a_flood_of_losses_is_counted_and_then_logged() {
        let mut logger = EventLogger { n_lost: LOSS_LINES_MAX + 5, ..EventLogger::default() };
        logger.end_window(Millis(LOSS_WINDOW_MS - 1));
        assert_eq!(logger.n_lost, LOSS_LINES_MAX + 5);
        logger.end_window(Millis(LOSS_WINDOW_MS));
        assert_eq!((logger.n_lost, logger.window_began), (0, Millis(LOSS_WINDOW_MS)));
    }

    /// Ctrl-C may end an executor too, before posse deletes it.
    #[test]
    fn losses_of_a_run_that_ends_are_no_news() {
        let stopping = Event::Run(RunEvent::Stopping);
        let steps: [fn(&mut EventLogger, &Event); 2] = [
            |logger, _| logger.on_stop_signal(),
            |logger, stopping| logger.log_event(stopping, Millis(1)),
        ];
        for step in steps {
            let mut logger = EventLogger::default();
            logger.log_event(&Event::Run(RunEvent::Started), Millis(0));
            assert!(!logger.hides_losses());
            step(&mut logger, &stopping);
            assert!(logger.hides_losses());
        }
    }

    #[test]
    fn a_reached_target_is_logged_once() {
        let mut group = sample_status().groups.remove(0);
        (group.target, group.running) = (3, 2);
        let mut logger = EventLogger::default();
        let mut logged = |running, target| {
            (group.running, group.target, group.wanted) = (running, target, target);
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
    fn a_wait_that_goes_on_is_told_again_with_its_age() {
        let mut group = sample_status().groups.remove(0);
        let unschedulable = Some(Waiting::Start(StartWait::Unschedulable));
        let mut logger = EventLogger::default();
        for (minute, waiting, want) in [
            (0, unschedulable, None),
            (4, unschedulable, None),
            (
                5,
                unschedulable,
                Some("still waiting for the scheduler (unschedulable), after 5 min"),
            ),
            (9, unschedulable, None),
            (
                11,
                unschedulable,
                Some("still waiting for the scheduler (unschedulable), after 11 min"),
            ),
            (12, None, None),
            (12, unschedulable, None),
            (12, None, None),
            (13, None, Some("no longer waiting for the scheduler (unschedulable), after 720 s")),
            (14, None, None),
        ] {
            (group.waiting, group.since) = (waiting, waiting.map(|_| Millis(0)));
            let line = logger.wait_line(&group, Millis(minute * 60_000));
            let want = want.map(|what| format!("group {}: {what}", group.group));
            assert_eq!(line, want, "minute {minute}");
        }
    }

    #[test]
    fn one_refusal_of_several_groups_is_told_once() {
        let mut logger = EventLogger::default();
        let mut said = |group: &str, why: &str, s: u64| {
            let message = format!("pods \"w-{group}-1\" is forbidden: {why}");
            let event = Event::Group(
                group.into(),
                GroupEvent::CreateRefused { cause: "permanent", message },
            );
            let is_told = logger.is_told(&event, Millis(s * 1_000));
            log_line(&event, is_told, Millis(s * 1_000), Epoch(SystemTime::UNIX_EPOCH))
        };
        let first = said("a", "violates PodSecurity", 0);
        assert!(first.ends_with("permanent: pods \"w-a-1\" is forbidden: violates PodSecurity"));
        let again = "group b: create refused: permanent: for the same reason";
        assert_eq!(said("b", "violates PodSecurity", 1), again);
        assert!(said("c", "another reason", 2).ends_with("another reason"));
        assert!(said("c", "another reason", 62).ends_with("another reason"), "much later");
    }

    #[test]
    fn the_first_failure_of_a_group_shows_its_last_lines() {
        let mut logger = EventLogger::new(true, false);
        let log_of = |group: &str, lines: &[&str]| {
            let subject =
                Subject { group: group.into(), id: ExecutorId(7), uid: None, pod: "p".to_owned() };
            let lines = lines.iter().map(|&line| line.to_owned()).collect();
            Event::Executor(subject, ExecutorEvent::Log { lines, message: None })
        };
        let elsewhere = EventLogger::new(false, false).last_lines(&log_of("a", &["one"]));
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
    fn brief_waits_are_logged_at_debug_level() {
        let waiting = |waiting| {
            Event::Group("g".into(), GroupEvent::Waiting { waiting, until: None, message: None })
        };
        for (event, is_flood, want) in [
            (waiting(Waiting::Run(RunWait::FirstList)), false, Level::Debug),
            (waiting(Waiting::Server(ServerWait::Quota)), false, Level::Info),
            (Event::Run(RunEvent::Stopping), false, Level::Debug),
            (Event::Run(RunEvent::Missed { count: 1 }), true, Level::Warn),
        ] {
            assert_eq!(level(&event, is_flood), want, "{event:?}");
        }
    }
}
