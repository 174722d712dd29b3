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

/// Visits all states, each as soon as it is seen: few are kept. Fails with the way to what is wrong.
#[track_caller]
fn explore<M: Model>(start: M) -> usize {
    let mut seen = HashSet::from([fingerprint(&start.key())]);
    let mut way: Vec<String> = Vec::new();
    // After how many steps, and the last of them.
    let mut ahead = vec![(0, String::new(), start)];
    while let Some((n_steps, what, state)) = ahead.pop() {
        way.truncate(n_steps);
        way.push(what);
        let next = state.next().unwrap_or_else(|wrong| panic!("{wrong}:{}", way.join("\n  ")));
        for (what, state) in next {
            if seen.insert(fingerprint(&state.key())) {
                ahead.push((n_steps + 1, what, state));
            }
        }
    }
    seen.len()
}
