//! The record of the calls that have changed a run.

use std::sync::Arc;

use crate::core_run::{Run, heard, policy, set, spec};
use posse_core::model::act::{Act, Call, Caller, Key};
use posse_core::model::command::{AfterKill, Command, GroupChange, GroupCommand};
use posse_core::model::event::{Event, GroupEvent, RunEvent};
use posse_core::model::ids::GroupName;

const BY: Caller = Caller { key: Key::Socket, user: Some(1000), from: None };

fn on(group: &str, command: GroupCommand) -> Command {
    Command::Group(GroupName::from(group), command)
}

fn scale(group: &str, target: u32) -> Command {
    on(group, GroupCommand::SetTarget { target })
}

fn kill(ids: &[u64], after: AfterKill, reason: &str) -> Command {
    Command::Kill {
        executors: set(ids),
        after,
        force: true,
        is_silent: false,
        reason: Some(reason.to_owned()),
    }
}

/// The acts since the last call.
fn acts(run: &mut Run) -> Vec<Act> {
    let acts = run.take_events().into_iter().filter_map(|event| match event {
        Event::Run(RunEvent::Acted(act)) => Some(act),
        Event::Run(_) | Event::Cluster(_) | Event::Group(..) | Event::Executor(..) => None,
    });
    acts.collect()
}

#[test]
fn a_call_that_changes_the_run_is_an_event() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    run.take_events();
    let change = GroupChange { target: Some(2), ..GroupChange::default() };
    for (command, call, group, message) in [
        (scale("g", 4), Call::Scale, Some("g"), "target 4"),
        (
            kill(&[1, 2], AfterKill::Replace, "slow\nnode"),
            Call::Kill,
            None,
            "executors 1, 2, by force: slow node",
        ),
        (
            kill(&[3], AfterKill::Lower, ""),
            Call::Kill,
            None,
            "executor 3, without a successor, by force:",
        ),
        (
            kill(&(1..=12).collect::<Vec<u64>>(), AfterKill::Target(1), "x"),
            Call::Kill,
            None,
            "executors 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more, target 1, by force: x",
        ),
        (on("h", GroupCommand::Put { change }), Call::PutGroup, Some("h"), "template, target 2"),
        (on("h", GroupCommand::Delete), Call::DeleteGroup, Some("h"), ""),
    ] {
        run.call_by(command.clone(), BY);
        let group = group.map(GroupName::from);
        let want = Act { by: BY, call, group, message: message.to_owned() };
        assert_eq!(acts(&mut run), [want], "{command:?}");
    }
}

#[test]
fn what_changes_nothing_is_no_act() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    run.take_events();
    for command in [
        scale("g", 3),
        scale("nobody", 3),
        kill(&[77], AfterKill::Replace, "gone"),
        on("nobody", GroupCommand::Delete),
        on("g", GroupCommand::ShowTasks { key: None }),
        on("g", GroupCommand::CancelTask { key: Arc::from("t") }),
        heard(&[1]),
        Command::Idle { executors: set(&[1]) },
        Command::DriverReady,
        Command::Status,
        Command::View,
        Command::ViewTasks { group: "g".into(), key: None },
    ] {
        run.call_by(command.clone(), BY);
        assert_eq!(acts(&mut run), [], "{command:?}");
    }
}

#[test]
fn an_act_comes_before_what_follows_from_it() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    run.take_events();
    run.call_by(scale("g", 4), BY);
    let events = run.take_events();
    assert!(matches!(events[0], Event::Run(RunEvent::Acted(_))), "{events:?}");
    assert!(matches!(events[1], Event::Group(_, GroupEvent::TargetChanged { target: 4 })));
}
