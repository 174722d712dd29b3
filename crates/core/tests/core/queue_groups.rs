//! `queue_group`: a queue admits all executors of a group together, and keeps each pod until another one has taken
//! its place.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, STOP, end_with, policy, refusal, spec};
use posse_core::model::action::{Action, Patch};
use posse_core::model::ids::Uid;
use posse_core::model::input::Input;
use posse_core::model::pod::{ContainerState, Phase, Pod};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{GroupSpec, OnLoss, Policy, Together};
use posse_core::model::stop::StopOrder;

fn group(n: u32) -> GroupSpec {
    GroupSpec { together: Together::Queue, min: n, max: Some(n), ..spec("g", n) }
}

/// A run of three executors, whose pods the queue holds.
fn run(group: GroupSpec) -> Run {
    let policy = Policy { stop_timeout_ms: 3_600_000, ..policy() };
    let mut run = Run::with_running(policy, vec![group]);
    run.watch(&[1, 2, 3], |pod| pod.is_held_by_queue = true);
    run.take();
    run
}

/// What was asked since the last call, in short.
fn asked(run: &mut Run) -> Vec<String> {
    let asked = run.take().into_iter().filter_map(|action| match action {
        Action::Create { id, slot, .. } => Some(format!("create {id} in slot {slot}")),
        Action::Delete { uid, .. } => Some(format!("delete {uid}")),
        Action::Patch { uid, patch: Patch::LeftQueue { is_deleted }, .. } => {
            Some(format!("{uid} leaves{}", if is_deleted { "" } else { " and stays" }))
        }
        _ => None,
    });
    asked.collect()
}

/// The server has begun to delete these pods. Their containers may still run for this time.
fn terminating(run: &mut Run, ids: &[u64], grace_s: u32) {
    run.watch(ids, |pod| (pod.deleting, pod.deletion_grace_s) = (true, grace_s));
}

#[test]
fn a_failed_member_is_succeeded_at_once() {
    let mut run = run(group(3));
    run.failed(&[2]);
    assert_eq!(asked(&mut run), ["create 4 in slot 1"]);
}

/// As long as a pod may run or has succeeded, the queue counts it: a successor would be one too many.
#[test]
fn a_member_that_counts_is_succeeded_when_it_is_gone() {
    let slot = Some("slot");
    // It ended with 0, and `restart: always` wants another one.
    let mut run1 = run(group(3));
    run1.watch(&[2], end_with(0));
    assert_eq!((asked(&mut run1), run1.waits_for("g")), (vec!["delete u2".to_owned()], slot));
    run1.tell(Input::Deleted { uid: Uid::new("u2"), answer: Ok(None) });
    terminating(&mut run1, &[2], 0);
    assert_eq!(asked(&mut run1), ["u2 leaves"]);
    run1.tell(Input::Patched { uid: Uid::new("u2"), answer: Ok(()) });
    run1.gone(&[2]);
    assert_eq!(asked(&mut run1), ["create 4 in slot 1"]);

    // Its side-car still runs, so its pod has not ended.
    let mut run2 = run(group(3));
    run2.watch(&[2], |pod| (pod.phase, pod.container) = (Phase::Running, ContainerState::Ended));
    assert_eq!(run2.waits_for("g"), slot);

    // It was deleted, and ends by SIGTERM.
    let mut run3 = run(group(3));
    terminating(&mut run3, &[2], 30);
    assert_eq!((asked(&mut run3), run3.waits_for("g")), (vec![], slot));
    run3.watch(&[2], end_with(143));
    assert_eq!(asked(&mut run3), ["create 4 in slot 1"]);
    terminating(&mut run3, &[2], 0);
    assert_eq!(asked(&mut run3), ["u2 leaves"]);
}

#[test]
fn a_deleted_pod_leaves_its_queue_also_if_its_delete_is_not_answered_yet() {
    let mut run = run(GroupSpec { on_loss: OnLoss::Group, ..group(3) });
    run.failed(&[1]);
    assert_eq!(asked(&mut run), ["delete u2", "delete u3"]);
    terminating(&mut run, &[2, 3], 0);
    assert_eq!(asked(&mut run), Vec::<String>::new());
    for uid in ["u2", "u3"] {
        run.tell(Input::Deleted { uid: Uid::new(uid), answer: Ok(None) });
    }
    assert_eq!(asked(&mut run), ["u2 leaves", "u3 leaves"]);
}

/// Somebody has removed a label of posse, so no event shows what becomes of it: it leaves its queue once its delete is
/// accepted, and its end is asked for.
#[test]
fn a_member_that_vanishes_alive_is_deleted_before_it_leaves_its_queue() {
    let mut run = run(group(3));
    run.vanish(&[2], |_| {});
    assert_eq!(asked(&mut run), ["delete u2"]);
    run.tell(Input::Deleted { uid: Uid::new("u2"), answer: Ok(None) });
    assert_eq!(asked(&mut run), ["u2 leaves"]);
    patched(&mut run, "u2");
    for _ in 0..3 {
        assert_eq!(asked(&mut run), ["delete u2"], "it may still run");
        run.tell(Input::Deleted { uid: Uid::new("u2"), answer: Ok(None) });
        assert_eq!(asked(&mut run), Vec::<String>::new());
        run.wait(60_000);
    }
    run.tell(Input::Deleted {
        uid: Uid::new("u2"),
        answer: Err(refusal(RefusalClass::NotFound, 404)),
    });
    assert_eq!(asked(&mut run), ["delete u2", "create 4 in slot 1"]);
}

#[test]
fn at_the_end_of_a_run_all_pods_leave_their_queue_however_often_that_fails() {
    let mut run = run(group(3));
    run.stop(StopOrder { keep_failed: true, ..STOP });
    assert_eq!(asked(&mut run), ["delete u1", "delete u2", "delete u3"]);
    for uid in ["u1", "u2", "u3"] {
        run.tell(Input::Deleted { uid: Uid::new(uid), answer: Ok(None) });
    }
    terminating(&mut run, &[1, 2, 3], 10);
    assert_eq!(asked(&mut run), Vec::<String>::new(), "they may still run");
    run.watch(&[1, 2, 3], |pod: &mut Pod| {
        end_with(0)(pod);
        pod.deletion_grace_s = 0;
    });
    assert_eq!(asked(&mut run), ["u1 leaves", "u2 leaves", "u3 leaves"]);
    // The queue's webhook is away.
    for _ in 0..10 {
        let answer = Err(refusal(RefusalClass::WebhookBusy, 500));
        run.tell(Input::Patched { uid: Uid::new("u1"), answer });
        run.wait(120_000);
        assert_eq!(asked(&mut run), ["u1 leaves"]);
    }
}

/// Kueue itself takes its finalizer off pods that stay: it would wait for ever for the event of its removal if posse
/// had been faster.
#[test]
fn a_retained_pod_does_not_keep_the_quota_of_its_group() {
    let mut run = run(group(3));
    run.failed(&[2]);
    patched(&mut run, "u2");
    run.take();
    run.stop(StopOrder { keep_failed: true, ..STOP });
    assert_eq!(asked(&mut run), ["u2 leaves and stays", "delete u1", "delete u3"]);
    run.tell(Input::Patched {
        uid: Uid::new("u2"),
        answer: Err(refusal(RefusalClass::WebhookBusy, 500)),
    });
    run.wait(120_000);
    assert_eq!(asked(&mut run), ["u2 leaves and stays"], "it was refused");
    patched(&mut run, "u2");
    run.watch(&[2], |_| ());
    run.wait(120_000);
    assert_eq!(asked(&mut run), Vec::<String>::new(), "once is enough");
    // The server was restored to an earlier state.
    run.refused_by_history();
    run.list();
    run.watch(&[2], |_| ());
    assert_eq!(asked(&mut run), ["u2 leaves and stays"]);
    // Somebody deletes it.
    patched(&mut run, "u2");
    terminating(&mut run, &[2], 0);
    assert_eq!(asked(&mut run), ["u2 leaves"]);
}

/// It was retained by an earlier posse, and is found while the run stops.
#[test]
fn a_retained_pod_that_is_found_late_does_not_keep_the_quota_either() {
    let mut before = run(group(3));
    before.failed(&[1]);
    before.watch(&[1], |pod| pod.counted = Some(7));
    let policy = Policy { stop_timeout_ms: 3_600_000, ..policy() };
    let mut run = Run { pods: before.pods, ..Run::unlisted(policy, vec![group(3)]) };
    run.stop(StopOrder { keep_failed: true, ..STOP });
    assert_eq!(asked(&mut run), Vec::<String>::new());
    run.list();
    assert_eq!(asked(&mut run), ["delete u2", "delete u3", "u1 leaves and stays"]);
}

fn patched(run: &mut Run, uid: &str) {
    run.tell(Input::Patched { uid: Uid::new(uid), answer: Ok(()) });
}
