//! What a kill at a bad moment must not lose, and what must not be begun again after it.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::sync::Arc;

use super::record::{call, recorded, restart};
use super::tasks::{creates, group, say, settle, state, task};
use crate::core_run::{Run, end_with, refusal, spec};
use posse_base::time::Millis;
use posse_core::model::command::{GroupChange, GroupCommand, Reply};
use posse_core::model::fact::{Fact, Knowledge, Topic};
use posse_core::model::ids::GroupName;
use posse_core::model::input::Input;
use posse_core::model::pod::{End, Phase};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::settings::{GroupSpec, Policy, Restart};
use posse_core::model::task::Task;

fn full() -> Refusal {
    let message = "pods \"x\" is forbidden: exceeded quota: q, requested: count/pods=1, used: count/pods=3, \
                   limited: count/pods=3";
    Refusal { message: message.to_owned(), ..refusal(RefusalClass::Capacity, 403) }
}

/// A group that ends after four indexes.
fn work() -> GroupSpec {
    GroupSpec { restart: Restart::OnFailure, completions: Some(4), ..spec("g", 4) }
}

/// A driver's program makes its groups itself, each time that it is started.
fn of_program() -> Policy {
    Policy { outlives_driver: false, ..recorded() }
}

/// The next process of a run whose groups come from calls. No pod is left.
fn begin_again(before: Run) -> Run {
    let facts = before.facts();
    let Run { version, now, record, .. } = before;
    let mut run = Run { version, now, record, ..Run::unlisted(of_program(), vec![]) };
    run.core.restore(facts, Millis(now));
    run.list();
    run
}

fn put_work(run: &mut Run) {
    let change = GroupChange {
        target: Some(4),
        restart: Some(Restart::OnFailure),
        completions: Some(4),
        ..GroupChange::default()
    };
    let reply = call(run, GroupCommand::Put { change });
    assert!(matches!(reply, Reply::Target(_)), "{reply:?}");
}

#[test]
fn a_quota_takes_no_pod_whose_end_the_record_lacks() {
    let plain = GroupSpec { restart: Restart::OnFailure, ..spec("g", 4) };
    for of_file in [group(0, Some(3)), plain] {
        let mut run = Run::new(recorded(), vec![of_file.clone()]);
        if of_file.target == 0 {
            say(&mut run, &["a", "b", "c", "d"].map(|key| task(key, 0)));
        }
        let ids: Vec<u64> = creates(&mut run).iter().map(|(id, ..)| *id).collect();
        run.start(&ids[..3]);
        run.watch(&ids[..3], |pod| pod.restart = of_file.restart);
        for id in ids.iter().skip(3) {
            run.refused(*id, full());
        }
        run.is_record_broken = true;
        run.watch(&[1], end_with(0));
        run.tell(Input::Patched { uid: run.pods[0].uid.clone(), answer: Ok(()) });
        for (is_broken, want) in [(true, &[][..]), (false, &["u1".to_owned()])] {
            run.is_record_broken = is_broken;
            let mut deletes = Vec::new();
            for _ in 0..60 {
                for (id, ..) in creates(&mut run.clone()) {
                    run.refused(id, full());
                }
                deletes.extend(run.deletes());
                run.wait(1_000);
            }
            assert_eq!(deletes, want, "{of_file:?}");
        }
    }
}

/// The pod of another index tells of them, from a run without a record.
#[test]
fn indexes_that_another_pod_tells_of_get_into_the_record() {
    // They stand on another line of the record than its own.
    let many = GroupSpec { target: 2, completions: Some(5_000), ..work() };
    let mut run = Run::unlisted(recorded(), vec![many.clone()]);
    let mut pod = run.pod("g", 9);
    (pod.slot, pod.restart, pod.completed) = (Some(4_999), Restart::OnFailure, true);
    end_with(0)(&mut pod);
    pod.end = Some(Box::new(End { folded: Some("0-1".into()), ..*pod.end.take().unwrap() }));
    run.pods.push(pod);
    run.list();
    let slots =
        |run: &mut Run| run.slots_created().into_iter().map(|(_, slot)| slot).collect::<Vec<_>>();
    assert_eq!(slots(&mut run), [2, 3]);
    run.wait(1_000);
    assert_eq!(slots(&mut restart(run, many, false)), [2, 3]);
}

/// Objects of the record are written one after the other.
#[test]
fn a_group_that_is_half_removed_begins_nothing_again() {
    let of_file = group(0, Some(2));
    let mut run = Run::new(recorded(), vec![of_file.clone()]);
    say(&mut run, &[task("a", 0), task("b", 0)]);
    settle(&mut run);
    run.watch(&[1, 2], end_with(0));
    run.wait(1_000);
    run.is_record_broken = true;
    call(&mut run, GroupCommand::Delete);
    let removals = run.clone().core.take_unrecorded();
    assert!(removals.len() > 4, "{removals:?}");
    for n in 0..=removals.len() {
        let mut before = run.clone();
        for Fact { topic, knowledge } in &removals[..n] {
            match knowledge {
                Some(known) => drop(before.record.insert(topic.clone(), known.clone())),
                None => drop(before.record.remove(topic)),
            }
        }
        let mut run = restart(before, of_file.clone(), false);
        assert_eq!(creates(&mut run), [], "after {n}: {removals:?}");
        run.wait(1_000);
        // What is left of a removed task says nothing about a new one with its key.
        let is_left = |topic: &Topic| matches!(topic, Topic::Progress(..));
        let is_whole = run.record.keys().filter(|topic| is_left(topic)).all(|topic| {
            let Topic::Progress(group, key) = topic else { return true };
            run.record.contains_key(&Topic::Task(group.clone(), Arc::clone(key)))
        });
        assert!(is_whole, "after {n}: {:?}", run.record);
    }
}

#[test]
fn ended_tasks_of_a_programs_group_are_known_when_it_makes_the_group_again() {
    let put = |run: &mut Run| {
        call(run, GroupCommand::Put { change: GroupChange::default() });
        say(run, &[task("a", 0), task("b", 0)]);
    };
    let mut run = Run::new(of_program(), vec![]);
    put(&mut run);
    settle(&mut run);
    run.watch(&[1], end_with(0));
    run.watch(&[2], end_with(1));
    run.wait(1_000);
    let mut run = begin_again(run);
    run.wait(60_000);
    put(&mut run);
    assert_eq!((state(&mut run, "a"), state(&mut run, "b")), ("succeeded", "failed"));
    assert_eq!(creates(&mut run), []);
}

#[test]
fn done_indexes_of_a_programs_group_are_not_begun_again() {
    let mut run = Run::new(of_program(), vec![]);
    put_work(&mut run);
    let slots = run.slots_created();
    let ids: Vec<u64> = slots.iter().map(|(id, _)| *id).collect();
    run.start(&ids);
    for (id, slot) in &slots {
        run.watch(&[*id], |pod| (pod.slot, pod.restart) = (Some(*slot), Restart::OnFailure));
    }
    run.watch(&ids[..2], end_with(0));
    run.wait(1_000);
    // Also if the process after it is killed before the program calls.
    let mut run = begin_again(begin_again(run));
    assert_eq!(run.slots_created(), []);
    put_work(&mut run);
    let slots: Vec<u32> = run.slots_created().iter().map(|(_, slot)| *slot).collect();
    assert_eq!(slots, [2, 3]);
    assert_eq!(run.group("g").target, 2);
    // Who deletes the group, or has deleted it, wants all of it again.
    call(&mut run, GroupCommand::Delete);
    run.wait(1_000);
    let is_work = |topic: &Topic| matches!(topic, Topic::Work(..));
    assert!(!run.record.keys().any(is_work), "{:?}", run.record);
}

/// Anybody can change an annotation.
#[test]
fn a_pod_says_nothing_new_about_a_task_of_the_record() {
    let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    let first = Task { args: words(&["right"]), ..task("a", 2) };
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    say(&mut run, std::slice::from_ref(&first));
    settle(&mut run);
    run.watch(&[1], |pod| {
        let run = pod.task.as_mut().unwrap();
        run.task = Arc::new(Task { args: words(&["wrong"]), ..first.clone() });
    });
    let mut run = restart(run, group(0, None), true);
    run.watch(&[1], |pod| pod.phase = Phase::Failed);
    run.wait(1_000);
    let known = Topic::Task(GroupName::from("g"), "a".into());
    let Some(Knowledge::Task { task, .. }) = run.record.get(&known) else { panic!("{known:?}") };
    assert_eq!(task.args, first.args);
    let reply = say(&mut run, &[first]);
    assert!(matches!(reply, Reply::Tasks(_)), "{reply:?}");
}
