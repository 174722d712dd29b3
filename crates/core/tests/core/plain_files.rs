//! A plain file (application, image, count) ends well when no executor can do its work: the budgets are those
//! of the defaults.

use std::collections::{BTreeMap, BTreeSet};

use posse_core::model::action::RunVerdict;
use posse_core::model::command::{AfterKill, Command};
use posse_core::model::event::Budget;
use posse_core::model::ids::ExecutorId;
use posse_core::model::pod::{End, Phase, Pod, StartProblem, StartProblemKind};
use posse_core::model::settings::{FailureLimit, GroupSpec, Policy, ScaleDown};
use posse_core::model::waiting::{StartWait, Waiting};

use crate::core_run::{Run, end_with, spec};

const MINUTE_MS: u64 = 60_000;
/// Nothing may be created so often: a loop without a delay ends here.
const CREATED_MAX: usize = 5_000;

/// Runs every executor for `lives_ms`, then ends it, until there is a verdict or the time is over. Returns the
/// verdict and how many executors were created.
fn run_all(
    run: &mut Run,
    lives_ms: u64,
    end: &dyn Fn(&mut Pod),
    limit_ms: u64,
) -> (Option<RunVerdict>, usize) {
    let mut ends_at: BTreeMap<u64, u64> = BTreeMap::new();
    let mut n_created = 0;
    loop {
        let verdict = run.core.poll_verdict();
        if verdict.is_some() || n_created > CREATED_MAX {
            return (verdict, n_created);
        }
        for (id, _) in run.slots_created() {
            n_created += 1;
            run.start(&[id]);
            ends_at.insert(id, run.now + lives_ms);
        }
        let due: Vec<u64> =
            ends_at.iter().filter(|(_, at)| **at <= run.now).map(|(id, _)| *id).collect();
        for id in &due {
            ends_at.remove(id);
            run.watch(&[*id], end);
        }
        if !due.is_empty() {
            continue;
        }
        let next = ends_at.values().copied().chain(run.core.next_deadline().map(|at| at.0)).min();
        let Some(next) = next.filter(|at| *at <= limit_ms) else { return (None, n_created) };
        run.now = run.now.max(next);
        run.turn();
    }
}

#[test]
fn executors_that_all_crash_end_the_run_whatever_their_number() {
    for n in [1, 10, 50, 200, 1_000] {
        for lives_ms in [1_000, 50_000] {
            let mut run = Run::new(Policy::default(), vec![spec("g", n)]);
            let (verdict, _) = run_all(&mut run, lives_ms, &end_with(1), 60 * MINUTE_MS);
            let want = Some(RunVerdict::BudgetExhausted(Budget::App));
            assert_eq!(verdict, want, "{n} executors of {lives_ms} ms");
            assert!(run.now <= 10 * MINUTE_MS, "{n} of {lives_ms} ms: after {} ms", run.now);
        }
    }
}

#[test]
fn a_budget_that_is_off_ends_nothing() {
    let policy = Policy { failures_app: FailureLimit::Off, ..Policy::default() };
    let mut run = Run::new(policy, vec![spec("g", 50)]);
    let (verdict, _) = run_all(&mut run, 1_000, &end_with(1), 60 * MINUTE_MS);
    assert_eq!(verdict, None);
}

fn evicted(pod: &mut Pod) {
    pod.phase = Phase::Failed;
    pod.end = Some(Box::new(End { pod_reason: "Evicted".into(), ..End::default() }));
}

#[test]
fn executors_that_end_at_once_are_tried_one_by_one() {
    for (name, end) in [("0", &end_with(0) as &dyn Fn(&mut Pod)), ("evicted", &evicted)] {
        for n in [1, 10, 100] {
            let mut run = Run::new(Policy::default(), vec![spec("g", n)]);
            let (verdict, n_created) = run_all(&mut run, 0, end, MINUTE_MS);
            let most = 3 * n as usize + 20;
            assert!(n_created <= most, "{name}: {n_created} executors for {n} in a minute");
            assert_eq!(
                run.waits_for("g"),
                Some(Waiting::Start(StartWait::CrashLoop)),
                "{name} {n}"
            );
            let message = run.group("g").message.unwrap_or_default();
            assert!(message.contains("end at once"), "{message}");
            assert_eq!(message.contains("restart: on-failure"), name == "0", "{message}");
            assert_eq!(verdict, None, "{name}: the application has not failed");
        }
    }
}

#[test]
fn one_eviction_of_all_new_executors_is_no_loop() {
    let mut run = Run::with_running(Policy::default(), vec![spec("g", 20)]);
    run.watch(&(1..=20).collect::<Vec<_>>(), evicted);
    let mut n_created = 0;
    for _ in 0..10 {
        let ids: Vec<u64> = run.slots_created().into_iter().map(|(id, _)| id).collect();
        n_created += ids.len();
        run.start(&ids);
    }
    assert_eq!(n_created, 20, "all at once");
}

#[test]
fn starts_that_can_never_succeed_end_the_run_after_a_quarter_of_an_hour() {
    let bad_image = |pod: &mut Pod| {
        pod.phase = Phase::Pending;
        pod.start_problem = Some(Box::new(StartProblem {
            kind: StartProblemKind::Image,
            message: "no such image".into(),
            n_started: 0,
        }));
    };
    for (has_run, want) in [(false, Some(RunVerdict::BudgetExhausted(Budget::Start))), (true, None)]
    {
        let mut run =
            Run::new(Policy::default(), vec![spec("good", u32::from(has_run)), spec("g", 2)]);
        let mut verdict = None;
        while run.now <= 60 * MINUTE_MS && verdict.is_none() {
            for (id, _) in run.slots_created() {
                run.created(&[id]);
                match run.group_of(id).as_str() {
                    "good" => run.running(&[id]),
                    _ => run.watch(&[id], bad_image),
                }
            }
            let next = run.core.next_deadline().map_or(u64::MAX, |at| at.0);
            run.now = next.clamp(run.now, run.now + MINUTE_MS);
            // A start is judged at a message of the server.
            let there: Vec<u64> = run.pods.iter().map(|pod| pod.id.0).collect();
            run.watch(&there, |_| ());
            verdict = run.core.poll_verdict();
        }
        assert_eq!(verdict, want, "has run: {has_run}");
        if !has_run {
            assert!((15..=25).contains(&(run.now / MINUTE_MS)), "after {} ms", run.now);
        }
    }
}

/// Spark kills an executor without heartbeats, and asks for another one.
#[test]
fn kills_with_replacement_are_failures_and_others_are_not() {
    let exhausted = Some(RunVerdict::BudgetExhausted(Budget::App));
    for (after, want) in [(AfterKill::Replace, exhausted), (AfterKill::Target(1), None)] {
        let mut run = Run::with_running(Policy::default(), vec![spec("g", 1)]);
        let mut verdict = None;
        for id in 1..=30 {
            let executors = BTreeSet::from([ExecutorId(id)]);
            run.call(Command::Kill { executors, after, force: true, reason: None });
            verdict = run.core.poll_verdict();
            if verdict.is_some() {
                break;
            }
            let ids: Vec<u64> = run.slots_created().into_iter().map(|(id, _)| id).collect();
            assert!(!ids.is_empty(), "replaced at once, for it is no crash loop");
            run.start(&ids);
        }
        assert_eq!(verdict, want, "{after:?}");
    }
}

/// Spark's dynamic allocation lowers its target, and then kills idle executors by the same call.
#[test]
fn kills_of_executors_beyond_the_target_are_no_failures() {
    let group = GroupSpec { scale_down: ScaleDown::Pending, ..spec("g", 40) };
    let mut run = Run::with_running(Policy::default(), vec![group]);
    run.target("g", 1);
    let executors: BTreeSet<ExecutorId> = (2..=40).map(ExecutorId).collect();
    let after = AfterKill::Replace;
    run.call(Command::Kill { executors, after, force: true, reason: None });
    assert_eq!(run.core.poll_verdict(), None);
    assert_eq!(run.slots_created(), [], "none is replaced");
}
