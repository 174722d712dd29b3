//! The command line: arguments to checked settings, to a call of another module, to an exit code.

pub mod apps;
pub mod args;
#[cfg(feature = "dev")]
pub mod check;
pub mod cleanup;
mod command_line;
#[cfg(feature = "dev")]
pub mod completions;
pub mod connection;
pub mod control_client;
pub mod copy;
#[cfg(feature = "dev")]
pub mod dev;
mod event_text;
pub mod events;
pub mod exec;
pub mod exit;
pub mod explain;
pub mod follow;
pub mod idle;
#[cfg(feature = "dev")]
pub mod init;
pub mod kill;
mod listing;
mod location;
pub mod logger;
pub mod logs;
#[cfg(feature = "dev")]
pub mod man;
pub mod manifest;
#[cfg(feature = "dev")]
pub mod map;
pub mod namespace;
pub mod permissions;
pub mod pod_files;
pub mod ready;
mod remote;
#[cfg(feature = "dev")]
pub mod render;
pub mod run;
pub mod scale;
pub mod settings;
pub mod shell_words;
mod shown_identity;
pub mod stage;
pub mod status;
pub mod stop;
pub mod submit;
mod table;
pub mod terminal;
pub mod wait;
pub mod world;

use std::error::Error as _;
use std::ffi::OsString;
use std::io::Write;
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::args::output::{LogFormat, OutputArgs};
use crate::cli::args::{Command, CommandLine};
use crate::cli::command_line::{command_of, wrapped_help};
use crate::cli::exit::{Code, Failure};
use crate::cli::terminal::{has_colors, print};
use crate::cli::world::World;
use crate::core::model::text::without_secrets;
use crate::wire::section::{SIMILARITY_MIN, similar};

/// What the program for images lacks: the embedded cluster, and commands for the machine of a person.
const COMMANDS_OF_THE_FULL_PROGRAM: [&str; 7] =
    ["check", "completions", "dev", "init", "man", "map", "render"];

/// Runs the command that the arguments name. Errors are printed here and nowhere else.
pub fn run(
    args: impl IntoIterator<Item = OsString>,
    world: &World<'_>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Code {
    let args = command_line::with_flags_behind(args.into_iter().collect());
    let (done, output) = match command_line::parse(&args) {
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
        let _ = writeln!(err, "{}", logger::last_line(&failure.message, &output, colored));
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
    let hint = suggestion(error, &command).unwrap_or_default();
    Err(Failure::usage(format!("{said}{hint}; see `{names} --help`")))
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
        if !cfg!(feature = "dev") && COMMANDS_OF_THE_FULL_PROGRAM.contains(&word) {
            return Some(
                " (this program is the one for images; the full one has the command)".to_owned(),
            );
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

fn dispatch(command: Command, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    // `run` starts its logger later, when it knows whether there is a progress line. A supervisor has
    // no log.
    let has_own_logger = matches!(command, Command::Run(_) | Command::Supervise);
    // A container's environment variables are not meant for posse's logger.
    #[cfg(feature = "dev")]
    let has_own_logger =
        has_own_logger || matches!(command, Command::Map(_) | Command::DevContainer);
    if !has_own_logger {
        logger::init(world, None)?;
    }
    match command {
        #[cfg(feature = "dev")]
        Command::Init(args) => init::init(&args, world, out),
        #[cfg(feature = "dev")]
        Command::Render(args) if args.driver => submit::render(&args, world, out),
        #[cfg(feature = "dev")]
        Command::Render(args) => render::command(&args, world, out),
        #[cfg(feature = "dev")]
        Command::Dev(args) => dev::dev(&args, world, out),
        #[cfg(feature = "dev")]
        Command::DevContainer => dev::container(),
        Command::Run(args) => run::run(&args, world),
        #[cfg(feature = "dev")]
        Command::Map(args) => map::map(&args, world),
        #[cfg(feature = "dev")]
        Command::MapFeed(args) => map::feed(&args, world),
        Command::Supervise => crate::process::enter().map(|()| Code::Clean).map_err(Failure::usage),
        #[cfg(feature = "dev")]
        Command::Check(args) => check::check(&args, world, out),
        Command::Submit(args) => submit::submit(&args, world, out),
        Command::Apps(args) => apps::apps(&args, world, out),
        Command::Logs(args) => logs::logs(&args, world, out),
        Command::Exec(args) => exec::exec(&args, world, out),
        Command::Stop(args) => stop::stop(&args, world, out),
        Command::Copy(args) => copy::copy(&args),
        Command::Cleanup(args) => cleanup::cleanup(&args, world, out),
        Command::Status(args) => status::status(&args, world, out),
        Command::Scale(args) => scale::scale(&args, world, out),
        Command::Kill(args) => kill::kill(&args, world, out),
        Command::Ready(args) => ready::ready(&args, world, out),
        Command::Idle(args) => idle::idle(&args, world, out),
        Command::Wait(args) => wait::wait(&args, world, out),
        Command::Events(args) => events::events(&args, world, out),
        Command::Explain(args) => explain::explain(&args, world, out),
        Command::Stage(args) => stage::stage(&args, world, out),
        #[cfg(feature = "dev")]
        Command::Completions(args) => completions::script(args.shell, out),
        #[cfg(feature = "dev")]
        Command::Complete(args) => completions::complete(&args.words, world, out),
        #[cfg(feature = "dev")]
        Command::Man(args) => man::man(&args, world, out),
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
