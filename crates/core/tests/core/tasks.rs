//! Tasks: each runs once, beside the group's target, and is told as ended once.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::core_run::{Run, end_with, kill, pod_with_claims, policy, refusal, spec, with_memory};
use posse_core::model::action::{Action, Patch};
use posse_core::model::command::{AfterKill, Command, GroupChange, GroupCommand, Reply};
use posse_core::model::event::{DeleteCause, Event, GroupEvent, LossReason};
use posse_core::model::ids::{ExecutorId, GroupName, Uid};
use posse_core::model::input::Input;
use posse_core::model::pod::{End, Pod};
use posse_core::model::pod_text::PodText;
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{
    GroupSpec, Limit, OnLoss, Policy, Replace, Restart, ScaleDown, SlotPolicy,
};
use posse_core::model::task::{
    ENDED_TASKS_MAX, OPEN_TASKS_MAX, Task, TaskOutcome, TaskState, TaskStatus,
};
use posse_core::model::waiting::{GroupWait, Waiting};

pub(super) fn group(target: u32, max: Option<u32>) -> GroupSpec {
    GroupSpec { max, ..spec("g", target) }
}

pub(super) fn task(key: &str, retries: u32) -> Task {
    Task { key: key.into(), retries, ..Task::default() }
}

pub(super) fn say(run: &mut Run, tasks: &[Task]) -> Reply {
    let tasks = tasks.iter().cloned().map(Arc::new).collect();
    run.call(Command::Group(GroupName::from("g"), GroupCommand::AddTasks { tasks }))
}

pub(super) fn show(run: &mut Run, key: &str) -> Option<TaskStatus> {
    let (group, key) = (GroupName::from("g"), Some(Arc::from(key)));
    match run.call(Command::Group(group, GroupCommand::ShowTasks { key })) {
        Reply::Tasks(all) => Some(all[0].clone()),
        Reply::UnknownTask => None,
        other => panic!("{other:?}"),
    }
}

pub(super) fn state(run: &mut Run, key: &str) -> &'static str {
    show(run, key).map_or("unknown", |status| status.state.as_str())
}

/// The creates since the last call: id, key and attempt; without a task an empty key.
pub(super) fn creates(run: &mut Run) -> Vec<(u64, String, u32)> {
    let all = run.take().into_iter().filter_map(|action| match action {
        Action::Create { id, overrides, .. } => {
            let run = overrides.task.map(|run| (run.task.key.to_string(), run.attempt));
            let (key, attempt) = run.unwrap_or_default();
            Some((id.0, key, attempt))
        }
        _ => None,
    });
    all.collect()
}

/// Starts everything that is to be created.
pub(super) fn settle(run: &mut Run) -> Vec<(u64, String, u32)> {
    let mut all = Vec::new();
    loop {
        let new = creates(run);
        if new.is_empty() {
            return all;
        }
        let ids: Vec<u64> = new.iter().map(|(id, ..)| *id).collect();
        run.created(&ids);
        run.running(&ids);
        all.extend(new);
    }
}

/// The ends since the last call: key, outcome, exit code and attempts.
pub(super) fn ends(run: &mut Run) -> Vec<(String, &'static str, Option<i32>, u32)> {
    let all = run.take_events().into_iter().filter_map(|event| match event {
        Event::Group(_, GroupEvent::TaskEnded { key, attempts, end, .. }) => {
            Some((key.to_string(), end.outcome.as_str(), end.exit_code, attempts))
        }
        _ => None,
    });
    all.collect()
}

fn evicted(pod: &mut Pod) {
    end_with(137)(pod);
    if let Some(end) = &mut pod.end {
        end.pod_reason = "Evicted".into();
    }
}

#[test]
fn tasks_run_beside_the_target_and_within_max() {
    for (target, max, want_own, want_tasks) in
        [(0, None, 0, 5), (2, None, 2, 5), (2, Some(5), 2, 3), (0, Some(0), 0, 0)]
    {
        let mut run = Run::new(policy(), vec![group(target, max)]);
        let tasks: Vec<Task> = (0..5).map(|i| task(&format!("t{i}"), 0)).collect();
        let Reply::Tasks(all) = say(&mut run, &tasks) else { panic!() };
        assert!(all.iter().all(|task| task.state == TaskState::Waiting && task.attempts == 0));
        let new = settle(&mut run);
        let n_tasks = new.iter().filter(|(_, key, _)| !key.is_empty()).count();
        assert_eq!((new.len() - n_tasks, n_tasks), (want_own, want_tasks), "{target} {max:?}");
        let status = run.group("g");
        let wanted = target + u32::try_from(want_tasks).unwrap();
        assert_eq!((status.target, status.wanted, status.open_tasks), (target, wanted, 5));
        let waiting = (want_tasks < 5).then_some(Waiting::Group(GroupWait::Max));
        assert_eq!(status.waiting, waiting);
        // A task has no slot, and the target's own executors have the first ones.
        let slots: Vec<Option<u32>> = run.core.executors().iter().map(|(_, e)| e.slot).collect();
        let taken: BTreeSet<u32> = slots.iter().copied().flatten().collect();
        assert_eq!(taken, (0..target).collect());
        // A lower target ends no task.
        run.target("g", 0);
        let n_left = run.group("g").running as usize;
        run.turn();
        let n_more = settle(&mut run).len();
        assert_eq!((n_left, n_left + n_more), (want_tasks, 5.min(max.unwrap_or(5) as usize)));
    }
}

/// Else they would wait as long as the target's executors run, which may be for ever.
#[test]
fn tasks_are_refused_if_the_target_leaves_them_no_room_under_max() {
    let mut run = Run::new(policy(), vec![group(1, Some(10))]);
    assert!(matches!(say(&mut run, &[task("a", 0)]), Reply::Tasks(_)));
    let raise = |run: &mut Run| {
        let name = GroupName::from("g");
        run.call(Command::Group(name, GroupCommand::SetTarget { target: 10 }))
    };
    let Reply::Refused { what, field } = raise(&mut run) else { panic!() };
    assert_eq!(
        (what.as_str(), field),
        (
            "leaves the 1 open tasks no room under `max: 10`: set a lower target, raise max, or wait until the tasks \
             have ended",
            "target"
        )
    );
    run.target("g", 10);
    settle(&mut run);
    let Reply::Refused { what, field } = say(&mut run, &[task("b", 0)]) else { panic!() };
    assert_eq!(
        (what.as_str(), field),
        (
            "group g has the target 10 and `max: 10`, which leaves tasks no room: lower the target, raise max, or \
             add the tasks to another group",
            "executors"
        )
    );
    assert_eq!(show(&mut run, "b"), None);
    // Known tasks may be told again.
    assert!(matches!(say(&mut run, &[task("a", 0)]), Reply::Tasks(_)));
    run.target("g", 9);
    assert!(matches!(say(&mut run, &[task("b", 0)]), Reply::Tasks(_)));
}

#[test]
fn with_scale_down_pending_waiting_tasks_end_no_running_executor() {
    let mut run =
        Run::new(policy(), vec![GroupSpec { scale_down: ScaleDown::Pending, ..group(3, None) }]);
    settle(&mut run);
    say(&mut run, &["a", "b"].map(|key| task(key, 0)));
    assert_eq!(creates(&mut run).len(), 2);
    run.target("g", 1);
    assert_eq!((run.group("g").running, run.take()), (3, vec![]));
    assert_eq!(run.waits_for("g"), Some("scale_down_pending"));
}

/// Its pod gets that memory whatever the group's step is.
#[test]
fn a_task_with_memory_of_its_own_takes_no_part_in_memory_growth() {
    let group =
        GroupSpec { pod: with_memory(PodText::default(), &["2Gi", "3Gi"]), ..group(0, None) };
    let mut run = Run::new(policy(), vec![group]);
    let steps = |run: &mut Run| -> Vec<(String, u32)> {
        let creates = run.take().into_iter().filter_map(|action| match action {
            Action::Create { overrides, .. } => {
                Some((overrides.task?.task.key.to_string(), overrides.memory_step))
            }
            _ => None,
        });
        creates.collect()
    };
    let own = |key: &str| Task { memory: Some("9Gi".to_owned()), ..task(key, 9) };
    let want = |key: &str, step: u32| (key.to_owned(), step);
    say(&mut run, &[own("own"), task("plain", 9)]);
    assert_eq!(steps(&mut run), [want("own", 0), want("plain", 0)]);
    run.start(&[1, 2]);
    let oom = |pod: &mut Pod| {
        end_with(137)(pod);
        if let Some(end) = &mut pod.end {
            end.container_reason = "OOMKilled".into();
        }
    };
    run.watch(&[1], oom);
    assert_eq!(steps(&mut run), [want("own", 0)]);
    run.start(&[3]);
    run.watch(&[2, 3], oom);
    let mut grown = steps(&mut run);
    grown.sort();
    assert_eq!(grown, [want("own", 0), want("plain", 1)]);
}

#[test]
fn a_task_that_ends_with_0_has_succeeded_and_never_runs_again() {
    for how in [Restart::Always, Restart::OnFailure] {
        let mut run = Run::new(policy(), vec![GroupSpec { restart: how, ..group(0, None) }]);
        say(&mut run, &[task("a", 3)]);
        assert_eq!(settle(&mut run), [(1, "a".to_owned(), 1)]);
        assert_eq!(state(&mut run, "a"), "running");
        run.watch(&[1], end_with(0));
        assert_eq!(ends(&mut run), [("a".to_owned(), "succeeded", Some(0), 1)]);
        let label = |action: &Action| {
            matches!(action, Action::Patch { patch: Patch::Completed { .. }, .. })
        };
        assert!(matches!(&run.take()[..], [one] if label(one)), "its pod is the record");
        let status = run.group("g");
        assert_eq!((status.open_tasks, status.ended_tasks, status.completed), (0, 1, 0));
        // Said again, it only tells its state.
        let Reply::Tasks(all) = say(&mut run, &[task("a", 3)]) else { panic!() };
        assert_eq!(all[0].state, TaskState::Ended(TaskOutcome::Succeeded));
        assert_eq!((all[0].executor, all[0].attempts), (Some(ExecutorId(1)), 1));
        assert_eq!((creates(&mut run), ends(&mut run)), (vec![], vec![]));
        run.gone(&[1]);
        assert_eq!((state(&mut run, "a"), creates(&mut run)), ("succeeded", vec![]));
    }
}

#[test]
fn other_contents_under_a_known_key_are_refused_with_the_field() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    let old = Task { memory: Some("1Gi".to_owned()), ..task("a", 1) };
    say(&mut run, std::slice::from_ref(&old));
    let env = [("A".to_owned(), "1".to_owned())].into();
    let others = [
        ("retries", Task { retries: 2, ..old.clone() }),
        ("memory", Task { memory: None, ..old.clone() }),
        ("args", Task { args: Some(vec![]), ..old.clone() }),
        ("command", Task { command: Some(vec![]), ..old.clone() }),
        ("cpu", Task { cpu: Some("1".to_owned()), ..old.clone() }),
        ("image", Task { image: Some("x".to_owned()), ..old.clone() }),
        ("env", Task { env, ..old.clone() }),
    ];
    for is_over in [false, true] {
        for (want, other) in others.clone() {
            // Nothing of the call is accepted.
            let reply = say(&mut run, &[task("new", 0), other]);
            assert_eq!(reply, Reply::TaskDiffers { key: "a".into(), field: want });
            assert_eq!(state(&mut run, "new"), "unknown");
        }
        assert!(matches!(say(&mut run, &[old.clone(), old.clone()]), Reply::Tasks(_)));
        if !is_over {
            settle(&mut run);
            run.watch(&[1], end_with(0));
        }
    }
    let twice = say(&mut run, &[task("b", 0), task("b", 1)]);
    assert_eq!(twice, Reply::TaskDiffers { key: "b".into(), field: "retries" });
}

#[test]
fn a_failure_takes_a_retry_and_the_last_one_fails_the_task() {
    let spends_at_once = Policy { failures_app: Limit::Max(0), ..Policy::default() };
    let mut run = Run::new(spends_at_once, vec![group(0, None)]);
    say(&mut run, &[task("a", 1)]);
    settle(&mut run);
    run.watch(&[1], end_with(7));
    assert_eq!(run.losses(), [(1, LossReason::AppError)]);
    assert_eq!(settle(&mut run), [(2, "a".to_owned(), 2)]);
    run.watch(&[2], end_with(8));
    assert_eq!(ends(&mut run), [("a".to_owned(), "failed", Some(8), 2)]);
    let status = show(&mut run, "a").unwrap();
    assert_eq!(status.end.unwrap().reason, Some("app_error"));
    run.wait(10_000);
    assert_eq!(creates(&mut run), []);
    assert_eq!(run.core.poll_verdict(), None, "failures of tasks spend no budget");
}

#[test]
fn what_the_cluster_ends_is_replaced_when_it_can_no_longer_run() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0)]);
    settle(&mut run);
    // It is deleted by somebody, and still runs.
    run.watch(&[1], |pod| pod.deleting = true);
    assert_eq!((creates(&mut run), state(&mut run, "a")), (vec![], "waiting"));
    run.gone(&[1]);
    assert_eq!(settle(&mut run), [(2, "a".to_owned(), 2)]);
    run.watch(&[2], evicted);
    assert_eq!(settle(&mut run), [(3, "a".to_owned(), 3)], "an evicted pod has ended");
    run.watch(&[3], |pod| {
        pod.deleting = true;
        pod.end =
            Some(Box::new(End { disruption: "PreemptionByScheduler".into(), ..End::default() }));
    });
    assert_eq!(creates(&mut run), []);
    run.watch(&[3], end_with(143));
    assert_eq!(settle(&mut run), [(4, "a".to_owned(), 4)]);
    // A kill call replaces it too.
    run.call(kill(&[4], AfterKill::Replace, false));
    assert_eq!(creates(&mut run), []);
    run.gone(&[4]);
    assert_eq!(settle(&mut run), [(5, "a".to_owned(), 5)]);
    assert_eq!(ends(&mut run), []);
    // Without a replacement it is cancelled.
    run.call(kill(&[5], AfterKill::Lower, false));
    assert_eq!(ends(&mut run), [("a".to_owned(), "cancelled", None, 5)]);
    assert_eq!(run.group("g").target, 0);
}

#[test]
fn a_cancelled_task_ends_once_whatever_its_state() {
    let cancel = |run: &mut Run, key: &str| {
        run.call(Command::Group(GroupName::from("g"), GroupCommand::CancelTask { key: key.into() }))
    };
    let mut run = Run::new(policy(), vec![group(0, Some(2))]);
    say(&mut run, &["a", "b", "c"].map(|key| task(key, 0)));
    run.created(&[1]);
    run.running(&[1]);
    for key in ["a", "b", "c", "a"] {
        assert!(matches!(cancel(&mut run, key), Reply::Tasks(_)));
        assert_eq!(state(&mut run, key), "cancelled");
    }
    let told: Vec<String> = ends(&mut run).into_iter().map(|(key, ..)| key).collect();
    assert_eq!(told, ["a", "b", "c"]);
    assert_eq!(cancel(&mut run, "d"), Reply::UnknownTask);
    let note = |action: &Action| {
        matches!(action, Action::Patch { patch: Patch::Draining(draining, _), .. }
        if draining.cause == DeleteCause::Cancelled)
    };
    assert!(run.take().iter().any(note), "a restarted posse must know");
    run.tell(Input::Patched { uid: Uid::new("u1"), answer: Ok(()) });
    run.wait(1_000);
    assert!(run.take().iter().any(|action| matches!(action, Action::Delete { .. })));
    // The create that was in flight may still have made a pod.
    run.created(&[2]);
    assert!(run.take().iter().any(note));
    run.tell(Input::Patched { uid: Uid::new("u2"), answer: Ok(()) });
    run.wait(1_000);
    assert!(run.take().iter().any(|action| matches!(action, Action::Delete { .. })));
    run.gone(&[1, 2]);
    assert_eq!((creates(&mut run), ends(&mut run)), (vec![], vec![]));
}

#[test]
fn the_number_of_open_and_of_remembered_tasks_is_limited() {
    let policy = Policy { in_flight_max: 64, ..policy() };
    let mut run = Run::new(policy, vec![group(0, Some(1)), GroupSpec { ..spec("h", 0) }]);
    let name = |i: usize| task(&format!("t{i}"), 0);
    let all: Vec<Task> = (0..OPEN_TASKS_MAX).map(name).collect();
    assert!(matches!(say(&mut run, &all), Reply::Tasks(_)));
    let tasks = vec![Arc::new(task("x", 0))];
    let reply = run.call(Command::Group(GroupName::from("h"), GroupCommand::AddTasks { tasks }));
    let Reply::TooMany { what, field: "executors" } = reply else { panic!("{reply:?}") };
    assert!(what.contains("the maximum is 20000"), "{what}");
    assert!(matches!(say(&mut run, &all[..10]), Reply::Tasks(_)), "said again, it adds nothing");
    let cancel = |run: &mut Run, key: &Arc<str>| {
        let command = GroupCommand::CancelTask { key: Arc::clone(key) };
        let command = Command::Group(GroupName::from("g"), command);
        let reply = run.core.command(command, posse_base::time::Millis(0));
        assert!(matches!(reply, Reply::Tasks(_)), "{reply:?}");
    };
    for task in &all {
        cancel(&mut run, &task.key);
    }
    say(&mut run, &[task("one-more", 0)]);
    cancel(&mut run, &"one-more".into());
    assert_eq!(run.group("g").ended_tasks, ENDED_TASKS_MAX);
    let states = ["t0", "t1", "one-more"].map(|key| state(&mut run, key));
    assert_eq!(states, ["unknown", "cancelled", "cancelled"], "the oldest one is forgotten");
    // Opened again and ended again, it is the newest.
    let retry = GroupCommand::RetryTask { key: "t1".into() };
    run.call(Command::Group(GroupName::from("g"), retry));
    assert_eq!(run.group("g").ended_tasks, ENDED_TASKS_MAX - 1);
    cancel(&mut run, &"t1".into());
    assert_eq!(run.group("g").ended_tasks, ENDED_TASKS_MAX);
    say(&mut run, &[task("two-more", 0)]);
    cancel(&mut run, &"two-more".into());
    let states = ["t1", "t2", "t3"].map(|key| state(&mut run, key));
    assert_eq!(states, ["cancelled", "unknown", "cancelled"]);
}

#[test]
fn a_deleted_group_pushes_no_other_tasks_out_of_memory() {
    let mut run = Run::new(policy(), vec![group(0, Some(1)), spec("h", 0)]);
    let group = || GroupName::from("h");
    run.call(Command::Group(
        group(),
        GroupCommand::AddTasks { tasks: vec![Arc::new(task("x", 0))] },
    ));
    run.call(Command::Group(group(), GroupCommand::CancelTask { key: "x".into() }));
    let all: Vec<Task> = (0..OPEN_TASKS_MAX).map(|i| task(&format!("t{i}"), 0)).collect();
    say(&mut run, &all);
    run.call(Command::Group(GroupName::from("g"), GroupCommand::Delete));
    assert_eq!(ends(&mut run).len(), OPEN_TASKS_MAX + 1);
    assert_eq!(run.group("h").ended_tasks, 1);
}

#[test]
fn a_refused_task_fails_alone_once_the_template_has_proved_good() {
    let mut run = Run::new(policy(), vec![GroupSpec { from_file: true, ..group(0, None) }]);
    say(&mut run, &[task("bad", 0), task("good", 0)]);
    assert_eq!(creates(&mut run).len(), 2);
    // Nobody knows yet whether it is the template or the task, so the group is slowed down.
    run.refused(1, refusal(RefusalClass::Invalid, 422));
    assert_eq!(run.core.poll_verdict(), None);
    run.created(&[2]);
    run.running(&[2]);
    run.wait(600_000);
    let again = creates(&mut run);
    assert_eq!((again.len(), again[0].1.as_str(), again[0].2), (1, "bad", 1));
    run.refused(again[0].0, refusal(RefusalClass::Invalid, 422));
    assert_eq!(ends(&mut run), [("bad".to_owned(), "failed", None, 0)]);
    assert_eq!(show(&mut run, "bad").unwrap().end.unwrap().reason, Some("refused"));
    say(&mut run, &[task("bad2", 0), task("next", 0)]);
    let new = creates(&mut run);
    assert_eq!((new.len(), new[0].1.as_str()), (1, "bad2"), "the group is not slowed down");
    run.refused(new[0].0, refusal(RefusalClass::Invalid, 422));
    // Another one soon shows whether the server refuses all pods now.
    assert_eq!(run.waits_for("g"), Some("permanent"));
    run.wait(2_000);
    let new = creates(&mut run);
    assert_eq!((new.len(), new[0].1.as_str()), (1, "next"));
    run.created(&[new[0].0]);
    let new = creates(&mut run);
    run.refused(new[0].0, refusal(RefusalClass::Invalid, 422));
    assert_eq!(state(&mut run, "bad2"), "failed");
}

/// Nothing else of its group can show whose fault it is.
#[test]
fn a_refused_task_that_is_alone_fails_after_its_retries() {
    // (retries, target, tasks beside it, refusals until it fails)
    for (retries, target, others, want) in
        [(0, 0, 0, Some(2)), (3, 0, 0, Some(4)), (0, 1, 0, None), (0, 0, 1, None)]
    {
        let case = format!("{retries} retries, target {target}, {others} others");
        let mut run = Run::new(policy(), vec![group(target, None)]);
        let keys = ["bad", "other"].into_iter().take(1 + others);
        let tasks: Vec<Task> = keys.map(|key| task(key, retries)).collect();
        say(&mut run, &tasks);
        let (mut n_refused, mut ended) = (0, Vec::new());
        while run.now < 60 * 60_000 && ended.is_empty() {
            for (id, key, _) in creates(&mut run) {
                n_refused += u32::from(key == "bad");
                run.refused(id, refusal(RefusalClass::Invalid, 422));
            }
            ended = ends(&mut run);
            run.wait(1_000);
        }
        let told = want.map(|_| ("bad".to_owned(), "failed", None, 0));
        assert_eq!(ended, told.into_iter().collect::<Vec<_>>(), "{case}");
        assert!(want.is_none_or(|want| n_refused == want), "{case}: {n_refused}");
        if want.is_some() {
            assert!(run.now >= 5 * 60_000, "{case}: a webhook may fail for a minute");
            let status = show(&mut run, "bad").unwrap();
            assert_eq!(status.end.unwrap().reason, Some("refused"), "{case}");
        }
    }
}

/// A quota of limits was added, or a webhook fails for a minute: no task is at fault.
#[test]
fn a_refusal_of_all_pods_fails_no_task() {
    let mut run = Run::new(policy(), vec![group(0, Some(1))]);
    say(&mut run, &["a", "b", "c"].map(|key| task(key, 0)));
    settle(&mut run);
    run.watch(&[1], end_with(0));
    assert_eq!(ends(&mut run).len(), 1);
    for _ in 0..6 {
        let new = creates(&mut run);
        assert_eq!(new.len(), 1);
        run.refused(new[0].0, refusal(RefusalClass::Invalid, 422));
        assert_eq!(run.waits_for("g"), Some("permanent"));
        run.wait(600_000);
    }
    let told = run.take_events();
    assert!(
        told.iter().any(|event| matches!(event, Event::Group(_, GroupEvent::CreateRefused { .. })))
    );
    assert!(
        !told.iter().any(|event| matches!(event, Event::Group(_, GroupEvent::TaskEnded { .. }))),
        "{told:?}"
    );
    for want in ["b", "c"] {
        let new = settle(&mut run);
        assert_eq!((new.len(), new[0].1.as_str(), new[0].2), (1, want, 1));
        run.watch(&[new[0].0], end_with(0));
    }
    assert_eq!(ends(&mut run).len(), 2);
}

#[test]
fn a_deleted_group_cancels_its_tasks() {
    let mut run = Run::new(policy(), vec![group(0, Some(1))]);
    say(&mut run, &[task("a", 0), task("b", 0)]);
    settle(&mut run);
    run.call(Command::Group(GroupName::from("g"), GroupCommand::Delete));
    let told: Vec<String> = ends(&mut run).into_iter().map(|(key, ..)| key).collect();
    assert_eq!(told, ["a", "b"]);
    assert_eq!(say(&mut run, &[task("c", 0)]), Reply::UnknownGroup);
    run.tell(Input::Patched { uid: Uid::new("u1"), answer: Ok(()) });
    run.wait(1_000);
    assert!(run.take().iter().any(|action| matches!(action, Action::Delete { .. })));
}

#[test]
fn a_task_of_a_group_that_is_made_anew_waits_for_the_executor_of_the_old_one() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &["a", "b", "c"].map(|key| task(key, 0)));
    run.created(&[1, 2]);
    run.running(&[1, 2]);
    run.watch(&[2], end_with(0));
    for _ in 0..2 {
        run.call(Command::Group(GroupName::from("g"), GroupCommand::Delete));
        let change = GroupChange { pod: Arc::default(), ..GroupChange::default() };
        run.call(Command::Group(GroupName::from("g"), GroupCommand::Put { change }));
        creates(&mut run);
        say(&mut run, &["a", "c"].map(|key| task(key, 0)));
    }
    say(&mut run, &[task("b", 0)]);
    let new = settle(&mut run);
    assert_eq!((new.len(), &*new[0].1), (1, "b"), "nothing works on it any more");
    assert_eq!(state(&mut run, "a"), "waiting");
    run.watch(&[1], end_with(0));
    assert_eq!(settle(&mut run).iter().map(|new| (&*new.1, new.2)).collect::<Vec<_>>(), [("a", 1)]);
    // The create of the old one was in flight.
    run.refused(3, refusal(RefusalClass::Capacity, 403));
    run.wait(10_000);
    assert_eq!(settle(&mut run).iter().map(|new| (&*new.1, new.2)).collect::<Vec<_>>(), [("c", 1)]);
}

#[test]
fn records_of_tasks_are_limited_and_a_full_quota_is_no_obstacle() {
    let mut run =
        Run::new(policy(), vec![GroupSpec { replace: Replace::Gone, ..group(0, Some(4)) }]);
    let tasks: Vec<Task> = (0..1_100).map(|i| task(&format!("t{i}"), 0)).collect();
    say(&mut run, &tasks);
    let mut n_deletes = 0;
    for _ in 0..2_000 {
        let (mut new, mut going) = (Vec::new(), Vec::new());
        for action in run.take() {
            match action {
                Action::Create { id, .. } => new.push(id.0),
                Action::Patch { uid, .. } => run.tell(Input::Patched { uid, answer: Ok(()) }),
                Action::Delete { uid, name, .. } => {
                    run.tell(Input::Deleted { uid, answer: Ok(None) });
                    going.push(name.rsplit('-').next().unwrap().parse().unwrap());
                }
                other => panic!("{other:?}"),
            }
        }
        n_deletes += going.len();
        run.gone(&going);
        run.created(&new);
        run.running(&new);
        run.watch(&new, end_with(0));
    }
    let status = run.group("g");
    assert_eq!((status.open_tasks, status.ended_tasks), (0, 1_100));
    assert_eq!((n_deletes, run.pods.len()), (100, 1_000), "the newest records stay");
}

#[test]
fn a_record_of_long_work_that_ends_last_stays() {
    let ending = GroupSpec { restart: Restart::OnFailure, ..group(1_002, None) };
    for spec in [group(0, None), ending] {
        let n_tasks = if spec.target == 0 { 1_002 } else { 0 };
        let mut run = Run::new(policy(), vec![spec]);
        let tasks: Vec<Task> = (0..n_tasks).map(|i| task(&format!("t{i}"), 0)).collect();
        say(&mut run, &tasks);
        assert_eq!(settle(&mut run).len(), 1_002);
        for id in (2..=1_002).chain([1]) {
            run.watch(&[id], end_with(0));
        }
        let mut deleted = Vec::new();
        while !run.asked.is_empty() {
            for action in run.take() {
                match action {
                    Action::Patch { uid, .. } => run.tell(Input::Patched { uid, answer: Ok(()) }),
                    Action::Delete { uid, .. } => deleted.push(uid.to_string()),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(deleted, ["u2", "u3"]);
    }
}

/// A task has no slot. By the template it would share the claims of slot 0, or be a second rank 0.
#[test]
fn a_group_whose_executors_need_slots_takes_no_tasks() {
    let plain = || group(2, None);
    for (spec, key) in [
        (GroupSpec { pod: pod_with_claims(), ..plain() }, "volumes_per_slot"),
        (GroupSpec { slots: SlotPolicy::Stable, ..plain() }, "`slots: stable`"),
        (GroupSpec { on_loss: OnLoss::Group, ..plain() }, "`on_loss: group`"),
    ] {
        let mut run = Run::new(policy(), vec![spec]);
        settle(&mut run);
        let reply = say(&mut run, &[task("a", 0)]);
        let Reply::Refused { what, field: "executors" } = &reply else { panic!("{reply:?}") };
        let want = format!("group g has {key}, and tasks have no slot: use a group without it");
        assert_eq!(*what, want);
        assert_eq!((show(&mut run, "a"), settle(&mut run)), (None, vec![]));
    }
}

#[test]
fn a_group_with_open_tasks_gets_no_stable_slots() {
    let mut run = Run::new(policy(), vec![group(1, None)]);
    settle(&mut run);
    say(&mut run, &[task("a", 0)]);
    let put = |run: &mut Run| {
        let change = GroupChange { on_loss: Some(OnLoss::Group), ..GroupChange::default() };
        run.call(Command::Group(GroupName::from("g"), GroupCommand::Put { change }))
    };
    let Reply::Refused { what, field: "on_loss" } = put(&mut run) else { panic!("not refused") };
    assert!(what.starts_with("`on_loss: group`: the group has 1 open tasks"), "{what}");
    let ids: Vec<u64> = settle(&mut run).iter().map(|(id, ..)| *id).collect();
    run.watch(&ids, end_with(0));
    assert_eq!(put(&mut run), Reply::Target(1), "the task has ended");
}

#[test]
fn a_group_with_open_tasks_takes_no_volumes() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    let put = |run: &mut Run| {
        let pod = pod_with_claims().unwrap();
        let change = GroupChange { pod, ..GroupChange::default() };
        run.call(Command::Group(GroupName::from("g"), GroupCommand::Put { change }))
    };
    say(&mut run, &[task("a", 0)]);
    let reply = put(&mut run);
    let Reply::Refused { what, field: "volumes_per_slot" } = &reply else { panic!("{reply:?}") };
    assert!(what.contains("no slot"), "{what}");
    run.call(Command::Group(
        GroupName::from("g"),
        GroupCommand::CancelTask { key: Arc::from("a") },
    ));
    assert_eq!(put(&mut run), Reply::Target(0));
    assert!(matches!(say(&mut run, &[task("b", 0)]), Reply::Refused { .. }));
}
