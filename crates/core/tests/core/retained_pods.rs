//! Which failed pods are retained: those that the application itself ended, whatever their phase. And
//! what the end of an executor at its `max_age` means.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, policy, spec};
use posse_core::model::action::{Action, Patch};
use posse_core::model::input::Input;
use posse_core::model::pod::{ContainerState, End, InitEnd, Phase, Pod, Rest};
use posse_core::model::settings::{GroupSpec, Policy, Restart};

fn ended(pod: &mut Pod, phase: Phase, end: End) {
    (pod.phase, pod.end) = (phase, Some(Box::new(end)));
    pod.container = ContainerState::Ended;
}

/// An end of the main container with this code.
fn exit(code: i32, reason: &str) -> End {
    End { exit_code: Some(code), container_reason: reason.into(), ..End::default() }
}

fn by_kubelet(reason: &str, message: &str) -> End {
    let (pod_reason, pod_message) = (reason.into(), message.into());
    End { pod_reason, pod_message, ..exit(137, "Error") }
}

fn at_max_age(pod: &mut Pod) {
    let end = End { has_max_age: true, ..by_kubelet("DeadlineExceeded", "") };
    ended(pod, Phase::Failed, end);
}

#[test]
fn a_pod_is_retained_if_the_application_itself_ended_it() {
    let init = InitEnd { name: "init".into(), exit_code: 1, ..InitEnd::default() };
    let disrupted = |reason: &str| End { disruption: reason.into(), ..exit(143, "Error") };
    let disk = "Usage of EmptyDir volume \"x\" exceeds the limit \"1Mi\". ";
    for (phase, end, is_retained) in [
        (Phase::Failed, exit(1, "Error"), true),
        (Phase::Failed, exit(137, "OOMKilled"), true),
        (Phase::Failed, End { init: Some(Box::new(init)), ..End::default() }, true),
        (Phase::Failed, by_kubelet("Evicted", disk), true),
        (Phase::Failed, by_kubelet("DeadlineExceeded", ""), true),
        // A side-car still runs.
        (Phase::Running, exit(1, "Error"), true),
        (Phase::Running, exit(137, "OOMKilled"), true),
        (Phase::Running, exit(0, "Completed"), false),
        (Phase::Succeeded, exit(0, "Completed"), false),
        // The side-car failed after the executor had succeeded.
        (Phase::Failed, exit(0, "Completed"), false),
        (Phase::Failed, by_kubelet("Evicted", "The node was low on resource: memory. "), false),
        (Phase::Failed, by_kubelet("NodeShutdown", ""), false),
        (Phase::Failed, by_kubelet("Preempting", ""), false),
        (Phase::Failed, disrupted("DeletionByPodGC"), false),
        (Phase::Failed, End { has_max_age: true, ..by_kubelet("DeadlineExceeded", "") }, false),
    ] {
        for is_adopted in [false, true] {
            // The label says that an earlier process retained the pod.
            if is_adopted && !is_retained {
                continue;
            }
            let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
            let change = |pod: &mut Pod| {
                ended(pod, phase, end.clone());
                pod.counted = is_adopted.then_some(7);
            };
            if is_adopted {
                change(&mut run.pods[0]);
                let pods = std::mem::take(&mut run.pods);
                run = Run { pods, ..Run::unlisted(policy(), vec![spec("g", 1)]) };
                run.list();
            } else {
                run.watch(&[1], change);
            }
            assert_eq!(run.group("g").failed, u32::from(is_retained), "{phase:?} {end:?}");
            let deletes = |action: &&Action| matches!(action, Action::Delete { .. });
            let is_label = |action: &&Action| {
                matches!(action, Action::Patch { patch: Patch::Counted { .. }, .. })
            };
            let actions = run.take();
            assert_eq!(actions.iter().any(|a| deletes(&a)), !is_retained, "{phase:?} {end:?}");
            let is_labelled = actions.iter().any(|a| is_label(&a));
            assert_eq!(is_labelled, is_retained && !is_adopted, "{phase:?} {end:?}");
        }
    }
}

#[test]
fn evictions_and_ends_at_max_age_push_no_failed_pod_out() {
    let policy = Policy { keep_failed: 2, ..policy() };
    let mut run = Run::with_running(policy, vec![spec("g", 6)]);
    run.failed(&[1, 2]);
    run.watch(&[3, 4], |pod| ended(pod, Phase::Failed, by_kubelet("Evicted", "")));
    run.watch(&[5, 6], at_max_age);
    assert_eq!(run.group("g").failed, 2);
    let is_delete_of = |action: &Action, uid: &str| matches!(action, Action::Delete { uid: deleted, .. } if deleted.to_string() == uid);
    let actions = run.take();
    let deleted = |uid| actions.iter().any(|action| is_delete_of(action, uid));
    assert_eq!(
        ["u1", "u2", "u3", "u4", "u5", "u6"].map(deleted),
        [false, false, true, true, true, true]
    );
}

#[test]
fn a_retained_pod_stays_when_its_side_car_ends_or_is_evicted() {
    for end in [exit(1, "Error"), by_kubelet("Evicted", "")] {
        let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
        run.watch(&[1], |pod| ended(pod, Phase::Running, exit(1, "Error")));
        run.take();
        run.watch(&[1], |pod| ended(pod, Phase::Failed, end.clone()));
        assert_eq!((run.group("g").failed, run.take()), (1, vec![]));
    }
}

/// The containers beside the main one hold the node and the quota until they end.
#[test]
fn what_runs_on_in_a_record_gets_a_deadline() {
    let runs_on = |code: i32, deadline_s: Option<u32>| {
        move |pod: &mut Pod| {
            ended(pod, Phase::Running, exit(code, "Error"));
            // It was on its node for 10 s, and has a grace period of 30 s.
            pod.end.as_mut().unwrap().rest = Some(Rest { from_s: 11, deadline_s });
        }
    };
    let patches = |run: &mut Run| {
        let actions = run.take().into_iter();
        let patches = actions.filter_map(|action| match action {
            Action::Patch { patch: Patch::Completed { rest_deadline_s, .. }, .. } => {
                Some((0, rest_deadline_s))
            }
            Action::Patch { patch: Patch::Counted { rest_deadline_s, .. }, .. } => {
                Some((1, rest_deadline_s))
            }
            _ => None,
        });
        patches.collect::<Vec<_>>()
    };
    for code in [0, 1] {
        let group = GroupSpec { restart: Restart::OnFailure, ..spec("g", 1) };
        let mut run = Run::with_running(policy(), vec![group.clone()]);
        run.watch(&[1], runs_on(code, None));
        assert_eq!(patches(&mut run), [(code, Some(41))]);
        let label = |pod: &mut Pod| match code {
            0 => pod.completed = true,
            _ => pod.counted = Some(7),
        };
        run.tell(Input::Patched { uid: run.pods[0].uid.clone(), answer: Ok(()) });
        run.watch(&[1], |pod| {
            runs_on(code, Some(41))(pod);
            label(pod);
        });
        assert_eq!(patches(&mut run), [], "it has its deadline");
        // A process before this one has told the end, and was killed before it ended the rest.
        runs_on(code, Some(900))(&mut run.pods[0]);
        let pods = std::mem::take(&mut run.pods);
        let mut run = Run { pods, ..Run::unlisted(policy(), vec![group]) };
        run.list();
        assert_eq!(patches(&mut run), [(code, Some(41))]);
    }
}

/// A group in a crash loop whose probe runs.
fn crash_loop() -> (Run, u64) {
    let mut run = Run::with_running(policy(), vec![spec("g", 10)]);
    run.failed(&[1, 2, 3, 4, 5, 6]);
    assert_eq!(run.waits_for("g"), Some("backoff"));
    run.take();
    run.wait(10_000);
    let probe = run.take().iter().find_map(|action| match action {
        Action::Create { id, .. } => Some(id.0),
        _ => None,
    });
    let probe = probe.expect("one create probes");
    run.created(&[probe]);
    run.running(&[probe]);
    run.wait(30_000);
    assert!(run.take().is_empty(), "the probe has to live for 60 s");
    (run, probe)
}

#[test]
fn a_probe_that_reaches_its_max_age_ends_the_crash_loop() {
    let (mut run, probe) = crash_loop();
    run.watch(&[probe], at_max_age);
    assert_ne!(run.waits_for("g"), Some("backoff"));
    let n = run.take().iter().filter(|action| matches!(action, Action::Create { .. })).count();
    assert!(n > 1, "{n} creates: an executor lived as long as it may");
}

#[test]
fn a_probe_that_reaches_its_max_age_before_it_ran_is_followed_by_another() {
    let mut run = Run::with_running(policy(), vec![spec("g", 10)]);
    run.failed(&[1, 2, 3, 4, 5, 6]);
    run.take();
    run.wait(10_000);
    let creates = |run: &mut Run| {
        let actions = run.take().into_iter();
        let ids = actions.filter_map(|action| match action {
            Action::Create { id, .. } => Some(id.0),
            _ => None,
        });
        ids.collect::<Vec<u64>>()
    };
    let [probe] = creates(&mut run)[..] else { panic!("one create probes") };
    run.created(&[probe]);
    run.watch(&[probe], at_max_age);
    assert_eq!(creates(&mut run).len(), 1, "the loop is neither over nor stuck");
}
