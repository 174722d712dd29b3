//! A plain file (application, image, count) ends well when no executor can do its work: the budgets are those
//! of the defaults.

use std::collections::BTreeMap;

use posse_core::model::action::RunVerdict;
use posse_core::model::command::{AfterKill, Command};
use posse_core::model::event::{Budget, Exhaustion};
use posse_core::model::pod::{End, Phase, Pod, StartProblem, StartProblemKind};
use posse_core::model::settings::{GroupSpec, Limit, OnLoss, Policy, Replace, ScaleDown};
use posse_core::model::waiting::{StartWait, Waiting};

use super::bad_nodes::cannot_begin;
use crate::core_run::{Run, end_with, kill, set, spec};

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
            let is_app =
                matches!(verdict, Some(RunVerdict::BudgetExhausted { budget: Budget::App, .. }));
            assert!(is_app, "{n} executors of {lives_ms} ms: {verdict:?}");
            assert!(run.now <= 10 * MINUTE_MS, "{n} of {lives_ms} ms: after {} ms", run.now);
        }
    }
}

#[test]
fn a_budget_that_is_off_ends_nothing() {
    let policy = Policy { failures_app: Limit::Off, ..Policy::default() };
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
            assert_eq!(run.waits_for("g"), Some("backoff"), "{name} {n}");
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
    // Each group is judged for itself, and one that has run waits.
    for (others, has_run) in [(0, false), (1, false), (9, false), (0, true)] {
        let mut run = Run::new(Policy::default(), vec![spec("good", others), spec("g", 2)]);
        if has_run {
            let ids: Vec<u64> = run.slots_created().into_iter().map(|(id, _)| id).collect();
            run.start(&ids);
            run.watch(&ids, evicted);
        }
        let why = Exhaustion::NeverStarted { group: "g".into(), ms: 15 * MINUTE_MS };
        let want = RunVerdict::BudgetExhausted { budget: Budget::Start, why };
        let want = (!has_run).then_some(want);
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
            // A start is judged by a LIST.
            run.list();
            verdict = run.core.poll_verdict();
        }
        assert_eq!(verdict, want, "others: {others}, has run: {has_run}");
        if !has_run {
            assert!((15..=25).contains(&(run.now / MINUTE_MS)), "after {} ms", run.now);
        }
    }
}

/// Kueue or an autoscaler takes its time. The same after a group has had no target.
#[test]
fn the_wait_for_a_node_is_no_failed_start() {
    for pause in [false, true] {
        let mut run = Run::new(Policy::default(), vec![spec("g", 1)]);
        let ids: Vec<u64> = run.slots_created().into_iter().map(|(id, _)| id).collect();
        run.created(&ids);
        if pause {
            run.watch(&ids, cannot_begin);
            run.target("g", 0);
        }
        run.wait(60 * MINUTE_MS);
        if pause {
            run.target("g", 1);
            let ids: Vec<u64> = run.slots_created().into_iter().map(|(id, _)| id).collect();
            run.created(&ids);
            run.watch(&ids, cannot_begin);
        } else {
            run.watch(&ids, |pod| pod.node = Some("n".into()));
            run.watch(&ids, cannot_begin);
        }
        run.turn();
        assert_eq!(run.core.poll_verdict(), None, "{pause}");
    }
}

/// Spark kills an executor without heartbeats, and asks for another one. Without this word nobody has failed.
#[test]
fn only_kills_for_missed_heartbeats_are_failures() {
    let why = Exhaustion::Losses;
    let exhausted = Some(RunVerdict::BudgetExhausted { budget: Budget::App, why });
    for (is_silent, after, want) in [
        (true, AfterKill::Replace, exhausted),
        (false, AfterKill::Replace, None),
        (false, AfterKill::Target(1), None),
    ] {
        let mut run = Run::with_running(Policy::default(), vec![spec("g", 1)]);
        let mut verdict = None;
        for id in 1..=30 {
            let executors = set(&[id]);
            run.call(Command::Kill { executors, after, force: true, is_silent, reason: None });
            verdict = run.core.poll_verdict();
            if verdict.is_some() {
                break;
            }
            let ids: Vec<u64> = run.slots_created().into_iter().map(|(id, _)| id).collect();
            assert!(!ids.is_empty(), "replaced at once, for it is no crash loop");
            run.start(&ids);
            // The driver has heard nothing for longer than that.
            run.now += if is_silent { 2 * MINUTE_MS } else { 0 };
        }
        assert_eq!(verdict, want, "{is_silent} {after:?}");
    }
}

/// Spark's dynamic allocation lowers its target, and then kills idle executors by the same call.
#[test]
fn kills_of_executors_beyond_the_target_are_no_failures() {
    let group = GroupSpec { scale_down: ScaleDown::Pending, ..spec("g", 40) };
    let mut run = Run::with_running(Policy::default(), vec![group]);
    run.target("g", 1);
    run.call(kill(&(2..=40).collect::<Vec<u64>>(), AfterKill::Replace, true));
    assert_eq!(run.core.poll_verdict(), None);
    assert_eq!(run.slots_created(), [], "none is replaced");
}

/// How the scheduler and the nodes treat the pods of a large group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    /// There is no node for any of them.
    Never,
    /// Each has a node at once.
    AtOnce,
    /// There is no node for a while, as where an autoscaler makes them.
    AfterMs(u64),
}

const TOLD_AFTER_MS: u64 = 200;

/// Creates a group of `n` and returns how many pods there are after each of the times, and when all of them run.
fn large_start(group: GroupSpec, placed: Placed, times: &[u64]) -> (Vec<usize>, Option<u64>) {
    let n = group.target as usize;
    let mut run = Run::new(Policy::default(), vec![group]);
    let (mut created, mut counts, mut running_at) = (Vec::new(), Vec::new(), None);
    let (mut n_told, mut n_running) = (0, 0);
    for step in 0..=times.last().copied().unwrap_or_default() / TOLD_AFTER_MS {
        run.now = step * TOLD_AFTER_MS;
        run.turn();
        // What was created before is looked at now: a round trip lies between.
        if n_running < created.len()
            && (placed == Placed::AtOnce || matches!(placed, Placed::AfterMs(at) if run.now >= at))
        {
            run.running(&created[n_running..]);
            (n_running, n_told) = (created.len(), created.len());
        } else if n_told < created.len() && placed != Placed::AtOnce {
            run.watch(&created[n_told..], |pod| pod.start_problem = unplaced());
            n_told = created.len();
        }
        // The answers of this time are quick: a hundred creates for each look of the scheduler.
        while created.len() - n_told < 100 {
            let ids: Vec<u64> = run.slots_created().into_iter().map(|(id, _)| id).collect();
            if ids.is_empty() {
                break;
            }
            run.created(&ids);
            created.extend(ids);
        }
        if n_running == n {
            running_at.get_or_insert(run.now);
        }
        if times.contains(&run.now) {
            counts.push(created.len());
        }
    }
    (counts, running_at)
}

fn unplaced() -> Option<Box<StartProblem>> {
    let (kind, message) = (StartProblemKind::Unschedulable, "0/3 nodes are available".into());
    Some(Box::new(StartProblem { kind, message, n_started: 0 }))
}

#[test]
fn executors_without_a_node_are_limited_from_the_first_one_on() {
    const TIMES: [u64; 5] = [1_000, 14_000, 16_000, 46_000, 30 * MINUTE_MS];
    for (n, most) in [
        (50, [50, 50, 50, 50, 50]),
        (600, [160, 160, 240, 600, 600]),
        (5_000, [160, 160, 240, 840, 1_000]),
    ] {
        let (counts, _) = large_start(spec("g", n), Placed::Never, &TIMES);
        let within = counts.iter().zip(most).all(|(n, most)| *n <= most && *n + 40 >= most);
        assert!(within && counts.len() == most.len(), "{n}: {counts:?}, not about {most:?}");
    }
}

#[test]
fn a_start_that_finds_its_nodes_is_not_slowed_down() {
    // Ten times a hundred.
    let (_, at) = large_start(spec("g", 1_000), Placed::AtOnce, &[MINUTE_MS]);
    assert!(at.is_some_and(|at| at <= 3_000), "{at:?}");
    // New nodes need minutes: the autoscaler has been told of all executors by then.
    let (counts, at) =
        large_start(spec("g", 1_000), Placed::AfterMs(90_000), &[61_000, 2 * MINUTE_MS]);
    assert!(counts[0] == 1_000 && at.is_some_and(|at| at <= 91_000), "{counts:?} {at:?}");
    // A gang may find nodes only when all of it is there.
    let gang = GroupSpec { on_loss: OnLoss::Group, replace: Replace::Gone, ..spec("g", 2_000) };
    let (counts, _) = large_start(gang, Placed::Never, &[10_000]);
    assert_eq!(counts, [2_000]);
}

#[test]
fn a_group_that_waits_for_nodes_says_so() {
    let mut run = Run::new(Policy::default(), vec![spec("g", 5_000)]);
    let (created, told) = (&mut Vec::new(), &mut 0);
    for _ in 0..200 {
        let ids: Vec<u64> = run.slots_created().into_iter().map(|(id, _)| id).collect();
        run.created(&ids);
        created.extend(ids);
        run.watch(&created[*told..], |pod| pod.start_problem = unplaced());
        *told = created.len();
    }
    let group = run.group("g");
    assert_eq!(group.waiting, Some(Waiting::Start(StartWait::Unschedulable)), "{}", created.len());
    assert_eq!(group.message.as_deref(), Some("0/3 nodes are available"));
}
