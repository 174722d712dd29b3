//! The output of ended tasks is kept before their pods are deleted, and nothing else waits for that.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use super::task_restarts::restart_with;
use super::tasks::{group, say, settle, state, task};
use crate::core_run::{Run, assert_stop_waits, end_with, policy};
use posse_core::model::action::Action;
use posse_core::model::command::{Command, GroupCommand};
use posse_core::model::ids::{GroupName, Uid};
use posse_core::model::input::Input;
use posse_core::model::settings::Policy;
use posse_core::model::task::{Task, TaskOutput};

fn keeping() -> Policy {
    Policy { keeps_task_output: true, ..policy() }
}

/// A run with so many tasks that run, `t1` in executor 1 and so on.
fn running(policy: Policy, n: u64) -> Run {
    let mut run = Run::new(policy, vec![group(0, None)]);
    say(&mut run, &(1..=n).map(|i| task(&format!("t{i}"), 0)).collect::<Vec<Task>>());
    settle(&mut run);
    run
}

/// The outputs that are to be read since the last call, and how many are not.
fn outputs(run: &mut Run) -> (Vec<TaskOutput>, u32) {
    let mut n_all_skipped = 0;
    let read = run.take().into_iter().filter_map(|action| match action {
        Action::KeepOutput { output, n_skipped } => {
            n_all_skipped += n_skipped;
            Some(output)
        }
        _ => None,
    });
    (read.collect(), n_all_skipped)
}

fn keys(outputs: &[TaskOutput]) -> Vec<&str> {
    outputs.iter().map(|output| &*output.key).collect()
}

#[test]
fn the_output_of_a_task_is_kept_as_soon_as_it_has_ended() {
    for (code, keeps, want) in [(0, true, &["t1"][..]), (1, true, &["t1"]), (0, false, &[])] {
        let mut run = running(Policy { keeps_task_output: keeps, ..policy() }, 2);
        run.pods[0].main_container = Some("worker".into());
        run.watch(&[1], end_with(code));
        let (found, n_skipped) = outputs(&mut run);
        assert_eq!((keys(&found), n_skipped), (want.to_vec(), 0), "{code} {keeps}");
        for output in &found {
            assert_eq!((output.executor.0, output.uid.clone()), (1, Uid::new("u1")));
            assert_eq!(output.pod, run.pods[0].name.to_string());
            assert_eq!(output.container.as_deref(), Some("worker"));
            assert!(!output.is_earlier);
        }
    }
}

/// Only the last attempt's, and a cancelled task has a pod that goes.
#[test]
fn a_retry_and_a_cancelled_task_have_no_output_that_is_kept() {
    let mut run = Run::new(keeping(), vec![group(0, None)]);
    say(&mut run, &[task("again", 1), task("cancelled", 0)]);
    settle(&mut run);
    run.watch(&[1], end_with(1));
    assert_eq!(outputs(&mut run).0, []);
    let (name, key) = (GroupName::from("g"), "cancelled".into());
    run.call(Command::Group(name, GroupCommand::CancelTask { key }));
    assert_eq!(outputs(&mut run).0, []);
}

#[test]
fn a_pod_is_not_deleted_before_its_output_was_read() {
    let mut run = running(keeping(), 1);
    run.watch(&[1], end_with(0));
    assert_eq!(outputs(&mut run).0.len(), 1);
    run.tell(Input::Patched { uid: Uid::new("u1"), answer: Ok(()) });
    run.call(Command::Group(GroupName::from("g"), GroupCommand::Delete));
    let is_delete = |action: &Action| matches!(action, Action::Delete { .. });
    run.wait(60_000);
    assert!(!run.take().iter().any(is_delete));
    run.tell(Input::OutputKept { uid: Uid::new("u1") });
    assert!(run.take().iter().any(is_delete));
    // An answer that comes again changes nothing.
    run.tell(Input::OutputKept { uid: Uid::new("u1") });
}

#[test]
fn few_outputs_are_read_at_a_time_and_few_wait() {
    let mut run = running(keeping(), 1_010);
    let all: Vec<u64> = (1..=1_010).collect();
    run.watch(&all, end_with(0));
    let (mut under_way, n_skipped) = outputs(&mut run);
    assert_eq!((under_way.len(), n_skipped), (4, 10), "those beyond 1,000 are told");
    let mut n_read = 0;
    while let Some(output) = under_way.pop() {
        n_read += 1;
        run.tell(Input::OutputKept { uid: output.uid });
        under_way.extend(outputs(&mut run).0);
        assert!(under_way.len() <= 4);
    }
    assert_eq!(n_read, 1_000);
}

#[test]
fn a_stop_waits_for_outputs_but_not_for_long() {
    let ended = || {
        let mut run = running(keeping(), 1);
        run.watch(&[1], end_with(0));
        run
    };
    assert_stop_waits(ended, || Input::OutputKept { uid: Uid::new("u1") });
}

/// A kill -9 may have come between the mark on the pod and the read of its log.
#[test]
fn a_restarted_posse_keeps_what_the_one_before_has_not() {
    let mut run = running(keeping(), 3);
    run.watch(&[1, 2], end_with(0));
    run.watch(&[2], |pod| pod.completed = true);
    let mut run = restart_with(keeping(), run, group(0, None));
    let found = outputs(&mut run).0;
    let found: Vec<(&str, bool)> = found.iter().map(|one| (&*one.key, one.is_earlier)).collect();
    assert_eq!(found, [("t2", true), ("t1", false)]);
    assert_eq!(
        ["t1", "t2", "t3"].map(|key| state(&mut run, key)),
        ["succeeded", "succeeded", "running"]
    );
}
