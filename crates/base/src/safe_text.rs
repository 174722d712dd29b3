//! Output of programs for a terminal, with the characters escaped that a terminal obeys or does not show.

use std::io::{self, Write};

use crate::text::printable;

/// Writes a program's output as safe text: U+FFFD instead of bytes that are not UTF-8.
#[derive(Debug)]
pub struct SafeText<W> {
    out: W,
    /// The beginning of a character, or of a line end, whose rest is not written yet.
    begun: Vec<u8>,
}

impl<W: Write> SafeText<W> {
    pub fn new(out: W) -> Self {
        Self { out, begun: Vec::new() }
    }
}

impl<W: Write> Write for SafeText<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begun.extend_from_slice(bytes);
        let rest = unfinished(&self.begun);
        let whole = self.begun.len() - rest;
        // A carriage return alone would go over the line again; before a line feed it does nothing.
        let text = String::from_utf8_lossy(&self.begun[..whole]).replace("\r\n", "\n");
        self.out.write_all(printable(&text).as_bytes())?;
        self.begun.drain(..whole);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// How many bytes at the end wait for the bytes that follow them.
fn unfinished(bytes: &[u8]) -> usize {
    if bytes.ends_with(b"\r") {
        return 1;
    }
    let last = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    // Without an error length, the bytes are a valid beginning.
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => last.len(),
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written whole and in pieces of every size.
    #[track_caller]
    fn check(bytes: &[u8], want: &str) {
        for size in 1..=bytes.len().max(1) {
            let mut out = Vec::new();
            let mut safe = SafeText::new(&mut out);
            bytes.chunks(size).for_each(|piece| safe.write_all(piece).unwrap());
            assert_eq!(String::from_utf8(out).unwrap(), want, "in pieces of {size}");
        }
    }

    #[test]
    fn a_terminal_gets_no_commands() {
        check(b"", "");
        check("plain ä 😀\n\tnext\n".as_bytes(), "plain ä 😀\n\tnext\n");
        check(b"\x1b]0;title\x07\x1b[2Jred", "\\u{1b}]0;title\\u{7}\\u{1b}[2Jred");
        check(b"dos\r\n50%\r100%\n", "dos\n50%\\u{d}100%\n");
        check(
            "\u{9b}31m \u{202e}cba \u{200b}\u{2028}\u{7f}".as_bytes(),
            "\\u{9b}31m \\u{202e}cba \\u{200b}\\u{2028}\\u{7f}",
        );
        // A C1 control as a single byte, which some terminals obey.
        check(b"a\x9b31mb\xff\n", "a\u{fffd}31mb\u{fffd}\n");
    }
}
