//! With volumes a new executor waits for the slot of an executor that still ends, for a limited time.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, pod_with_claims, policy, spec};
use posse_core::model::event::{Event, ExecutorEvent};
use posse_core::model::ids::ExecutorId;
use posse_core::model::pod::{ContainerState, Phase, Pod};
use posse_core::model::settings::{GroupSpec, Policy, Replace, SlotPolicy};

const WAIT_MS: u64 = 60_000;

fn group(n: u32) -> GroupSpec {
    GroupSpec { pod: pod_with_claims(), ..spec("g", n) }
}

fn deleting(pod: &mut Pod) {
    pod.deleting = true;
}

fn ended(pod: &mut Pod) {
    (pod.phase, pod.container) = (Phase::Failed, ContainerState::Ended);
}

/// The slots that were skipped since the last call: of which executor, and which one it got instead.
fn skipped(run: &mut Run) -> Vec<(u64, u32, u32, ExecutorId)> {
    let events = run.take_events().into_iter().filter_map(|event| match event {
        Event::Executor(subject, ExecutorEvent::SlotSkipped { slot, skipped, held_by }) => {
            Some((subject.id.0, slot, skipped, held_by))
        }
        _ => None,
    });
    events.collect()
}

#[test]
fn a_successor_gets_the_slot_of_an_executor_that_ends_in_time() {
    let mut run = Run::with_running(policy(), vec![group(3)]);
    run.watch(&[2], deleting);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![], Some("slot")));
    let message = run.group("g").message.unwrap();
    assert!(message.starts_with("executor 2 still has slot 1; if"), "{message}");
    run.wait(WAIT_MS - 1);
    assert_eq!(run.slots_created(), []);
    run.watch(&[2], ended);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![(4, 1)], None));
    assert_eq!(skipped(&mut run), []);
}

#[test]
fn after_the_wait_the_next_free_slot_is_taken_and_the_reason_is_told_once() {
    let mut run = Run::with_running(policy(), vec![group(3)]);
    run.watch(&[2], deleting);
    let began = run.now;
    run.take();
    run.wait(WAIT_MS);
    assert_eq!(run.slots_created(), [(4, 3)]);
    assert_eq!(skipped(&mut run), [(4, 3, 1, ExecutorId(2))]);
    assert_eq!(run.now, began + WAIT_MS);
    run.start(&[4]);
    // The next loss has its own wait, although slot 1 is still held.
    run.watch(&[4], deleting);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![], Some("slot")));
    run.gone(&[4]);
    assert_eq!((run.slots_created(), skipped(&mut run)), (vec![(5, 3)], vec![]));
}

/// Executor 2 ended at once, so its slot is free; executor 1 takes its time.
#[test]
fn a_slot_that_is_free_is_taken_at_once_beside_one_that_is_waited_for() {
    let mut run = Run::with_running(policy(), vec![group(4)]);
    run.watch(&[3], deleting);
    run.watch(&[2], ended);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![(5, 1)], Some("slot")));
    run.gone(&[3]);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![(6, 2)], None));
}

#[test]
fn one_slot_that_never_ends_holds_back_no_other_executor() {
    let mut run = Run::with_running(policy(), vec![group(4)]);
    run.watch(&[1], deleting);
    run.wait(WAIT_MS - 1_000);
    // All the time another executor ends, and each of them within its wait.
    run.watch(&[2], deleting);
    assert_eq!(run.slots_created(), []);
    run.wait(1_000);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![(5, 4)], Some("slot")));
    run.gone(&[2]);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![(6, 1)], None));
}

#[test]
fn executors_that_a_lower_target_ended_are_waited_for_when_it_rises_again() {
    let mut run = Run::with_running(policy(), vec![group(3)]);
    run.target("g", 1);
    run.watch(&[2, 3], deleting);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![], None));
    run.target("g", 2);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![], Some("slot")));
    run.gone(&[3, 2]);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![(4, 1)], None));
}

#[test]
fn an_adopted_executor_that_ends_is_waited_for_from_then_on() {
    let policy = Policy { adopt_hold_ms: 0, ..policy() };
    let mut run = Run::unlisted(policy, vec![group(1)]);
    let mut pod = run.pod("g", 1);
    (pod.slot, pod.phase, pod.container) = (Some(0), Phase::Running, ContainerState::Running);
    pod.deleting = true;
    run.pods.push(pod);
    run.list();
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![], Some("slot")));
    run.gone(&[1]);
    assert_eq!(run.slots_created().iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [0]);
}

#[test]
fn groups_that_wait_in_another_way_have_no_limit() {
    let specs = [
        GroupSpec { slots: SlotPolicy::Stable, ..group(2) },
        GroupSpec { replace: Replace::Gone, ..group(2) },
    ];
    for spec in specs {
        let mut run = Run::with_running(policy(), vec![spec]);
        run.watch(&[1], deleting);
        run.take();
        run.wait(10 * WAIT_MS);
        assert_eq!((run.slots_created(), skipped(&mut run)), (vec![], vec![]));
        run.gone(&[1]);
        assert_eq!(run.slots_created(), [(3, 0)]);
    }
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.watch(&[1], deleting);
    assert_eq!((run.slots_created(), skipped(&mut run)), (vec![(3, 2)], vec![]));
}
