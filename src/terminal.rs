//! Output for terminals: text of servers, pods and programs, with the characters escaped that a terminal
//! obeys or does not show.

use std::io::{self, IsTerminal as _, Write};

use crate::args::output::UseColors;
use crate::exit::Failure;
use crate::world::Env;
use posse_base::safe_text::SafeText;
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
}
