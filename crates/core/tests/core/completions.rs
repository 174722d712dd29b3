//! Work that ends: completed executors are not replaced, their pods stay as records, and the run ends
//! with the last of them.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;

use crate::core_run::{Run, STOP, end_with, kill, policy, refusal, spec};
use posse_core::model::action::{Action, Patch, RunVerdict};
use posse_core::model::command::{AfterKill, Command, GroupChange, GroupCommand, Reply};
use posse_core::model::event::{Event, ExecutorEvent, LossReason};
use posse_core::model::ids::{GroupName, Uid, Version};
use posse_core::model::input::{Input, PodEvent};
use posse_core::model::pod::Pod;
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{Decommission, GroupSpec, Limit, Policy, Restart};
use posse_core::model::stop::StopOrder;

fn work(target: u32, restart: Restart, completions: Option<u32>) -> GroupSpec {
    GroupSpec { restart, completions, ..spec("g", target) }
}

fn completed(run: &mut Run) -> Vec<u64> {
    let all = run.take_events().into_iter().filter_map(|event| match event {
        Event::Executor(subject, ExecutorEvent::Completed { .. }) => Some(subject.id.0),
        _ => None,
    });
    all.collect()
}

/// How the run ends, some time after its work has ended.
fn verdict(run: &mut Run) -> Option<RunVerdict> {
    run.turn();
    let early = run.core.poll_verdict();
    run.wait(2_000);
    early.or_else(|| run.core.poll_verdict())
}

/// Starts these executors, whose creates were sent; nothing else may follow.
fn start(run: &mut Run, all: &[(u64, u32)]) {
    start_quietly(run, all);
    assert_eq!(run.asked, []);
}

fn start_quietly(run: &mut Run, all: &[(u64, u32)]) {
    let ids: Vec<u64> = all.iter().map(|(id, _)| *id).collect();
    run.created(&ids);
    let slots: BTreeMap<u64, u32> = all.iter().copied().collect();
    run.watch(&ids, |pod| pod.slot = slots.get(&pod.id.0).copied());
    run.running(&ids);
}

fn begin(policy: Policy, group: GroupSpec) -> Run {
    let mut run = Run::new(policy, vec![group]);
    // The create window is small at first.
    loop {
        let all = run.slots_created();
        if all.is_empty() {
            break;
        }
        start_quietly(&mut run, &all);
    }
    run.take();
    run.take_events();
    run
}

/// The same pods, found by a process after a kill -9.
fn restart(before: Run, policy: Policy, group: GroupSpec) -> Run {
    let Run { pods, version, now, .. } = before;
    let mut run = Run { pods, version, now, ..Run::unlisted(policy, vec![group]) };
    run.list();
    run
}

fn ends_with_work() -> Policy {
    Policy { ends_with_work: true, ..policy() }
}

#[test]
fn an_executor_that_ends_with_0_is_done_if_work_ends() {
    for (how, is_done) in
        [(Restart::Always, false), (Restart::OnFailure, true), (Restart::Never, true)]
    {
        let mut run = begin(policy(), work(3, how, None));
        run.watch(&[2], end_with(0));
        let status = run.group("g");
        let want = if is_done { (2, 2, 1, 0) } else { (3, 2, 0, 1) };
        let got = (status.target, status.running, status.completed, status.requested);
        assert_eq!(got, want, "{how:?}");
        let actions = run.take();
        let is_label = |action: &Action| {
            matches!(action, Action::Patch { patch: Patch::Completed { .. }, .. })
        };
        let is_delete = |action: &Action| matches!(action, Action::Delete { .. });
        assert_eq!(actions.iter().any(is_label), is_done);
        assert_eq!(actions.iter().any(is_delete), !is_done);
        let losses =
            run.events.iter().any(|e| matches!(e, Event::Executor(_, ExecutorEvent::Lost { .. })));
        assert_eq!((losses, completed(&mut run).len()), (!is_done, usize::from(is_done)));
    }
}

#[test]
fn failures_are_replaced_on_failure_and_given_up_with_never() {
    for (how, code, is_replaced) in [
        (Restart::OnFailure, 1, true),
        (Restart::Never, 1, false),
        // The node had no room left: not the application's doing.
        (Restart::Never, -1, true),
    ] {
        for completions in [None, Some(5)] {
            let mut run = begin(policy(), work(5, how, completions));
            run.watch(&[3], |pod| {
                end_with(code.max(1))(pod);
                if let Some(end) = &mut pod.end
                    && code < 0
                {
                    end.pod_reason = "Evicted".into();
                }
            });
            assert_eq!(run.losses().len(), 1);
            let want: &[(u64, u32)] = if is_replaced { &[(6, 2)] } else { &[] };
            assert_eq!(run.slots_created(), want, "{how:?} {code} {completions:?}");
            assert_eq!(run.group("g").target, if is_replaced { 5 } else { 4 });
        }
    }
}

#[test]
fn a_budget_still_ends_a_run_whose_failures_are_given_up() {
    let limit = Policy { failures_app: Limit::Max(1), ..ends_with_work() };
    let mut run = begin(limit, work(3, Restart::Never, None));
    run.failed(&[1]);
    assert_eq!(verdict(&mut run), None);
    run.failed(&[2]);
    assert!(matches!(run.core.poll_verdict(), Some(RunVerdict::BudgetExhausted { .. })));
}

/// `count` is the parallelism, and slots are the indexes of the work.
#[test]
fn completions_are_counted_to_the_last_and_no_index_runs_twice() {
    let mut run = begin(ends_with_work(), work(2, Restart::OnFailure, Some(5)));
    let mut running: Vec<(u64, u32)> = vec![(1, 0), (2, 1)];
    let mut done = Vec::new();
    for n_done in 1..=5_u32 {
        // Every second one fails first, and its successor has its index.
        if n_done % 2 == 0 {
            let (id, slot) = running.remove(0);
            run.watch(&[id], end_with(1));
            let new = run.slots_created();
            assert_eq!(new.iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [slot]);
            start(&mut run, &new);
            running.extend(new);
        }
        let (id, slot) = running.remove(0);
        run.watch(&[id], end_with(0));
        done.push(slot);
        let status = run.group("g");
        assert_eq!((status.completed, status.completions), (n_done, Some(5)));
        assert_eq!(status.target, 2.min(5 - n_done));
        let new = run.slots_created();
        start(&mut run, &new);
        running.extend(new);
        let want = (n_done == 5).then_some(RunVerdict::AllEnded { n_given_up: 0 });
        assert_eq!(verdict(&mut run), want);
    }
    done.sort_unstable();
    assert_eq!((done, running), (vec![0, 1, 2, 3, 4], vec![]));
}

#[test]
fn the_successor_of_an_index_waits_until_its_predecessor_has_ended() {
    let mut run = begin(policy(), work(2, Restart::OnFailure, Some(2)));
    run.watch(&[1], |pod| pod.deleting = true);
    assert_eq!((run.slots_created(), run.waits_for("g")), (vec![], Some("replace_gone")));
    run.watch(&[1], end_with(143));
    assert_eq!(run.slots_created(), [(3, 0)]);
}

#[test]
fn an_index_that_is_done_stays_done_if_somebody_deletes_its_record() {
    let mut run = begin(ends_with_work(), work(2, Restart::OnFailure, Some(3)));
    run.watch(&[1], end_with(0));
    let new = run.slots_created();
    assert_eq!(new, [(3, 2)]);
    start(&mut run, &new);
    run.gone(&[1]);
    assert_eq!((run.group("g").completed, run.slots_created()), (1, vec![]));
    run.watch(&[2, 3], end_with(0));
    assert_eq!(verdict(&mut run), Some(RunVerdict::AllEnded { n_given_up: 0 }));
    // Their own end tells nothing new.
    run.take_events();
    run.gone(&[2, 3]);
    assert_eq!(run.take_events(), []);
}

/// The label says what the process before has told.
#[test]
fn records_are_found_again_and_told_again_only_without_their_label() {
    for completions in [None, Some(4)] {
        let group = || work(4, Restart::OnFailure, completions);
        let mut run = begin(policy(), group());
        run.watch(&[1, 2], end_with(0));
        run.watch(&[1], |pod| pod.completed = true);
        let mut run = restart(run, ends_with_work(), group());
        assert_eq!(completed(&mut run), [2]);
        let status = run.group("g");
        assert_eq!((status.completed, status.target, status.running), (2, 2, 2));
        assert_eq!(run.slots_created(), [], "the ones that run are enough");
        run.watch(&[3, 4], end_with(0));
        assert_eq!(verdict(&mut run), Some(RunVerdict::AllEnded { n_given_up: 0 }));
    }
}

#[test]
fn work_that_was_given_up_is_found_again() {
    let group = || work(2, Restart::Never, Some(2));
    let mut run = begin(policy(), group());
    run.watch(&[1], end_with(1));
    run.watch(&[1], |pod| pod.counted = Some(7));
    let mut run = restart(run, ends_with_work(), group());
    assert_eq!((run.slots_created(), run.losses()), (vec![], vec![]));
    run.watch(&[2], end_with(0));
    assert_eq!(verdict(&mut run), Some(RunVerdict::AllEnded { n_given_up: 1 }));
}

/// A target that the driver sets after a restart takes account of what has completed.
#[test]
fn records_do_not_lower_a_target_that_was_set_in_this_run() {
    let group = || work(2, Restart::OnFailure, None);
    let mut run = begin(policy(), group());
    run.watch(&[1], |pod| {
        end_with(0)(pod);
        pod.completed = true;
    });
    let Run { pods, version, .. } = run;
    let mut run = Run { pods, version, ..Run::unlisted(policy(), vec![group()]) };
    run.target("g", 2);
    run.list();
    assert_eq!((run.group("g").target, run.slots_created().len()), (2, 1));
}

/// The create of an earlier process took effect late: its executor repeats work that another one has done.
#[test]
fn who_has_done_an_index_has_it_before_who_repeats_it() {
    for is_labelled in [true, false] {
        let group = || work(2, Restart::OnFailure, Some(2));
        let Run { mut pods, version, .. } = begin(policy(), group());
        end_with(0)(&mut pods[1]);
        (pods[1].completed, pods[1].slot, pods[0].slot) = (is_labelled, Some(0), Some(0));
        let mut run = Run { pods, version, ..Run::unlisted(policy(), vec![group()]) };
        run.list();
        assert_eq!(run.group("g").completed, 1, "{is_labelled}");
        assert_eq!(run.slots_created().iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [1]);
        run.watch(&[1], end_with(0));
        assert_eq!(run.group("g").completed, 1, "{is_labelled}");
    }
}

/// It is seen for the first time when it has ended.
#[test]
fn who_has_an_index_does_its_work_and_not_a_late_executor() {
    let group = || work(2, Restart::OnFailure, Some(2));
    let mut run = begin(policy(), group());
    let Run { pods, version, .. } = run;
    run = Run { pods, version, ..Run::unlisted(policy(), vec![group()]) };
    run.list();
    let mut late = run.pod("g", 900);
    end_with(0)(&mut late);
    late.slot = Some(0);
    run.pods.push(late);
    run.watch(&[900], |_| {});
    assert_eq!(run.group("g").completed, 0);
    run.watch(&[1, 2], end_with(0));
    assert_eq!((completed(&mut run), run.group("g").completed), (vec![1, 2], 2));
}

/// The create of an earlier process takes effect when another executor has the slot, but not yet a pod.
#[test]
fn a_late_executor_has_its_slot_until_it_has_ended() {
    let group = || work(2, Restart::OnFailure, Some(2));
    let Run { mut pods, version, .. } = begin(policy(), group());
    let late = pods.pop().unwrap();
    let mut run = Run { pods, version, ..Run::unlisted(policy(), vec![group()]) };
    run.list();
    let created = run.slots_created();
    assert_eq!(created.iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [1]);
    run.pods.push(late);
    run.watch(&[2], |_| {});
    assert_eq!(run.ends(), ["u2"]);
    run.refused(created[0].0, refusal(RefusalClass::Capacity, 403));
    run.wait(60_000);
    assert_eq!(run.slots_created(), []);
    run.watch(&[2], end_with(137));
    run.wait(60_000);
    assert_eq!(run.slots_created().iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [1]);
}

#[test]
fn pods_of_a_group_that_is_not_known_yet_say_whether_their_work_ends() {
    let mut run = Run::new(policy(), vec![]);
    for (id, slot) in [(1, 0), (2, 1)] {
        let mut pod = run.pod("g", id);
        end_with(0)(&mut pod);
        (pod.slot, pod.restart, pod.completed) = (Some(slot), Restart::OnFailure, id == 1);
        run.pods.push(pod);
    }
    let mut run = Run { core: Run::unlisted(policy(), vec![]).core, ..run };
    run.list();
    assert_eq!(completed(&mut run), [2]);
    let put = |completions| {
        Command::Group(
            GroupName::from("g"),
            GroupCommand::Put {
                change: GroupChange {
                    target: Some(3),
                    restart: Some(Restart::OnFailure),
                    completions,
                    ..GroupChange::default()
                },
            },
        )
    };
    assert_eq!(run.call(put(Some(4))), Reply::Target(2));
    assert_eq!(run.slots_created().iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [2, 3]);
    let Reply::Refused { what, field } = run.call(put(Some(1))) else { panic!("it has done 2") };
    assert_eq!((field, what.contains("below 2")), ("completions", true), "{what}");
    let Reply::Refused { what, field } = run.call(put(Some(0))) else { panic!("nothing to do") };
    assert_eq!((field, &*what), ("completions", "must be at least 1"));
}

#[test]
fn calls_respect_what_is_left() {
    let mut run = begin(policy(), work(3, Restart::OnFailure, Some(4)));
    run.watch(&[1, 2], end_with(0));
    let name = GroupName::from("g");
    let call = |target| Command::Group(name.clone(), GroupCommand::SetTarget { target });
    assert_eq!(run.call(call(9)), Reply::Target(2));
    assert_eq!(run.call(call(1)), Reply::Target(1));
    let bound = GroupSpec { min: 3, ..work(3, Restart::OnFailure, None) };
    let mut run = begin(policy(), bound);
    run.watch(&[1, 2], end_with(0));
    assert_eq!((run.group("g").target, run.group("g").min), (1, 1));
    assert_eq!(run.call(call(0)), Reply::Target(1));
    let reply = run.call(kill(&[1], AfterKill::Lower, true));
    let Reply::Killed { killed, .. } = reply else { panic!("a kill is answered") };
    assert_eq!(killed, [], "work that is done cannot be killed");
}

/// It has begun to end, and finishes its work.
#[test]
fn a_draining_executor_that_completes_has_done_its_part_of_the_work() {
    let decommission = Some(Decommission { after_ms: 60_000, label: None, by_term: false });
    for (completions, is_done) in [(None, false), (Some(4), true)] {
        let group = GroupSpec {
            decommission: decommission.clone(),
            ..work(2, Restart::OnFailure, completions)
        };
        let mut run = begin(policy(), group);
        run.target("g", 1);
        run.watch(&[2], end_with(0));
        assert_eq!(run.group("g").target, 1);
        assert_eq!(completed(&mut run).len(), usize::from(is_done), "{completions:?}");
    }
}

/// An executor whose end by exit code 0 is the answer to its delete has not done its work.
#[test]
fn a_deleted_pod_has_not_completed() {
    let mut run = begin(policy(), work(2, Restart::OnFailure, Some(2)));
    run.watch(&[1], |pod| {
        end_with(0)(pod);
        pod.deleting = true;
    });
    assert_eq!(run.losses(), [(1, LossReason::Deleted)]);
    assert_eq!(run.slots_created(), [(3, 0)]);
}

#[test]
fn work_that_is_done_is_no_crash_loop() {
    let mut run = begin(policy(), work(20, Restart::OnFailure, None));
    for id in 1..=15 {
        run.watch(&[id], end_with(0));
    }
    run.watch(&[16], end_with(1));
    assert_eq!((run.waits_for("g"), run.slots_created().len()), (None, 1));
}

#[test]
fn the_oldest_records_go_if_nothing_limits_their_number() {
    let mut run =
        begin(Policy { in_flight_max: 4_000, ..policy() }, work(0, Restart::OnFailure, None));
    let mut pods = Vec::new();
    for id in 1..=1_002 {
        let mut pod = run.pod("g", id);
        end_with(0)(&mut pod);
        (pod.slot, pod.completed) = (Some(u32::try_from(id).unwrap()), true);
        pods.push(pod);
    }
    run.pods = pods;
    let mut run = restart(run, policy(), work(0, Restart::OnFailure, None));
    assert_eq!(run.ends(), ["u1", "u2"]);
    assert_eq!(run.group("g").completed, 1_002);
}

/// Records are no evidence of a failure.
#[test]
fn a_stop_deletes_records_and_retains_the_last_failed_pods() {
    for restart in [Restart::OnFailure, Restart::Never] {
        let mut run = begin(Policy { keep_failed: 2, ..policy() }, work(6, restart, None));
        run.watch(&[1], end_with(0));
        run.failed(&[2, 3, 4, 5]);
        run.watch(&[2, 3, 4, 5], |pod| pod.counted = Some(7));
        run.stop(StopOrder { keep_failed: true, ..STOP });
        let names = run.core.remaining();
        assert_eq!(names.retained, ["app-x-exec-4", "app-x-exec-5"], "{restart:?}");
        assert!(names.remaining.contains(&"app-x-exec-1".to_owned()), "{names:?}");
    }
}

#[test]
fn a_run_ends_when_all_its_groups_are_done() {
    let groups = |other| {
        vec![work(1, Restart::OnFailure, None), GroupSpec { restart: other, ..spec("h", 1) }]
    };
    for (other, is_over) in [(Restart::Never, true), (Restart::Always, false)] {
        let mut run = Run::new(ends_with_work(), groups(other));
        run.created(&[1, 2]);
        run.running(&[1, 2]);
        run.watch(&[1], end_with(0));
        assert_eq!(verdict(&mut run), None);
        run.watch(&[2], end_with(0));
        assert_eq!(verdict(&mut run).is_some(), is_over);
    }
    // Scaled to 0: work is left.
    let mut run = begin(ends_with_work(), work(2, Restart::OnFailure, Some(4)));
    run.watch(&[1], end_with(0));
    run.target("g", 0);
    run.gone(&[2]);
    assert_eq!(verdict(&mut run), None);
}

/// A create of unknown outcome takes effect after another one under its name, whose pod is gone.
#[test]
fn a_create_waits_for_a_late_pod_that_has_its_slot() {
    let mut run = begin(policy(), work(2, Restart::OnFailure, Some(2)));
    run.gone(&[2]);
    assert_eq!(run.slots_created(), [(3, 1)]);
    run.refused(3, refusal(RefusalClass::OutcomeUnknown, 500));
    let late = Pod { uid: Uid::new("late"), slot: Some(1), ..run.pod("g", 2) };
    run.pods.push(late);
    run.watch(&[2], |_| {});
    assert_eq!(run.ends(), ["late"]);
    run.wait(60_000);
    assert_eq!(run.slots_created(), []);
    run.gone(&[2]);
    run.wait(1_000);
    assert_eq!(run.slots_created(), [(3, 1)]);
}

/// Without stored ids two processes can give one id. The pod of the other's create does not do the work of ours.
#[test]
fn a_late_pod_of_an_id_that_was_given_again_is_no_executors_pod() {
    let group = || work(2, Restart::OnFailure, Some(3));
    for (late_group, late_slot) in [("g", 2), ("other", 0)] {
        let mut run = Run::new(policy(), vec![group()]);
        assert_eq!(run.slots_created(), [(1, 0), (2, 1)]);
        let late = Pod { slot: Some(late_slot), ..run.pod(late_group, 1) };
        run.pods.push(late);
        run.watch(&[1], |_| {});
        assert_eq!(run.ends(), ["u1"], "{late_group}");
        run.watch(&[1], end_with(0));
        assert_eq!((completed(&mut run), run.group("g").completed), (vec![], 0), "{late_group}");
    }
}

/// A restore of etcd has brought two pods that have done the same.
#[test]
fn two_records_of_an_index_are_one() {
    let group = || work(1, Restart::OnFailure, Some(2));
    let mut before = begin(policy(), group());
    before.watch(&[1], end_with(0));
    before.watch(&[1], |pod| pod.completed = true);
    let again = Pod { slot: Some(0), ..before.pod("g", 7) };
    before.pods.push(again);
    before.watch(&[7], end_with(0));
    before.pods.iter_mut().for_each(|pod| pod.completed = true);
    let mut run = restart(before, policy(), group());
    assert_eq!(run.group("g").completed, 1);
    assert_eq!(run.slots_created().iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [1]);
}

/// A watch that a LIST has overtaken tells the end of an earlier run's pod, whose id a create has again.
#[test]
fn a_pod_that_was_gone_before_a_create_has_not_done_its_work() {
    let mut run = Run::new(policy(), vec![work(1, Restart::OnFailure, Some(2))]);
    assert_eq!(run.slots_created(), [(1, 0)]);
    let mut earlier = Pod { uid: Uid::new("earlier"), slot: Some(0), ..run.pod("g", 1) };
    end_with(0)(&mut earlier);
    earlier.version = Some(Version(1));
    let epoch = run.core.watermark().epoch;
    run.tell(Input::Watch { epoch, events: vec![PodEvent::Deleted(earlier)] });
    assert_eq!((completed(&mut run), run.group("g").completed), (vec![], 0));
    assert_eq!(run.slots_created(), [], "the first create is open");
}
