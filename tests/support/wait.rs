//! Waiting for a condition with a deadline; says what it waited for and how things stood at the end.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use super::posse::assert_all_live;

/// What an ordinary step may take, on a machine that is busy with everything else.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// How often a condition is looked at.
const STEP: Duration = Duration::from_millis(20);

/// Tries until `look` gives a value. An `Err` says how things stand; the last one is in the panic.
#[track_caller]
pub fn wait_value<T, E: Display>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T, E>,
) -> T {
    let started = Instant::now();
    loop {
        assert_all_live();
        match look() {
            Ok(value) => return value,
            Err(stand) if started.elapsed() >= limit => {
                panic!("waited {} s for {what}; at the end: {stand}", limit.as_secs())
            }
            Err(_) => thread::sleep(STEP),
        }
    }
}

/// Tries until `look` is true.
#[track_caller]
pub fn wait_for(limit: Duration, what: &str, mut look: impl FnMut() -> bool) {
    wait_value(limit, what, || if look() { Ok(()) } else { Err("not yet") });
}

/// Checks for the whole of `span` that `look` stays true: for what must not happen.
#[track_caller]
pub fn stays_true(span: Duration, what: &str, mut look: impl FnMut() -> bool) {
    let started = Instant::now();
    while started.elapsed() < span {
        assert_all_live();
        assert!(look(), "{what}: no longer so after {} ms", started.elapsed().as_millis());
        thread::sleep(STEP * 5);
    }
}
