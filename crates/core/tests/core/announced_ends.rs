//! `executor_ending`: the driver learns of an end before it comes.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, STOP, end_with, kill, policy, spec};
use posse_core::model::command::AfterKill;
use posse_core::model::event::{DeleteCause, Event, ExecutorEvent, LossReason};
use posse_core::model::pod::{ContainerState, Draining, End, Pod};

/// The announced ends and the losses since the last call: the executor, the reason, and how long it has.
fn told(run: &mut Run) -> Vec<(u64, LossReason, Option<u64>)> {
    let now = run.now;
    let told = run.take_events().into_iter().filter_map(|event| match event {
        Event::Executor(subject, ExecutorEvent::Ending { reason, deadline, .. }) => {
            Some((subject.id.0, reason, Some(deadline.0 - now)))
        }
        Event::Executor(subject, ExecutorEvent::Lost { reason, .. }) => {
            Some((subject.id.0, reason, None))
        }
        _ => None,
    });
    told.collect()
}

/// A condition announces the end.
fn disrupted(reason: &str) -> impl Fn(&mut Pod) {
    let end = End { disruption: reason.into(), ..End::default() };
    move |pod| pod.end = Some(Box::new(end.clone()))
}

fn deleted(grace_s: u32) -> impl Fn(&mut Pod) {
    move |pod| (pod.deleting, pod.deletion_grace_s) = (true, grace_s)
}

#[test]
fn an_end_is_told_before_the_loss_and_again_if_it_is_sooner() {
    for (condition, reason) in [
        ("EvictionByEvictionAPI", LossReason::Evicted),
        ("PreemptionByScheduler", LossReason::Preempted),
        ("TerminationTarget", LossReason::Preempted),
        ("DeletionByTaintManager", LossReason::NodeLost),
    ] {
        let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
        run.watch(&[1], |pod| pod.grace_s = 40);
        run.watch(&[1], disrupted(condition));
        assert_eq!(told(&mut run), [(1, reason, Some(40_000))], "{condition}");
        assert_eq!(run.creates(), [], "{condition}: it is capacity until its pod terminates");
        run.watch(&[1], |pod| pod.ready = false);
        run.now += 5_000;
        // The executor has 35 s by what was told.
        let mut same = run.clone();
        same.watch(&[1], deleted(35));
        assert_eq!(told(&mut same), [(1, reason, None)], "{condition}");
        run.watch(&[1], deleted(20));
        let sooner = [(1, reason, Some(20_000)), (1, reason, None)];
        assert_eq!(told(&mut run), sooner, "{condition}");
        assert_eq!(run.creates(), [3], "{condition}: the successor does not wait for the end");
        run.watch(&[1], end_with(143));
        run.gone(&[1]);
        assert_eq!(told(&mut run), [], "{condition}");
    }
}

#[test]
fn a_deletion_with_grace_is_told_with_the_time_that_is_left() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.watch(&[2], deleted(25));
    let deleted_by_others = LossReason::Deleted;
    assert_eq!(
        told(&mut run),
        [(2, deleted_by_others, Some(25_000)), (2, deleted_by_others, None)]
    );
}

/// The eviction was refused in the end, and comes later.
#[test]
fn an_end_that_was_taken_back_is_told_again() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    for _ in 0..2 {
        run.watch(&[1], disrupted("EvictionByEvictionAPI"));
        assert_eq!(told(&mut run).len(), 1);
        run.now += 10_000;
        run.watch(&[1], |pod| pod.end = None);
        assert_eq!(told(&mut run), []);
    }
}

/// Nothing can be done for an executor that has no time, has ended, or never ran.
#[test]
fn an_end_that_leaves_no_time_is_only_a_loss() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    run.watch(&[1], deleted(0));
    run.watch(&[2], |pod| {
        deleted(30)(pod);
        pod.container = ContainerState::Ended;
    });
    run.gone(&[3]);
    let reasons: Vec<_> = told(&mut run).into_iter().map(|(id, _, time)| (id, time)).collect();
    assert_eq!(reasons, [(1, None), (2, None), (3, None)]);
    run.created(&[4]);
    run.watch(&[4], deleted(30));
    assert_eq!(told(&mut run), [(4, LossReason::Deleted, None)], "it did not run");
}

/// The driver asked for these ends, or was told of them by another event.
#[test]
fn the_ends_that_posse_asks_for_are_not_announced() {
    let mut run = Run::with_running(policy(), vec![spec("g", 4)]);
    run.target("g", 3);
    assert_eq!(run.ends(), ["u4"]);
    run.watch(&[4], deleted(30));
    run.call(kill(&[2], AfterKill::Lower, true));
    run.watch(&[2], deleted(30));
    run.watch(&[3], |pod| {
        let (cause, until_unix_ms) = (DeleteCause::ScaledDown, None);
        pod.draining = Some(Box::new(Draining { cause, until_unix_ms }));
        deleted(30)(pod);
    });
    run.stop(STOP);
    run.watch(&[1], deleted(30));
    let announced: Vec<_> = told(&mut run).into_iter().filter(|told| told.2.is_some()).collect();
    assert_eq!(announced, []);
}
