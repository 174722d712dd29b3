//! Bugs that reviews found in the core, each as the test that first failed.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, STOP, end_with, policy, refusal, spec};
use posse_base::time::Millis;
use posse_core::model::action::{Action, RunVerdict};
use posse_core::model::command::Command;
use posse_core::model::event::{Budget, LossReason};
use posse_core::model::ids::Uid;
use posse_core::model::input::Input;
use posse_core::model::pod::{End, Phase, Pod};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::settings::{Decommission, GroupSpec, Policy};

fn is_create(action: &Action) -> bool {
    matches!(action, Action::Create { .. })
}

/// Answers every create of the run with the same refusal.
fn refuse_creates(run: &mut Run, class: RefusalClass, code: u16) {
    for action in run.take() {
        if let Action::Create { id, watermark, .. } = action {
            run.tell(Input::Created { id, watermark, answer: Err(refusal(class, code)) });
        }
    }
}

#[test]
fn creates_stay_stopped_when_the_driver_becomes_ready_in_its_grace_period() {
    let mut run = Run::new(policy(), vec![spec("g", 2)]);
    // Both creates are delayed and would be sent again.
    refuse_creates(&mut run, RefusalClass::Throttled, 429);
    run.core.stop_creates();
    run.core.command(Command::DriverReady, Millis(run.now));
    run.tell(Input::DriverReady);
    run.wait(120_000);
    assert!(!run.take().iter().any(is_create), "the end of the run has begun");
}

#[test]
fn a_refusal_ends_the_run_in_its_first_minute_only() {
    for (wait_ms, ends) in [(30_000, true), (3_600_000, false)] {
        let mut run = Run::new(policy(), vec![GroupSpec { from_file: true, ..spec("g", 0) }]);
        run.wait(wait_ms);
        run.core.set_target(&"g".into(), 1, Millis(run.now));
        run.turn();
        refuse_creates(&mut run, RefusalClass::Forbidden, 403);
        let verdict = run.core.poll_verdict();
        assert_eq!(matches!(verdict, Some(RunVerdict::NotAllowed { .. })), ends, "{wait_ms} ms");
    }
}

#[test]
fn a_retry_after_of_a_day_is_not_obeyed() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    let day = Refusal { retry_after_ms: Some(86_400_000), ..refusal(RefusalClass::Throttled, 429) };
    for action in run.take() {
        if let Action::Create { id, watermark, .. } = action {
            run.tell(Input::Created { id, watermark, answer: Err(day.clone()) });
        }
    }
    run.wait(61_000);
    assert!(run.take().iter().any(is_create), "60 s are the longest wait");
}

#[test]
fn a_retry_after_in_a_stop_leaves_time_for_the_retry() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.stop(STOP);
    assert_eq!(run.ends(), ["u1"]);
    let later = Refusal { retry_after_ms: Some(30_000), ..refusal(RefusalClass::Throttled, 429) };
    run.tell(Input::Deleted { uid: Uid::new("u1"), answer: Err(later) });
    run.wait(12_000);
    assert_eq!(run.deletes(), ["u1"], "before the deadline");
}

#[test]
fn a_stop_without_the_lease_waits_for_it_and_names_the_pods_at_its_deadline() {
    for comes_back in [true, false] {
        let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
        run.tell(Input::Lease { held: false, high_water: None });
        run.stop(STOP);
        run.wait(3_000);
        assert_eq!(run.take(), [], "another process may hold the instance");
        assert_eq!(run.core.stop_result(), None);
        if comes_back {
            run.tell(Input::Lease { held: true, high_water: None });
            assert_eq!(run.ends(), ["u1"]);
        } else {
            run.wait(120_000);
            let result = run.core.stop_result().unwrap();
            assert_eq!(result.remaining.len(), 1, "{result:?}");
        }
    }
}

/// Another process may hold the instance.
#[test]
fn nothing_is_deleted_without_the_lease() {
    let policy = Policy { keep_failed: 0, ..policy() };
    let mut run = Run::with_running(policy, vec![spec("g", 2)]);
    run.tell(Input::Lease { held: false, high_water: None });
    run.watch(&[1], |pod| pod.phase = Phase::Failed);
    run.target("g", 0);
    run.wait(3_000);
    assert_eq!(run.take(), []);
    run.tell(Input::Lease { held: true, high_water: None });
    assert_eq!(run.ends(), ["u1", "u2"]);
}

#[test]
fn a_pod_that_is_terminating_at_the_deadline_is_not_left_over() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.stop(STOP);
    run.take();
    run.watch(&[1], |pod| pod.deleting = true);
    run.wait(120_000);
    let result = run.core.stop_result().unwrap();
    assert_eq!((result.terminating.len(), result.remaining.len()), (1, 1), "{result:?}");
}

/// Ends `n` of 20 executors after 10 s, and says whether the group still creates at full speed.
fn replaces_at_once(n: u64, end: impl Fn(&mut Pod)) -> bool {
    let mut run = Run::with_running(policy(), vec![spec("g", 20)]);
    run.wait(10_000);
    run.take();
    let ids: Vec<u64> = (1..=n).collect();
    run.watch(&ids, end);
    run.take().iter().filter(|action| is_create(action)).count() > 1
}

#[test]
fn only_ends_by_the_applications_doing_are_a_crash_loop() {
    let failed = |reason: &'static str| {
        move |pod: &mut Pod| {
            pod.phase = Phase::Failed;
            pod.end = Some(Box::new(End { pod_reason: reason.into(), ..End::default() }));
        }
    };
    for reason in ["Evicted", "Preempting", "NodeLost", "NodeShutdown"] {
        assert!(replaces_at_once(17, failed(reason)), "{reason}");
    }
    assert!(replaces_at_once(17, end_with(0)), "an end with 0 is no crash");
    assert!(replaces_at_once(17, |pod| pod.deleting = true), "deleted by others");
    assert!(!replaces_at_once(17, end_with(1)), "a crash loop");
}

#[test]
fn a_conflict_of_a_patch_does_not_forget_a_living_pod() {
    let decommission = Some(Decommission { after_ms: 100, label: None, by_term: false });
    let mut run = Run::with_running(policy(), vec![GroupSpec { decommission, ..spec("g", 2) }]);
    run.target("g", 1);
    let [Action::Patch { uid, .. }] = &run.take()[..] else { panic!("an annotation is due") };
    run.tell(Input::Patched {
        uid: uid.clone(),
        answer: Err(refusal(RefusalClass::Conflict, 409)),
    });
    assert!(run.core.snapshot().get(uid).is_some());
    run.wait(100);
    assert!(matches!(&run.take()[..], [Action::Delete { uid: deleted, .. }] if deleted == uid));
}

#[test]
fn an_eviction_for_what_the_pod_itself_has_used_is_charged_to_the_application() {
    use LossReason::{DiskExceeded, Evicted, OomKilled};
    let low = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 91Mi. ";
    let over = "Container c was using 200Mi, request is 100Mi, has larger consumption of memory. ";
    let disk = "The node was low on resource: ephemeral-storage. Container c was using 2Gi, request is 0. ";
    let total = "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ";
    let container = "Container c exceeded its local ephemeral storage limit \"1Mi\". ";
    let volume = "Usage of EmptyDir volume \"x\" exceeds the limit \"1Mi\". ";
    for (message, want) in [
        (low, Evicted),
        (&format!("{low}{over}"), OomKilled),
        (disk, Evicted),
        (total, DiskExceeded),
        (container, DiskExceeded),
        (volume, DiskExceeded),
    ] {
        let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
        run.watch(&[1], |pod| {
            pod.phase = Phase::Failed;
            pod.end = Some(Box::new(End {
                pod_reason: "Evicted".into(),
                pod_message: message.into(),
                disruption: "TerminationByKubelet".into(),
                ..End::default()
            }));
        });
        assert_eq!(run.losses(), [(1, want)], "{message}");
        let budget = if want == Evicted { Budget::Cluster } else { Budget::App };
        assert_eq!(want.budget(), Some(budget));
    }
}
