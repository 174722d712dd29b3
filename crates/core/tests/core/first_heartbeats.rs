//! Executors that run and from which the driver never hears (for two minutes, or `heartbeat.timeout` if that is longer).
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::sync::Arc;

use crate::core_run::{Run, heard, policy, spec};
use posse_core::model::command::{Command, GroupCommand};
use posse_core::model::event::LossReason;
use posse_core::model::ids::GroupName;
use posse_core::model::settings::Policy;
use posse_core::model::task::Task;

const TIMEOUT_MS: u64 = 60_000;
const FIRST_MS: u64 = 120_000;

fn listening() -> Policy {
    Policy { heartbeat_timeout_ms: TIMEOUT_MS, ..policy() }
}

#[test]
fn an_executor_that_runs_and_never_reports_is_lost() {
    for (timeout_ms, first_ms) in [(TIMEOUT_MS, FIRST_MS), (2 * FIRST_MS, 2 * FIRST_MS)] {
        let policy = Policy { heartbeat_timeout_ms: timeout_ms, ..policy() };
        let mut run = Run::with_running(policy, vec![spec("g", 2)]);
        run.beat(&[1], 10_000, first_ms);
        assert_eq!(run.losses(), [], "not before");
        run.beat(&[1], 10_000, 30_000);
        assert_eq!(run.losses(), [(2, LossReason::HeartbeatTimeout)], "{timeout_ms} ms");
        run.beat(&[1], 10_000, first_ms);
        assert_eq!(run.losses(), [], "told once");
    }
}

/// A driver with executors of its own knows nothing of a batch task beside them.
#[test]
fn the_executor_of_a_task_is_watched_after_its_first_heartbeat() {
    let mut run = Run::with_running(listening(), vec![spec("g", 1)]);
    let tasks = ["a", "b"].map(|key| Arc::new(Task { key: key.into(), ..Task::default() }));
    run.call(Command::Group(
        GroupName::from("g"),
        GroupCommand::AddTasks { tasks: tasks.to_vec() },
    ));
    run.start(&[2, 3]);
    assert_eq!(run.group("g").ready, 2, "the tasks' pods are");
    run.call(heard(&[3]));
    run.beat(&[1], 10_000, TIMEOUT_MS - 10_000);
    assert_eq!(run.losses(), []);
    run.beat(&[1], 10_000, 10 * FIRST_MS);
    assert_eq!(run.losses(), [(3, LossReason::HeartbeatTimeout)]);
}

#[test]
fn an_executor_that_starts_later_has_the_same_time() {
    let mut run = Run::with_running(listening(), vec![spec("g", 1)]);
    run.beat(&[1], 10_000, 300_000);
    run.target("g", 2);
    run.created(&[2]);
    run.beat(&[1], 10_000, 300_000);
    assert_eq!(run.losses(), [], "it does not run yet");
    run.running(&[2]);
    run.beat(&[1], 10_000, FIRST_MS);
    assert_eq!(run.losses(), []);
    run.beat(&[1], 10_000, 20_000);
    assert_eq!(run.losses(), [(2, LossReason::HeartbeatTimeout)]);
}

#[test]
fn without_any_report_of_an_executor_nobody_is_judged() {
    let mut run = Run::with_running(listening(), vec![spec("g", 2)]);
    run.beat(&[], 10_000, 10 * FIRST_MS);
    assert_eq!(run.losses(), [], "this driver may report nothing but idle lists");
    run.beat(&[1], 10_000, FIRST_MS);
    assert_eq!(run.losses(), [], "the time begins with the first report");
    run.beat(&[1], 10_000, 20_000);
    assert_eq!(run.losses(), [(2, LossReason::HeartbeatTimeout)]);
}

/// The driver reports all executors in one call, rarely.
#[test]
fn a_driver_that_calls_rarely_loses_no_executor() {
    let policy = Policy { heartbeat_timeout_ms: 1_200_000, ..listening() };
    let mut run = Run::with_running(policy, vec![spec("g", 1)]);
    run.call(heard(&[1]));
    run.wait(10_000);
    run.target("g", 2);
    run.created(&[2]);
    run.running(&[2]);
    run.wait(290_000);
    run.call(heard(&[1, 2]));
    run.beat(&[1, 2], 300_000, 1_200_000);
    assert_eq!(run.losses(), []);
}

#[test]
fn at_most_a_tenth_of_a_group_is_lost_at_a_time() {
    let mut run = Run::with_running(listening(), vec![spec("g", 40)]);
    run.beat(&[1], 10_000, FIRST_MS + 20_000);
    assert_eq!(run.losses().len(), 4);
}
