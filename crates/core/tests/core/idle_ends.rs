//! `idle_end`: a queue without a driver ends when it has had nothing to do for so long.
#![allow(clippy::unwrap_used)]

use super::tasks::{group, say, settle, task};
use crate::core_run::{Run, end_with, policy};
use posse_core::model::action::RunVerdict;
use posse_core::model::command::{Command, GroupCommand};
use posse_core::model::ids::GroupName;
use posse_core::model::settings::{Policy, RecordUse};
use posse_core::model::task::{After, Task};

const IDLE_MS: u64 = 60_000;

fn queue(target: u32) -> Run {
    Run::new(Policy { idle_end_ms: IDLE_MS, ..policy() }, vec![group(target, None)])
}

/// Whether the run ends exactly after the time, and how many failed for good.
#[track_caller]
fn ends_with(run: &mut Run, want: u32) {
    run.turn();
    run.wait(IDLE_MS - 1);
    assert_eq!(run.core.poll_verdict(), None);
    run.wait(1);
    assert_eq!(run.core.poll_verdict(), Some(RunVerdict::AllEnded { n_given_up: want }));
}

fn call(run: &mut Run, command: GroupCommand) {
    run.call(Command::Group(GroupName::from("g"), command));
}

#[test]
fn a_queue_without_a_task_ends() {
    ends_with(&mut queue(0), 0);
}

#[test]
fn a_queue_with_an_open_task_or_a_target_stays() {
    let mut run = queue(1);
    settle(&mut run);
    run.wait(10 * IDLE_MS);
    assert_eq!(run.core.poll_verdict(), None, "its executors run");
    let mut run = queue(0);
    run.wait(IDLE_MS / 2);
    say(&mut run, &[task("a", 0)]);
    settle(&mut run);
    run.wait(10 * IDLE_MS);
    assert_eq!(run.core.poll_verdict(), None);
    run.watch(&[1], end_with(0));
    ends_with(&mut run, 0);
    let mut run = Run::new(policy(), vec![group(0, None)]);
    run.wait(10 * IDLE_MS);
    assert_eq!(run.core.poll_verdict(), None, "without the key it stays");
}

#[test]
fn a_queue_that_cannot_read_its_record_stays() {
    let record = RecordUse::Missing("it is forbidden".to_owned());
    let policy = Policy { idle_end_ms: IDLE_MS, record, ..policy() };
    let mut run = Run::new(policy, vec![group(0, None)]);
    run.wait(10 * IDLE_MS);
    assert_eq!(run.core.poll_verdict(), None, "it may have tasks");
}

#[test]
fn failed_and_skipped_tasks_are_told_unless_they_succeed_later() {
    let mut run = queue(0);
    let after = [("a".into(), After::Ok)].into();
    say(&mut run, &[task("a", 0), Task { after, ..task("b", 0) }, task("c", 0)]);
    settle(&mut run);
    run.watch(&[1], end_with(1));
    run.watch(&[2], end_with(1));
    call(&mut run, GroupCommand::RetryTask { key: "c".into() });
    let again = settle(&mut run);
    assert_eq!(again.len(), 1);
    run.watch(&[3], end_with(0));
    say(&mut run, &[task("d", 0)]);
    settle(&mut run);
    call(&mut run, GroupCommand::CancelTask { key: "d".into() });
    run.gone(&[4]);
    // a failed, b was skipped, c succeeded in the end, and d was cancelled.
    ends_with(&mut run, 2);
}
