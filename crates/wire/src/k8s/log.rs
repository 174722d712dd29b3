//! The last lines of a container's log, safe to print and bounded in size.

use posse_base::text::sanitize;

/// Limit of lines from one log.
pub const LOG_LINES_MAX: u32 = 200;
/// Limit of bytes to ask for. The server cuts a longer log at its end.
pub const LOG_BYTES_MAX: u64 = 256 << 10;
/// Limit of one line, bytes.
const LINE_BYTES_MAX: usize = 1_024;
/// Limit of all lines together, bytes: they travel in one event.
const LINES_BYTES_MAX: usize = 64 << 10;

/// The last `n_max` lines, as many as fit. Invalid UTF-8 is replaced.
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
    fn the_last_lines_are_escaped_and_bounded() {
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
