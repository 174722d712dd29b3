//! What a turn costs: it visits what changed, not every executor or pod.
#![allow(clippy::wildcard_enum_match_arm)]

use posse_core::model::action::Action;
use posse_core::model::command::AfterKill;
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::input::{Input, List, ListSource};
use posse_core::model::pod::{StartProblem, StartProblemKind};
use posse_core::model::settings::Policy;
use posse_core::model::status::Status;
use posse_core::model::stop::StopOrder;
use posse_core::reconciler::InstanceIdentity;

use crate::core_run::{Run, STOP, identity, kill, policy, spec};

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
    let group = |run: &Run| run.core.executors().groups()[&GroupName::from("g")].order.len();
    assert_eq!(group(&run), EXECUTORS as usize, "the order holds every live executor");
    let n = visits(&mut run, |run| run.target("g", EXECUTORS - 1));
    assert!(n <= VISITS_MAX, "{n} visits to choose one victim");
    assert_eq!(run.ends(), [format!("u{EXECUTORS}")], "the youngest ends");
    assert_eq!(group(&run), EXECUTORS as usize - 1);
}

#[test]
fn a_turn_with_unschedulable_executors_visits_what_changed() {
    let policy = Policy { pending_max: 9_999, ..policy() };
    let identity = InstanceIdentity { id_high_water: 9_999, ..identity() };
    let mut run = Run::with_identity(identity, policy, vec![spec("g", 2 * EXECUTORS)]);
    for id in 1..=u64::from(EXECUTORS) {
        let mut pod = run.pod("g", id);
        pod.start_problem = unschedulable();
        run.pods.push(pod);
    }
    run.list();
    run.wait(20_000);
    assert_eq!(run.waits_for("g"), Some("unschedulable"));
    let n = visits(&mut run, |run| run.watch(&[7], |pod| pod.deletion_cost = 3));
    assert!(n <= VISITS_MAX, "{n} visits for one changed pod");
}

fn unschedulable() -> Option<Box<StartProblem>> {
    let message = "0/1 nodes are available".into();
    let kind = StartProblemKind::Unschedulable;
    Some(StartProblem { kind, message, n_started: 0 }.into())
}

#[test]
fn a_turn_of_a_stop_visits_what_changed() {
    let mut run = running();
    run.stop(StopOrder { keep_failed: true, ..STOP });
    let ids: Vec<u64> = (1..=u64::from(EXECUTORS)).collect();
    run.watch(&ids, |pod| pod.deleting = true);
    run.version += 1;
    let (pods, watermark) = (run.pods.clone(), run.core.watermark());
    let version = Some(posse_core::model::ids::Version(run.version));
    run.tell(Input::List(List::whole(ListSource::Stop, pods, version, watermark)));
    let n = visits(&mut run, |run| run.gone(&[1]));
    assert!(n <= VISITS_MAX, "{n} visits for one pod that is gone");
}

#[test]
fn a_status_visits_what_changed() {
    let mut run = running();
    let whole = visits(&mut run, |run| assert_eq!(n_shown(&run.core.status()), EXECUTORS));
    assert!(whole >= EXECUTORS.into(), "{whole} visits for the first one");
    let n = visits(&mut run, |run| assert_eq!(n_shown(&run.core.status()), EXECUTORS));
    assert_eq!(n, 0, "nothing changed");
    run.watch(&[7], |pod| pod.ip = Some("10.0.0.7".parse().unwrap()));
    let mut shown = None;
    let n = visits(&mut run, |run| shown = Some(run.core.status()));
    assert!(n < whole / 2, "{n} visits for one changed pod, {whole} for all");
    let ip = shown.unwrap().executors.iter().flat_map(|block| &**block).find_map(|one| one.ip);
    assert_eq!(ip, Some("10.0.0.7".parse().unwrap()), "the change is in it");
}

fn n_shown(status: &Status) -> u32 {
    status.executors.iter().map(|block| u32::try_from(block.len()).expect("a block is small")).sum()
}

/// Anybody can change labels, but a pod never changes its name.
#[test]
fn a_status_shows_a_pod_with_changed_labels_as_it_is() {
    let mut run = running();
    run.core.status();
    run.watch(&[7], |pod| (pod.id, pod.node) = (ExecutorId(280), Some("moved".into())));
    let status = run.core.status();
    let mut nodes = status.executors.iter().flat_map(|block| &**block).map(|one| &one.node);
    assert!(nodes.any(|node| node.as_deref() == Some("moved")));
}

/// Answers creates and deletes until there are no more.
fn answer_all(run: &mut Run) {
    loop {
        let asked = run.take();
        if asked.is_empty() {
            return;
        }
        for action in asked {
            match action {
                Action::Create { id, .. } => run.start(&[id.0]),
                Action::Delete { uid, .. } => run.tell(Input::Deleted { uid, answer: Ok(None) }),
                other => panic!("not expected: {other:?}"),
            }
        }
    }
}

/// Removes all executors at once, so many times, and starts their successors.
fn replace_all(run: &mut Run, n_times: u32) {
    for _ in 0..n_times {
        let ids: Vec<u64> = run.pods.iter().map(|pod| pod.id.0).collect();
        run.call(kill(&ids, AfterKill::Replace, true));
        answer_all(run);
        run.gone(&ids);
        answer_all(run);
        run.wait(60_000);
        run.take_events();
    }
}

#[test]
fn executors_that_came_and_went_leave_nothing_but_their_records() {
    // With this id high water all ids have six digits.
    let identity = InstanceIdentity { id_high_water: 100_000, ..identity() };
    let mut run = Run::with_identity(identity, policy(), vec![spec("g", 64)]);
    run.list();
    answer_all(&mut run);
    assert_eq!(run.pods.len(), 64);
    let written = |run: &Run| format!("{:?}", run.core).len();
    // More than posse keeps records of.
    replace_all(&mut run, 100);
    let before = written(&run);
    replace_all(&mut run, 100);
    assert_eq!((run.pods.len(), run.pods[0].id.0), (64, 100_000 + 200 * 64 + 1));
    let after = written(&run);
    assert!(after < before + before / 100, "{before} bytes have become {after}");
}
