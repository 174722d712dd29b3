//! The command line: arguments to checked settings, to a call of another module, to an exit code.

pub mod apps;
pub mod args;
pub mod check;
pub mod cleanup;
pub mod connection;
pub mod control_client;
pub mod copy;
#[cfg(feature = "dev")]
pub mod dev;
pub mod events;
pub mod exit;
pub mod explain;
pub mod follow;
pub mod init;
pub mod kill;
pub mod logger;
pub mod logs;
pub mod manifest;
pub mod namespace;
pub mod permissions;
mod remote;
pub mod render;
pub mod run;
pub mod scale;
pub mod settings;
pub mod stage;
pub mod status;
pub mod stop;
pub mod submit;
mod table;
pub mod terminal;
pub mod world;

use std::ffi::OsString;
use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser as _};

use crate::cli::args::{Command, CommandLine};
use crate::cli::exit::{Code, Failure};
use crate::cli::terminal::print;
use crate::cli::world::World;
use crate::core::model::text::{sanitize, without_secrets};
use crate::wire::section::similar;

/// The longest error, in bytes.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// Runs the command that the arguments name. Errors are printed here and nowhere else.
pub fn run(
    args: impl IntoIterator<Item = OsString>,
    world: &World<'_>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Code {
    let args: Vec<OsString> = args.into_iter().collect();
    let done = match CommandLine::try_parse_from(&args) {
        Ok(line) => dispatch(line.command, world, out),
        Err(error) => usage_error(&error, &args, out),
    };
    done.unwrap_or_else(|failure| {
        // One line, whatever the server or a program has said. If stderr is closed, the error cannot
        // be reported.
        let _ = writeln!(err, "posse: {}", sanitize(&failure.message, ERROR_BYTES_MAX));
        failure.code
    })
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
        return print(out, &text).map(|()| Code::Clean);
    }
    if kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Err(Failure::usage("a command is missing; `posse --help` lists them"));
    }
    // Only the error itself, in one line; --help prints the usage.
    let message = text.split("\n\nUsage:").next().unwrap_or(&text);
    let message = message.split("\n\nFor more information").next().unwrap_or(message);
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let (names, command) = command_of(args);
    // The parser quotes the wrong value, which may be a URL with a password.
    let word = |word: &str| match word.contains('@') || word.contains("://") {
        true => without_secrets(word),
        false => word.to_owned(),
    };
    let paragraph = |text: &str| text.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    let paragraphs = message.split("\n\n").map(paragraph);
    // It advises to hand an unknown flag to the driver; it is nearly always a typing error.
    let is_useful = |paragraph: &String| !paragraph.contains("as a value, use '--");
    let said = paragraphs.filter(is_useful).collect::<Vec<_>>().join("; ");
    let hint = suggestion(error, &command).unwrap_or_default();
    Err(Failure::usage(format!("{said}{hint}; see `{names} --help`")))
}

/// The command that the arguments name: `posse stage put`, as far as its words are commands.
fn command_of(args: &[OsString]) -> (String, clap::Command) {
    let (mut names, mut command) = ("posse".to_owned(), CommandLine::command());
    for arg in args.iter().skip(1) {
        let Some(found) = command.find_subcommand(arg) else { break };
        names = format!("{names} {}", found.get_name());
        command = found.clone();
    }
    (names, command)
}

/// What was probably meant by an unknown command or flag.
fn suggestion(error: &clap::Error, command: &clap::Command) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument) {
        return None;
    }
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        Some(_) | None => None,
    };
    let known = if let Some(word) = said(ContextKind::InvalidSubcommand) {
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        similar(word, visible.map(clap::Command::get_name))?.to_owned()
    } else {
        let word = said(ContextKind::InvalidArg)?.strip_prefix("--")?;
        let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
        format!("--{}", similar(word, visible.filter_map(clap::Arg::get_long))?)
    };
    Some(format!(" (did you mean `{known}`?)"))
}

fn dispatch(command: Command, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    // `run` starts its logger later, when it knows whether there is a progress line. A supervisor has
    // no log.
    let has_own_logger = matches!(command, Command::Run(_) | Command::Supervise);
    // A container's environment variables are not meant for posse's logger.
    #[cfg(feature = "dev")]
    let has_own_logger = has_own_logger || matches!(command, Command::DevContainer);
    if !has_own_logger {
        logger::init(world.env, None)?;
    }
    match command {
        Command::Init(args) => init::init(&args, world, out),
        Command::Render(args) if args.driver => submit::render(&args, world, out),
        Command::Render(args) => render::command(&args, world, out),
        #[cfg(feature = "dev")]
        Command::Dev(args) => dev::dev(&args, world, out),
        #[cfg(feature = "dev")]
        Command::DevContainer => dev::container(),
        Command::Run(args) => run::run(&args, world),
        Command::Supervise => crate::process::enter().map(|()| Code::Clean).map_err(Failure::usage),
        Command::Check(args) => check::check(&args, world, out),
        Command::Submit(args) => submit::submit(&args, world, out),
        Command::Apps(args) => apps::apps(&args, world, out),
        Command::Logs(args) => logs::logs(&args, world, out),
        Command::Stop(args) => stop::stop(&args, world, out),
        Command::Copy(args) => copy::copy(&args),
        Command::Cleanup(args) => cleanup::cleanup(&args, world, out),
        Command::Status(args) => status::status(&args, world, out),
        Command::Scale(args) => scale::scale(&args, world, out),
        Command::Kill(args) => kill::kill(&args, world, out),
        Command::Events(args) => events::events(&args, world, out),
        Command::Explain(args) => explain::explain(&args, world, out),
        Command::Stage(args) => stage::stage(&args, world, out),
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
