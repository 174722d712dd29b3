//! The HTTP header `Range`: a single range of bytes (RFC 9110, section 14.2).

/// The requested bytes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// First byte, and the byte after the last. Never empty.
    Part { from: u64, to: u64 },
    /// The range lies outside of the body.
    Unsatisfiable,
    /// The whole body: no header, or one that is ignored.
    Whole,
}

/// Reads the header for a body of `length` bytes. Malformed headers and several ranges at once are
/// ignored, which RFC 9110 allows.
pub(crate) fn parse(header: Option<&str>, length: u64) -> Range {
    let wanted = header.and_then(|header| header.trim().strip_prefix("bytes="));
    let Some((first, last)) = wanted.and_then(|one| one.trim().split_once('-')) else {
        return Range::Whole;
    };
    let Some(bounds) = number(first).zip(number(last)) else { return Range::Whole };
    let (from, to) = match bounds {
        (Some(first), Some(last)) if first > last => return Range::Whole,
        (Some(first), last) => (first, last.map_or(length, |last| last.saturating_add(1))),
        // Suffix range: the last `n` bytes.
        (None, Some(n)) => (length.saturating_sub(n), length),
        (None, None) => return Range::Whole,
    };
    let to = to.min(length);
    if from < to { Range::Part { from, to } } else { Range::Unsatisfiable }
}

/// Outer None: not a number. Inner None: empty.
fn number(text: &str) -> Option<Option<u64>> {
    match text {
        "" => Some(None),
        digits if digits.bytes().all(|c| c.is_ascii_digit()) => {
            Some(Some(digits.parse().unwrap_or(u64::MAX)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_range_or_the_whole_body() {
        let part = |from, to| Range::Part { from, to };
        for (header, want) in [
            ("bytes=0-", part(0, 10)),
            ("bytes=4-", part(4, 10)),
            ("bytes=4-4", part(4, 5)),
            ("bytes=4-99", part(4, 10)),
            ("bytes=0-99999999999999999999999", part(0, 10)),
            ("bytes=-3", part(7, 10)),
            ("bytes=-30", part(0, 10)),
            ("bytes=10-", Range::Unsatisfiable),
            ("bytes=-0", Range::Unsatisfiable),
            ("bytes=99999999999999999999-", Range::Unsatisfiable),
            ("bytes=5-4", Range::Whole),
            ("bytes=-", Range::Whole),
            ("bytes=", Range::Whole),
            ("bytes=+1-2", Range::Whole),
            ("bytes=0-1,3-4", Range::Whole),
            ("lines=0-1", Range::Whole),
            ("", Range::Whole),
        ] {
            assert_eq!(parse(Some(header), 10), want, "{header:?}");
        }
        assert_eq!(parse(None, 10), Range::Whole);
        assert_eq!(parse(Some("bytes=0-"), 0), Range::Unsatisfiable);
    }
}
