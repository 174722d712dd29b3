//! The end of a drain period, which annotations give in wall time, when the wall clock is set.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, policy, spec};
use posse_core::model::action::{Action, Patch};
use posse_core::model::event::{DeleteCause, Event, ExecutorEvent};
use posse_core::model::pod::{ContainerState, Draining, Phase};
use posse_core::model::settings::{Decommission, GroupSpec};

/// The wall time of `Millis::ZERO` at the start, and after the clock was set.
const START_MS: u64 = 1_000_000;
const HOUR_MS: u64 = 3_600_000;

fn draining(target: u32) -> GroupSpec {
    let decommission = Some(Decommission { after_ms: 30_000, label: None, by_term: false });
    GroupSpec { decommission, ..spec("g", target) }
}

#[test]
fn a_drain_ends_at_the_wall_time_of_its_annotation() {
    for step_ms in [0, HOUR_MS] {
        let mut run = Run::with_running(policy(), vec![draining(2)]);
        run.core.set_start_time(START_MS + step_ms);
        run.wait(5_000);
        run.target("g", 1);
        let [Action::Patch { patch: Patch::Draining(Draining { until_unix_ms, .. }, _), .. }] =
            run.take()[..]
        else {
            panic!("an annotation is due")
        };
        assert_eq!(until_unix_ms, Some(START_MS + step_ms + run.now + 30_000));
    }
}

#[test]
fn a_drain_of_an_earlier_run_goes_on_until_its_wall_time() {
    for step_ms in [0, HOUR_MS] {
        let mut run = Run::unlisted(policy(), vec![draining(0)]);
        run.core.set_start_time(START_MS + step_ms);
        let mut pod = run.pod("g", 1);
        (pod.phase, pod.container) = (Phase::Running, ContainerState::Running);
        let until_unix_ms = Some(START_MS + step_ms + 20_000);
        pod.draining = Some(Box::new(Draining { cause: DeleteCause::ScaledDown, until_unix_ms }));
        run.pods.push(pod);
        run.list();
        let events = run.take_events();
        let until = events.iter().find_map(|event| match event {
            Event::Executor(_, ExecutorEvent::Draining { until, .. }) => Some(until.0),
            _ => None,
        });
        assert_eq!(until, Some(20_000), "{events:?}");
    }
}
