//! How long a stop waits for pods whose grace period is longer than its own.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{PREFIX, Run, STOP, kill, policy, refusal, spec};
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::command::AfterKill;
use posse_core::model::event::{Event, RunEvent};
use posse_core::model::ids::Uid;
use posse_core::model::input::{Input, List, ListSource};
use posse_core::model::pod::Rare;
use posse_core::model::refusal::RefusalClass;
use posse_core::model::stop::HeldPod;

fn stopped_after(run: &mut Run) -> u64 {
    let began = run.now;
    for action in run.take() {
        if let Action::Delete { uid, .. } = action {
            run.tell(Input::Deleted { uid, answer: Ok(None) });
        }
    }
    while run.core.stop_result().is_none() {
        run.wait(1_000);
        assert!(run.now < began + 3_600_000, "the stop does not end");
    }
    run.now - began
}

/// Seen on a real node: the stop shortens `deletionGracePeriodSeconds` to 10, and the node goes on with
/// the 30 s that it began with.
#[test]
fn a_stop_waits_for_the_grace_period_that_a_terminating_pod_began_with() {
    for (grace_s, deletion_grace_s, want_s) in
        [(30, 30, 35), (30, 10, 35), (5, 5, 15), (30, 60, 65), (600, 600, 605)]
    {
        let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
        run.core.stop_creates();
        run.watch(&[1], |pod| {
            (pod.deleting, pod.grace_s) = (true, grace_s);
            pod.deletion_grace_s = deletion_grace_s;
        });
        run.take();
        run.stop(STOP);
        // The server reports the shortened grace period.
        run.watch(&[1], |pod| pod.deletion_grace_s = 10);
        assert_eq!(stopped_after(&mut run), want_s * 1_000, "{grace_s} {deletion_grace_s}");
        let result = run.core.stop_result().unwrap();
        assert_eq!(result.terminating.len(), 1, "{result:?}");
    }
}

/// Nobody will say that a pod on the driver's own dead node has ended.
#[test]
fn a_stop_does_not_wait_for_pods_of_its_own_lost_node() {
    for (lost, deleting, is_awaited) in
        [("n1", true, false), ("n1", false, true), ("n2", true, true)]
    {
        let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
        run.core.stop_creates();
        run.watch(&[1], |pod| (pod.node, pod.deleting) = (Some("n1".into()), deleting));
        run.take();
        run.tell(Input::OwnNodeLost { node: lost.into() });
        run.stop(STOP);
        let began = run.now;
        while run.core.stop_result().is_none() {
            for action in run.take() {
                match action {
                    Action::Delete { uid, .. } => {
                        run.tell(Input::Deleted { uid, answer: Ok(None) });
                    }
                    Action::List { watermark } => {
                        let version = watermark.position;
                        let pods = run.pods.clone();
                        run.tell(Input::List(List::whole(
                            ListSource::Stop,
                            pods,
                            version,
                            watermark,
                        )));
                    }
                    _ => {}
                }
            }
            run.wait(1_000);
        }
        let took_ms = run.now - began;
        assert_eq!(took_ms >= 10_000, is_awaited, "{lost} {deleting}: {took_ms}");
        let result = run.core.stop_result().unwrap();
        let named = [&result.terminating, &result.remaining].map(Vec::len);
        assert_eq!(named.iter().sum::<usize>(), 1, "{result:?}");
    }
}

#[test]
fn a_stop_waits_for_a_pod_whose_delete_was_sent_just_before() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.call(kill(&[1], AfterKill::Lower, true));
    run.stop(STOP);
    assert_eq!(stopped_after(&mut run), 35_000);
}

#[test]
fn a_pod_that_the_stop_itself_deletes_has_the_grace_period_of_the_stop() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.stop(STOP);
    run.watch(&[1], |pod| (pod.deleting, pod.deletion_grace_s) = (true, 10));
    assert_eq!(stopped_after(&mut run), 15_000);
}

#[test]
fn the_wait_ends_with_the_pod() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.core.stop_creates();
    run.watch(&[1], |pod| (pod.deleting, pod.deletion_grace_s) = (true, 30));
    run.take();
    run.stop(STOP);
    run.gone(&[1]);
    assert_eq!(stopped_after(&mut run), 15_000, "only the other one is left");
}

#[test]
fn a_stop_in_a_hurry_waits_for_the_answers_to_its_deletes_for_5_s() {
    for (is_answered, want_ms) in [(true, 0), (false, 5_000)] {
        let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
        let deleted = |uid: &str| Input::Deleted { uid: Uid::new(uid), answer: Ok(None) };
        run.stop(STOP);
        run.tell(deleted("u1"));
        assert_eq!(run.core.stop_result(), None, "it is no hurry yet");
        let began = run.now;
        run.core.hurry_stop(false, Millis(began));
        run.turn();
        assert_eq!(run.core.stop_result(), None, "the second one is not answered");
        if is_answered {
            run.tell(deleted("u2"));
        }
        while run.core.stop_result().is_none() && run.now < began + 60_000 {
            run.wait(1_000);
        }
        assert_eq!(run.now - began, want_ms);
        assert_eq!(run.core.stop_result().unwrap().remaining.len(), 2);
    }
}

#[test]
fn a_stop_that_is_abandoned_waits_for_nothing() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.take();
    run.core.abandon_stop(STOP, Millis(run.now));
    assert_eq!(run.core.next_deadline(), Some(Millis(run.now)));
    run.turn();
    assert_eq!(run.core.stop_result().unwrap().remaining.len(), 2);
}

/// The cluster ends no pod that a finalizer holds.
#[test]
fn a_pod_that_a_finalizer_holds_is_named_with_it() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    run.watch(&[1, 2], |pod| {
        let finalizers = "example.com/hold".into();
        pod.rare = Some(Rare { finalizers, ..Rare::default() }.into());
    });
    run.stop(STOP);
    run.watch(&[1, 3], |pod| (pod.deleting, pod.deletion_grace_s) = (true, 10));
    stopped_after(&mut run);
    let result = run.core.stop_result().unwrap();
    let held = HeldPod { name: format!("{PREFIX}1"), finalizers: "example.com/hold".into() };
    assert_eq!(
        (&result.held, result.terminating.len(), result.remaining.len()),
        (&vec![held], 1, 1)
    );
    assert!(!result.is_clean());
    assert_eq!(run.events.last(), Some(&Event::Run(RunEvent::Stopped { count: 2 })));
}

/// A create of unknown outcome was given up long before the stop, and the server answers no LIST since: its pod may
/// be there.
#[test]
fn a_create_that_was_given_up_is_named_unless_a_list_shows_that_there_is_no_pod() {
    let unknown = || refusal(RefusalClass::OutcomeUnknown, 0);
    for (is_listed, want) in [(false, vec![format!("{PREFIX}1")]), (true, vec![])] {
        let mut run = Run::new(policy(), vec![spec("g", 1)]);
        assert_eq!(run.creates(), [1]);
        run.refused(1, unknown());
        run.target("g", 0);
        run.wait(120_000);
        assert_eq!(run.core.executors().iter().count(), 0, "it is forgotten");
        run.take();
        run.stop(STOP);
        for _ in 0..100 {
            for action in run.take() {
                match action {
                    Action::List { watermark } if is_listed => {
                        let version = watermark.position;
                        let list = List::whole(ListSource::Stop, vec![], version, watermark);
                        run.tell(Input::List(list));
                    }
                    Action::List { .. } => run.tell(Input::ListRefused { refusal: unknown() }),
                    other => panic!("{other:?}"),
                }
            }
            run.wait(1_000);
        }
        assert_eq!(run.core.stop_result().unwrap().remaining, want);
    }
}
