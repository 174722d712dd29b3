//! What a call has ended stays ended over a kill, also if there is a group of that name again.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::sync::Arc;

use super::tasks::{creates, group, say, settle, show, state, task};
use crate::core_run::{Run, end_with, identity, kill, policy, spec};
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::command::{AfterKill, Command, GroupChange, GroupCommand, Reply};
use posse_core::model::event::DeleteCause;
use posse_core::model::fact::{Knowledge, Topic};
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::pod::{Draining, Pod};
use posse_core::model::settings::{Decommission, GroupSpec, Policy, RecordUse, Restart};
use posse_core::model::task::{Task, TaskRun};
use posse_core::reconciler::InstanceIdentity;

fn recorded() -> Policy {
    Policy { record: RecordUse::On, ends_with_work: true, outlives_driver: true, ..policy() }
}

/// The next process, before its first LIST.
fn next_process(before: &Run, groups: Vec<GroupSpec>) -> Run {
    let facts = before.facts();
    let Run { pods, version, now, record, .. } = before.clone();
    let mut run = Run { pods, version, now, record, ..Run::unlisted(recorded(), groups) };
    run.core.restore(facts, Millis(now));
    run
}

fn call(run: &mut Run, command: GroupCommand) -> Reply {
    run.call(Command::Group(GroupName::from("g"), command))
}

fn put(target: u32, work: Option<u32>) -> GroupCommand {
    let restart = work.map(|_| Restart::OnFailure);
    let change =
        GroupChange { target: Some(target), completions: work, restart, ..GroupChange::default() };
    GroupCommand::Put { change }
}

/// A task whose words say which one it is.
fn saying(key: &str, word: &str) -> Task {
    Task { args: Some(vec![word.to_owned()]), ..task(key, 0) }
}

/// The uids of the pods whose end was asked for since the last call.
fn ended(run: &mut Run) -> Vec<String> {
    let uids = run.take().into_iter().filter_map(|action| match action {
        Action::Delete { uid, .. } => Some(uid.to_string()),
        _ => None,
    });
    uids.collect()
}

fn is_remembered(run: &Run) -> bool {
    run.record.contains_key(&Topic::Dismissed(GroupName::from("g")))
}

#[test]
fn a_new_task_with_the_key_of_a_deleted_one_waits_for_its_pod() {
    let draining = |pod: &mut Pod| {
        let draining = Draining { cause: DeleteCause::Cancelled, until_unix_ms: None };
        (pod.draining, pod.deleting) = (Some(Box::new(draining)), true);
    };
    let completed = |pod: &mut Pod| {
        end_with(0)(pod);
        pod.completed = true;
    };
    let changes: [&dyn Fn(&mut Pod); 4] = [&|_| (), &draining, &end_with(0), &completed];
    for (i, change) in changes.into_iter().enumerate() {
        let runs = i < 2;
        for words in [["old", "new"], ["same", "same"]] {
            let mut run = Run::new(recorded(), vec![group(0, None)]);
            say(&mut run, &[saying("a", words[0])]);
            assert_eq!(settle(&mut run).len(), 1);
            call(&mut run, GroupCommand::Delete);
            call(&mut run, put(0, None));
            say(&mut run, &[saying("a", words[1])]);
            run.pods.iter_mut().for_each(change);
            let mut run = next_process(&run, vec![group(0, None)]);
            run.list();
            let begun = creates(&mut run);
            assert_eq!(begun.is_empty(), runs, "{i}: {begun:?}");
            if runs {
                assert_eq!(state(&mut run, "a"), "waiting", "{i}");
                run.gone(&[1]);
                assert_eq!(settle(&mut run), [(1_001, "a".to_owned(), 1)], "{i}");
            }
            let now = show(&mut run, "a").unwrap();
            assert_eq!((now.end, &now.task.args), (None, &Some(vec![words[1].to_owned()])), "{i}");
        }
    }
}

#[test]
fn a_deleted_group_stays_so_before_its_deletes_are_sent() {
    let mut run = Run::new(recorded(), vec![spec("h", 0)]);
    call(&mut run, put(1, None));
    say(&mut run, &[task("a", 0), task("b", 0)]);
    assert_eq!(settle(&mut run).len(), 3);
    call(&mut run, GroupCommand::Delete);
    let mut run = next_process(&run, vec![spec("h", 0)]);
    run.list();
    assert_eq!(
        (ended(&mut run), creates(&mut run)),
        (["u1", "u2", "u3"].map(str::to_owned).into(), vec![])
    );
    assert!(is_remembered(&run));
    run.gone(&[1, 2]);
    assert!(is_remembered(&run));
    run.gone(&[3]);
    assert!(!is_remembered(&run));
    assert!(!run.core.executors().groups().contains_key(&GroupName::from("g")));
    assert_eq!(run.facts(), []);
}

#[test]
fn what_a_deleted_group_does_last_is_no_work_of_the_next_one() {
    for is_killed in [false, true] {
        let mut run = Run::new(recorded(), vec![spec("h", 0)]);
        call(&mut run, put(2, Some(2)));
        assert_eq!(run.slots_created(), [(1, 0), (2, 1)]);
        for (id, slot) in [(1, 0), (2, 1)] {
            run.start(&[id]);
            run.watch(&[id], |pod| (pod.slot, pod.restart) = (Some(slot), Restart::OnFailure));
        }
        call(&mut run, GroupCommand::Delete);
        call(&mut run, put(2, Some(2)));
        if is_killed {
            let group =
                GroupSpec { restart: Restart::OnFailure, completions: Some(2), ..spec("g", 2) };
            run = next_process(&run, vec![group]);
            run.list();
            assert_eq!(ended(&mut run), ["u1", "u2"]);
        }
        run.take();
        run.watch(&[1], end_with(0));
        assert_eq!(run.group("g").completed, 0, "{is_killed}");
        run.gone(&[1, 2]);
        let slots: Vec<u32> = run.slots_created().into_iter().map(|(_, slot)| slot).collect();
        assert_eq!((slots, run.group("g").completed), (vec![0, 1], 0), "{is_killed}");
    }
}

/// The pods of the group are not known yet.
#[test]
fn a_group_that_is_deleted_before_the_first_list_ends_as_a_whole() {
    for is_made_again in [false, true] {
        let identity =
            InstanceIdentity { id_high_water: 1_000, is_id_high_water_stored: true, ..identity() };
        let mut run = Run::with_identity(identity, recorded(), vec![group(1, None)]);
        run.pods = (1..=2).map(|id| run.pod("g", id)).collect();
        let work = TaskRun { task: Arc::new(task("a", 0)), attempt: 1, retries_left: 0, round: 0 };
        run.pods[1].task = Some(Box::new(work));
        call(&mut run, GroupCommand::Delete);
        if is_made_again {
            call(&mut run, put(0, None));
        }
        run.list();
        assert_eq!(ended(&mut run), ["u1", "u2"], "{is_made_again}");
        run.gone(&[1, 2]);
        let is_there = run.core.executors().groups().contains_key(&GroupName::from("g"));
        assert_eq!(is_there, is_made_again);
    }
}

#[test]
fn who_was_killed_for_good_is_the_one_that_ends() {
    for (after, is_ended) in
        [(AfterKill::Lower, true), (AfterKill::Target(2), true), (AfterKill::Replace, false)]
    {
        let mut run = Run::with_running(recorded(), vec![spec("g", 3)]);
        run.call(kill(&[1], after, false));
        let mut run = next_process(&run, vec![spec("g", 3)]);
        run.list();
        assert_eq!(ended(&mut run) == ["u1"], is_ended, "{after:?}");
        assert_eq!(run.group("g").running, if is_ended { 2 } else { 3 }, "{after:?}");
    }
}

/// A driver may scale by kills for as long as one of them drains.
#[test]
fn killed_executors_that_are_gone_are_forgotten_beside_one_that_drains() {
    let decommission = Some(Decommission { after_ms: 3_600_000, label: None, by_term: false });
    let group = GroupSpec { decommission, ..spec("g", 3) };
    let mut run = Run::with_running(recorded(), vec![group]);
    run.call(kill(&[1], AfterKill::Lower, false));
    run.target("g", 2);
    let topic = Topic::Dismissed(GroupName::from("g"));
    for id in (2..40).step_by(2) {
        // Between two that are gone for good is one that was replaced. Two such pairs go together.
        for (id, after) in [(id, AfterKill::Replace), (id + 1, AfterKill::Lower)] {
            run.call(kill(&[id], after, true));
        }
        if id % 4 == 0 {
            run.gone(&[id - 2, id - 1, id, id + 1]);
        }
        run.target("g", 2);
        let created: Vec<u64> = creates(&mut run).into_iter().map(|(id, ..)| id).collect();
        run.start(&created);
        let Some(Knowledge::Dismissed(ids)) = run.record.get(&topic) else { panic!("{id}") };
        assert!(ids.first() == Some(&(1..=1)) && ids.len() <= 3, "{id}: {ids:?}");
        let last = ids.last().map(|ids| *ids.end());
        assert_eq!(last, Some(id + 1), "nobody else gets the highest id");
    }
    run.gone(&[1, 38, 39]);
    assert!(!is_remembered(&run));
}

/// Who was told to repeat a call is told that it is done when the next process knows of it.
#[test]
fn a_repeated_call_waits_for_the_record_as_the_first_one_does() {
    let cancel = GroupCommand::CancelTask { key: "a".into() };
    let of_group = |command| Command::Group(GroupName::from("g"), command);
    let calls: [&[Command]; 3] = [
        &[kill(&[2], AfterKill::Lower, true)],
        &[of_group(GroupCommand::Delete)],
        // The task is gone with its group.
        &[of_group(GroupCommand::Delete), of_group(put(0, None)), of_group(cancel)],
    ];
    for calls in calls {
        let mut run = Run::with_running(recorded(), vec![spec("h", 0)]);
        run.call(of_group(put(2, None)));
        say(&mut run, &[task("a", 0)]);
        let running = settle(&mut run).into_iter().map(|(id, ..)| id).collect::<Vec<u64>>();
        assert_eq!(running, [1, 2, 3]);
        run.is_record_broken = true;
        for command in calls.iter().chain(calls.last()) {
            assert!(command.is_recorded());
            let reply = run.call(command.clone());
            let change = run.core.awaited_change(&reply);
            assert_eq!(change, Some(run.core.recorded().0), "{command:?}: {reply:?}");
            let pods: Vec<u64> = run.pods.iter().map(|pod| pod.id.0).collect();
            run.gone(&pods);
        }
        let change = GroupChange { completions: Some(0), ..GroupChange::default() };
        let wrong = run.call(of_group(GroupCommand::Put { change }));
        assert_eq!(run.core.awaited_change(&wrong), None, "{wrong:?}");
        run.is_record_broken = false;
        run.wait(31_000);
        let reply = run.call(calls[0].clone());
        assert_eq!(run.core.awaited_change(&reply), None, "{reply:?}");
    }
}

/// Their Lease was deleted, so nothing else tells which ids were used.
#[test]
fn no_new_executor_gets_the_id_of_a_dismissed_one() {
    let mut run = Run::with_running(recorded(), vec![spec("g", 3)]);
    call(&mut run, GroupCommand::Delete);
    let facts = run.facts();
    let mut run = Run::new(recorded(), vec![]);
    assert!(facts.iter().any(|fact| fact.topic == Topic::Dismissed(GroupName::from("g"))));
    let identity = InstanceIdentity { is_id_high_water_stored: true, ..identity() };
    run = Run {
        version: run.version,
        ..Run::with_identity(identity, recorded(), vec![spec("g", 4)])
    };
    run.core.restore(facts, Millis(0));
    run.list();
    run.tell(posse_core::model::input::Input::IdsReserved { up_to: ExecutorId(1_000) });
    let ids: Vec<u64> = creates(&mut run).into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, [4, 5, 6, 7]);
    assert!(is_remembered(&run), "one that an earlier process has sent may come yet");
    run.list();
    assert!(!is_remembered(&run));
}
