//! Owns the reading of a container's log: bytes to lines that anybody may look at. Asks nobody.

use crate::core::model::text::sanitize;

/// The most lines that are told of one log.
pub const LOG_LINES_MAX: u32 = 200;
/// The most that is asked for, in bytes: what is longer loses its end, not its beginning.
pub const LOG_BYTES_MAX: u64 = 256 << 10;
/// Of one line, in bytes.
const LINE_BYTES_MAX: usize = 1_024;
/// Of all lines together, in bytes: they travel in one event.
const LINES_BYTES_MAX: usize = 64 << 10;

/// The last `n_max` lines of a log, as many of them as fit. What is no UTF-8 is replaced.
#[must_use]
pub fn last_lines(bytes: &[u8], n_max: u32) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<String> = Vec::new();
    let mut n_bytes = 0;
    for line in text.lines().rev().take(n_max as usize) {
        let line = sanitize(line, LINE_BYTES_MAX);
        n_bytes += line.len();
        if n_bytes > LINES_BYTES_MAX {
            break;
        }
        lines.push(line);
    }
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_harmless_and_bounded() {
        for (bytes, n_max, want) in [
            (&b""[..], 5, &[][..]),
            (b"a\nb\nc\n", 2, &["b", "c"]),
            (b"a\n\nc", 9, &["a", "", "c"]),
            (b"50%\r100%\r\n\x1b[31mred\x1b[0m\n", 9, &["50% 100%", "\\u{1b}[31mred\\u{1b}[0m"]),
            (b"\xff\xfe ok\n", 1, &["\u{fffd}\u{fffd} ok"]),
            (b"a\n", 0, &[]),
        ] {
            assert_eq!(last_lines(bytes, n_max), want, "{bytes:?}");
        }
        let long = format!("{}\n", "x".repeat(5_000)).repeat(200);
        let lines = last_lines(long.as_bytes(), LOG_LINES_MAX);
        assert_eq!((lines.len(), lines[0].len()), (64, LINE_BYTES_MAX));
    }
}
