//! Groups whose targets a command sets (`scale`).

use crate::core_run::{Run, kill, policy, spec};
use posse_base::time::Millis;
use posse_core::machines::scale::{ScaleRule, Scaler};
use posse_core::model::command::{AfterKill, Command, GroupCommand, Reply};
use posse_core::model::event::{Event, GroupEvent};
use posse_core::model::ids::GroupName;
use posse_core::model::input::Input;
use posse_core::model::settings::GroupSpec;
use posse_core::model::waiting::{GroupWait, Waiting};

fn scaled(target: u32) -> Run {
    let group = GroupSpec { is_scaled: true, max: Some(4), ..spec("g", target) };
    Run::new(policy(), vec![group])
}

fn read(run: &mut Run, group: &str, outcome: Result<u32, &str>) {
    let outcome = outcome.map(Some).map_err(str::to_owned);
    run.tell(Input::ScaleRead { group: GroupName::from(group), outcome });
    run.turn();
}

#[test]
fn a_reading_sets_the_target_within_its_limits() {
    let mut run = scaled(0);
    read(&mut run, "g", Ok(2));
    assert_eq!(run.creates(), [1, 2]);
    read(&mut run, "g", Ok(1_000));
    assert_eq!(run.creates(), [3, 4]);
    assert_eq!(run.group("g").target, 4);
    read(&mut run, "none", Ok(3));
    // Only the command sets it, and it restores what a kill lowered.
    for command in [
        Command::Group(GroupName::from("g"), GroupCommand::SetTarget { target: 1 }),
        kill(&[1], AfterKill::Target(1), false),
    ] {
        let reply = run.call(command);
        assert!(matches!(&reply, Reply::Refused { field: "target", .. }), "{reply:?}");
    }
    run.call(kill(&[1], AfterKill::Lower, false));
    assert_eq!(run.group("g").target, 3);
    read(&mut run, "g", Ok(4));
    assert_eq!(run.group("g").target, 4);
}

/// Its queue is empty, and the executors still work on the last entries.
#[test]
fn an_empty_queue_after_a_restart_keeps_the_executors_for_a_while() {
    let mut before = scaled(0);
    read(&mut before, "g", Ok(2));
    before.start(&[1, 2]);
    let group = GroupSpec { is_scaled: true, ..spec("g", 0) };
    let Run { pods, version, .. } = before;
    let mut run = Run { pods, version, ..Run::unlisted(policy(), vec![group]) };
    run.list();
    let rule = ScaleRule { per_executor: 1, idle_after_ms: 60_000 };
    let mut scaler = Scaler::new(rule);
    for (wait_ms, want) in [(2_000, 2), (57_999, 2), (1, 2), (2_000, 0)] {
        run.wait(wait_ms);
        let outcome = Ok(scaler.target(0, Millis(run.now)));
        run.tell(Input::ScaleRead { group: GroupName::from("g"), outcome });
        assert_eq!(run.group("g").running, want, "at {}", run.now);
    }
}

#[test]
fn readings_change_no_group_of_another_kind() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    read(&mut run, "g", Ok(3));
    read(&mut run, "g", Err("ended"));
    assert_eq!((run.group("g").target, run.waits_for("g")), (1, None));
}

#[test]
fn a_failure_keeps_the_target_and_is_told_once() {
    let mut run = scaled(0);
    read(&mut run, "g", Ok(0));
    run.take_events();
    let told = |run: &mut Run| -> Vec<Option<String>> {
        let events = run.take_events().into_iter();
        let message = |event| {
            let Event::Group(
                _,
                GroupEvent::Waiting {
                    waiting: Waiting::Group(GroupWait::ScaleCommand),
                    message,
                    ..
                },
            ) = event
            else {
                return None;
            };
            Some(message)
        };
        events.filter_map(message).collect()
    };
    read(&mut run, "g", Err("ended with exit code 1"));
    assert_eq!(told(&mut run), [Some("ended with exit code 1".to_owned())]);
    read(&mut run, "g", Err("printed nothing"));
    assert_eq!(told(&mut run), []);
    let group = run.group("g");
    assert_eq!((group.target, group.message.as_deref()), (0, Some("printed nothing")));
    read(&mut run, "g", Ok(0));
    assert_eq!(run.waits_for("g"), None);
    read(&mut run, "g", Err("again"));
    assert_eq!(told(&mut run), [Some("again".to_owned())]);
}
