//! Ages in the form of kubectl's tables.

use crate::time;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;

/// The time from `since` to `now`; `<unknown>` without `since`.
pub(super) fn age(since: &str, now: &str) -> String {
    time::seconds_between(since, now).map_or_else(|| "<unknown>".to_owned(), human)
}

/// `59s`, `2m5s`, `3h`, `2d4h`, and no years: with the smaller unit only for small numbers of the larger one.
pub(super) fn human(seconds: i64) -> String {
    let (minutes, hours) = (seconds / MINUTE, seconds / HOUR);
    let days = hours / 24;
    if seconds < -1 {
        "<invalid>".to_owned()
    } else if seconds < 2 * MINUTE {
        format!("{}s", seconds.max(0))
    } else if minutes < 10 {
        two(minutes, "m", seconds % 60, "s")
    } else if hours < 3 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        two(days, "d", hours % 24, "h")
    } else {
        format!("{days}d")
    }
}

fn two(large: i64, large_unit: &str, small: i64, small_unit: &str) -> String {
    match small {
        0 => format!("{large}{large_unit}"),
        small => format!("{large}{large_unit}{small}{small_unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_or_three_figures() {
        const DAY: i64 = 24 * HOUR;
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (7 * HOUR + 59 * MINUTE, "7h59m"),
            (8 * HOUR, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (7 * DAY + 23 * HOUR, "7d23h"),
            (8 * DAY, "8d"),
        ] {
            assert_eq!(human(seconds), expected, "{seconds} s");
        }
        assert_eq!(age("2026-01-01T00:00:00Z", "2026-01-01T00:00:07Z"), "7s");
        assert_eq!(age("2026-01-01T00:00:00.900000Z", "2026-01-01T00:00:00Z"), "0s");
        assert_eq!(age("", "2026-01-01T00:00:07Z"), "<unknown>");
    }
}
