//! Reads the arguments, and wraps help texts at words.

use std::ffi::{OsStr, OsString};
use std::io;

use clap::{Arg, CommandFactory as _, FromArgMatches as _};
use rustix::termios::tcgetwinsize;

use crate::args::CommandLine;
use posse_wire::names::app_name_error;

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
    let command = CommandLine::command().term_width(help_width());
    let matches = command.try_get_matches_from(args)?;
    CommandLine::from_arg_matches(&matches)
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

/// The arguments with the movable flags before the command moved behind it.
pub(super) fn with_flags_behind(args: Vec<OsString>) -> Vec<OsString> {
    let is_flag = |arg: &OsString| arg.as_encoded_bytes().starts_with(b"-");
    if !args.get(1).is_some_and(is_flag) {
        return args;
    }
    let root = CommandLine::command();
    let (mut before, mut moved) = (Vec::new(), Vec::new());
    let mut rest = args.iter();
    before.extend(rest.next().cloned());
    // Where the command stands, if it is misspelt: at the first word.
    let mut first_word = None;
    while let Some(arg) = rest.as_slice().first() {
        if root.find_subcommand(arg).is_some() {
            break;
        }
        rest.next();
        match movable(arg) {
            Some(Movable::Whole) => moved.push(arg.clone()),
            Some(Movable::ValueFollows) => {
                moved.push(arg.clone());
                moved.extend(rest.next().cloned());
            }
            None => {
                if !is_flag(arg) {
                    first_word.get_or_insert(before.len());
                }
                before.push(arg.clone());
            }
        }
    }
    let mut rest = rest.as_slice().to_vec();
    if let Some(at) = first_word.filter(|_| rest.is_empty()) {
        rest = before.split_off(at);
    }
    if moved.is_empty() || rest.is_empty() {
        return args;
    }
    let command: Vec<OsString> = before.iter().take(1).chain(&rest).cloned().collect();
    let n_words = (command_of(&command).2 - 1).max(1);
    let (names, behind) = rest.split_at(n_words);
    [before.as_slice(), names, &moved, behind].concat()
}

/// How a movable flag has its value.
enum Movable {
    /// `--namespace=n`, `-nn`.
    Whole,
    /// `-n n`.
    ValueFollows,
}

fn movable(arg: &OsStr) -> Option<Movable> {
    let arg = arg.to_str()?;
    if MOVABLE.contains(&arg) {
        return Some(Movable::ValueFollows);
    }
    let is_long = arg.split_once('=').is_some_and(|(name, _)| MOVABLE.contains(&name));
    (is_long || (arg.starts_with("-n") && arg.len() > 2)).then_some(Movable::Whole)
}

/// The arguments with the application that is named by the first word behind the command as the parser has it: as
/// the flag --app, or as NAME/ID. The name of an application begins with a letter, an executor's id is a number.
pub(super) fn with_app_flag(mut args: Vec<OsString>) -> Vec<OsString> {
    let (name, command, n_words) = command_of(&args);
    let words = positionals(&command, &args, n_words);
    let text = |i: usize| words.get(i).and_then(|at| args[*at].to_str()).unwrap_or_default();
    let begins_with_letter = text(0).starts_with(|c: char| c.is_ascii_alphabetic());
    if has_flag(&args, "--app") {
        return args;
    }
    match name.as_str() {
        "posse status" | "posse explain" | "posse kill" if begins_with_letter => {
            let (app, id) = text(0).split_once('/').unwrap_or_else(|| (text(0), ""));
            let (app, id) = (format!("--app={app}"), OsString::from(id));
            args.splice(
                words[0]..=words[0],
                [app.into(), id].into_iter().filter(|s| !s.is_empty()),
            );
        }
        // With two words, the first one is the group, or else the command decides.
        "posse scale" if words.len() == 3 || has_flag(&args, "--group") && words.len() == 2 => {
            args[words[0]] = format!("--app={}", text(0)).into();
        }
        // A pod with this name whose command is a number does not exist.
        "posse logs" | "posse exec" if app_name_error(text(0)).is_none() && is_id(text(1)) => {
            args[words[0]] = format!("{}/{}", text(0), text(1)).into();
            args.remove(words[1]);
        }
        _ => {}
    }
    args
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn has_flag(args: &[OsString], flag: &str) -> bool {
    let mut words = args.iter().take_while(|arg| *arg != "--").filter_map(|arg| arg.to_str());
    words.any(|word| word == flag || word.split_once('=').is_some_and(|(name, _)| name == flag))
}

/// Where the words of a command stand that are neither flags nor their values, up to `--`.
fn positionals(command: &clap::Command, args: &[OsString], n_words: usize) -> Vec<usize> {
    let root = CommandLine::command();
    let flags: Vec<&Arg> = command.get_arguments().chain(root.get_arguments()).collect();
    let mut found = Vec::new();
    let mut is_value = false;
    for (i, arg) in args.iter().enumerate().skip(n_words).take_while(|(_, arg)| *arg != "--") {
        if std::mem::take(&mut is_value) {
            continue;
        }
        match arg.to_str().filter(|word| word.len() > 1).and_then(|word| word.strip_prefix('-')) {
            Some(flag) => is_value = has_value_behind(&flags, flag),
            None => found.push(i),
        }
    }
    found
}

/// True if the next argument is the value of this flag, which is written without its first dash.
fn has_value_behind(flags: &[&Arg], flag: &str) -> bool {
    let takes_value = |is_it: &dyn Fn(&Arg) -> bool| {
        flags.iter().find(|arg| is_it(arg)).is_some_and(|arg| arg.get_action().takes_values())
    };
    match flag.strip_prefix('-') {
        Some(long) => takes_value(&|arg| arg.get_long() == Some(long)),
        // Short flags may share a dash. The rest of the word behind one that takes a value is the value.
        None => {
            let takes = |c: char| takes_value(&|arg| arg.get_short() == Some(c));
            flag.chars().position(takes).is_some_and(|at| at + 1 == flag.chars().count())
        }
    }
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
            ("posse -n", "posse -n"),
            ("posse", "posse"),
        ] {
            assert_eq!(moved(line), want, "{line}");
        }
    }

    #[test]
    fn the_application_may_be_the_first_word() {
        for (line, want) in [
            ("status wc", "status --app=wc"),
            ("status --watch wc -o json", "status --watch --app=wc -o json"),
            (
                "--color never status --log-format json wc",
                "--color never status --log-format json --app=wc",
            ),
            ("status -n prod", ""),
            ("explain 3", ""),
            ("explain wc 3 --logs 5", "explain --app=wc 3 --logs 5"),
            ("explain wc/3", "explain --app=wc 3"),
            ("explain --group big wc", "explain --group big --app=wc"),
            ("kill 2 5", ""),
            ("kill --reason slow wc 2 5", "kill --reason slow --app=wc 2 5"),
            ("kill wc/2", "kill --app=wc 2"),
            ("scale big 5", ""),
            ("scale 5", ""),
            ("scale wc big 5", "scale --app=wc big 5"),
            ("scale wc 5 --group big", "scale --app=wc 5 --group big"),
            ("scale --group=big 5", ""),
            ("logs wc", ""),
            ("logs wc 3 -f", "logs wc/3 -f"),
            ("exec 3 -it -- sh", ""),
            ("exec -it wc 3 -- sh -c 7", "exec -it wc/3 -- sh -c 7"),
            ("exec -c main 3 sh", ""),
            ("exec -itc main wc 3 sh", "exec -itc main wc/3 sh"),
            ("exec wc-1-exec-3 sh 7", ""),
            ("exec wc -- 3", ""),
            ("kill --app wc x 2", ""),
            ("stop wc", ""),
            ("", ""),
        ] {
            let args = format!("posse {line}").split(' ').map(OsString::from).collect();
            let words = with_app_flag(args).into_iter();
            let got = words.map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ");
            let want = if want.is_empty() { line } else { want };
            assert_eq!(got, format!("posse {want}"), "{line}");
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
