//! Arguments to checked settings, to a run, to an exit code.

pub mod apps;
pub mod args;
pub mod check;
pub mod cleanup;
pub mod client;
pub mod copy;
#[cfg(feature = "dev")]
pub mod dev;
pub mod exit;
pub mod explain;
pub mod init;
pub mod investigate;
pub mod logger;
pub mod manifest;
pub mod render;
pub mod rights;
pub mod run;
pub mod server;
pub mod settings;
pub mod story;
pub mod submit;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::cli::args::{Command, CommandLine};
use crate::cli::exit::{Code, Failure};

/// The lookup of an environment variable; none where it is absent or not UTF-8.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What a command finds around it; an argument, so that a test can bring its own.
#[expect(missing_debug_implementations, reason = "a lookup has nothing to show")]
#[derive(Clone, Copy)]
pub struct World<'a> {
    pub env: Env<'a>,
    /// What relative paths start from; empty for the working directory.
    pub dir: &'a Path,
}

/// Does what the arguments ask for. Errors are printed here and nowhere else.
pub fn run(
    args: impl IntoIterator<Item = OsString>,
    world: &World<'_>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Code {
    let done = match CommandLine::try_parse_from(args) {
        Ok(line) => dispatch(line.command, world, out),
        Err(error) => refused(&error, out),
    };
    done.unwrap_or_else(|failure| {
        // There is nobody left to tell where stderr is closed.
        let _ = writeln!(err, "posse: {failure}");
        failure.code
    })
}

/// Help and version come as errors from the parser; the others are mistakes.
fn refused(error: &clap::Error, out: &mut dyn Write) -> Result<Code, Failure> {
    let text = error.to_string();
    let kind = error.kind();
    if matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return print(out, &text).map(|()| Code::Clean);
    }
    if kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Err(Failure::usage("a command is missing; `posse --help` lists them"));
    }
    // The mistake comes first; how to use the command is what --help is for.
    let mistake = text.split("\n\nUsage:").next().unwrap_or(&text);
    let mistake = mistake.split("\n\nFor more information").next().unwrap_or(mistake);
    let mistake = mistake.strip_prefix("error: ").unwrap_or(mistake);
    let words: Vec<&str> = mistake.split_whitespace().collect();
    Err(Failure::usage(format!("{}; see `posse --help`", words.join(" "))))
}

fn dispatch(command: Command, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    // A run knows only later whether a live line shares the terminal with its log.
    let waits = matches!(command, Command::Run(_));
    // What a container's environment says about logs is not meant for posse.
    #[cfg(feature = "dev")]
    let waits = waits || matches!(command, Command::DevContainer);
    if !waits {
        logger::init(world.env, None);
    }
    match command {
        Command::Init(args) => init::init(&args, world, out),
        Command::Render(args) => render::command(&args, world, out),
        #[cfg(feature = "dev")]
        Command::Dev(args) => dev::dev(&args, world, out),
        #[cfg(feature = "dev")]
        Command::DevContainer => dev::container(),
        Command::Run(args) => run::run(&args, world),
        Command::Submit(args) => submit::submit(&args, world, out),
        Command::Apps(args) => apps::apps(&args, world, out),
        Command::Logs(args) => apps::logs(&args, world, out),
        Command::Stop(args) => apps::stop(&args, world, out),
        Command::Copy(args) => copy::copy(&args),
        Command::Check(args) => check::check(&args, world, out),
        Command::Cleanup(args) => cleanup::cleanup(&args, world, out),
        Command::Status(args) => client::status(&args, world, out),
        Command::Scale(args) => client::scale(&args, world, out),
        Command::Kill(args) => client::kill(&args, world, out),
        Command::Events(args) => client::events(&args, world, out),
        Command::Explain(args) => investigate::explain(&args, world, out),
    }
}

/// Writes a text to stdout.
fn print(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(Code::Failed, format!("stdout: {error}")))
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
