//! `slots: stable`: the executors of a group with target n have the slots from 0 to n - 1.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, end_with, kill, policy, spec};
use posse_core::model::command::{AfterKill, Command, GroupChange, GroupCommand, Reply};
use posse_core::model::event::{DeleteCause, Event, ExecutorEvent};
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::pod::{ContainerState, Phase};
use posse_core::model::settings::{
    Decommission, GroupSpec, Policy, Replace, Restart, ScaleDown, SlotPolicy,
};
use posse_core::model::status::State;

fn ranks(n: u32) -> GroupSpec {
    GroupSpec { slots: SlotPolicy::Stable, ..spec("g", n) }
}

/// The slots of the executors that count as capacity.
fn slots(run: &Run) -> Vec<Option<u32>> {
    let executors = run.core.executors().iter().map(|(_, executor)| executor);
    let live = executors.filter(|executor| {
        matches!(executor.state, State::Requested | State::Pending | State::Running)
    });
    let mut slots: Vec<_> = live.map(|executor| executor.slot).collect();
    slots.sort_unstable();
    slots
}

/// The ids of the executors that posse has ended, and why.
fn ended(run: &mut Run) -> Vec<(u64, DeleteCause)> {
    let ended = run.take_events().into_iter().filter_map(|event| match event {
        Event::Executor(subject, ExecutorEvent::Deleted { cause }) => Some((subject.id.0, cause)),
        _ => None,
    });
    ended.collect()
}

#[test]
fn a_successor_waits_for_the_slot_of_an_executor_that_terminates() {
    let mut run = Run::with_running(policy(), vec![ranks(4)]);
    run.watch(&[2], |pod| pod.deleting = true);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![], Some("slot")));
    run.watch(&[2], end_with(137));
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![(5, 1)], None));
}

#[test]
fn retained_pods_push_no_executor_out_of_range() {
    let mut run = Run::with_running(policy(), vec![ranks(4)]);
    let mut id = 3;
    for n in 1..5 {
        run.failed(&[id]);
        assert_eq!(run.group("g").failed, n);
        let new = run.slots_created();
        assert_eq!(new.iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [2]);
        id = new[0].0;
        run.start(&[id]);
        run.wait(70_000);
    }
}

#[test]
fn a_lower_target_ends_the_highest_slots_and_a_higher_one_waits_for_them() {
    for after_ms in [None, Some(600_000)] {
        let decommission =
            after_ms.map(|after_ms| Decommission { after_ms, label: None, by_term: false });
        let mut run = Run::with_running(policy(), vec![GroupSpec { decommission, ..ranks(4) }]);
        // Rank 0 is the youngest executor now, which other groups would end first.
        run.failed(&[1]);
        assert_eq!(run.slots_created(), [(5, 0)]);
        run.start(&[5]);
        run.target("g", 1);
        assert_eq!(slots(&run), [Some(0)]);
        run.target("g", 4);
        assert_eq!((run.slots_created(), run.waits_for("g")), (vec![], Some("slot")));
        run.watch(&[3], end_with(143));
        assert_eq!((run.slots_created(), run.waits_for("g")), (vec![(6, 2)], Some("slot")));
        run.gone(&[2, 4]);
        assert_eq!((run.slots_created(), run.waits_for("g")), (vec![(7, 1), (8, 3)], None));
    }
}

/// The driver names rank 1 of four: its slot is refilled, and the highest rank ends instead.
#[test]
fn a_kill_call_that_lowers_the_target_leaves_no_gap() {
    let mut run = Run::with_running(policy(), vec![ranks(4)]);
    run.call(kill(&[2], AfterKill::Lower, true));
    assert_eq!(run.group("g").target, 3);
    run.turn();
    assert_eq!((slots(&run), run.waits_for("g")), (vec![Some(0), Some(2)], Some("slot")));
    run.gone(&[4]);
    assert_eq!(ended(&mut run), [(4, DeleteCause::ScaledDown)]);
    assert_eq!(run.slots_created(), []);
    run.gone(&[2]);
    assert_eq!(run.slots_created(), [(5, 1)]);
}

#[test]
fn a_kill_of_the_highest_slot_ends_no_other_executor() {
    let mut run = Run::with_running(policy(), vec![ranks(4)]);
    run.call(kill(&[4], AfterKill::Lower, true));
    run.gone(&[4]);
    assert_eq!((slots(&run), run.slots_created()), (vec![Some(0), Some(1), Some(2)], vec![]));
}

#[test]
fn adopted_executors_keep_their_slots_and_surplus_waits_for_the_hold() {
    for hold_ms in [0, 60_000] {
        let policy = Policy { adopt_hold_ms: hold_ms, ..policy() };
        let mut run = Run::unlisted(policy, vec![ranks(3)]);
        for (id, slot) in [(1, Some(0)), (2, Some(4)), (3, None), (4, Some(0))] {
            let mut pod = run.pod("g", id);
            (pod.slot, pod.phase, pod.container) = (slot, Phase::Running, ContainerState::Running);
            run.pods.push(pod);
        }
        run.list();
        // Two executors of one slot: the second one is of a create that took effect late.
        run.gone(&[4]);
        assert_eq!(ended(&mut run), [(4, DeleteCause::Condemned)]);
        if hold_ms > 0 {
            assert_eq!(slots(&run), [None, Some(0), Some(4)]);
            run.wait(hold_ms);
        }
        assert_eq!(slots(&run), [Some(0), Some(1), Some(2)], "{hold_ms}");
        assert_eq!(run.slots_created().iter().map(|new| new.1).collect::<Vec<_>>(), [1, 2]);
    }
}

/// The executor of a create that took effect late ends more slowly than the one that has its slot.
#[test]
fn a_slot_waits_for_the_last_of_its_executors() {
    let mut run = Run::unlisted(policy(), vec![ranks(1)]);
    for id in [1, 4] {
        let mut pod = run.pod("g", id);
        (pod.slot, pod.phase, pod.container) = (Some(0), Phase::Running, ContainerState::Running);
        run.pods.push(pod);
    }
    run.list();
    run.gone(&[1]);
    assert_eq!(run.slots_created(), []);
    run.gone(&[4]);
    assert_eq!(run.slots_created().iter().map(|new| new.1).collect::<Vec<_>>(), [0]);
}

#[test]
fn with_replace_gone_the_successor_waits_for_the_pod() {
    let group = GroupSpec { replace: Replace::Gone, ..ranks(2) };
    let mut run = Run::with_running(policy(), vec![group]);
    run.watch(&[1], |pod| {
        pod.deleting = true;
        end_with(1)(pod);
    });
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![], Some("replace_gone")));
    run.gone(&[1]);
    assert_eq!(run.slots_created(), [(3, 0)]);
}

fn change(n: u32) -> GroupChange {
    GroupChange { target: Some(n), ..GroupChange::default() }
}

#[test]
fn a_call_makes_the_slots_of_a_group_stable() {
    let mut run = Run::with_running(policy(), vec![spec("g", 4)]);
    run.watch(&[2], |pod| pod.deleting = true);
    assert_eq!(run.slots_created(), [(5, 4)], "today's rule");
    run.start(&[5]);
    let name = GroupName::from("g");
    let stable = GroupChange { slots: Some(SlotPolicy::Stable), ..change(4) };
    let reply =
        run.call(Command::Group(name.clone(), GroupCommand::Put { change: stable.clone() }));
    assert_eq!(reply, Reply::Target(4));
    // The executor in slot 4 ends.
    assert_eq!(slots(&run), [Some(0), Some(2), Some(3)]);
    run.gone(&[2]);
    assert_eq!(run.slots_created(), [(6, 1)]);
    let wrong = [
        ("replace", GroupChange { replace: Some(Replace::Terminating), ..change(4) }),
        ("scale_down", GroupChange { scale_down: Some(ScaleDown::Pending), ..stable.clone() }),
        ("restart", GroupChange { restart: Some(Restart::OnFailure), ..stable }),
    ];
    for (want, change) in wrong {
        let reply = run.call(Command::Group(name.clone(), GroupCommand::Put { change }));
        let Reply::Refused { field, what } = reply else { panic!("{want}: {reply:?}") };
        assert!(field == want && what.contains("slots"), "{field}: {what}");
    }
    let executor = run.core.executors().get(ExecutorId(6)).unwrap();
    assert_eq!(executor.slot, Some(1));
}
