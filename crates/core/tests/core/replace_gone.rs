//! `replace: gone` beside executors that end because the target fell.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, kill, policy, spec};
use posse_core::model::action::Action;
use posse_core::model::command::AfterKill;
use posse_core::model::pod::Rare;
use posse_core::model::settings::{Decommission, GroupSpec, Replace, SlotPolicy};

const HOUR_MS: u64 = 3_600_000;

fn draining(target: u32) -> GroupSpec {
    let decommission = Some(Decommission { after_ms: HOUR_MS, label: None, by_term: false });
    GroupSpec { decommission, replace: Replace::Gone, ..spec("g", target) }
}

fn creates(run: &mut Run) -> usize {
    run.take().iter().filter(|action| matches!(action, Action::Create { .. })).count()
}

#[test]
fn drains_of_a_scale_down_do_not_hold_back_replacements() {
    let shrink: [fn(&mut Run); 3] = [
        |run| run.target("g", 8),
        |run| drop(run.call(kill(&[9, 10], AfterKill::Lower, false))),
        |run| drop(run.call(kill(&[9, 10], AfterKill::Target(8), false))),
    ];
    for (i, shrink) in shrink.into_iter().enumerate() {
        let mut run = Run::with_running(policy(), vec![draining(10)]);
        shrink(&mut run);
        assert_eq!(creates(&mut run), 0, "{i}");
        let left: Vec<u64> = run
            .core
            .executors()
            .iter()
            .filter(|(_, e)| e.life.ending().is_none())
            .map(|(id, _)| id.0)
            .collect();
        assert_eq!(left.len(), 8, "{i}");
        // One of the others fails: its replacement waits for its own pod alone.
        run.watch(&left[..1], |pod| pod.deleting = true);
        assert_eq!((creates(&mut run), run.waits_for("g")), (0, Some("replace_gone")), "{i}");
        run.gone(&left[..1]);
        assert_eq!(creates(&mut run), 1, "{i}");
    }
}

#[test]
fn a_killed_executor_is_replaced_when_its_drain_has_ended() {
    let mut run = Run::with_running(policy(), vec![draining(3)]);
    run.call(kill(&[1], AfterKill::Replace, false));
    assert_eq!((creates(&mut run), run.waits_for("g")), (0, Some("replace_gone")));
    run.gone(&[1]);
    assert_eq!(creates(&mut run), 1);
}

#[test]
fn a_target_that_rises_again_waits_for_the_drains() {
    let mut run = Run::with_running(policy(), vec![draining(10)]);
    run.target("g", 8);
    run.target("g", 9);
    assert_eq!((creates(&mut run), run.waits_for("g")), (0, Some("replace_gone")));
    let ending = run.core.executors().iter().find(|(_, e)| e.life.ending().is_some());
    let id = ending.unwrap().0.0;
    run.gone(&[id]);
    assert_eq!(creates(&mut run), 1, "the quota has room for ten");
}

#[test]
fn a_wait_for_an_end_names_the_finalizer_that_holds_the_pod() {
    let stable = GroupSpec { slots: SlotPolicy::Stable, ..spec("g", 2) };
    for (spec, waiting) in
        [(GroupSpec { replace: Replace::Gone, ..spec("g", 2) }, "replace_gone"), (stable, "slot")]
    {
        let mut run = Run::with_running(policy(), vec![spec]);
        run.watch(&[2], |pod| {
            let finalizers = "example.com/hold".into();
            (pod.deleting, pod.rare) = (true, Some(Rare { finalizers, ..Rare::default() }.into()));
        });
        assert_eq!(run.waits_for("g"), Some(waiting));
        let words = "executor 2 is held by finalizer example.com/hold, which posse does not remove";
        let group = run.core.status().groups.remove(0);
        assert_eq!(group.message.as_deref(), Some(words));
    }
}
