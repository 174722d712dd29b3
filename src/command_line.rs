//! Reads the arguments, and wraps help texts at words.

use std::ffi::{OsStr, OsString};
use std::io;

use clap::{CommandFactory as _, FromArgMatches as _};
use rustix::termios::tcgetwinsize;

use crate::args::CommandLine;

/// The width of help texts, in columns: that of the terminal within these, else the usual one.
const WIDTH_MIN: usize = 60;
const WIDTH_MAX: usize = 100;
const WIDTH_USUAL: usize = 80;

/// The flags that may stand before the command, as with kubectl.
const MOVABLE: [&str; 4] = ["-n", "--namespace", "--kubeconfig", "--context"];

/// Reads the arguments.
///
/// # Errors
/// They are invalid, or ask for help or the version.
pub(super) fn parse(args: &[OsString]) -> Result<CommandLine, clap::Error> {
    let command = with_numbers(CommandLine::command()).term_width(help_width());
    let matches = command.try_get_matches_from(args)?;
    CommandLine::from_arg_matches(&matches)
}

/// A negative number is a value, and a wrong one, where a value is wanted.
fn with_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(with_numbers)
}

/// The command that the arguments name: `posse stage put`, as far as its words are commands. Also the
/// number of the arguments up to its last word.
pub(super) fn command_of(args: &[OsString]) -> (String, clap::Command, usize) {
    let (mut names, mut command, mut n_words) = ("posse".to_owned(), CommandLine::command(), 1);
    for (i, arg) in args.iter().enumerate().skip(1) {
        match command.find_subcommand(arg) {
            Some(found) => {
                names = format!("{names} {}", found.get_name());
                command = found.clone();
                n_words = i + 1;
            }
            // Flags of all commands may stand before the first one, with their values.
            None if n_words == 1 => {}
            None => break,
        }
    }
    (names, command, n_words)
}

/// The arguments with the movable flags that stand before the command moved behind it.
pub(super) fn with_flags_behind(args: Vec<OsString>) -> Vec<OsString> {
    let mut n_moved = 0;
    while let Some(n) = args.get(1 + n_moved).and_then(|arg| movable(arg)) {
        n_moved += n;
    }
    let Some(rest) = args.get(1 + n_moved..).filter(|rest| n_moved > 0 && !rest.is_empty()) else {
        return args;
    };
    let command = [&args[..1], rest].concat();
    // Of a misspelt command, its first word.
    let n_words = command_of(&command).2.max(2);
    let (names, behind) = command.split_at(n_words.min(command.len()));
    [names, &args[1..1 + n_moved], behind].concat()
}

/// How many arguments a movable flag is with its value: `--namespace=n` and `-nn`, or `-n n`.
fn movable(arg: &OsStr) -> Option<usize> {
    let arg = arg.to_str()?;
    if MOVABLE.contains(&arg) {
        return Some(2);
    }
    let is_long = arg.split_once('=').is_some_and(|(name, _)| MOVABLE.contains(&name));
    (is_long || (arg.starts_with("-n") && arg.len() > 2)).then_some(1)
}

fn help_width() -> usize {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col).clamp(WIDTH_MIN, WIDTH_MAX),
        Ok(_) | Err(_) => WIDTH_USUAL,
    }
}

/// A help text for this terminal, wrapped at words.
pub(super) fn wrapped_help(text: &str) -> String {
    let width = help_width();
    text.lines().map(|line| wrap(line, width)).collect()
}

/// One line of a help text as lines of at most this width. The further lines begin where the text in
/// the second column does: below the words, not below the flag.
fn wrap(line: &str, width: usize) -> String {
    let mut text = String::new();
    let indent = indent_of(line);
    let mut rest = line;
    let mut room = width;
    while rest.chars().count() > room {
        let Some(at) = last_gap(rest, room) else { break };
        text.push_str(rest[..at].trim_end());
        text.push('\n');
        text.push_str(&" ".repeat(indent));
        rest = rest[at..].trim_start();
        room = width.saturating_sub(indent);
    }
    text + rest + "\n"
}

/// Where the text of a line begins, in columns: after the first two spaces in it, else after those at its
/// beginning.
fn indent_of(line: &str) -> usize {
    let n_leading = line.len() - line.trim_start().len();
    let body = &line[n_leading..];
    let second = body.find("  ").map(|gap| {
        let column = &body[gap..];
        n_leading + gap + column.len() - column.trim_start().len()
    });
    second.map_or(n_leading, |byte| line[..byte].chars().count())
}

/// The last gap between two words within `room` columns, behind the indentation. Not before a dash: the
/// next line would look like a flag.
fn last_gap(text: &str, room: usize) -> Option<usize> {
    let begin = indent_of(text);
    let within = text.char_indices().enumerate().take(room + 1);
    let gaps = within.filter(|(column, (at, c))| {
        *c == ' ' && *column > begin && !text[*at..].trim_start().starts_with('-')
    });
    gaps.last().map(|(_, (at, _))| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let words = with_flags_behind(args).into_iter();
        words.map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_namespace_may_stand_before_the_command() {
        for (line, want) in [
            ("posse -n a apps", "posse apps -n a"),
            ("posse -n a apps -A", "posse apps -n a -A"),
            ("posse --namespace=a --context c logs x", "posse logs --namespace=a --context c x"),
            ("posse -na stage put f", "posse stage put -na f"),
            ("posse apps -n a", "posse apps -n a"),
            ("posse -n run run -- run", "posse run -n run -- run"),
            ("posse -n a --color never apps x", "posse --color never apps -n a x"),
            ("posse -n a appz x", "posse appz -n a x"),
            ("posse --help -n a", "posse --help -n a"),
            ("posse -n a", "posse -n a"),
            ("posse -n", "posse -n"),
            ("posse", "posse"),
        ] {
            assert_eq!(moved(line), want, "{line}");
        }
    }

    #[test]
    fn help_is_wrapped_at_words_below_its_column() {
        for (line, width, want) in [
            ("short", 10, "short\n"),
            ("one two three", 8, "one two\nthree\n"),
            ("  -f FILE  one two three", 20, "  -f FILE  one two\n           three\n"),
            ("          one two three", 18, "          one two\n          three\n"),
            ("unbreakable-word", 8, "unbreakable-word\n"),
            ("a word and --flag here", 12, "a word\nand --flag\nhere\n"),
        ] {
            assert_eq!(wrap(line, width), want);
        }
    }
}
