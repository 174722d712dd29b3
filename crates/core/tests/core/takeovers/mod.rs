//! All states of small models: the Lease with two posse, and the record with takeovers at every step. The decisions are
//! those of the core.

#![allow(clippy::unwrap_used)]

mod lease;
mod record;

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Debug, Write as _};
use std::hash::Hasher as _;

/// A state of a model.
trait Model: Clone {
    /// All that decides what can happen from here on.
    fn key(&self) -> impl Debug;

    /// The states after this one, each with what has happened; or what is wrong.
    fn next(&self) -> Result<Vec<(String, Self)>, String>;
}

/// Hashes what is printed.
struct Fingerprint(DefaultHasher);

impl fmt::Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

fn fingerprint(state: &impl Debug) -> u64 {
    let mut hash = Fingerprint(DefaultHasher::new());
    write!(hash, "{state:?}").unwrap();
    hash.0.finish()
}

/// Visits all states, the nearest first. Fails with the shortest way to what is wrong.
#[track_caller]
fn explore<M: Model>(start: M) -> usize {
    let mut seen = HashSet::from([fingerprint(&start.key())]);
    // From which state, and by what.
    let mut ways = vec![(0, String::new())];
    let mut level = vec![(0, start)];
    while !level.is_empty() {
        let mut below = Vec::new();
        for (at, state) in level {
            let next = state.next().unwrap_or_else(|wrong| panic!("{wrong}:{}", way(&ways, at)));
            for (what, state) in next {
                if seen.insert(fingerprint(&state.key())) {
                    below.push((ways.len(), state));
                    ways.push((at, what));
                }
            }
        }
        level = below;
    }
    ways.len()
}

fn way(ways: &[(usize, String)], mut at: usize) -> String {
    let mut steps = Vec::new();
    while at > 0 {
        steps.push(format!("\n  {}", ways[at].1));
        at = ways[at].0;
    }
    steps.into_iter().rev().collect()
}
