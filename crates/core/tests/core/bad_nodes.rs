//! A bad node is not a bad application: the place of a loss decides whose fault it is.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use posse_core::model::action::{Action, Patch, RunVerdict};
use posse_core::model::event::{
    Budget, ClusterEvent, Event, ExecutorEvent, Exhaustion, GroupEvent, LossReason,
};
use posse_core::model::pod::ContainerState::{Ended, Running, Waiting};
use posse_core::model::pod::{End, Phase, Pod, StartProblem, StartProblemKind};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{BadNodes, GroupSpec, Limit, Policy, Restart};
use posse_core::model::task::Task;

use super::task_restarts::restart;
use super::tasks::{group, say, task};
use crate::core_run::{Run, end_with, policy, refusal, spec};

const MINUTE_MS: u64 = 60_000;

/// How a pod comes to its end on a node, and how long it runs before; none: it does not.
type Way = (Option<u64>, fn(&mut Pod));

fn exits(pod: &mut Pod) {
    end_with(255)(pod);
}

fn is_rejected(pod: &mut Pod, reason: &str) {
    (pod.phase, pod.container) = (Phase::Failed, Waiting);
    let pod_reason = reason.into();
    pod.end = Some(Box::new(End { pod_reason, is_rejected: true, ..End::default() }));
}

fn does_not_fit(pod: &mut Pod) {
    is_rejected(pod, "TopologyAffinityError");
}

fn asks_for_too_much(pod: &mut Pod) {
    is_rejected(pod, "SysctlForbidden");
}

pub(super) fn cannot_begin(pod: &mut Pod) {
    end_with(128)(pod);
    pod.end.as_mut().unwrap().container_reason = "StartError".into();
}

fn is_killed(pod: &mut Pod) {
    end_with(137)(pod);
    pod.end.as_mut().unwrap().container_reason = "OOMKilled".into();
}

fn lacks_its_image(pod: &mut Pod) {
    let (kind, message) = (StartProblemKind::Image, "no route to the registry".into());
    pod.start_problem = Some(Box::new(StartProblem { kind, message, n_started: 0 }));
}

fn stays_as_it_is(_: &mut Pod) {}

fn is_unschedulable(pod: &mut Pod) {
    let (kind, message) = (StartProblemKind::Unschedulable, "0/2 nodes are available".into());
    pod.start_problem = Some(Box::new(StartProblem { kind, message, n_started: 0 }));
}

/// What a run told of its losses, and how it ended.
#[derive(Debug, Default)]
struct Told {
    /// Node, reason and budget of each loss.
    losses: Vec<(String, LossReason, Option<Budget>)>,
    avoided: Vec<String>,
    verdict: Option<RunVerdict>,
    /// Key and outcome of each task.
    tasks: Vec<(String, &'static str)>,
}

impl Told {
    fn note(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Executor(_, ExecutorEvent::Lost { node, reason, budget, .. }) => {
                    self.losses.push((node.unwrap_or_default(), reason, budget));
                }
                Event::Cluster(ClusterEvent::NodeAvoided { node, .. }) => self.avoided.push(node),
                Event::Group(_, GroupEvent::TaskEnded { key, end, .. }) => {
                    self.tasks.push((key.to_string(), end.outcome.as_str()));
                }
                _ => {}
            }
        }
    }
}

/// A group of `n`. Its first executors run on `good`, each on the next of these nodes; every other one is placed on the
/// first of `bad` that it may use, and comes to its end there.
fn play(policy: Policy, n: u32, good: &[&str], bad: &[&str], way: Way) -> Told {
    place(&mut Run::new(policy, vec![spec("g", n)]), good, bad, way)
}

fn place(run: &mut Run, good: &[&str], bad: &[&str], way: Way) -> Told {
    place_in(run, Room::Enough, good, bad, way)
}

/// How many executors have room at a time.
#[derive(Clone, Copy, Debug)]
enum Room {
    Enough,
    Quota(usize),
    Nodes(usize),
}

impl Room {
    fn is_quota_full(self, pods: &[Pod]) -> bool {
        let n_live = pods.iter().filter(|pod| !pod.phase.is_final()).count();
        matches!(self, Self::Quota(n) if n_live >= n)
    }

    fn on_nodes(self, n_placed: usize) -> usize {
        match self {
            Self::Nodes(n) => n.saturating_sub(n_placed),
            Self::Enough | Self::Quota(_) => usize::MAX,
        }
    }
}

fn place_in(run: &mut Run, room: Room, good: &[&str], bad: &[&str], (lives_ms, end): Way) -> Told {
    let (mut told, mut placed, mut n_pods) = (Told::default(), Vec::new(), 0);
    let (mut unplaced, mut n_good) = (Vec::new(), 0);
    while run.now <= 60 * MINUTE_MS && told.verdict.is_none() {
        let mut creates = Vec::new();
        for action in run.take() {
            match action {
                Action::Create { id, slot, overrides, .. } => {
                    creates.push((id.0, slot, overrides.avoid.to_vec()))
                }
                Action::Delete { uid, .. } => {
                    let id = uid.to_string()[1..].parse().unwrap();
                    placed.retain(|(other, _)| *other != id);
                    unplaced.retain(|(other, _)| *other != id);
                    run.gone(&[id]);
                }
                Action::Patch { uid, patch: Patch::Counted { .. }, .. } => {
                    let pod = run.pods.iter_mut().find(|pod| pod.uid == uid);
                    pod.unwrap().counted = Some(9);
                }
                _ => {}
            }
        }
        for (id, slot, avoid) in creates {
            if room.is_quota_full(&run.pods) {
                run.refused(id, refusal(RefusalClass::Capacity, 403));
                continue;
            }
            run.created(&[id]);
            let has_task = run.pods.last().unwrap().task.is_some();
            run.watch(&[id], |pod| pod.slot = (!has_task).then_some(slot));
            if matches!(room, Room::Nodes(_)) {
                run.watch(&[id], is_unschedulable);
            }
            unplaced.push((id, avoid));
        }
        let n_free = room.on_nodes(placed.len() + n_good).min(unplaced.len());
        for (id, avoid) in unplaced.drain(..n_free).collect::<Vec<_>>() {
            run.watch(&[id], |pod| pod.start_problem = None);
            let is_free = |node: &&&str| !avoid.contains(&(**node).to_owned());
            let node = good.get(n_pods).or_else(|| bad.iter().find(is_free)).copied();
            let is_good = good.get(n_pods).is_some() || node.is_none();
            n_pods += 1;
            n_good += usize::from(is_good);
            let node = node.or_else(|| good.first().copied()).unwrap_or("other");
            run.watch(&[id], |pod| pod.node = Some(node.into()));
            if is_good {
                run.watch(&[id], |pod| (pod.phase, pod.container) = (Phase::Running, Running));
                run.now += 1_000;
                run.turn();
                continue;
            }
            if lives_ms.is_some() {
                run.watch(&[id], |pod| (pod.phase, pod.container) = (Phase::Running, Running));
            }
            placed.push((id, run.now + lives_ms.unwrap_or(0)));
        }
        let due: Vec<u64> = placed.iter().filter(|(_, at)| *at <= run.now).map(|p| p.0).collect();
        placed.retain(|(id, _)| !due.contains(id));
        for id in due {
            run.watch(&[id], end);
        }
        let next = run.core.next_deadline().map_or(u64::MAX, |at| at.0);
        let next = placed.iter().map(|(_, at)| *at).fold(next, u64::min);
        run.now = next.clamp(run.now + 1, run.now + MINUTE_MS);
        // A start is judged by a LIST.
        run.list();
        told.verdict = run.core.poll_verdict();
    }
    told.note(run.take_events());
    told
}

#[track_caller]
fn assert_no_end(run: &mut Run) {
    let is_end = |action: &Action| matches!(action, Action::Delete { .. } | Action::Patch { .. });
    let ends: Vec<Action> = run.take().into_iter().filter(is_end).collect();
    assert_eq!(ends, []);
}

const KINDS: [(&str, Way, LossReason); 8] = [
    ("exits", (Some(300), exits), LossReason::AppError),
    ("exits after a while", (Some(90_000), exits), LossReason::AppError),
    ("killed", (Some(300), is_killed), LossReason::OomKilled),
    ("does not start", (None, cannot_begin), LossReason::ConfigError),
    ("is rejected", (None, does_not_fit), LossReason::AdmissionRejected),
    ("is rejected for itself", (None, asks_for_too_much), LossReason::AdmissionRejected),
    ("cannot pull", (None, lacks_its_image), LossReason::ImageError),
    // No address is left for pods there: the status says nothing of it.
    ("has no network", (None, stays_as_it_is), LossReason::StartTimeout),
];

#[test]
fn one_node_on_which_nothing_lives_is_avoided_whatever_the_reason() {
    // Also in small clusters.
    for good in [&["a", "b", "c"][..], &["a", "b"], &["a"]] {
        for (name, way, reason) in KINDS {
            let n = u32::try_from(good.len()).unwrap() + 1;
            let told = play(Policy::default(), n, good, &["bad"], way);
            // One end alone is no pattern yet.
            let first = match name {
                "is rejected for itself" => LossReason::ConfigError,
                _ => reason,
            };
            let later = (reason, Some(Budget::Cluster));
            let losses = [(first, first.budget()), later, later];
            let losses = losses.map(|(reason, budget)| ("bad".to_owned(), reason, budget));
            assert_eq!(told.losses, losses, "{name}, {good:?}");
            assert_eq!((told.avoided, told.verdict), (vec!["bad".to_owned()], None), "{name}");
        }
    }
}

#[test]
fn two_bad_nodes_of_many_do_not_acquit_each_other() {
    // The last one takes longer than the hour of a play.
    for (name, way, _) in &KINDS[..7] {
        let told = play(Policy::default(), 7, &["a", "b", "c", "d", "e", "f"], &["x", "y"], *way);
        let losses: Vec<&str> = told.losses.iter().map(|loss| &*loss.0).collect();
        assert_eq!(losses, ["x", "x", "x", "y", "y", "y"], "{name}: {:?}", told.losses);
        assert_eq!((told.avoided, told.verdict), (vec!["x".into(), "y".into()], None), "{name}");
    }
}

/// Nodes of unknown names, and those that must not be avoided.
#[test]
fn a_bad_node_that_nobody_avoids_does_not_end_the_run_either() {
    let mut policy = Policy::default();
    policy.bad_nodes.losses = 0;
    for (name, way, _) in KINDS {
        let told = play(policy.clone(), 4, &["a", "b", "c"], &["bad"], way);
        assert_eq!((told.avoided, told.verdict), (vec![], None), "{name}");
        assert!(told.losses.len() < 100, "{name}: {} losses in an hour", told.losses.len());
        let others = told.losses.iter().filter(|loss| loss.2 != Some(Budget::Cluster));
        assert!(others.count() <= 1, "{name}: {:?}", told.losses);
    }
}

/// What a task does is its own, and where it cannot begin is not.
#[test]
fn a_bad_node_costs_a_task_no_retry_before_it_has_begun() {
    let tell = |policy: Policy, retries, good: &[&str], bad: &[&str], way| {
        let mut run = Run::new(policy, vec![group(0, None)]);
        let tasks: Vec<Task> = ["a", "b", "c", "last"].map(|key| task(key, retries)).into();
        say(&mut run, &tasks[..good.len()]);
        say(&mut run, &tasks[3..]);
        let told = place(&mut run, good, bad, way);
        // Whoever runs then, runs on.
        let n_running = run.group("g").running;
        let mut next = restart(run, group(0, None));
        assert_no_end(&mut next);
        assert_eq!(next.group("g").running, n_running, "{good:?} {:?}", told.losses);
        told
    };
    let failed = vec![("last".to_owned(), "failed")];
    let off = BadNodes { losses: 0, ..BadNodes::default() };
    for good in [&["a", "b", "c"][..], &["a"]] {
        for (name, way, _) in KINDS {
            let (retries, begins) = if way.0.is_some() { (3, true) } else { (0, false) };
            let told = tell(Policy::default(), retries, good, &["bad"], way);
            assert_eq!(
                (told.tasks, told.avoided),
                (vec![], vec!["bad".to_owned()]),
                "{name} {good:?} {:?}",
                told.losses
            );
            let at_fault = told.losses.iter().filter(|loss| loss.2 != Some(Budget::Cluster));
            assert_eq!(at_fault.count(), if begins { 3 } else { 0 }, "{name}: {:?}", told.losses);
            if begins {
                assert_eq!(tell(Policy::default(), 2, good, &["bad"], way).tasks, failed, "{name}");
            } else if name != "is rejected" {
                // It starts nowhere, or nobody looks at nodes.
                let told = tell(Policy::default(), 0, good, &["bad", "x", "y"], way);
                assert_eq!(told.tasks, failed, "{name}");
                let policy = Policy { bad_nodes: off, ..Policy::default() };
                assert_eq!(tell(policy, 0, good, &["bad"], way).tasks, failed, "{name}");
            }
        }
    }
}

/// What a program has done is done for good, and where it cannot begin, nothing was done.
#[test]
fn a_bad_node_makes_nothing_begin_again_that_never_restarts() {
    let never = || GroupSpec { restart: Restart::Never, completions: Some(6), ..spec("g", 6) };
    for (name, way, reason) in KINDS {
        let mut run = Run::new(policy(), vec![never()]);
        let told = place(&mut run, &["a", "b", "c"], &["bad"], way);
        assert_eq!(told.avoided, ["bad"], "{name}");
        let n_done = match reason.budget() {
            Some(Budget::App) => 3,
            // One end alone is no pattern yet.
            _ if name != "is rejected" => 1,
            _ => 0,
        };
        let at_fault = told.losses.iter().filter(|loss| loss.2 != Some(Budget::Cluster));
        assert_eq!(at_fault.count(), n_done, "{name}: {:?}", told.losses);
        let want = 6 - u32::try_from(n_done).unwrap();
        assert_eq!((run.group("g").target, run.group("g").running), (want, want), "{name}");
        let mut next = restart(run, never());
        assert_no_end(&mut next);
        assert_eq!(next.group("g").running, want, "{name}");
    }
}

/// The other node has no room.
#[test]
fn a_bad_node_is_used_again_if_there_is_no_other() {
    let mut run = Run::new(Policy::default(), vec![spec("g", 2)]);
    run.take();
    run.created(&[1, 2]);
    run.watch(&[1], |pod| pod.node = Some("a".into()));
    run.watch(&[1], |pod| (pod.phase, pod.container) = (Phase::Running, Running));
    run.now += 1_000;
    run.watch(&[2], |pod| pod.node = Some("bad".into()));
    run.watch(&[2], does_not_fit);
    // Twice as long each time: the node may be bad for good.
    for minutes in [5, 10, 20, 30, 5] {
        let mut waits_since = None;
        while run.now < 24 * 60 * MINUTE_MS {
            let created = run.take().into_iter().find_map(|action| match action {
                Action::Create { id, overrides, .. } => Some((id.0, overrides.avoid.to_vec())),
                _ => None,
            });
            if let Some((id, avoid)) = created {
                run.created(&[id]);
                match (avoid.is_empty(), waits_since) {
                    (true, None) => {
                        run.now += 1_000;
                        run.watch(&[id], |pod| pod.node = Some("bad".into()));
                        run.watch(&[id], does_not_fit);
                    }
                    (true, Some(since)) => {
                        let waited_ms: u64 = run.now - since;
                        // It is bad for 30 minutes, and waited for a minute less.
                        assert_eq!((waited_ms / MINUTE_MS).min(29), minutes.min(29));
                        run.watch(&[id], |pod| pod.node = Some("bad".into()));
                        run.watch(&[id], does_not_fit);
                        break;
                    }
                    (false, _) => {
                        assert_eq!((avoid, waits_since), (vec!["bad".to_owned()], None));
                        run.watch(&[id], is_unschedulable);
                        waits_since = Some(run.now);
                    }
                }
            }
            let next = run.core.next_deadline().map_or(u64::MAX, |at| at.0);
            run.now = next.clamp(run.now + 1, run.now + MINUTE_MS);
            run.list();
        }
        assert!(run.now < 24 * 60 * MINUTE_MS, "{minutes}");
    }
}

#[test]
fn what_happens_on_several_nodes_is_the_applications_crash_loop() {
    let app = |told: &Told| told.losses.iter().filter(|l| l.2 == Some(Budget::App)).count();
    // Nothing lives anywhere.
    for bad in [&["x"][..], &["x", "y"]] {
        let told = play(Policy::default(), 2, &[], bad, (Some(300), exits));
        let is_loop = matches!(
            told.verdict,
            Some(RunVerdict::BudgetExhausted {
                budget: Budget::App,
                why: Exhaustion::CrashLoop { .. } | Exhaustion::Losses
            })
        );
        assert!(is_loop && told.avoided.is_empty(), "{bad:?}: {told:?}");
    }
    // One lives, and whoever else comes dies: after the first node nobody else is blamed.
    let told = play(Policy::default(), 4, &["a"], &["x", "y", "z"], (Some(300), exits));
    assert!(app(&told) >= 11 && told.avoided.len() <= 1, "{told:?}");
    assert!(told.verdict.is_some(), "{told:?}");
    let on_every_node = play(Policy::default(), 2, &[], &["x", "y"], (None, asks_for_too_much));
    assert!(on_every_node.losses.iter().all(|loss| loss.1 == LossReason::ConfigError));
}

#[test]
fn most_of_a_run_lives_so_no_budget_ends_it() {
    // On several nodes, so the application is to blame.
    let bad = ["v", "w", "x", "y", "z"];
    for (policy, is_ended) in [
        (Policy::default(), false),
        (Policy { failures_app: Limit::Max(10), ..Policy::default() }, true),
    ] {
        let told = play(policy, 4, &["a", "b", "c"], &bad, (Some(300), exits));
        assert_eq!(told.verdict.is_some(), is_ended, "{told:?}");
        assert!(told.losses.len() > 10, "{told:?}");
    }
}

/// What has no room is not ill.
#[test]
fn most_of_those_that_have_room_live_so_no_budget_ends_the_run() {
    let bad = ["v", "w", "x", "y", "z"];
    for room in [Room::Quota(4), Room::Nodes(4)] {
        for (good, is_ended) in [(&["a", "b", "c"][..], false), (&["a", "b"], true)] {
            let mut run = Run::new(Policy::default(), vec![spec("g", 6)]);
            let told = place_in(&mut run, room, good, &bad, (Some(300), exits));
            let what = format!("{room:?} {good:?}: {} losses", told.losses.len());
            assert_eq!(told.verdict.is_some(), is_ended, "{what} {:?}", told.verdict);
            assert!(told.losses.len() > 10, "{what}");
        }
    }
}

#[test]
fn a_number_of_the_user_is_obeyed() {
    let policy = Policy { failures_app: Limit::Max(1_000), ..Policy::default() };
    let told = play(policy, 2, &[], &["x"], (Some(300), |pod| end_with(3)(pod)));
    assert_eq!(told.verdict, None, "{} losses", told.losses.len());
    // Eighty are allowed, so it is not the number.
    let told = play(Policy::default(), 40, &[], &["x"], (Some(300), |pod| end_with(3)(pod)));
    let why = Exhaustion::CrashLoop { group: "g".into(), n_tries: 6 };
    let want = RunVerdict::BudgetExhausted { budget: Budget::App, why };
    assert_eq!((told.verdict, told.losses.len() < 80), (Some(want), true));
}

/// Ends that the application did not cause, and that go on for ever.
#[test]
fn what_repeats_for_ever_can_end_the_run() {
    let deleted = |pod: &mut Pod| pod.deleting = true;
    let unknown = |pod: &mut Pod| {
        (pod.phase, pod.container) = (Phase::Failed, Ended);
        pod.end = Some(Box::default());
    };
    let done = |pod: &mut Pod| end_with(0)(pod);
    for (way, reason) in [
        ((Some(2 * MINUTE_MS), done as fn(&mut Pod)), LossReason::Completed),
        ((Some(2 * MINUTE_MS), deleted), LossReason::Deleted),
        ((Some(2 * MINUTE_MS), unknown), LossReason::Unknown),
    ] {
        let policy = Policy { failures_cluster: Limit::Max(5), ..Policy::default() };
        let told = play(policy, 1, &[], &["x"], way);
        let want = RunVerdict::BudgetExhausted { budget: Budget::Cluster, why: Exhaustion::Losses };
        assert_eq!(told.verdict, Some(want), "{reason:?}");
        assert_eq!(told.losses, vec![("x".to_owned(), reason, Some(Budget::Cluster)); 6]);
    }
}
