//! Owns how moments are written: RFC 3339 in UTC with milliseconds. Reads no clock.

use std::time::{Duration, SystemTime};

use crate::core::model::time::Millis;

/// The wall time of `Millis::ZERO`: turns the core's moments into what people read.
#[derive(Clone, Copy, Debug)]
pub struct Epoch(pub SystemTime);

impl Epoch {
    /// The moment as `2026-01-01T00:00:00.000Z`.
    #[must_use]
    pub fn rfc3339(self, at: Millis) -> String {
        let wall = self.0.checked_add(Duration::from_millis(at.0)).unwrap_or(self.0);
        // A clock outside the years that can be written is as good as none.
        let stamp = jiff::Timestamp::try_from(wall).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        format!("{stamp:.3}")
    }
}

/// Milliseconds since 1970 of a `Date` header, which is exact to the second; none where it is none.
#[must_use]
pub fn http_date_ms(text: &str) -> Option<i64> {
    let parser = jiff::fmt::rfc2822::DateTimeParser::new();
    parser.parse_timestamp(text).ok().map(jiff::Timestamp::as_millisecond)
}

/// Milliseconds since 1970 of a wall time; 0 for times before.
#[must_use]
pub fn unix_ms(wall: SystemTime) -> u64 {
    let since = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_date_of_an_answer() {
        assert_eq!(http_date_ms("Thu, 01 Jan 2026 00:00:01 GMT"), Some(1_767_225_601_000));
        for other in ["", "now", "2026-01-01T00:00:01Z"] {
            assert_eq!(http_date_ms(other), None, "{other}");
        }
    }

    #[test]
    fn writes_milliseconds_always() {
        let epoch = Epoch(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600));
        for (at, want) in [
            (0, "2026-01-01T00:00:00.000Z"),
            (86_399_999, "2026-01-01T23:59:59.999Z"),
            (50, "2026-01-01T00:00:00.050Z"),
            (u64::MAX, "1970-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(epoch.rfc3339(Millis(at)), want);
        }
    }
}
