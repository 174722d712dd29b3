//! `on_loss: group`: a loss ends all executors of the group, and all begin again as the next attempt.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, end_with, kill, policy, spec};
use posse_core::model::action::Action;
use posse_core::model::command::{AfterKill, Command, GroupCommand};
use posse_core::model::event::{Budget, DeleteCause, Event, ExecutorEvent, GroupEvent, LossReason};
use posse_core::model::ids::{GroupName, Uid};
use posse_core::model::input::Input;
use posse_core::model::pod::{ContainerState, Phase, Pod};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{Decommission, GroupSpec, Limit, OnLoss, Policy, Restart};

fn gang(n: u32) -> GroupSpec {
    GroupSpec { on_loss: OnLoss::Group, ..spec("g", n) }
}

/// The slots and attempts of the creates since the last call. Other actions are discarded.
fn creates(run: &mut Run) -> Vec<(u32, u32)> {
    let creates = run.take().into_iter().filter_map(|action| match action {
        Action::Create { slot, overrides, .. } => Some((slot, overrides.attempt)),
        _ => None,
    });
    creates.collect()
}

/// The ids whose pods are to be deleted since the last call.
fn deletes(run: &mut Run) -> Vec<String> {
    let deletes = run.take().into_iter().filter_map(|action| match action {
        Action::Delete { uid, .. } => Some(uid.to_string()),
        _ => None,
    });
    let mut uids: Vec<String> = deletes.collect();
    uids.sort();
    uids
}

/// Losses, ends by posse, and restarts since the last call, in short.
fn told(run: &mut Run) -> Vec<String> {
    let told = run.take_events().into_iter().filter_map(|event| match event {
        Event::Executor(subject, ExecutorEvent::Lost { reason, .. }) => {
            Some(format!("{} lost: {}", subject.id, reason.as_str()))
        }
        Event::Executor(subject, ExecutorEvent::Deleted { cause }) => {
            Some(format!("{} deleted: {}", subject.id, cause.as_str()))
        }
        Event::Executor(subject, ExecutorEvent::Completed { .. }) => {
            Some(format!("{} completed", subject.id))
        }
        Event::Group(_, GroupEvent::Restarted { attempt, .. }) => {
            Some(format!("attempt {attempt}"))
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn a_loss_ends_all_and_all_begin_together_again() {
    let mut run = Run::with_running(policy(), vec![gang(3)]);
    run.failed(&[2]);
    assert_eq!(told(&mut run), ["2 lost: app_error", "attempt 2"]);
    assert_eq!(run.waits_for("g"), Some("group_restart"));
    assert_eq!(deletes(&mut run), ["u1", "u3"]);
    run.gone(&[1]);
    assert_eq!(creates(&mut run), [], "one of the attempt before is alive");
    // A second loss while the group is being ended is part of the same one.
    run.watch(&[3], end_with(1));
    assert_eq!(creates(&mut run), [(0, 2), (1, 2), (2, 2)]);
    assert_eq!(told(&mut run), ["1 deleted: group_restarted"]);
    run.gone(&[3]);
    assert_eq!(told(&mut run), ["3 deleted: group_restarted"]);
    run.start(&[4, 5, 6]);
    assert_eq!((run.group("g").running, run.group("g").lost), (3, 1));
}

#[test]
fn a_loss_of_the_group_is_charged_once() {
    let policy = Policy { failures_app: Limit::Max(1), ..policy() };
    let mut run = Run::with_running(policy, vec![gang(4)]);
    let mut first = 1;
    for n in 1..=2 {
        run.wait(70_000);
        // All four fail in one message.
        run.failed(&[first, first + 1, first + 2, first + 3]);
        let losses = run.losses();
        assert_eq!(losses, [(first, LossReason::AppError)]);
        run.gone(&[first, first + 1, first + 2, first + 3]);
        let exhausted = run.core.poll_verdict().is_some();
        assert_eq!(exhausted, n == 2);
        first += 4;
        run.start(&[first, first + 1, first + 2, first + 3]);
    }
    assert_eq!(LossReason::AppError.budget(), Some(Budget::App));
}

/// They have failed, which nobody saw before the group was deleted.
#[test]
fn the_executors_of_a_deleted_group_are_no_loss() {
    let mut before = Run::with_running(policy(), vec![gang(2)]);
    before.watch(&[1, 2], end_with(1));
    let Run { pods, version, now, .. } = before;
    let mut run = Run { pods, version, now, ..Run::unlisted(policy(), vec![gang(2)]) };
    run.call(Command::Group(GroupName::from("g"), GroupCommand::Delete));
    run.list();
    run.gone(&[1, 2]);
    assert_eq!(told(&mut run), ["1 deleted: scaled_down", "2 deleted: scaled_down"]);
}

#[test]
fn a_create_of_the_attempt_before_is_awaited() {
    let mut run = Run::new(policy(), vec![gang(3)]);
    run.start(&[1, 2]);
    run.failed(&[1]);
    run.gone(&[2]);
    run.take();
    run.turn();
    assert_eq!((creates(&mut run), run.waits_for("g")), (vec![], Some("group_restart")));
    run.take_events();
    run.created(&[3]);
    assert_eq!(deletes(&mut run), ["u3"]);
    run.gone(&[3]);
    assert_eq!(told(&mut run), ["3 deleted: group_restarted"]);
    assert_eq!(creates(&mut run), [(0, 2), (1, 2), (2, 2)]);
}

#[test]
fn a_kill_call_restarts_the_group_without_a_drain_period() {
    let decommission = Some(Decommission { after_ms: 600_000, label: None, by_term: false });
    let mut run = Run::with_running(policy(), vec![GroupSpec { decommission, ..gang(2) }]);
    run.call(kill(&[1], AfterKill::Replace, false));
    assert_eq!(told(&mut run), ["1 lost: killed", "attempt 2"]);
    assert_eq!(deletes(&mut run), ["u1", "u2"]);
    run.gone(&[1, 2]);
    assert_eq!(creates(&mut run), [(0, 2), (1, 2)]);
}

#[test]
fn a_changed_target_restarts_nothing() {
    let mut run = Run::with_running(policy(), vec![gang(3)]);
    run.target("g", 2);
    assert_eq!(deletes(&mut run), ["u3"]);
    run.gone(&[3]);
    run.target("g", 4);
    assert_eq!(creates(&mut run), [(2, 1), (3, 1)]);
    assert_eq!(told(&mut run), ["3 deleted: scaled_down"]);
}

/// An executor's id, slot and attempt, and what else its pod shows.
type Found = (u64, u32, u32, fn(&mut Pod));

/// The pods of an earlier run: their slots, attempts and how they are.
fn adopt(pods: &[Found]) -> Run {
    let restart = Restart::OnFailure;
    let group = GroupSpec { restart, completions: Some(3), ..gang(3) };
    let mut run = Run::unlisted(policy(), vec![group]);
    for &(id, slot, attempt, change) in pods {
        let mut pod = run.pod("g", id);
        (pod.slot, pod.attempt, pod.restart) = (Some(slot), attempt, restart);
        (pod.phase, pod.container) = (Phase::Running, ContainerState::Running);
        change(&mut pod);
        run.pods.push(pod);
    }
    run.list();
    run
}

fn lives(_: &mut Pod) {}

fn is_counted(pod: &mut Pod) {
    end_with(1)(pod);
    pod.counted = Some(7);
}

fn is_done(pod: &mut Pod) {
    end_with(0)(pod);
    pod.completed = true;
}

fn terminates(pod: &mut Pod) {
    pod.deleting = true;
}

#[test]
fn a_restarted_posse_completes_a_restart_that_it_finds_half_done() {
    // All are there: nothing happens, and the attempt goes on.
    let mut run = adopt(&[(1, 0, 2, lives), (2, 1, 2, lives), (3, 2, 2, lives)]);
    assert_eq!((told(&mut run), deletes(&mut run)), (vec![], vec![]));
    run.failed(&[1]);
    assert_eq!(told(&mut run), ["1 lost: app_error", "attempt 3"]);

    // One was lost and counted before the others were ended.
    let mut run = adopt(&[(1, 0, 1, is_counted), (2, 1, 1, lives), (3, 2, 1, lives)]);
    assert_eq!(told(&mut run), ["attempt 2"]);
    assert_eq!(deletes(&mut run), ["u2", "u3"]);
    run.gone(&[2, 3]);
    assert_eq!(creates(&mut run), [(0, 2), (1, 2), (2, 2)]);

    // One is gone without a trace.
    let mut run = adopt(&[(2, 1, 4, lives), (3, 2, 4, lives)]);
    assert_eq!(
        (told(&mut run), deletes(&mut run)),
        (vec!["attempt 5".to_owned()], vec!["u2".to_owned(), "u3".to_owned()])
    );

    // The next attempt has begun, and one of the attempt before still ends.
    let mut run =
        adopt(&[(1, 0, 1, terminates), (4, 0, 2, lives), (5, 1, 2, lives), (6, 2, 2, lives)]);
    assert_eq!((told(&mut run), deletes(&mut run)), (vec![], vec![]));
    run.gone(&[1]);
    assert_eq!(told(&mut run), ["1 deleted: group_restarted"]);
}

#[test]
fn completed_work_of_an_attempt_is_repeated_with_the_others() {
    let group = GroupSpec { restart: Restart::OnFailure, completions: Some(3), ..gang(3) };
    let mut run = Run::with_running(policy(), vec![group]);
    run.watch(&[1], end_with(0));
    run.tell(Input::Patched { uid: Uid::new("u1"), answer: Ok(()) });
    assert_eq!((told(&mut run), run.group("g").target), (vec!["1 completed".to_owned()], 2));
    run.failed(&[2]);
    assert_eq!(told(&mut run), ["2 lost: app_error", "attempt 2"]);
    assert_eq!((run.group("g").completed, run.group("g").target), (0, 3));
    assert_eq!(deletes(&mut run), ["u1", "u3"]);
    run.gone(&[1, 3]);
    assert_eq!(creates(&mut run), [(0, 2), (1, 2), (2, 2)]);
    run.start(&[4, 5, 6]);
    run.watch(&[4, 5, 6], end_with(0));
    assert_eq!((run.group("g").completed, run.group("g").target), (3, 0));

    // The same over a restart of posse: the record of the attempt before counts no more.
    let mut run = adopt(&[(1, 0, 1, is_done), (2, 1, 1, is_counted), (3, 2, 1, lives)]);
    assert_eq!((told(&mut run), run.group("g").completed), (vec!["attempt 2".to_owned()], 0));
    let mut run =
        adopt(&[(1, 0, 1, is_done), (4, 0, 2, lives), (5, 1, 2, lives), (6, 2, 2, lives)]);
    assert_eq!((told(&mut run), run.group("g").completed), (vec![], 0));
    assert_eq!(deletes(&mut run), ["u1"]);
}

#[test]
fn a_crash_loop_slows_down_the_whole_group_and_its_probe_is_the_whole_group() {
    let mut run = Run::with_running(policy(), vec![gang(3)]);
    run.wait(1_000);
    run.failed(&[1]);
    run.gone(&[2, 3]);
    assert_eq!(creates(&mut run).len(), 3, "three early ends are no crash loop");
    let mut first = 4;
    for n in 1..4 {
        run.start(&[first, first + 1, first + 2]);
        run.wait(1_000);
        run.failed(&[first + 1]);
        run.gone(&[first, first + 2]);
        assert_eq!((creates(&mut run), run.waits_for("g")), (vec![], Some("backoff")), "{n}");
        run.wait(16_000);
        assert_eq!(creates(&mut run).len(), 3, "the whole group is the probe");
        first += 3;
    }
    run.start(&[first, first + 1, first + 2]);
    run.wait(61_000);
    run.failed(&[first]);
    run.gone(&[first + 1, first + 2]);
    // Creates begin slowly.
    assert_eq!(creates(&mut run).len(), 2, "the crash loop was over");
}

#[test]
fn an_executor_of_an_earlier_attempt_that_appears_late_is_ended() {
    let mut run = Run::with_running(policy(), vec![gang(2)]);
    run.failed(&[1]);
    run.gone(&[2]);
    run.take();
    let mut late = run.pod("g", 900);
    (late.slot, late.phase, late.container) = (Some(1), Phase::Running, ContainerState::Running);
    run.pods.push(late);
    run.take_events();
    run.list();
    assert_eq!(deletes(&mut run), ["u900"]);
    run.gone(&[900]);
    let cause = DeleteCause::GroupRestarted.as_str();
    assert_eq!(told(&mut run), [format!("900 deleted: {cause}")]);
}

/// It lacks a label of posse: nothing shows that it has ended.
#[test]
fn the_next_attempt_waits_for_a_pod_that_vanishes_alive() {
    let mut run = Run::with_running(policy(), vec![gang(2)]);
    run.take();
    run.vanish(&[1], |_| {});
    assert_eq!(deletes(&mut run), ["u1", "u2"]);
    run.gone(&[2]);
    run.tell(Input::Deleted { uid: Uid::new("u1"), answer: Ok(None) });
    run.wait(1_000);
    assert_eq!(creates(&mut run), []);
    let gone = crate::core_run::refusal(RefusalClass::NotFound, 404);
    run.tell(Input::Deleted { uid: Uid::new("u1"), answer: Err(gone) });
    run.wait(1_000);
    assert_eq!(creates(&mut run), [(0, 2), (1, 2)]);
}

/// The first of them that is looked at begins the next attempt.
#[test]
fn the_next_attempt_waits_for_all_that_vanish_alive_at_once() {
    for order in [["u1", "u2"], ["u2", "u1"]] {
        let mut run = Run::with_running(policy(), vec![gang(3)]);
        run.take();
        run.pods.retain(|pod| pod.id.0 == 3);
        run.list();
        assert_eq!(deletes(&mut run), ["u1", "u2", "u3"]);
        run.gone(&[3]);
        for (n_gone, uid) in (1..).zip(order) {
            let gone = crate::core_run::refusal(RefusalClass::NotFound, 404);
            run.tell(Input::Deleted { uid: Uid::new(uid), answer: Err(gone) });
            run.wait(1_000);
            assert_eq!(creates(&mut run).len(), if n_gone == 1 { 0 } else { 3 }, "{order:?}");
        }
    }
}
