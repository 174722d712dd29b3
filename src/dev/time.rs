//! Owns moments as API objects write them: RFC 3339 in UTC, whole seconds. Reads no clock itself.

use std::time::SystemTime;

use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};

/// A moment as `metadata.creationTimestamp` writes it.
pub(crate) fn text(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
    shown(at)
}

/// A moment as the `Date` header writes it.
pub(crate) fn http_date(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
    DateTimePrinter::new().timestamp_to_rfc9110_string(&at).unwrap_or_default()
}

/// The text of a moment `seconds` after (or before) the one in `text`; unchanged where that is no
/// moment.
pub(crate) fn shifted(text: &str, seconds: i64) -> String {
    let moved = text
        .parse::<Timestamp>()
        .ok()
        .and_then(|at| at.checked_add(SignedDuration::from_secs(seconds)).ok());
    moved.map_or_else(|| text.to_owned(), shown)
}

/// The seconds since 1970 of a moment; 0 where the text is none.
pub(crate) fn seconds(text: &str) -> i64 {
    text.parse::<Timestamp>().map_or(0, Timestamp::as_second)
}

/// A moment in UTC with six digits after the point; unchanged where the text is no moment.
pub(crate) fn micros(text: &str) -> String {
    let at = text.parse::<Timestamp>().ok();
    at.map_or_else(|| text.to_owned(), |at| format!("{at:.6}"))
}

/// The whole seconds from one moment to another; none where either is no moment.
pub(crate) fn seconds_between(from: &str, to: &str) -> Option<i64> {
    let (from, to): (Timestamp, Timestamp) = (from.parse().ok()?, to.parse().ok()?);
    Some(to.duration_since(from).as_secs())
}

/// A moment to the nanosecond, always of one length: texts are in the order of time.
pub(crate) fn precise(at: SystemTime) -> String {
    precisely(Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// The same of a moment that a client wrote; none where it is no moment.
pub(crate) fn precise_of(text: &str) -> Option<String> {
    text.parse::<Timestamp>().ok().map(precisely)
}

fn precisely(at: Timestamp) -> String {
    format!("{at:.9}")
}

fn shown(at: Timestamp) -> String {
    format!("{at:.0}")
}
