//! `protect: busy`: who is protected, when that is taken off, and what the server may say.
#![allow(clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, policy, refusal, set, spec};
use posse_core::model::action::Action;
use posse_core::model::command::Command;
use posse_core::model::event::{Event, GroupEvent};
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::input::Input;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::settings::{GroupSpec, Protect};

const SECOND: u64 = 1_000;
const DAY_S: u64 = 24 * 3_600;

fn run(n: u32) -> Run {
    let mut run = Run::new(policy(), vec![GroupSpec { protect: Protect::Busy, ..spec("g", n) }]);
    let mut n_created = 0;
    while n_created < n as usize {
        let asked = run.creates();
        n_created += asked.len();
        run.created(&asked);
    }
    run.running(&ids(n));
    run
}

fn ids(n: u32) -> Vec<u64> {
    (1..=n.into()).collect()
}

/// The changes since the last call: the executor, and whether it is protected now.
fn changes(run: &mut Run) -> Vec<(u64, bool)> {
    let changes = run.take().into_iter().map(|action| match action {
        Action::Protect { id, is_protected, .. } => (id.0, is_protected),
        other => panic!("{other:?}"),
    });
    changes.collect()
}

fn answer(run: &mut Run, id: u64, answer: Result<(), Refusal>) {
    run.tell(Input::Protected { id: ExecutorId(id), uid: Uid::new(&format!("u{id}")), answer });
}

/// The server makes the changes, and the watch shows them. Returns them.
fn settle(run: &mut Run) -> Vec<(u64, bool)> {
    let changes = changes(run);
    for &(id, is_protected) in &changes {
        answer(run, id, Ok(()));
        run.watch(&[id], |pod| pod.is_protected = is_protected);
    }
    changes
}

/// Each second, for so many: the driver's idle list, if it gives one. Returns all changes.
fn seconds(run: &mut Run, n: u64, idle: Option<&[u64]>) -> Vec<(u64, bool)> {
    let mut all = Vec::new();
    for _ in 0..n {
        if let Some(idle) = idle {
            run.call(Command::Idle { executors: set(idle) });
        }
        run.wait(SECOND);
        all.extend(settle(run));
    }
    all
}

fn told(run: &mut Run) -> Vec<(Option<u64>, String)> {
    let told = std::mem::take(&mut run.events).into_iter().filter_map(|event| match event {
        Event::Group(_, GroupEvent::Unprotected { executor, message }) => {
            Some((executor.map(|id| id.0), message))
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn without_an_idle_list_all_that_run_are_busy() {
    let mut run = run(3);
    assert_eq!(seconds(&mut run, 2, None), [(1, true), (2, true), (3, true)]);
    assert_eq!(seconds(&mut run, 600, None), [], "on a change only");
    assert_eq!(told(&mut run), []);
}

#[test]
fn an_executor_loses_its_protection_when_it_has_been_idle_for_a_minute() {
    let mut run = run(2);
    assert_eq!(seconds(&mut run, 2, Some(&[])), [(1, true), (2, true)]);
    assert_eq!(seconds(&mut run, 58, Some(&[1])), []);
    assert_eq!(seconds(&mut run, 4, Some(&[1])), [(1, false)]);
    assert_eq!(seconds(&mut run, 600, Some(&[1])), [], "executor 2 is busy");
    assert_eq!(seconds(&mut run, 2, Some(&[])), [(1, true)], "it has work again");
    assert_eq!(seconds(&mut run, 30, Some(&[1])), []);
    assert_eq!(seconds(&mut run, 2, Some(&[])), [], "a short pause is no request");
    assert_eq!(seconds(&mut run, 59, Some(&[1])), []);
    assert_eq!(told(&mut run), []);
}

#[test]
fn one_that_is_idle_from_the_start_is_not_touched() {
    let mut run = run(0);
    run.call(Command::Idle { executors: set(&[1, 2]) });
    run.target("g", 2);
    run.take();
    run.created(&[1, 2]);
    run.running(&[1, 2]);
    run.call(Command::Idle { executors: set(&[1, 2]) });
    assert_eq!(seconds(&mut run, 120, Some(&[1, 2])), []);
    assert_eq!(seconds(&mut run, 12, None), [(1, true), (2, true)], "the list is too old");
}

#[test]
fn the_protection_ends_after_a_day_and_that_is_told_once() {
    let mut run = run(1);
    assert_eq!(seconds(&mut run, DAY_S - 1, Some(&[])), [(1, true)]);
    assert_eq!(told(&mut run), []);
    assert_eq!(seconds(&mut run, 3, Some(&[])), [(1, false)]);
    let [(Some(1), message)] = &told(&mut run)[..] else { panic!("it is told once") };
    assert!(message.contains("has been busy for a day"), "{message}");
    assert_eq!(seconds(&mut run, 1_200, Some(&[])), []);
    assert_eq!(told(&mut run), []);
    // Work that ends and begins again is protected again.
    assert_eq!(seconds(&mut run, 62, Some(&[1])), []);
    assert_eq!(seconds(&mut run, 2, Some(&[])), [(1, true)]);
}

#[test]
fn without_the_right_it_is_off_and_told_once() {
    let mut run = run(2);
    run.wait(SECOND);
    assert_eq!(changes(&mut run), [(1, true), (2, true)]);
    answer(&mut run, 1, Err(refusal(RefusalClass::Forbidden, 403)));
    answer(&mut run, 2, Err(refusal(RefusalClass::Forbidden, 403)));
    let [(None, message)] = &told(&mut run)[..] else { panic!("it is told once") };
    assert!(message.contains("the server's own words"), "{message}");
    assert_eq!(seconds(&mut run, 600, Some(&[])), []);
}

#[test]
fn other_refusals_are_tried_again_after_some_time() {
    let mut run = run(1);
    run.wait(SECOND);
    assert_eq!(changes(&mut run), [(1, true)]);
    answer(&mut run, 1, Err(refusal(RefusalClass::Transient, 500)));
    assert_eq!(seconds(&mut run, 8, None), []);
    assert_eq!(seconds(&mut run, 4, None), [(1, true)]);
    assert_eq!(told(&mut run), []);
}

#[test]
fn changes_are_sent_at_a_bounded_rate() {
    let mut run = run(40);
    run.wait(SECOND);
    let first = changes(&mut run);
    assert_eq!(first.len(), 16);
    run.wait(SECOND);
    assert_eq!(changes(&mut run), [], "none is answered");
    for (id, _) in first {
        answer(&mut run, id, Ok(()));
        run.watch(&[id], |pod| pod.is_protected = true);
    }
    run.wait(SECOND);
    assert_eq!(changes(&mut run).len(), 16);
}

#[test]
fn a_restarted_posse_finds_what_was_protected() {
    let group = GroupSpec { protect: Protect::Busy, ..spec("g", 2) };
    let mut run = Run::unlisted(policy(), vec![group]);
    run.pods = (1..=2).map(|id| run.pod("g", id)).collect();
    run.pods[0].is_protected = true;
    run.list();
    run.running(&[1, 2]);
    assert_eq!(seconds(&mut run, 30, None), [(2, true)]);
}

#[test]
fn only_the_group_that_asks_is_protected() {
    let mut run = Run::with_running(
        policy(),
        vec![spec("a", 1), GroupSpec { protect: Protect::Always, ..spec("b", 1) }],
    );
    assert_eq!(seconds(&mut run, 30, None), [], "`always` stands in the pod");
}
