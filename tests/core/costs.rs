//! What a turn costs: it visits what changed, not every executor or pod.
#![allow(clippy::wildcard_enum_match_arm)]

use std::sync::Arc;

use posse::core::model::command::{Command, Reply};
use posse::core::model::ids::GroupName;
use posse::core::model::input::{Input, List, ListSource};
use posse::core::model::pod::{StartProblem, StartProblemKind};
use posse::core::model::stop::StopOrder;
use posse::core::model::time::Millis;
use posse::core::model::waiting::Waiting;
use posse::core::policy::settings::Policy;
use posse::core::reconciler::InstanceIdentity;

use crate::core_run::{Run, identity, policy, spec};

const EXECUTORS: u32 = 300;
/// More than a turn with one change visits, and far fewer than all.
const VISITS_MAX: u64 = 60;

fn running() -> Run {
    let mut run = Run::with_running(policy(), vec![spec("g", EXECUTORS)]);
    run.take();
    run
}

/// How many executors and pods the steps visit.
fn visits(run: &mut Run, steps: impl FnOnce(&mut Run)) -> u64 {
    let n = |run: &Run| run.core.executors().n_visits() + run.core.snapshot().n_visits();
    let before = n(run);
    steps(run);
    n(run) - before
}

#[test]
fn a_turn_of_a_run_visits_what_changed() {
    let mut run = running();
    let n = visits(&mut run, |run| run.watch(&[7], |pod| pod.ready = false));
    assert!(n <= VISITS_MAX, "{n} visits for one changed pod");
}

#[test]
fn a_lower_target_visits_the_victims() {
    let mut run = running();
    let group = |run: &Run| run.core.executors().groups[&GroupName::from("g")].order.len();
    assert_eq!(group(&run), EXECUTORS as usize, "the order holds every live executor");
    let n = visits(&mut run, |run| run.target("g", EXECUTORS - 1));
    assert!(n <= VISITS_MAX, "{n} visits to choose one victim");
    assert_eq!(run.ends(), [format!("u{EXECUTORS}")], "the youngest ends");
    assert_eq!(group(&run), EXECUTORS as usize - 1);
}

#[test]
fn a_turn_with_unschedulable_executors_visits_what_changed() {
    let policy = Policy { unschedulable_max: 200, pending_max: 9_999, ..policy() };
    let identity = InstanceIdentity { id_high_water: 9_999, ..identity() };
    let mut run = Run::with_identity(identity, policy, vec![spec("g", 2 * EXECUTORS)]);
    for id in 1..=u64::from(EXECUTORS) {
        let mut pod = run.pod("g", id);
        pod.start_problem = unschedulable();
        run.pods.push(pod);
    }
    run.list();
    run.wait(119_999);
    run.wait(1);
    assert_eq!(run.waits_for("g"), Some(Waiting::Unschedulable));
    let n = visits(&mut run, |run| run.watch(&[7], |pod| pod.deletion_cost = 3));
    assert!(n <= VISITS_MAX, "{n} visits for one changed pod");
}

fn unschedulable() -> Option<Box<StartProblem>> {
    let message = "0/1 nodes are available".into();
    let kind = StartProblemKind::Unschedulable;
    Some(StartProblem { kind, message, n_started: 0 }.into())
}

#[test]
fn unschedulable_executors_are_counted_once() {
    let mut run = Run::new(Policy { unschedulable_max: 2, ..policy() }, vec![spec("g", 4)]);
    run.creates();
    run.created(&[1, 2, 3, 4]);
    let long =
        |run: &Run| run.core.executors().groups[&GroupName::from("g")].long_unschedulable.len();
    run.watch(&[1, 2, 3], |pod| pod.start_problem = unschedulable());
    run.wait(119_999);
    assert_eq!(long(&run), 0);
    run.wait(1);
    assert_eq!(long(&run), 3);
    run.watch(&[2], |pod| pod.start_problem = None);
    assert_eq!(long(&run), 2, "it is schedulable now");
}

#[test]
fn a_turn_of_a_stop_visits_what_changed() {
    let mut run = running();
    run.core.begin_stop(StopOrder { keep: false, keep_failed: true }, Millis(run.now));
    run.turn();
    run.tell(Input::DeletedAll { answer: Ok(()) });
    let ids: Vec<u64> = (1..=u64::from(EXECUTORS)).collect();
    run.watch(&ids, |pod| pod.deleting = true);
    run.version += 1;
    let (pods, watermark) = (run.pods.clone(), run.core.watermark());
    let version = Some(posse::core::model::ids::Version(run.version));
    run.tell(Input::List(List { source: ListSource::Stop, pods, version, watermark }));
    let n = visits(&mut run, |run| run.gone(&[1]));
    assert!(n <= VISITS_MAX, "{n} visits for one pod that is gone");
}

#[test]
fn readers_share_a_status_until_something_changes() {
    let mut run = running();
    let status = |run: &mut Run| match run.call(Command::Status) {
        Reply::Status(status) => status,
        other => panic!("{other:?}"),
    };
    let first = status(&mut run);
    let n = visits(&mut run, |run| assert!(Arc::ptr_eq(&first, &status(run))));
    assert_eq!(n, 0, "nothing changed");
    run.watch(&[7], |pod| pod.ip = Some("10.0.0.7".parse().unwrap()));
    let second = status(&mut run);
    assert!(second.executors.iter().any(|one| one.ip.is_some()), "the change is in it");
    run.target("g", EXECUTORS + 1);
    let third = status(&mut run);
    assert_eq!(third.groups[0].requested, 1, "what a turn begins is in it");
    run.core.begin_stop(StopOrder { keep: false, keep_failed: true }, Millis(run.now));
    assert_eq!(status(&mut run).groups[0].running, 0, "a stop is in it");
}
