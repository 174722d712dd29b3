//! Owns how durations are written: `90s`, `5m`, `1h`, `250ms`. A plain 0 is a duration too.

/// The longest duration: a thousand days. A longer one is a slip.
const MS_MAX: u64 = 1_000 * 24 * 60 * 60 * 1_000;

/// Reads a duration in milliseconds; none where it is not one, or beyond a thousand days.
#[must_use]
pub fn parse_ms(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let n_digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, unit) = text.split_at(n_digits);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit_ms).filter(|ms| *ms <= MS_MAX)
}

/// What to say about a text that is not a duration.
pub const EXPECTED: &str = "a duration like `90s`, `5m`, `1h` or `250ms`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_each_unit_and_nothing_else() {
        for (text, ms) in [
            ("90s", Some(90_000)),
            ("5m", Some(300_000)),
            ("1h", Some(3_600_000)),
            ("250ms", Some(250)),
            ("0s", Some(0)),
            ("0", Some(0)),
            ("", None),
            ("5", None),
            ("s", None),
            ("-1s", None),
            ("+1s", None),
            ("1.5s", None),
            ("1m30s", None),
            ("5 m", None),
            ("5M", None),
            ("99999999999999999999s", None),
            ("24001h", None),
        ] {
            assert_eq!(parse_ms(text), ms, "{text:?}");
        }
    }
}
