//! The order of tasks: one starts only when those that it comes after have ended.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use super::tasks::{creates, ends, group, say, settle, show, state, task};
use crate::core_run::{Run, end_with, policy, refusal};
use posse_core::model::command::{Command, GroupCommand, Reply};
use posse_core::model::ids::GroupName;
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::Policy;
use posse_core::model::task::{After, Task};

fn after(key: &str, others: &[(&str, After)]) -> Task {
    let after = others.iter().map(|&(other, after)| (other.into(), after)).collect();
    Task { after, ..task(key, 0) }
}

fn cancel(run: &mut Run, key: &str) {
    let key = key.into();
    let reply = run.call(Command::Group(GroupName::from("g"), GroupCommand::CancelTask { key }));
    assert!(matches!(reply, Reply::Tasks(_)), "{reply:?}");
}

fn message(run: &mut Run, key: &str) -> String {
    let end = show(run, key).unwrap().end.unwrap();
    format!("{}: {}", end.reason.unwrap(), end.message.unwrap())
}

#[test]
fn a_task_starts_when_those_before_it_have_ended() {
    // (how b comes after a, a's exit code, b's state then)
    for (how, code, want) in [
        (After::Ok, 0, "running"),
        (After::Ok, 1, "skipped"),
        (After::Any, 0, "running"),
        (After::Any, 1, "running"),
    ] {
        // In one call and in two.
        for n_calls in [1, 2] {
            let mut run = Run::new(policy(), vec![group(0, None)]);
            let tasks = [task("a", 0), after("b", &[("a", how)])];
            for call in tasks.chunks(3 - n_calls) {
                assert!(matches!(say(&mut run, call), Reply::Tasks(_)));
            }
            assert_eq!(settle(&mut run), [(1, "a".to_owned(), 1)]);
            assert_eq!(state(&mut run, "b"), "held");
            let held_by = show(&mut run, "b").unwrap().held_by;
            assert_eq!(held_by, Some((1, "a".into())));
            run.watch(&[1], end_with(code));
            settle(&mut run);
            assert_eq!(state(&mut run, "b"), want, "{how:?} {code}");
            // One that comes later is told at once.
            say(&mut run, &[after("c", &[("a", how)])]);
            settle(&mut run);
            assert_eq!(state(&mut run, "c"), want, "{how:?} {code}");
        }
    }
}

#[test]
fn a_task_that_did_not_succeed_stops_those_after_it_and_they_say_so() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    let ok = |key: &str, other: &str| after(key, &[(other, After::Ok)]);
    let any = after("any", &[("c", After::Any)]);
    say(&mut run, &[task("a", 1), ok("b", "a"), ok("c", "b"), any, ok("d", "any")]);
    settle(&mut run);
    run.watch(&[1], end_with(3));
    assert_eq!(ends(&mut run), [], "a has a retry");
    assert_eq!(settle(&mut run), [(2, "a".to_owned(), 2)]);
    run.watch(&[2], end_with(4));
    let told = [
        ("a".to_owned(), "failed", Some(4), 2),
        ("b".to_owned(), "skipped", None, 0),
        ("c".to_owned(), "skipped", None, 0),
    ];
    assert_eq!(ends(&mut run), told);
    for key in ["b", "c"] {
        assert_eq!(message(&mut run, key), "after: task a failed");
    }
    assert_eq!(settle(&mut run), [(3, "any".to_owned(), 1)], "it comes after any end");
    cancel(&mut run, "any");
    assert_eq!(message(&mut run, "d"), "after: task any cancelled");
    assert_eq!(run.group("g").open_tasks, 0);
}

#[test]
fn a_task_comes_only_after_tasks_that_are_there_so_no_circle_can_be() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    let ok = |key: &str, other: &str| after(key, &[(other, After::Ok)]);
    for tasks in
        [vec![ok("a", "a")], vec![ok("a", "b"), ok("b", "a")], vec![task("x", 0), ok("a", "other")]]
    {
        let Reply::Refused { what, field } = say(&mut run, &tasks) else { panic!() };
        assert_eq!(field, "executors");
        assert!(what.starts_with("task a is to come after "), "{what}");
        assert!(what.contains(" before it, or has forgotten it"), "{what}");
        assert_eq!(run.group("g").open_tasks, 0, "all of a call or nothing");
    }
    say(&mut run, &[task("a", 0), ok("b", "a")]);
    let other = say(&mut run, &[after("b", &[("a", After::Any)])]);
    assert_eq!(other, Reply::TaskDiffers { key: "b".into(), field: "after" });
    settle(&mut run);
    // It has started, so an order says nothing about it any more.
    assert!(matches!(say(&mut run, &[ok("a", "b")]), Reply::Tasks(_)));
    assert_eq!((state(&mut run, "a"), state(&mut run, "b")), ("running", "held"));
}

/// A held task can show nothing about the template.
#[test]
fn a_refused_task_with_one_after_it_is_alone() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[task("bad", 0), after("next", &[("bad", After::Ok)])]);
    while run.now < 60 * 60_000 && state(&mut run, "bad") != "failed" {
        for (id, ..) in creates(&mut run) {
            run.refused(id, refusal(RefusalClass::Invalid, 422));
        }
        run.wait(1_000);
    }
    assert_eq!(message(&mut run, "next"), "after: task bad failed");
}

/// The time for `n` tasks of this shape, each of which ends well.
fn time(n: usize, tasks: impl Fn(usize) -> Vec<Task>) -> Duration {
    let policy = Policy { in_flight_max: 30_000, pending_max: 30_000, ..policy() };
    let mut run = Run::new(policy, vec![group(0, None)]);
    let begin = Instant::now();
    let tasks = tasks(n);
    assert!(matches!(say(&mut run, &tasks), Reply::Tasks(_)));
    loop {
        let new: Vec<u64> = settle(&mut run).iter().map(|(id, ..)| *id).collect();
        if new.is_empty() {
            break;
        }
        run.watch(&new, end_with(0));
    }
    let ended = ends(&mut run);
    assert_eq!(ended.len(), tasks.len());
    assert!(ended.iter().all(|(_, outcome, ..)| *outcome == "succeeded"));
    begin.elapsed()
}

fn chain(n: usize) -> Vec<Task> {
    let one = |i: usize| match i {
        0 => task("t0", 0),
        _ => after(&format!("t{i}"), &[(&format!("t{}", i - 1), After::Ok)]),
    };
    (0..n).map(one).collect()
}

fn fan(n: usize) -> Vec<Task> {
    let keys: Vec<String> = (0..n).map(|i| format!("t{i}")).collect();
    let all: Vec<(&str, After)> = keys.iter().map(|key| (key.as_str(), After::Ok)).collect();
    let mut tasks = vec![task("root", 0)];
    tasks.extend(keys.iter().map(|key| after(key, &[("root", After::Ok)])));
    tasks.push(after("back", &all));
    tasks
}

#[test]
fn a_chain_of_a_thousand_runs_to_its_end() {
    time(1_000, chain);
}

#[test]
fn a_broken_chain_of_a_thousand_ends_at_once() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &chain(1_000));
    settle(&mut run);
    run.watch(&[1], end_with(1));
    assert_eq!(ends(&mut run).len(), 1_000);
    assert_eq!(message(&mut run, "t999"), "after: task t0 failed");
}

#[test]
fn a_fan_of_ten_thousand_and_back_costs_as_much_for_each_as_one_of_a_thousand() {
    let pair = || (time(1_000, fan), time(10_000, fan));
    // A cost that grows with the square is a hundred times as much, also on a machine that is busy with other things.
    let pairs: Vec<_> = std::iter::repeat_with(pair).take(3).collect();
    assert!(pairs.iter().any(|(small, large)| *large < 40 * *small), "{pairs:?}");
}
