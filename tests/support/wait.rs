//! Waiting for a condition with a deadline; a failure shows the last state.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use posse_testing::Wait;

use super::posse::assert_all_live;

/// The timeout of a test step; much longer than any step takes, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// True if two RFC 3339 times are one moment. posse counts wall times from its clock's current
/// reading, so a moment that is written twice may differ by some milliseconds.
pub fn is_same_time(one: &str, other: &str) -> bool {
    let ms = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_millisecond();
    ms(one).abs_diff(ms(other)) < 1_000
}

/// The first interval between two checks.
const STEP: Duration = Duration::from_millis(20);

/// The longest one.
const STEP_MAX: Duration = Duration::from_millis(500);

/// Repeats `look` until it returns a value. An `Err` describes the state; the last one is in the
/// panic. The longer it takes, the less often it looks: many tests that list pods all the time leave a
/// busy machine no time for what they wait for.
#[track_caller]
pub fn wait_value<T, E: Display>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T, E>,
) -> T {
    let mut step = STEP;
    wait_value_after(limit, what, &mut look, || {
        step = (step * 6 / 5).min(STEP_MAX);
        step
    })
}

/// The same with one interval between two checks.
#[track_caller]
pub fn wait_value_every<T, E: Display>(
    step: Duration,
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T, E>,
) -> T {
    wait_value_after(limit, what, &mut look, || step)
}

#[track_caller]
fn wait_value_after<T, E: Display>(
    limit: Duration,
    what: &str,
    look: &mut dyn FnMut() -> Result<T, E>,
    mut next_step: impl FnMut() -> Duration,
) -> T {
    let mut wait = Wait::new(what, limit);
    loop {
        assert_all_live();
        match look() {
            Ok(value) => return value,
            Err(_) if wait.goes_on() => thread::sleep(next_step()),
            Err(stand) => panic!("waited {} s for {what}; at the end: {stand}", limit.as_secs()),
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
pub fn stays_true(span: Duration, what: &str, look: impl FnMut() -> bool) {
    stays_true_every(STEP * 5, span, what, look);
}

/// The same with another interval between two checks.
#[track_caller]
pub fn stays_true_every(
    step: Duration,
    span: Duration,
    what: &str,
    mut look: impl FnMut() -> bool,
) {
    let started = Instant::now();
    while started.elapsed() < span {
        assert_all_live();
        assert!(look(), "{what}: no longer so after {} ms", started.elapsed().as_millis());
        thread::sleep(step);
    }
}
