//! `posse events`: prints the events of a run.

use std::io::{self, Write};

use crate::cli::args::EventsArgs;
use crate::cli::control_client::{FoundRun, find_anywhere};
use crate::cli::exit::{Code, Failure};
use crate::cli::remote::Words;
use crate::cli::world::World;
use crate::control::client::ClientError;
use crate::core::model::text::printable_json;

/// `posse events`.
///
/// # Errors
/// There is no such run, the run refuses, or the connection ends before the run.
pub fn events(args: &EventsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let client = match find_anywhere(&args.client, world)? {
        FoundRun::Here(client) => client,
        FoundRun::InCluster(run) => {
            let words = Words::new("events")
                .flag("--follow", args.follow)
                .option("--after", args.after)
                .option("--run", args.run.as_ref());
            return run.run(words, out);
        }
    };
    let mut each =
        |line: &str| writeln!(out, "{}", printable_json(line)).and_then(|()| out.flush());
    let after = args.after.unwrap_or(0);
    match client.events(after, args.run.as_deref(), args.follow, &mut each) {
        Ok(()) => Ok(Code::Clean),
        // The reader has closed the pipe, as `head` does.
        Err(ClientError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(Code::Clean)
        }
        Err(error) => Err(error.into()),
    }
}
