//! Waits for changes of pods.

use std::io::{BufRead as _, Read as _};
use std::thread;
use std::time::{Duration, Instant};

use posse_core::machines::retry::{RetryLimit, RetryRule};
use posse_kube::api::objects::{Kind, Objects};

/// While the state cannot be read: what is followed may run for days, and its server be away for hours.
pub(super) const READ_RETRIES: RetryRule =
    RetryRule { delay_ms: 1_000, delay_ms_max: 10_000, limit: RetryLimit::Never };
/// How long to wait if nothing else can change, in seconds.
pub(super) const WATCH_S: u32 = 30;
/// Changes within this time are handled together.
const BATCH_TIME: Duration = Duration::from_millis(100);
/// The shortest time without a change, also if watches fail at once.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest line of a watch that is read, in bytes.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Waits until a pod that the selector matches may have changed since `version`, for about `watch_s`
/// seconds at most. True unless nothing has changed.
pub(super) fn wait_for_change(
    objects: &Objects,
    selector: &str,
    version: &str,
    watch_s: u32,
) -> bool {
    let watched_at = Instant::now();
    let is_changed = objects.watch(Kind::Pod, selector, version, watch_s).map(|mut stream| {
        let mut line = Vec::new();
        let mut reader = stream.reader().take(LINE_BYTES_MAX);
        reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0)
    });
    match &is_changed {
        Ok(true) => thread::park_timeout(BATCH_TIME),
        // The watch ended without a change. If it ends at once, avoid a busy loop.
        Ok(false) => thread::park_timeout(PAUSE.saturating_sub(watched_at.elapsed())),
        Err(refusal) => {
            log::debug!("no watch of the pods: {refusal}");
            thread::park_timeout(PAUSE);
        }
    }
    !matches!(is_changed, Ok(false))
}
