//! Waiting on real nodes. A check starts kubectl, which takes 0.1 s of a core. Without a pause between
//! two checks, eight scenarios take both cores of a small machine, and kubelets report so late that their
//! nodes become `NotReady`.

use std::fmt::Display;
use std::time::Duration;

use crate::support::wait::{stays_true_every, wait_value_every};

/// The interval between two checks.
const STEP: Duration = Duration::from_secs(1);

/// Repeats `look` until it returns a value. An `Err` describes the state; the last one is in the panic.
#[track_caller]
pub fn wait_value<T, E: Display>(
    limit: Duration,
    what: &str,
    look: impl FnMut() -> Result<T, E>,
) -> T {
    wait_value_every(STEP, limit, what, look)
}

/// Repeats `look` until it returns true.
#[track_caller]
pub fn wait_for(limit: Duration, what: &str, mut look: impl FnMut() -> bool) {
    wait_value(limit, what, || if look() { Ok(()) } else { Err("not yet") });
}

/// Checks for the whole of `span` that `look` stays true.
#[track_caller]
pub fn stays_true(span: Duration, what: &str, look: impl FnMut() -> bool) {
    stays_true_every(STEP, span, what, look);
}
