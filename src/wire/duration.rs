//! Durations in configuration: `90s`, `5m`, `1h`, `250ms`, or a plain `0`.

/// Upper limit: a thousand days. Anything longer is a typing error.
const MS_MAX: u64 = 1_000 * 24 * 60 * 60 * 1_000;

/// Milliseconds. None if the text is not a duration or exceeds a thousand days.
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

/// For "expected ..." in errors.
pub const EXPECTED: &str = "a duration like `90s`, `5m`, `1h` or `250ms`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_durations_with_a_known_unit_are_read() {
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
