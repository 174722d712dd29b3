//! Tasks whose pods another process of posse finds.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use super::tasks::{creates, ends, group, say, settle, show, state, task};
use crate::core_run::{Run, end_with, heard, kill, policy};
use posse_core::model::action::{Action, Patch};
use posse_core::model::command::{AfterKill, Command, GroupCommand, Reply};
use posse_core::model::event::DeleteCause;
use posse_core::model::ids::{GroupName, Uid};
use posse_core::model::input::Input;
use posse_core::model::pod::{Draining, Pod};
use posse_core::model::settings::{Decommission, GroupSpec, OnLoss, Policy};

/// The same pods, found by a process after a kill -9.
pub(super) fn restart(before: Run, group: GroupSpec) -> Run {
    restart_with(policy(), before, group)
}

pub(super) fn restart_with(policy: Policy, before: Run, group: GroupSpec) -> Run {
    let Run { pods, version, now, .. } = before;
    let mut run = Run { pods, version, now, ..Run::unlisted(policy, vec![group]) };
    run.list();
    run
}

#[test]
fn a_restarted_posse_finds_tasks_and_their_ends_on_pods() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    let keys = ["live", "done", "failed", "again", "cancelled", "terminating"];
    let tasks = keys.map(|key| task(key, u32::from(key == "again")));
    say(&mut run, &tasks);
    settle(&mut run);
    run.watch(&[2], end_with(0));
    run.watch(&[3, 4], end_with(1));
    assert_eq!(settle(&mut run), [(7, "again".to_owned(), 2)]);
    run.watch(&[2], |pod| pod.completed = true);
    run.watch(&[3, 4], |pod| pod.counted = Some(9));
    let (cause, until_unix_ms) = (DeleteCause::Cancelled, Some(9_000_000));
    run.watch(&[5], |pod| pod.draining = Some(Box::new(Draining { cause, until_unix_ms })));
    run.watch(&[6], |pod| pod.deleting = true);
    let mut run = restart(run, group(0, None));
    let states: Vec<&str> = keys.iter().map(|key| state(&mut run, key)).collect();
    assert_eq!(states, ["running", "succeeded", "failed", "running", "cancelled", "waiting"]);
    assert_eq!(ends(&mut run), [("cancelled".to_owned(), "cancelled", None, 1)]);
    assert_eq!(creates(&mut run), []);
    assert_eq!(show(&mut run, "again").unwrap().attempts, 2);
    // Said again, nothing starts. A kill may have come before anybody read the events of the process
    // before, so this one tells the ends that it found on pods, once.
    assert!(matches!(say(&mut run, &tasks), Reply::Tasks(_)));
    assert_eq!(creates(&mut run), []);
    let found = [("done", "succeeded", 0), ("failed", "failed", 1)];
    let found = found.map(|(key, outcome, code)| (key.to_owned(), outcome, Some(code), 1));
    assert_eq!(ends(&mut run), found);
    say(&mut run, &tasks);
    assert_eq!(ends(&mut run), []);
    run.gone(&[6]);
    let new = creates(&mut run);
    assert_eq!((new.len(), new[0].1.as_str(), new[0].2), (1, "terminating", 2));
    // The last retry of `again` is spent.
    run.watch(&[7], end_with(1));
    assert_eq!(ends(&mut run), [("again".to_owned(), "failed", Some(1), 2)]);
}

/// A request of an earlier process took effect when the task had ended, and its pod was being ended as a second one.
#[test]
fn a_late_pod_does_not_cancel_a_task_that_has_succeeded() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &["other", "a"].map(|key| task(key, 0)));
    settle(&mut run);
    run.watch(&[2], end_with(0));
    run.watch(&[2], |pod| pod.completed = true);
    let of_a = run.pods.iter().find(|pod| pod.id.0 == 2).unwrap().task.clone();
    let (cause, until_unix_ms) = (DeleteCause::Cancelled, Some(9_000_000));
    run.watch(&[1], |pod| {
        pod.task.clone_from(&of_a);
        pod.draining = Some(Box::new(Draining { cause, until_unix_ms }));
    });
    let mut run = restart(run, group(0, None));
    assert_eq!((state(&mut run, "a"), ends(&mut run)), ("succeeded", vec![]));
}

/// posse ends the executor of a task that is over, and a kill -9 comes while the pod terminates.
#[test]
fn a_restarted_posse_starts_no_task_again_that_was_over() {
    for name in ["forced", "group deleted", "silent", "not started"] {
        let policy = Policy { heartbeat_timeout_ms: 60_000, start_timeout_ms: 600_000, ..policy() };
        let mut run = Run::new(policy, vec![group(0, None)]);
        say(&mut run, &[task("a", 0)]);
        run.created(&[1]);
        match name {
            "not started" => run.watch(&[1], |pod| pod.node = Some("node".into())),
            _ => run.running(&[1]),
        }
        run.call(heard(&[1]));
        creates(&mut run);
        match name {
            "forced" => {
                run.call(kill(&[1], AfterKill::Lower, true));
            }
            "group deleted" => {
                run.call(Command::Group(GroupName::from("g"), GroupCommand::Delete));
            }
            "silent" => run.beat(&[], 20_000, 200_000),
            _ => {
                run.wait(700_000);
                run.list();
            }
        }
        assert_eq!(ends(&mut run).len(), 1, "{name}");
        let asked = run.take();
        let Some(Action::Patch { patch: Patch::Draining(draining, _), .. }) = asked.first() else {
            panic!("{name}: {asked:?}");
        };
        let draining = Some(Box::new(*draining));
        run.tell(Input::Patched { uid: Uid::new("u1"), answer: Ok(()) });
        run.wait(1_000);
        let deletes = run.take().into_iter().chain(asked);
        let deletes = deletes.filter(|action| matches!(action, Action::Delete { .. }));
        assert_eq!(deletes.count(), 1, "{name}");
        (run.pods[0].draining, run.pods[0].deleting) = (draining, true);
        let mut run = restart(run, group(0, None));
        run.gone(&[1]);
        run.wait(10_000);
        assert_eq!((creates(&mut run), state(&mut run, "a")), (vec![], "cancelled"), "{name}");
    }
}

/// The executor of a task ends already when the task is cancelled, and a kill -9 comes before it is gone.
#[test]
fn a_task_that_is_cancelled_while_its_executor_ends_does_not_run_again() {
    let drains = || Decommission { after_ms: 3_600_000, label: None, by_term: false };
    for name in ["draining", "delete in flight", "deleted", "deleted by somebody"] {
        let decommission = (name == "draining").then(drains);
        let spec = || GroupSpec { decommission: decommission.clone(), ..group(0, None) };
        let mut run = Run::new(policy(), vec![spec()]);
        say(&mut run, &[task("a", 0)]);
        settle(&mut run);
        if name == "deleted by somebody" {
            run.watch(&[1], |pod| pod.deleting = true);
        } else {
            run.call(kill(&[1], AfterKill::Replace, name != "draining"));
            let asked = run.take();
            match asked.first() {
                Some(Action::Patch { patch: Patch::Draining(draining, _), .. }) => {
                    run.tell(Input::Patched { uid: Uid::new("u1"), answer: Ok(()) });
                    let draining = Some(Box::new(*draining));
                    run.watch(&[1], |pod| pod.draining.clone_from(&draining));
                }
                Some(Action::Delete { .. }) if name == "deleted" => {
                    run.tell(Input::Deleted { uid: Uid::new("u1"), answer: Ok(None) });
                    run.watch(&[1], |pod| pod.deleting = true);
                }
                Some(Action::Delete { .. }) => {}
                other => panic!("{name}: {other:?}"),
            }
        }
        run.call(Command::Group(
            GroupName::from("g"),
            GroupCommand::CancelTask { key: "a".into() },
        ));
        if name == "delete in flight" {
            run.tell(Input::Deleted { uid: Uid::new("u1"), answer: Ok(None) });
        }
        assert_eq!(ends(&mut run).len(), 1, "{name}");
        let asked = run.take();
        let Some(Action::Patch { patch: Patch::Draining(draining, _), .. }) = asked.first() else {
            panic!("{name}: {asked:?}");
        };
        assert_eq!(draining.cause, DeleteCause::Cancelled, "{name}");
        run.pods[0].draining = Some(Box::new(*draining));
        run.pods[0].deleting = name != "draining";
        let mut run = restart(run, spec());
        run.gone(&[1]);
        run.wait(10_000);
        assert_eq!((creates(&mut run), state(&mut run, "a")), (vec![], "cancelled"), "{name}");
    }
}

/// The pod of the last failure was counted, and is being deleted.
#[test]
fn a_counted_failure_without_a_retry_is_final() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0)]);
    settle(&mut run);
    end_with(3)(&mut run.pods[0]);
    (run.pods[0].counted, run.pods[0].deleting) = (Some(9), true);
    let mut run = restart(run, group(0, None));
    assert_eq!((creates(&mut run), state(&mut run, "a")), (vec![], "failed"));
}

#[test]
fn a_failure_that_was_counted_before_a_restart_leads_to_the_next_attempt() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[task("a", 1)]);
    settle(&mut run);
    // posse is killed before it creates the second attempt.
    run.pods[0].counted = Some(9);
    end_with(1)(&mut run.pods[0]);
    let mut run = restart(run, group(0, None));
    let new = settle(&mut run);
    assert_eq!((new.len(), new[0].1.as_str(), new[0].2), (1, "a", 2));
    run.watch(&[new[0].0], end_with(1));
    assert_eq!(ends(&mut run), [("a".to_owned(), "failed", Some(1), 2)]);
}

#[test]
fn a_call_before_the_first_list_waits_for_the_pods() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0), task("b", 0)]);
    settle(&mut run);
    run.watch(&[1], end_with(0));
    run.watch(&[1], |pod| pod.completed = true);
    let Run { pods, version, now, .. } = run;
    let mut run = Run { pods, version, now, ..Run::unlisted(policy(), vec![group(0, None)]) };
    say(&mut run, &[task("a", 0), task("b", 0)]);
    run.list();
    assert_eq!((state(&mut run, "a"), state(&mut run, "b")), ("succeeded", "running"));
    assert_eq!(ends(&mut run), [("a".to_owned(), "succeeded", Some(0), 1)]);
    assert_eq!(creates(&mut run), []);
}

#[test]
fn a_second_pod_of_a_task_is_ended() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0)]);
    settle(&mut run);
    // A create of the process before takes effect late.
    let late = Pod { task: run.pods[0].task.clone(), ..run.pod("g", 900) };
    run.pods.push(late);
    run.running(&[900]);
    let uids: Vec<String> = run.ends();
    assert_eq!((uids, state(&mut run, "a")), (vec!["u900".to_owned()], "running"));
}

/// The pods of tasks that a posse without this rule left are adopted: they run on, and are no ranks.
#[test]
fn tasks_of_an_earlier_process_are_no_ranks() {
    let mut before = Run::new(policy(), vec![group(2, None)]);
    say(&mut before, &[task("a", 0)]);
    settle(&mut before);
    let gang = GroupSpec { on_loss: OnLoss::Group, ..group(2, None) };
    let mut run = restart(before, gang);
    assert_eq!(settle(&mut run), vec![], "both ranks and the task are there");
    // The task's end is no loss of a rank, and the loss of a rank does not end the task's executor.
    run.failed(&[1]);
    run.gone(&[2]);
    assert_eq!(state(&mut run, "a"), "running");
    let ids: Vec<u64> = settle(&mut run).iter().map(|(id, ..)| *id).collect();
    assert_eq!(ids.len(), 2, "the next attempt of the ranks");
    run.watch(&[3], end_with(1));
    assert_eq!(ends(&mut run), [("a".to_owned(), "failed", Some(1), 1)]);
    assert_eq!((settle(&mut run), run.group("g").running), (vec![], 2));
}
