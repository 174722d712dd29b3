//! The core against a simulated cluster in virtual time. Each of many seeds is a run with
//! faults, a phase without faults, and a stop. `SIM_SEED=n` reruns one seed with its whole trace,
//! `SIM_SEEDS=n` sets the number of seeds.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod api;
mod check;
mod cluster;
mod driver;
mod faults;
mod groups;
mod impostors;
mod indexes;
mod losses;
mod node;
mod ranks;
mod restarts;
mod server;
mod tasks;
mod trace;
mod work;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use self::check::CheckResult;
use self::faults::Profile;
use self::world::World;
use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::model::command::{Command, GroupChange, GroupCommand};
use posse_core::model::ids::GroupName;
use posse_core::model::settings::{GroupSpec, Limit, Policy};

const SEEDS: u64 = 100;
const TRACE_LINES: usize = 60;
/// After so many failures no further seed is played.
const FAILURES_MAX: usize = 20;
const MINUTE_MS: u64 = 60_000;
/// Seeds that once failed.
const REGRESSIONS: &[u64] = &[
    1722, 1986, 2649, 3067, 4947, 5348, 7361, 8688, 11734, 15572, 18102, 19385, 19562, 29024,
    41584, 46219, 85681,
];
/// Seeds that once failed in a world with start and node problems.
const NODE_FAULT_REGRESSIONS: &[u64] = &[506, 692, 863, 1738, 2477, 6544, 10910];
/// Seeds that once failed in a world that has impostors and server faults, too.
const IMPOSTOR_REGRESSIONS: &[u64] =
    &[545, 904, 1562, 1649, 1903, 2233, 2276, 3505, 5678, 7628, 11399, 14301];
/// Seeds that once failed in the world that `many_seeds` gives them.
const CUT_REGRESSIONS: &[u64] = &[1531, 1722, 1986, 2649];
/// Seeds that once failed in a world of groups whose work ends.
const WORK_REGRESSIONS: &[u64] = &[
    360, 1104, 1426, 1734, 1834, 1988, 1995, 2181, 2203, 2266, 2357, 3707, 24750, 25373, 26698,
    42552, 43966,
];
/// Seeds that once failed in a world of ranks.
const RANK_REGRESSIONS: &[u64] = &[7255, 7809, 37460, 45207];
/// Seeds that once failed in a world of groups that wait for slots.
const SLOT_REGRESSIONS: &[u64] = &[2172];
/// Seeds that once failed in a world of tasks.
const TASK_REGRESSIONS: &[u64] = &[610, 2922, 7136, 9827, 13654, 21046, 28591, 44520, 46420];
/// The same with a record.
const RECORDED_TASK_REGRESSIONS: &[u64] = &[5890, 7284, 12906, 16244, 18714];
/// Seeds that once failed with drivers that follow each other.
const RESTART_REGRESSIONS: &[u64] = &[648];

fn run(seed: u64) -> CheckResult {
    // Two in three seeds have start and node problems, too.
    let has_node_faults = !REGRESSIONS.contains(&seed) && !seed.is_multiple_of(3);
    let is_regression = REGRESSIONS.contains(&seed) || NODE_FAULT_REGRESSIONS.contains(&seed);
    // And one in four has a group that never starts, or a server that is silent for a time.
    let has_server_faults = !is_regression && seed % 4 == 1;
    // And one in five has a watch that is cut each minute, or executors that end at once.
    let has_cuts = !is_regression && !IMPOSTOR_REGRESSIONS.contains(&seed) && seed % 5 == 2;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let world = if has_node_faults { World::with_node_faults(seed) } else { World::new(seed) };
        let world = if is_regression { world } else { world.with_impostors(seed) };
        let world = if has_server_faults { world.with_server_faults(seed) } else { world };
        let mut world = if has_cuts { world.with_cuts_and_instant_ends(seed) } else { world };
        world.run()
    }));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("?")))
    })
}

/// The failure of a seed and its last steps.
fn explain(seed: u64, lines_max: usize) -> String {
    trace::begin(lines_max);
    let outcome = run(seed);
    let lines = trace::end().join("\n");
    format!("{lines}\nseed {seed}: {outcome:?}")
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// One in `part` of the seeds, or the one that the environment names.
pub(super) fn part_of_seeds(part: u64) -> Range<u64> {
    let seeds = number("SIM_SEEDS").unwrap_or(SEEDS).div_ceil(part);
    number("SIM_SEED").map_or(0..seeds, |seed| seed..seed + 1)
}

#[test]
fn seeds_that_once_failed() {
    let seeds =
        [REGRESSIONS, NODE_FAULT_REGRESSIONS, IMPOSTOR_REGRESSIONS, CUT_REGRESSIONS].concat();
    for seed in seeds {
        assert_eq!(run(seed), Ok(()), "\n{}", explain(seed, TRACE_LINES));
    }
}

#[test]
fn many_seeds() {
    if let Some(seed) = number("SIM_SEED") {
        eprintln!("{}", explain(seed, 1_000_000));
        assert_eq!(run(seed), Ok(()));
        return;
    }
    let seeds = number("SIM_SEEDS").unwrap_or(SEEDS);
    let (next, n_failed) = (AtomicU64::new(0), AtomicUsize::new(0));
    let n_threads = std::thread::available_parallelism().map_or(2, usize::from);
    let failures: Vec<(u64, String)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..n_threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut failures = Vec::new();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds || n_failed.load(Ordering::Relaxed) >= FAILURES_MAX {
                            return failures;
                        }
                        if let Err(what) = run(seed) {
                            n_failed.fetch_add(1, Ordering::Relaxed);
                            eprintln!("seed {seed}: {what}");
                            failures.push((seed, what));
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    if let Some((seed, _)) = failures.iter().min() {
        panic!("{} seeds failed; the first:\n{}", failures.len(), explain(*seed, TRACE_LINES));
    }
}

/// Drivers of one application that follow each other or run at the same time.
#[test]
fn drivers_take_over_from_each_other() {
    for seed in part_of_seeds(10).chain(RESTART_REGRESSIONS.iter().copied()) {
        let outcome = catch_unwind(AssertUnwindSafe(|| restarts::play(seed)));
        assert!(outcome.is_ok(), "seed {seed}: drivers do not take over as they should");
    }
}

fn play_again(seeds: &[u64], world: impl Fn(u64) -> CheckResult) {
    seeds.iter().for_each(|&seed| assert_eq!(world(seed), Ok(()), "seed {seed}"));
}

/// Plays a part of the seeds; the first that fails is played again with its trace.
fn play_each(part: u64, world: impl Fn(u64) -> CheckResult) {
    let play = |seed| {
        let outcome = catch_unwind(AssertUnwindSafe(|| world(seed)));
        outcome.unwrap_or_else(|_| Err("panic".to_owned()))
    };
    let failures = part_of_seeds(part).filter_map(|seed| Some((seed, play(seed).err()?)));
    let failures: Vec<(u64, String)> = failures.take(FAILURES_MAX).collect();
    if let Some((seed, _)) = failures.first() {
        trace::begin(number("SIM_SEED").map_or(TRACE_LINES, |_| 1_000_000));
        let again = play(*seed);
        let trace = trace::end().join("\n");
        let all: Vec<String> =
            failures.iter().map(|(seed, what)| format!("seed {seed}: {what}")).collect();
        panic!("{trace}\nseed {seed}: {again:?}\nfailed:\n{}", all.join("\n"));
    }
}

/// Groups whose work ends: all of it is done, and no part of it twice.
#[test]
fn work_ends() {
    play_each(4, |seed| World::with_work(seed).run_work());
}

/// Creates of an earlier process that took effect late.
#[test]
fn work_that_once_was_done_twice_ends() {
    play_again(WORK_REGRESSIONS, |seed| World::with_work(seed).run_work());
}

/// A task was opened again while the create for its last attempt could still take effect, or its last pod stayed.
#[test]
fn a_task_that_once_ran_twice_runs_once() {
    play_again(TASK_REGRESSIONS, |seed| World::with_tasks(seed).run_tasks());
    play_again(RECORDED_TASK_REGRESSIONS, |seed| World::with_recorded_tasks(seed).run_tasks());
}

/// Groups with stable slots: each slot has one executor, and none is above the target.
#[test]
fn ranks_are_stable() {
    play_each(5, |seed| World::with_ranks(seed).run());
}

/// Late pods of a slot or an attempt, and an attempt that failed twice.
#[test]
fn ranks_that_once_were_unstable_are_stable() {
    play_again(RANK_REGRESSIONS, |seed| World::with_ranks(seed).run());
}

/// Groups that wait for slots: no wait outlives its time.
#[test]
fn slots_are_waited_for() {
    play_each(20, |seed| World::with_slot_waits(seed).run());
}

/// A restore of etcd brought back a pod that had vanished.
#[test]
fn a_slot_that_once_had_two_executors_has_one() {
    play_again(SLOT_REGRESSIONS, |seed| World::with_slot_waits(seed).run());
}

/// Each task is told as ended once, none is lost, and none runs twice at the same time.
#[test]
fn tasks_end_once() {
    play_each(20, |seed| World::with_tasks(seed).run_tasks());
}

/// What was acknowledged is known for ever, and what is done is never begun again, also without the driver's pod.
#[test]
fn recorded_tasks_end_once() {
    play_each(20, |seed| World::with_recorded_tasks(seed).run_tasks());
}

#[test]
fn recorded_work_ends() {
    play_each(8, |seed| World::with_recorded_work(seed).run_work());
}

/// A world without faults: one group `g`, the default policy.
fn quiet_world(seed: u64, target: u32, change: impl FnOnce(&mut Profile)) -> World {
    let policy = Policy { log_lines: 3, failures_start: Limit::Off, ..Policy::default() };
    quiet_world_with(seed, target, policy, change)
}

/// The same with another policy.
fn quiet_world_with(
    seed: u64,
    target: u32,
    policy: Policy,
    change: impl FnOnce(&mut Profile),
) -> World {
    let mut rng = Rng::new(seed);
    let mut profile = Profile { batch_ms: 1, stuck: 0, ..Profile::draw(&mut rng).calm() };
    change(&mut profile);
    let group = GroupSpec {
        target,
        from_file: true,
        pod: Some(Arc::default()),
        ..GroupSpec::bare(GroupName::from("g"))
    };
    let mut world = World::with(rng, profile, policy, vec![group]);
    world.start();
    world
}

fn set_target(world: &mut World, target: u32) {
    let now = Millis(world.now);
    let core = world.core.as_mut().unwrap();
    assert_eq!(core.set_target(&GroupName::from("g"), target, now), Some(target));
    world.wake();
}

fn n_live(world: &World) -> usize {
    world.cluster.pods.values().filter(|s| !cluster::is_over(&s.pod)).count()
}

#[test]
fn a_full_quota_is_probed_and_used_when_it_has_room() {
    for seed in part_of_seeds(75) {
        let mut world = quiet_world(seed, 10, |profile| profile.quota = Some(5));
        world.run_until(60 * MINUTE_MS).unwrap();
        assert_eq!(n_live(&world), 5, "seed {seed}");
        assert!(world.check.n_posts <= 75, "seed {seed}: {} POSTs", world.check.n_posts);
        world.cluster.quota = None;
        world.run_until(61 * MINUTE_MS + 1_000).unwrap();
        assert_eq!(n_live(&world), 10, "seed {seed}");
    }
}

#[test]
fn a_pod_that_goes_wakes_the_quota_at_once() {
    let mut world = quiet_world(1, 10, |profile| profile.quota = Some(5));
    world.run_until(60 * MINUTE_MS).unwrap();
    let uid = world.cluster.pods.values().next().unwrap().pod.uid.clone();
    world.cluster.remove(&uid);
    let posts = world.check.n_posts;
    let now = world.now;
    world.run_until(now + 2_000).unwrap();
    assert_eq!(n_live(&world), 5);
    assert!(world.check.n_posts <= posts + 5, "{} POSTs", world.check.n_posts - posts);
}

#[test]
fn a_throttling_server_is_asked_less_and_less() {
    for seed in part_of_seeds(75) {
        let mut world = quiet_world(seed, 32, |_| {});
        world.run_until(MINUTE_MS).unwrap();
        assert_eq!(n_live(&world), 32, "seed {seed}");
        (world.profile.throttle, world.check.n_posts) = (100, 0);
        set_target(&mut world, 128);
        world.run_until(3 * MINUTE_MS).unwrap();
        assert!(world.check.n_posts <= 80, "seed {seed}: {} POSTs", world.check.n_posts);
        world.profile.throttle = 0;
        world.run_until(5 * MINUTE_MS).unwrap();
        assert_eq!(n_live(&world), 128, "seed {seed}");
    }
}

#[test]
fn a_template_that_is_refused_costs_a_handful_of_requests() {
    let mut world = quiet_world(3, 300, |profile| profile.refuse_template = 100);
    world.run_until(60 * MINUTE_MS).unwrap();
    assert!(world.check.n_posts <= 20, "{} POSTs", world.check.n_posts);
    world.profile.refuse_template = 0;
    world.run_until(66 * MINUTE_MS).unwrap();
    assert_eq!(n_live(&world), 300);
}

#[test]
fn a_crash_loop_slows_its_group_down() {
    for seed in part_of_seeds(75) {
        let mut world = quiet_world(seed, 10, |profile| {
            (profile.die, profile.die_ms, profile.only_crashes) = (100, 10, true);
        });
        world.run_until(60 * MINUTE_MS).unwrap();
        assert!(world.check.n_posts <= 60, "seed {seed}: {} POSTs", world.check.n_posts);
        world.profile.die = 0;
        world.run_until(67 * MINUTE_MS).unwrap();
        assert_eq!(n_live(&world), 10, "seed {seed}");
    }
}

#[test]
fn an_image_that_cannot_be_pulled_costs_a_handful_of_pods() {
    for seed in part_of_seeds(75) {
        let mut world = quiet_world(seed, 10, |profile| profile.node_faults.image_error = 100);
        world.run_until(60 * MINUTE_MS).unwrap();
        assert!(world.check.n_posts <= 25, "seed {seed}: {} POSTs", world.check.n_posts);
        world.profile.node_faults.image_error = 0;
        world.run_until(68 * MINUTE_MS).unwrap();
        assert_eq!(n_live(&world), 10, "seed {seed}");
    }
}

/// On half the nodes no executor starts: the other nodes get the executors.
#[test]
fn a_node_with_failed_starts_is_avoided() {
    for seed in part_of_seeds(75) {
        let mut world = quiet_world(seed, 8, |profile| {
            (profile.node_faults.n_nodes, profile.node_faults.bad_node) = (6, Some(2));
        });
        world.run_until(60 * MINUTE_MS).unwrap();
        let on_it = world.cluster.pods.values().filter(|s| s.pod.node.as_deref() == Some("n2"));
        assert_eq!((n_live(&world), on_it.count()), (8, 0), "seed {seed}");
    }
}

#[test]
fn many_failures_cause_few_log_reads() {
    for seed in 0..3 {
        let mut world = quiet_world(seed, 120, |profile| (profile.die, profile.die_ms) = (100, 10));
        world.run_until(2 * MINUTE_MS).unwrap();
        let n = world.check.n_app_losses(u64::MAX, world.now);
        assert!(n > 25, "seed {seed}: {n} losses, no storm");
    }
}

/// The watch reports a pod long after the pod has started: only a new LIST shows whether a start
/// failed.
#[test]
fn a_start_is_judged_by_a_new_list() {
    for seed in part_of_seeds(75) {
        let policy = Policy { start_timeout_ms: 10_000, ..Policy::default() };
        let mut world = quiet_world_with(seed, 10, policy, |profile| {
            (profile.watch_gap_ms, profile.poll_ms) = (60_000, 3_600_000);
        });
        world.run_until(10 * MINUTE_MS).unwrap();
        assert_eq!((n_live(&world), world.check.n_posts), (10, 10), "seed {seed}");
    }
}

/// Both calls come before the next turn, so no plan sees the target of 0.
#[test]
fn a_group_created_again_after_its_deletion_gets_new_executors() {
    for seed in part_of_seeds(75) {
        let mut world = quiet_world(seed, 5, |_| {});
        world.run_until(10 * MINUTE_MS).unwrap();
        let old: Vec<_> = world.cluster.pods.keys().cloned().collect();
        assert_eq!((n_live(&world), old.len()), (5, 5), "seed {seed}");
        let name = GroupName::from("g");
        world.group_call(Command::Group(name.clone(), GroupCommand::Delete)).unwrap();
        let change = GroupChange { target: Some(5), ..GroupChange::default() };
        world.group_call(Command::Group(name, GroupCommand::Put { change })).unwrap();
        world.run_until(20 * MINUTE_MS).unwrap();
        assert_eq!(n_live(&world), 5, "seed {seed}");
        assert!(!old.iter().any(|uid| world.cluster.pods.contains_key(uid)), "seed {seed}");
    }
}
