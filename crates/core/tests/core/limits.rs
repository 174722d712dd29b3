//! All that holds a group back is told, the tightest limit first.
#![allow(clippy::unwrap_used)]

use crate::core_run::{Run, policy, refusal, spec};
use posse_core::model::input::Input;
use posse_core::model::pod::{StartProblem, StartProblemKind};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{GroupSpec, Policy, Replace, ScaleDown};

/// How many would be created, and what limits that: the word, at most how many, of how many. Without the normal pace.
fn creates(run: &Run) -> (u32, Vec<(&'static str, u32, u32)>) {
    let limits = run.group("g").limits;
    let held = limits.creates.iter().filter(|held| !held.limit.waiting.is_pace());
    let held = held.map(|held| (held.limit.waiting.as_str(), held.limit.at_most, held.of));
    (limits.n_creates, held.collect())
}

#[test]
fn a_looser_limit_is_told_behind_a_tighter_one() {
    let policy = Policy { pending_max: 6, ..policy() };
    let mut run = Run::new(policy, vec![spec("g", 12)]);
    assert_eq!(run.creates(), [1, 2, 3, 4]);
    run.refused(1, refusal(RefusalClass::Capacity, 403));
    run.created(&[2, 3, 4]);
    let want = [("quota", 0, 9), ("pending_limit", 3, 9)];
    assert_eq!(creates(&run), (9, want.to_vec()));
    assert_eq!(run.waits_for("g"), Some("quota"));
    let until = run.group("g").limits.creates[0].limit.until;
    assert!(until.is_some() && run.group("g").until == until);
    // The quota has room again.
    run.wait(5_000);
    assert_eq!(run.creates(), [5]);
    run.created(&[5]);
    let mut last = 5;
    while creates(&run).1 != [("pending_limit", 0, 6)] {
        last += 1;
        assert_eq!(run.creates().first(), Some(&last));
        run.created(&[last]);
    }
    assert_eq!(run.waits_for("g"), Some("pending_limit"));
}

#[test]
fn a_replacement_that_waits_and_the_others_are_told_apart() {
    let group = GroupSpec { replace: Replace::Gone, ..spec("g", 8) };
    let mut run = Run::with_running(policy(), vec![group]);
    run.watch(&[1, 2], |pod| pod.deleting = true);
    assert_eq!(creates(&run), (2, vec![("replace_gone", 0, 2)]));
    run.gone(&[1]);
    assert_eq!(run.creates().len(), 1);
    assert_eq!(creates(&run), (2, vec![("replace_gone", 1, 2)]));
}

/// A full window is no reason that a person could act on.
#[test]
fn the_normal_pace_is_told_only_if_there_is_nothing_else() {
    let mut run = Run::new(policy(), vec![spec("g", 40)]);
    assert_eq!(run.waits_for("g"), Some("in_flight"));
    run.created(&[1]);
    run.watch(&[1], |pod| {
        let kind = StartProblemKind::Unschedulable;
        pod.start_problem =
            Some(Box::new(StartProblem { kind, message: "0/3 nodes".into(), n_started: 0 }));
    });
    assert_eq!(run.waits_for("g"), Some("unschedulable"));
    let limits = run.group("g").limits;
    assert!(limits.creates.iter().any(|held| held.limit.waiting.is_pace()), "{limits:?}");
}

#[test]
fn each_gate_that_is_shut_is_told() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 2)]);
    run.tell(Input::Lease { held: false, high_water: None });
    assert_eq!(creates(&run), (2, vec![("lease", 0, 2), ("first_list", 0, 2)]));
    run.tell(Input::Lease { held: true, high_water: None });
    assert_eq!(creates(&run), (2, vec![("first_list", 0, 2)]));
}

#[test]
fn without_the_lease_nothing_is_ended() {
    let mut run = Run::with_running(policy(), vec![spec("g", 4)]);
    run.tell(Input::Lease { held: false, high_water: None });
    run.target("g", 1);
    let limits = run.group("g").limits;
    let ends: Vec<_> =
        limits.ends.iter().map(|limit| (limit.waiting.as_str(), limit.at_most)).collect();
    assert_eq!((limits.n_ends, ends, run.group("g").running), (3, vec![("lease", 0)], 4));
}

#[test]
fn what_is_not_ended_is_told() {
    let group = GroupSpec { scale_down: ScaleDown::Pending, ..spec("g", 4) };
    let mut run = Run::with_running(policy(), vec![group]);
    run.target("g", 1);
    let limits = run.group("g").limits;
    let ends: Vec<_> =
        limits.ends.iter().map(|limit| (limit.waiting.as_str(), limit.at_most)).collect();
    assert_eq!((limits.n_ends, ends), (3, vec![("scale_down_pending", 0)]));
    assert_eq!(run.waits_for("g"), Some("scale_down_pending"));
}
