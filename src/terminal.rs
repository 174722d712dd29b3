//! Output for terminals: text of servers, pods and programs, with the characters escaped that a terminal
//! obeys or does not show.

use std::io::{self, IsTerminal as _, Write};

use crate::args::output::UseColors;
use crate::exit::Failure;
use crate::world::Env;
use posse_base::text::{printable, printable_json};

/// Whether output has colours. `is_terminal`: it goes to a terminal.
pub(super) fn has_colors(wanted: UseColors, env: Env<'_>, is_terminal: bool) -> bool {
    match wanted {
        UseColors::Always => true,
        UseColors::Never => false,
        // https://no-color.org: set and not empty.
        UseColors::Auto => {
            let is_off = env("NO_COLOR").is_some_and(|value| !value.is_empty());
            is_terminal && !is_off && env("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

/// Writes a text to stdout.
pub(super) fn print(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    out.write_all(printable(text).as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}

/// Writes JSON to stdout, with unsafe characters as escapes of JSON.
pub(super) fn print_json(out: &mut dyn Write, json: &str) -> Result<(), Failure> {
    print(out, &printable_json(json))
}

/// Writes the log of a container: U+FFFD instead of bytes that are not UTF-8.
struct SafeText<'a> {
    out: &'a mut dyn Write,
    /// The beginning of a character, or of a line end, whose rest is not written yet.
    begun: Vec<u8>,
}

impl<'a> SafeText<'a> {
    fn new(out: &'a mut dyn Write) -> Self {
        Self { out, begun: Vec::new() }
    }
}

impl Write for SafeText<'_> {
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

/// Calls `copy` with the writer for a container's log: as it is to a pipe or file or with --raw, as
/// safe text to a terminal.
pub(super) fn with_log_output<T>(
    out: &mut dyn Write,
    is_raw: bool,
    copy: impl FnOnce(&mut dyn Write) -> T,
) -> T {
    match is_raw || !io::stdout().is_terminal() {
        true => copy(out),
        false => copy(&mut SafeText::new(out)),
    }
}

/// The same for stderr.
pub(super) fn with_error_output<T>(copy: impl FnOnce(&mut dyn Write) -> T) -> T {
    let mut errors = io::stderr();
    match errors.is_terminal() {
        true => copy(&mut SafeText::new(&mut errors)),
        false => copy(&mut errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_told_otherwise() {
        use UseColors::{Always, Auto, Never};
        for (wanted, no_color, term, is_terminal, want) in [
            (Auto, None, Some("xterm"), true, true),
            (Auto, None, None, true, true),
            (Auto, None, Some("xterm"), false, false),
            (Auto, Some("1"), Some("xterm"), true, false),
            (Auto, Some(""), Some("xterm"), true, true),
            (Auto, None, Some("dumb"), true, false),
            (Always, Some("1"), Some("dumb"), false, true),
            (Never, None, Some("xterm"), true, false),
        ] {
            let env = |name: &str| {
                let value = if name == "NO_COLOR" { no_color } else { term };
                value.map(str::to_owned)
            };
            let got = has_colors(wanted, &env, is_terminal);
            assert_eq!(got, want, "{wanted:?} {no_color:?} {term:?} {is_terminal}");
        }
    }

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
