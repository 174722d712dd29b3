//! Arguments to checked settings, to a run, to an exit code.

pub mod args;
pub mod exit;
pub mod init;
pub mod logger;
pub mod manifest;
pub mod render;
pub mod run;
pub mod settings;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::cli::args::{Command, CommandLine, RunArgs};
use crate::cli::exit::{Code, Failure};
use crate::cli::settings::RunSettings;

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
    match command {
        Command::Init(args) => init::init(&args, world, out),
        Command::Render(args) if args.server_check => Err(not_built("render --server-check")),
        Command::Render(args) => {
            let run = RunArgs {
                file: args.file.clone(),
                server: args.server.clone(),
                ..RunArgs::default()
            };
            let settings = RunSettings::new(&run, world)?;
            render::render(&args, &settings, None, out)
        }
        #[cfg(feature = "dev")]
        Command::Dev(_) => Err(not_built("dev")),
        Command::Run(args) => run::run(&args, world),
        Command::Cleanup(_) => Err(not_built("cleanup")),
        Command::Status(_) => Err(not_built("status")),
        Command::Scale(_) => Err(not_built("scale")),
        Command::Events(_) => Err(not_built("events")),
        Command::Explain(_) => Err(not_built("explain")),
    }
}

fn not_built(command: &str) -> Failure {
    Failure::usage(format!("`posse {command}` is not supported by this version yet"))
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
