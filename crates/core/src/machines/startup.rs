//! The state machine of a run's start. The driver begins after the first LIST, as soon as its
//! credentials are there. A first LIST that is refused, or that does not come in time, ends the run:
//! only then does a refusal of the server end one.

use crate::model::action::RunVerdict;
use crate::model::refusal::{Advice, Refusal, RefusalClass, Verb};
use posse_base::time::Millis;

/// If no LIST succeeds within this time after the start, the API server counts as unreachable.
pub const START_TIMEOUT_MS: u64 = 30_000;

/// The next step of the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartStep {
    /// The executors of earlier runs are known: remove those of runs that are gone.
    Listed,
    /// Start the driver, if there is one.
    StartDriver,
    /// End the run.
    End(RunVerdict),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Listing,
    /// The credentials are awaited.
    Listed,
    Begun,
}

/// The state machine of a run's start.
#[derive(Clone, Debug)]
pub struct Startup {
    phase: Phase,
    /// When the first LIST must have succeeded.
    list_by: Millis,
    was_listed: bool,
    /// The latest refusal, until the first LIST succeeds.
    refusal: Option<Refusal>,
    needs_credentials: bool,
    /// No executor of an earlier run can exist.
    is_new_instance: bool,
    /// An earlier pod of the Job had all rights, so the next one may have them again.
    follows: bool,
}

impl Startup {
    /// A run that begins now. `needs_credentials`: the driver is not started without them.
    /// `is_new_instance`: the instance's name was generated for this run.
    pub fn new(needs_credentials: bool, is_new_instance: bool, now: Millis) -> Self {
        Self {
            phase: Phase::Listing,
            list_by: now.after(START_TIMEOUT_MS),
            was_listed: false,
            refusal: None,
            needs_credentials,
            is_new_instance,
            follows: false,
        }
    }

    /// The same. `follows`: an earlier pod of the Job has had all rights.
    #[must_use]
    pub fn of_job(self, follows: bool) -> Self {
        Self { follows, ..self }
    }

    /// The first LIST is applied.
    pub fn on_first_list(&mut self) {
        self.was_listed = true;
    }

    /// A LIST or a watch was refused.
    pub fn on_refused(&mut self, refusal: Refusal) {
        self.refusal = Some(refusal);
    }

    /// The next step, if one is due.
    pub fn next(&mut self, has_credentials: bool, now: Millis) -> Option<StartStep> {
        match self.phase {
            Phase::Listing if self.was_listed => {
                self.phase = Phase::Listed;
                Some(StartStep::Listed)
            }
            Phase::Listing => self.verdict(now).map(StartStep::End),
            Phase::Listed if has_credentials || !self.needs_credentials => {
                self.phase = Phase::Begun;
                Some(StartStep::StartDriver)
            }
            Phase::Listed | Phase::Begun => None,
        }
    }

    /// When `next` has something to do without another event.
    pub fn next_deadline(&self) -> Option<Millis> {
        match self.phase {
            Phase::Listing => Some(self.list_by),
            Phase::Listed | Phase::Begun => None,
        }
    }

    /// True from the step `Listed` on.
    pub fn is_listed(&self) -> bool {
        self.phase != Phase::Listing
    }

    /// True if a stop cannot see what to wait for, and should not try: nothing was created yet, or the
    /// server does not answer.
    pub fn is_blind(&self) -> bool {
        !self.was_listed && (self.is_new_instance || self.refusal.is_some())
    }

    fn verdict(&mut self, now: Millis) -> Option<RunVerdict> {
        let is_late = now >= self.list_by;
        if is_late {
            self.refusal.get_or_insert_with(no_answer);
        }
        let refusal = self.refusal.as_ref()?;
        let message = refusal.to_string();
        match refusal.advice(Verb::List) {
            Advice::Retire if !self.follows => Some(RunVerdict::NotAllowed { message }),
            Advice::Check | Advice::Retire | Advice::Retry | Advice::Slow => {
                is_late.then_some(RunVerdict::NotReachable { message })
            }
        }
    }
}

fn no_answer() -> Refusal {
    let message = format!("no answer to the first list in {} s", START_TIMEOUT_MS / 1_000);
    Refusal::local(RefusalClass::OutcomeUnknown, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(class: RefusalClass) -> Refusal {
        Refusal { class, message: "the server's words".to_owned(), ..no_answer() }
    }

    /// What ends a run whose first LIST was refused so, after 29,999 ms and after 30 s.
    #[track_caller]
    fn check(refused: Option<RefusalClass>, early: bool, late: fn(String) -> RunVerdict) {
        let mut startup = Startup::new(true, false, Millis(5));
        let message = refused.map_or_else(no_answer, refusal).to_string();
        if let Some(class) = refused {
            startup.on_refused(refusal(class));
        }
        let end = Some(StartStep::End(late(message)));
        let want = end.clone().filter(|_| early);
        assert_eq!(startup.next(false, Millis(30_004)), want, "{refused:?} before the time is up");
        assert_eq!(startup.next(false, Millis(30_005)), end, "{refused:?} after it");
        assert!(startup.is_blind(), "{refused:?}: the server shows nothing");
    }

    #[test]
    fn a_refused_first_list_ends_the_run_at_once_or_after_30_s() {
        let not_allowed = |message| RunVerdict::NotAllowed { message };
        let not_reachable = |message| RunVerdict::NotReachable { message };
        check(None, false, not_reachable);
        let permanent =
            [RefusalClass::Forbidden, RefusalClass::Unauthorized, RefusalClass::NotFound];
        for class in permanent {
            check(Some(class), true, not_allowed);
            let mut later = Startup::new(false, false, Millis(0)).of_job(true);
            later.on_refused(refusal(class));
            assert_eq!(
                later.next(false, Millis(29_999)),
                None,
                "{class:?}: the rights may come back"
            );
            let end = later.next(false, Millis(30_000));
            let is_away = |end| matches!(end, StartStep::End(RunVerdict::NotReachable { .. }));
            assert!(end.is_some_and(is_away), "{class:?}");
        }
        for class in RefusalClass::ALL.into_iter().filter(|class| !permanent.contains(class)) {
            check(Some(class), false, not_reachable);
        }
    }

    #[test]
    fn no_refusal_ends_a_run_after_its_first_list() {
        let mut startup = Startup::new(true, false, Millis(0));
        startup.on_refused(refusal(RefusalClass::Forbidden));
        startup.on_first_list();
        assert_eq!(startup.next(false, Millis(40_000)), Some(StartStep::Listed));
        startup.on_refused(refusal(RefusalClass::Forbidden));
        assert_eq!(startup.next(false, Millis(90_000)), None, "the credentials are awaited");
        assert_eq!(startup.next_deadline(), None);
        assert_eq!(startup.next(true, Millis(90_001)), Some(StartStep::StartDriver));
        assert_eq!(startup.next(true, Millis(90_002)), None);
        let mut without_driver = Startup::new(false, false, Millis(0));
        without_driver.on_first_list();
        assert_eq!(without_driver.next(false, Millis(1)), Some(StartStep::Listed));
        assert_eq!(without_driver.next(false, Millis(1)), Some(StartStep::StartDriver));
    }

    #[test]
    fn a_stop_is_blind_before_the_first_list_of_a_new_instance_or_after_a_refusal() {
        for (is_new, is_refused, was_listed, want) in [
            (false, false, false, false),
            (true, false, false, true),
            (false, true, false, true),
            (true, true, true, false),
        ] {
            let mut startup = Startup::new(false, is_new, Millis(0));
            if is_refused {
                startup.on_refused(refusal(RefusalClass::Transient));
            }
            if was_listed {
                startup.on_first_list();
            }
            assert_eq!(startup.is_blind(), want, "{is_new} {is_refused} {was_listed}");
        }
    }
}
