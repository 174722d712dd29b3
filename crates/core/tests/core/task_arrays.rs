//! Arrays of tasks: no more of them run at a time than their limit allows.
#![allow(clippy::unwrap_used)]

use super::tasks::{creates, ends, group, say, settle, state, task};
use crate::core_run::{Run, end_with, policy};
use posse_core::model::command::{Command, GroupCommand, Reply};
use posse_core::model::ids::GroupName;
use posse_core::model::task::{After, Task, TaskArray};

fn of_array(index: u32, max: Option<u32>, retries: u32) -> Task {
    let array = Some(TaskArray { name: "sim".into(), index, max });
    Task { array, ..task(&format!("sim-{index}"), retries) }
}

fn keys(created: Vec<(u64, String, u32)>) -> Vec<String> {
    created.into_iter().map(|(_, key, _)| key).collect()
}

fn after(key: &str, how: After) -> Task {
    Task { after: [("sim".into(), how)].into(), ..task(key, 0) }
}

/// The array's name stands for its tasks that were added before; one of them may have ended already.
#[test]
fn a_task_comes_after_a_whole_array() {
    // (how, the exit codes of sim-1 and sim-2, its states after each)
    for (how, codes, want) in [
        (After::Ok, [0, 0], ["held", "running"]),
        (After::Ok, [1, 0], ["skipped", "skipped"]),
        (After::Ok, [0, 1], ["held", "skipped"]),
        (After::Any, [1, 1], ["held", "running"]),
    ] {
        for is_late in [false, true] {
            let mut run = Run::new(policy(), vec![group(0, None)]);
            say(&mut run, &[of_array(1, None, 0), of_array(2, None, 0)]);
            let add = |run: &mut Run| {
                let reply = say(run, &[after("next", how)]);
                assert!(matches!(reply, Reply::Tasks(_)), "{reply:?}");
                // It comes too late to hold up what is there.
                let circle =
                    Task { after: [("next".into(), After::Any)].into(), ..of_array(3, None, 0) };
                say(run, &[circle]);
            };
            if !is_late {
                add(&mut run);
            }
            settle(&mut run);
            run.watch(&[1], end_with(codes[0]));
            if is_late {
                add(&mut run);
            }
            settle(&mut run);
            assert_eq!(state(&mut run, "next"), want[0], "{how:?} {codes:?} {is_late}");
            run.watch(&[2], end_with(codes[1]));
            settle(&mut run);
            assert_eq!(state(&mut run, "next"), want[1], "{how:?} {codes:?} {is_late}");
            if want[1] == "running" {
                run.watch(&[3], end_with(0));
                settle(&mut run);
            }
            assert_eq!(state(&mut run, "sim-3"), "running");
        }
    }
}

#[test]
fn an_array_that_has_ended_is_still_known_and_a_task_of_its_name_goes_before_it() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[of_array(1, None, 0)]);
    settle(&mut run);
    run.watch(&[1], end_with(0));
    say(&mut run, &[after("next", After::Ok)]);
    settle(&mut run);
    assert_eq!(state(&mut run, "next"), "running");
    say(&mut run, &[task("sim", 0), after("b", After::Ok)]);
    assert_eq!(state(&mut run, "b"), "held");
    let Reply::Refused { what, .. } =
        say(&mut run, &[Task { after: [("nosuch".into(), After::Ok)].into(), ..task("c", 0) }])
    else {
        panic!()
    };
    assert!(what.contains("no task or array nosuch before it"), "{what}");
}

/// A task of the array that is opened again is waited for anew, and what was skipped with it can be opened again.
#[test]
fn what_comes_after_an_array_is_opened_again_with_it() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    let again = |run: &mut Run, key: &str| {
        let key = key.into();
        run.call(Command::Group(GroupName::from("g"), GroupCommand::RetryTask { key }))
    };
    say(&mut run, &[of_array(1, None, 0), of_array(2, None, 0), after("next", After::Ok)]);
    settle(&mut run);
    run.watch(&[1], end_with(1));
    run.watch(&[2], end_with(0));
    assert_eq!(state(&mut run, "next"), "skipped");
    again(&mut run, "sim-1");
    again(&mut run, "next");
    assert_eq!(
        (keys(settle(&mut run)), state(&mut run, "next")),
        (vec!["sim-1".to_owned()], "held")
    );
    run.watch(&[3], end_with(0));
    assert_eq!(keys(settle(&mut run)), ["next"]);
}

#[test]
fn an_array_runs_as_many_at_a_time_as_it_may() {
    for (max, want) in [(Some(2), 2), (Some(9), 5), (None, 5)] {
        let mut run = Run::new(policy(), vec![group(0, None)]);
        let mut tasks: Vec<Task> = (1..=5).map(|index| of_array(index, max, 0)).collect();
        tasks.push(task("other", 0));
        assert!(matches!(say(&mut run, &tasks), Reply::Tasks(_)));
        let started = keys(settle(&mut run));
        assert_eq!(started.len(), want + 1, "{max:?}: others are not held up");
        assert!(started.contains(&"other".to_owned()));
    }
}

#[test]
fn the_next_of_an_array_starts_when_one_has_ended_whatever_its_end() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    let tasks: Vec<Task> = (1..=6).map(|index| of_array(index, Some(1), 1)).collect();
    say(&mut run, &tasks);
    assert_eq!(keys(settle(&mut run)), ["sim-1"]);
    assert_eq!((state(&mut run, "sim-2"), run.group("g").open_tasks), ("waiting", 6));
    run.watch(&[1], end_with(0));
    assert_eq!(keys(settle(&mut run)), ["sim-2"]);
    run.watch(&[2], end_with(1));
    assert_eq!(keys(settle(&mut run)), ["sim-2"], "its retry comes first");
    run.watch(&[3], end_with(1));
    assert_eq!(keys(settle(&mut run)), ["sim-3"]);
    let cancel = |run: &mut Run, key: &str| {
        let key = key.into();
        run.call(Command::Group(GroupName::from("g"), GroupCommand::CancelTask { key }));
    };
    cancel(&mut run, "sim-4");
    assert_eq!(settle(&mut run), [], "it had not started");
    cancel(&mut run, "sim-3");
    assert_eq!(keys(creates(&mut run)), ["sim-5"]);
    run.created(&[5]);
    run.running(&[5]);
    run.watch(&[5], |pod| pod.deleting = true);
    assert_eq!(creates(&mut run), [], "it may still run");
    run.gone(&[5]);
    assert_eq!(keys(settle(&mut run)), ["sim-5"]);
}

#[test]
fn a_restarted_posse_counts_those_that_run_already() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    let tasks: Vec<Task> = (1..=4).map(|index| of_array(index, Some(2), 0)).collect();
    say(&mut run, &tasks);
    settle(&mut run);
    run.watch(&[1], end_with(0));
    assert_eq!(keys(settle(&mut run)), ["sim-3"]);
    run.watch(&[1], |pod| pod.completed = true);
    // The pods are found before the tasks are told again, or after.
    for is_told_first in [false, true] {
        let Run { pods, version, now, .. } = &run;
        let (pods, version, now) = (pods.clone(), *version, *now);
        let mut new = Run { pods, version, now, ..Run::unlisted(policy(), vec![group(0, None)]) };
        if is_told_first {
            say(&mut new, &tasks);
        }
        new.list();
        say(&mut new, &tasks);
        assert_eq!(settle(&mut new), [], "two run");
        new.watch(&[2], end_with(0));
        assert_eq!(keys(settle(&mut new)), ["sim-4"]);
        assert_eq!(ends(&mut new).len(), 2);
    }
}
