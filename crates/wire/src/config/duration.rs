//! Durations in configuration: `90s`, `5m`, `1h`, `1d`, `250ms`, `1m30s`, or a plain `0`.

/// Upper limit: a thousand days. Anything longer is a typing error.
const MS_MAX: u64 = 1_000 * 24 * 60 * 60 * 1_000;

/// The units, the longest first, in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Milliseconds. Several units may follow each other, each shorter than the one before. None if the
/// text is not a duration or exceeds a thousand days.
pub fn parse_ms(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let (mut rest, mut units, mut sum) = (text, UNITS.as_slice(), 0_u64);
    loop {
        let (digits, tail) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
        let (unit, tail) = tail.split_at(tail.bytes().take_while(u8::is_ascii_alphabetic).count());
        let found = units.iter().position(|(name, _)| *name == unit)?;
        let ms = digits.parse::<u64>().ok()?.checked_mul(units[found].1)?;
        sum = sum.checked_add(ms).filter(|ms| *ms <= MS_MAX)?;
        (rest, units) = (tail, &units[found + 1..]);
        if rest.is_empty() {
            return Some(sum);
        }
    }
}

/// For "expected ..." in errors.
pub const EXPECTED: &str =
    "a duration like `90s`, `5m`, `1h`, `1d`, `1m30s` or `250ms`, of at most 1000d";

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
            ("1m30s", Some(90_000)),
            ("1d", Some(86_400_000)),
            ("1d2h3m4s5ms", Some(93_784_005)),
            ("1s500ms", Some(1_500)),
            ("1000d1ms", None),
            ("30s1m", None),
            ("1s1s", None),
            ("1m30", None),
            ("1m30s ", None),
            ("1mä", None),
            ("5 m", None),
            ("5M", None),
            ("99999999999999999999s", None),
            ("24001h", None),
        ] {
            assert_eq!(parse_ms(text), ms, "{text:?}");
        }
    }
}
