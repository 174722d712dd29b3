//! What a run was told outlives its process and its pods.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::ops::Range;

use super::tasks::{creates, ends, group, say, settle, show, state, task};
use crate::core_run::{Run, STOP, end_with, identity, kill, policy, spec};
use posse_base::time::Millis;
use posse_core::model::action::{Action, RunVerdict};
use posse_core::model::command::{AfterKill, Command, GroupCommand, Reply};
use posse_core::model::event::{DeleteCause, Event, ExecutorEvent};
use posse_core::model::fact::{EndedWork, Fact, Knowledge, Topic};
use posse_core::model::ids::{ExecutorId, GroupName, Uid};
use posse_core::model::input::{Input, PodEvent, RecordError};
use posse_core::model::pod::{Draining, Pod};
use posse_core::model::settings::{GroupSpec, OnLoss, Policy, RecordUse, Restart};
use posse_core::model::task::{After, TASKS_BYTES_MAX, Task, TaskArray};
use posse_core::reconciler::InstanceIdentity;

pub(super) fn recorded() -> Policy {
    Policy { record: RecordUse::On, ends_with_work: true, outlives_driver: true, ..policy() }
}

/// The next process. `pods`: whether those of the one before are there; else its driver's pod is gone, and they
/// with it.
pub(super) fn restart(before: Run, group: GroupSpec, has_pods: bool) -> Run {
    let facts = before.facts();
    let Run { pods, version, now, record, .. } = before;
    let pods = if has_pods { pods } else { vec![] };
    let mut run = Run { pods, version, now, record, ..Run::unlisted(recorded(), vec![group]) };
    run.core.restore_deleted(&facts, Millis(now));
    run.core.restore(facts, Millis(now));
    run.list();
    run
}

pub(super) fn call(run: &mut Run, command: GroupCommand) -> Reply {
    run.call(Command::Group(GroupName::from("g"), command))
}

#[test]
fn tasks_are_there_when_the_drivers_pod_is_not() {
    let mut run = Run::new(recorded(), vec![group(0, Some(2))]);
    let after = Task { after: [("done".into(), After::Ok)].into(), ..task("after", 0) };
    let skipped = Task { after: [("failed".into(), After::Ok)].into(), ..task("skipped", 0) };
    let tasks =
        ["done", "failed", "again", "lost"].map(|key| task(key, u32::from(key == "again") * 3));
    say(&mut run, &tasks);
    say(&mut run, &[after, skipped, task("last", 0), task("cancelled", 0)]);
    settle(&mut run);
    call(&mut run, GroupCommand::CancelTask { key: "cancelled".into() });
    run.watch(&[1], end_with(0));
    run.watch(&[2], end_with(1));
    assert_eq!(settle(&mut run), [(3, "again".to_owned(), 1), (4, "lost".to_owned(), 1)]);
    run.watch(&[3], end_with(1));
    assert_eq!(settle(&mut run), [(5, "again".to_owned(), 2)]);
    assert_eq!(ends(&mut run).len(), 4);
    let mut run = restart(run, group(0, Some(2)), false);
    let keys = ["done", "failed", "skipped", "cancelled", "again", "lost", "after", "last"];
    let states: Vec<&str> = keys.iter().map(|key| state(&mut run, key)).collect();
    let want =
        ["succeeded", "failed", "skipped", "cancelled", "pending", "pending", "waiting", "waiting"];
    assert_eq!(states, want);
    assert_eq!(ends(&mut run), [], "each end was told");
    assert_eq!((show(&mut run, "failed").unwrap().end.unwrap().exit_code), Some(1));
    // In the old order, and each in its next attempt.
    let begun = settle(&mut run);
    assert!(begun.iter().all(|(id, ..)| *id > 1_000), "no id of an ended task is used again");
    let begun: Vec<(&str, u32)> = begun.iter().map(|(_, key, n)| (key.as_str(), *n)).collect();
    assert_eq!(begun, [("again", 2), ("lost", 2)]);
    // Two of three retries are left.
    for n in [3, 4] {
        let id = run.core.executors().iter().map(|(id, _)| id.0).min().unwrap();
        let at = run.core.executors().iter().find(|(_, e)| {
            e.task.as_ref().is_some_and(|run| &*run.task.key == "again" && run.attempt == n - 1)
        });
        let id = at.map_or(id, |(id, _)| id.0);
        run.watch(&[id], end_with(1));
        assert!(settle(&mut run).iter().any(|(_, key, of)| key == "again" && *of == n));
    }
}

/// The Lease was deleted, or a restore took it back, so the record alone tells which ids were used.
#[test]
fn no_executor_gets_an_id_that_the_record_names() {
    for (what, ended, code, want) in [("a task", 3, 1, 4), ("work", 2, 0, 3)] {
        let of_file = GroupSpec { restart: Restart::OnFailure, ..group(2, None) };
        let mut run = Run::with_running(recorded(), vec![of_file.clone()]);
        say(&mut run, &[task("a", 0)]);
        assert_eq!(settle(&mut run), [(3, "a".to_owned(), 1)]);
        run.watch(&[ended], end_with(code));
        let facts = run.facts();
        let identity = InstanceIdentity { is_id_high_water_stored: true, ..identity() };
        let mut run = Run::with_identity(identity, recorded(), vec![of_file]);
        run.core.restore(facts, Millis(0));
        run.list();
        run.tell(Input::IdsReserved { up_to: ExecutorId(1_000) });
        let first = creates(&mut run).into_iter().map(|(id, ..)| id).min();
        assert_eq!(first, Some(want), "{what}");
    }
}

#[test]
fn a_kill_alone_changes_nothing() {
    let mut run = Run::new(recorded(), vec![group(0, Some(2))]);
    say(&mut run, &["a", "b", "c"].map(|key| task(key, 0)));
    assert_eq!(settle(&mut run).len(), 2);
    let mut run = restart(run, group(0, Some(2)), true);
    let states = ["a", "b", "c"].map(|key| state(&mut run, key));
    assert_eq!(states, ["running", "running", "waiting"]);
    assert_eq!(creates(&mut run), []);
    // The same call again.
    let said = say(&mut run, &["a", "b", "c", "d"].map(|key| task(key, 0)));
    assert!(matches!(said, Reply::Tasks(all) if all.len() == 4));
    run.watch(&[1], end_with(0));
    assert_eq!(settle(&mut run), [(1_001, "c".to_owned(), 1)]);
}

#[test]
fn a_call_opens_a_recorded_task_again() {
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0)]);
    settle(&mut run);
    run.watch(&[1], end_with(1));
    let mut run = restart(run, group(0, None), false);
    assert_eq!((state(&mut run, "a"), creates(&mut run)), ("failed", vec![]));
    call(&mut run, GroupCommand::RetryTask { key: "a".into() });
    let mut run = restart(run, group(0, None), false);
    assert_eq!(settle(&mut run), [(1, "a".to_owned(), 2)]);
}

/// The pods of the attempt before are still there, and tell of an end that no longer counts.
#[test]
fn a_task_that_was_opened_again_stays_so_over_a_restart() {
    for is_cancelled in [false, true] {
        let mut run = Run::new(recorded(), vec![group(0, Some(1))]);
        say(&mut run, &[task("a", 0), task("b", 0)]);
        assert_eq!(settle(&mut run), [(1, "a".to_owned(), 1)]);
        if is_cancelled {
            call(&mut run, GroupCommand::CancelTask { key: "a".into() });
            let draining = Draining { cause: DeleteCause::Cancelled, until_unix_ms: None };
            run.watch(&[1], |pod| pod.draining = Some(Box::new(draining)));
        } else {
            run.watch(&[1], end_with(1));
            run.watch(&[1], |pod| pod.counted = Some(9));
            assert_eq!(settle(&mut run), [(2, "b".to_owned(), 1)]);
        }
        call(&mut run, GroupCommand::RetryTask { key: "a".into() });
        let mut run = restart(run, group(0, Some(2)), true);
        ends(&mut run);
        let begun = settle(&mut run);
        if is_cancelled {
            assert_eq!(begun, [(1_001, "b".to_owned(), 1)], "a waits for its pod");
            run.gone(&[1]);
            assert_eq!(settle(&mut run), [(1_002, "a".to_owned(), 2)]);
        } else {
            assert_eq!(begun, [(1_001, "a".to_owned(), 2)]);
        }
        assert_eq!(ends(&mut run), [], "{is_cancelled}");
    }
}

fn work(n: u32) -> GroupSpec {
    GroupSpec { restart: Restart::OnFailure, completions: Some(n), ..spec("g", 2) }
}

/// These executors run, in their slots.
fn show_in_slots(run: &mut Run, all: &[(u64, u32)]) {
    for &(id, slot) in all {
        run.created(&[id]);
        run.watch(&[id], |pod| (pod.slot, pod.restart) = (Some(slot), Restart::OnFailure));
        run.running(&[id]);
    }
}

#[test]
fn an_index_that_is_done_is_never_begun_again() {
    for has_pods in [false, true] {
        let mut run = Run::new(recorded(), vec![work(4)]);
        let first = run.slots_created();
        assert_eq!(first, [(1, 0), (2, 1)]);
        show_in_slots(&mut run, &first);
        run.watch(&[2], end_with(0));
        run.watch(&[2], |pod| pod.completed = true);
        let next = run.slots_created();
        assert_eq!(next, [(3, 2)]);
        show_in_slots(&mut run, &next);
        let mut run = restart(run, work(4), has_pods);
        assert_eq!(run.group("g").completed, 1, "with pods: {has_pods}");
        // Without pods 0 and 2 begin again, and never 1.
        let slots: Vec<u32> = run.slots_created().into_iter().map(|(_, slot)| slot).collect();
        assert_eq!(slots, if has_pods { vec![] } else { vec![0, 2] });
    }
}

/// Each write sends the whole line of what has changed.
#[test]
fn an_end_changes_the_line_of_a_block_of_indexes() {
    let block = |n: u32, ended: Range<u32>, attempt: u32| Fact {
        topic: Topic::Work(GroupName::from("g"), n),
        knowledge: Some(Knowledge::Work {
            attempt,
            ended: EndedWork { completed: ended.collect(), ..EndedWork::default() },
        }),
    };
    let mut run = Run::unlisted(recorded(), vec![work(10_000)]);
    let facts = vec![block(0, 0..4_095, 1), block(1, 4_096..8_191, 1)];
    run.core.restore(facts, Millis(0));
    run.list();
    let created = run.slots_created();
    assert_eq!(created, [(1, 4_095), (2, 8_191)]);
    show_in_slots(&mut run, &created);
    run.record.clear();
    run.watch(&[2], end_with(0));
    assert_eq!(run.facts(), [block(1, 4_096..8_192, 1)]);
    run.watch(&[1], end_with(0));
    assert_eq!(run.facts(), [block(0, 0..4_096, 1), block(1, 4_096..8_192, 1)]);
    assert_eq!(restart(run, work(10_000), false).group("g").completed, 8_192);
    // posse was killed while it wrote that the group begins again: the first block is written first.
    let group = GroupSpec { on_loss: OnLoss::Group, ..work(10_000) };
    let mut run = Run::unlisted(recorded(), vec![group]);
    let facts = vec![block(0, 0..0, 2), block(1, 4_096..8_192, 1)];
    run.record =
        facts.iter().map(|fact| (fact.topic.clone(), fact.knowledge.clone().unwrap())).collect();
    run.core.restore(facts, Millis(0));
    run.list();
    assert_eq!((run.group("g").completed, run.facts()), (0, vec![block(0, 0..0, 2)]));
}

/// posse was lost after the end was recorded, and before it labelled the pod and told so.
#[test]
fn work_that_only_the_record_tells_of_is_told_as_done() {
    let mut run = Run::new(recorded(), vec![work(1)]);
    assert_eq!(run.slots_created(), [(1, 0)]);
    run.start(&[1]);
    run.watch(&[1], |pod| (pod.slot, pod.restart) = (Some(0), Restart::OnFailure));
    run.watch(&[1], end_with(0));
    let run = restart(run, work(1), true);
    let is_end = |event: &&Event| {
        let Event::Executor(_, event) = event else { return false };
        matches!(event, ExecutorEvent::Completed { .. } | ExecutorEvent::Lost { .. })
    };
    let ends: Vec<&Event> = run.events.iter().filter(is_end).collect();
    assert!(matches!(ends[..], [Event::Executor(_, ExecutorEvent::Completed { .. })]), "{ends:?}");
    assert_eq!(run.group("g").completed, 1);
}

#[test]
fn a_run_whose_work_was_done_ends_without_another_pod() {
    let mut run = Run::new(recorded(), vec![work(1)]);
    let all = run.slots_created();
    assert_eq!(all, [(1, 0)]);
    run.start(&[1]);
    run.watch(&[1], |pod| pod.slot = Some(0));
    run.watch(&[1], end_with(0));
    let mut run = restart(run, work(1), false);
    run.wait(2_000);
    assert_eq!(run.core.poll_verdict(), Some(RunVerdict::AllEnded { n_given_up: 0 }));
    assert_eq!(run.slots_created(), []);
}

/// Nothing of a call in a stop is recorded, so none is accepted.
#[test]
fn a_call_during_the_stop_is_refused() {
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0)]);
    settle(&mut run);
    run.stop(STOP);
    let refused = |reply: Reply| matches!(reply, Reply::NotRecorded { .. });
    assert!(refused(say(&mut run, &[task("b", 0)])));
    for command in [
        GroupCommand::CancelTask { key: "a".into() },
        GroupCommand::RetryTask { key: "a".into() },
        GroupCommand::SetTarget { target: 1 },
        GroupCommand::Delete,
    ] {
        assert!(refused(call(&mut run, command.clone())), "{command:?}");
    }
    assert!(!refused(call(&mut run, GroupCommand::ShowTasks { key: None })));
    for (after, is_refused) in
        [(AfterKill::Lower, true), (AfterKill::Target(6), true), (AfterKill::Replace, false)]
    {
        assert_eq!(refused(run.call(kill(&[1], after, true))), is_refused, "{after:?}");
    }
}

/// The next process has to know what a kill has cancelled before anybody hears that it is done.
#[test]
fn a_kill_that_lowers_is_a_change_of_the_record() {
    for (after, want) in
        [(AfterKill::Lower, true), (AfterKill::Target(0), true), (AfterKill::Replace, false)]
    {
        assert_eq!(kill(&[1], after, true).is_recorded(), want, "{after:?}");
    }
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0)]);
    settle(&mut run);
    let (before, _) = run.core.recorded();
    run.call(kill(&[1], AfterKill::Lower, true));
    assert!(run.core.recorded().0 > before);
    let mut run = restart(run, group(0, None), false);
    assert_eq!(state(&mut run, "a"), "cancelled");
}

/// What is added to an array after a task that waits for the array holds it up neither before nor after a restart.
#[test]
fn a_later_task_of_an_array_skips_nothing_after_a_restart() {
    let of_array = |index| Task {
        array: Some(TaskArray { name: "x".into(), index, max: None }),
        ..task(&format!("x-{index}"), 0)
    };
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    say(&mut run, &[of_array(1)]);
    say(&mut run, &[Task { after: [("x".into(), After::Ok)].into(), ..task("after", 0) }]);
    say(&mut run, &[of_array(2)]);
    assert_eq!(settle(&mut run).len(), 2);
    run.watch(&[2], end_with(1));
    assert_eq!((state(&mut run, "x-2"), state(&mut run, "after")), ("failed", "held"));
    let mut run = restart(run, group(0, None), true);
    assert_eq!((state(&mut run, "x-2"), state(&mut run, "after")), ("failed", "held"));
    run.watch(&[1], end_with(0));
    assert_eq!(settle(&mut run).len(), 1, "its array has ended as far as it waits for it");
}

#[test]
fn the_pod_of_an_ended_task_stays_until_its_end_is_recorded() {
    let mut run = Run::new(recorded(), vec![group(0, Some(1))]);
    let tasks: Vec<Task> = (0..53).map(|i| task(&format!("t{i}"), 0)).collect();
    say(&mut run, &tasks);
    let deletes = |run: &mut Run| {
        run.turn();
        let all = run.take().into_iter();
        all.filter(|action| matches!(action, Action::Delete { .. })).count()
    };
    for id in 1..=52 {
        run.created(&[id]);
        run.running(&[id]);
        run.is_record_broken = id > 50;
        run.watch(&[id], end_with(0));
        run.watch(&[id], |pod| pod.completed = true);
        run.tell(Input::Patched { uid: Uid::new(&format!("u{id}")), answer: Ok(()) });
    }
    // Two are beyond the fifty that stay to be looked at, and the oldest are recorded.
    assert_eq!(deletes(&mut run), 2);
    let (n_changes, n_recorded) = run.core.recorded();
    assert!(n_recorded < n_changes);
    run.is_record_broken = false;
    run.wait(31_000);
    let (n_changes, n_recorded) = run.core.recorded();
    assert_eq!(n_recorded, n_changes);
}

/// The pods of those that have completed are gone. Who is found is not alone for that.
#[test]
fn a_restart_of_posse_is_no_loss_of_a_group() {
    let group = GroupSpec { on_loss: OnLoss::Group, ..work(6) };
    let mut run = Run::new(recorded(), vec![group.clone()]);
    for id in 1..=3 {
        let created = run.slots_created();
        show_in_slots(&mut run, &created);
        run.watch(&[id], end_with(0));
    }
    let created = run.slots_created();
    show_in_slots(&mut run, &created);
    let stale = run.facts();
    run.gone(&[1, 2, 3]);
    let mut again = restart(run.clone(), group.clone(), true);
    assert_eq!((again.group("g").completed, again.losses()), (3, vec![]));
    assert_eq!(again.slots_created(), []);
    // But the loss of all that were left is one, and also those that have completed are needed again.
    let mut again = restart(run.clone(), group.clone(), false);
    assert_eq!((again.slots_created(), again.group("g").completed), (vec![], 0));
    again.turn();
    assert_eq!(again.slots_created().iter().map(|created| created.1).min(), Some(0));
    // It begins when the record counts nothing of the attempt before.
    let mut broken = run.clone();
    broken.is_record_broken = true;
    broken.gone(&[4]);
    broken.gone(&[5]);
    assert_eq!((broken.slots_created(), broken.group("g").completed), (vec![], 0));
    broken.is_record_broken = false;
    broken.wait(31_000);
    assert_eq!(broken.slots_created().len(), 2);
    // posse was killed before the record had the next attempt.
    run.pods.iter_mut().for_each(|pod| pod.attempt = 2);
    let Run { pods, version, now, .. } = run;
    let mut run = Run { pods, version, now, ..Run::unlisted(recorded(), vec![group]) };
    run.core.restore(stale, Millis(now));
    run.list();
    assert_eq!(run.group("g").completed, 0);
}

#[test]
fn a_run_that_cannot_record_takes_no_task() {
    let why = "the right to create configmaps is missing".to_owned();
    let policy = Policy { record: RecordUse::Missing(why), ..recorded() };
    let mut run = Run::new(policy, vec![group(0, None)]);
    let Reply::Refused { what, .. } = say(&mut run, &[task("a", 0)]) else { panic!() };
    assert!(what.contains("right to create configmaps"), "{what}");
    assert_eq!(creates(&mut run), []);
}

#[test]
fn without_the_lease_nothing_is_recorded() {
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    run.tell(Input::Lease { held: false, high_water: None });
    say(&mut run, &[task("a", 0)]);
    assert_eq!(run.facts(), []);
    run.tell(Input::Lease { held: true, high_water: None });
    assert_ne!(run.facts(), []);
}

#[test]
fn a_restored_server_gets_all_that_is_known() {
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0)]);
    settle(&mut run);
    run.watch(&[1], end_with(0));
    let topics: Vec<Topic> = std::mem::take(&mut run.record).into_keys().collect();
    run.refused_by_history();
    run.list();
    assert!(topics.iter().all(|topic| run.record.contains_key(topic)), "{:?}", run.record);
}

#[test]
fn a_run_whose_record_another_posse_writes_ends() {
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    for (is_taken_over, ends) in [(false, false), (true, true)] {
        let answer = Err(RecordError { why: "b".to_owned(), is_taken_over });
        run.tell(Input::Recorded { answer });
        let verdict = ends.then(|| RunVerdict::TakenOver { holder: "b".to_owned() });
        assert_eq!(run.core.poll_verdict(), verdict);
    }
}

#[test]
fn the_tasks_of_a_run_have_so_many_bytes() {
    const MIB: usize = 1 << 20;
    let big = |i: usize| Task { args: Some(vec!["x".repeat(MIB)]), ..task(&format!("t{i}"), 0) };
    let n_max = TASKS_BYTES_MAX / MIB;
    let mut run = Run::new(recorded(), vec![group(0, Some(1))]);
    let all: Vec<Task> = (1..n_max).map(big).collect();
    assert!(matches!(say(&mut run, &all), Reply::Tasks(_)));
    let Reply::TooMany { what, .. } = say(&mut run, &[big(n_max)]) else { panic!() };
    assert!(what.contains(&format!("the maximum is {TASKS_BYTES_MAX}")), "{what}");
    assert_eq!(state(&mut run, &format!("t{n_max}")), "unknown");
    settle(&mut run);
    run.watch(&[1], end_with(0));
    assert!(matches!(say(&mut run, &[big(n_max)]), Reply::Tasks(_)), "one has ended");
}

#[test]
fn a_stop_changes_nothing_of_what_is_left_to_do() {
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0)]);
    settle(&mut run);
    run.stop(STOP);
    run.watch(&[1], end_with(143));
    run.gone(&[1]);
    assert!(run.facts().iter().all(|fact| !matches!(fact.topic, Topic::Progress(..))));
    run.write_last();
    let mut run = restart(run, group(0, None), false);
    assert_eq!(
        settle(&mut run),
        [(1, "a".to_owned(), 2)],
        "the attempt that the stop ended counts"
    );
}

/// It is seen only in the stop, as a change or when the stop has deleted the pod.
#[test]
fn what_has_ended_by_itself_before_its_delete_is_done_in_a_stop_too() {
    let plain = || GroupSpec { restart: Restart::OnFailure, ..spec("g", 1) };
    let cases = [(work(1), false), (plain(), false), (group(0, None), true)];
    for (group, has_task) in cases {
        for (deleting, is_gone) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut run = Run::new(recorded(), vec![group.clone()]);
            if has_task {
                say(&mut run, &[task("a", 0)]);
            }
            run.take();
            run.start(&[1]);
            let has_slot = group.completions.is_some();
            run.watch(&[1], |pod| {
                (pod.slot, pod.restart) = (has_slot.then_some(0), group.restart);
            });
            run.stop(STOP);
            let end = |pod: &mut Pod| {
                end_with(0)(pod);
                pod.deleting = deleting;
            };
            match is_gone {
                true => run.vanish(&[1], end),
                false => run.watch(&[1], end),
            }
            run.take();
            run.write_last();
            let mut run = restart(run, group.clone(), false);
            let n_begun = creates(&mut run).len();
            assert_eq!(n_begun, usize::from(deleting), "{group:?} {has_task} {is_gone}");
        }
    }
}

/// An executor whose end is in the record, and not yet on its pod.
#[test]
fn an_index_that_was_given_up_counts_once() {
    let group = || GroupSpec { restart: Restart::Never, ..work(2) };
    let mut run = Run::new(recorded(), vec![group()]);
    assert_eq!(run.slots_created(), [(1, 0), (2, 1)]);
    for (id, slot) in [(1, 0), (2, 1)] {
        run.start(&[id]);
        run.watch(&[id], |pod| {
            (pod.slot, pod.restart) = (Some(slot), Restart::Never);
        });
    }
    run.failed(&[1]);
    let run = restart(run, group(), true);
    let work = run.core.executors().groups()[&GroupName::from("g")].work;
    assert_eq!((work.n_completed(), work.n_given_up()), (0, 1));
}

/// The pod of a surplus executor has ended with 0 before its delete reached it.
#[test]
fn work_that_ends_before_its_delete_is_done() {
    for deleting in [false, true] {
        let mut run = Run::new(recorded(), vec![work(2)]);
        assert_eq!(run.slots_created(), [(1, 0), (2, 1)]);
        for (id, slot) in [(1, 0), (2, 1)] {
            run.start(&[id]);
            run.watch(&[id], |pod| {
                (pod.slot, pod.restart) = (Some(slot), Restart::OnFailure);
            });
        }
        call(&mut run, GroupCommand::SetTarget { target: 1 });
        run.wait(1_000);
        assert!(run.take().iter().any(|action| matches!(action, Action::Delete { .. })));
        run.watch(&[2], |pod| {
            end_with(0)(pod);
            pod.deleting = deleting;
        });
        assert_eq!(run.group("g").completed, u32::from(!deleting));
    }
}

/// etcd was restored while a write was under way: a part of it may be gone.
#[test]
fn what_a_restore_may_have_cost_is_not_acknowledged() {
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    run.is_record_slow = true;
    say(&mut run, &[task("a", 0)]);
    run.wait(1_000);
    let (n_changes, _) = run.core.recorded();
    run.refused_by_history();
    run.list();
    run.tell(Input::Recorded { answer: Ok(()) });
    assert!(run.core.recorded().1 < n_changes);
    run.tell(Input::Recorded { answer: Ok(()) });
    assert!(run.core.recorded().1 >= n_changes);
}

/// A restore of etcd lets the pod run again in which a task has ended. A note of a cancelled task on it would deceive the
/// next process, if that finds the record as it was restored.
#[test]
fn a_restore_cancels_no_task_that_has_ended() {
    for (code, outcome) in [(0, "succeeded"), (1, "failed")] {
        let mut run = Run::new(recorded(), vec![group(0, None)]);
        say(&mut run, &[task("a", 0), task("b", 0)]);
        settle(&mut run);
        let pods = run.pods.clone();
        run.watch(&[1], end_with(code));
        let mut run = restart(Run { pods, ..run }, group(0, None), true);
        assert_eq!((state(&mut run, "a"), ends(&mut run)), (outcome, vec![]));
        let asked = run.take().into_iter();
        let ended: Vec<Action> = asked
            .filter(|action| matches!(action, Action::Delete { .. } | Action::Patch { .. }))
            .collect();
        assert!(
            matches!(&ended[..], [Action::Delete { name, .. }] if name.ends_with("-1")),
            "{ended:?}"
        );
    }
}

/// Nobody has told that they have ended. The first was being ended when it did.
#[test]
fn of_two_that_have_done_an_index_the_later_one_counts() {
    let mut run = Run::new(policy(), vec![work(1)]);
    assert_eq!(run.slots_created(), [(1, 0)]);
    run.start(&[1]);
    run.watch(&[1], |pod| {
        (pod.slot, pod.restart) = (Some(0), Restart::OnFailure);
    });
    run.watch(&[1], end_with(0));
    let first = run.pods[0].clone();
    let name = first.name.replace('1', "2").into();
    let later = Pod { uid: Uid::new("u2"), name, id: ExecutorId(2), ..first.clone() };
    let Run { version, now, .. } = run;
    let pods = vec![first, later];
    let mut run = Run { pods, version, now, ..Run::unlisted(policy(), vec![work(1)]) };
    run.list();
    let completed = run.events.iter().filter_map(|event| match event {
        Event::Executor(of, ExecutorEvent::Completed { .. }) => Some(of.id.0),
        _ => None,
    });
    assert_eq!(completed.collect::<Vec<u64>>(), [2]);
}

/// An older posse has run these tasks without a record: what has a pod goes on, and is recorded from then on.
#[test]
fn a_run_without_a_record_is_taken_over() {
    let group = || group(0, Some(2));
    let mut run = Run::new(policy(), vec![group()]);
    say(&mut run, &["a", "b", "c"].map(|key| task(key, 0)));
    assert_eq!(settle(&mut run).len(), 2);
    let Run { pods, version, now, .. } = run;
    let mut run = Run { pods, version, now, ..Run::unlisted(recorded(), vec![group()]) };
    run.list();
    assert_eq!(["a", "b"].map(|key| state(&mut run, key)), ["running", "running"]);
    assert_eq!(show(&mut run, "c"), None, "it had no pod");
    run.watch(&[1], end_with(0));
    let mut run = restart(run, group(), false);
    assert_eq!(["a", "b"].map(|key| state(&mut run, key)), ["succeeded", "pending"]);
    assert_eq!(settle(&mut run), [(1_001, "b".to_owned(), 2)]);
}

/// A watch that was overtaken by the LIST tells the end of a pod of an earlier run, whose name is used again.
#[test]
fn the_end_of_an_earlier_pod_is_not_that_of_a_create() {
    let mut run = Run::new(policy(), vec![work(1)]);
    assert_eq!(run.slots_created(), [(1, 0)]);
    let mut earlier = Pod { slot: Some(3), restart: Restart::OnFailure, ..run.pod("g", 1) };
    end_with(0)(&mut earlier);
    (earlier.uid, earlier.version) = (Uid::new("earlier"), run.core.watermark().position);
    let epoch = run.core.watermark().epoch;
    run.tell(Input::Watch { epoch, events: vec![PodEvent::Deleted(earlier)] });
    assert_eq!(run.group("g").completed, 0);
    run.start(&[1]);
    assert_eq!(run.group("g").running, 1);
}
