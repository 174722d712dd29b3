//! Retries of the clients: which errors are retried, and for how long without progress.

use std::io::Read;
use std::thread;
use std::time::Duration;

use posse_core::machines::retry::{RetryLimit, RetryRule};
use posse_kube::api::retry::Retries;
use posse_kube::http::Stream;
use posse_kube::http::transfer::TransferError;
use posse_wire::control::parse_error;

/// How much of a short response is read: an id and a secret, or an error.
const ANSWER_BYTES_MAX: u64 = 16 << 10;
const DELAY_MS: u64 = 300;
const DELAY_MS_MAX: u64 = 10_000;

/// The retries of one transfer, which gives up after this time without progress.
pub(super) fn retries(timeout_ms: u64) -> Retries {
    Retries::new(RetryRule {
        delay_ms: DELAY_MS,
        delay_ms_max: DELAY_MS_MAX,
        limit: RetryLimit::TimeMs(timeout_ms),
    })
}

/// Waits before the next try. `retry_after` is the server's `Retry-After`.
///
/// # Errors
/// The time is over; the error contains `why`.
pub(super) fn wait(retries: &mut Retries, (why, retry_after): Retry) -> Result<(), String> {
    let asked_ms = retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    let Some(delay) = retries.on_failure(asked_ms) else {
        return Err(format!("{why}; gave up after {} tries", retries.n_failures()));
    };
    log::warn!("{why}; retrying in {:.1} s", delay.as_secs_f32());
    thread::sleep(delay);
    Ok(())
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
    let of_others = match answer.status {
        413 => {
            "an Ingress or proxy takes no file of this size: raise its limit (ingress-nginx: \
             nginx.ingress.kubernetes.io/proxy-body-size: \"0\")"
        }
        // The stage server's own have an error that can be read.
        502..=504 => {
            "an Ingress or proxy gets no answer from the stage server: it needs TLS to the Service \
             (ingress-nginx: nginx.ingress.kubernetes.io/backend-protocol: HTTPS)"
        }
        _ => "the stage server refused the request",
    };
    let message = match parse_error(&read_body(answer)) {
        None => of_others.to_owned(),
        Some(bad) => match bad.field {
            Some(field) => format!("{field}: {}", bad.error),
            None => bad.error,
        },
    };
    format!("{message} ({})", answer.status)
}

/// The body of a short answer. If reading fails, the part that was read.
pub(super) fn read_body(answer: &mut Stream) -> Vec<u8> {
    let mut body = Vec::new();
    let _ = answer.reader().take(ANSWER_BYTES_MAX).read_to_end(&mut body);
    body
}
