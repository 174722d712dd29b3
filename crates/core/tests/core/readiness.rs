//! Readiness: the condition `Ready` of an executor's pod, in events and status.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, heard, policy, spec};
use posse_core::model::event::{Event, ExecutorEvent};
use posse_core::model::pod::{ContainerState, Phase};
use posse_core::model::settings::Policy;

/// The executors that were told as ready since the last call.
fn ready(run: &mut Run) -> Vec<u64> {
    let ready = run.take_events().into_iter().filter_map(|event| match event {
        Event::Executor(subject, ExecutorEvent::Ready) => Some(subject.id.0),
        _ => None,
    });
    ready.collect()
}

#[test]
fn an_executor_is_told_as_ready_once_and_counted_while_it_is_ready() {
    let mut run = Run::new(policy(), vec![spec("g", 2)]);
    run.created(&[1, 2]);
    run.watch(&[1, 2], |pod| {
        (pod.phase, pod.container) = (Phase::Running, ContainerState::Running);
    });
    assert_eq!((ready(&mut run), run.group("g").ready), (vec![], 0));
    assert_eq!(run.group("g").running, 2);
    run.watch(&[2], |pod| pod.ready = true);
    assert_eq!((ready(&mut run), run.group("g").ready), (vec![2], 1));
    run.watch(&[2], |pod| pod.ready = false);
    run.watch(&[1], |pod| pod.ready = true);
    assert_eq!((ready(&mut run), run.group("g").ready), (vec![1], 1));
    run.watch(&[2], |pod| pod.ready = true);
    assert_eq!((ready(&mut run), run.group("g").ready), (vec![], 2));
    let status = run.core.status();
    assert!(status.executors.iter().flat_map(|block| block.iter()).all(|one| one.ready));
    // A terminating pod may still be ready; it is no capacity.
    run.watch(&[1], |pod| pod.deleting = true);
    assert_eq!(run.group("g").ready, 1);
    run.gone(&[1, 2]);
    assert_eq!(run.group("g").ready, 0);
}

#[test]
fn with_heartbeats_an_executor_is_ready_when_the_driver_has_heard_from_it() {
    let policy = Policy { heartbeat_timeout_ms: 60_000, ..policy() };
    let mut run = Run::with_running(policy, vec![spec("g", 3)]);
    assert_eq!((ready(&mut run), run.group("g").ready), (vec![], 0));
    run.call(heard(&[2]));
    assert_eq!((ready(&mut run), run.group("g").ready), (vec![2], 1));
    run.call(heard(&[2]));
    assert_eq!((ready(&mut run), run.group("g").ready), (vec![], 1), "told once");
    let status = run.core.status();
    let shown: Vec<bool> =
        status.executors.iter().flat_map(|block| block.iter()).map(|one| one.ready).collect();
    assert_eq!(shown, [false, true, false]);
    run.target("g", 1);
    assert_eq!(run.ends(), ["u1", "u3"], "those without a heartbeat end first");
    // Its pod is not ready yet: the driver may hear from it before the kubelet's probe succeeds.
    run.target("g", 2);
    run.created(&[4]);
    run.call(heard(&[2, 4]));
    run.watch(&[4], |pod| {
        (pod.phase, pod.container) = (Phase::Running, ContainerState::Running);
    });
    assert_eq!(ready(&mut run), Vec::<u64>::new());
    run.watch(&[4], |pod| pod.ready = true);
    assert_eq!(ready(&mut run), [4]);
}
