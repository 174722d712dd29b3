//! Owns the order in which a run ends: the driver first, with its grace, then the executors; and
//! the code that it ends with. Kills nothing and deletes nothing itself.

use crate::core::model::action::RunVerdict;
use crate::core::model::stop::{StopOrder, StopResult};
use crate::core::model::time::Millis;

/// What is to be done next for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownStep {
    /// No executor is asked for from here on.
    HoldCreates,
    /// SIGKILL to the driver's process group.
    KillDriver,
    /// One last delete of everything, without waiting for more than its answer.
    LastDelete,
    /// The executors' turn.
    Stop(StopOrder),
    /// SIGTERM to the driver's process group.
    TermDriver,
}

/// Why and how a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownOutcome {
    /// The driver's code as a shell tells it, where it ended by itself or by a signal passed on.
    pub driver: Option<u8>,
    pub verdict: Option<RunVerdict>,
    /// Another posse holds the instance.
    pub is_taken_over: bool,
    /// There was no time to see the executors go.
    pub is_hurried: bool,
    /// A signal was the first reason to end.
    pub is_signalled: bool,
    pub stop: StopResult,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// The driver was told to end; killed at that time.
    DriverEnding {
        kill_at: Millis,
    },
    /// The driver was killed; its end is a matter of moments.
    DriverKilled,
    /// The executors are being ended.
    Stopping,
    /// No time for more: one delete, and out.
    Hurrying,
    Over,
}

/// The end of a run, from the first reason for it to its outcome.
#[derive(Clone, Debug)]
pub struct Shutdown {
    phase: Phase,
    grace_ms: u64,
    keep: bool,
    has_driver: bool,
    driver_code: Option<u8>,
    /// The driver was ended for the verdict's sake: its code tells nothing of its own.
    is_driver_ended_by_us: bool,
    verdict: Option<RunVerdict>,
    signalled_at: Option<Millis>,
    is_signalled: bool,
    outcome: Option<ShutdownOutcome>,
}

/// One wish for the end often comes twice: to the process and to its group. Later than this it is
/// a second wish.
const SAME_SIGNAL_MS: u64 = 200;

impl Shutdown {
    /// A run that goes on. `keep`: executors are left at the end.
    #[must_use]
    pub fn new(grace_ms: u64, keep: bool) -> Self {
        Self {
            phase: Phase::Running,
            grace_ms,
            keep,
            has_driver: false,
            driver_code: None,
            is_driver_ended_by_us: false,
            verdict: None,
            signalled_at: None,
            is_signalled: false,
            outcome: None,
        }
    }

    /// The driver was started.
    pub fn on_driver_started(&mut self) {
        self.has_driver = true;
    }

    /// True until the first reason to end.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Somebody asks for the end; the signal itself has been passed on to the driver.
    pub fn on_signal(&mut self, now: Millis) -> Vec<ShutdownStep> {
        let first = *self.signalled_at.get_or_insert(now);
        let is_same = self.phase != Phase::Running && now.since(first) < SAME_SIGNAL_MS;
        self.is_signalled |= self.phase == Phase::Running;
        match self.phase {
            _ if is_same => Vec::new(),
            Phase::Running if self.has_driver => {
                self.phase = Phase::DriverEnding { kill_at: now.after(self.grace_ms) };
                vec![ShutdownStep::HoldCreates]
            }
            Phase::Running => self.begin_stop(),
            Phase::DriverEnding { .. } | Phase::DriverKilled | Phase::Stopping => {
                self.phase = Phase::Hurrying;
                self.is_driver_ended_by_us |= self.has_driver;
                let kill = self.has_driver.then_some(ShutdownStep::KillDriver);
                kill.into_iter().chain([ShutdownStep::LastDelete]).collect()
            }
            Phase::Hurrying | Phase::Over => Vec::new(),
        }
    }

    /// The driver has ended, with this code.
    pub fn on_driver_ended(&mut self, code: u8) -> Vec<ShutdownStep> {
        self.has_driver = false;
        self.driver_code = Some(code);
        match self.phase {
            Phase::Running | Phase::DriverEnding { .. } | Phase::DriverKilled => self.begin_stop(),
            Phase::Stopping | Phase::Hurrying | Phase::Over => Vec::new(),
        }
    }

    /// A decision that ends the run.
    pub fn on_verdict(&mut self, verdict: RunVerdict, now: Millis) -> Vec<ShutdownStep> {
        if self.phase != Phase::Running {
            return Vec::new();
        }
        self.verdict = Some(verdict);
        if !self.has_driver {
            return self.begin_stop();
        }
        self.is_driver_ended_by_us = true;
        self.phase = Phase::DriverEnding { kill_at: now.after(self.grace_ms) };
        vec![ShutdownStep::HoldCreates, ShutdownStep::TermDriver]
    }

    /// The executors' end has come out like this.
    pub fn on_stopped(&mut self, stop: StopResult, is_taken_over: bool) {
        let driver = self.driver_code.filter(|_| !self.is_driver_ended_by_us);
        let verdict = self.verdict.clone();
        let is_hurried = self.is_hurrying();
        let is_signalled = self.is_signalled;
        self.outcome = Some(ShutdownOutcome {
            driver,
            verdict,
            is_taken_over,
            is_hurried,
            is_signalled,
            stop,
        });
        self.phase = Phase::Over;
    }

    /// What is due.
    pub fn on_time(&mut self, now: Millis) -> Vec<ShutdownStep> {
        match self.phase {
            Phase::DriverEnding { kill_at } if kill_at <= now => {
                self.phase = Phase::DriverKilled;
                vec![ShutdownStep::KillDriver]
            }
            Phase::DriverEnding { .. }
            | Phase::DriverKilled
            | Phase::Hurrying
            | Phase::Over
            | Phase::Running
            | Phase::Stopping => Vec::new(),
        }
    }

    /// When something is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.phase {
            Phase::DriverEnding { kill_at } => Some(kill_at),
            Phase::DriverKilled
            | Phase::Hurrying
            | Phase::Over
            | Phase::Running
            | Phase::Stopping => None,
        }
    }

    /// True where only the answer to the last delete is waited for.
    #[must_use]
    pub fn is_hurrying(&self) -> bool {
        self.phase == Phase::Hurrying
    }

    /// True where the executors are left at the end.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.keep || matches!(self.verdict, Some(RunVerdict::TakenOver { .. }))
    }

    /// How the run ended; none while it goes on.
    #[must_use]
    pub fn outcome(&self) -> Option<&ShutdownOutcome> {
        self.outcome.as_ref()
    }

    fn begin_stop(&mut self) -> Vec<ShutdownStep> {
        self.phase = Phase::Stopping;
        // However a driver ends that was told to: that is no failure of the application's.
        let has_failed = self.driver_code.is_some_and(|code| code != 0 && !self.is_signalled)
            || matches!(
                self.verdict,
                Some(RunVerdict::BudgetSpent(_) | RunVerdict::DriverSilent { .. })
            );
        vec![ShutdownStep::Stop(StopOrder { keep: self.keeps(), keep_failed: has_failed })]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::event::Budget;

    const STOP: ShutdownStep = ShutdownStep::Stop(StopOrder { keep: false, keep_failed: false });
    const STOP_FAILED: ShutdownStep =
        ShutdownStep::Stop(StopOrder { keep: false, keep_failed: true });

    fn finish(has_driver: bool) -> Shutdown {
        let mut finish = Shutdown::new(15_000, false);
        if has_driver {
            finish.on_driver_started();
        }
        finish
    }

    fn nothing_left() -> StopResult {
        StopResult { remaining: Vec::new(), evidence: Vec::new() }
    }

    #[test]
    fn without_a_driver_a_signal_goes_straight_to_the_executors() {
        let mut finish = finish(false);
        assert_eq!(finish.on_signal(Millis(5)), [STOP]);
        finish.on_stopped(nothing_left(), false);
        assert_eq!(finish.outcome().expect("it is over").driver, None);
    }

    #[test]
    fn the_driver_ends_before_the_executors() {
        let mut finish = finish(true);
        assert_eq!(finish.on_driver_ended(0), [STOP]);
        let mut finish = Shutdown { keep: true, ..self::finish(true) };
        let stop = ShutdownStep::Stop(StopOrder { keep: true, keep_failed: true });
        assert_eq!(finish.on_driver_ended(3), [stop]);
        finish.on_stopped(nothing_left(), false);
        assert_eq!(finish.outcome().expect("it is over").driver, Some(3));
    }

    #[test]
    fn a_driver_that_does_not_end_is_killed_after_its_grace() {
        let mut finish = finish(true);
        assert_eq!(finish.on_signal(Millis(1_000)), [ShutdownStep::HoldCreates]);
        assert_eq!(finish.next_deadline(), Some(Millis(16_000)));
        assert_eq!(finish.on_time(Millis(15_999)), []);
        assert_eq!(finish.on_time(Millis(16_000)), [ShutdownStep::KillDriver]);
        assert_eq!(finish.on_time(Millis(99_000)), []);
        assert_eq!(
            finish.on_driver_ended(137),
            [STOP],
            "the signal's doing, not the application's"
        );
        finish.on_stopped(nothing_left(), false);
        assert_eq!(finish.outcome().expect("it is over").driver, Some(137));
    }

    #[test]
    fn a_signal_counts_where_it_is_the_reason() {
        let mut told = finish(true);
        told.on_signal(Millis(0));
        told.on_driver_ended(0);
        let mut late = finish(true);
        late.on_driver_ended(0);
        late.on_signal(Millis(1));
        let mut alone = finish(false);
        alone.on_signal(Millis(0));
        for (mut finish, want) in [(told, true), (late, false), (alone, true)] {
            finish.on_stopped(nothing_left(), false);
            assert_eq!(finish.outcome().map(|outcome| outcome.is_signalled), Some(want));
        }
    }

    #[test]
    fn a_verdict_ends_the_driver_and_its_code_is_not_the_drivers() {
        let mut finish = finish(true);
        let verdict = RunVerdict::BudgetSpent(Budget::App);
        let orders = finish.on_verdict(verdict.clone(), Millis(0));
        assert_eq!(orders, [ShutdownStep::HoldCreates, ShutdownStep::TermDriver]);
        assert_eq!(finish.on_verdict(verdict.clone(), Millis(1)), []);
        assert_eq!(finish.on_driver_ended(143), [STOP_FAILED]);
        finish.on_stopped(nothing_left(), false);
        let outcome = finish.outcome().expect("it is over");
        assert_eq!((outcome.driver, outcome.verdict.clone()), (None, Some(verdict)));
    }

    #[test]
    fn who_is_taken_over_ends_the_driver_and_leaves_the_executors() {
        let keep = ShutdownStep::Stop(StopOrder { keep: true, keep_failed: true });
        let mut finish = finish(true);
        let verdict = RunVerdict::TakenOver { holder: "b".to_owned() };
        let orders = finish.on_verdict(verdict.clone(), Millis(0));
        assert_eq!(orders, [ShutdownStep::HoldCreates, ShutdownStep::TermDriver]);
        assert_eq!(finish.on_driver_ended(143), [keep]);
        finish.on_stopped(nothing_left(), true);
        let outcome = finish.outcome().expect("it is over");
        assert_eq!((outcome.driver, outcome.verdict.clone()), (None, Some(verdict.clone())));
        // Also in a hurry nothing of theirs is deleted.
        let mut finish = self::finish(true);
        finish.on_verdict(verdict, Millis(0));
        finish.on_signal(Millis(100));
        assert_eq!(
            finish.on_signal(Millis(900)),
            [ShutdownStep::KillDriver, ShutdownStep::LastDelete]
        );
        assert!(finish.keeps());
    }

    #[test]
    fn a_second_signal_hurries() {
        let mut finish = finish(true);
        finish.on_signal(Millis(0));
        assert_eq!(finish.on_signal(Millis(199)), [], "the same one, sent to the group too");
        assert_eq!(
            finish.on_signal(Millis(200)),
            [ShutdownStep::KillDriver, ShutdownStep::LastDelete]
        );
        assert_eq!(finish.on_signal(Millis(900)), []);
        assert_eq!(finish.on_driver_ended(137), []);
        finish.on_stopped(nothing_left(), false);
        let driver = finish.outcome().expect("it is over").driver;
        assert_eq!(driver, None, "our SIGKILL tells nothing of the driver's");
        let mut finish = self::finish(false);
        finish.on_signal(Millis(0));
        assert_eq!(finish.on_signal(Millis(900)), [ShutdownStep::LastDelete]);
        assert!(finish.is_hurrying());
    }
}
