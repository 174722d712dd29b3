//! The stop of a run that has a record: it looks before it deletes, so that no work is lost that has ended.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use super::record::{recorded, restart};
use super::tasks::{creates, group, say, task};
use crate::core_run::{PREFIX, Run, STOP, end_with, policy, refusal, spec};
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::input::{Input, List, ListSource};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{GroupSpec, Policy, Restart};
use posse_core::model::stop::StopOrder;

fn work() -> GroupSpec {
    GroupSpec { restart: Restart::OnFailure, completions: Some(1), ..spec("g", 1) }
}

/// An executor that runs, of a task if the group creates none for itself.
fn running(policy: Policy, group: &GroupSpec) -> Run {
    let mut run = Run::new(policy, vec![group.clone()]);
    if group.target == 0 {
        say(&mut run, &[task("a", 0)]);
    }
    run.take();
    run.start(&[1]);
    let slot = group.completions.map(|_| 0);
    run.watch(&[1], |pod| (pod.slot, pod.restart) = (slot, group.restart));
    run
}

/// What the stop asks for next: "list", or the pod that it deletes.
fn asked(run: &mut Run) -> Vec<String> {
    let all = run.take().into_iter().map(|action| match action {
        Action::List { .. } => "list".to_owned(),
        Action::Delete { uid, .. } => uid.to_string(),
        other => panic!("{other:?}"),
    });
    all.collect()
}

/// The server answers the LIST of the stop.
fn listed(run: &mut Run) {
    let (version, watermark) = (run.next_version(), run.core.watermark());
    let list = List::whole(ListSource::Stop, run.pods.clone(), version, watermark);
    run.tell(Input::List(list));
}

/// The watch was cut or silent, so only a LIST tells.
#[test]
fn a_stop_counts_what_has_ended_unseen_before_it_deletes() {
    let plain = GroupSpec { restart: Restart::OnFailure, ..spec("g", 1) };
    for group in [work(), plain, group(0, None)] {
        let mut run = running(recorded(), &group);
        run.pods[0].version = run.next_version();
        end_with(0)(&mut run.pods[0]);
        run.stop(STOP);
        assert_eq!(asked(&mut run), ["list"], "{group:?}");
        listed(&mut run);
        run.wait(100);
        assert_eq!(asked(&mut run), ["u1"], "{group:?}");
        run.write_last();
        let mut run = restart(run, group.clone(), false);
        assert_eq!(creates(&mut run), [], "{group:?}");
    }
}

#[test]
fn a_stop_looks_only_if_another_process_goes_on() {
    let over = StopOrder { is_over: true, ..STOP };
    for (policy, order, want) in
        [(recorded(), STOP, "list"), (recorded(), over, "u1"), (policy(), STOP, "u1")]
    {
        let mut run = running(policy, &work());
        run.stop(order);
        assert_eq!(asked(&mut run), [want], "{order:?}");
    }
}

/// The stop has 15 s. Until half of them have passed it asks again.
#[test]
fn a_stop_that_cannot_look_deletes_all_the_same() {
    let mut run = running(recorded(), &work());
    run.stop(STOP);
    let mut n_lists = 0;
    let refused = || refusal(RefusalClass::OutcomeUnknown, 0);
    let until = loop {
        match asked(&mut run).first().map(String::as_str) {
            Some("list") => {
                n_lists += 1;
                run.tell(Input::ListRefused { refusal: refused() });
            }
            Some("u1") => break run.now,
            other => assert_eq!(other, None),
        }
        run.wait(100);
        assert_eq!(run.core.stop_result(), None, "nothing was deleted");
    };
    assert!((5..=10).contains(&n_lists) && (7_000..=8_000).contains(&until), "{n_lists} {until}");
    for _ in 0..200 {
        for what in asked(&mut run) {
            run.tell(match what.as_str() {
                "list" => Input::ListRefused { refusal: refused() },
                _ => Input::Deleted { uid: run.pods[0].uid.clone(), answer: Err(refused()) },
            });
        }
        run.wait(100);
    }
    assert_eq!(run.core.stop_result().unwrap().remaining.len(), 1);
}

/// Two indexes, of which the first has ended with this code. The record cannot be written.
fn unrecorded(code: i32) -> Run {
    let group = GroupSpec { restart: Restart::Never, completions: Some(2), ..spec("g", 2) };
    let mut run = Run::new(Policy { keep_failed: 0, ..recorded() }, vec![group]);
    run.take();
    run.start(&[1, 2]);
    for id in [1, 2] {
        let slot = u32::try_from(id - 1).ok();
        run.watch(&[id], |pod| (pod.slot, pod.restart) = (slot, Restart::Never));
    }
    run.is_record_broken = true;
    run.watch(&[1], end_with(code));
    run.tell(Input::Patched { uid: run.pods[0].uid.clone(), answer: Ok(()) });
    run.take();
    run
}

/// Without its pod nobody would know of it. The stop names it at its end.
#[test]
fn a_stop_leaves_the_pods_whose_end_the_record_lacks() {
    for (code, written_at) in [(0, None), (1, None), (0, Some(4_000)), (1, Some(4_000))] {
        let mut run = unrecorded(code);
        run.stop(STOP);
        while run.core.stop_result().is_none() {
            for what in asked(&mut run) {
                assert!(what != "u1" || !run.is_record_broken, "{code} at {}", run.now);
                match what.as_str() {
                    "list" => listed(&mut run),
                    "u1" => run.gone(&[1]),
                    "u2" => run.gone(&[2]),
                    other => panic!("{other}"),
                }
            }
            run.is_record_broken &= written_at.is_none_or(|at| run.now < at);
            run.wait(100);
        }
        let want = if written_at.is_none() { vec![format!("{PREFIX}1")] } else { vec![] };
        assert_eq!(run.core.stop_result().unwrap().remaining, want, "{code} {written_at:?}");
    }
}

#[test]
fn a_run_that_is_over_leaves_no_pods_for_its_record() {
    let mut run = unrecorded(0);
    run.stop(StopOrder { is_over: true, ..STOP });
    assert_eq!(asked(&mut run), ["u1", "u2"]);
}

/// A second signal, too.
#[test]
fn a_hurried_stop_leaves_the_pods_whose_end_the_record_lacks() {
    let mut run = unrecorded(0);
    run.core.hurry_stop(false, Millis(run.now));
    run.turn();
    assert_eq!(asked(&mut run), ["u2"]);
}

/// Also what the stop itself sees end.
#[test]
fn what_ends_in_a_stop_stays_until_the_record_has_it() {
    let mut run = running(recorded(), &work());
    run.is_record_broken = true;
    run.stop(STOP);
    assert_eq!(asked(&mut run), ["list"]);
    run.watch(&[1], end_with(0));
    listed(&mut run);
    run.wait(100);
    assert_eq!(asked(&mut run), [""; 0]);
    run.is_record_broken = false;
    run.wait(4_000);
    assert_eq!(asked(&mut run), ["u1", "list"]);
}
