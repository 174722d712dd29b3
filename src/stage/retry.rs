//! Owns which answers a client tries again after, and for how long: as long as something moves, and
//! for a time without.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use crate::core::model::rng::Rng;
use crate::core::policy::backoff::delay_ms;
use crate::kube::http::Stream;
use crate::kube::transfer::TransferError;
use crate::wire::control::parse_error;

/// What is read of an answer: an id and a secret, or some words.
const ANSWER_BYTES_MAX: u64 = 16 << 10;
const DELAY_MS: u64 = 300;
const DELAY_MS_MAX: u64 = 10_000;

/// The tries of one transfer.
#[derive(Debug)]
pub(super) struct Tries {
    /// Without progress it is given up after so long.
    timeout: Duration,
    moved: Instant,
    n_failures: u32,
    rng: Rng,
}

impl Tries {
    pub(super) fn new(timeout: Duration) -> Self {
        // Many pods that start at once are not to try again at once.
        let rng = Rng::new(u64::from(std::process::id()));
        Self { timeout, moved: Instant::now(), n_failures: 0, rng }
    }

    /// Something came through.
    pub(super) fn progress(&mut self) {
        self.moved = Instant::now();
        self.n_failures = 0;
    }

    /// Waits until it is time for another try. Gives `why` back where there is to be none.
    pub(super) fn again(&mut self, why: String, asked: Option<Duration>) -> Result<(), String> {
        self.n_failures += 1;
        let delay =
            Duration::from_millis(delay_ms(self.n_failures, DELAY_MS, DELAY_MS_MAX, &mut self.rng));
        let delay = asked.unwrap_or(delay).min(Duration::from_millis(2 * DELAY_MS_MAX));
        if self.moved.elapsed() + delay > self.timeout {
            return Err(format!("{why}; given up after {} tries", self.n_failures));
        }
        log::warn!("{why}; again in {:.1} s", delay.as_secs_f32());
        thread::sleep(delay);
        Ok(())
    }
}

/// Why a try came to nothing, and how long the server asks to wait before the next.
pub(super) type Again = (String, Option<Duration>);

/// The answer, where its status is one of `wanted`; the inner error where another try may help, the
/// outer one where none will.
pub(super) fn settle(
    answer: Result<Stream, TransferError>,
    file: &str,
    wanted: &[u16],
) -> Result<Result<Stream, Again>, String> {
    match answer {
        Ok(answer) if wanted.contains(&answer.status) => Ok(Ok(answer)),
        Ok(mut answer) => {
            let why = format!("{file}: {}", refusal(&mut answer));
            let is_passing = matches!(answer.status, 408 | 429 | 500 | 502 | 503 | 504);
            if is_passing { Ok(Err((why, answer.retry_after))) } else { Err(why) }
        }
        Err(error) if error.is_lasting => Err(error.to_string()),
        Err(error) => Ok(Err((format!("{file}: {error}"), None))),
    }
}

/// The server's words, and their number.
fn refusal(answer: &mut Stream) -> String {
    let words = parse_error(&said(answer)).map_or_else(
        || "the stage server refuses".to_owned(),
        |bad| match bad.field {
            Some(field) => format!("{field}: {}", bad.error),
            None => bad.error,
        },
    );
    format!("{words} ({})", answer.status)
}

/// A short answer. Where it does not come whole, its status has to do.
pub(super) fn said(answer: &mut Stream) -> Vec<u8> {
    let mut body = Vec::new();
    let _ = answer.reader().take(ANSWER_BYTES_MAX).read_to_end(&mut body);
    body
}
