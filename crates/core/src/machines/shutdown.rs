//! The state machine of a run's end: first the driver, with its grace period, then the executors.
//! Sends no signals and deletes nothing itself. A stop that cannot see the executors waits for
//! nothing, so it asks the start (`startup`) how far that has come.
//!
//! Executors that a Job owns outlive the driver's pod: a signal to the pod, or a driver that fails, ends them only if the
//! Job has no next pod.

use crate::machines::startup::{StartStep, Startup};
use crate::model::action::RunVerdict;
use crate::model::refusal::Refusal;
use crate::model::stop::{StopOrder, StopResult};
use crate::policy::driver_job::{FailedPods, PodEnd};
use posse_base::time::Millis;

/// The next step of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownStep {
    /// Ask whether the Job goes on with another pod; then call `on_job`.
    AskJob,
    /// Create no more executors.
    StopCreates,
    /// Send SIGKILL to the driver's process group: by a second signal, or because its grace period is over.
    KillDriver { is_forced: bool },
    /// Stop the executors.
    Stop(StopOrder),
    /// Stop them in a hurry.
    HurryStop { keep: bool },
    /// Stop, but wait for nothing: nothing was created yet, or the server does not answer.
    AbandonStop(StopOrder),
    /// Send SIGTERM to the driver's process group.
    TermDriver,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownOutcome {
    /// The driver's exit code as a shell reports it, unless posse killed the driver.
    pub driver: Option<u8>,
    pub verdict: Option<RunVerdict>,
    /// Another posse process holds the instance.
    pub is_taken_over: bool,
    /// A second signal ended the run without waiting for the executors.
    pub is_forced: bool,
    /// A signal was the first reason for the end.
    pub is_signalled: bool,
    /// The executors were left running.
    pub is_kept: bool,
    pub stop: StopResult,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// The driver is ending, and is killed at that time.
    DriverEnding {
        kill_at: Millis,
    },
    /// The driver was killed. The executors are stopped at that time at the latest, because a process
    /// in uninterruptible sleep (a hung network file system) ends only when its system call does.
    DriverKilled {
        stop_at: Millis,
    },
    /// The driver has ended, and the server is asked about the Job until then.
    AskingJob {
        until: Millis,
    },
    /// The executors are being ended. `is_forced`: in a hurry, by a second signal.
    Stopping {
        is_forced: bool,
    },
}

/// The Job that owns the executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// They are no Job's: they end with the driver.
    None,
    Unasked,
    Asked {
        until: Millis,
    },
    /// It has another pod, or nobody could say: the executors are the Job's, and end with it.
    GoesOn,
    Ends,
}

/// The state machine of a run's end.
#[derive(Clone, Debug)]
pub struct Shutdown {
    startup: Startup,
    phase: Phase,
    grace_ms: u64,
    keep: bool,
    job: Job,
    /// The Job's earlier pods, and how many failures it takes.
    tries: (FailedPods, u32),
    /// The driver's program failed, and may be tried again.
    is_tried_again: bool,
    has_driver: bool,
    driver_code: Option<u8>,
    /// posse ended the driver, so the driver's exit code means nothing.
    is_driver_ended_by_us: bool,
    verdict: Option<RunVerdict>,
    first_signal_at: Option<Millis>,
    is_signalled: bool,
    outcome: Option<ShutdownOutcome>,
}

/// Signals within this time count as one: a terminal and some supervisors signal both the process
/// and its group.
const SAME_SIGNAL_MS: u64 = 200;
/// How long the end of a killed driver is awaited before the executors are stopped.
const KILLED_MS: u64 = 5_000;
/// How long the server may take to say whether the Job goes on.
const JOB_MS: u64 = 5_000;
/// What a shell reports for a process that SIGKILL ended.
const KILLED_CODE: u8 = 128 + 9;

impl ShutdownOutcome {
    /// The run has ended well, and so have its executors: another process with its name is a new run. What a driver's
    /// program leaves undone when it ends with 0 it does not want.
    pub fn has_done_all(&self) -> bool {
        let is_done = match &self.verdict {
            None => {
                self.driver == Some(0) && !(self.is_kept || self.is_forced || self.is_taken_over)
            }
            verdict => *verdict == Some(RunVerdict::AllEnded { n_given_up: 0 }),
        };
        is_done && !self.is_signalled && self.stop.is_clean()
    }

    /// Another pod of the Job would find no work: what was given up is not tried again either.
    pub fn leaves_no_work(&self) -> bool {
        matches!(self.verdict, Some(RunVerdict::AllEnded { .. }))
    }
}

impl Shutdown {
    /// A run that has not begun to end. `keep`: executors are left running at the end.
    pub fn new(startup: Startup, grace_ms: u64, keep: bool) -> Self {
        Self {
            startup,
            phase: Phase::Running,
            grace_ms,
            keep,
            job: Job::None,
            tries: (FailedPods::default(), 0),
            is_tried_again: false,
            has_driver: false,
            driver_code: None,
            is_driver_ended_by_us: false,
            verdict: None,
            first_signal_at: None,
            is_signalled: false,
            outcome: None,
        }
    }

    /// The same run, whose executors are a Job's and outlive the driver's pod. `tries`: the Job's earlier pods, and how
    /// many failures it takes.
    #[must_use]
    pub fn of_job(self, tries: (FailedPods, u32)) -> Self {
        Self { job: Job::Unasked, tries, ..self }
    }

    /// The first LIST is applied.
    pub fn on_first_list(&mut self) {
        self.startup.on_first_list();
    }

    /// A LIST or a watch was refused.
    pub fn on_list_refused(&mut self, refusal: Refusal) {
        self.startup.on_refused(refusal);
    }

    /// The next step of the start; none if the end has begun.
    pub fn next_start_step(&mut self, has_credentials: bool, now: Millis) -> Option<StartStep> {
        if self.is_running() { self.startup.next(has_credentials, now) } else { None }
    }

    /// True once the step `StartStep::Listed` was given out.
    pub fn is_started(&self) -> bool {
        self.startup.is_listed()
    }

    /// The driver was started.
    pub fn on_driver_started(&mut self) {
        self.has_driver = true;
    }

    /// True until there is a reason to end.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// A SIGTERM or SIGINT, which has been passed on to the driver.
    pub fn on_signal(&mut self, now: Millis) -> Vec<ShutdownStep> {
        let first = *self.first_signal_at.get_or_insert(now);
        let is_same = self.phase != Phase::Running && now.since(first) < SAME_SIGNAL_MS;
        self.is_signalled |= self.phase == Phase::Running;
        match self.phase {
            _ if is_same => Vec::new(),
            Phase::Running if self.has_driver => {
                self.phase = Phase::DriverEnding { kill_at: now.after(self.grace_ms) };
                let ask = self.ask_job(now);
                [ShutdownStep::StopCreates].into_iter().chain(ask).collect()
            }
            Phase::Running => {
                let ask = self.ask_job(now).map(|ask| [ShutdownStep::StopCreates, ask]);
                ask.into_iter().flatten().chain(self.begin_stop()).collect()
            }
            Phase::Stopping { is_forced: true } => Vec::new(),
            Phase::AskingJob { .. }
            | Phase::DriverEnding { .. }
            | Phase::DriverKilled { .. }
            | Phase::Stopping { .. } => {
                self.phase = Phase::Stopping { is_forced: true };
                self.is_driver_ended_by_us |= self.has_driver;
                let kill = self.has_driver.then_some(ShutdownStep::KillDriver { is_forced: true });
                let hurry = ShutdownStep::HurryStop { keep: self.keeps_executors() };
                kill.into_iter().chain([hurry]).collect()
            }
        }
    }

    /// Whether the Job has another pod after this one.
    pub fn on_job(&mut self, goes_on: bool) -> Vec<ShutdownStep> {
        if !matches!(self.job, Job::Asked { .. }) {
            return Vec::new();
        }
        self.job = if goes_on { Job::GoesOn } else { Job::Ends };
        match self.phase {
            Phase::AskingJob { .. } => self.begin_stop(),
            Phase::Running
            | Phase::DriverEnding { .. }
            | Phase::DriverKilled { .. }
            | Phase::Stopping { .. } => Vec::new(),
        }
    }

    fn ask_job(&mut self, now: Millis) -> Option<ShutdownStep> {
        if self.job != Job::Unasked {
            return None;
        }
        self.job = Job::Asked { until: now.after(JOB_MS) };
        Some(ShutdownStep::AskJob)
    }

    /// The driver has ended with this exit code.
    pub fn on_driver_ended(&mut self, code: u8, now: Millis) -> Vec<ShutdownStep> {
        self.has_driver = false;
        self.driver_code = Some(code);
        match self.phase {
            Phase::Running if code != 0 => {
                let ask = self.on_failure(code, now);
                ask.into_iter().chain(self.begin_stop()).collect()
            }
            Phase::Running | Phase::DriverEnding { .. } | Phase::DriverKilled { .. } => {
                self.begin_stop()
            }
            Phase::AskingJob { .. } | Phase::Stopping { .. } => Vec::new(),
        }
    }

    pub fn on_verdict(&mut self, verdict: RunVerdict, now: Millis) -> Vec<ShutdownStep> {
        if self.phase != Phase::Running {
            return Vec::new();
        }
        // A driver that hangs has failed as one that crashes.
        let is_silent = matches!(verdict, RunVerdict::DriverSilent { .. });
        let mut steps = if is_silent { self.on_failure(KILLED_CODE, now) } else { Vec::new() };
        self.verdict = Some(verdict);
        if !self.has_driver {
            steps.extend(self.begin_stop());
            return steps;
        }
        self.is_driver_ended_by_us = true;
        self.phase = Phase::DriverEnding { kill_at: now.after(self.grace_ms) };
        if steps.is_empty() {
            steps.push(ShutdownStep::StopCreates);
        }
        steps.push(ShutdownStep::TermDriver);
        steps
    }

    /// The driver has failed. Asks the Job if there is a try left.
    fn on_failure(&mut self, code: u8, now: Millis) -> Vec<ShutdownStep> {
        let (earlier, retries) = &self.tries;
        let end = PodEnd { code, is_signalled: false, is_idle: false, has_rest: false };
        self.is_tried_again = earlier.at_end(end, *retries).is_none();
        let ask = self.is_tried_again.then(|| self.ask_job(now)).flatten();
        ask.map_or_else(Vec::new, |ask| vec![ShutdownStep::StopCreates, ask])
    }

    /// The stop of the executors has finished.
    pub fn on_stopped(&mut self, stop: StopResult, is_taken_over: bool) {
        let driver = self.driver_code.filter(|_| !self.is_driver_ended_by_us);
        let verdict = self.verdict.clone();
        let is_forced = self.phase == Phase::Stopping { is_forced: true };
        let (is_signalled, is_kept) = (self.is_signalled, self.keeps_executors());
        self.outcome = Some(ShutdownOutcome {
            driver,
            verdict,
            is_taken_over,
            is_forced,
            is_signalled,
            is_kept,
            stop,
        });
    }

    /// Does what is due.
    pub fn on_time(&mut self, now: Millis) -> Vec<ShutdownStep> {
        match self.phase {
            Phase::DriverEnding { kill_at } if kill_at <= now => {
                self.phase = Phase::DriverKilled { stop_at: now.after(KILLED_MS) };
                vec![ShutdownStep::KillDriver { is_forced: false }]
            }
            Phase::DriverKilled { stop_at } if stop_at <= now => {
                self.driver_code = Some(KILLED_CODE);
                self.begin_stop()
            }
            Phase::AskingJob { until } if until <= now => self.on_job(true),
            Phase::AskingJob { .. }
            | Phase::DriverEnding { .. }
            | Phase::DriverKilled { .. }
            | Phase::Running
            | Phase::Stopping { .. } => Vec::new(),
        }
    }

    /// The time at which `on_time` or `next_start_step` has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.phase {
            Phase::AskingJob { until: at }
            | Phase::DriverEnding { kill_at: at }
            | Phase::DriverKilled { stop_at: at } => Some(at),
            Phase::Running => self.startup.next_deadline(),
            Phase::Stopping { .. } => None,
        }
    }

    /// True if the executors are left running at the end.
    fn keeps_executors(&self) -> bool {
        let has_next = matches!(self.job, Job::Asked { .. } | Job::GoesOn);
        // The Job tries again from another node, and nobody has looked at the executors here.
        let is_cut_off =
            self.job != Job::None && matches!(self.verdict, Some(RunVerdict::NotReachable { .. }));
        self.keep
            || is_cut_off
            || (self.is_signalled || self.is_tried_again) && has_next
            || matches!(self.verdict, Some(RunVerdict::TakenOver { .. }))
    }

    /// The run ends well, as far as that is known before the stop (`ShutdownOutcome::has_done_all`).
    fn is_over(&self) -> bool {
        let has_ended_well = match &self.verdict {
            None => self.driver_code == Some(0),
            verdict => *verdict == Some(RunVerdict::AllEnded { n_given_up: 0 }),
        };
        has_ended_well && !self.is_signalled
    }

    /// The outcome; none before the end.
    pub fn outcome(&self) -> Option<&ShutdownOutcome> {
        self.outcome.as_ref()
    }

    fn begin_stop(&mut self) -> Vec<ShutdownStep> {
        if let Job::Asked { until } = self.job {
            self.phase = Phase::AskingJob { until };
            return Vec::new();
        }
        self.phase = Phase::Stopping { is_forced: false };
        // A driver's exit code after a signal is not a failure of the application.
        let is_failure = |verdict: &RunVerdict| {
            matches!(
                verdict,
                RunVerdict::AllEnded { n_given_up: 1.. }
                    | RunVerdict::BudgetExhausted { .. }
                    | RunVerdict::DriverSilent { .. }
            )
        };
        let has_failed = self.driver_code.is_some_and(|code| code != 0 && !self.is_signalled)
            || self.verdict.as_ref().is_some_and(is_failure);
        let keep = self.keeps_executors();
        let order = StopOrder { keep, keep_failed: has_failed, is_over: self.is_over() };
        match self.startup.is_blind() {
            true => vec![ShutdownStep::AbandonStop(order)],
            false => vec![ShutdownStep::Stop(order)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::{Budget, Exhaustion};

    const TRIES: (FailedPods, u32) = (FailedPods { n: 0, last_code: None, is_done: false }, 0);
    const STOP: ShutdownStep =
        ShutdownStep::Stop(StopOrder { keep: false, keep_failed: false, is_over: false });
    const STOP_OVER: ShutdownStep =
        ShutdownStep::Stop(StopOrder { keep: false, keep_failed: false, is_over: true });
    const STOP_FAILED: ShutdownStep =
        ShutdownStep::Stop(StopOrder { keep: false, keep_failed: true, is_over: false });
    const HURRY: ShutdownStep = ShutdownStep::HurryStop { keep: false };
    const FORCED_KILL: ShutdownStep = ShutdownStep::KillDriver { is_forced: true };

    /// A start that has come to its end.
    fn listed() -> Startup {
        let mut startup = Startup::new(false, false, Millis(0));
        startup.on_first_list();
        while startup.next(true, Millis(0)).is_some() {}
        startup
    }

    fn shutdown(has_driver: bool) -> Shutdown {
        let mut shutdown = Shutdown::new(listed(), 15_000, false);
        if has_driver {
            shutdown.on_driver_started();
        }
        shutdown
    }

    fn nothing_left() -> StopResult {
        StopResult::default()
    }

    #[test]
    fn without_a_driver_a_signal_stops_the_executors_at_once() {
        let mut shutdown = shutdown(false);
        assert_eq!(shutdown.on_signal(Millis(5)), [STOP]);
        shutdown.on_stopped(nothing_left(), false);
        assert_eq!(shutdown.outcome().expect("it is over").driver, None);
    }

    #[test]
    fn a_signal_leaves_the_executors_of_a_job_that_goes_on() {
        let keep =
            |keep| ShutdownStep::Stop(StopOrder { keep, keep_failed: false, is_over: false });
        for goes_on in [true, false] {
            let mut shutdown = shutdown(false).of_job(TRIES);
            assert_eq!(
                shutdown.on_signal(Millis(5)),
                [ShutdownStep::StopCreates, ShutdownStep::AskJob]
            );
            assert_eq!(shutdown.on_job(goes_on), [keep(goes_on)]);
            assert_eq!(shutdown.on_job(!goes_on), [], "an answer counts once");
            shutdown.on_stopped(nothing_left(), false);
            assert_eq!(shutdown.outcome().map(|outcome| outcome.is_kept), Some(goes_on));
        }
        // The server does not answer: the Job deletes its executors when it ends.
        let mut shutdown = self::shutdown(false).of_job(TRIES);
        shutdown.on_signal(Millis(5));
        assert_eq!(shutdown.next_deadline(), Some(Millis(5_005)));
        assert_eq!(
            (shutdown.on_time(Millis(5_004)), shutdown.on_time(Millis(5_005))),
            (vec![], vec![keep(true)])
        );
        // The driver's program ends before the answer, or after it.
        for is_late in [true, false] {
            let mut shutdown = self::shutdown(true).of_job(TRIES);
            assert_eq!(
                shutdown.on_signal(Millis(5)),
                [ShutdownStep::StopCreates, ShutdownStep::AskJob]
            );
            let steps = match is_late {
                true => [shutdown.on_driver_ended(143, Millis(7)), shutdown.on_job(true)],
                false => [shutdown.on_job(true), shutdown.on_driver_ended(143, Millis(7))],
            };
            assert_eq!(steps, [vec![], vec![keep(true)]]);
        }
        // Nobody asks when the driver's program has done its work, or is not tried again.
        assert_eq!(self::shutdown(true).of_job(TRIES).on_driver_ended(0, Millis(7)), [STOP_OVER]);
        let mut impatient = self::shutdown(false).of_job(TRIES);
        impatient.on_signal(Millis(5));
        assert_eq!(impatient.on_signal(Millis(1_000)), [ShutdownStep::HurryStop { keep: true }]);
    }

    #[test]
    fn a_driver_that_is_tried_again_finds_its_executors() {
        let stop = |keep| ShutdownStep::Stop(StopOrder { keep, keep_failed: true, is_over: false });
        // The exit code of the driver's program, how many pods have failed before, and whether the Job goes on.
        for (code, n, goes_on, want) in [
            (1, 0, true, vec![stop(true)]),
            (137, 0, true, vec![stop(true)]),
            (1, 0, false, vec![stop(false)]),
            (1, 1, true, vec![]),
            (2, 0, true, vec![]),
        ] {
            let failed = FailedPods { n, ..FailedPods::default() };
            let mut shutdown = shutdown(true).of_job((failed, 1));
            let steps = shutdown.on_driver_ended(code, Millis(7));
            if want.is_empty() {
                assert_eq!(steps, [stop(false)], "{code} {n}");
                continue;
            }
            assert_eq!(steps, [ShutdownStep::StopCreates, ShutdownStep::AskJob]);
            assert_eq!(shutdown.on_job(goes_on), want, "{code} {n}");
            shutdown.on_stopped(nothing_left(), false);
            let outcome = shutdown.outcome().expect("it is over");
            assert_eq!((outcome.driver, outcome.is_kept), (Some(code), goes_on));
        }
        // One that hangs.
        for (n, goes_on, keep) in [(0, true, true), (0, false, false), (1, true, false)] {
            let failed = FailedPods { n, ..FailedPods::default() };
            let mut shutdown = shutdown(true).of_job((failed, 1));
            let silent = RunVerdict::DriverSilent { silence_ms: 1 };
            let steps = shutdown.on_verdict(silent, Millis(0));
            assert_eq!(steps.contains(&ShutdownStep::AskJob), n == 0);
            assert_eq!(shutdown.on_job(goes_on), []);
            assert_eq!(shutdown.on_driver_ended(143, Millis(7)), [stop(keep)], "{n} {goes_on}");
        }
    }

    #[test]
    fn the_driver_ends_before_the_executors() {
        let mut shutdown = shutdown(true);
        assert_eq!(shutdown.on_driver_ended(0, Millis(7)), [STOP_OVER]);
        let mut shutdown = Shutdown { keep: true, ..self::shutdown(true) };
        let stop = ShutdownStep::Stop(StopOrder { keep: true, keep_failed: true, is_over: false });
        assert_eq!(shutdown.on_driver_ended(3, Millis(7)), [stop]);
        shutdown.on_stopped(nothing_left(), false);
        assert_eq!(shutdown.outcome().expect("it is over").driver, Some(3));
    }

    #[test]
    fn a_driver_that_does_not_end_is_killed_after_its_grace() {
        let mut shutdown = shutdown(true);
        assert_eq!(shutdown.on_signal(Millis(1_000)), [ShutdownStep::StopCreates]);
        assert_eq!(shutdown.next_deadline(), Some(Millis(16_000)));
        assert_eq!(shutdown.on_time(Millis(15_999)), []);
        assert_eq!(
            shutdown.on_time(Millis(16_000)),
            [ShutdownStep::KillDriver { is_forced: false }]
        );
        assert_eq!(shutdown.on_time(Millis(16_100)), []);
        assert_eq!(
            shutdown.on_driver_ended(137, Millis(7)),
            [STOP],
            "ended by the signal, not a failure of the application"
        );
        shutdown.on_stopped(nothing_left(), false);
        assert_eq!(shutdown.outcome().expect("it is over").driver, Some(137));
    }

    #[test]
    fn a_driver_that_survives_its_kill_does_not_keep_the_executors_running() {
        let verdict = RunVerdict::BudgetExhausted { budget: Budget::App, why: Exhaustion::Losses };
        for (verdict, stop, code) in [(None, STOP, Some(137)), (Some(verdict), STOP_FAILED, None)] {
            let mut shutdown = shutdown(true);
            match verdict {
                Some(verdict) => shutdown.on_verdict(verdict, Millis(0)),
                None => shutdown.on_signal(Millis(0)),
            };
            shutdown.on_time(Millis(15_000));
            assert_eq!(shutdown.next_deadline(), Some(Millis(15_000 + KILLED_MS)));
            assert_eq!(shutdown.on_time(Millis(15_000 + KILLED_MS)), [stop]);
            assert_eq!(shutdown.next_deadline(), None);
            // It ends at last, while the executors end.
            assert_eq!(shutdown.on_driver_ended(137, Millis(7)), []);
            shutdown.on_stopped(nothing_left(), false);
            assert_eq!(shutdown.outcome().expect("it is over").driver, code);
        }
    }

    #[test]
    fn is_signalled_is_true_only_if_the_signal_was_the_first_reason() {
        let mut by_signal = shutdown(true);
        by_signal.on_signal(Millis(0));
        by_signal.on_driver_ended(0, Millis(7));
        let mut late = shutdown(true);
        late.on_driver_ended(0, Millis(7));
        late.on_signal(Millis(1));
        let mut alone = shutdown(false);
        alone.on_signal(Millis(0));
        for (mut shutdown, want) in [(by_signal, true), (late, false), (alone, true)] {
            shutdown.on_stopped(nothing_left(), false);
            assert_eq!(shutdown.outcome().map(|outcome| outcome.is_signalled), Some(want));
        }
    }

    #[test]
    fn a_verdict_ends_the_driver_and_its_exit_code_is_ignored() {
        let mut shutdown = shutdown(true);
        let verdict = RunVerdict::BudgetExhausted { budget: Budget::App, why: Exhaustion::Losses };
        let orders = shutdown.on_verdict(verdict.clone(), Millis(0));
        assert_eq!(orders, [ShutdownStep::StopCreates, ShutdownStep::TermDriver]);
        assert_eq!(shutdown.on_verdict(verdict.clone(), Millis(1)), []);
        assert_eq!(shutdown.on_driver_ended(143, Millis(7)), [STOP_FAILED]);
        shutdown.on_stopped(nothing_left(), false);
        let outcome = shutdown.outcome().expect("it is over");
        assert_eq!((outcome.driver, outcome.verdict.clone()), (None, Some(verdict)));
    }

    #[test]
    fn after_a_takeover_the_driver_ends_and_the_executors_stay() {
        let keep = ShutdownStep::Stop(StopOrder { keep: true, keep_failed: true, is_over: false });
        let mut shutdown = shutdown(true);
        let verdict = RunVerdict::TakenOver { holder: "b".to_owned() };
        let orders = shutdown.on_verdict(verdict.clone(), Millis(0));
        assert_eq!(orders, [ShutdownStep::StopCreates, ShutdownStep::TermDriver]);
        assert_eq!(shutdown.on_driver_ended(143, Millis(7)), [keep]);
        shutdown.on_stopped(nothing_left(), true);
        let outcome = shutdown.outcome().expect("it is over");
        assert_eq!((outcome.driver, outcome.verdict.clone()), (None, Some(verdict.clone())));
        // A second signal does not delete the other driver's executors.
        let mut shutdown = self::shutdown(true);
        shutdown.on_verdict(verdict, Millis(0));
        shutdown.on_signal(Millis(100));
        let hurry = ShutdownStep::HurryStop { keep: true };
        assert_eq!(shutdown.on_signal(Millis(900)), [FORCED_KILL, hurry]);
    }

    #[test]
    fn a_second_signal_forces_the_end() {
        let mut shutdown = shutdown(true);
        shutdown.on_signal(Millis(0));
        assert_eq!(shutdown.on_signal(Millis(199)), [], "the same one, sent to the group too");
        assert_eq!(shutdown.on_signal(Millis(200)), [FORCED_KILL, HURRY]);
        assert_eq!(shutdown.on_signal(Millis(900)), []);
        assert_eq!(shutdown.on_driver_ended(137, Millis(7)), []);
        shutdown.on_stopped(nothing_left(), false);
        let driver = shutdown.outcome().expect("it is over").driver;
        assert_eq!(driver, None, "the exit code after our SIGKILL means nothing");
        let mut shutdown = self::shutdown(false);
        shutdown.on_signal(Millis(0));
        assert_eq!(shutdown.on_signal(Millis(900)), [HURRY]);
        shutdown.on_stopped(nothing_left(), false);
        assert!(shutdown.outcome().expect("it is over").is_forced);
    }

    #[test]
    fn a_pod_without_a_way_to_the_server_leaves_the_executors_of_its_job() {
        for of_job in [true, false] {
            let starting = Shutdown::new(Startup::new(false, false, Millis(0)), 15_000, false);
            let mut shutdown = if of_job { starting.of_job(TRIES) } else { starting };
            let Some(StartStep::End(verdict)) = shutdown.next_start_step(false, Millis(30_000))
            else {
                panic!("the first LIST is late");
            };
            let order = StopOrder { keep: of_job, keep_failed: false, is_over: false };
            let steps = shutdown.on_verdict(verdict, Millis(30_000));
            assert_eq!(steps, [ShutdownStep::AbandonStop(order)]);
            shutdown.on_stopped(nothing_left(), false);
            assert_eq!(shutdown.outcome().map(|outcome| outcome.is_kept), Some(of_job));
        }
    }

    #[test]
    fn work_is_done_when_it_has_ended_well_and_its_executors_are_gone() {
        let left = StopResult { remaining: vec!["a-exec-1".to_owned()], ..nothing_left() };
        let all = |n_given_up| Some(RunVerdict::AllEnded { n_given_up });
        for (verdict, stop, is_done, leaves_no_work) in [
            (all(0), nothing_left(), true, true),
            (all(0), left, false, true),
            (all(1), nothing_left(), false, true),
            (Some(RunVerdict::DriverSilent { silence_ms: 1 }), nothing_left(), false, false),
            (None, nothing_left(), false, false),
        ] {
            let mut shutdown = shutdown(false);
            match verdict {
                Some(verdict) => shutdown.on_verdict(verdict, Millis(0)),
                None => shutdown.on_signal(Millis(0)),
            };
            shutdown.on_stopped(stop, false);
            let outcome = shutdown.outcome().expect("it is over");
            assert_eq!(outcome.has_done_all(), is_done, "{outcome:?}");
            assert_eq!(outcome.leaves_no_work(), leaves_no_work, "{outcome:?}");
        }
    }

    #[test]
    fn a_run_whose_driver_ends_with_0_is_over() {
        let left = || StopResult { remaining: vec!["a-exec-1".to_owned()], ..nothing_left() };
        for (code, stop, is_kept, is_done) in [
            (0, nothing_left(), false, true),
            (0, nothing_left(), true, false),
            (0, left(), false, false),
            (1, nothing_left(), false, false),
        ] {
            let mut shutdown = Shutdown::new(listed(), 15_000, is_kept);
            shutdown.on_driver_started();
            shutdown.on_driver_ended(code, Millis(0));
            shutdown.on_stopped(stop, false);
            let outcome = shutdown.outcome().expect("it is over");
            assert_eq!(outcome.has_done_all(), is_done, "{outcome:?}");
        }
        let mut signalled = shutdown(true);
        signalled.on_signal(Millis(0));
        signalled.on_driver_ended(0, Millis(0));
        signalled.on_stopped(nothing_left(), false);
        assert_eq!(signalled.outcome().map(ShutdownOutcome::has_done_all), Some(false));
    }

    #[test]
    fn a_stop_that_sees_no_executors_waits_for_nothing() {
        let order = StopOrder { keep: false, keep_failed: false, is_over: false };
        let blind = [ShutdownStep::AbandonStop(order)];
        let starting =
            |is_new| Shutdown::new(Startup::new(false, is_new, Millis(0)), 15_000, false);
        assert_eq!(starting(true).on_signal(Millis(5)), blind);
        assert_eq!(starting(false).on_signal(Millis(5)), [STOP], "an earlier run has executors");
        let mut unreachable = starting(false);
        assert_eq!(unreachable.next_deadline(), Some(Millis(30_000)));
        let Some(StartStep::End(verdict)) = unreachable.next_start_step(false, Millis(30_000))
        else {
            panic!("the first LIST is late");
        };
        assert_eq!(unreachable.on_verdict(verdict, Millis(30_000)), blind);
        assert_eq!(unreachable.next_start_step(false, Millis(30_001)), None, "it ends");
    }
}
