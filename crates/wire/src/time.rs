//! Text forms of points in time: RFC 3339 in UTC with milliseconds, and HTTP dates.

use std::time::{Duration, SystemTime};

use posse_base::time::Millis;

/// The wall-clock time of `Millis::ZERO`: converts `core`'s times for people.
#[derive(Clone, Copy, Debug)]
pub struct Epoch(pub SystemTime);

impl Epoch {
    /// The time between two epochs.
    pub fn abs_diff(self, other: Self) -> Duration {
        let later = self.0.duration_since(other.0);
        later.unwrap_or_else(|earlier| earlier.duration())
    }

    /// As `2026-01-01T00:00:00.000Z`.
    pub fn rfc3339(self, at: Millis) -> String {
        format!("{:.3}", self.timestamp(at))
    }

    /// As `2026-01-01T00:00:00.000000Z`, which Kubernetes calls a MicroTime.
    pub fn rfc3339_micros(self, at: Millis) -> String {
        format!("{:.6}", self.timestamp(at))
    }

    fn timestamp(self, at: Millis) -> jiff::Timestamp {
        let wall = self.0.checked_add(Duration::from_millis(at.0)).unwrap_or(self.0);
        // A time outside of the representable years is printed as 1970.
        jiff::Timestamp::try_from(wall).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
}

/// Milliseconds since 1970 of an HTTP `Date` header. None if it cannot be read.
pub fn http_date_ms(text: &str) -> Option<i64> {
    let parser = jiff::fmt::rfc2822::DateTimeParser::new();
    parser.parse_timestamp(text).ok().map(jiff::Timestamp::as_millisecond)
}

/// Milliseconds since 1970. 0 for earlier times.
pub fn unix_ms(wall: SystemTime) -> u64 {
    let since = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_http_dates() {
        assert_eq!(http_date_ms("Thu, 01 Jan 2026 00:00:01 GMT"), Some(1_767_225_601_000));
        for other in ["", "now", "2026-01-01T00:00:01Z"] {
            assert_eq!(http_date_ms(other), None, "{other}");
        }
    }

    #[test]
    fn always_writes_milliseconds() {
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
