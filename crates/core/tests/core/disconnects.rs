//! An executor that the driver has lost: before it is told as disconnected, its pod is read.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, STOP, kill, policy, refusal, spec};
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::command::{AfterKill, Command};
use posse_core::model::event::LossReason;
use posse_core::model::ids::{ExecutorId, Version};
use posse_core::model::input::{Input, PodAnswer};
use posse_core::model::pod::{ContainerState, End, Phase, Pod};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::settings::{GroupSpec, Replace, SlotPolicy};
use posse_core::model::status::State;

const REASON_WAIT_MS: u64 = 30_000;

/// A run whose watch is silent: executor 1 is reported as lost, and the wait for a reason is over.
fn disconnected() -> Run {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.call(Command::Disconnected { executor: ExecutorId(1) });
    assert_eq!(run.creates(), [2], "its replacement does not wait for the reason");
    run.wait(REASON_WAIT_MS - 1);
    assert_eq!(run.take(), []);
    run.wait(1);
    run
}

/// The answer to the one read that is due.
fn answer(run: &mut Run, answer: Result<PodAnswer, Refusal>) {
    let asked = run.take();
    let [Action::ReadPod { id: id @ ExecutorId(1), watermark }] = asked[..] else {
        panic!("one read is due, not {asked:?}")
    };
    run.tell(Input::PodRead { id, watermark, answer });
}

fn changed(run: &mut Run, change: impl FnOnce(&mut Pod)) -> Result<PodAnswer, Refusal> {
    let mut pod = run.pods[0].clone();
    run.version += 1;
    pod.version = Some(Version(run.version));
    change(&mut pod);
    Ok(PodAnswer::Ours(pod))
}

fn end(pod: &mut Pod) {
    (pod.phase, pod.container) = (Phase::Failed, ContainerState::Ended);
    let end = End { container_reason: "OOMKilled".into(), exit_code: Some(137), ..End::default() };
    pod.end = Some(Box::new(end));
}

#[test]
fn the_reason_is_found_in_the_pod_although_the_watch_is_silent() {
    let mut run = disconnected();
    let pod = changed(&mut run, end);
    answer(&mut run, pod);
    assert_eq!(run.losses(), [(1, LossReason::OomKilled)]);
}

#[test]
fn a_pod_that_does_not_exist_any_more_is_deleted_and_not_disconnected() {
    let mut run = disconnected();
    answer(&mut run, Err(refusal(RefusalClass::NotFound, 404)));
    let losses = run.losses();
    assert!(
        matches!(losses[..], [(1, reason)] if reason != LossReason::Disconnected),
        "{losses:?}"
    );
}

#[test]
fn a_pod_that_runs_is_lost_as_disconnected() {
    let mut run = disconnected();
    let pod = Ok(PodAnswer::Ours(run.pods[0].clone()));
    answer(&mut run, pod);
    assert_eq!(run.losses(), [(1, LossReason::Disconnected)]);
    // Without the permission to read it, too.
    let mut run = disconnected();
    answer(&mut run, Err(refusal(RefusalClass::Forbidden, 403)));
    assert_eq!(run.losses(), [(1, LossReason::Disconnected)]);
}

#[test]
fn a_read_that_fails_is_repeated_a_few_times() {
    let mut run = disconnected();
    for n in 1..=4 {
        assert_eq!(run.losses(), [], "{n} tries");
        answer(&mut run, Err(refusal(RefusalClass::OutcomeUnknown, 500)));
        run.wait(2_000);
    }
    assert_eq!(run.losses(), [(1, LossReason::Disconnected)]);
}

#[test]
fn a_report_of_the_watch_while_the_pod_is_read_is_told_once() {
    let mut run = disconnected();
    run.watch(&[1], end);
    assert_eq!(run.losses(), [(1, LossReason::OomKilled)]);
    let asked = run.take();
    let Some(&Action::ReadPod { id, watermark }) = asked.first() else { panic!("{asked:?}") };
    let pod = Ok(PodAnswer::Ours(run.pods[0].clone()));
    run.tell(Input::PodRead { id, watermark, answer: pod });
    assert_eq!(run.losses(), []);
}

#[test]
fn nothing_is_lost_while_the_lease_is_lost_or_the_run_stops() {
    let mut run = disconnected();
    run.tell(Input::Lease { held: false, high_water: None });
    let pod = Ok(PodAnswer::Ours(run.pods[0].clone()));
    answer(&mut run, pod);
    assert_eq!(run.losses(), []);
    let mut run = disconnected();
    run.core.begin_stop(STOP, Millis(run.now));
    let pod = Ok(PodAnswer::Ours(run.pods[0].clone()));
    answer(&mut run, pod);
    assert_eq!(run.losses(), []);
}

/// etcd was restored while the watch was silent. The pod had failed in the history that is in force now.
#[test]
fn a_read_below_what_was_applied_shows_that_history_went_back() {
    let mut run = disconnected();
    let mut pod = run.pods[0].clone();
    pod.version = Some(Version(1));
    end(&mut pod);
    answer(&mut run, Ok(PodAnswer::Ours(pod)));
    run.wait(REASON_WAIT_MS);
    assert_eq!(run.losses(), [], "nothing is known of that history yet");
    run.watch(&[1], end);
    run.list();
    assert_eq!(run.losses(), [(1, LossReason::OomKilled)]);
}

/// A broken network breaks all connections at once.
#[test]
fn few_pods_are_read_at_a_time() {
    let mut run = Run::with_running(policy(), vec![spec("g", 20)]);
    for id in 1..=20 {
        run.call(Command::Disconnected { executor: ExecutorId(id) });
    }
    run.wait(REASON_WAIT_MS);
    let (mut n_reads, mut lost) = (0, Vec::new());
    loop {
        let reads = run.take().into_iter().filter_map(|action| match action {
            Action::ReadPod { id, watermark } => Some((id, watermark)),
            _ => None,
        });
        let reads: Vec<_> = reads.collect();
        if reads.is_empty() {
            break;
        }
        n_reads += reads.len();
        assert!(reads.len() <= 4, "{reads:?}");
        for (id, watermark) in reads {
            let pod = run.pods.iter().find(|pod| pod.id == id).unwrap().clone();
            let answer = Ok(PodAnswer::Ours(pod));
            run.core.handle(Input::PodRead { id, watermark, answer }, Millis(run.now));
        }
        run.turn();
        lost.extend(run.losses());
    }
    assert_eq!((n_reads, lost.len()), (20, 20));
}

/// Which executors are created when executor 1 of 2 is disconnected, and when its pod is gone.
#[test]
fn a_disconnected_executor_is_no_capacity_while_the_reason_is_looked_for() {
    let stable = GroupSpec { slots: SlotPolicy::Stable, ..spec("g", 2) };
    let cases = [
        ("at once", spec("g", 2), vec![3], vec![]),
        ("replace: gone", GroupSpec { replace: Replace::Gone, ..spec("g", 2) }, vec![], vec![3]),
        ("its slot is held", stable, vec![], vec![3]),
    ];
    for (what, spec, at_once, when_gone) in cases {
        let mut run = Run::with_running(policy(), vec![spec]);
        run.call(Command::Disconnected { executor: ExecutorId(1) });
        run.call(Command::Disconnected { executor: ExecutorId(1) });
        assert_eq!(run.creates(), at_once, "{what}");
        let state = |run: &Run| run.core.executors().get(ExecutorId(1)).map(|one| one.state);
        assert_eq!(state(&run), Some(State::Draining), "{what}");
        // Its end is a loss like any other, and nobody takes its place twice.
        run.failed(&[1]);
        assert_eq!(run.losses(), [(1, LossReason::AppError)], "{what}");
        run.gone(&[1]);
        run.wait(2 * REASON_WAIT_MS);
        let created: Vec<u64> = run.slots_created().into_iter().map(|(id, _)| id).collect();
        assert_eq!((run.losses(), created), (vec![], when_gone), "{what}");
    }
}

fn disconnected_of_two() -> Run {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.call(Command::Disconnected { executor: ExecutorId(1) });
    assert_eq!(run.creates(), [3]);
    run
}

/// The driver may end it before the reason is known, and a lower target does not end another one for it.
#[test]
fn a_disconnected_executor_is_killed_and_is_no_victim() {
    let mut run = disconnected_of_two();
    run.call(kill(&[1], AfterKill::Replace, true));
    assert_eq!((run.losses(), run.ends()), (vec![(1, LossReason::Killed)], vec!["u1".to_owned()]));
    let mut run = disconnected_of_two();
    run.target("g", 1);
    assert_eq!(run.ends(), Vec::<String>::new(), "its replacement, which has no pod yet, is");
}

/// The report comes before the pod was seen: it counts from there on.
#[test]
fn an_executor_that_is_disconnected_before_its_pod_is_seen_is_replaced_when_it_is() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    run.call(Command::Disconnected { executor: ExecutorId(1) });
    assert_eq!(run.creates(), Vec::<u64>::new(), "it may never have been created");
    run.created(&[1]);
    assert_eq!(run.creates(), [2]);
}
