//! The annotation on a draining executor: why it is removed, and when its drain period ends.

use std::time::SystemTime;

use jiff::Timestamp;

use crate::time::Epoch;
use posse_base::time::Millis;
use posse_core::model::event::DeleteCause;
use posse_core::model::pod::Draining;

/// Separates cause and time.
const UNTIL: &str = " until ";

/// The annotation's value: `scaled_down`, or `scaled_down until 2026-01-01T00:00:00.000Z`.
pub fn value(draining: Draining) -> String {
    let mut text = draining.cause.as_str().to_owned();
    if let Some(ms) = draining.until_unix_ms {
        text.push_str(UNTIL);
        text.push_str(&Epoch(SystemTime::UNIX_EPOCH).rfc3339(Millis(ms)));
    }
    text
}

/// Reads the value. An unknown value still means that the executor drains; without a readable time
/// its drain period is over.
pub fn parse(text: &str) -> Draining {
    let (cause, until) = text.split_once(UNTIL).map_or((text, None), |(c, at)| (c, Some(at)));
    let known = [DeleteCause::Cancelled, DeleteCause::Killed];
    let known = known.into_iter().find(|known| known.as_str() == cause);
    let until = until.and_then(|at| at.parse::<Timestamp>().ok());
    Draining {
        cause: known.unwrap_or(DeleteCause::ScaledDown),
        until_unix_ms: until.and_then(|at| u64::try_from(at.as_millisecond()).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back() {
        use DeleteCause::{Cancelled, Killed, ScaledDown};
        for (text, cause, until_unix_ms) in [
            ("scaled_down", ScaledDown, None),
            ("killed", Killed, None),
            ("cancelled", Cancelled, None),
            ("killed until 2026-01-01T00:00:01.500Z", Killed, Some(1_767_225_601_500)),
            ("scaled_down until 1970-01-01T00:00:00.000Z", ScaledDown, Some(0)),
        ] {
            let draining = Draining { cause, until_unix_ms };
            assert_eq!((value(draining), parse(text)), (text.to_owned(), draining));
        }
    }

    #[test]
    fn unknown_values_mean_an_expired_drain_period() {
        for text in ["", "true", "stopped", "scaled_down until later", "x until -1"] {
            let now = Draining { cause: DeleteCause::ScaledDown, until_unix_ms: None };
            assert_eq!(parse(text), now, "{text:?}");
        }
    }
}
