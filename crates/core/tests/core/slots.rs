//! Slots: small ranks from 0, which an executor holds until it has ended.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, end_with, policy, spec};
use posse_core::model::action::Action;
use posse_core::model::ids::ExecutorId;
use posse_core::model::pod::{ContainerState, Phase};
use posse_core::model::settings::{Decommission, GroupSpec};

/// The slots of the creates since the last call, in order.
fn new_slots(run: &mut Run) -> Vec<u32> {
    let slots = run.take().into_iter().filter_map(|action| match action {
        Action::Create { slot, .. } => Some(slot),
        _ => None,
    });
    slots.collect()
}

#[test]
fn the_successor_of_a_retained_executor_has_its_slot() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    run.failed(&[2]);
    assert_eq!(run.group("g").failed, 1, "its pod is retained");
    assert_eq!(new_slots(&mut run), [1], "a group of 3 has the ranks 0, 1 and 2");
}

#[test]
fn an_adopted_executor_that_has_ended_claims_no_slot() {
    for counted in [Some(7), None] {
        let mut run = Run::unlisted(policy(), vec![spec("g", 1)]);
        let mut failed = run.pod("g", 1);
        end_with(1)(&mut failed);
        (failed.slot, failed.counted) = (Some(0), counted);
        let mut successor = run.pod("g", 2);
        (successor.slot, successor.phase) = (Some(0), Phase::Running);
        successor.container = ContainerState::Running;
        run.pods = vec![failed, successor];
        run.list();
        let slot_of = |id| run.core.executors().get(ExecutorId(id)).unwrap().slot;
        assert_eq!((slot_of(1), slot_of(2)), (None, Some(0)), "{counted:?}");
    }
}

#[test]
fn a_drained_executor_holds_its_slot_until_it_has_ended() {
    let decommission = Some(Decommission { after_ms: 60_000, label: None, by_term: false });
    for has_ended in [true, false] {
        let group = GroupSpec { decommission: decommission.clone(), ..spec("g", 4) };
        let mut run = Run::with_running(policy(), vec![group]);
        run.target("g", 1);
        assert_eq!(run.group("g").draining, 3);
        if has_ended {
            // Their pods are still there.
            run.watch(&[2, 3, 4], end_with(0));
        }
        run.take();
        run.target("g", 4);
        let want = if has_ended { [1, 2, 3] } else { [4, 5, 6] };
        assert_eq!(new_slots(&mut run), want, "ended: {has_ended}");
        // Those that ended meanwhile leave the low slots to the next executors.
        run.created(&[5, 6, 7]);
        run.running(&[5, 6, 7]);
        run.watch(&[2, 3, 4], end_with(0));
        run.target("g", 5);
        assert_eq!(new_slots(&mut run), [if has_ended { 4 } else { 1 }]);
    }
}

#[test]
fn an_executor_that_terminates_holds_its_slot_until_it_has_ended() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.watch(&[1], |pod| pod.deleting = true);
    assert_eq!(new_slots(&mut run), [2], "two executors never have one rank");
    run.watch(&[1], end_with(143));
    run.target("g", 3);
    assert_eq!(new_slots(&mut run), [0]);
}

#[test]
fn a_slot_that_no_group_needs_is_not_believed() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 2)]);
    let mut pod = run.pod("g", 1);
    pod.slot = Some(4_000_000_000);
    run.pods = vec![pod];
    run.list();
    assert_eq!(run.core.executors().get(ExecutorId(1)).unwrap().slot, None);
    assert_eq!(new_slots(&mut run), [0]);
}
