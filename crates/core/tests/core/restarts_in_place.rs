//! Pods whose containers the kubelet restarts in place, because a mutating webhook said so.
#![allow(clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, policy, refusal, spec};
use posse_core::model::action::{Action, RunVerdict};
use posse_core::model::ids::ExecutorId;
use posse_core::model::input::{Input, PodAnswer, PodEvent};
use posse_core::model::pod::{ContainerState, Phase, Pod};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::GroupSpec;

/// What tells of the pod before the create is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sight {
    Answer,
    WatchFirst,
    /// The answer is lost, and a GET finds the pod.
    Get,
    WatchThenGet,
}

fn check(sight: Sight) {
    let mut run = Run::new(policy(), vec![GroupSpec { from_file: true, ..spec("g", 1) }]);
    assert_eq!(run.creates(), [1]);
    let pod = Pod { restarts_in_place: true, ..run.pod("g", 1) };
    let (uid, name) = (pod.uid.clone(), pod.name.to_string());
    let mut watermark = run.core.watermark();
    if matches!(sight, Sight::WatchFirst | Sight::WatchThenGet) {
        let events = vec![PodEvent::Applied(pod.clone())];
        run.tell(Input::Watch { epoch: watermark.epoch, events });
        assert_eq!(run.take(), [], "{sight:?}");
    }
    if matches!(sight, Sight::Get | Sight::WatchThenGet) {
        run.refused(1, refusal(RefusalClass::Exists, 409));
        watermark = match run.take().as_slice() {
            [Action::Get { id: ExecutorId(1), watermark }] => *watermark,
            other => panic!("a GET was due, not {other:?}"),
        };
        run.tell(Input::Got { id: ExecutorId(1), watermark, answer: Ok(PodAnswer::Ours(pod)) });
    } else {
        run.tell(Input::Created { id: ExecutorId(1), watermark, answer: Ok(PodAnswer::Ours(pod)) });
    }
    let deleted = Action::Delete { uid: uid.clone(), name, grace_s: None };
    assert_eq!(run.take(), [deleted], "{sight:?}");
    assert_eq!(run.waits_for("g"), Some("permanent"), "{sight:?}");
    let verdict = run.core.poll_verdict();
    assert!(matches!(verdict, Some(RunVerdict::TemplateRefused { .. })), "{sight:?} {verdict:?}");
    assert_eq!(run.losses(), [], "{sight:?}");
    // It runs for a moment, and nothing takes it for an executor.
    let mut seen = Pod { phase: Phase::Running, restarts_in_place: true, ..run.pod("g", 1) };
    seen.container = ContainerState::Running;
    let epoch = run.core.watermark().epoch;
    run.tell(Input::Watch { epoch, events: vec![PodEvent::Applied(seen.clone())] });
    assert_eq!((run.creates(), run.losses(), run.group("g").running), (vec![], vec![], 0));
    run.tell(Input::Deleted { uid, answer: Ok(None) });
    run.tell(Input::Watch { epoch, events: vec![PodEvent::Deleted(seen)] });
    assert_eq!(run.core.remaining().remaining, [] as [String; 0], "{sight:?}");
}

#[test]
fn a_pod_that_came_back_with_restart_rules_is_deleted_and_its_template_counts_as_refused() {
    for sight in [Sight::Answer, Sight::WatchFirst, Sight::Get, Sight::WatchThenGet] {
        check(sight);
    }
}
