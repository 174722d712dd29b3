//! Parses the command line, calls the command's room, and prints its error.

use std::error::Error as _;
use std::ffi::OsString;
use std::io::Write;
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::output::{LogFormat, OutputArgs};
use crate::args::{Command, CommandLine};
use crate::command_line::{command_of, wrapped_help};
use crate::exit::{Code, Failure};
use crate::terminal::{has_colors, print};
use crate::world::World;
use posse_base::text::without_secrets;
use posse_wire::config::unknown_key::{SIMILARITY_MIN, similar};

/// What the program for images lacks: the embedded cluster, and commands for the machine of a person.
const COMMANDS_OF_THE_FULL_PROGRAM: [&str; 7] =
    ["check", "completions", "dev", "init", "man", "map", "render"];

/// What needs Linux.
const COMMANDS_OF_LINUX: [&str; 3] = ["dev", "map", "run"];

/// What a hand types that knows earlier releases or other programs, by command, and what posse says to it.
const HABITS: [(&str, &str, &str); 21] = [
    ("posse check", "--file", "it was removed: -f FILE"),
    ("posse map", "--file", "it was removed: -f FILE"),
    ("posse render", "--file", "it was removed: -f FILE"),
    ("posse run", "--file", "it was removed: -f FILE"),
    (
        "posse render",
        "--server-check",
        "it was removed: `posse check` asks the server, and of a driver `posse submit --dry-run`",
    ),
    (
        "posse run",
        "--progress",
        "it was removed: the log says what is waited for, and `posse status` how many executors run",
    ),
    ("posse submit", "--wait", "it was removed: posse waits without it"),
    ("posse kill", "--replace", "it was removed: posse replaces executors without it"),
    ("posse logs", "--executor", "it was removed: write `posse logs APP ID`"),
    ("posse status", "-w", WATCH_STATUS),
    ("posse status", "--watch", WATCH_STATUS),
    ("posse", "version", "here: posse --version"),
    ("posse apps", "-l", "here: posse apps 'NAME*'"),
    ("posse apps", "-w", WATCH),
    ("posse apps", "--watch", WATCH),
    ("posse logs", "--since", "here: --tail N"),
    (
        "posse logs",
        "--timestamps",
        "here: kubectl logs --timestamps POD; posse status -o wide names the pods",
    ),
    ("posse logs", "-p", PREVIOUS),
    ("posse logs", "--previous", PREVIOUS),
    ("posse submit", "--dry-run", "here: --dry-run asks the server, and prints the objects"),
    ("posse submit", "-o", "here: --dry-run prints YAML"),
];
const WATCH: &str = "here: watch posse apps, or posse apps --page :0";
const WATCH_STATUS: &str = "it was removed: watch posse status";
const PREVIOUS: &str =
    "here: posse explain APP ID: it has the last lines of an executor that was lost";
/// Formats of kubectl that are programs of their own.
const FORMATS: [&str; 4] = ["jsonpath", "go-template", "custom-columns", "template"];

/// Runs the command that the arguments name. Errors are printed here and nowhere else.
pub fn run(
    args: impl IntoIterator<Item = OsString>,
    world: &World<'_>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Code {
    let args = crate::command_line::with_flags_behind(args.into_iter().collect());
    let (done, output) = match crate::command_line::parse(&args) {
        Ok(CommandLine { command, output }) => {
            (dispatch(command, &World { output, ..*world }, out), output)
        }
        Err(error) => (usage_error(&error, &args, out), output_of(&args)),
    };
    done.unwrap_or_else(|failure| {
        if failure.message.is_empty() {
            return failure.code;
        }
        let colored = has_colors(output.color, world.env, world.is_terminal);
        // If stderr is closed, the error cannot be reported.
        let _ = writeln!(err, "{}", crate::logger::last_line(&failure.message, &output, colored));
        failure.code
    })
}

/// The form of the error about arguments that are wrong as a whole.
fn output_of(args: &[OsString]) -> OutputArgs {
    let ours = args.iter().take_while(|arg| *arg != "--");
    let words: Vec<&str> = ours.filter_map(|arg| arg.to_str()).collect();
    let is_json = words.contains(&"--log-format=json")
        || words.windows(2).any(|pair| pair == ["--log-format", "json"]);
    let log_format = if is_json { LogFormat::Json } else { LogFormat::Text };
    OutputArgs { log_format, ..OutputArgs::default() }
}

/// The parser reports help and version as errors, too.
fn usage_error(
    error: &clap::Error,
    args: &[OsString],
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let text = error.to_string();
    let kind = error.kind();
    if matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return print(out, &wrapped_help(&text)).map(|()| Code::Clean);
    }
    if kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Err(Failure::usage("a command is missing; `posse --help` lists them"));
    }
    // Only the error itself, in one line; --help prints the usage.
    let message = text.split("\n\nUsage:").next().unwrap_or(&text);
    let message = message.split("\n\nFor more information").next().unwrap_or(message);
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let (names, command, _) = command_of(args);
    // The parser quotes the wrong value, which may be a URL with a password.
    let word = |word: &str| match word.contains('@') || word.contains("://") {
        true => without_secrets(word),
        false => word.to_owned(),
    };
    let paragraph = |text: &str| text.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    let paragraphs = message.split("\n\n").map(paragraph);
    // It advises to hand an unknown flag to the driver; it is nearly always a typing error.
    let is_useful = |paragraph: &String| !paragraph.contains("as a value, use '--");
    let mut said = paragraphs.filter(is_useful).collect::<Vec<_>>().join("; ");
    if let Some(why) = error.source().and_then(|source| source.downcast_ref::<ParseIntError>())
        && matches!(why.kind(), IntErrorKind::InvalidDigit | IntErrorKind::Empty)
    {
        said = said.replace(&why.to_string(), "expected a whole number");
    }
    let hint = habit(error, &names).or_else(|| suggestion(error, &command)).unwrap_or_default();
    Err(Failure::usage(format!("{said}{hint}; see `{names} --help`")))
}

/// How posse spells what is typed so elsewhere.
fn habit(error: &clap::Error, command: &str) -> Option<String> {
    let said = |kind| said(error, kind);
    let word = said(ContextKind::InvalidSubcommand).or_else(|| said(ContextKind::InvalidArg))?;
    if error.kind() == ErrorKind::InvalidValue {
        let value = said(ContextKind::InvalidValue)?;
        let is_format =
            word.starts_with("--output") && FORMATS.iter().any(|it| value.starts_with(it));
        return is_format.then(|| " (use -o json, for `jq`)".to_owned());
    }
    if command.starts_with("posse task ") && !word.starts_with('-') {
        return Some(format!(" (an application is named by --app {word})"));
    }
    let is_it = |(of, name, _): &&(&str, &str, &str)| *of == command && *name == word;
    let (_, _, instead) = HABITS.iter().find(is_it)?;
    Some(format!(" ({instead})"))
}

fn said(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        Some(_) | None => None,
    }
}

/// What was probably meant by an unknown command or flag.
fn suggestion(error: &clap::Error, command: &clap::Command) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument) {
        return None;
    }
    let said = |kind| said(error, kind);
    let known = if let Some(word) = said(ContextKind::InvalidSubcommand) {
        if let Some(why) = lacking(word, cfg!(target_os = "linux")) {
            return Some(format!(" ({why})"));
        }
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        similar(word, visible.map(clap::Command::get_name), SIMILARITY_MIN)?.to_owned()
    } else {
        let word = said(ContextKind::InvalidArg)?.strip_prefix("--")?;
        let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let long = visible.filter_map(clap::Arg::get_long);
        format!("--{}", similar(word, long, SIMILARITY_MIN)?)
    };
    Some(format!(" (did you mean `{known}`?)"))
}

/// Why this program lacks a command that others have.
fn lacking(command: &str, is_on_linux: bool) -> Option<&'static str> {
    if !is_on_linux && COMMANDS_OF_LINUX.contains(&command) {
        return Some("it needs Linux; `posse submit` runs a driver in the cluster");
    }
    let is_of_full = COMMANDS_OF_THE_FULL_PROGRAM.contains(&command);
    is_of_full.then_some("this program is the one for images; the full one has the command")
}

fn dispatch(command: Command, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    // A supervisor has no log, and a container's environment variables are not meant for posse's logger.
    let has_no_log = matches!(command, Command::Supervise | Command::Listen(_));
    #[cfg(feature = "dev")]
    let has_no_log =
        has_no_log || matches!(command, Command::Dev(crate::args::dev::Command::DevContainer));
    if !has_no_log {
        crate::logger::init(world)?;
    }
    match command {
        #[cfg(feature = "client")]
        Command::Tools(command) => crate::tools::run(command, world, out),
        #[cfg(feature = "dev")]
        Command::Dev(command) => crate::dev::run(command, world, out),
        #[cfg(target_os = "linux")]
        Command::Run(args) => crate::run::run(&args, world),
        Command::Supervise => posse_process::enter().map(|()| Code::Clean).map_err(Failure::usage),
        Command::Listen(args) => posse_process::listen::exec(&args.address, &args.command)
            .map_err(Failure::usage)
            .map(|never| match never {}),
        Command::Bridge(args) => crate::bridge::bridge(&args, world, out),
        Command::Submit(args) => crate::submit::submit(&args, world, out),
        Command::Apps(args) => crate::apps::apps(&args, world, out),
        Command::Logs(args) => crate::logs::logs(&args, world, out),
        Command::Exec(args) => crate::exec::exec(&args, world, out),
        Command::Stop(args) => crate::stop::stop(&args, world, out),
        Command::Copy(args) => crate::copy::copy(&args),
        Command::Cleanup(args) => crate::cleanup::cleanup(&args, world, out),
        Command::Status(args) => crate::status::status(&args, world, out),
        Command::Task(args) => crate::task::task(&args, world, out),
        Command::Scale(args) => crate::scale::scale(&args, world, out),
        Command::Kill(args) => crate::kill::kill(&args, world, out),
        Command::Ready(args) => crate::ready::ready(&args, world),
        Command::Idle(args) => crate::idle::idle(&args, world),
        Command::Wait(args) => crate::wait::wait(&args, world),
        Command::Events(args) => crate::events::events(&args, world, out),
        Command::Explain(args) => crate::explain::explain(&args, world, out),
        Command::Stage(args) => crate::stage::stage(&args, world, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_other_programs_is_told_with_the_reason() {
        for (command, is_on_linux, want) in [
            ("run", false, Some("needs Linux")),
            ("map", false, Some("needs Linux")),
            ("dev", false, Some("needs Linux")),
            ("dev", true, Some("for images")),
            ("render", false, Some("for images")),
            ("run", true, None),
            ("runs", false, None),
        ] {
            let why = lacking(command, is_on_linux);
            assert_eq!(why.is_some(), want.is_some(), "{command}");
            assert!(
                why.is_none_or(|why| why.contains(want.unwrap_or_default())),
                "{command}: {why:?}"
            );
        }
    }
}
