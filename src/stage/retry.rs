//! Retries of the clients: which errors are retried, and for how long without progress.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use crate::core::model::rng::Rng;
use crate::core::policy::backoff::delay_ms;
use crate::kube::http::Stream;
use crate::kube::http::transfer::TransferError;
use crate::wire::control::parse_error;

/// How much of a short response is read: an id and a secret, or an error.
const ANSWER_BYTES_MAX: u64 = 16 << 10;
const DELAY_MS: u64 = 300;
const DELAY_MS_MAX: u64 = 10_000;

/// The retries of one transfer.
#[derive(Debug)]
pub(super) struct Retries {
    /// Give up after this time without progress.
    timeout: Duration,
    last_progress: Instant,
    n_failures: u32,
    rng: Rng,
}

impl Retries {
    pub(super) fn new(timeout: Duration) -> Self {
        // The seed differs per process, so that pods started together do not retry together.
        let rng = Rng::new(u64::from(std::process::id()));
        Self { timeout, last_progress: Instant::now(), n_failures: 0, rng }
    }

    /// Bytes were transferred: resets the timeout and the backoff.
    pub(super) fn progress(&mut self) {
        self.last_progress = Instant::now();
        self.n_failures = 0;
    }

    /// Waits before the next try. `retry_after` is the server's `Retry-After`.
    ///
    /// # Errors
    /// The timeout is over; the error contains `why`.
    pub(super) fn wait(
        &mut self,
        why: String,
        retry_after: Option<Duration>,
    ) -> Result<(), String> {
        self.n_failures += 1;
        let delay =
            Duration::from_millis(delay_ms(self.n_failures, DELAY_MS, DELAY_MS_MAX, &mut self.rng));
        let delay = retry_after.unwrap_or(delay).min(Duration::from_millis(2 * DELAY_MS_MAX));
        if self.last_progress.elapsed() + delay > self.timeout {
            return Err(format!("{why}; gave up after {} tries", self.n_failures));
        }
        log::warn!("{why}; retrying in {:.1} s", delay.as_secs_f32());
        thread::sleep(delay);
        Ok(())
    }
}

/// Why a try failed, and the server's `Retry-After`.
pub(super) type Retry = (String, Option<Duration>);

/// Returns the answer if its status is one of `wanted`. The inner error is worth a retry, the outer
/// one is not.
pub(super) fn check_answer(
    answer: Result<Stream, TransferError>,
    file: &str,
    wanted: &[u16],
) -> Result<Result<Stream, Retry>, String> {
    match answer {
        Ok(answer) if wanted.contains(&answer.status) => Ok(Ok(answer)),
        Ok(mut answer) => {
            let why = format!("{file}: {}", refusal(&mut answer));
            let is_transient = matches!(answer.status, 408 | 429 | 500 | 502 | 503 | 504);
            if is_transient { Ok(Err((why, answer.retry_after))) } else { Err(why) }
        }
        Err(error) if error.is_permanent => Err(error.to_string()),
        Err(error) => Ok(Err((format!("{file}: {error}"), None))),
    }
}

/// The server's error message and status.
fn refusal(answer: &mut Stream) -> String {
    let message = parse_error(&read_body(answer)).map_or_else(
        || "the stage server refused the request".to_owned(),
        |bad| match bad.field {
            Some(field) => format!("{field}: {}", bad.error),
            None => bad.error,
        },
    );
    format!("{message} ({})", answer.status)
}

/// The body of a short answer. If reading fails, the part that was read.
pub(super) fn read_body(answer: &mut Stream) -> Vec<u8> {
    let mut body = Vec::new();
    let _ = answer.reader().take(ANSWER_BYTES_MAX).read_to_end(&mut body);
    body
}
