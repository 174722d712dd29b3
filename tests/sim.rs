//! The core against a fake cluster in virtual time: thousands of seeds, each a run with faults, a
//! calm, and a stop. `SIM_SEED=n` reruns one with its whole trace, `SIM_SEEDS=n` sets how many.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

#[path = "sim/mod.rs"]
mod parts;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use parts::check::Verdict;
use parts::world::World;

const SEEDS: u64 = 2_000;
const TRACE_LINES: usize = 60;
/// Seeds that once failed.
const REGRESSIONS: &[u64] = &[];

fn run(seed: u64) -> Verdict {
    let outcome = catch_unwind(AssertUnwindSafe(|| World::new(seed).run()));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("?")))
    })
}

/// The failure of a seed with its last steps.
fn explain(seed: u64, lines_max: usize) -> String {
    parts::trace::begin(lines_max);
    let outcome = run(seed);
    let lines = parts::trace::end().join("\n");
    format!("{lines}\nseed {seed}: {outcome:?}")
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn seeds_that_once_failed() {
    for &seed in REGRESSIONS {
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
    let (next, n_failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let n_threads = std::thread::available_parallelism().map_or(2, usize::from);
    let failures: Vec<(u64, String)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..n_threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut failures = Vec::new();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds || n_failed.load(Ordering::Relaxed) > 20 {
                            return failures;
                        }
                        if let Err(what) = run(seed) {
                            n_failed.fetch_add(1, Ordering::Relaxed);
                            failures.push((seed, what));
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    if let Some((seed, _)) = failures.iter().min() {
        for (seed, what) in &failures {
            eprintln!("seed {seed}: {what}");
        }
        panic!("{} seeds failed; the first:\n{}", failures.len(), explain(*seed, TRACE_LINES));
    }
}
