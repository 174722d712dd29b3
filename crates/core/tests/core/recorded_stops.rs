//! The stop of a run that has a record: it looks before it deletes, so that no work is lost that has ended.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use super::record::{recorded, restart};
use super::tasks::{creates, group, say, task};
use crate::core_run::{Run, STOP, end_with, policy, refusal, spec};
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

fn begin_stop(run: &mut Run, order: StopOrder) {
    run.core.begin_stop(order, Millis(run.now));
    run.turn();
}

/// What the stop asks for next: "list", "delete all", or the pod that it deletes.
fn asked(run: &mut Run) -> Vec<String> {
    let all = run.take().into_iter().map(|action| match action {
        Action::List { .. } => "list".to_owned(),
        Action::DeleteAll { .. } => "delete all".to_owned(),
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
        begin_stop(&mut run, STOP);
        assert_eq!(asked(&mut run), ["list"], "{group:?}");
        listed(&mut run);
        run.wait(200);
        assert!(asked(&mut run).contains(&"delete all".to_owned()), "{group:?}");
        run.write_last();
        let mut run = restart(run, group.clone(), false);
        assert_eq!(creates(&mut run), [], "{group:?}");
    }
}

#[test]
fn a_stop_looks_only_if_another_process_goes_on() {
    let over = StopOrder { is_over: true, ..STOP };
    for (policy, order, want) in [
        (recorded(), STOP, "list"),
        (recorded(), over, "delete all"),
        (policy(), STOP, "delete all"),
    ] {
        let mut run = running(policy, &work());
        begin_stop(&mut run, order);
        assert_eq!(asked(&mut run), [want], "{order:?}");
    }
}

/// The stop has 15 s. Until half of them have passed it asks again.
#[test]
fn a_stop_that_cannot_look_deletes_all_the_same() {
    let mut run = running(recorded(), &work());
    begin_stop(&mut run, STOP);
    let mut n_lists = 0;
    let refused = || refusal(RefusalClass::OutcomeUnknown, 0);
    let until = loop {
        match asked(&mut run).first().map(String::as_str) {
            Some("list") => {
                n_lists += 1;
                run.tell(Input::ListRefused { refusal: refused() });
            }
            Some("delete all") => break run.now,
            other => assert_eq!(other, None),
        }
        run.wait(100);
    };
    assert!((5..=10).contains(&n_lists) && (7_000..=8_000).contains(&until), "{n_lists} {until}");
    for _ in 0..200 {
        for what in asked(&mut run) {
            run.tell(match what.as_str() {
                "list" => Input::ListRefused { refusal: refused() },
                "delete all" => Input::DeletedAll { answer: Err(refused()) },
                _ => Input::Deleted { uid: run.pods[0].uid.clone(), answer: Err(refused()) },
            });
        }
        run.wait(100);
    }
    assert_eq!(run.core.stop_result().unwrap().remaining.len(), 1);
}
