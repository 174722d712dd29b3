//! How many write requests the end of one executor costs, and what survives a restart without a mark.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, kill, policy, spec};
use posse_core::model::action::Action;
use posse_core::model::command::{AfterKill, Command, GroupCommand};
use posse_core::model::event::{Event, ExecutorEvent, LossReason};
use posse_core::model::ids::{Uid, Version};
use posse_core::model::input::Input;
use posse_core::model::pod::{ContainerState, End, Phase};
use posse_core::model::settings::{Decommission, GroupSpec, Policy};

fn kill_1(run: &mut Run) {
    run.call(kill(&[1], AfterKill::Lower, false));
}

fn scale_down(run: &mut Run) {
    run.target("g", 0);
}

fn delete_group(run: &mut Run) {
    run.call(Command::Group("g".into(), GroupCommand::Delete));
}

fn reach_max_age(run: &mut Run) {
    run.watch(&[1], |pod| {
        let reason = End { pod_reason: "DeadlineExceeded".into(), ..End::default() };
        pod.end = Some(Box::new(End { has_max_age: true, exit_code: Some(137), ..reason }));
        (pod.phase, pod.container) = (Phase::Failed, ContainerState::Ended);
    });
}

fn fail(run: &mut Run) {
    run.failed(&[1]);
}

fn fail_and_delete_group(run: &mut Run) {
    fail(run);
    answer_writes(run);
    delete_group(run);
}

fn gently() -> GroupSpec {
    let decommission = Some(Decommission { after_ms: 30_000, label: None, by_term: false });
    GroupSpec { decommission, ..spec("g", 1) }
}

/// Answers the writes until there are no more, and counts the patches and deletes.
fn answer_writes(run: &mut Run) -> (u32, u32) {
    let (mut n_patches, mut n_deletes) = (0, 0);
    for _ in 0..10 {
        for action in run.take() {
            match action {
                Action::Patch { uid, .. } => {
                    n_patches += 1;
                    run.tell(Input::Patched { uid, answer: Ok(()) });
                }
                Action::Delete { uid, .. } => {
                    n_deletes += 1;
                    run.tell(Input::Deleted { uid, answer: Ok(None) });
                }
                _ => {}
            }
        }
    }
    (n_patches, n_deletes)
}

#[test]
fn the_end_of_an_executor_costs_one_write_unless_a_restart_needs_a_mark() {
    type End = fn(&mut Run);
    let keep_none = || Policy { keep_failed: 0, ..policy() };
    for (what, policy, group, end, want) in [
        ("kill", policy(), spec("g", 1), kill_1 as End, (0, 1)),
        ("scale-down", policy(), spec("g", 1), scale_down, (0, 1)),
        ("deleted group", policy(), spec("g", 1), delete_group, (0, 1)),
        ("max_age", policy(), spec("g", 1), reach_max_age, (0, 1)),
        ("failure that is not retained", keep_none(), spec("g", 1), fail, (0, 1)),
        // A drain may last for hours. The annotation tells a restarted posse of it.
        ("decommission", policy(), gently(), scale_down, (1, 1)),
        ("kill with decommission", policy(), gently(), kill_1, (1, 1)),
        // The label tells a restarted posse that the failure was counted.
        ("retained failure", policy(), spec("g", 1), fail, (1, 0)),
    ] {
        let mut run = Run::with_running(policy, vec![group]);
        end(&mut run);
        let (n_patches, n_deletes) = answer_writes(&mut run);
        run.wait(30_000);
        let (n_later_patches, n_later_deletes) = answer_writes(&mut run);
        let n_writes = (n_patches + n_later_patches, n_deletes + n_later_deletes);
        assert_eq!(n_writes, want, "{what}: patches, deletes");
    }
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    fail_and_delete_group(&mut run);
    assert_eq!(answer_writes(&mut run), (0, 1), "a retained pod was labelled already");
}

/// posse ended after it had sent the delete of a victim. The deletionTimestamp says enough: the
/// victim is replaced if the target asks for it, and no budget is charged.
#[test]
fn a_victim_that_terminates_during_a_restart_is_not_taken_back_and_not_charged() {
    for target in [0, 1] {
        let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
        run.target("g", 0);
        run.pods[0].deleting = true;
        let pods = std::mem::take(&mut run.pods);
        let mut next = Run { pods, ..Run::unlisted(policy(), vec![spec("g", target)]) };
        next.list();
        let lost = next.take_events().into_iter().find_map(|event| match event {
            Event::Executor(_, ExecutorEvent::Lost { reason, budget, .. }) => {
                Some((reason, budget))
            }
            _ => None,
        });
        assert_eq!(lost, Some((LossReason::Deleted, None)));
        assert_eq!(next.group("g").terminating, 1);
        assert_eq!(next.creates().len(), target as usize);
        assert!(next.core.snapshot().get(&Uid::new("u1")).is_some());
    }
}

/// etcd was restored to an older state, and its versions passed their former value before a LIST
/// could show that.
#[test]
fn a_delete_that_was_undone_is_sent_again() {
    for waits in [1, 60_000, 600_000] {
        let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
        run.target("g", 0);
        assert_eq!(run.ends(), ["u1"]);
        let mut pod = run.pods[0].clone();
        (pod.deleting, pod.version) = (true, Some(Version(run.version + 1)));
        run.version += 1;
        run.tell(Input::Deleted { uid: pod.uid.clone(), answer: Ok(Some(pod)) });
        run.wait(waits);
        run.watch(&[1], |pod| pod.deletion_cost = 1);
        run.wait(60_000);
        let is_delete = |action: &&Action| matches!(action, Action::Delete { .. });
        assert_eq!(run.take().iter().filter(is_delete).count(), 1, "after {waits} ms");
    }
}
