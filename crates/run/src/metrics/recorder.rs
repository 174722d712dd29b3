//! Counts what events, messages and turns say. The labels are groups and words of posse: nothing grows
//! with the number of pods.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use posse_base::time::Millis;
use posse_core::model::event::{
    Budget, ClusterEvent, Event, ExecutorEvent, LossReason, RestartKind, RunEvent,
};
use posse_core::model::ids::GroupName;
use posse_core::model::input::{Input, PodAnswer};
use posse_core::model::status::GroupStatus;
use posse_core::reconciler::Reconciler;
use posse_core::state::budgets::BudgetStatus;
use posse_wire::control::exposition::Histogram;

/// The upper bounds of starts and replacements, in seconds.
const START_BOUNDS_S: &[f64] =
    &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];
/// The upper bounds of turns, in seconds.
const TURN_BOUNDS_S: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0];

/// The counters and the state at the last turn.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    counted: Counted,
    /// For each group, when executors were lost that no running executor has replaced yet; oldest
    /// first. At most as many as the group lacks.
    open_losses: BTreeMap<GroupName, VecDeque<Millis>>,
}

/// What a scrape shows.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    pub groups: BTreeMap<GroupName, GroupCounts>,
    pub losses: BTreeMap<(LossReason, Option<Budget>), u64>,
    /// The answers to creates by their outcome.
    pub creates: BTreeMap<&'static str, u64>,
    pub restarts: BTreeMap<RestartKind, u64>,
    pub budgets: Vec<BudgetStatus>,
    pub n_avoided_nodes: usize,
    /// When each entry of `credentials` was last renewed.
    pub credentials: BTreeMap<String, Millis>,
    /// When the API server last answered anything.
    pub heard_at: Option<Millis>,
    /// Since when the API server does not answer.
    pub outage_since: Option<Millis>,
    /// This pod acts; before that it waits for its Lease.
    pub leads: bool,
    /// From whom it has taken over.
    pub takeover_s: Option<f64>,
    pub n_messages: u64,
    /// The messages in the inbox after the last turn.
    pub n_waiting: usize,
    pub turns: Histogram,
}

impl Default for Counted {
    fn default() -> Self {
        Self {
            groups: BTreeMap::new(),
            losses: BTreeMap::new(),
            creates: BTreeMap::new(),
            restarts: BTreeMap::new(),
            budgets: Vec::new(),
            n_avoided_nodes: 0,
            credentials: BTreeMap::new(),
            heard_at: None,
            outage_since: None,
            leads: false,
            takeover_s: None,
            n_messages: 0,
            n_waiting: 0,
            turns: Histogram::new(TURN_BOUNDS_S),
        }
    }
}

/// One group.
#[derive(Clone, Debug)]
pub(super) struct GroupCounts {
    /// At the last turn; none before the first one.
    pub status: Option<GroupStatus>,
    /// From the request to the running container.
    pub starts: Histogram,
    /// From a loss to the running successor.
    pub replacements: Histogram,
}

impl GroupCounts {
    fn new() -> Self {
        let (starts, replacements) =
            (Histogram::new(START_BOUNDS_S), Histogram::new(START_BOUNDS_S));
        Self { status: None, starts, replacements }
    }
}

/// The outcome of a create that made an executor's pod.
pub(super) const CREATED: &str = "created";
/// The outcome of a create whose pod came back without posse's labels.
pub(super) const FOREIGN: &str = "foreign";

impl Recorder {
    pub(super) fn counted(&self) -> &Counted {
        &self.counted
    }

    pub(super) fn on_message(&mut self, input: Option<&Input>) {
        self.counted.n_messages += 1;
        if let Some(Input::Created { answer, .. }) = input {
            let outcome = match answer {
                Ok(PodAnswer::Ours(_)) => CREATED,
                Ok(PodAnswer::Foreign(_)) => FOREIGN,
                Err(refusal) => refusal.class.as_str(),
            };
            *self.counted.creates.entry(outcome).or_default() += 1;
        }
    }

    pub(super) fn on_event(&mut self, event: &Event, now: Millis) {
        match event {
            Event::Executor(subject, ExecutorEvent::Lost { reason, budget, .. }) => {
                *self.counted.losses.entry((*reason, *budget)).or_default() += 1;
                self.open_losses.entry(subject.group.clone()).or_default().push_back(now);
            }
            Event::Executor(
                subject,
                ExecutorEvent::Running { requested_at: Some(requested_at), .. },
            ) => {
                self.on_running(&subject.group, *requested_at, now);
            }
            Event::Cluster(ClusterEvent::WatchRestarted { kind, .. }) => {
                *self.counted.restarts.entry(*kind).or_default() += 1;
            }
            Event::Run(RunEvent::CredentialsRenewed { name, .. }) => {
                self.counted.credentials.insert(name.clone(), now);
            }
            Event::Run(RunEvent::Started) => self.counted.leads = true,
            Event::Run(RunEvent::TookOver(from)) => {
                self.counted.takeover_s = Some(from.seconds());
            }
            Event::Run(_) | Event::Cluster(_) | Event::Group(..) | Event::Executor(..) => {}
        }
    }

    fn on_running(&mut self, group: &GroupName, requested_at: Millis, now: Millis) {
        let losses = self.open_losses.get_mut(group);
        // An executor that was requested before a loss does not replace it.
        let replaced = losses.and_then(|losses| losses.pop_front_if(|at| *at <= requested_at));
        let counts = self.group(group);
        counts.starts.observe(seconds(now.since(requested_at)));
        if let Some(lost_at) = replaced {
            counts.replacements.observe(seconds(now.since(lost_at)));
        }
    }

    pub(super) fn on_turn(
        &mut self,
        core: &Reconciler,
        took: Duration,
        n_waiting: usize,
        now: Millis,
    ) {
        self.on_groups(core.brief_group_statuses());
        let counted = &mut self.counted;
        counted.turns.observe(took.as_secs_f64());
        counted.n_waiting = n_waiting;
        counted.budgets.clear();
        counted.budgets.extend(core.budgets(now));
        counted.n_avoided_nodes = core.n_avoided_nodes();
        counted.heard_at = core.server_heard_at();
        counted.outage_since = core.outage().map(|outage| outage.since);
    }

    fn on_groups(&mut self, statuses: impl Iterator<Item = GroupStatus> + Clone) {
        let mut n_groups = 0;
        for status in statuses.clone() {
            n_groups += 1;
            if let Some(losses) = self.open_losses.get_mut(&status.group) {
                // A loss that is not replaced, because the target fell, waits for nothing.
                losses.truncate(status.wanted.saturating_sub(status.running) as usize);
            }
            let counts = self.group(&status.group);
            counts.status = Some(status);
        }
        if self.counted.groups.len() > n_groups {
            let is_there = |name: &GroupName| statuses.clone().any(|status| status.group == *name);
            self.counted.groups.retain(|name, _| is_there(name));
            self.open_losses.retain(|name, _| is_there(name));
        }
    }

    fn group(&mut self, name: &GroupName) -> &mut GroupCounts {
        // Not `entry`, which takes a copy of the name each time.
        if !self.counted.groups.contains_key(name) {
            self.counted.groups.insert(name.clone(), GroupCounts::new());
        }
        self.counted.groups.get_mut(name).expect("it was inserted just now")
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of one run")]
pub(super) fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::model::event::Subject;
    use posse_core::model::ids::ExecutorId;

    fn subject(group: &str) -> Subject {
        Subject { group: group.into(), id: ExecutorId(1), uid: None, pod: "p".to_owned() }
    }

    fn lose(recorder: &mut Recorder, at: u64) {
        let event = Event::Executor(
            subject("g"),
            ExecutorEvent::Lost {
                node: None,
                reason: LossReason::OomKilled,
                budget: Some(Budget::App),
                exit_code: None,
                message: String::new(),
            },
        );
        recorder.on_event(&event, Millis(at));
    }

    fn run(recorder: &mut Recorder, requested_at: Option<u64>, at: u64) {
        let requested_at = requested_at.map(Millis);
        let event = Event::Executor(
            subject("g"),
            ExecutorEvent::Running { node: None, ip: None, host_ip: None, requested_at },
        );
        recorder.on_event(&event, Millis(at));
    }

    fn status(group: &str, target: u32, running: u32) -> GroupStatus {
        let group = group.into();
        GroupStatus { group, target, wanted: target, running, ..GroupStatus::default() }
    }

    /// The number of starts and of replacements.
    fn counts(recorder: &Recorder) -> (u64, u64) {
        let group = &recorder.counted.groups[&GroupName::from("g")];
        (group.starts.count(), group.replacements.count())
    }

    #[test]
    fn a_loss_is_replaced_by_an_executor_that_was_requested_after_it() {
        let mut recorder = Recorder::default();
        run(&mut recorder, Some(0), 500);
        run(&mut recorder, None, 600);
        assert_eq!(counts(&recorder), (1, 0), "an adopted executor has no start");
        lose(&mut recorder, 1_000);
        lose(&mut recorder, 2_000);
        run(&mut recorder, Some(900), 2_100);
        assert_eq!(counts(&recorder), (2, 0), "it was under way before the loss");
        run(&mut recorder, Some(1_000), 3_000);
        run(&mut recorder, Some(2_500), 4_000);
        run(&mut recorder, Some(2_500), 4_000);
        assert_eq!(counts(&recorder), (5, 2), "the last one is more than before");
        assert_eq!(
            recorder.counted.losses,
            BTreeMap::from([((LossReason::OomKilled, Some(Budget::App)), 2)])
        );
    }

    #[test]
    fn a_loss_that_nobody_replaces_is_forgotten() {
        let mut recorder = Recorder::default();
        for at in [1_000, 2_000, 3_000] {
            lose(&mut recorder, at);
        }
        // The target fell by two.
        recorder.on_groups([status("g", 1, 0)].into_iter());
        run(&mut recorder, Some(3_000), 4_000);
        run(&mut recorder, Some(5_000), 6_000);
        assert_eq!(counts(&recorder), (2, 1));
    }

    /// The target counts only the work that is left.
    #[test]
    fn completed_executors_hide_no_loss() {
        let mut recorder = Recorder::default();
        lose(&mut recorder, 1_000);
        recorder.on_groups([GroupStatus { completed: 60, ..status("g", 2, 1) }].into_iter());
        run(&mut recorder, Some(1_000), 2_000);
        assert_eq!(counts(&recorder), (1, 1));
    }

    #[test]
    fn a_deleted_group_is_forgotten() {
        let mut recorder = Recorder::default();
        lose(&mut recorder, 1_000);
        recorder.on_groups([status("g", 3, 1), status("h", 1, 1)].into_iter());
        assert_eq!((recorder.counted.groups.len(), recorder.open_losses.len()), (2, 1));
        recorder.on_groups([status("h", 1, 1)].into_iter());
        assert_eq!((recorder.counted.groups.len(), recorder.open_losses.len()), (1, 0));
    }
}
