//! Credentials: nothing is created before they are there, or after they have expired.

use posse_base::time::Millis;
use posse_core::model::action::{Action, RunVerdict};
use posse_core::model::event::{Event, GroupEvent, RunEvent};
use posse_core::model::input::{Input, Renewal};
use posse_core::model::settings::{GroupSpec, Policy};
use posse_core::model::waiting::{RunWait, Waiting};

use crate::core_run::{Run, identity, policy, spec};

fn with_credentials() -> Policy {
    Policy { credentials: vec!["hdfs".to_owned()], ..policy() }
}

fn tell(run: &mut Run, outcome: Result<Option<u64>, &str>) {
    let outcome = outcome.map(|at| at.map(Millis)).map_err(str::to_owned);
    let next_at = Millis(run.now + 1_000);
    run.tell(Input::Credentials(Renewal { name: "hdfs".to_owned(), outcome, next_at }));
}

fn message(run: &Run) -> String {
    run.group("g").message.unwrap_or_default()
}

/// One running executor, whose credentials expire after 20 s.
fn running() -> Run {
    let mut run = Run::new(with_credentials(), vec![spec("g", 1)]);
    tell(&mut run, Ok(Some(20_000)));
    let ids = run.creates();
    run.created(&ids);
    run.running(&ids);
    run.take_events();
    run
}

#[test]
fn nothing_is_created_before_the_credentials_are_there() {
    let mut run = Run::new(with_credentials(), vec![spec("g", 2)]);
    assert!(!run.core.has_credentials());
    assert_eq!((run.creates(), run.waits_for("g")), (vec![], Some("credentials")));
    assert_eq!(message(&run), "hdfs: not there yet");
    tell(&mut run, Err("no KDC"));
    run.wait(600_000);
    assert_eq!((run.creates(), message(&run)), (vec![], "hdfs: not there yet: no KDC".to_owned()));
    tell(&mut run, Ok(None));
    assert!(run.core.has_credentials());
    assert_eq!((run.creates(), run.waits_for("g")), (vec![1, 2], None));
    let told: Vec<Event> = run.take_events();
    let until = Millis(1_000);
    let failed = Event::Run(RunEvent::CredentialsFailed {
        name: "hdfs".to_owned(),
        message: "no KDC".to_owned(),
        until,
    });
    assert!(told.contains(&failed), "{told:?}");
}

#[test]
fn a_group_at_its_target_says_that_the_credentials_have_expired() {
    let mut run = running();
    run.wait(19_000);
    tell(&mut run, Err("no KDC"));
    assert_eq!(run.waits_for("g"), None, "they are still valid");
    run.wait(1_000);
    assert_eq!(run.waits_for("g"), Some("credentials"));
    assert_eq!(message(&run), "hdfs: expired: no KDC");
    let waits = run.take_events().into_iter().any(|event| {
        matches!(
            event,
            Event::Group(
                _,
                GroupEvent::Waiting {
                    waiting: Waiting::Run(RunWait::Credentials),
                    message: Some(_),
                    ..
                }
            )
        )
    });
    assert!(waits, "an event says so");
    assert_eq!(run.take(), [], "what runs is not touched");
    tell(&mut run, Ok(Some(60_000)));
    assert_eq!(run.waits_for("g"), None);
}

#[test]
fn a_loss_is_replaced_when_the_credentials_are_back() {
    let mut run = running();
    run.wait(20_000);
    run.gone(&[1]);
    run.wait(600_000);
    assert_eq!((run.creates(), run.waits_for("g")), (vec![], Some("credentials")));
    let expires = run.now + 20_000;
    tell(&mut run, Ok(Some(expires)));
    assert_eq!(run.creates(), [2]);
}

#[test]
fn a_lower_target_needs_no_credentials() {
    let mut run = running();
    run.wait(20_000);
    run.target("g", 0);
    let ends = run.take();
    assert!(matches!(ends.as_slice(), [Action::Delete { .. }]), "{ends:?}");
}

#[test]
fn a_driver_that_waits_for_credentials_is_not_silent() {
    let silent = Policy { driver_silence_ms: 60_000, ..with_credentials() };
    let mut run = Run::new(silent, vec![spec("g", 0)]);
    run.wait(600_000);
    assert_eq!(run.core.poll_verdict(), None);
    tell(&mut run, Ok(None));
    run.wait(59_000);
    assert_eq!(run.core.poll_verdict(), None, "its time begins when it can start");
    run.wait(2_000);
    assert_eq!(run.core.poll_verdict(), Some(RunVerdict::DriverSilent { silence_ms: 60_000 }));
}

/// Group g needs them, group h names none.
#[test]
fn a_group_without_credentials_goes_on_when_others_have_expired() {
    let h = GroupSpec { credentials: Some(Vec::new()), ..spec("h", 1) };
    let mut run = Run::new(with_credentials(), vec![spec("g", 1), h]);
    tell(&mut run, Ok(Some(20_000)));
    let ids = run.creates();
    run.created(&ids);
    run.running(&ids);
    run.wait(20_000);
    run.gone(&ids);
    let created = run.creates();
    assert_eq!(created.len(), 1);
    assert_eq!(run.group_of(created[0]), "h");
    assert_eq!((run.waits_for("g"), run.waits_for("h")), (Some("credentials"), None));
}

/// The driver needs all of them, and no group begins before it.
#[test]
fn no_group_begins_before_the_driver_has_its_credentials() {
    let group = GroupSpec { credentials: Some(Vec::new()), ..spec("g", 1) };
    let mut run = Run::before_driver(identity(), with_credentials(), vec![group]);
    run.list();
    assert_eq!((run.creates(), run.waits_for("g")), (vec![], Some("credentials")));
    tell(&mut run, Ok(None));
    assert_eq!((run.creates(), run.waits_for("g")), (vec![], Some("driver_ready")));
    run.tell(Input::DriverReady);
    assert_eq!(run.creates(), [1]);
}

/// A driver's port that another user holds is told where the group waits for the driver.
#[test]
fn who_holds_the_drivers_port_is_told() {
    let mut run = Run::before_driver(identity(), policy(), vec![spec("g", 1)]);
    run.list();
    assert_eq!((run.creates(), run.waits_for("g")), (vec![], Some("driver_ready")));
    let held = "port 7077 is held by another user (uid 1001)";
    for problem in [Some(held.to_owned()), None] {
        run.tell(Input::DriverPort { problem: problem.clone() });
        assert_eq!((run.creates(), run.waits_for("g")), (vec![], Some("driver_ready")));
        assert_eq!(message(&run), problem.unwrap_or_default());
    }
    run.tell(Input::DriverReady);
    assert_eq!(run.creates(), [1]);
}
