//! Waiting for a condition with a deadline; a failure shows the last state.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use super::posse::assert_all_live;

/// The timeout of a test step; much longer than any step takes, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// True if two RFC 3339 times are one moment. posse counts wall times from its clock's current
/// reading, so a moment that is written twice may differ by some milliseconds.
pub fn is_same_time(one: &str, other: &str) -> bool {
    let ms = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_millisecond();
    ms(one).abs_diff(ms(other)) < 1_000
}

/// The interval between two checks.
const STEP: Duration = Duration::from_millis(20);

/// Repeats `look` until it returns a value. An `Err` describes the state; the last one is in the
/// panic.
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

/// Repeats `look` until it returns true.
#[track_caller]
pub fn wait_for(limit: Duration, what: &str, mut look: impl FnMut() -> bool) {
    wait_value(limit, what, || if look() { Ok(()) } else { Err("not yet") });
}

/// Checks for the whole of `span` that `look` stays true.
#[track_caller]
pub fn stays_true(span: Duration, what: &str, mut look: impl FnMut() -> bool) {
    let started = Instant::now();
    while started.elapsed() < span {
        assert_all_live();
        assert!(look(), "{what}: no longer so after {} ms", started.elapsed().as_millis());
        thread::sleep(STEP * 5);
    }
}
