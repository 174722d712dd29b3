//! Timestamps in the forms of API objects: RFC 3339 in UTC. Reads no clock.

use std::time::SystemTime;

use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};

/// A timestamp as in `metadata.creationTimestamp`, in whole seconds.
pub(crate) fn text(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
    shown(at)
}

/// A timestamp as in the `Date` header.
pub(crate) fn http_date(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
    DateTimePrinter::new().timestamp_to_rfc9110_string(&at).unwrap_or_default()
}

/// The timestamp `seconds` after (or before) the one in `text`; `text` itself if it is not a
/// timestamp.
pub(crate) fn shifted(text: &str, seconds: i64) -> String {
    let moved = text
        .parse::<Timestamp>()
        .ok()
        .and_then(|at| at.checked_add(SignedDuration::from_secs(seconds)).ok());
    moved.map_or_else(|| text.to_owned(), shown)
}

/// The seconds since 1970; 0 if the text is not a timestamp.
pub(crate) fn seconds(text: &str) -> i64 {
    text.parse::<Timestamp>().map_or(0, Timestamp::as_second)
}

/// A timestamp in UTC with microseconds; `text` itself if it is not a timestamp.
pub(crate) fn micros(text: &str) -> String {
    let at = text.parse::<Timestamp>().ok();
    at.map_or_else(|| text.to_owned(), |at| format!("{at:.6}"))
}

/// The whole seconds between two timestamps; `None` if either is not a timestamp.
pub(crate) fn seconds_between(from: &str, to: &str) -> Option<i64> {
    let (from, to): (Timestamp, Timestamp) = (from.parse().ok()?, to.parse().ok()?);
    Some(to.duration_since(from).as_secs())
}

/// A timestamp with nanoseconds and of fixed length, so that the order of texts is the order of
/// time.
pub(crate) fn precise(at: SystemTime) -> String {
    precisely(Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// The same for a timestamp that a client wrote; `None` if it is not a timestamp.
pub(crate) fn precise_of(text: &str) -> Option<String> {
    text.parse::<Timestamp>().ok().map(precisely)
}

fn precisely(at: Timestamp) -> String {
    format!("{at:.9}")
}

fn shown(at: Timestamp) -> String {
    format!("{at:.0}")
}
